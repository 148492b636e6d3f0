"""The sample store, read side: what it holds and how it is opened.

    <folder>/store.json                  what the samples mean (`StoreInfo`)
    <folder>/index.parquet               GeoParquet, one row per sample
    <folder>/shards/<scene>.images.npy   (n, bands, size, size), source dtype; 0 where the image is not valid
    <folder>/shards/<scene>.labels.npy   (n, size, size) uint8
    <folder>/shards/<scene>.valid.npy    (m, ceil(size * size / 8)) uint8: packed validity of the m samples with
                                         invalid pixels (no such file where every sample is valid throughout)
    <folder>/labels/<scene>.tif          the burnt label raster
    <folder>/scenes/<scene>.json, ...    the record of a scene, its rows (with checksums) and subsample: what it takes
                                         to finish the store again with other scenes beside it
    <folder>/preview.png                 a contact sheet
    <folder>/report.html                 maps, samples, classes, bands and warnings on a page (written by the command)

Validity is stored because 0 is a good pixel value: it lets training and classification zero the same pixels after
normalising. `index.valid_position` is the row in `.valid.npy`, or -1 for a sample without invalid pixels.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from geoseg.data.splitnames import SPLITS
from geoseg.errors import DataError, problem

SCHEMA_VERSION = 2
_READABLE = (1, 2)
_REMEDY = "run `python -m geoseg.sample` again"
_OPEN_SHARDS = 128  # maps kept open per process; a system allows some thousands of files


@dataclass(frozen=True)
class StoreInfo:
    """What the samples of a store mean; `store.json`.

    Attributes:
        classes: One mapping per class, id order: id, name, value (in the user's attribute), colour "#rrggbb".
        num_classes: Background included.
        ignore_value: Label of unknown pixels.
        samples_size: Side of a sample, pixels.
        stride: Step between samples, pixels.
        bands: Band numbers of the source rasters, from 1, in the samples' order.
        band_names: One name or None per band.
        dtype: The numpy dtype of the images, as text.
        resolution: Pixel sides of the first training scene, (x, y) in the units of its CRS.
        crs: The CRS the scenes share, as text; None where they differ or have none.
        statistics: Per band: count, mean, std, min, max (exact, over the valid pixels of the training scenes, each
            once) and p1, p2, p50, p98, p99 (of a regular subsample).
        class_pixels: Split -> pixels per class id over its samples (pixels where samples overlap count each time, as
            training sees them).
        samples: Split -> number of samples.
        dropped: Split -> {"unknown": n, "background": n, ...} windows left out and why.
        scenes: One mapping per scene: id, split, image, labels, attribute, height, width, crs, resolution, samples,
            class_pixels (each pixel of the scene once), ...
        provenance: Versions, options, sources and their fingerprint.
        splitting: How splits were made ("method"), the smallest distance between the samples of each two
            ("distance_m"; "distance_px" for scenes without a place on the globe), how many samples share ground with
            one of another split ("shared"), and the number of windows left out to keep splits apart ("apart").
        files: Size and SHA-256 of the files but the shards; the samples in those have checksums of their own.
        reading: What was done to the values of the rasters, see `geoseg.geo.raster.Reading`; what is not said was not.
        schema_version: Version 1 had none of these three; it can be read, but not added to.
    """

    classes: tuple[Mapping[str, Any], ...]
    num_classes: int
    ignore_value: int
    samples_size: int
    stride: int
    bands: tuple[int, ...]
    band_names: tuple[str | None, ...]
    dtype: str
    resolution: tuple[float, float]
    crs: str | None
    statistics: tuple[Mapping[str, float], ...]
    class_pixels: Mapping[str, tuple[int, ...]]
    samples: Mapping[str, int]
    dropped: Mapping[str, Mapping[str, int]]
    scenes: tuple[Mapping[str, Any], ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    splitting: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Return the text of `store.json`."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> StoreInfo:
        """Build from the text of `store.json`; lists come back as tuples.

        Raises:
            ValueError: The text is not JSON, a field is missing, or the schema is of another version.
        """
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("no JSON object")
        if data.get("schema_version") not in _READABLE:
            found = f"schema version {data.get('schema_version')}"
            raise ValueError(f"{found}, this geoseg reads {' and '.join(map(str, _READABLE))}")
        if data["schema_version"] == 1:
            data = {"splitting": {}, "files": {}, "reading": {}, **data}
        missing = [f.name for f in fields(cls) if f.name not in data]
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
        tuples = ("classes", "bands", "band_names", "resolution", "statistics", "scenes")
        values = {f.name: tuple(data[f.name]) if f.name in tuples else data[f.name] for f in fields(cls)}
        values["class_pixels"] = {split: tuple(counts) for split, counts in data["class_pixels"].items()}
        return cls(**values)


class Store:
    """An opened sample store. Nothing is held open until it is read, so that it can be sent to worker processes.

    Attributes:
        folder: Where it lies.
        info: What the samples mean.
        index: One row per sample (pandas), without footprints: split, scene, row_off, col_off, shard, position,
            valid_position, class_<id> pixel counts, valid_fraction.
    """

    def __init__(self, folder: Path, info: StoreInfo, index: pd.DataFrame) -> None:
        self.folder = folder
        self.info = info
        self.index = index
        self._maps = _MapCache()

    def samples(self, split: str) -> pd.DataFrame:
        """Return the index rows of a split, in the store's order, numbered from 0.

        Raises:
            DataError: The split has no sample.
        """
        rows = self.index[self.index["split"] == split].reset_index(drop=True)
        if rows.empty:
            counts = ", ".join(f"{name} {self.info.samples.get(name, 0)}" for name in SPLITS)
            raise DataError(
                problem(self.folder, f"no {split} sample ({counts})", "at least one", f"add {split} scenes to the list")
            )
        return rows

    def images(self, scene: str) -> NDArray[Any]:
        """Return the images of a scene, (n, bands, size, size), a read-only memory map."""
        return self._maps.get(self.folder / "shards" / f"{scene}.images.npy")

    def labels(self, scene: str) -> NDArray[np.uint8]:
        """Return the labels of a scene, (n, size, size), a read-only memory map."""
        return self._maps.get(self.folder / "shards" / f"{scene}.labels.npy")

    def valid(self, scene: str, valid_position: int) -> NDArray[np.bool_] | None:
        """Return (size, size) validity of one sample, or None where every pixel is valid (`valid_position` -1)."""
        if valid_position < 0:
            return None
        packed = self._maps.get(self.folder / "shards" / f"{scene}.valid.npy")[valid_position]
        size = self.info.samples_size
        return np.unpackbits(packed, count=size * size).reshape(size, size).astype(bool)

    def release(self) -> None:
        """Give back the memory maps: what was read of them counts as this process's memory until then."""
        self._maps = _MapCache()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": _MapCache()}


class _MapCache:
    """The most recently used memory maps of this process; a forked child starts with none."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._maps: OrderedDict[Path, NDArray[Any]] = OrderedDict()

    def get(self, path: Path) -> NDArray[Any]:
        if self._pid != os.getpid():
            self._pid, self._maps = os.getpid(), OrderedDict()
        if path in self._maps:
            self._maps.move_to_end(path)
            return self._maps[path]
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(problem(path, f"no readable shard ({error})", "a .npy file", _REMEDY)) from error
        self._maps[path] = array
        if len(self._maps) > _OPEN_SHARDS:
            self._maps.popitem(last=False)
        return array


def open_store(folder: str | Path) -> Store:
    """Open a sample store.

    Args:
        folder: The folder that holds `store.json`, or its parent, the `data_path` of the config.

    Raises:
        DataError: There is no store, or its description, index or shards are missing or do not fit together.
    """
    folder = Path(folder)
    if not (folder / "store.json").is_file() and (folder / "samples" / "store.json").is_file():
        folder = folder / "samples"
    path = folder / "store.json"
    try:
        info = StoreInfo.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = "run `python -m geoseg.sample` first"
        raise DataError(problem(path, "no sample store", "store.json", remedy)) from error
    except (ValueError, TypeError) as error:
        raise DataError(problem(path, f"unusable text ({error})", "a sample store's description", _REMEDY)) from error
    index = _read_index(folder / "index.parquet")
    _check_fit(folder, info, index)
    return Store(folder, info, index)


def _read_index(path: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq  # heavy, and worker processes never come here

    try:
        names = [name for name in pq.read_schema(path).names if name not in ("geometry", "crs", "transform")]
        return pq.read_table(path, columns=names, partitioning=None).to_pandas()
    except (OSError, ValueError) as error:
        raise DataError(problem(path, f"no readable index ({error})", "a GeoParquet file", _REMEDY)) from error


def _check_fit(folder: Path, info: StoreInfo, index: pd.DataFrame) -> None:
    if len(index) != sum(info.samples.values()):
        found = f"{len(index)} rows for {sum(info.samples.values())} samples"
        raise DataError(problem(folder / "index.parquet", found, "one row per sample", _REMEDY))
    problems = []
    for scene, count in index.groupby("scene", sort=False).size().items():
        size = info.samples_size
        wanted = count * size * size * np.dtype(info.dtype).itemsize * len(info.bands)
        problems += _check_shard(folder / "shards" / f"{scene}.images.npy", wanted)
        problems += _check_shard(folder / "shards" / f"{scene}.labels.npy", count * size * size)
    if problems:
        raise DataError(problems)


def _check_shard(path: Path, payload: int) -> Iterable[str]:
    """A shard cut short by a full disk or a broken copy would otherwise fail in the middle of an epoch."""
    size = path.stat().st_size if path.is_file() else -1
    if size < payload:
        found = "no file" if size < 0 else f"{size} bytes"
        yield problem(path, found, f"at least {payload} bytes", _REMEDY)
