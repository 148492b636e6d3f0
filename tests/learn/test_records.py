"""metrics.csv and the TensorBoard files."""

import math

from geoseg.learn.records import Records, read_metrics


def test_rows_come_back_and_nan_is_an_empty_cell(tmp_path):
    with Records(tmp_path) as records:
        records.add_epoch(10, {"epoch": 1, "trn_loss": 0.123456789})
        records.add_epoch(20, {"epoch": 2, "trn_loss": 2e-7, "val_loss": math.nan, "val_mean_iou": 1.0})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [
        "epoch,trn_loss,val_loss,val_mean_iou",
        "1,0.123457,,",
        "2,2e-07,,1",
    ]
    assert math.isnan(read_metrics(tmp_path / "metrics.csv")[1]["val_loss"])


def test_going_on_drops_rows_after_the_checkpoint_and_repeats_none(tmp_path):
    with Records(tmp_path) as records:
        for epoch in (1, 2, 3):
            records.add_epoch(epoch * 10, {"epoch": epoch, "trn_loss": epoch / 4})
    with Records(tmp_path, epoch=2, step=20) as records:
        records.add_epoch(30, {"epoch": 3, "trn_loss": 9.0})
    rows = read_metrics(tmp_path / "metrics.csv")
    assert [(row["epoch"], row["trn_loss"]) for row in rows] == [(1, 0.25), (2, 0.5), (3, 9.0)]


def test_a_new_run_forgets_the_rows_of_an_old_one(tmp_path):
    for _ in range(2):
        with Records(tmp_path) as records:
            records.add_epoch(10, {"epoch": 1, "trn_loss": 1.0})
    assert len(read_metrics(tmp_path / "metrics.csv")) == 1


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Records(tmp_path) as records:
        for step in (10, 20, 30):
            records.add_step(step, {"step_loss": float(step)})
    with Records(tmp_path, epoch=2, step=20) as records:
        records.add_step(30, {"step_loss": 31.0})
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in curves.Scalars("step_loss")] == [(10, 10), (20, 20), (30, 31)]


def test_no_file_no_rows(tmp_path):
    assert read_metrics(tmp_path / "metrics.csv") == []
