"""Samples of different splits on common ground: found before they are cut, told of, refused or left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray

from geoseg.data.footprints import Frame, as_rows, sharing
from geoseg.data.sampling import SampleOptions, ScenePlan
from geoseg.data.survey import SceneFacts
from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window

Ground = Sequence[tuple[int, int, int, int, str]]


@dataclass(frozen=True)
class Standing:
    """A scene that is in the store already, and stays there as it is.

    Attributes:
        image: Its name, for messages.
        place: Transform, CRS (None for none), rows and columns.
        windows: (n, 4) row, column, height and width of its samples.
        splits: (n,) their splits.
        ground: Regions (row, column, height, width, split) that blocks were dealt to.
    """

    image: str
    place: tuple[Affine, str | None, tuple[int, int]]
    windows: NDArray[np.int64]
    splits: NDArray[Any]
    ground: Ground = ()


@dataclass(frozen=True)
class _Samples:
    """Footprints of new samples and then of standing ones, with their splits and where they come from.

    `owners` are (scene, number within the scene); scenes are numbered through, the new ones first.
    """

    shapes: NDArray[Any]
    splits: NDArray[Any]
    owners: NDArray[np.int64]
    new: int
    images: Sequence[str]


def frame_of(facts: Sequence[SceneFacts], standing: Sequence[Standing] = ()) -> Frame:
    """Return the common plane of scenes, the standing ones numbered after the new ones."""
    new = [(f.info.transform, f.info.crs.to_string() if f.info.crs else None, f.info.window.shape) for f in facts]
    return Frame([*new, *(one.place for one in standing)])


def suspects(facts: Sequence[SceneFacts], standing: Sequence[Standing]) -> list[int]:
    """Return the places of scenes, each in one split, that lie in part on scenes of other splits."""
    frame = frame_of(facts, standing)
    wholes, names, owners = [], [], []
    for number, f in enumerate(facts):
        wholes.append(_whole(frame, number, f.info.window.shape))
        names.append(f.scene.split)
        owners.append(number)
    for number, one in enumerate(standing, len(facts)):
        for split in np.unique(one.splits).tolist():
            wholes.append(_whole(frame, number, one.place[2]))
            names.append(split)
            owners.append(number)
    pairs = sharing(np.array(wholes, object), np.array(names))
    return sorted({owners[place] for pair in pairs for place in pair if owners[place] < len(facts)})


def near(facts: Sequence[SceneFacts], standing: Sequence[Standing]) -> list[Standing]:
    """Return the standing scenes that lie in part on the ground of new ones."""
    if not standing:
        return []
    frame = frame_of(facts, standing)
    new = [_whole(frame, number, f.info.window.shape) for number, f in enumerate(facts)]
    tree = shapely.STRtree([whole for whole in new if whole is not None])
    wholes = [_whole(frame, number, one.place[2]) for number, one in enumerate(standing, len(facts))]
    return [
        one
        for one, whole in zip(standing, wholes, strict=True)
        if whole is not None and len(tree.query(whole, predicate="intersects"))
    ]


def without_sharing(
    facts: Sequence[SceneFacts],
    options: SampleOptions,
    plans: Sequence[ScenePlan],
    standing: Sequence[Standing] = (),
) -> tuple[list[ScenePlan], list[str]]:
    """Refuse, tell, or mend: samples of different splits on common ground.

    Args:
        facts: The new scenes.
        options: With the rule.
        plans: Of the new scenes.
        standing: Scenes that stay in the store; nothing of them can be left out any more.

    Returns:
        Plans and warnings.

    Raises:
        DataError: The rule is to refuse them, or a standing sample would have to go.
    """
    samples = _samples(facts, plans, near(facts, standing))
    pairs = [pair for pair in sharing(samples.shapes, samples.splits) if min(pair) < samples.new]
    if not pairs:
        return list(plans), []
    blocks = options.splits.method == "blocks"
    if not blocks and options.splits.shared_ground != "drop":
        return list(plans), _tell(options, samples, pairs)
    # Of a pair the sample of the earlier split goes; dealt blocks may go on either side.
    going = {second if blocks and first >= samples.new else first for first, second in pairs}
    stuck = {place for place in going if place >= samples.new}
    if stuck:
        raise DataError(_stuck(samples, stuck, [place for pair in pairs if pair[0] in stuck for place in pair]))
    gone: dict[int, set[Window]] = {}
    windows = [list(plan.windows) for plan in plans]
    for scene, number in samples.owners[sorted(going)].tolist():
        gone.setdefault(scene, set()).add(windows[scene][number])
    return [_less(plan, gone.get(number, set())) for number, plan in enumerate(plans)], []


def standing_splits(
    shapes: Sequence[Any], facts: Sequence[SceneFacts], standing: Sequence[Standing]
) -> Mapping[int, str]:
    """Return, by place, the split of the ground that was dealt out before and covers most of a shape's covered part.

    Args:
        shapes: In the plane of `frame_of(facts, standing)`; None for one without a place.
        facts: The new scenes.
        standing: Scenes that stay in the store.
    """
    frame = frame_of(facts, standing)
    regions: list[Any] = []
    names: list[str] = []
    for number, one in enumerate(standing, len(facts)):
        if one.ground and frame.placed(number):
            rows = np.array([region[:4] for region in one.ground], np.int64)
            regions += list(frame.footprints(number, rows))
            names += [region[4] for region in one.ground]
    known = [place for place, region in enumerate(regions) if region is not None]
    if not known:
        return {}
    tree = shapely.STRtree([regions[place] for place in known])
    found = {}
    for place, shape in enumerate(shapes):
        covered: dict[str, float] = {}
        for hit in [] if shape is None else sorted(tree.query(shape, predicate="intersects").tolist()):
            region = known[hit]
            area = float(shape.intersection(regions[region]).area)
            covered[names[region]] = covered.get(names[region], 0.0) + area
        if covered and max(covered.values()) > 1e-6 * shape.area:
            found[place] = max(covered, key=lambda split: covered[split])
    return found


def _whole(frame: Frame, number: int, shape: tuple[int, int]) -> Any:
    return frame.footprints(number, np.array([[0, 0, *shape]]))[0] if frame.placed(number) else None


def _samples(facts: Sequence[SceneFacts], plans: Sequence[ScenePlan], standing: Sequence[Standing]) -> _Samples:
    frame = frame_of(facts, standing)
    rows = [as_rows(list(plan.windows)) for plan in plans] + [one.windows for one in standing]
    splits = [np.array(list(plan.windows.values()), object) for plan in plans] + [one.splits for one in standing]
    placed = [number for number in range(len(rows)) if frame.placed(number) and len(rows[number])]
    owners = [np.column_stack([np.full(len(rows[i]), i), np.arange(len(rows[i]))]) for i in placed]
    return _Samples(
        shapes=np.concatenate([np.zeros(0, object), *(frame.footprints(number, rows[number]) for number in placed)]),
        splits=np.concatenate([np.zeros(0, object), *(splits[number] for number in placed)]),
        owners=np.concatenate([np.zeros((0, 2), np.int64), *owners]),
        new=sum(len(rows[number]) for number in placed if number < len(plans)),
        images=[*(str(f.scene.image) for f in facts), *(one.image for one in standing)],
    )


def _less(plan: ScenePlan, gone: set[Window]) -> ScenePlan:
    kept = {window: split for window, split in plan.windows.items() if window not in gone}
    # What was left out is somebody else's ground: it has no part in the statistics either.
    training = tuple(window for window, split in kept.items() if split == "trn") if gone else plan.training
    return ScenePlan(kept, training, plan.ground, plan.apart + len(gone))


def _tell(options: SampleOptions, samples: _Samples, pairs: Sequence[tuple[int, int]]) -> list[str]:
    judged = {second for first, second in pairs if samples.splits[first] == "trn"}
    total = int((samples.splits != "trn").sum())
    shown = _images(samples, [place for pair in pairs for place in pair])
    found = f"{len(judged)} of {total} val and tst windows on ground of trn windows ({shown})"
    if not judged:
        found = f"val and tst windows on common ground ({shown})"
    remedy = "sample.shared_ground: drop leaves such trn windows out, warn lets them pass"
    if options.splits.shared_ground == "error":
        raise DataError(problem("splits", found, "splits without common ground", remedy))
    return [f"splits: {found}: scores may be too good; sample.shared_ground: drop leaves such trn windows out"]


def _stuck(samples: _Samples, stuck: Collection[int], shown: Sequence[int]) -> str:
    splits = " and ".join(sorted({str(samples.splits[place]) for place in stuck}))
    found = f"{len(stuck)} {splits} samples of the store on ground of new ones ({_images(samples, shown)})"
    remedy = "give the new scenes the split of that ground, or sample all scenes again with --overwrite"
    return problem("splits", found, "splits without common ground (sample.shared_ground: drop)", remedy)


def _images(samples: _Samples, places: Sequence[int]) -> str:
    images = sorted({samples.images[scene] for scene in samples.owners[list(places), 0].tolist()})
    return ", ".join(images[:4]) + (f" and {len(images) - 4} more" if len(images) > 4 else "")
