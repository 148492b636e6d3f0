"""The whole config: its sections, its YAML form and its fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import Field

import geoseg
from geoseg.config import yamltext
from geoseg.config.classification import ClassificationSection
from geoseg.config.evaluation import EvaluationSection
from geoseg.config.schema import (
    GlobalSection,
    ModelsSection,
    SampleSection,
    Section,
    TrainingSection,
)


class Config(Section):
    """All settings, checked and resolved: paths are absolute, and defaults that follow from other keys filled in."""

    global_: GlobalSection = Field(alias="global")
    sample: SampleSection
    training: TrainingSection
    classification: ClassificationSection
    evaluation: EvaluationSection
    models: ModelsSection

    def model_options(self) -> dict[str, Any]:
        """Return the options of the chosen model, as keyword arguments of `build_model`."""
        options = getattr(self.models, self.global_.model_name)
        return {name: getattr(options, name) for name in type(options).model_fields}

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, in the layout of the YAML file."""
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        """Return the settings as YAML text that loads to an equal Config."""
        return yamltext.render(self.as_dict())

    def fingerprint(self) -> str:
        """Return 12 hexadecimal digits that are equal for equal settings."""
        text = json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def save(self, path: str | Path) -> None:
        """Write the resolved settings as YAML; the file appears whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(f"# Resolved by geoseg {geoseg.__version__}; loads to the same settings from any folder.\n")
                file.write(self.to_yaml())
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)  # mkstemp makes private files
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
