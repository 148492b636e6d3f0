"""The files that classification writes: names, descriptions, and how they get in place."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geoseg.data.classes import default_colour
from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.raster import Level, RasterInfo, RasterWriter, create_geotiff, publish_cog, same_file, stem
from geoseg.geo.raster.writing import Description
from geoseg.predict.counting import MapCounts
from geoseg.predict.outputs import MapOutput, map_outputs
from geoseg.predict.partstore import PartStore, RunWriter

#: Tag of maps whose pixels have another size than those of their image.
RESAMPLED = "RESAMPLED"


@dataclass(frozen=True)
class MapDescription:
    """What every map says about itself.

    Attributes:
        class_names: Names by class id.
        colours: "#rrggbb" by class id.
        tags: Metadata of the file, such as the model's name and hash.
        values: What class maps hold in place of the ids; None: the ids.
    """

    class_names: tuple[str, ...]
    colours: tuple[str, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    values: tuple[int, ...] | None = None


def output_path(folder: Path, image: str | os.PathLike[str], output: str = "classes") -> Path:
    """Return where an output for an image lies: <folder>/<stem of the image>_<output>.tif."""
    return folder / f"{stem(image)}_{output}.tif"


def parts_folder(folder: Path, image: str | os.PathLike[str]) -> Path:
    """Return where the parts of an image's maps lie until they are complete."""
    return folder / f".{stem(image)}_parts"


def class_colours(classes: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a colour per class: its own, or one of the palette."""
    return tuple(entry.get("colour") or default_colour(number) for number, entry in enumerate(classes))


def publish_maps(
    store: PartStore,
    parts: Sequence[Window],
    folder: Path,
    like: RasterInfo,
    description: MapDescription,
    classes: Sequence[Level] | None = None,
) -> dict[str, Path]:
    """Put the maps of a scene together from its parts; each appears complete or not at all. Return them by output.

    Args:
        store: The parts, all complete.
        parts: Their windows.
        folder: Where the maps go.
        like: The image; size, transform, CRS and control points are copied from it.
        description: Class names, colours and tags.
        classes: The tiles of the class map, if they are not those of the parts.

    Raises:
        DataError: A map cannot be written.
    """
    paths = {output.name: output_path(folder, like.path, output.name) for output in store.outputs}
    # The class map comes last: where it is, everything is.
    for output in sorted(store.outputs, key=lambda output: output.name == "classes"):
        template = store.folder / f".{output.name}_template.tif"
        with _described(template, output, like, description):
            pass  # no pixel: it is there for its description
        levels = classes if classes and output.name == "classes" else store.map_levels(output, parts)
        try:
            publish_cog(template, levels, output.profile, paths[output.name], output.resampling)
        finally:
            template.unlink(missing_ok=True)
    return paths


@contextlib.contextmanager
def write_maps(
    folder: Path, like: RasterInfo, description: MapDescription, outputs: Sequence[str] = ("classes",)
) -> Iterator[RunWriter]:
    """Write the maps of a scene from blocks that come row by row; they appear when the block ends well, else not.

    Args:
        folder: Where the maps go; created if missing.
        like: The image.
        description: Class names, colours and tags.
        outputs: Some of `geoseg.predict.outputs.OUTPUTS`.

    Raises:
        DataError: An output would replace the image itself, or cannot be written.
    """
    refuse_input(like.path, [output_path(folder, like.path, output) for output in outputs])
    count = len(description.class_names)
    maps = map_outputs(outputs, count, description.values)
    store = PartStore(parts_folder(folder, like.path), "", maps, like.window.shape, count)
    with store.at_work(keep=False):
        with store.writing([like.window], MapCounts.zero(count)) as writer:
            yield writer
        with store.finishing([like.window]):
            publish_maps(store, [like.window], folder, like, description)


def refuse_input(image: str | os.PathLike[str], outputs: Iterable[Path]) -> None:
    """Refuse outputs that are the image itself, by another name or a link too.

    Raises:
        DataError: One of them is.
    """
    for path in outputs:
        if same_file(image, path):
            raise DataError(
                problem(
                    path, "an output that is the input image itself", "another place", "choose another output folder"
                )
            )


def _described(
    path: Path, output: MapOutput, like: RasterInfo, description: MapDescription
) -> contextlib.AbstractContextManager[RasterWriter]:
    tags = dict(description.tags)
    if output.name != "classes":
        # Uncertain is a class of the map, and no band.
        names = description.class_names[: output.count] if output.name == "probabilities" else (output.name,)
        if output.scale != 1:
            tags["SCALE"] = f"{output.scale:g}"
        described = Description(tags=tags, band_names=names, scale=output.scale)
    elif description.values is None:
        described = Description(
            tags=tags, band_names=("class",), colours=description.colours, names=description.class_names
        )
    else:
        colours = dict(zip(description.values, description.colours, strict=True))
        described = Description(tags=tags, band_names=("class",), colours=colours)
    return create_geotiff(path, like, output.count, output.dtype, output.nodata, **described)


def classes_tag(classes: Sequence[Mapping[str, Any]]) -> str:
    """Return the classes as the JSON text that a map carries in its tag CLASSES."""
    return json.dumps([dict(entry) for entry in classes], ensure_ascii=False, default=list)
