"""Pixels and polygons: window arithmetic, rasters, vectors. No torch."""
