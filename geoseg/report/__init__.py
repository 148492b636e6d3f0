"""HTML reports and quicklooks."""
