"""Reading and writing of rasters: the only place of geoseg that opens them."""

from geoseg.geo.raster.bandnames import contradicting, numbers_by_name
from geoseg.geo.raster.info import RasterInfo, is_raster, read_info, read_tags
from geoseg.geo.raster.names import is_gdal_name, key_of, local_files, stem
from geoseg.geo.raster.options import Reading
from geoseg.geo.raster.reading import Pixels, Raster, open_raster
from geoseg.geo.raster.writing import RasterWriter, create_geotiff, finish_cog, publish, same_file

__all__ = [
    "Pixels",
    "Raster",
    "RasterInfo",
    "RasterWriter",
    "Reading",
    "contradicting",
    "create_geotiff",
    "finish_cog",
    "is_gdal_name",
    "is_raster",
    "key_of",
    "local_files",
    "numbers_by_name",
    "open_raster",
    "publish",
    "read_info",
    "read_tags",
    "same_file",
    "stem",
]
