"""The section of the config that says how rasters are classified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from geoseg.config.lists import output_list, source_list
from geoseg.config.rules import (
    RefusedError,
    Rule,
    as_list,
    as_number,
    choice,
    local_path,
    number,
    resolve_path,
    source_path,
    switch,
    whole,
)
from geoseg.config.schema import Section, key

_PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed")


def path_list(what: str) -> Rule:
    """Return the rule of a list of paths on this machine; a single path is a list of one."""

    def convert(value: Any, folder: Path) -> tuple[Path, ...]:
        found = [resolve_path(item, folder) for item in as_list(value, commas=False)]
        local = tuple(path for path in found if isinstance(path, Path))
        if len(local) < len(found):
            raise RefusedError("give paths on this machine")
        return local

    return Rule(f"a list of {what}", convert)


def threshold_list() -> Rule:
    """Return the rule of one probability, or a list of them."""

    def convert(value: Any, folder: Path) -> float | tuple[float, ...] | None:
        listed = [value] if isinstance(value, int | float) else as_list(value)
        numbers = [as_number(item) for item in listed]
        if not numbers or not all(0 <= number <= 1 for number in numbers):
            raise RefusedError("write numbers from 0 to 1")
        return tuple(numbers) if isinstance(value, list | tuple) else numbers[0]

    return Rule("a probability, or a list with one for each class", convert, optional=True)


def size(unit: str, low: float = 0.0, optional: bool = False) -> Rule:
    """Return the rule of a size: a number of pixels, or text with a unit, "m" or "m2"."""

    def convert(value: Any, folder: Path) -> float | str:
        written = value.strip() if isinstance(value, str) else value
        metric = isinstance(written, str) and written.endswith(unit)
        try:
            result = as_number(written.removesuffix(unit) if metric else written)
        except RefusedError:
            raise RefusedError(f"write 20 for pixels, or '20 {unit}'") from None
        if result < (0 if metric else low) or (low > 0 and result == 0):
            raise RefusedError("change the value")
        return f"{result:.12g} {unit}" if metric else result

    return Rule(f"a number of pixels of at least {low:g}, or one of metres such as '2 {unit}'", convert, optional)


def box() -> Rule:
    """Return the rule of a rectangle of coordinates."""

    def convert(value: Any, folder: Path) -> tuple[float, float, float, float]:
        numbers = [as_number(item) for item in as_list(value)]
        if len(numbers) != 4 or numbers[0] >= numbers[2] or numbers[1] >= numbers[3]:
            raise RefusedError("write [left, bottom, right, top]")
        return numbers[0], numbers[1], numbers[2], numbers[3]

    return Rule("a list of four numbers: left, bottom, right, top", convert, optional=True)


class ClassificationSection(Section):
    """`python -m geoseg.classify`: model file and rasters to class maps. Also accepted under the name `inference`."""

    working_folder: Annotated[Path | str, source_path("a folder")] = key(
        "to_classify", "Folder of the rasters to classify; not used if `images` is given."
    )
    images: Annotated[tuple[Path | str, ...] | None, source_list()] = key(
        None,
        "Rasters to classify: paths, folders, patterns such as 'tiles/*.tif', CSV lists or STAC files.",
        "all in `working_folder`",
    )
    state_dict_path: Annotated[Path, local_path("a model file", optional=True)] = key(
        None, "The model file.", "`training.output_path`/`training.run_name`/best.safetensors"
    )
    output_path: Annotated[Path, local_path("a folder")] = key("maps", "Folder of the class maps.")
    overlap: Annotated[int | None, whole(0, optional=True)] = key(
        None, "Pixels by which neighbouring windows overlap on each side.", "the context that the model needs"
    )
    blending: Annotated[str, choice("none", "hann", "gaussian")] = key(
        "none", "How overlapping windows are joined: none (each gives its middle), hann or gaussian (weighted mean)."
    )
    window: Annotated[int | Literal["auto"], whole(16, words=("auto",))] = key(
        "auto", "Side of the window that is classified at once, in pixels, without its context."
    )
    batch_size: Annotated[int | None, whole(1, optional=True)] = key(
        None, "Windows classified together.", "1 on a CPU, more on a GPU"
    )
    outputs: Annotated[tuple[str, ...], output_list()] = key(
        ("classes",), "What to write: classes, probabilities, confidence, entropy."
    )
    device: Annotated[str, choice("auto", "cpu", "cuda")] = key(
        "auto", "Where to compute; auto takes a GPU if there is one."
    )
    precision: Annotated[str, choice(*_PRECISIONS)] = key(
        "auto", "Number type of the computation; auto is bf16-mixed where the device is fast at it."
    )
    overwrite: Annotated[bool, switch()] = key(True, "Replace class maps that exist; false skips them.")
    ensemble: Annotated[tuple[Path, ...], path_list("model files")] = key(
        (), "Further model files, trained on the same samples; the probabilities of all are averaged."
    )
    test_time_augmentation: Annotated[str, choice("none", "flips", "all")] = key(
        "none", "Looks at every window whose probabilities are averaged: none, flips (4), all (8, quarter turns too)."
    )
    temperature: Annotated[float, number(0, above=True)] = key(
        1.0, "Scores are divided by it; above 1 probabilities are less extreme. Without further looks classes stay."
    )
    uncertain_below: Annotated[float | tuple[float, ...] | None, threshold_list()] = key(
        None,
        "Least probability, or a list of one per class; pixels below are given a class of their own, uncertain.",
        "no such class",
    )
    aoi: Annotated[Path | None, local_path("a vector file", optional=True)] = key(
        None, "Area of interest; what lies outside its polygons is not classified.", "everywhere"
    )
    bounds: Annotated[tuple[float, float, float, float] | None, box()] = key(
        None, "[left, bottom, right, top] in the image's CRS; what lies outside is not classified.", "everywhere"
    )
    resample: Annotated[bool, switch()] = key(
        False, "Read images in the pixel size of the training; their maps have that size too, over the same ground."
    )
    convert_dtype: Annotated[bool, switch()] = key(
        False,
        "Take images of another number type than the training's, if that holds all of their values unchanged.",
    )
    values: Annotated[str, choice("ids", "attribute")] = key(
        "ids", "What class maps hold: ids (0, 1, ...), or the value of each class in the labels' attribute (uint16)."
    )
    fractions: Annotated[str, choice("float32", "uint8")] = key(
        "float32", "Type of probabilities, confidence and entropy; uint8 holds 250 times the number."
    )
    quicklook: Annotated[bool, switch()] = key(False, "Also draw each class map, with a legend, as a PNG.")
    minimum_mapping_unit: Annotated[float | str | None, size("m2", low=1, optional=True)] = key(
        None,
        "Regions of a class map with fewer pixels (or '100 m2' for less ground) take the class around them.",
        "every pixel stays",
    )
    polygons: Annotated[str | None, choice("gpkg", "parquet", "geojson", optional=True)] = key(
        None, "Also write each class map as polygons: gpkg, parquet (GeoParquet) or geojson (in WGS 84).", "none"
    )
    polygon_min_area: Annotated[float | str, size("m2")] = key(
        0.0, "Polygons smaller than this are left out; pixels, or '100 m2'."
    )
    polygon_fill_holes: Annotated[float | str, size("m2")] = key(
        0.0, "Holes of polygons smaller than this are filled; pixels, or '100 m2'."
    )
    polygon_simplify: Annotated[float | str, size("m")] = key(
        0.0, "Tolerance to which borders are simplified, shared ones alike; pixels, or '2 m'. 0 follows every pixel."
    )
    polygon_background: Annotated[bool, switch()] = key(False, "Also write polygons of background.")
    workers: Annotated[int | Literal["auto"], whole(1, 1024, words=("auto",))] = key(
        1,
        "Processes that classify images, and parts of large ones, side by side; auto is one per GPU or usable CPU.",
    )
