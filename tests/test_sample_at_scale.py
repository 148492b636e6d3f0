"""Sampling by many: killed and taken up again, two processes at once, batch arrays, a Dask cluster."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affine import Affine
from conftest import TRANSFORM, make_polygons, make_raster, pixel_box

from geoseg.data.store import open_store
from geoseg.execution import share_of_work
from geoseg.sample import main

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a config for three scenes of several blocks each."""
    folder = tmp_path_factory.mktemp("project")
    rng = np.random.default_rng(4)
    rows = []
    for number, split in enumerate(("trn", "val", "trn")):
        place = TRANSFORM * Affine.translation(0, 3000 * number)
        values = rng.integers(1, 250, (3, 2500, 2200)).astype(np.uint8)
        make_raster(folder / f"{number}.tif", values, nodata=0, transform=place, tiled=True)
        boxes = [pixel_box(r, c, 40, 30, place) for r, c in rng.integers(0, 2100, (60, 2)).tolist()]
        make_polygons(folder / f"{number}.gpkg", boxes, {"kind": [1, 2] * 30})
        rows.append(f"{number}.tif,{number}.gpkg,kind,{split}")
    (folder / "prep.csv").write_text("\n".join(rows))
    lines = ["global: {samples_size: 256, num_classes: 3}", "sample: {samples_dist: 200, workers: 1}", ""]
    (folder / "config.yaml").write_text("\n".join(lines))
    return folder / "config.yaml"


@pytest.fixture(scope="module")
def reference(project: Path) -> dict[str, bytes]:
    assert main([str(project), "global.data_path=reference"]) == 0
    return _content(project.parent / "reference")


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _start(project: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "geoseg.sample", str(project), *words]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    pipe: Any = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=pipe, stderr=pipe, text=True)


def _same(found: dict[str, bytes], wanted: dict[str, bytes]) -> None:
    assert sorted(found) == sorted(wanted)
    assert [name for name in wanted if found[name] != wanted[name]] == []


def test_a_batch_array_ends_in_the_same_store(project: Path, reference: dict[str, bytes]) -> None:
    array = {"SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "5"}

    shares = [_start(project, "global.data_path=array", SLURM_ARRAY_TASK_ID=str(5 + i), **array) for i in range(3)]
    said = [share.communicate()[0] for share in shares]

    assert [share.returncode for share in shares] == [0, 0, 0]
    assert any("samples of 256 x 256" in text for text in said)
    _same(_content(project.parent / "array"), reference)


def test_two_processes_at_once_end_in_the_same_store(project: Path, reference: dict[str, bytes]) -> None:
    both = [_start(project, "global.data_path=both") for _ in range(2)]
    said = [process.communicate() for process in both]

    assert [process.returncode for process in both] == [0, 0], said
    _same(_content(project.parent / "both"), reference)


def test_a_dask_cluster_ends_in_the_same_store(project: Path, reference: dict[str, bytes]) -> None:
    pytest.importorskip("distributed", reason="the extra geoseg[dask] is not installed")
    process = _start(project, "global.data_path=dask", "--dask-local", "2")

    _, errors = process.communicate()

    assert process.returncode == 0, errors
    _same(_content(project.parent / "dask"), reference)


def test_a_running_scheduler(project: Path, reference: dict[str, bytes]) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra geoseg[dask] is not installed")
    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}

    with distributed.LocalCluster(**options) as cluster:
        address = cluster.scheduler_address
        assert main([str(project), "global.data_path=cluster", "--scheduler", address]) == 0

    _same(_content(project.parent / "cluster"), reference)


def test_no_scheduler_at_the_address(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed", reason="the extra geoseg[dask] is not installed")

    assert main([str(project), "global.data_path=none", "--scheduler", "nonsense://x"]) == 2

    assert "--scheduler: found no cluster" in capsys.readouterr().err


def test_verify(project: Path, reference: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(project), "global.data_path=reference", "--verify"]
    assert main(words) == 0
    assert "all well" in capsys.readouterr().out
    shard = next((project.parent / "reference" / "samples" / "shards").glob("1-*.labels.npy"))
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    try:
        assert main(words) == 2
        assert "labels.npy: found samples 0 with other bytes" in capsys.readouterr().err
    finally:
        content[1000] ^= 1
        shard.write_bytes(content)


@pytest.mark.parametrize(
    ("text", "variables", "share"),
    [
        ("3/10", {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2"}, (3, 10)),
        (None, {}, (1, 1)),
        (None, {"AWS_BATCH_JOB_ARRAY_INDEX": "0", "AWS_BATCH_JOB_ARRAY_SIZE": "4"}, (1, 4)),
        (None, {"AWS_BATCH_JOB_ARRAY_INDEX": "3", "AWS_BATCH_JOB_ARRAY_SIZE": "4"}, (4, 4)),
        (None, {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "2"}, (1, 2)),
        (None, {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "6"}, (2, 2)),
    ],
)
def test_shares(text: str | None, variables: dict[str, str], share: tuple[int, int]) -> None:
    assert share_of_work(text, variables) == share


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("3", {}),
        ("0/4", {}),
        ("5/4", {}),
        ("a/b", {}),
        (None, {"SLURM_ARRAY_TASK_ID": "1"}),
        (None, {"AWS_BATCH_JOB_ARRAY_INDEX": "x", "AWS_BATCH_JOB_ARRAY_SIZE": "4"}),
        (None, {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "0"}),
    ],
)
def test_no_shares(text: str | None, variables: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        share_of_work(text, variables)


@pytest.mark.slow
def test_killed_at_any_moment_and_run_again(project: Path, reference: dict[str, bytes]) -> None:
    started = time.monotonic()
    assert _start(project, "global.data_path=timed").wait() == 0
    whole = time.monotonic() - started
    moments = random.Random(8)
    killed = 0
    for number in range(20):
        name = f"killed{number}"
        while not (project.parent / name / "samples").exists():
            process = _start(project, f"global.data_path={name}")
            try:
                # Starting takes a good part of the time, so the later moments are tried more often.
                process.wait(timeout=whole * moments.uniform(0.3, 1.2))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
        assert _start(project, f"global.data_path={name}").wait() == 0
        _same(_content(project.parent / name), reference)
        assert open_store(project.parent / name).info.samples["trn"] > 0
    assert killed >= 10
