"""Whole-raster classification in bounded memory."""
