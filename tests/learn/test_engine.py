"""The loop: learns, repeats, resumes, keeps the best."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import toys
from toys import IGNORE, ToyBatches, toy_net

from geoseg.errors import ConfigError
from geoseg.learn import engine
from geoseg.learn.checkpoint import Checkpoint
from geoseg.learn.metrics import scores
from geoseg.learn.modelfile import read_model_spec
from geoseg.learn.records import read_metrics


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., engine.Job]:
    """Return `toys.make_job` in this test's folder."""
    return partial(toys.make_job, tmp_path)


def same_weights(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def best_weights(folder) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "best.safetensors")


def test_learns_a_rule_that_one_convolution_can_express(make_job):
    job = make_job(num_epochs=40, learning_rate=3e-2)
    best = engine.train(job)
    assert best["mean_iou"] > 0.95
    rows = read_metrics(job.folder / "metrics.csv")
    assert [row["epoch"] for row in rows] == list(range(1, 41))
    assert rows[-1]["trn_loss"] < rows[0]["trn_loss"] / 2


def test_the_run_folder_is_complete(make_job):
    job = make_job()
    best = engine.train(job)
    names = {path.name for path in job.folder.iterdir()}
    assert names == {"metrics.csv", "tensorboard", "last.ckpt", "best.safetensors"}
    assert list((job.folder / "tensorboard").iterdir())
    assert read_model_spec(job.folder / "best.safetensors").trained == best
    assert (best["seed"], best["device"], best["precision"]) == (3, "cpu", "32-true")
    row = read_metrics(job.folder / "metrics.csv")[0]
    assert row["samples_per_second"] > 0
    assert row["peak_memory_mb"] > 10
    assert {"val_loss", "val_accuracy", "val_mean_f1", "val_iou_background", "val_iou_roof"} <= row.keys()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_same_seed_gives_the_same_weights(make_job, precision):
    jobs = [make_job(name, precision) for name in ("first", "second")]
    for job in jobs:
        engine.train(job)
    assert same_weights(jobs[0].model, jobs[1].model)
    files = [(job.folder / "best.safetensors").read_bytes() for job in jobs]
    assert files[0] == files[1]


def test_another_seed_gives_other_weights(make_job):
    from dataclasses import replace

    first, second = make_job("first"), make_job("second")
    second.runtime = replace(second.runtime, seed=4)  # of the epochs' dropout; the start is the same
    engine.train(first)
    engine.train(second)
    assert not same_weights(first.model, second.model)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("scheduler", ["step", "constant"])
def test_two_epochs_and_two_more_equal_four(make_job, optimizer, scheduler):
    options = {"optimizer": optimizer, "scheduler": scheduler, "step_size": 1, "weight_decay": 0.01}
    whole = make_job("whole", num_epochs=4, **options)
    best = engine.train(whole)
    engine.train(make_job("parts", num_epochs=2, **options))
    torch.rand(5)  # what else used the generator in between must not matter
    parts = make_job("parts", num_epochs=4, model=toy_net(seed=99), **options)
    resumed = engine.train(parts, Checkpoint.load(parts.folder / "last.ckpt"))
    assert same_weights(whole.model, parts.model)
    assert resumed == best
    timeless = [
        [
            {k: v for k, v in row.items() if k in ("epoch", "learning_rate", "trn_loss", "val_loss", "val_mean_iou")}
            for row in rows
        ]
        for rows in (read_metrics(job.folder / "metrics.csv") for job in (whole, parts))
    ]
    assert timeless[0] == timeless[1]
    assert len(timeless[1]) == 4


def test_a_run_stopped_inside_an_epoch_goes_on_from_the_one_before(make_job):
    whole = make_job("whole", num_epochs=3, scheduler="one_cycle")
    engine.train(whole)
    job, batches = make_job("parts", num_epochs=3, scheduler="one_cycle"), 0

    def stop_in_the_last_epoch():
        nonlocal batches
        batches += 1
        if batches == 9:  # 2 of training and 2 of validation make an epoch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.train(job, hooks=engine.Hooks(on_batch=stop_in_the_last_epoch))
    saved = Checkpoint.load(job.folder / "last.ckpt")
    assert saved.epoch == 2
    again = make_job("parts", num_epochs=3, scheduler="one_cycle", model=toy_net(seed=5))
    engine.train(again, saved)
    assert same_weights(whole.model, again.model)
    assert best_weights(whole.folder).keys() == best_weights(again.folder).keys()


def test_a_finished_run_has_nothing_left_to_do(make_job):
    job = make_job()
    best = engine.train(job)
    before = (job.folder / "best.safetensors").read_bytes()
    assert engine.train(make_job(), Checkpoint.load(job.folder / "last.ckpt")) == best
    assert (job.folder / "best.safetensors").read_bytes() == before


def test_a_worse_resumed_run_does_not_replace_the_best(make_job):
    best = engine.train(make_job(num_epochs=12, learning_rate=3e-2))
    before = best_weights(make_job().folder)
    job = make_job(num_epochs=14, learning_rate=10.0)
    assert engine.train(job, Checkpoint.load(job.folder / "last.ckpt")) == best
    after = best_weights(job.folder)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert len(read_metrics(job.folder / "metrics.csv")) == 14


def test_another_optimizer_cannot_take_up_the_state(make_job):
    engine.train(make_job())
    job = make_job(optimizer="sgd", num_epochs=4)
    with pytest.raises(ConfigError, match=r"last\.ckpt: found the state of optimizer adam, expected sgd"):
        engine.train(job, Checkpoint.load(job.folder / "last.ckpt"))


def test_epoch_loss_is_the_mean_over_known_pixels(make_job):
    """Batches with many, few and no known pixels; the network stands still, so one pass over all gives the answer."""
    trn = ToyBatches(n=6, batch_size=2, shuffle=False)
    trn.labels[2:4, 3:] = IGNORE
    trn.labels[4:] = IGNORE
    model = torch.nn.Conv2d(2, 2, 1)
    job = make_job(trn=trn, model=model, learning_rate=1e-30, num_epochs=1)
    expected = torch.nn.functional.cross_entropy(model(trn.images), trn.labels, ignore_index=IGNORE).item()
    engine.train(job)
    assert read_metrics(job.folder / "metrics.csv")[0]["trn_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_known_pixels_does_no_harm(make_job):
    trn = ToyBatches()
    trn.labels[:3] = IGNORE
    job = make_job(trn=trn)
    engine.train(job)
    assert all(torch.isfinite(value).all() for value in job.model.state_dict().values())


def test_validation_repeats_itself_and_changes_nothing(make_job):
    job = make_job()
    loop = engine._Loop(job, engine.Hooks())
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    (first_loss, first), (second_loss, second) = loop.validate(), loop.validate()
    assert first_loss == second_loss
    assert first.to_dict() == second.to_dict()
    assert all(torch.equal(before[name], value) for name, value in job.model.state_dict().items())


def test_validation_does_not_depend_on_the_batch_size(make_job):
    results = [
        engine._Loop(make_job(val=ToyBatches(batch_size=size, shuffle=False)), engine.Hooks()).validate()
        for size in (1, 4, 6)
    ]
    assert len({str(result.to_dict()) for _, result in results}) == 1
    assert [loss for loss, _ in results] == pytest.approx([results[0][0]] * 3, rel=1e-6)


def test_frozen_modules_keep_weights_and_statistics(make_job):
    job = make_job()
    for module in job.model[:2]:
        module.requires_grad_(False)
    before = {name: value.clone() for name, value in job.model[:2].state_dict().items()}
    engine.train(job)
    assert all(torch.equal(before[name], value) for name, value in job.model[:2].state_dict().items())


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_epoch_before(make_job):
    class Poisoned(ToyBatches):
        def __iter__(self):
            for image, label in super().__iter__():
                yield image * (math.nan if self.epoch == 1 else 1), label

    job = make_job(trn=Poisoned(), num_epochs=3)
    with pytest.raises(ConfigError, match=r"found a loss of nan in epoch 2"):
        engine.train(job)
    assert Checkpoint.load(job.folder / "last.ckpt").epoch == 1
    assert all(torch.isfinite(value).all() for value in best_weights(job.folder).values())


def test_nan_never_is_the_best():
    assert not engine.is_better(math.nan, None, "mean_iou")
    assert not engine.is_better(None, 0.1, "mean_iou")
    assert not engine.is_better(math.inf, 0.1, "loss")
    assert engine.is_better(0.0, None, "mean_iou")
    assert not engine.is_better(0.5, 0.5, "mean_iou")
    assert engine.is_better(0.4, 0.5, "loss")
    assert not engine.is_better(0.4, 0.5, "accuracy")


def test_a_loss_to_monitor_keeps_the_epoch_with_the_lowest(make_job):
    job = make_job(num_epochs=6, monitor="loss", learning_rate=0.3)
    best = engine.train(job)
    rows = read_metrics(job.folder / "metrics.csv")
    assert best["epoch"] == min(rows, key=lambda row: row["val_loss"])["epoch"]


def test_validation_every_third_epoch_and_at_the_end(make_job):
    job = make_job(num_epochs=5, val_every=3)
    engine.train(job)
    rows = read_metrics(job.folder / "metrics.csv")
    assert [row["epoch"] for row in rows if not math.isnan(row["val_loss"])] == [3, 5]


def test_hooks_hear_of_every_batch_and_epoch(make_job):
    batches, rows = [], []
    engine.train(make_job(), hooks=engine.Hooks(lambda: batches.append(1), rows.append))
    assert len(batches) == 2 * (2 + 2)
    assert [row["epoch"] for row in rows] == [1, 2]


def test_bright_16_bit_pixels_are_scaled_before_half_precision(make_job):
    """65535 is infinite in float16; normalised to a few standard deviations it is not, nor does bfloat16 lose it."""
    from geoseg.data.normalise import Normalisation

    raw = torch.full((1, 2, 16, 16), 65535.0)
    assert torch.isinf(raw.half()).all()
    image = torch.from_numpy(Normalisation((60000.0, 60000.0), (3000.0, 3000.0)).apply(raw[0].numpy()))[None]
    loop = engine._Loop(make_job(precision="bf16-mixed"), engine.Hooks())
    loss = loop._train_loss(image, torch.zeros(1, 16, 16, dtype=torch.int64))[0]
    assert torch.isfinite(loss)
    assert scores(torch.eye(2, dtype=torch.int64).numpy()).mean_iou == 1
