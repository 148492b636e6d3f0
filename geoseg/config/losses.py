"""Rules of the keys that say what training minimises and watches: `loss`, `class_weights`, `monitor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from geoseg.config.rules import RefusedError, Rule, as_list, as_number, nearest

# Loss -> option -> (lowest value, whether that one is allowed).
LOSS_OPTIONS: dict[str, dict[str, tuple[float, bool]]] = {
    "cross_entropy": {},
    "focal": {"gamma": (1.0, True)},
    "dice": {},
    "jaccard": {},
    "tversky": {"alpha": (0.0, True), "beta": (0.0, False)},
    "lovasz": {},
    "boundary": {"max_distance": (0.0, False)},
}
PIXEL_LOSSES = ("cross_entropy", "focal")
CLASS_WEIGHTS = ("auto", "inverse_frequency", "effective_number", "median")

LossValue = str | dict[str, float | dict[str, float]]


def loss_rule() -> Rule:
    """Return the rule of `training.loss`: a name, or names with weights, or with weight and options."""

    def convert(value: Any, folder: Path) -> LossValue:
        if isinstance(value, str):
            _known(value, LOSS_OPTIONS)
            if value == "boundary":
                raise RefusedError("add another loss: {cross_entropy: 1, boundary: 0.1}")
            return value
        if not isinstance(value, Mapping) or not value:
            raise RefusedError("write a name, or names with weights such as {cross_entropy: 1, dice: 0.5}")
        terms = {str(name): _term(str(name), entry) for name, entry in value.items()}
        if set(terms) == {"boundary"}:
            raise RefusedError("boundary needs another loss beside it")
        return terms

    names = ", ".join(LOSS_OPTIONS)
    return Rule(f"one of {names}, or a mapping of some of them to weights, or to weight and options", convert)


def _term(name: str, entry: Any) -> float | dict[str, float]:
    options = _known(name, LOSS_OPTIONS)
    if not isinstance(entry, Mapping):
        return _at_least(f"the weight of {name}", entry, 0.0, allowed=False)
    result = {}
    for key, value in entry.items():
        low, allowed = _known(str(key), {"weight": (0.0, False), **options}, f"for {name}: ")
        result[str(key)] = _at_least(f"{key} of {name}", value, low, allowed)
    return result


def _known(word: str, known: Mapping[str, Any], prefix: str = "") -> Any:
    if word in known:
        return known[word]
    guess = nearest(word, known)
    raise RefusedError(prefix + (f"did you mean {guess}?" if guess else f"{word} is not one of {', '.join(known)}"))


def _at_least(name: str, value: Any, low: float, allowed: bool) -> float:
    number = as_number(value)
    if number < low or (number == low and not allowed):
        raise RefusedError(f"{name} must be {'at least' if allowed else 'above'} {low:g}")
    return number


def loss_names(value: LossValue) -> tuple[str, ...]:
    """Return the names in a checked `training.loss`."""
    return (value,) if isinstance(value, str) else tuple(value)


def weight_rule() -> Rule:
    """Return the rule of `training.class_weights`: false, a way to count them, or one weight per class."""

    def convert(value: Any, folder: Path) -> bool | str | tuple[float, ...]:
        if value is False or (isinstance(value, str) and value in CLASS_WEIGHTS):
            return value
        if isinstance(value, bool | int | float):
            raise RefusedError("write false, auto, or a list such as [1.0, 2.5]")
        if isinstance(value, str) and (guess := nearest(value, CLASS_WEIGHTS)):
            raise RefusedError(f"did you mean {guess}?")
        weights = tuple(as_number(item) for item in as_list(value))
        if any(weight < 0 for weight in weights) or not any(weights):
            raise RefusedError("weights are 0 or more, and not all 0")
        return weights

    return Rule(f"false, {', '.join(CLASS_WEIGHTS)}, or a list of one weight per class", convert)


def unused_options(loss: LossValue, label_smoothing: float, hard_examples: float) -> Iterator[tuple[str, str, str]]:
    """Yield (key, found, expected) of the keys that none of the losses uses."""
    names = loss_names(loss)
    if label_smoothing and "cross_entropy" not in names:
        yield "label_smoothing", f"{label_smoothing:g} for loss {' + '.join(names)}", "cross_entropy among the losses"
    if hard_examples < 1 and not set(names) & set(PIXEL_LOSSES):
        yield "hard_examples", f"{hard_examples:g} for loss {' + '.join(names)}", "cross_entropy or focal among them"
