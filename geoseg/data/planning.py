"""From the list of scenes to the windows of each and their splits, before any pixel of an image is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from geoseg.data.commonground import Standing, frame_of, standing_splits, suspects, without_sharing
from geoseg.data.footprints import as_rows
from geoseg.data.places import LookTask, look, look_tasks, seen
from geoseg.data.sampling import SampleOptions, ScenePlan
from geoseg.data.splitnames import SPLIT_NAMES, SPLITS
from geoseg.data.splits import Cell, cells_of, deal, deal_at_random, gap_of, regions_of
from geoseg.data.survey import SceneFacts
from geoseg.data.windows import NOWHERE, Places, Region, any_overlap, choose_windows, generator
from geoseg.errors import DataError, GeosegError, problem
from geoseg.geo.grid import Window
from geoseg.geo.vector import ClassMapping, on_map, read_labels
from geoseg.geo.vector.burning import in_pixels

_NEAR = 1e-3  # pixels; outlines drawn along pixel edges are that exact at least

RunLooks = Callable[[Callable[[LookTask], Path], Iterable[LookTask]], Iterator[tuple[LookTask, Path | Exception]]]


def plan_store(
    facts: Sequence[SceneFacts],
    options: SampleOptions,
    folder: Path,
    run: RunLooks,
    standing: Sequence[Standing] = (),
) -> tuple[list[ScenePlan | None], list[str]]:
    """Return the plan of each scene, and warnings.

    Args:
        facts: The scenes.
        options: How to cut and split them.
        folder: Where what a look at the labels finds is kept.
        run: Where looks are run.
        standing: The scenes of a store that is added to.

    Raises:
        DataError: Splits would share ground, or cannot be made.
    """
    if not facts:
        return [], []
    if options.plain:
        return _plain(facts, options, standing)
    cells = [cells_of(i, f, options.splits, options.size) if _dealt(options) else [] for i, f in enumerate(facts)]
    counts, places = _looked(facts, options, cells, folder, run)
    if _dealt(options):
        plans = _by_blocks(facts, options, cells, counts, places, standing)
    else:
        plans = [_by_scene(f, options, p) for f, p in zip(facts, places, strict=True)]
        if options.splits.method == "polygons":
            plans = [_by_polygons(f, options, plan) for f, plan in zip(facts, plans, strict=True)]
        elif options.splits.method == "random":
            plans = _at_random(facts, options, plans)
    apart, warnings = without_sharing(facts, options, plans, standing)
    return list(apart), warnings


def looks(options: SampleOptions) -> bool:
    """Tell whether labels must be looked at before windows can be placed."""
    return _dealt(options) or options.windows.looks


def count_looks(facts: Sequence[SceneFacts], options: SampleOptions) -> int:
    """Return how many tasks `plan_store` runs."""
    return sum(len(look_tasks(f, options, (), Path())) for f in facts) if looks(options) else 0


def _dealt(options: SampleOptions) -> bool:
    return options.splits.method == "blocks"


def _plain(
    facts: Sequence[SceneFacts], options: SampleOptions, standing: Sequence[Standing]
) -> tuple[list[ScenePlan | None], list[str]]:
    """The unmoved grid: windows are worked out only where scenes of two splits lie on one another."""
    chosen = [facts[place] for place in suspects(facts, standing)]
    plans = [_by_scene(f, options, NOWHERE) for f in chosen]
    _, warnings = without_sharing(chosen, options, plans, standing) if chosen else ([], [])
    return [None] * len(facts), warnings


def _looked(
    facts: Sequence[SceneFacts], options: SampleOptions, cells: Sequence[Sequence[Cell]], folder: Path, run: RunLooks
) -> tuple[list[NDArray[np.int64]], list[Places]]:
    if not looks(options):
        return [np.zeros((0, options.num_classes), np.int64)] * len(facts), [NOWHERE] * len(facts)
    folder.mkdir(exist_ok=True)
    tasks = [look_tasks(f, options, [c.window for c in own], folder) for f, own in zip(facts, cells, strict=True)]
    problems: list[str] = []
    for _, result in run(look, [task for own in tasks for task in own]):
        if isinstance(result, GeosegError):
            problems += result.problems
        elif isinstance(result, Exception):
            raise result
    if problems:
        raise DataError(list(dict.fromkeys(problems)))
    found = [seen(own) for own in tasks]
    return [counts for counts, _ in found], [places for _, places in found]


def _by_scene(facts: SceneFacts, options: SampleOptions, places: Places) -> ScenePlan:
    region = Region(facts.info.window, facts.scene.split)
    name = facts.scene.scene_id
    windows = choose_windows([region], options.size, options.stride, options.windows, name, places)
    return ScenePlan(windows)


def _by_blocks(
    facts: Sequence[SceneFacts],
    options: SampleOptions,
    cells: Sequence[Sequence[Cell]],
    counts: Sequence[NDArray[np.int64]],
    places: Sequence[Places],
    standing: Sequence[Standing],
) -> list[ScenePlan]:
    """Deal out the blocks; those that lie on ground already dealt follow it."""
    every = [cell for own in cells for cell in own]
    all_counts = np.concatenate(list(counts)).astype(float)
    leaders, known = _leaders(facts, every, standing)
    free = [index for index, leader in enumerate(leaders) if leader == index]
    summed = np.zeros_like(all_counts)
    np.add.at(summed, leaders, all_counts)
    splits = [""] * len(every)
    held: dict[str, NDArray[np.float64]] = {}
    for index in free:
        if split := known.get(index):
            splits[index] = split
            held[split] = held.get(split, np.zeros(options.num_classes)) + summed[index]
    open_cells = [index for index in free if not splits[index]]
    if open_cells:
        dealt = deal(summed[open_cells], dict(options.splits.fractions), options.splits.seed, held)
        for index, split in zip(open_cells, dealt, strict=True):
            splits[index] = split
    named = [splits[leader] for leader in leaders]
    plans, start = [], 0
    for f, own, seen_places in zip(facts, cells, places, strict=True):
        regions = regions_of(own, named[start : start + len(own)], gap_of(options.splits, f, options.size))
        start += len(own)
        plans.append(_in_regions(f, options, regions, seen_places))
    return plans


def _in_regions(facts: SceneFacts, options: SampleOptions, regions: Sequence[Region], places: Places) -> ScenePlan:
    windows = choose_windows(regions, options.size, options.stride, options.windows, facts.scene.scene_id, places)
    ground = tuple((*as_rows([r.window])[0].tolist(), r.split) for r in regions)
    training = tuple(region.window for region in regions if region.split == "trn")
    return ScenePlan(windows, training, ground)


def _leaders(
    facts: Sequence[SceneFacts], cells: Sequence[Cell], standing: Sequence[Standing]
) -> tuple[list[int], Mapping[int, str]]:
    """Return for each cell the one whose split it takes: itself, or that of an earlier scene which it most covers.

    And the splits, by cell, of those that lie on ground of the store.
    """
    frame = frame_of(facts, standing)
    polygons: list[Any] = []
    for scene in range(len(facts)):
        own = as_rows([cell.window for cell in cells if cell.scene == scene])
        polygons += list(frame.footprints(scene, own)) if frame.placed(scene) else [None] * len(own)
    leaders = list(range(len(cells)))
    present = [index for index, polygon in enumerate(polygons) if polygon is not None]
    if not present:
        return leaders, {}
    shapes = np.array([polygons[index] for index in present], object)
    first, second = shapely.STRtree(shapes).query(shapes, predicate="intersects")
    area = shapely.area(shapely.intersection(shapes[first], shapes[second]))
    best: dict[int, tuple[float, int]] = {}
    for one, other, common in zip(first.tolist(), second.tolist(), area.tolist(), strict=True):
        follower, leader = present[one], present[other]
        if cells[leader].scene < cells[follower].scene and common > 1e-6 * shapes[one].area:
            best[follower] = max(best.get(follower, (0.0, 0)), (common, -leader))
    for follower in sorted(best):
        leaders[follower] = leaders[-best[follower][1]]
    return leaders, standing_splits(polygons, facts, standing)


def _by_polygons(facts: SceneFacts, options: SampleOptions, plan: ScenePlan) -> ScenePlan:
    """Keep the windows that lie wholly in the polygons of one split."""
    areas = split_areas(facts, options)
    windows = _in_polygons(facts, options, plan, areas)
    kept: dict[Window, str] = {}
    if windows:
        clipped = [window.intersection(facts.info.window) for window in windows]
        boxes = np.array([shapely.box(w.col_off, w.row_off, w.col_stop, w.row_stop) for w in clipped if w])
        inside = {}
        for split, area in areas.items():
            shapely.prepare(area)
            inside[split] = shapely.covers(area, boxes)
        for number, window in enumerate(windows):
            homes = [split for split, found in inside.items() if found[number]]
            if len(homes) == 1:
                kept[window] = homes[0]
    training = tuple(window for window, split in kept.items() if split == "trn")
    return ScenePlan(kept, training, (), len(windows) - len(kept))


def _in_polygons(facts: SceneFacts, options: SampleOptions, plan: ScenePlan, areas: Mapping[str, Any]) -> list[Window]:
    """Return windows that may lie in a polygon: a grid that begins where the polygon does, and those that were drawn.

    A grid that begins where the scene does has no window in a polygon that is little wider than a sample.
    """
    drawn = {} if options.windows.mode == "grid" else plan.windows
    regions = [
        Region(inside, split)
        for split, area in areas.items()
        if not (drawn and split == "trn")
        for part in shapely.get_parts(area)
        if (inside := _box_in(part, facts.info.window))
    ]
    on_grids = choose_windows(
        regions, options.size, options.stride, replace(options.windows, mode="grid"), facts.scene.scene_id
    )
    return sorted({**on_grids, **drawn})


def _box_in(polygon: Any, scene: Window) -> Window | None:
    """Return the whole pixels of the scene within a polygon's bounds."""
    left, top, right, bottom = shapely.bounds(polygon)
    first_row, first_col = math.ceil(top - _NEAR), math.ceil(left - _NEAR)
    height, width = math.floor(bottom + _NEAR) - first_row, math.floor(right + _NEAR) - first_col
    return Window(first_row, first_col, height, width).intersection(scene) if height > 0 and width > 0 else None


def split_areas(facts: SceneFacts, options: SampleOptions) -> dict[str, Any]:
    """Return the area of each split in a scene's pixel coordinates, from the file of polygons.

    Raises:
        DataError: The file cannot be read, its values are not splits, or areas of two splits overlap.
    """
    given = options.splits
    assert given.file is not None
    remedy = "call them so, or give the attribute that does in sample.split.attribute"
    mapping = ClassMapping(by_value=_split_values(), num_classes=len(SPLITS), remedy=remedy)
    crs = facts.info.crs
    labels = read_labels(given.file, given.attribute or "split", crs, mapping, image=facts.scene.image)
    labels = on_map(labels, crs, facts.info.transform, facts.info.window.shape)
    shapes = in_pixels(labels, facts.info.transform).geometries
    areas = {
        split: shapely.union_all(shapes[labels.ids == i]) for i, split in enumerate(SPLITS) if (labels.ids == i).any()
    }
    names = list(areas)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            if areas[one].intersection(areas[other]).area > 1:
                found = f"polygons of {one} and {other} that overlap"
                raise DataError(problem(given.file, found, "each piece of ground in one split", "cut them apart"))
    return areas


def _split_values() -> dict[str | int, int]:
    """Return what polygons may call a split, as lower, upper or title case, with its place in SPLITS."""
    names = {split: split for split in SPLITS} | SPLIT_NAMES
    return {cased: SPLITS.index(s) for name, s in names.items() for cased in (name, name.upper(), name.title())}


def _at_random(facts: Sequence[SceneFacts], options: SampleOptions, plans: Sequence[ScenePlan]) -> list[ScenePlan]:
    for f, plan in zip(facts, plans, strict=True):
        if not options.windows.plain or any_overlap(plan.windows):
            raise DataError(_refused(f"windows that overlap ({f.scene.image})"))
    frame = frame_of(facts)
    whole = [frame.footprints(i, as_rows([f.info.window]))[0] if frame.placed(i) else None for i, f in enumerate(facts)]
    shapes = np.array([shape for shape in whole if shape is not None], object)
    if len(shapes) > 1:
        first, second = shapely.STRtree(shapes).query(shapes, predicate="intersects")
        pairs = first < second
        if (shapely.area(shapely.intersection(shapes[first[pairs]], shapes[second[pairs]])) > 1e-6).any():
            raise DataError(_refused("scenes that lie on one another"))
    total = sum(len(plan.windows) for plan in plans)
    rng = generator(options.splits.seed, "random")
    names = iter(deal_at_random(total, dict(options.splits.fractions), rng))
    result = []
    for plan in plans:
        windows = {window: next(names) for window in plan.windows}
        result.append(ScenePlan(windows, tuple(w for w, split in windows.items() if split == "trn")))
    return result


def _refused(found: str) -> str:
    remedy = "use sample.split: {method: blocks}, which keeps the splits apart on the ground"
    return problem("sample.split: random", found, "windows without common ground", remedy)
