"""What all scenes of a store must share: the number of bands, their meaning and their type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from geoseg.errors import problem
from geoseg.geo.raster import contradicting, numbers_by_name

_SHOWN = 10


@dataclass(frozen=True)
class Alike:
    """What the samples of a store are made of.

    Attributes:
        bands: Their number.
        dtype: numpy name of their type.
        names: Of the bands, in order; None for one without.
    """

    bands: int
    dtype: str
    names: tuple[str | None, ...]


class Image(NamedTuple):
    """An image, with the bands that are to be used of it.

    Attributes:
        name: For messages.
        bands: Numbers, from 1, in order.
        names: Of these bands.
        dtype: numpy name of the type they are read as.
        numbered: Whether the user gave the numbers, so that they stay whatever the bands are called.
    """

    name: str
    bands: tuple[int, ...]
    names: tuple[str | None, ...]
    dtype: str
    numbered: bool


class Aligned(NamedTuple):
    """Each image's bands in the common order, what is wrong, and what the user should know."""

    bands: list[tuple[int, ...]]
    problems: list[str]
    warnings: list[str]


def align(images: Sequence[Image], store: Alike | None = None) -> Aligned:
    """Bring the bands of images whose bands all have names into the order of the first, and compare the images.

    Args:
        images: In the list's order.
        store: What the store holds that they are added to.
    """
    problems = _disagreements(images, store)
    bands = [image.bands for image in images]
    if store is not None and numbers_by_name(store.names, store.names):
        first, names = "the store", store.names
    else:
        named = [image for image in images if numbers_by_name(image.names, image.names)]
        if not named:
            return Aligned(bands, problems, [])
        first, names = named[0].name, named[0].names
    turned, numbered, other = [], [], []
    for place, image in enumerate(images):
        order = numbers_by_name(names, image.names) if len(image.names) == len(names) else None
        if order is None:
            other += [image] if contradicting(names, image.names) and len(image.names) == len(names) else []
        elif order != tuple(range(1, len(names) + 1)):
            if not image.numbered:
                bands[place] = tuple(image.bands[number - 1] for number in order)
            (numbered if image.numbered else turned).append(image)
    wanted = ", ".join(map(str, names))
    warnings = []
    if turned:
        found = f"bands in another order than in {first} ({wanted}), and by name they are brought into it"
        warnings.append(f"{_listed(turned)}: {found}")
    numbered += [image for image in other if image.numbered]
    if numbered:
        found = f"bands taken by number are {_names(numbered[0])}, but {wanted} in {first}"
        warnings.append(f"{_listed(numbered)}: {found}")
    problems += [_contradiction(image, first, wanted) for image in other if not image.numbered]
    return Aligned(bands, problems, warnings)


def _disagreements(images: Sequence[Image], store: Alike | None) -> list[str]:
    """Images that differ in what every sample of a store must share."""
    there = (None, None) if store is None else (str(store.bands), store.dtype)
    bands, dtypes = [str(len(image.bands)) for image in images], [image.dtype for image in images]
    return [
        *_odd("bands", images, bands, there[0], "choose the same bands with global.bands"),
        *_odd("dtype", images, dtypes, there[1], "set sample.dtype, or convert them with gdal_translate -ot"),
    ]


def _odd(name: str, images: Sequence[Image], values: Sequence[str], there: str | None, remedy: str) -> list[str]:
    counts = Counter(values)
    usual = there or next((value for value, _ in counts.most_common(1)), "")
    odd = [f"{image.name} {value}" for image, value in zip(images, values, strict=True) if value != usual]
    if not odd:
        return []
    more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
    where = "the store" if there else f"{counts[usual]} of {len(images)} images"
    found = f"{name} {usual} in {where} but {', '.join(odd[:_SHOWN])}{more}"
    last = "or make the store anew with --overwrite" if there else "or leave images out"
    return [problem("images", found, f"the same {name} in all", f"{remedy}, {last}")]


def _contradiction(image: Image, first: str, wanted: str) -> str:
    remedy = "name the bands to use with global.bands, or those of this image in the column bands"
    return problem(image.name, f"bands {_names(image)}", f"{wanted} as in {first}", remedy)


def _names(image: Image) -> str:
    return ", ".join(name or "without a name" for name in image.names)


def _listed(images: Sequence[Image]) -> str:
    more = f" and {len(images) - _SHOWN} more" if len(images) > _SHOWN else ""
    return ", ".join(image.name for image in images[:_SHOWN]) + more
