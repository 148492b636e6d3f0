"""The keys that say where samples lie and which split they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from geoseg.config import load_config
from geoseg.errors import ConfigError
from geoseg.settings import sample_options


def _load(folder: Path, sample: str, shared: str = "samples_size: 256"):
    path = folder / "config.yaml"
    path.write_text(f"global: {{{shared}}}\nsample: {{{sample}}}\n")
    return load_config(path)


def test_blocks_with_all_that_can_be_said(tmp_path: Path) -> None:
    text = "split: {method: blocks, size: 2 km, buffer: 64, fractions: {trn: 0.8, tst: 0.2}}"

    config = _load(tmp_path, text, "seed: 7")

    options = sample_options(config).splits
    assert (options.method, options.seed) == ("blocks", 7)
    assert (options.size.value, options.size.unit) == (2000, "m")
    assert options.buffer is not None
    assert (options.buffer.value, options.buffer.unit) == (64, "px")
    assert options.fractions == (("trn", 0.8), ("val", 0.0), ("tst", 0.2))
    path = tmp_path / "again.yaml"
    config.save(path)
    assert load_config(path) == config


def test_a_bare_method_is_short_for_its_section(tmp_path: Path) -> None:
    assert sample_options(_load(tmp_path, "split: blocks")).splits.buffer is None
    assert _load(tmp_path, "split: {method: csv}") == _load(tmp_path, "split: csv")


def test_seed_changes_only_what_is_drawn(tmp_path: Path) -> None:
    one, two = (sample_options(_load(tmp_path, "split: csv", f"seed: {seed}")) for seed in (1, 2))
    assert one == two
    one, two = (sample_options(_load(tmp_path, "jitter: 3", f"seed: {seed}")) for seed in (1, 2))
    assert one != two


@pytest.mark.parametrize(
    ("text", "stride"), [("overlap: 64", 192), ("overlap: 0.25", 192), ("overlap: 25%", 192), ("overlap: 0", 256)]
)
def test_overlap_is_pixels_or_a_share(tmp_path: Path, text: str, stride: int) -> None:
    assert sample_options(_load(tmp_path, text)).stride == stride


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("split: block", "did you mean blocks"),
        ("split: {method: blocks, size: big}", "such as 2000 m"),
        ("split: {method: blocks, size: 0 m}", "sample.split.size"),
        ("split: {method: blocks, fractions: {trn: 0.5, val: 0.4}}", "they come to 0.9"),
        ("split: {method: blocks, fractions: {trn: 0.5, valid: 0.5}}", "did you mean val"),
        ("split: {method: blocks, fractions: {val: 1}}", "trn needs a share"),
        ("split: {method: blocks, sise: 4}", "did you mean size"),
        ("split: {method: polygons}", "no file"),
        ("split: {method: blocks, file: a.gpkg}", "for method polygons"),
        ("split: 5", "csv"),
        ("split: {size: 500 m}", "say which method"),
        ("overlap: 256", "less than global.samples_size"),
        ("overlap: 64, samples_dist: 100", "one of the two"),
        ("overlap: -1", "overlap"),
        ("windows: class", "did you mean classes"),
        ("min_valid_percent: 101", "at most 100"),
        ("shared_ground: no", "warn, error, drop"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)

    assert len(caught.value.problems) == 1
    assert words in str(caught.value)
