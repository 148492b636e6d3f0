"""YAML to a frozen, typed `Config`: every default and every rule of the user's settings, once.

`load_config(path, overrides)` reads a file, checks all of it and reports all its problems together.
"""

from geoseg.config.classification import ClassificationSection
from geoseg.config.evaluation import EvaluationSection
from geoseg.config.load import load_config
from geoseg.config.root import Config
from geoseg.config.schema import (
    ClassEntry,
    GlobalSection,
    ModelsSection,
    SampleSection,
    SplitEntry,
    TrainingSection,
)

__all__ = [
    "ClassEntry",
    "ClassificationSection",
    "Config",
    "EvaluationSection",
    "GlobalSection",
    "ModelsSection",
    "SampleSection",
    "SplitEntry",
    "TrainingSection",
    "load_config",
]
