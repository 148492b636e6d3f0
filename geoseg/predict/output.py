"""The files that classification writes: class maps, probabilities, confidence."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from geoseg.data.classes import default_colour
from geoseg.errors import DataError, problem
from geoseg.geo.raster import RasterInfo, RasterWriter, create_geotiff, finish_cog, same_file, stem
from geoseg.predict.sliding import NODATA, ClassBlock

OUTPUTS = ("classes", "probabilities", "confidence")
_TILES = (512, 256, 128, 64, 32, 16)


@dataclass(frozen=True)
class MapDescription:
    """What every map says about itself.

    Attributes:
        class_names: Names by class id.
        colours: "#rrggbb" by class id.
        tags: Metadata of the file, such as the model's name and hash.
    """

    class_names: tuple[str, ...]
    colours: tuple[str, ...]
    tags: Mapping[str, str] = field(default_factory=dict)


def output_path(folder: Path, image: str | os.PathLike[str], output: str = "classes") -> Path:
    """Return where an output for an image lies: <folder>/<stem of the image>_<output>.tif."""
    return folder / f"{stem(image)}_{output}.tif"


def class_colours(classes: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a colour per class: its own, or one of the palette."""
    return tuple(entry.get("colour") or default_colour(number) for number, entry in enumerate(classes))


class MapWriter:
    """Writes the blocks of one scene into all outputs that were asked for."""

    def __init__(self, writers: Mapping[str, RasterWriter]) -> None:
        self._writers = writers

    def write(self, block: ClassBlock) -> None:
        """Write a block; it must carry probabilities if they or the confidence are written."""
        for output, writer in self._writers.items():
            if output == "classes":
                writer.write(block.classes, block.window)
                continue
            assert block.probabilities is not None
            values = block.probabilities
            # With NaN where invalid the maximum is NaN too, without a warning.
            writer.write(values if output == "probabilities" else values.max(axis=0), block.window)


@contextlib.contextmanager
def write_maps(
    folder: Path, like: RasterInfo, description: MapDescription, outputs: Sequence[str] = ("classes",), side: int = 512
) -> Iterator[MapWriter]:
    """Write the outputs of one scene; they appear under their final names when the block ends well, else not at all.

    Classes are uint8 with nodata 255, probabilities (a band per class) and confidence (the probability of the class in
    the map) are float32 with nodata NaN. Maps that exist are replaced.

    Args:
        folder: Where the maps go; created if missing.
        like: The image; size, transform, CRS and control points are copied from it.
        description: Class names, colours and tags.
        outputs: Some of `OUTPUTS`.
        side: Side of the blocks that will be written; the file's own blocks are chosen to fit it.

    Raises:
        DataError: An output would replace the image itself, or cannot be written.
        ValueError: An unknown output.
    """
    if unknown := set(outputs) - set(OUTPUTS):
        raise ValueError(f"unknown outputs {sorted(unknown)}, expected some of {', '.join(OUTPUTS)}")
    finals = {output: output_path(folder, like.path, output) for output in outputs}
    refuse_input(like.path, finals.values())
    _make_folder(folder)
    tile = next((size for size in _TILES if side % size == 0), 256)
    temporaries = {
        output: final.with_name(f".{final.stem}.{uuid.uuid4().hex[:8]}.tif") for output, final in finals.items()
    }
    try:
        with contextlib.ExitStack() as stack:
            yield MapWriter(
                {
                    output: stack.enter_context(_create(path, output, like, description, tile))
                    for output, path in temporaries.items()
                }
            )
        # The class map comes last: where it is, everything is.
        for output in sorted(finals, key=lambda name: name == "classes"):
            finish_cog(temporaries[output], finals[output], "mode" if output == "classes" else "average")
    finally:
        for path in temporaries.values():
            path.unlink(missing_ok=True)


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


def _create(path: Path, output: str, like: RasterInfo, description: MapDescription, tile: int) -> Any:
    if output == "classes":
        return create_geotiff(
            path,
            like,
            1,
            np.uint8,
            NODATA,
            tile,
            colours=description.colours,
            tags=description.tags,
            names=description.class_names,
            band_names=("class",),
        )
    names = description.class_names if output == "probabilities" else ("confidence",)
    return create_geotiff(
        path, like, len(names), np.float32, float("nan"), tile, tags=description.tags, band_names=names
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"a folder that cannot be made ({error.strerror})"
        raise DataError(problem(folder, found, "a writable place", "choose another output folder")) from error


def classes_tag(classes: Sequence[Mapping[str, Any]]) -> str:
    """Return the classes as the JSON text that a map carries in its tag CLASSES."""
    return json.dumps([dict(entry) for entry in classes], ensure_ascii=False, default=list)
