"""Curves in MLflow's local file store; skipped where MLflow is not installed."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from geoseg.errors import ConfigError
from geoseg.learn.mlflowrun import EXPERIMENT, MlflowRun, check_installed, mlflow_run
from geoseg.learn.records import Records

PARAMS = {"training.learning_rate": 0.1, "global.model_name": "unetsmall"}


def record(folder: Path, epochs: int) -> None:
    with Records(folder) as records:
        for epoch in range(1, epochs + 1):
            val = math.nan if epoch == 1 else epoch / 8
            records.add_epoch(epoch, {"epoch": epoch, "trn_loss": 1 / epoch, "val_iou_roof (flat)": val})


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tracking = pytest.importorskip("mlflow.tracking", reason="MLflow is not installed: pip install geoseg[mlflow]")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return tracking.MlflowClient(tracking_uri=(tmp_path / "store").as_uri())


def runs(client) -> list:
    return client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])


def test_a_run_and_its_continuation_hold_each_epoch_once(tmp_path: Path, client) -> None:
    folder, said = tmp_path / "runs" / "a", []
    folder.mkdir(parents=True)

    def make(resumed: bool) -> MlflowRun:
        return MlflowRun(tmp_path / "store", folder, resumed, PARAMS, said.append)

    def stopped() -> None:
        with mlflow_run(lambda: make(False)) as after_epoch:
            for epochs in (1, 2):
                record(folder, epochs)
                after_epoch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert [run.info.status for run in runs(client)] == ["KILLED"]
    with mlflow_run(lambda: make(True)):
        assert [run.info.status for run in runs(client)] == ["RUNNING"]
        record(folder, 3)  # its call is lost; the end makes up for it
        (folder / "report.html").write_text("report")
    (run,) = runs(client)
    assert (run.info.status, run.info.run_name, said) == ("FINISHED", "a", [])
    assert run.data.params == {name: str(value) for name, value in PARAMS.items()}
    losses = client.get_metric_history(run.info.run_id, "trn_loss")
    assert [(point.step, point.value) for point in losses] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3, rel=1e-5))]
    scores = client.get_metric_history(run.info.run_id, "val_iou_roof _flat_")
    assert [(point.step, point.value) for point in scores] == [(2, 0.25), (3, 0.375)]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["report.html"]


def test_a_new_run_in_the_same_folder_is_another_one(tmp_path: Path, client) -> None:
    for _ in range(2):
        with mlflow_run(lambda: MlflowRun(tmp_path / "store", tmp_path / "a", False, {}, print)):
            pass
    with (
        pytest.raises(RuntimeError),
        mlflow_run(lambda: MlflowRun(tmp_path / "store", tmp_path / "b", True, {}, print)),
    ):
        raise RuntimeError("a defect")
    assert sorted(run.info.status for run in runs(client)) == ["FAILED", "FINISHED", "FINISHED"]


def test_without_a_target_nothing_happens() -> None:
    with mlflow_run(lambda: None) as after_epoch:
        after_epoch()


def test_without_mlflow_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"training\.mlflow: .* not installed.*geoseg\[mlflow\]"):
        MlflowRun(tmp_path, tmp_path, False, {}, print)
    check_installed(None)
