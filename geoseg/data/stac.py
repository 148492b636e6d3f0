"""STAC items on disk as scenes.

An item becomes a scene. Its image are the assets with the role `data` (without roles: those whose media type or suffix
is a raster's), in their order, joined if they are several; its labels the asset with the role `labels` or
`labels-raster`, or the key `labels`; its area of interest the asset with the role or key `aoi`. The split is the
property `geoseg:split`, `ml-aoi:split` or `split` (train, validate and test are understood), the attribute
`geoseg:attribute`, or the first of `label:properties`, the weight `geoseg:weight`, the nodata value
`geoseg:nodata`. A collection, catalog or item collection stands for its items. Links and hrefs are relative to the
file they are in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from geoseg.data.scene import Scene
from geoseg.data.splitnames import split_named
from geoseg.errors import DataError, problem
from geoseg.geo.raster.names import STACK, SUFFIXES, resolve

_SPLIT_KEYS = ("geoseg:split", "ml-aoi:split", "split")
_LABEL_ROLES = {"labels", "labels-vector", "labels-raster"}
_NO_IMAGES = {"thumbnail", "overview", "metadata", "aoi", *_LABEL_ROLES}
_RASTER_TYPES = ("image/tiff", "image/vnd.stac.geotiff", "image/jp2", "image/png", "application/x-hdf", "image/jpeg")
_REMEDY = "see the documentation of sample.prep_csv_file for how assets become scenes"


def read_stac_images(path: Path) -> list[Path | str]:
    """Return the images of a STAC file's items, in its order, whatever else the items say.

    Raises:
        DataError: A file is missing or is no STAC, or items are without an image.
    """
    scenes, problems = read_stac(path, images_alone=True)
    if problems:
        raise DataError(problems)
    return [scene.image for scene in scenes]


def read_stac(path: Path, images_alone: bool = False) -> tuple[list[Scene], list[str]]:
    """Return the scenes of a STAC file, in its order, and what is wrong with its items.

    Args:
        path: An item, item collection, collection or catalog.
        images_alone: Whether the items need not say more than where their images are.

    Raises:
        DataError: A file is missing or is no STAC.
    """
    scenes: list[Scene] = []
    problems: list[str] = []
    for folder, where, item in _items(path, set()):
        try:
            found = _image_alone(folder, where, item) if images_alone else _scene(folder, where, item)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = [problem(where, f"an item that cannot be understood ({error!r})", "a STAC item", _REMEDY)]
        if isinstance(found, Scene):
            scenes.append(found)
        else:
            problems += found
    if not scenes and not problems:
        problems.append(problem(path, "no item", "at least one STAC item", "add one"))
    return scenes, problems


def _items(path: Path, seen: set[Path]) -> Iterator[tuple[Path, str, Mapping[str, Any]]]:
    """Yield (folder of its file, where, item) of all items that a file holds or leads to."""
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    content = _load(path)
    kind = content.get("type")
    if kind == "Feature":
        yield path.parent.absolute(), f"{path}, item {content.get('id')}", content
    elif kind == "FeatureCollection" and "features" in content:
        for number, item in enumerate(content["features"]):
            yield path.parent.absolute(), f"{path}, item {item.get('id', number)}", item
    elif kind in ("Collection", "Catalog"):
        for link in content.get("links", []):
            if link.get("rel") in ("item", "child"):
                yield from _items(Path(resolve(_local(str(link["href"])), path.parent)), seen)
    else:
        found = f"JSON of type {kind!r}"
        raise DataError(problem(path, found, "a STAC item, item collection, collection or catalog", _REMEDY))


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise DataError(problem(path.absolute(), found, "a STAC file", "check sample.prep_csv_file")) from error
    except ValueError as error:
        raise DataError(problem(path, f"no JSON ({error})", "a STAC file", "check sample.prep_csv_file")) from error
    if not isinstance(content, dict):
        raise DataError(problem(path, "JSON that is no object", "a STAC file", _REMEDY))
    return content


def _scene(folder: Path, where: str, item: Mapping[str, Any]) -> Scene | list[str]:
    """Return the scene of an item, or what is wrong with it."""
    properties, assets = item.get("properties") or {}, item.get("assets") or {}
    weight = float(properties.get("geoseg:weight", 1.0))
    images = _images(assets)
    labels = [str(asset["href"]) for key, asset in assets.items() if _is(key, asset, _LABEL_ROLES)]
    areas = [str(asset["href"]) for key, asset in assets.items() if _is(key, asset, {"aoi"})]
    problems = []
    if not images:
        problems.append(problem(where, "no asset of an image", "one with the role data", _REMEDY))
    if len(labels) > 1:
        problems.append(problem(where, f"{len(labels)} assets of labels", "one", _REMEDY))
    said = next((str(properties[key]) for key in _SPLIT_KEYS if properties.get(key)), None)
    split = split_named(str(said))
    if split is None:
        found = "no split" if said is None else f"split {said!r}"
        problems.append(problem(where, found, "trn, val or tst in the property geoseg:split", _REMEDY))
    if not 0 < weight < math.inf:
        problems.append(problem(where, f"geoseg:weight {weight}", "a number above 0", "correct it"))
    if problems:
        return problems
    attributes = properties.get("label:properties") or [None]
    nodata = properties.get("geoseg:nodata")
    return Scene(
        image=resolve(STACK.join(map(_local, images)), folder),
        labels=resolve(_local(labels[0]), folder) if labels else None,
        attribute=properties.get("geoseg:attribute") or attributes[0],
        split=split,
        aoi=resolve(_local(areas[0]), folder) if areas else None,
        nodata=None if nodata is None else float(nodata),
        weight=weight,
        where=where,
    )


def _image_alone(folder: Path, where: str, item: Mapping[str, Any]) -> Scene | list[str]:
    images = _images(item.get("assets") or {})
    if not images:
        return [problem(where, "no asset of an image", "one with the role data", _REMEDY)]
    return Scene(resolve(STACK.join(map(_local, images)), folder), None, None, "tst", where=where)


def _images(assets: Mapping[str, Any]) -> list[str]:
    return [str(asset["href"]) for key, asset in assets.items() if _is_image(key, asset)]


def _is(key: str, asset: Mapping[str, Any], roles: set[str]) -> bool:
    return key in roles or bool(roles & set(asset.get("roles") or ()))


def _is_image(key: str, asset: Mapping[str, Any]) -> bool:
    roles = set(asset.get("roles") or ())
    if key in _NO_IMAGES or roles & _NO_IMAGES:
        return False
    if roles:
        return "data" in roles
    kind = str(asset.get("type", "")).partition(";")[0]
    return kind in _RASTER_TYPES or PurePosixPath(urlsplit(str(asset["href"])).path).suffix.lower() in SUFFIXES


def _local(href: str) -> str:
    """Return a path for a file: URL; other names as they are."""
    return unquote(urlsplit(href).path) if href.startswith("file://") else href
