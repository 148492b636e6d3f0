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
    assert names == {"metrics.csv", "tensorboard", "last.ckpt", "best.safetensors", "validation.json"}
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


EVERYTHING = {
    "accumulate": 2,
    "clip_norm": 0.5,
    "ema": 0.9,
    "optimizer": "adamw",
    "encoder_learning_rate": 0.1,
    "warmup_epochs": 1,
    "weight_decay": 0.01,
}


class Stop:
    """Says stop at the n-th time it is asked."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def timeless(folder: Path) -> list[dict[str, float]]:
    known = ("seconds", "val_seconds", "samples_per_second", "peak_memory_mb")
    return [{k: v for k, v in row.items() if k not in known} for row in read_metrics(folder / "metrics.csv")]


@pytest.mark.parametrize("options", [EVERYTHING | {"scheduler": "plateau", "step_size": 1}, {"scheduler": "one_cycle"}])
def test_a_run_stopped_anywhere_and_taken_up_equals_the_whole_one(make_job, options):
    """Stopped at every place at which it asks whether to: between two steps, and in the validation."""

    def start(name, **more):
        sets = {"trn": ToyBatches(n=8, batch_size=2), "val": ToyBatches(shuffle=False)}
        return make_job(name, num_epochs=2, **sets, **options, **more)

    whole = start("whole")
    best = engine.train(whole)
    expected, count = torch.load(whole.folder / "last.ckpt", weights_only=True), 0
    while True:
        job = start(f"parts{count}")
        try:
            engine.train(job, hooks=engine.Hooks(stop=Stop(count)))
            break
        except KeyboardInterrupt:
            saved = Checkpoint.load(job.folder / "last.ckpt")
        job = start(f"parts{count}", model=toy_net(seed=99))
        assert engine.train(job, saved) == best
        found = torch.load(job.folder / "last.ckpt", weights_only=True)
        for state in (found, expected):
            state["optimizer"].pop("param_groups", None)  # rates, which the schedule sets anew
        for name in ("model", "optimizer", "average"):
            assert flat(found[name]) == flat(expected[name])
        assert found["progress"] == expected["progress"]
        assert timeless(job.folder) == timeless(whole.folder)
        assert (job.folder / "best.safetensors").read_bytes() == (whole.folder / "best.safetensors").read_bytes()
        count += 1
    assert count == 2 * (job.steps + len(job.val))


def flat(state) -> list:
    """Return a nested state as a list that compares by value, to the bit."""
    if isinstance(state, torch.Tensor):
        return [state.dtype, *state.flatten().tolist()]
    if isinstance(state, dict):
        return [entry for key in state for entry in (key, *flat(state[key]))]
    return [entry for part in state for entry in flat(part)] if isinstance(state, list | tuple) else [state]


def test_a_checkpoint_is_made_between_steps_when_the_time_has_come(make_job):
    job = make_job(checkpoint_minutes=1e-9, trn=ToyBatches(n=6, batch_size=1))
    seen = []

    class Watching(ToyBatches):
        def __iter__(self):
            for batch in super().__iter__():
                if (job.folder / "last.ckpt").exists():
                    progress = Checkpoint.load(job.folder / "last.ckpt").progress
                    seen.append((progress["epoch"], progress["step"]))
                yield batch

    job.trn = Watching(n=6, batch_size=1)
    engine.train(job)
    assert seen == [(0, step) for step in range(1, 6)] + [(1, step) for step in range(6)]


def test_another_number_of_steps_takes_up_the_epoch_at_the_same_share(make_job):
    job = make_job(trn=ToyBatches(n=8, batch_size=1))
    with pytest.raises(KeyboardInterrupt):
        engine.train(job, hooks=engine.Hooks(stop=Stop(5)))  # after 6 of 8 steps
    saved = Checkpoint.load(job.folder / "last.ckpt")
    again = make_job(trn=ToyBatches(n=8, batch_size=2))
    assert engine._Loop(again, engine.Hooks()).restore(saved).step == 3


def test_patience_ends_the_run_after_so_many_epochs_without_a_better_one(make_job):
    job = make_job(num_epochs=9, patience=2, learning_rate=1e-30, monitor="accuracy")
    best = engine.train(job)
    assert best["epoch"] == 1
    assert [row["epoch"] for row in read_metrics(job.folder / "metrics.csv")] == [1, 2, 3]
    before = (job.folder / "last.ckpt").read_bytes()
    assert engine.train(job, Checkpoint.load(job.folder / "last.ckpt")) == best  # nothing more to do
    assert (job.folder / "last.ckpt").read_bytes() == before


def test_patience_goes_on_counting_in_a_resumed_run(make_job):
    options = {"patience": 2, "learning_rate": 1e-30, "monitor": "accuracy"}
    engine.train(make_job(num_epochs=2, **options))
    job = make_job(num_epochs=9, **options)
    engine.train(job, Checkpoint.load(job.folder / "last.ckpt"))
    assert [row["epoch"] for row in read_metrics(job.folder / "metrics.csv")] == [1, 2, 3]


def test_the_average_is_what_is_scored_and_kept(make_job):
    """A decay that lets nothing of the training through: the model file holds (almost) the start."""
    job = make_job(num_epochs=1, ema=0.999999, learning_rate=0.1)
    start = job.model[0].weight.clone()
    loop = engine._Loop(job, engine.Hooks())
    loop.stepper.average.count = 10**9
    state = engine.Progress()
    with engine.Records(job.folder) as records:
        loop.train_epoch(state, records)
    with loop.evaluated(state):
        found = loop.validate()
        loop.save_best({"epoch": 1}, found)
    assert torch.allclose(best_weights(job.folder)["0.weight"], start, atol=1e-5)
    assert not torch.allclose(job.model[0].weight, start, atol=1e-2)
    assert loop.validate().loss != found.loss


def test_other_parts_cannot_take_up_the_optimisers_state(make_job):
    engine.train(make_job())
    job = make_job(num_epochs=4)
    job.model[0].requires_grad_(False)
    with pytest.raises(ConfigError, match=r"trained other parts of the network.*training\.freeze"):
        engine.train(job, Checkpoint.load(job.folder / "last.ckpt"))


@pytest.mark.parametrize("name", ["unetsmall", "checkpointed_unet", "reversible_unet"])
def test_a_frozen_encoder_keeps_weights_and_statistics_in_every_model(make_job, name):
    from geoseg.learn.frozen import freeze, in_encoder
    from geoseg.models import build_model

    torch.manual_seed(0)
    job = make_job(model=build_model(name, 2, 2), ema=0.9)
    freeze(job.model, ["encoder"])
    before = {key: value.clone() for key, value in job.model.state_dict().items()}
    engine.train(job)
    same = {key: torch.equal(before[key], value) for key, value in job.model.state_dict().items()}
    assert all(kept for key, kept in same.items() if in_encoder(job.model, key))
    assert not any(same[key] for key, parameter in job.model.named_parameters() if parameter.requires_grad)


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
    first, second = loop.validate(), loop.validate()
    assert first.to_dict(job.spec.class_names) == second.to_dict(job.spec.class_names)
    assert math.isfinite(first.loss)
    assert all(torch.equal(before[name], value) for name, value in job.model.state_dict().items())


def test_validation_does_not_depend_on_the_batch_size(make_job):
    results = [
        engine._Loop(make_job(val=ToyBatches(batch_size=size, shuffle=False)), engine.Hooks()).validate()
        for size in (1, 4, 6)
    ]
    assert len({result.confusion.tobytes() for result in results}) == 1
    for name in ("loss", "ece"):  # the logits themselves differ in their last bits
        assert [getattr(result, name) for result in results] == pytest.approx([getattr(results[0], name)] * 3, rel=1e-6)


def test_one_class_may_decide_which_epoch_is_best(make_job):
    job = make_job(num_epochs=4, monitor="recall:roof", boundary_iou=1, class_weights=torch.tensor([1.0, 2.0]))
    best = engine.train(job)
    rows = read_metrics(job.folder / "metrics.csv")
    assert best["score"] == pytest.approx(max(row["val_recall_roof"] for row in rows), abs=1e-6)
    trained = read_model_spec(job.folder / "best.safetensors").trained
    assert trained["recall"][1] == best["score"]
    assert trained["class_weights"] == [1.0, 2.0]
    assert {"val_kappa", "val_ece", "val_fw_iou", "val_boundary_iou"} <= rows[0].keys()


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
