"""geoseg: segmentation of geospatial rasters with U-Nets that need little memory."""

__version__ = "0.1.0"
