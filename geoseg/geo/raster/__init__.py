"""Reading and writing of rasters: the only place of geoseg that opens them."""

from geoseg.geo.raster.reading import Pixels, Raster, RasterInfo, open_raster, read_info, read_tags
from geoseg.geo.raster.writing import RasterWriter, create_geotiff, finish_cog, publish, same_file

__all__ = [
    "Pixels",
    "Raster",
    "RasterInfo",
    "RasterWriter",
    "create_geotiff",
    "finish_cog",
    "open_raster",
    "publish",
    "read_info",
    "read_tags",
    "same_file",
]
