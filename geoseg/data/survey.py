"""What is in the scenes, and everything that would go wrong, before anything is written.

Nothing here reads pixels: rasters are asked what they are, labels are read whole. All scenes are looked at and their
problems are reported together.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from geoseg.data.alike import Alike, Image, align
from geoseg.data.scenes import Scene
from geoseg.data.splitnames import SPLITS
from geoseg.errors import DataError, GeosegError, problem
from geoseg.geo.ground import Ground, read_ground
from geoseg.geo.labelraster import LabelRaster
from geoseg.geo.raster import RasterInfo, Reading, key_of, read_info
from geoseg.geo.vector import ClassMapping, LabelRules, LabelSet

_LABELS_KEPT = 2


@dataclass(frozen=True)
class SurveyOptions:
    """What the scenes are measured against.

    Attributes:
        mapping: What attribute values mean.
        bands: Band numbers from 1, or band names, in the order wanted; None: all but alpha.
        number_of_bands: How many bands that must come to; None: any.
        rules: How labels become pixels.
        reading: What is done to the values of the images.
        store: What the store holds that the scenes are added to; None: they make a store of their own.
        needs_training: Whether the scenes must hold one for training (not where they are added to others).
        split_by_row: Whether the split of a scene is that of its row; else all that is said about it is passed over.
    """

    mapping: ClassMapping
    bands: tuple[int | str, ...] | None = None
    number_of_bands: int | None = None
    rules: LabelRules = field(default_factory=LabelRules)
    reading: Reading = field(default_factory=Reading)
    store: Alike | None = None
    needs_training: bool = True
    split_by_row: bool = True

    @property
    def mask_outside(self) -> bool:
        """Whether pixels outside every polygon are unknown, not background."""
        return self.rules.mask_outside

    def reading_of(self, scene: Scene) -> Reading:
        """Return what is done to the values of a scene's image."""
        return self.reading if scene.nodata is None else replace(self.reading, nodata=scene.nodata)


@dataclass(frozen=True)
class SceneFacts:
    """A scene that can be sampled.

    Attributes:
        scene: As listed.
        info: What the raster says of itself.
        bands: Numbers, from 1, of the bands to use, in order.
        polygons: Number of label polygons.
        warnings: What the user should know.
    """

    scene: Scene
    info: RasterInfo
    bands: tuple[int, ...]
    polygons: int
    warnings: tuple[str, ...] = ()

    @property
    def band_names(self) -> tuple[str | None, ...]:
        """The chosen bands' names."""
        return tuple(self.info.band_names[band - 1] for band in self.bands)


@dataclass(frozen=True)
class Survey:
    """All scenes, in the list's order, and what the user should know about them."""

    facts: tuple[SceneFacts, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class SceneFindings:
    """What a look at one scene has shown.

    Attributes:
        scene: As listed.
        info: What the raster says of itself; None where it cannot be opened.
        bands: Numbers, from 1, of the bands to use, in order; empty where they cannot be chosen.
        facts: None where the scene cannot be sampled.
        problems: Why not, one line each.
        warnings: What the user should know.
    """

    scene: Scene
    info: RasterInfo | None
    bands: tuple[int, ...]
    facts: SceneFacts | None
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Findings:
    """What a look at all scenes has shown: scene by scene, and about the scenes together."""

    scenes: tuple[SceneFindings, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    def survey(self) -> Survey:
        """Return the scenes if nothing is wrong with any.

        Raises:
            DataError: One line per problem of any scene, or of the scenes together.
        """
        problems = [line for found in self.scenes for line in found.problems] + list(self.problems)
        if problems:
            raise DataError(list(dict.fromkeys(problems)))
        warnings = [line for found in self.scenes for line in found.warnings] + list(self.warnings)
        return Survey(tuple(f.facts for f in self.scenes if f.facts is not None), tuple(dict.fromkeys(warnings)))


def survey(scenes: Sequence[Scene], options: SurveyOptions, on_progress: Callable[[int], None] | None = None) -> Survey:
    """Look at all scenes.

    Raises:
        DataError: One line per problem of any scene, or of the scenes together.
    """
    return look_at(scenes, options, on_progress).survey()


def look_at(
    scenes: Sequence[Scene], options: SurveyOptions, on_progress: Callable[[int], None] | None = None
) -> Findings:
    """Look at all scenes and return what was found, good and bad."""
    found = []
    for scene in scenes:
        found.append(look(scene, options))
        if on_progress:
            on_progress(1)
    return conclude(found, options)


def conclude(found: Sequence[SceneFindings], options: SurveyOptions) -> Findings:
    """Return what was found in each scene, its bands in the order common to all, with what they show together."""
    found, problems, warnings = _aligned(found, options)
    scenes = [f.scene for f in found]
    warnings += _resolutions([f.facts for f in found if f.facts is not None])
    if options.split_by_row:
        problems += _leaks(scenes, options.mask_outside)
        if options.needs_training:
            problems += _split_problems(scenes)
            warnings += _no_validation(scenes)
    return Findings(tuple(found), tuple(problems), tuple(warnings))


def _aligned(
    found: Sequence[SceneFindings], options: SurveyOptions
) -> tuple[list[SceneFindings], list[str], list[str]]:
    """Compare the images of all scenes, also of those whose labels are wrong."""
    images, places = [], []
    for place, one in enumerate(found):
        if one.info is not None and one.bands:
            names = tuple(one.info.band_names[band - 1] for band in one.bands)
            given = one.scene.bands or options.bands or ()
            numbered = any(isinstance(band, int) for band in given)
            images.append(Image(str(one.scene.image), one.bands, names, one.info.dtype, numbered))
            places.append(place)
    aligned = align(images, options.store)
    result = list(found)
    for place, bands in zip(places, aligned.bands, strict=True):
        one = result[place]
        facts = None if one.facts is None else replace(one.facts, bands=bands)
        result[place] = replace(one, bands=bands, facts=facts)
    return result, aligned.problems, aligned.warnings


def scene_labels(scene: Scene, info: RasterInfo, options: SurveyOptions, key: str = "") -> LabelSet | LabelRaster:
    """Return the labels of a scene; see `scene_ground`."""
    return scene_ground(scene, info, options, key).labels


def scene_ground(scene: Scene, info: RasterInfo, options: SurveyOptions, key: str = "") -> Ground:
    """Return what is known of a scene's ground, from this process's small cache where it was read last.

    Args:
        scene: With labels.
        info: Of its image.
        options: How to read them.
        key: Names this state of files and options; with "" they are looked at.
    """
    if scene.labels is None:
        where = scene.where or scene.image
        raise DataError(problem(where, "no labels", "a vector file or a label raster", "add it, or leave it out"))
    # The grid matters to a label raster that has no place of its own.
    grid = f"{info.crs.to_wkt() if info.crs else None} {tuple(info.transform)} {info.height} {info.width}"
    place = (str(scene.labels), scene.attribute, scene.layer, str(scene.aoi), grid, key or _state(scene, options))
    if place in _cache:
        _cache.move_to_end(place)
        return _cache[place]
    ground = read_ground(scene.ground, info, options.mapping, options.rules)
    _cache[place] = ground
    while len(_cache) > _LABELS_KEPT:
        _cache.popitem(last=False)
    return ground


def forget_labels() -> None:
    """Give back the memory of the labels that this process keeps."""
    _cache.clear()


def _state(scene: Scene, options: SurveyOptions) -> str:
    """Return what changes when the labels of a scene have to be read again."""
    files = [(path, path.stat()) for path in scene.files() if isinstance(path, Path) and path.is_file()]
    states = [(str(path), state.st_size, state.st_mtime_ns, state.st_ino) for path, state in files]
    return repr((states, options.mapping, options.rules))


_cache: OrderedDict[tuple[str | None, ...], Ground] = OrderedDict()


def look(scene: Scene, options: SurveyOptions, key: str = "") -> SceneFindings:
    """Look at one scene.

    Args:
        scene: As listed.
        options: What it is measured against.
        key: See `scene_labels`.
    """
    info: RasterInfo | None = None
    problems: list[str] = []
    notes: list[str] = []
    bands: tuple[int, ...] = ()
    polygons = 0
    try:
        info = read_info(scene.image, reading=options.reading_of(scene))
        try:
            bands = choose_bands(scene.image, info, scene.bands or options.bands, options.number_of_bands)
        except DataError as error:
            problems += error.problems
        ground = scene_ground(scene, info, options, key)
        polygons = ground.polygons
        notes = [*ground.warnings, *ground.check(scene.ground, info)]
    except GeosegError as error:
        problems += error.problems
    facts = None if problems or info is None else SceneFacts(scene, info, bands, polygons, tuple(notes))
    located = tuple(f"{scene.where}: {line}" if scene.where else line for line in problems)
    return SceneFindings(scene, info, bands, facts, located, tuple(notes))


def choose_bands(
    image: Path | str, info: RasterInfo, bands: Sequence[int | str] | None, number_of_bands: int | None
) -> tuple[int, ...]:
    """Return the numbers, from 1, of the bands to use.

    Raises:
        DataError: A band is not there, or there are not `number_of_bands` of them.
    """
    chosen = info.image_bands if bands is None else tuple(_band_number(image, info, band) for band in bands)
    if number_of_bands is not None and len(chosen) != number_of_bands:
        alpha = "" if bands is not None or info.alpha_band is None else f" besides its alpha band {info.alpha_band}"
        found = f"{len(chosen)} bands{alpha}"
        remedy = "correct global.number_of_bands, or choose bands with global.bands"
        raise DataError(problem(image, found, f"{number_of_bands} (global.number_of_bands)", remedy))
    return chosen


def _band_number(image: Path | str, info: RasterInfo, band: int | str) -> int:
    if isinstance(band, str):
        if band in info.band_names:
            return info.band_names.index(band) + 1
        named = ", ".join(name for name in info.band_names if name) or "none"
        raise DataError(problem(image, f"bands named {named}", f"one named {band!r}", "correct global.bands"))
    if not 1 <= band <= info.count:
        found = f"{info.count} bands, numbered from 1"
        raise DataError(problem(image, found, f"a band {band} (global.bands)", "correct global.bands"))
    return band


def _split_problems(scenes: Sequence[Scene]) -> list[str]:
    counts = Counter(scene.split for scene in scenes)
    if counts["trn"]:
        return []
    found = "scenes per split " + ", ".join(f"{split} {counts[split]}" for split in SPLITS)
    return [problem("list of scenes", found, "at least one trn", "give some scenes the split trn")]


def _leaks(scenes: Sequence[Scene], mask_outside: bool) -> list[str]:
    """The same image in two splits would test a model on pixels it was trained on.

    With `mask_outside` the labels of either row may lie in areas of their own, so it is let pass.
    """
    if mask_outside:
        return []
    first: dict[str, Scene] = {}
    problems = []
    for scene in scenes:
        other = first.setdefault(key_of(scene.image), scene)
        if other.split != scene.split:
            found = f"{scene.image} in split {scene.split} and, in another row, in {other.split}"
            remedy = "list it once, or cut the image in two"
            problems.append(problem(scene.where, found, "each image in one split", remedy))
    return problems


def _resolutions(facts: Sequence[SceneFacts]) -> list[str]:
    """Ground resolutions more than a factor of 2 apart; degrees and metres are not compared with one another."""
    warnings = []
    for geographic in (False, True):
        group = [
            f for f in facts if f.info.georeferenced and bool(f.info.crs and f.info.crs.is_geographic) == geographic
        ]
        sides = [max(f.info.resolution) for f in group]
        if sides and max(sides) > 2 * min(sides):
            shown = ", ".join(f"{f.scene.name} {side:g}" for f, side in zip(group[:10], sides, strict=False))
            more = f" and {len(group) - 10} more" if len(group) > 10 else ""
            warnings.append(f"images of very different resolution: {shown}{more}; a model learns sizes in pixels")
    return warnings


def _no_validation(scenes: Sequence[Scene]) -> list[str]:
    if any(scene.split == "val" for scene in scenes):
        return []
    return ["no scene has the split val: training needs validation samples to choose the best epoch"]
