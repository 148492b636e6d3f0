from __future__ import annotations

import json
import pickle
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenery import make_options, make_scene

from geoseg.data import counting, sampling
from geoseg.data.counting import count_classes
from geoseg.data.sampling import block_side, owned_windows, plan_scene, run_block
from geoseg.data.survey import survey
from geoseg.geo.grid import sample_blocks


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 20), st.data())
@settings(max_examples=80, deadline=None)
def test_owned_windows_partition_the_scene(height: int, width: int, size: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, size))
    blocks = sample_blocks(height, width, size, stride, data.draw(st.integers(1, 60)))
    hits = np.zeros((height, width), int)

    for block, owned in zip(blocks, owned_windows(blocks), strict=True):
        assert block.window.contains(owned)
        hits[owned.row_off : owned.row_stop, owned.col_off : owned.col_stop] += 1

    assert (hits == 1).all()


def test_blocks_of_many_bands_are_smaller() -> None:
    assert block_side(4, 1) == 2048
    assert block_side(200, 4) ** 2 * 200 * 4 <= 48 * 2**20
    assert block_side(10**9, 8) == 1


@pytest.mark.parametrize("num_classes", [2, 5, 255])
def test_count_classes(num_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_COUNTED", 100)  # several chunks
    label = np.random.default_rng(0).integers(0, 256, (40, 33)).astype(np.uint8)

    assert count_classes(label, num_classes) == [int((label == i).sum()) for i in range(num_classes)]


def _tasks(folder: Path, step: int = 1, **scene: object) -> list[sampling.BlockTask]:
    options = make_options(remove_background=True)
    found = survey([make_scene(folder, **scene)], options.survey)  # type: ignore[arg-type]
    (folder / "parts" / "scene").mkdir(parents=True)
    return plan_scene(found.facts[0], options, step, folder / "parts" / "scene")


def test_part_of_a_block(tmp_path: Path) -> None:
    image = np.full((2, 20, 40), 9, np.int16)
    image[0, 0, :5] = -1
    (task,) = _tasks(tmp_path, image=image, nodata=-1, boxes=((0, 0, 3, 8, 2),))

    part = run_block(task)

    rows = np.load(part / "rows.npy")
    # Windows at columns 0, 16, 24 and rows 0, 4; only the first and its lower neighbour could hold the box (rows 0-2).
    assert rows[:, [0, 1, 2, 3, 7, 8, 9]].tolist() == [[0, 0, 0, 16 * 16 - 5, 16 * 16 - 24, 0, 24 - 5]]
    for column, name in zip(rows[0, 4:7], ("images", "labels", "valid"), strict=True):
        assert column == zlib.crc32((part / f"{name}.bin").read_bytes())
    images = np.fromfile(part / "images.bin", np.int16).reshape(1, 2, 16, 16)
    labels = np.fromfile(part / "labels.bin", np.uint8).reshape(1, 16, 16)
    valid = np.unpackbits(np.fromfile(part / "valid.bin", np.uint8)).reshape(1, 16, 16)
    assert (images[0, :, 0, :5] == 0).all()
    assert images.sum() == 9 * 2 * (256 - 5)
    assert labels[0, 0].tolist() == [255] * 5 + [2] * 3 + [0] * 8
    assert (valid[0] == (images[0, 0] != 0)).all()
    summary = json.loads((part / "summary.json").read_text())
    assert summary["dropped"]["trn"] == {"unknown": 0, "background": 5, "invalid": 0, "unannotated": 0}
    assert summary["class_pixels"] == [20 * 40 - 24, 0, 24 - 5]
    assert [m["count"] for m in summary["moments"]] == [20 * 40 - 5] * 2


def test_scene_smaller_than_a_sample_is_padded_with_unknown(tmp_path: Path) -> None:
    (task,) = _tasks(tmp_path, image=np.full((1, 10, 7), 5, np.uint8), boxes=((0, 0, 4, 4, 1),))

    part = run_block(task)

    label = np.fromfile(part / "labels.bin", np.uint8).reshape(16, 16)
    assert (label[10:] == 255).all()
    assert (label[:, 7:] == 255).all()
    assert np.load(part / "rows.npy")[:, [0, 1, 3, 7, 8, 9]].tolist() == [[0, 0, 70, 54, 16, 0]]
    assert np.fromfile(part / "images.bin", np.uint8).reshape(16, 16)[10:].sum() == 0


def test_a_part_that_is_there_is_kept(tmp_path: Path) -> None:
    (task, *_) = _tasks(tmp_path)
    run_block(task)
    (task.part / "images.bin").write_bytes(b"kept")

    run_block(task)

    assert (task.part / "images.bin").read_bytes() == b"kept"


def test_no_part_is_left_by_a_block_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (task, *_) = _tasks(tmp_path)
    monkeypatch.setattr(sampling, "band_moments", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        run_block(task)

    assert list(task.part.parent.iterdir()) == []


def test_tasks_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    (task, *_) = _tasks(tmp_path)

    assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize(("stride", "cell"), [(4, 1), (5, 1), (8, 1), (16, 1), (5, 10**6)])
def test_counts_of_overlapping_windows(stride: int, cell: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_CELL", cell)
    label = np.random.default_rng(0).choice(np.array([0, 1, 2, 255], np.uint8), (40, 53))
    blocks = sample_blocks(100, 90, 16, stride, 40)
    block = next(b for b in blocks if b.window.row_off > 0 and b.window.col_off > 0)
    label = np.resize(label, block.window.shape)
    counts = counting.WindowCounts(label, block, 3)

    for window in block.windows:
        part = label[window.within(block.window)]
        assert counts.of(window) == [int((part == index).sum()) for index in range(3)]
