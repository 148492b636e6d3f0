"""Finished rasters: made Cloud Optimized GeoTIFFs, and put in place by rename."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import rasterio

from geoseg.geo.raster.cog import Level, TileFile, add_overviews, assemble
from geoseg.geo.raster.info import gdal_session
from geoseg.geo.raster.overviews import level_shapes
from geoseg.geo.raster.writing import NAMES_TAG, SIDE_FILES, as_data_error, remove_files, tile_profile


def finish_part(levels: list[Level], wanted: int, profile: dict[str, Any], resampling: str) -> None:
    """Add overviews to a part of a map, in files beside its own: `name.tif` has `name_1.tif`, `name_2.tif`, ...

    Raises:
        DataError: If they cannot be written.
    """
    path = levels[0].files[0].path
    with as_data_error(path), gdal_session():
        add_overviews(levels, wanted, lambda level: part_file(path, level), profile, resampling)


def part_file(path: Path, level: int) -> Path:
    """Return the name of an overview of a part; level 0 is the part itself."""
    return path.with_name(f"{path.stem}_{level}.tif") if level else path


def finish_cog(
    source: str | os.PathLike[str], final: str | os.PathLike[str], overview_resampling: str = "mode"
) -> None:
    """Rewrite a streamed GeoTIFF as a Cloud Optimized GeoTIFF and put it in place.

    The streamed one is removed, also on failure. The file appears under its final name complete or not at all; side
    files of a former one there are removed, and an .aux.xml with the category names is written where the source has
    class names.

    Args:
        source: What `create_geotiff` wrote, with every pixel written.
        final: The name it shall have; replaced if it exists.
        overview_resampling: "mode" or "nearest" for classes, "average" for quantities.

    Raises:
        DataError: If it cannot be written.
    """
    source, final = Path(source), Path(final)
    try:
        with as_data_error(final), gdal_session(), rasterio.open(source) as dataset:
            levels = [Level(dataset.height, dataset.width, [TileFile(source)])]
            profile = tile_profile(dataset.count, dataset.dtypes[0], dataset.nodata)
        publish_cog(source, levels, profile, final, overview_resampling)
    finally:
        remove_files(source)


def publish_cog(
    template: Path, levels: Sequence[Level], profile: dict[str, Any], final: Path, overview_resampling: str = "mode"
) -> None:
    """Put a Cloud Optimized GeoTIFF together from tiles in other files, with the overviews that are missing.

    Args:
        template: A GeoTIFF with the description it shall have; its pixels are not used.
        levels: The full image and those of its overviews that exist, see `geoseg.geo.raster.cog`.
        profile: `tile_profile` of the files.
        final: The name it shall have; replaced if it exists, complete or not at all.
        overview_resampling: "mode" or "nearest" for classes, "average" for quantities.

    Raises:
        DataError: If it cannot be written.
    """
    # The suffix stays .tif: GDAL's helpers look at it.
    mark = uuid.uuid4().hex[:8]
    temporary = final.with_name(f".{final.name}.{mark}.tif")
    folder = final.with_name(f".{final.name}.{mark}")
    try:
        with as_data_error(final), gdal_session():
            folder.mkdir()
            complete = list(levels)
            wanted = len(level_shapes(complete[0].height, complete[0].width))
            add_overviews(complete, wanted, lambda level: folder / f"{level}.tif", profile, overview_resampling)
            assemble(template, complete, temporary)
        publish(temporary, final)
    finally:
        remove_files(temporary)
        shutil.rmtree(folder, ignore_errors=True)


def publish(temporary: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    """Give a finished GeoTIFF its final name, without side files of a former one, and with its category names."""
    temporary, final = Path(temporary), Path(final)
    with as_data_error(final):
        with gdal_session(), rasterio.open(temporary) as dataset:
            names = json.loads(dataset.tags().get(NAMES_TAG, "[]"))
        # First the old side files: between the two renames a reader sees the new pixels without names, never with
        # another map's.
        remove_files(final, SIDE_FILES)
        temporary.replace(final)
        remove_files(temporary, SIDE_FILES)
        if names:
            side = Path(f"{final}.aux.xml")
            hidden = side.with_name(f".{side.name}.{uuid.uuid4().hex[:8]}")
            hidden.write_text(_category_xml(names), encoding="utf-8")
            hidden.replace(side)


def _category_xml(names: Sequence[str]) -> str:
    categories = "\n".join(f"      <Category>{escape(name)}</Category>" for name in names)
    return (
        '<PAMDataset>\n  <PAMRasterBand band="1">\n    <CategoryNames>\n'
        f"{categories}\n    </CategoryNames>\n  </PAMRasterBand>\n</PAMDataset>\n"
    )
