"""A sample store written by hand, for tests of what reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from geoseg.data.store import StoreInfo

MEANS, SCALE = (1000.0, 3000.0), 500.0


def make_store(folder: Path, trn: int = 6, val: int = 2, size: int = 32, same: bool = False, **changes) -> Path:
    """Write a store of two bands and two classes: class 1 is a bright rectangle in the first band, rows 0 are unknown.

    Args:
        folder: The `data_path`.
        trn: Training samples.
        val: Validation samples.
        size: Side of a sample.
        same: Make the validation samples the same as the training samples.
        **changes: Fields of `StoreInfo`.
    """
    samples = folder / "samples"
    (samples / "shards").mkdir(parents=True)
    counts, pixels, rows = {"trn": trn, "val": val, "tst": 0}, {"tst": (0, 0)}, []
    for split, count in (("trn", trn), ("val", val)):
        rng = np.random.default_rng(0 if same or split == "trn" else 1)
        images = rng.normal(0, 0.2, (count, 2, size, size))
        labels = np.zeros((count, size, size), np.uint8)
        for label in labels:
            row, col = rng.integers(2, size // 2, 2)
            label[row : row + size // 3, col : col + size // 3] = 1
        images[:, 0] += labels * 2
        labels[:, 0] = 255
        raw = (images * SCALE + np.asarray(MEANS)[:, None, None]).astype(np.uint16)
        np.save(samples / "shards" / f"{split}.images.npy", raw)
        np.save(samples / "shards" / f"{split}.labels.npy", labels)
        pixels[split] = tuple(int((labels == c).sum()) for c in (0, 1))
        for i, label in enumerate(labels):
            row = {"split": split, "scene": split, "position": i, "valid_position": -1, "valid_fraction": 1.0}
            rows.append(row | {f"class_{c}": int((label == c).sum()) for c in (0, 1)})
    columns = ["split", "scene", "position", "valid_position", "valid_fraction", "class_0", "class_1"]
    pd.DataFrame(rows, columns=columns).to_parquet(samples / "index.parquet")
    values = {
        "classes": (
            {"id": 0, "name": "background", "value": None, "colour": "#000000"},
            {"id": 1, "name": "roof", "value": 7, "colour": "#ff0000"},
        ),
        "num_classes": 2,
        "ignore_value": 255,
        "samples_size": size,
        "stride": size,
        "bands": (1, 3),
        "band_names": ("red", "nir"),
        "dtype": "uint16",
        "resolution": (1.0, 1.0),
        "crs": "EPSG:32618",
        "statistics": tuple({"mean": mean, "std": SCALE} for mean in MEANS),
        "class_pixels": pixels,
        "samples": counts,
        "dropped": {},
        "scenes": (),
    }
    (samples / "store.json").write_text(StoreInfo(**(values | changes)).to_json(), encoding="utf-8")
    return folder
