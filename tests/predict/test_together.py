"""Maps made in pieces, by shares, and by several processes at once: the bytes are those of one run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_raster
from torch import Tensor, nn

from geoseg.data.locks import in_use, locked
from geoseg.errors import DataError
from geoseg.geo.grid import Window
from geoseg.geo.raster import overviews
from geoseg.predict import plan as planning
from geoseg.predict.loading import gpu_of
from geoseg.predict.output import MapDescription
from geoseg.predict.plan import SlidingOptions, parts, pieces, share_of
from geoseg.predict.predictor import Predictor
from geoseg.predict.scene import ClassifyOptions, SceneWork, do_scene, finish_scene, make_parts, plan_scene

NAMES, COLOURS = ("a", "b", "c"), ("#000000", "#ff0000", "#00ff00")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 4 x 4 tiles of 16 pixels, so that a small scene has many."""
    monkeypatch.setattr(overviews, "TILE", 16)
    monkeypatch.setattr(planning, "PART", 64)
    monkeypatch.setattr(planning, "_WIDEST", 2)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).integers(1, 255, (2, 300, 200), dtype=np.uint8)
    values[:, 100:140, 20:200] = 0
    return make_raster(tmp_path / "scene.tif", values, nodata=0)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Conv2d(2, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 3, 5, padding=2))
    return layers.requires_grad_(False)


def work_on(image: Path, folder: Path, blending: str = "none", window: int = 48, **options) -> SceneWork:
    sliding = SlidingOptions(window=window, overlap=8, blending=blending)
    chosen = ClassifyOptions(sliding, ("classes", "confidence"), **options)
    return plan_scene(image, predictor(), (1, 2), folder, MapDescription(NAMES, COLOURS), chosen)


def predictor(net: nn.Module | None = None) -> Predictor:
    return Predictor(net or network(), 3, size_divisor=8, receptive_radius=4)


def maps(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(("blending", "window"), [("none", 48), ("none", 64), ("hann", 48)])
def test_pieces_in_any_order_give_the_bytes_of_one_run(image: Path, tmp_path: Path, blending: str, window: int):
    whole = do_scene(work_on(image, tmp_path / "whole", blending, window), predictor())
    work = work_on(image, tmp_path / "pieces", blending, window)
    todo = pieces(work.plan, work.parts, workers=3)
    assert len(todo) > 6
    random.Random(0).shuffle(todo)
    with work.store.at_work(keep=False):
        for number, piece in enumerate(todo):
            assert finish_scene(work) is None, number
            make_parts(work, predictor(), piece)
        counts = finish_scene(work)
    assert whole is not None
    assert counts is not None
    assert counts.classes.tolist() == whole.class_pixels.tolist()
    assert maps(tmp_path / "pieces") == maps(tmp_path / "whole")
    assert hidden(tmp_path / "pieces") == []


@pytest.mark.parametrize("blending", ["none", "hann"])
def test_windows_are_as_many_as_are_said(image: Path, tmp_path: Path, blending: str):
    for share in ((1, 1), (2, 3)):
        work = SceneWork(**{**vars(work_on(image, tmp_path / str(share), blending)), "share": share})
        steps: list[int] = []
        do_scene(work, predictor(), steps.append)
        assert sum(steps) == work.windows


def test_shares_are_the_whole_and_know_who_is_last(image: Path, tmp_path: Path):
    whole = do_scene(work_on(image, tmp_path / "whole"), predictor())
    shares = [SceneWork(**{**vars(work_on(image, tmp_path / "maps")), "share": (place, 3)}) for place in (2, 3, 1)]
    results = [do_scene(work, predictor()) for work in shares]
    assert results[:2] == [None, None]
    assert results[2] is not None
    assert whole is not None
    assert results[2].class_pixels.tolist() == whole.class_pixels.tolist()
    assert maps(tmp_path / "maps") == maps(tmp_path / "whole")
    again = do_scene(shares[0], predictor())  # as a batch system does after a failure elsewhere
    assert again is not None
    assert again.already


@pytest.mark.parametrize(("number", "shares"), [(10, 3), (2, 5), (7, 7), (1, 1)])
def test_every_part_is_in_one_share(number: int, shares: int):
    everything = [Window(64 * row, 0, 64, 64) for row in range(number)]
    dealt = [share_of(everything, (place, shares)) for place in range(1, shares + 1)]
    assert [part for share in dealt for part in share] == everything
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


class Calling(nn.Module):
    """A network that does something else at its n-th window."""

    def __init__(self, at: int, what) -> None:
        super().__init__()
        self.inner, self.at, self.what, self.seen = network(), at, what, 0

    def forward(self, batch: Tensor) -> Tensor:
        self.seen += 1
        if self.seen == self.at:
            self.what()
        return self.inner(batch)


def test_two_runs_of_the_same_maps_use_one_anothers_parts(image: Path, tmp_path: Path):
    do_scene(work_on(image, tmp_path / "whole"), predictor())
    work = work_on(image, tmp_path / "maps", window=64)
    whole = work_on(image, tmp_path / "one", window=64)
    do_scene(whole, predictor())
    outcomes = []

    def other() -> None:
        """Begin at the other end, and be done before the first has its third window."""
        outcomes.append(do_scene(work_on(image, tmp_path / "maps", window=64), predictor(counting)))

    counting = Calling(-1, None)
    first = do_scene(work, predictor(Calling(3, other)))
    assert outcomes[0] is not None
    assert not outcomes[0].already
    assert 0 < counting.seen < whole.windows  # the part that the first had made was not made again
    assert first is not None
    assert first.already
    assert maps(tmp_path / "maps") == maps(tmp_path / "one")
    assert hidden(tmp_path / "maps") == []


@pytest.mark.parametrize("resume", [False, True])
def test_another_run_of_other_maps_of_the_name_is_refused(image: Path, tmp_path: Path, resume: bool):
    said: list[Sequence[str]] = []

    def other() -> None:
        with pytest.raises(DataError) as caught:
            do_scene(work_on(image, tmp_path / "maps", "hann", resume=resume), predictor())
        said.append(caught.value.problems)

    do_scene(work_on(image, tmp_path / "whole"), predictor())
    do_scene(work_on(image, tmp_path / "maps"), predictor(Calling(20, other)))
    assert "another process is making" in said[0][0]
    assert str(tmp_path / "maps") in said[0][0]
    assert maps(tmp_path / "maps") == maps(tmp_path / "whole")
    do_scene(work_on(image, tmp_path / "maps", "hann"), predictor())  # now nobody is at work any more
    assert maps(tmp_path / "maps") != maps(tmp_path / "whole")


def test_what_an_interrupted_run_left_is_kept_or_not(image: Path, tmp_path: Path):
    def stop() -> None:
        raise KeyboardInterrupt

    for resume, fewer in ((True, True), (False, False)):
        folder = tmp_path / str(resume)
        with pytest.raises(KeyboardInterrupt):
            do_scene(work_on(image, folder), predictor(Calling(20, stop)))
        assert len(list(folder.glob(".scene_parts/*/r*"))) > 0
        assert not list(folder.glob(".scene_parts/*/.r*"))
        counting = Calling(-1, None)
        work = work_on(image, folder, resume=resume)
        do_scene(work, predictor(counting))
        assert (counting.seen < work.windows - 10) == fewer
        assert hidden(folder) == []


def test_a_folder_that_was_replaced_is_locked_anew(tmp_path: Path):
    folder = tmp_path / "parts"
    folder.mkdir()
    with in_use(folder):
        with locked(folder) as alone:
            assert not alone
        folder.rename(tmp_path / "gone")
        folder.mkdir()
        with locked(folder) as alone:
            assert alone
    with locked(tmp_path / "gone") as alone:
        assert alone


@pytest.mark.parametrize(
    ("device", "worker", "count", "expected"),
    [
        ("cuda", 0, 4, "cuda:0"),
        ("cuda", 3, 4, "cuda:3"),
        ("cuda", 6, 4, "cuda:2"),
        ("cuda", 5, 1, "cuda"),
        ("cuda", None, 4, "cuda"),
        ("cpu", 1, 0, "cpu"),
    ],
)
def test_workers_share_out_the_gpus(device: str, worker: int | None, count: int, expected: str):
    assert gpu_of(device, worker, count) == expected


def test_parts_and_pieces_cover_each_pixel_once(image: Path, tmp_path: Path):
    for blending in ("none", "hann"):
        plan = work_on(image, tmp_path, blending).plan
        times = np.zeros((plan.height, plan.width), int)
        for piece in pieces(plan, parts(plan), workers=2):
            for part in piece:
                times[part.row_off : part.row_stop, part.col_off : part.col_stop] += 1
        assert (times == 1).all()
