"""Class maps against references."""
