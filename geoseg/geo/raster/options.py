"""How the values of a raster are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from geoseg.errors import DataError, problem

#: Types that an image may be converted to.
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")


@dataclass(frozen=True)
class Reading:
    """What is done to the values of a raster on their way in; by default nothing.

    Attributes:
        dtype: Convert to this type. Only where no value can change, except for float32, which takes all.
        apply_scale: Apply each band's scale and offset (as GDAL keeps them); the values become float32.
        expand_palette: Turn indices into a colour table into red, green and blue.
        valid_range: A pixel with a value outside of it, in any band, is not valid; compared after the steps above.
        nodata: The nodata value of all bands, in place of what the file says; in the file's own values.
        exact: With `dtype`: whether values are looked at, where types alone cannot promise that none changes. Reading a
            valid pixel whose value that type does not hold then fails.
    """

    dtype: str | None = None
    apply_scale: bool = False
    expand_palette: bool = False
    valid_range: tuple[float, float] | None = None
    nodata: float | None = None
    exact: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return what differs from the default, fit for JSON."""
        default = Reading()
        plain = {key: value for key, value in asdict(self).items() if value != getattr(default, key)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any] | None) -> Reading:
        """Build from `to_dict`; keys that this version does not know are passed over."""
        known = {field.name: plain[field.name] for field in fields(cls) if field.name in (plain or {})} if plain else {}
        if known.get("valid_range") is not None:
            low, high = known["valid_range"]
            known["valid_range"] = (low, high)
        return cls(**known)


def converted_dtype(name: str, dtypes: tuple[str, ...], reading: Reading) -> str:
    """Return the type that bands of some types are read as.

    Args:
        name: The raster, for messages.
        dtypes: Types of its bands.
        reading: How they are read.

    Raises:
        DataError: Several types and no conversion asked for, or a conversion that would change values.
    """
    kinds = ("float32",) if reading.apply_scale else tuple(sorted(set(dtypes)))
    if reading.dtype is None:
        if len(kinds) > 1:
            remedy = "set sample.dtype, or convert it to one type with gdal_translate -ot"
            raise DataError(problem(name, f"bands of types {', '.join(kinds)}", "one type", remedy))
        return kinds[0]
    lossy = [kind for kind in kinds if not np.can_cast(kind, reading.dtype, "safe")]
    if lossy and reading.dtype != "float32" and not reading.exact:
        found = f"{', '.join(lossy)} values, which {reading.dtype} does not hold without loss"
        raise DataError(problem(name, found, f"values that fit {reading.dtype}", "set sample.dtype: float32"))
    return reading.dtype
