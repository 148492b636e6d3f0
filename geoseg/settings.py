"""From the config to the options of the parts below, where more than one command needs the same ones."""

from __future__ import annotations

from geoseg.config import Config
from geoseg.data.classes import class_mapping, class_table
from geoseg.data.sampling import SampleOptions
from geoseg.data.survey import SurveyOptions
from geoseg.errors import ConfigError, problem


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
            assume_crs=sample.assume_crs,
            mask_outside=sample.mask_input_image,
        ),
        classes=classes,
        size=shared.samples_size,
        stride=stride,
        remove_background=sample.remove_background,
    )
