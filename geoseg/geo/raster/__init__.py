"""Reading and writing of rasters: the only place of geoseg that opens them."""

from geoseg.geo.raster.bandnames import contradicting, numbers_by_name
from geoseg.geo.raster.cog import Level, TileFile
from geoseg.geo.raster.info import RasterInfo, is_raster, read_info, read_tags
from geoseg.geo.raster.names import is_gdal_name, key_of, local_files, stem
from geoseg.geo.raster.options import Reading
from geoseg.geo.raster.overviews import level_shapes
from geoseg.geo.raster.publishing import finish_cog, finish_part, part_file, publish, publish_cog
from geoseg.geo.raster.reading import Pixels, Raster, as_raster, open_raster
from geoseg.geo.raster.resampling import Resampled, resampled_info
from geoseg.geo.raster.writing import RasterWriter, create_geotiff, create_tiles, same_file, tile_profile

__all__ = [
    "Level",
    "Pixels",
    "Raster",
    "RasterInfo",
    "RasterWriter",
    "Reading",
    "Resampled",
    "TileFile",
    "as_raster",
    "contradicting",
    "create_geotiff",
    "create_tiles",
    "finish_cog",
    "finish_part",
    "is_gdal_name",
    "is_raster",
    "key_of",
    "level_shapes",
    "local_files",
    "numbers_by_name",
    "open_raster",
    "part_file",
    "publish",
    "publish_cog",
    "read_info",
    "read_tags",
    "resampled_info",
    "same_file",
    "stem",
    "tile_profile",
]
