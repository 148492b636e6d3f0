"""From the config to the options of the parts below, where more than one command needs the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace

from geoseg.config import Config
from geoseg.data.classes import class_mapping, class_table
from geoseg.data.sampling import SampleOptions
from geoseg.data.splitnames import SPLITS
from geoseg.data.splits import Length, SplitOptions
from geoseg.data.survey import SurveyOptions
from geoseg.data.windows import WindowOptions
from geoseg.errors import ConfigError, problem
from geoseg.execution import MissingPackageError, dask_executor, local_executor
from geoseg.geo.raster import Reading
from geoseg.geo.vector import LabelRules


def sample_options(config: Config) -> SampleOptions:
    """Return what the config says about sampling.

    Raises:
        ConfigError: Samples further apart than they are wide would leave ground out.
    """
    shared, sample = config.global_, config.sample
    stride = sample.samples_dist or shared.samples_size
    if stride > shared.samples_size:
        expected = f"at most global.samples_size ({shared.samples_size})"
        raise ConfigError(problem("sample.samples_dist", str(stride), expected, "lower it: pixels would be left out"))
    entries = None if shared.classes is None else [entry.model_dump() for entry in shared.classes]
    classes = class_table(int(shared.num_classes or 2), entries)
    mapping = class_mapping(classes, shared.ignore_value, sample.ignore_values, sample.unmapped)  # type: ignore[arg-type]
    return SampleOptions(
        survey=SurveyOptions(
            mapping=mapping,
            bands=shared.bands,
            number_of_bands=shared.number_of_bands,
            rules=label_rules(config),
            reading=image_reading(config),
            split_by_row=sample.split.method == "csv",
        ),
        classes=classes,
        size=shared.samples_size,
        stride=stride,
        remove_background=sample.remove_background,
        min_annotated=sample.min_annotated_percent,
        min_valid=sample.min_valid_percent,
        windows=_window_options(config),
        splits=_split_options(config),
    )


def _window_options(config: Config) -> WindowOptions:
    sample = config.sample
    options = WindowOptions(sample.windows, sample.window_count, sample.jitter)
    # Only what has a part in the result may change the store's fingerprint.
    return options if options.plain else replace(options, seed=_seed(config))


def _split_options(config: Config) -> SplitOptions:
    sample = config.sample
    chosen = sample.split
    if chosen.method == "csv":
        return SplitOptions(shared_ground=sample.shared_ground)
    return SplitOptions(
        method=chosen.method,
        size=_length(chosen.size),
        buffer=None if chosen.buffer == "auto" else _length(chosen.buffer),
        fractions=tuple(sorted(chosen.fractions.items(), key=lambda item: SPLITS.index(item[0]))),
        file=chosen.file,
        attribute=chosen.attribute,
        shared_ground=sample.shared_ground,
        seed=_seed(config) if chosen.method in ("blocks", "random") else 0,
    )


def _length(text: str) -> Length:
    number, unit = text.split()
    return Length(float(number), unit)


def _seed(config: Config) -> int:
    """Return the seed; without one 0, so that the same call finds the same store again."""
    return config.global_.seed or 0


def image_reading(config: Config) -> Reading:
    """Return what the config says about how the values of images are read."""
    sample = config.sample
    return Reading(
        dtype=sample.dtype,
        apply_scale=sample.apply_scale,
        expand_palette=sample.expand_palette,
        valid_range=sample.valid_range,
    )


def said_reading(config: Config) -> Reading | None:
    """Return the same if the config says anything about it; None leaves it to the samples or the model file."""
    keys = {"dtype", "apply_scale", "expand_palette", "valid_range"}
    return image_reading(config) if keys & config.sample.model_fields_set else None


def label_rules(config: Config) -> LabelRules:
    """Return what the config says about how labels become pixels."""
    sample = config.sample
    return LabelRules(
        assume_crs=sample.assume_crs,
        mask_outside=sample.mask_input_image,
        priority=sample.priority,
        all_touched=sample.all_touched,
        buffers=tuple(entry.buffer for entry in config.global_.classes or ()),
        boundary_ignore=sample.boundary_ignore,
    )


@contextmanager
def executor_of(
    scheduler: str | None, dask_local: int | None, workers: int, preload: Sequence[str] = ()
) -> Iterator[Executor]:
    """Yield what runs tasks: a Dask cluster that the user names or wants here, else processes of this machine.

    Raises:
        ConfigError: There is no such cluster, or Dask is not installed.
    """
    if scheduler is None and dask_local is None:
        with local_executor(workers, preload) as executor:
            yield executor
        return
    where = "--scheduler" if scheduler else "--dask-local"
    if scheduler and dask_local:
        raise ConfigError(problem("command line", "--scheduler and --dask-local", "one of them", "leave one out"))
    cluster = dask_executor(scheduler, dask_local)
    try:
        executor = cluster.__enter__()
    except MissingPackageError as error:
        remedy = 'pip install "geoseg[dask]"'
        raise ConfigError(problem(where, "no package distributed", "Dask", remedy)) from error
    except (OSError, ValueError) as error:
        remedy = "check the address, and that the scheduler runs"
        raise ConfigError(problem(where, f"no cluster ({error})", "tcp://host:port", remedy)) from error
    try:
        yield executor
    finally:
        cluster.__exit__(None, None, None)
