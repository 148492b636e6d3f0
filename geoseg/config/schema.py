"""The sections and keys of the config, each with its default, its rule and one line of description."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from geoseg.config.lists import (
    attribute_values,
    band_list,
    class_list,
    class_value,
    model_options,
    name_list,
    span,
)
from geoseg.config.losses import LossValue, loss_rule, weight_rule
from geoseg.config.rules import choice, local_path, number, source_path, switch, text, whole
from geoseg.config.splits import SPLIT_METHODS, fraction_map, length, overlap_rule, split_rule
from geoseg.config.training import augmentation_rule, monitor_rule
from geoseg.models.options import (
    MODEL_OPTIONS,
    CheckpointedUNetOptions,
    ReversibleUNetOptions,
    TernausNetOptions,
    UNetOptions,
)

AttributeValue = int | str
_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
_PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed")


def key(default: Any, description: str, shown: str | None = None) -> Any:
    """Return a field; `shown` is the default in words, for one that follows from other keys (stored as None)."""
    extra: dict[str, Any] = {} if shown is None else {"shown": shown}
    return Field(default=default, description=description, json_schema_extra=extra)


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, paths relative to a folder given as context."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, validate_default=True, protected_namespaces=()
    )


class ClassEntry(Section):
    """One class; its place in the list is its id."""

    name: Annotated[str, text("the name as text")] = Field(description="Name shown in reports and class maps.")
    value: Annotated[int | str | tuple[AttributeValue, ...] | None, class_value()] = key(
        None,
        "What the attribute of a polygon holds for this class: a whole number, text, or a list of them.",
        "the id where the attribute is numeric, else the name",
    )
    colour: Annotated[str | None, text("a colour such as '#1f77b4'", optional=True, pattern="#[0-9A-Fa-f]{6}")] = key(
        None, "Colour in maps and reports, as '#rrggbb' in quotes.", "from a palette"
    )
    buffer: Annotated[float, number()] = key(
        0.0,
        "Metres on the ground by which its polygons grow before they are burnt, or shrink if negative; its lines and "
        "points become areas.",
    )


class GlobalSection(Section):
    """What all commands share."""

    samples_size: Annotated[int, whole(16, 8192)] = key(256, "Side of a square sample, in pixels.")
    num_classes: Annotated[int, whole(2, 255, optional=True)] = key(
        None, "Number of classes, background (class 0) included.", "the number of `classes`, else 2"
    )
    classes: Annotated[tuple[ClassEntry, ...] | None, class_list()] = key(
        None, "The classes in the order of their ids, background first: names, or entries with name, value, colour."
    )
    data_path: Annotated[Path, local_path("a folder")] = key(
        "data", "Root of what `sample` writes; the sample store is its folder `samples`."
    )
    number_of_bands: Annotated[int | None, whole(1, 65535, optional=True)] = key(
        None, "Number of bands that the images must have, or that `bands` selects.", "what the images have"
    )
    bands: Annotated[tuple[int | str, ...] | None, band_list()] = key(
        None, "Bands to use, in this order: numbers from 1, or band names.", "all but alpha"
    )
    model_name: Annotated[str, choice(*MODEL_OPTIONS)] = key("unetsmall", "The model to train.")
    ignore_value: Annotated[int, whole(0, 255)] = key(
        255, "Label of pixels whose class is unknown; outside the ids of the classes."
    )
    seed: Annotated[int | None, whole(0, 2**32 - 1, optional=True)] = key(
        None, "Seed of everything random; without one, a seed is drawn and recorded.", "drawn"
    )


class SplitEntry(Section):
    """How samples are dealt out to training, validation and test, if not by the rows of the CSV."""

    method: Annotated[str, choice(*SPLIT_METHODS)] = Field(
        description="csv: the row of the scene; blocks: pieces of ground, each split with its share of every class; "
        "polygons: as a file says; random: window by window, refused where windows overlap."
    )
    size: Annotated[str, length()] = key(
        "1024 px", "For blocks: side of a block, in metres or pixels; scenes are cut evenly into blocks near that size."
    )
    buffer: Annotated[str, length(("auto",))] = key(
        "auto",
        "For blocks: gap between blocks of different splits, in metres or pixels; auto is a quarter of "
        "`global.samples_size`.",
    )
    fractions: Annotated[dict[str, float], fraction_map()] = key(
        {"trn": 0.7, "val": 0.15, "tst": 0.15}, "For blocks and random: the share of each split."
    )
    file: Annotated[Path | None, local_path("a vector file", optional=True)] = key(
        None, "For polygons: the file; samples wholly inside the polygons of one split belong to it."
    )
    attribute: Annotated[str, text("the name of an attribute")] = key(
        "split", "For polygons: the attribute that holds trn, val or tst."
    )


class SampleSection(Section):
    """`python -m geoseg.sample`: rasters and polygons to a sample store."""

    prep_csv_file: Annotated[Path, local_path("a CSV file")] = key(
        "prep.csv",
        "CSV list of scenes: image, labels, attribute, split (trn, val or tst), layer; with a header also aoi, bands, "
        "nodata and weight. Or a STAC item or collection (.json).",
    )
    samples_dist: Annotated[int, whole(1, optional=True)] = key(
        None, "Distance between the origins of neighbouring samples, in pixels.", "`global.samples_size`"
    )
    remove_background: Annotated[bool, switch()] = key(
        True, "Drop samples whose known pixels are all background. Samples without a known pixel are always dropped."
    )
    mask_input_image: Annotated[bool, switch()] = key(
        False, "Take pixels outside every polygon as unknown instead of background."
    )
    overlap: Annotated[int | float | None, overlap_rule()] = key(
        None,
        "By how much neighbouring samples overlap, in pixels or as a share of their side; in place of `samples_dist`.",
        "`global.samples_size` - `samples_dist`",
    )
    windows: Annotated[str, choice("grid", "random", "classes", "objects")] = key(
        "grid",
        "Where training samples lie: grid; random; classes (equally many around pixels of each class, so rare ones are "
        "seen more often); objects (along whatever is not background). Other splits always take the grid.",
    )
    window_count: Annotated[int | None, whole(1, optional=True)] = key(
        None, "For random, classes and objects: windows per training scene.", "as many as the grid has; objects: all"
    )
    jitter: Annotated[int, whole(0)] = key(
        0, "Move the grid's training samples at random by up to so many pixels; ground may then be left out."
    )
    min_annotated_percent: Annotated[float, number(0, high=100)] = key(
        0.0, "Drop samples of whose valid pixels fewer than so many per cent hold a class other than background."
    )
    min_valid_percent: Annotated[float, number(0, high=100)] = key(
        0.0, "Drop samples of whose pixels fewer than so many per cent are valid."
    )
    split: Annotated[SplitEntry, split_rule()] = key(
        "csv", "Where the split of a sample comes from: csv (the row of its scene), or a section, see below."
    )
    shared_ground: Annotated[str, choice("warn", "error", "drop")] = key(
        "warn",
        "Samples of scenes of different splits that lie on common ground: warn, error, or drop (those of training).",
    )
    workers: Annotated[int | Literal["auto"], whole(1, 1024, words=("auto",))] = key(
        "auto", "Processes that cut samples; auto is one per usable CPU."
    )
    ignore_values: Annotated[tuple[AttributeValue, ...], attribute_values()] = key(
        (), "Attribute values whose polygons are burnt as unknown."
    )
    unmapped: Annotated[str, choice("error", "ignore", "background")] = key(
        "error", "Attribute values that belong to no class: error, ignore (unknown) or background."
    )
    overwrite: Annotated[bool, switch()] = key(False, "Replace a sample store that differs from the one wanted.")
    assume_crs: Annotated[bool, switch()] = key(False, "Take labels without a CRS to be in that of their image.")
    dtype: Annotated[str | None, choice(*_DTYPES, optional=True)] = key(
        None,
        "Convert all images to this type: only where no value can change, except for float32, which takes all.",
        "that of the images, which must agree",
    )
    apply_scale: Annotated[bool, switch()] = key(
        False, "Apply the scale and offset that a raster states for its bands; samples are float32 then."
    )
    expand_palette: Annotated[bool, switch()] = key(
        False, "Turn rasters with a colour table into red, green and blue instead of refusing them."
    )
    valid_range: Annotated[tuple[float, float] | None, span()] = key(
        None,
        "[lowest, highest] value of a valid pixel, after conversion; others are unknown, whatever the raster says.",
        "all values",
    )
    priority: Annotated[str, text("file, class, area or the name of an attribute")] = key(
        "file",
        "Which polygon is on top where some overlap: file (the later one), class (the higher id), area (the smaller), "
        "or an attribute (the greater number).",
    )
    all_touched: Annotated[bool, switch()] = key(
        False, "Burn all pixels that a polygon touches, not only those whose centre lies in it."
    )
    boundary_ignore: Annotated[int, whole(0, 1024)] = key(
        0, "Pixels this near to another class, in rows and columns, are unknown."
    )


class TrainingSection(Section):
    """`python -m geoseg.train`: sample store to a run folder with a model file."""

    output_path: Annotated[Path, local_path("a folder")] = key("runs", "Folder that holds the run folders.")
    run_name: Annotated[str, text("a folder name", optional=True, pattern=r"(?!\.{1,2}$)[^/\\]*[^/\\\s][^/\\]*")] = key(
        None, "Name of the run folder.", "`global.model_name`"
    )
    num_trn_samples: Annotated[int | None, whole(1, optional=True)] = key(
        None, "At most so many training samples, drawn at random with the seed.", "all"
    )
    num_val_samples: Annotated[int | None, whole(1, optional=True)] = key(
        None, "At most so many validation samples, drawn at random with the seed.", "all"
    )
    batch_size: Annotated[int | Literal["auto"], whole(1, words=("auto",))] = key(
        8, "Samples per training step and device; auto is the largest batch that fits."
    )
    memory: Annotated[str, text("an amount such as 11GiB", optional=True, pattern=r"[0-9.]+ *[A-Za-z]+")] = key(
        None, "Memory to plan for with batch_size auto, such as 11GiB.", "that of the device"
    )
    num_epochs: Annotated[int, whole(1)] = key(100, "Passes over the training samples.")
    accumulate: Annotated[int, whole(1)] = key(
        1, "Batches per step of the optimiser: a large batch in the memory of a small one."
    )
    learning_rate: Annotated[float | Literal["auto"], number(0, above=True, words=("auto",))] = key(
        1e-4, "Step length of the optimiser; auto finds one by a range test before the first epoch."
    )
    encoder_learning_rate: Annotated[float, number(0, above=True)] = key(
        1.0, "Factor of the learning rate in the encoder: below 1 keeps more of what it was pretrained for."
    )
    freeze: Annotated[tuple[str, ...], name_list()] = key(
        (), "Parts that are not trained: encoder, names of modules or weights, or patterns such as 'decoder.0.*'."
    )
    weight_decay: Annotated[float, number(0)] = key(0.0, "Pull of the weights towards zero.")
    step_size: Annotated[int, whole(1)] = key(
        4,
        "For scheduler step: epochs between two drops of the learning rate; for plateau: validations without a better "
        "score before a drop.",
    )
    gamma: Annotated[float, number(0, above=True, high=1)] = key(
        0.9, "For schedulers step and plateau: factor of the learning rate at each drop."
    )
    warmup_epochs: Annotated[int, whole(0)] = key(
        0, "Epochs at the start in which the learning rate rises to what the scheduler says."
    )
    clip_norm: Annotated[float | None, number(0, above=True, optional=True)] = key(
        None, "Largest norm of all gradients together; longer ones are shortened to it.", "no limit"
    )
    ema: Annotated[float | None, number(0, above=True, high=0.999999, optional=True)] = key(
        None,
        "Decay of a running average of the weights, such as 0.999; the average is evaluated and kept as best.",
        "no average",
    )
    patience: Annotated[int | None, whole(1, optional=True)] = key(
        None, "Stop when so many epochs have passed since the best one.", "train all epochs"
    )
    class_weights: Annotated[bool | str | tuple[float, ...], weight_rule()] = key(
        False,
        "Weight of each class in the loss: false, a list in the order of the ids, or from pixel counts (see "
        "docs/training.md).",
    )
    precision: Annotated[str, choice(*_PRECISIONS)] = key(
        "32-true", "Number type of the computation; auto is bf16-mixed where the device is fast at it."
    )
    device: Annotated[str, choice("auto", "cpu", "cuda")] = key(
        "auto", "Where to train; auto takes a GPU if there is one."
    )
    devices: Annotated[int, whole(1, 1024)] = key(
        1,
        "Processes on this machine that train together, each with a GPU of its own, or on a CPU with its share of it.",
    )
    num_nodes: Annotated[int, whole(1, 4096)] = key(1, "Machines that train together, each with `devices` processes.")
    sync_batchnorm: Annotated[bool, switch()] = key(
        False, "Normalise over the batches of all processes together; GPUs alone can."
    )
    deterministic: Annotated[bool, switch()] = key(
        False, "Take operations that give the same bits each time, even slower ones; set `global.seed` as well."
    )
    compile: Annotated[bool, switch()] = key(
        False,
        "Compile the network with torch.compile: a slow start, then often faster steps; not networks that recompute.",
    )
    loss: Annotated[LossValue, loss_rule()] = key(
        "cross_entropy",
        "The loss, or a weighted sum such as {cross_entropy: 1, dice: 0.5}; options: {tversky: {weight: 1, alpha: 0.3, "
        "beta: 0.7}}, focal's gamma, boundary's max_distance.",
    )
    label_smoothing: Annotated[float, number(0, high=0.9)] = key(
        0.0, "For cross_entropy: share of the target that is spread evenly over the classes."
    )
    hard_examples: Annotated[float, number(0, above=True, high=1)] = key(
        1.0, "For cross_entropy and focal: share of a batch's known pixels that count, those with the greatest loss."
    )
    optimizer: Annotated[str, choice("adam", "adamw", "sgd")] = key("adam", "The optimiser.")
    scheduler: Annotated[str, choice("step", "cosine", "poly", "one_cycle", "plateau", "constant")] = key(
        "step", "How the learning rate changes: step, cosine, poly, one_cycle, plateau or constant."
    )
    augmentation: Annotated[str | Path | dict[str, Any], augmentation_rule()] = key(
        "geometric",
        "Random changes of the training samples: none, geometric (flips, turns, shifts, scale), light (brightness "
        "and noise as well), strong (more of all, bent shapes, missing bands, holes), or your own pipeline.",
    )
    cutmix: Annotated[float, number(0, high=1)] = key(
        0.0, "Share of the training samples in which a rectangle of another one is pasted, with its label."
    )
    batch_sampling: Annotated[str, text("uniform, balanced, scenes or the name of a column")] = key(
        "uniform",
        "How often an epoch holds each sample: uniform (once, times its scene's weight), balanced (every class alike), "
        "scenes (every scene alike), or in proportion to a column of the index or of the list of scenes.",
    )
    epoch_samples: Annotated[int | None, whole(1, optional=True)] = key(
        None, "Samples in an epoch; the next epoch draws others.", "as many as there are"
    )
    monitor: Annotated[str, monitor_rule()] = key(
        "mean_iou", "Validation figure that decides which epoch is kept as best."
    )
    boundary_iou: Annotated[int, whole(0, 256)] = key(
        0, "Also measure how well outlines agree: IoU of the pixels at most so far from them; 0 leaves it out."
    )
    resume: Annotated[bool, switch()] = key(False, "Go on from the last checkpoint of the run.")
    overwrite: Annotated[bool, switch()] = key(
        False, "Train anew into an existing run folder, replacing what it holds."
    )
    workers: Annotated[int | Literal["auto"], whole(0, 1024, words=("auto",))] = key(
        "auto", "Processes that load batches; 0 loads them in the training process."
    )
    val_every: Annotated[int, whole(1)] = key(1, "Epochs from one validation to the next.")
    log_every: Annotated[int, whole(1)] = key(10, "Training steps between two points of the loss curve.")
    checkpoint_minutes: Annotated[float, number(0, above=True)] = key(
        15.0, "Minutes after which an epoch that is still under way is saved, so that a kill loses no more than that."
    )
    mlflow: Annotated[Path | str | None, source_path("a folder or the address of a server", optional=True)] = key(
        None, "Where MLflow is to have the curves as well, such as http://host:5000; needs geoseg[mlflow].", "not used"
    )


class ModelsSection(Section):
    """Options of each model; those of models that are not chosen are checked for form alone."""

    unet: Annotated[UNetOptions, model_options()] = UNetOptions()
    unetsmall: Annotated[UNetOptions, model_options()] = UNetOptions()
    checkpointed_unet: Annotated[CheckpointedUNetOptions, model_options()] = CheckpointedUNetOptions()
    reversible_unet: Annotated[ReversibleUNetOptions, model_options()] = ReversibleUNetOptions()
    ternausnet: Annotated[TernausNetOptions, model_options()] = TernausNetOptions()
