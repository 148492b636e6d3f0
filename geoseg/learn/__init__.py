"""Training: the loop, losses, metrics and model files."""
