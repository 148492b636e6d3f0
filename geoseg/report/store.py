"""The report of a sample store: where samples lie, what they hold, and what to watch out for, on one page."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from geoseg.data.preview import coloured, shown_bands, stretched
from geoseg.data.splitnames import SPLITS
from geoseg.data.store import Store, StoreInfo
from geoseg.report.charts import class_balance, histogram, valid_fractions
from geoseg.report.footprints import SPLIT_COLOURS, Footprints, in_pixels, maps
from geoseg.report.html import page, paragraph, raw_figure, row, section, swatches, table, warning_list

_SHOWN = 6  # samples of each split
_CELL = 192  # side of a shown sample, pixels
_BANDS_SHOWN = 12
_VALUES_FROM = 64  # training samples whose pixels make the histograms
_THINNED = 4
_SCENES_SHOWN = 200
_OVERLAY = 0.45  # how much of a label's colour covers the image
_GREY = "#6b7f99"


def write_store_report(store: Store, path: Path | None = None) -> None:
    """Write the report of a store; the same store gives the same bytes.

    Args:
        store: The store; its index and some samples are read.
        path: The HTML file; None: `report.html` in the store.
    """
    frame = _index(store)
    splits = [split for split in SPLITS if store.info.samples.get(split, 0)]
    sections = [
        _summary(store, splits),
        section("Warnings", warning_list(store_warnings(store.info))),
        section("Where the samples lie", *_maps(store, frame, splits)),
        section("Samples", *_contact_sheets(store, splits)),
        section("Classes", _balance(store, splits), _class_table(store, splits)),
        section("Data", _fractions(frame, splits)),
        section("Bands", *_bands(store)),
        section("Scenes", *_scenes(store)),
    ]
    path = path or store.folder / "report.html"
    path.write_text(page("Sample store", sections), encoding="utf-8")


def store_warnings(info: StoreInfo) -> list[str]:
    """Return what there is to know of a store: what was said of its scenes, and what they come to."""
    lines = [line for scene in info.scenes for line in scene.get("warnings", ())]
    for split in ("trn", "val"):
        missing = [str(c["name"]) for c in info.classes[1:] if not info.class_pixels[split][int(c["id"])]]
        if info.samples.get(split, 0) and missing:
            lines.append(f"the {split} samples hold no pixel of {', '.join(missing)}")
    if not info.samples.get("val", 0) and not any(scene["split"] == "val" for scene in info.scenes):
        lines.append("there are no val samples: training needs some to choose the best epoch")
    for pair, distance in (info.splitting.get("distance_m") or {}).items():
        if distance == 0:
            lines.append(f"samples of {pair} touch or share ground: scores may be too good")
    return list(dict.fromkeys([*lines, *empty_warnings(info)]))


def empty_warnings(info: StoreInfo) -> list[str]:
    """Return which scenes gave no samples, and why."""
    lines = []
    for scene in info.scenes:
        if not scene["samples"]:
            dropped: Counter[str] = Counter()
            for reasons in scene["dropped"].values():
                dropped.update(reasons)
            little = dropped["invalid"] + dropped["unannotated"]
            lines.append(
                f"{scene['image']}: no samples; {dropped['background']} windows hold background alone, "
                f"{dropped['unknown']} no known pixel" + (f", {little} too little" if little else "")
            )
    asked = info.splitting.get("method", "csv") != "csv" or any(scene["split"] == "val" for scene in info.scenes)
    if asked and not info.samples["val"]:  # a list without such scenes was warned of when it was read
        lines.append("no sample came into the split val: training needs some to choose the best epoch")
    return lines


def _index(store: Store) -> pd.DataFrame:
    """Return what the report shows of each sample; its footprint as bytes (WKB)."""
    columns = ["split", "scene", "row_off", "col_off", "valid_fraction", "geometry"]
    return pq.read_table(store.folder / "index.parquet", columns=columns, partitioning=None).to_pandas()


def _summary(store: Store, splits: Sequence[str]) -> str:
    info = store.info
    counts = ", ".join(f"{info.samples[split]:,} {split}" for split in splits)
    names = ", ".join(f"{band} {name}" if name else str(band) for band, name in _named_bands(store)[:_BANDS_SHOWN])
    more = f" and {len(info.bands) - _BANDS_SHOWN} more" if len(info.bands) > _BANDS_SHOWN else ""
    apart = [
        f"{pair} {distance:,.0f} {unit}"
        for unit in ("m", "px")
        for pair, distance in (info.splitting.get(f"distance_{unit}") or {}).items()
    ]
    gaps = f" Smallest distance between splits: {', '.join(apart)}." if apart else ""
    return paragraph(
        f"{sum(info.samples.values()):,} samples ({counts}) of {info.samples_size} x {info.samples_size} pixels, "
        f"{len(info.bands)} bands of {info.dtype} ({names}{more}), from {len(info.scenes)} scenes.{gaps}"
    )


def _named_bands(store: Store) -> list[tuple[int, str | None]]:
    return list(zip(store.info.bands, store.info.band_names, strict=True))


def _maps(store: Store, frame: pd.DataFrame, splits: Sequence[str]) -> list[str]:
    names = {str(scene["id"]): Path(str(scene["image"])).name for scene in store.info.scenes}
    placed = ~frame["geometry"].isna().to_numpy()
    drawings: list[str] = []
    left_out = 0
    for degrees, chosen in ((True, placed), (False, ~placed)):
        rows = frame[chosen]
        if len(rows):
            shapes = rows["geometry"].to_numpy(object) if degrees else _pixel_shapes(store, rows)
            columns = rows["split"].to_numpy(object), rows["scene"].to_numpy(object)
            drawn, more = maps(Footprints(*columns, shapes, degrees), names)
            drawings += drawn
            left_out += more
    texts = [
        "A frame is a sample. The same footprints, for QGIS: index.parquet. Scenes without a place on the globe are "
        "drawn in pixels, one by one."
    ]
    texts += [f"{left_out} groups of scenes are not shown."] if left_out else []
    return [
        swatches([(split, SPLIT_COLOURS[split]) for split in splits]),
        row(drawings),
        paragraph(" ".join(texts), quiet=True),
    ]


def _pixel_shapes(store: Store, rows: pd.DataFrame) -> NDArray[Any]:
    return in_pixels(rows["row_off"].tolist(), rows["col_off"].tolist(), store.info.samples_size)


def _contact_sheets(store: Store, splits: Sequence[str]) -> list[str]:
    figures = []
    for split in splits:
        pictures = _pictures(store, split)
        caption = f"{split}: {len(pictures)} of {store.info.samples[split]:,} samples, labels laid over below"
        figures.append(raw_figure(_sheet(pictures), "image/jpeg", caption))
    legend = [(str(c["name"]), str(c["colour"])) for c in store.info.classes[1:]]
    note = "Background is not coloured; unknown ground is dark grey."
    return [swatches(legend), *figures, paragraph(note, quiet=True)]


def _pictures(store: Store, split: str) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Return (image, image with labels over it) of samples spread over the split; of those with a class, if any."""
    rows = store.samples(split)
    columns = [f"class_{index}" for index in range(1, store.info.num_classes)]
    with_class = rows[rows[columns].sum(axis=1) > 0]
    rows = with_class if len(with_class) else rows
    count, bands = min(_SHOWN, len(rows)), shown_bands(store.info.band_names)
    pictures = []
    for index in ((2 * i + 1) * len(rows) // (2 * count) for i in range(count)):
        chosen = rows.iloc[index]
        image = store.images(chosen["scene"])[chosen["position"]]
        label = np.asarray(store.labels(chosen["scene"])[chosen["position"]])
        valid = store.valid(chosen["scene"], int(chosen["valid_position"]))
        shown = stretched(image[bands], [store.info.statistics[band] for band in bands], valid)
        pictures.append((shown, _overlaid(shown, label, store)))
    store.release()
    return pictures


def _overlaid(shown: NDArray[np.uint8], label: NDArray[np.uint8], store: Store) -> NDArray[np.uint8]:
    colours = coloured(label, store.info.classes).astype(np.float64)
    mixed = (1 - _OVERLAY) * shown + _OVERLAY * colours
    edges = np.zeros(label.shape, bool)
    edges[:-1] |= label[:-1] != label[1:]
    edges[:, :-1] |= label[:, :-1] != label[:, 1:]
    result = np.where((label > 0)[..., None], mixed, shown)
    result = np.where((edges & (label > 0))[..., None], colours, result)
    return result.round().astype(np.uint8)


def _sheet(pictures: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]]) -> bytes:
    gap = 4
    sheet = Image.new("RGB", (len(pictures) * (_CELL + gap) - gap, 2 * _CELL + gap), (255, 255, 255))
    for column, pair in enumerate(pictures):
        for place, picture in enumerate(pair):
            how = Image.Resampling.BILINEAR if picture.shape[0] > _CELL else Image.Resampling.NEAREST
            sheet.paste(
                Image.fromarray(picture).resize((_CELL, _CELL), how), (column * (_CELL + gap), place * (_CELL + gap))
            )
    out = io.BytesIO()
    sheet.save(out, "JPEG", quality=88, subsampling=0)
    return out.getvalue()


def _balance(store: Store, splits: Sequence[str]) -> str:
    pixels = {split: store.info.class_pixels[split] for split in splits}
    return class_balance(store.info.classes, pixels)


def _class_table(store: Store, splits: Sequence[str]) -> str:
    rows = []
    for entry in store.info.classes:
        counts = [store.info.class_pixels[split][int(entry["id"])] for split in splits]
        rows.append([f"{entry['id']} {entry['name']}", *(f"{count:,}" for count in counts)])
    return table(["known pixels", *splits], rows, [str(c["colour"]) for c in store.info.classes])


def _fractions(frame: pd.DataFrame, splits: Sequence[str]) -> str:
    fractions = {split: frame.loc[frame["split"] == split, "valid_fraction"].to_numpy() for split in splits}
    return valid_fractions(fractions, SPLIT_COLOURS)


def _bands(store: Store) -> list[str]:
    values = _some_values(store)
    drawings, rows = [], []
    for place, (band, name) in enumerate(_named_bands(store)):
        title = f"band {band} {name}" if name else f"band {band}"
        found = store.info.statistics[place]
        if place < _BANDS_SHOWN and values[place].size:
            drawings.append(histogram(title, values[place], found, _GREY))
        rows.append([title, *(f"{found[key]:.6g}" for key in ("mean", "std", "min", "p2", "p50", "p98", "max"))])
    note = (
        f"Histograms of every {_THINNED}th pixel of every {_THINNED}th row of {_VALUES_FROM} training samples at most, "
        "between the 1st and 99th percentile; the dashed line is the mean. The table is of all training ground."
    )
    heads = ["", "mean", "deviation", "least", "2 %", "median", "98 %", "greatest"]
    return [row(drawings), paragraph(note, quiet=True), table(heads, rows)]


def _some_values(store: Store) -> list[NDArray[Any]]:
    rows = store.samples("trn")
    count = min(_VALUES_FROM, len(rows))
    parts: list[list[NDArray[Any]]] = [[] for _ in store.info.bands[:_BANDS_SHOWN]]
    for index in ((2 * i + 1) * len(rows) // (2 * count) for i in range(count)):
        chosen = rows.iloc[index]
        image = store.images(chosen["scene"])[chosen["position"]][:_BANDS_SHOWN, ::_THINNED, ::_THINNED]
        valid = store.valid(chosen["scene"], int(chosen["valid_position"]))
        for band, found in zip(image, parts, strict=True):
            found.append(band.flatten() if valid is None else band[valid[::_THINNED, ::_THINNED]])
        store.release()
    shown = [np.concatenate(found) for found in parts]
    return shown + [np.zeros(0)] * (len(store.info.bands) - len(shown))


def _scenes(store: Store) -> list[str]:
    rows = []
    for scene in store.info.scenes[:_SCENES_SHOWN]:
        size = f"{scene['width']} x {scene['height']}"
        found = scene.get("samples_by_split") or {scene["split"]: scene["samples"]}
        samples = ", ".join(f"{count:,} {split}" for split, count in found.items() if count) or "none"
        rows.append([str(scene["id"]), size, str(scene["crs"] or "none"), samples])
    more = len(store.info.scenes) - len(rows)
    notes = [paragraph(f"and {more} more", quiet=True)] if more > 0 else []
    return [table(["scene", "pixels", "CRS", "samples"], rows), *notes]
