"""Conflicts between keys, each of which is right by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from geoseg.config.explain import KeyPath, Trouble, shown
from geoseg.config.losses import unused_options
from geoseg.config.root import Config
from geoseg.config.splits import overlap_pixels

_NUM_CLASSES: KeyPath = ("global", "num_classes")
_CLASSES: KeyPath = ("global", "classes")
_IGNORE: KeyPath = ("global", "ignore_value")
_WEIGHTS: KeyPath = ("training", "class_weights")
_BANDS: KeyPath = ("global", "bands")
_NUMBER: KeyPath = ("global", "number_of_bands")
_UNKNOWN: KeyPath = ("sample", "ignore_values")


def find_conflicts(config: Config) -> Iterator[Trouble]:
    """Yield the conflicts of a config whose keys are right one by one."""
    yield from _class_conflicts(config)
    yield from _window_conflicts(config)
    yield from _training_conflicts(config)
    yield from _map_conflicts(config)
    shared = config.global_
    if shared.ignore_value < shared.num_classes:
        last = shared.num_classes - 1
        found = f"{shared.ignore_value}, the id of a class"
        yield Trouble(_IGNORE, found, f"a value outside 0 to {last}", "use 255", (_IGNORE, _NUM_CLASSES, _CLASSES))
    weights = config.training.class_weights
    if isinstance(weights, tuple) and len(weights) != shared.num_classes:
        expected = f"{shared.num_classes}, one per class in the order of the ids"
        involved = (_WEIGHTS, _NUM_CLASSES, _CLASSES)
        yield Trouble(_WEIGHTS, f"{len(weights)} weights", expected, "correct the list, background first", involved)
    training = config.training
    for name, found, expected in unused_options(training.loss, training.label_smoothing, training.hard_examples):
        path: KeyPath = ("training", name)
        yield Trouble(path, found, expected, "change one of them", (path, ("training", "loss")))
    if shared.bands is not None and shared.number_of_bands not in (None, len(shared.bands)):
        found = f"{shared.number_of_bands}, but {len(shared.bands)} bands in global.bands"
        yield Trouble(_NUMBER, found, "equal numbers", "leave number_of_bands out", (_NUMBER, _BANDS))


def _training_conflicts(config: Config) -> Iterator[Trouble]:
    training = config.training
    warmup, scheduler, epochs = (("training", name) for name in ("warmup_epochs", "scheduler", "num_epochs"))
    if training.warmup_epochs and training.scheduler == "one_cycle":
        found = f"{training.warmup_epochs} with scheduler one_cycle, which begins with a rise of its own"
        yield Trouble(warmup, found, "0", "leave it out, or choose another scheduler", (warmup, scheduler))
    elif training.warmup_epochs >= training.num_epochs:
        expected = f"fewer than num_epochs ({training.num_epochs})"
        yield Trouble(warmup, str(training.warmup_epochs), expected, "lower it", (warmup, epochs))
    name, model = ("training", "compile"), config.global_.model_name
    if training.compile and model in ("checkpointed_unet", "reversible_unet"):
        found = f"true with {model}, whose layers run again in the backward pass, which torch.compile cannot follow"
        yield Trouble(name, found, "false", "leave it out, or choose another model", (name, ("global", "model_name")))
    if training.sync_batchnorm and training.device == "cpu":
        path: KeyPath = ("training", "sync_batchnorm")
        found = "true with device cpu, where torch has no batch norm over several processes"
        yield Trouble(path, found, "false", "leave it out, or train on GPUs", (path, ("training", "device")))


def _map_conflicts(config: Config) -> Iterator[Trouble]:
    section, outputs = config.classification, ("classification", "outputs")
    if "classes" in section.outputs:
        return
    for name in ("minimum_mapping_unit", "polygons"):
        if (value := getattr(section, name)) is not None:
            path: KeyPath = ("classification", name)
            found = f"{shown(value)} without a class map"
            yield Trouble(path, found, "classes among the outputs", "add it to outputs", (path, outputs))


def _class_conflicts(config: Config) -> Iterator[Trouble]:
    entries = config.global_.classes
    if entries is None:
        return
    if config.global_.num_classes != len(entries):
        found = f"{config.global_.num_classes}, but {len(entries)} entries in global.classes"
        remedy = "list background first and then each class, or leave num_classes out"
        yield Trouble(_NUM_CLASSES, found, "equal numbers", remedy, (_NUM_CLASSES, _CLASSES))
    names = Counter(entry.name for entry in entries)
    for name in (name for name, count in names.items() if count > 1):
        yield Trouble(_CLASSES, f"the name {shown(name)} {names[name]} times", "each name once", "rename", (_CLASSES,))
    held = Counter(value for entry in entries for value in _held(entry.value))
    for value in (value for value, count in held.items() if count > 1):
        yield Trouble(_CLASSES, f"the value {shown(value)} in two classes", "each value once", "correct", (_CLASSES,))
    for value in config.sample.ignore_values:
        if value in held:
            found = f"{shown(value)}, the value of a class"
            yield Trouble(_UNKNOWN, found, "values of no class", "remove it from one of them", (_UNKNOWN, _CLASSES))


def _held(value: int | str | tuple[int | str, ...] | None) -> tuple[int | str, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _window_conflicts(config: Config) -> Iterator[Trouble]:
    sample, size = config.sample, config.global_.samples_size
    distance: KeyPath = ("sample", "samples_dist")
    overlap: KeyPath = ("sample", "overlap")
    if sample.overlap is not None:
        step = size - overlap_pixels(sample.overlap, size)
        if step < 1:
            expected = f"less than global.samples_size ({size})"
            yield Trouble(overlap, str(sample.overlap), expected, "lower it", (overlap, ("global", "samples_size")))
        elif step != sample.samples_dist:
            found = f"{sample.overlap}, a distance of {step}, and samples_dist {sample.samples_dist}"
            yield Trouble(overlap, found, "one of the two", "leave one out", (overlap, distance))
    split: KeyPath = ("sample", "split")
    if (sample.split.method == "polygons") != (sample.split.file is not None):
        found = "no file" if sample.split.file is None else f"a file for method {sample.split.method}"
        yield Trouble(split, found, "a file for method polygons, and for it alone", "add or remove `file`", (split,))
