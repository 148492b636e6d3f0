"""Names of the models and their typed options, without torch.

The config reads this module to check a user's file, and `build_model` reads it to fill in defaults, so that a default
or an allowed value is written once. It must stay quick to import: no torch here, nor in what this package's
`__init__` imports when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError, field_validator

from geoseg.errors import ConfigError, problem


class ModelOptions(BaseModel):
    """Options of one model; frozen, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=False)

    def as_kwargs(self) -> dict[str, Any]:
        """Return the options as plain values that JSON can hold; paths become text."""
        return self.model_dump(mode="json")


class PretrainedOptions(ModelOptions):
    """Options of every model that can start from weights trained elsewhere."""

    pretrained: Literal[False] | Path = Field(
        default=False, description="Weights to start from: false, or the path of a weight file."
    )

    @field_validator("pretrained", mode="before")
    @classmethod
    def _refuse_true(cls, value: object) -> object:
        if value is False or (isinstance(value, str | Path) and str(value)):
            return Path(value) if value is not False else False
        raise ValueError("false, or the path of a weight file")


class UNetOptions(PretrainedOptions):
    """Options of `unet` and `unetsmall`."""

    dropout: StrictBool = Field(default=False, description="Drop activations at random while training.")
    probability: float = Field(
        default=0.2, ge=0, lt=1, strict=True, description="Share of activations dropped, if `dropout` is true."
    )


class CheckpointedUNetOptions(UNetOptions):
    """Options of `checkpointed_unet`, which is another model under recomputation."""

    base: Literal["unetsmall", "unet"] = Field(
        default="unetsmall", description="The model whose activations are recomputed: unetsmall or unet."
    )


class ReversibleUNetOptions(PretrainedOptions):
    """Options of `reversible_unet`; what is left as null comes from the preset."""

    preset: Literal["small", "balanced", "accurate"] = Field(
        default="small", description="Starting point for the options left as null: small, balanced or accurate."
    )
    width: StrictInt | None = Field(default=None, ge=2, description="Channels after the stem, a multiple of 4.")
    levels: StrictInt | None = Field(default=None, ge=1, le=6, description="How many times the image is halved.")
    depth: tuple[StrictInt, ...] | StrictInt | None = Field(
        default=None, description="Couplings per level: one number, or one per level and the centre."
    )
    branch: str | None = Field(default=None, description="Kind of network inside a coupling.")
    stem: StrictInt | None = Field(
        default=None, ge=0, description="Channels between the stem's two convolutions; 0: it has one."
    )
    head: StrictInt | None = Field(
        default=None, ge=0, description="Channels between the head's two convolutions; 0: it has one."
    )
    down: Literal["pixel", "haar"] | None = Field(
        default=None, description="How space becomes channels: pixel, or haar: means and differences of 2 x 2 pixels."
    )
    keep: StrictBool | None = Field(
        default=None, description="Save what is cheap to make again within a branch: quicker, and more memory."
    )
    norm: Literal["batch", "group"] | None = Field(default=None, description="Normalisation: batch or group.")
    coupling: Literal["additive", "affine"] | None = Field(default=None, description="Coupling: additive or affine.")
    hidden: tuple[float, ...] | float | None = Field(
        default=None, description="Width inside the branches, relative to their ends: one number, or one per level."
    )
    slices: StrictInt = Field(
        default=1, ge=1, description="Parts of a batch that go through a coupling in turn; needs norm: group."
    )
    save_memory: StrictBool = Field(
        default=True, description="Rebuild activations on the way back; false is the same network, kept in memory."
    )
    exact: StrictBool = Field(default=False, description="Rebuild activations bit by bit, on a fixed-point grid.")
    stream: Literal["float32", "int16"] = Field(default="float32", description="Number type of the kept state.")
    bits: StrictInt | None = Field(
        default=None, ge=0, le=20, description="Binary digits after the point, with exact or int16."
    )
    monitor_every: StrictInt = Field(
        default=0, ge=0, description="Check how exactly the state is rebuilt in every n-th training step; 0: never."
    )


class TernausNetOptions(PretrainedOptions):
    """Options of `ternausnet`; `pretrained` also takes the usual weight files of VGG11, with or without batch norm."""

    recompute: StrictBool = Field(
        default=False, description="Recompute activations on the way back: less memory, and most of a second forward."
    )


MODEL_OPTIONS: dict[str, type[ModelOptions]] = {
    "unet": UNetOptions,
    "unetsmall": UNetOptions,
    "checkpointed_unet": CheckpointedUNetOptions,
    "reversible_unet": ReversibleUNetOptions,
    "ternausnet": TernausNetOptions,
}


def make_options(name: str, options: Mapping[str, object]) -> ModelOptions:
    """Return the checked options of a model, defaults filled in.

    Args:
        name: A name in MODEL_OPTIONS.
        options: Options by name.

    Raises:
        ConfigError: The model or an option is unknown, or a value is of the wrong kind; one line per problem.
    """
    if name not in MODEL_OPTIONS:
        raise ConfigError(problem("model", repr(name), f"one of {', '.join(MODEL_OPTIONS)}", "choose one of these"))
    kind = MODEL_OPTIONS[name]
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        lines = [_line(name, kind, detail) for detail in error.errors(include_url=False)]
    raise ConfigError(list(dict.fromkeys(lines)))


def _line(name: str, kind: type[ModelOptions], detail: Any) -> str:
    key = str(detail["loc"][0])
    where = f"models.{name}.{key}"
    if detail["type"] == "extra_forbidden":
        return problem(where, "an unknown option", f"one of {', '.join(kind.model_fields)}", "correct the name")
    return problem(where, repr(detail["input"]), kind.model_fields[key].description or "", detail["msg"])
