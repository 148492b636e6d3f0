"""Writing: pixels and georeference exact, files whole or absent, a COG that a GIS shows rightly."""

from __future__ import annotations

import hashlib
import signal
import struct
import subprocess
import sys
import textwrap
from dataclasses import replace
from xml.etree import ElementTree as Tree

import numpy as np
import pytest
import rasterio
from affine import Affine
from conftest import TRANSFORM, make_raster, shared_data
from rasterio.control import GroundControlPoint

from geoseg.errors import DataError
from geoseg.geo.grid import Window, sample_windows, tiles
from geoseg.geo.raster import create_geotiff, finish_cog, open_raster, publish, read_info, same_file
from geoseg.geo.raster.writing import _profile

COLOURS = {0: "#000000", 1: "#1f78b4", 2: (255, 0, 16)}
NAMES = ["background", "café & <water>", "road"]


@pytest.fixture
def like(tmp_path):
    """A scene of 700 x 1100 pixels, not a multiple of any block."""
    path = make_raster(tmp_path / "source.tif", np.zeros((1, 7, 11), np.uint8))
    return replace(read_info(path), height=700, width=1100)


@pytest.fixture
def classes(rng):
    """Class ids over that scene, with unknown pixels."""
    ids = rng.integers(0, 3, (70, 110)).astype(np.uint8).repeat(10, 0).repeat(10, 1)
    ids[:30, :40] = 255
    return ids


def cut(array, window):
    return array[..., window.row_off : window.row_stop, window.col_off : window.col_stop]


def write_map(path, like, classes, **description):
    with create_geotiff(path, like, 1, "uint8", 255, colours=COLOURS, names=NAMES, **description) as writer:
        writer.write(classes, Window(0, 0, *classes.shape))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "source.tif")


def test_finished_map_has_all_a_gis_needs(tmp_path, like, classes):
    write_map(tmp_path / "tmp.tif", like, classes, tags={"model_hash": "abc", "epoch": 3}, band_names=["class"])
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    assert names_in(tmp_path) == ["map.tif", "map.tif.aux.xml"]
    with rasterio.open(tmp_path / "map.tif") as dataset:
        np.testing.assert_array_equal(dataset.read(1), classes)
        assert dataset.transform == like.transform
        assert dataset.crs == like.crs
        assert (dataset.nodata, dataset.dtypes[0], dataset.block_shapes) == (255, "uint8", [(512, 512)])
        assert dataset.overviews(1) == [2, 4]
        assert dataset.colorinterp[0].name == "palette"
        table = dataset.colormap(1)
        assert [table[i] for i in (0, 1, 2, 255)] == [
            (0, 0, 0, 255),
            (31, 120, 180, 255),
            (255, 0, 16, 255),
            (0, 0, 0, 0),
        ]
        assert dataset.tags()["model_hash"] == "abc"
        assert dataset.tags()["epoch"] == "3"
        assert dataset.descriptions == ("class",)
        assert dataset.compression.name == "deflate"
    tree = Tree.parse(tmp_path / "map.tif.aux.xml")
    assert tree.getroot().tag == "PAMDataset"
    assert [category.text for category in tree.iterfind("PAMRasterBand[@band='1']/CategoryNames/Category")] == NAMES


def directories(path):
    """Return, of each image directory in the order of the chain: its offset, its side, the offset of its first tile."""
    data = path.read_bytes()
    assert data[:4] == b"II*\0"
    found, offset = [], struct.unpack_from("<I", data, 4)[0]
    while offset:
        count = struct.unpack_from("<H", data, offset)[0]
        entries = {}
        for i in range(count):
            tag, kind, length, value = struct.unpack_from("<HHII", data, offset + 2 + 12 * i)
            if kind == 3:
                value &= 0xFFFF
            entries[tag] = struct.unpack_from("<I", data, value)[0] if tag == 324 and length > 1 else value
        found.append((offset, entries[256], entries[324]))
        offset = struct.unpack_from("<I", data, offset + 2 + 12 * count)[0]
    return found


def test_layout_is_cloud_optimized(tmp_path, like, classes):
    write_map(tmp_path / "tmp.tif", like, classes)
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    path = tmp_path / "map.tif"
    assert b"LAYOUT=IFDS_BEFORE_DATA" in path.read_bytes()[:200]
    offsets, widths, first_tiles = zip(*directories(path), strict=True)
    assert widths == (1100, 550, 275)
    assert list(offsets) == sorted(offsets)
    # All directories come first, then the data, the smallest overview's before the full image's.
    assert max(offsets) < min(first_tiles)
    assert list(first_tiles) == sorted(first_tiles, reverse=True)


def test_overviews_of_classes_hold_classes_alone(tmp_path, like, classes):
    write_map(tmp_path / "tmp.tif", like, classes)
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    with rasterio.open(tmp_path / "map.tif", overview_level=0) as dataset:
        half = dataset.read(1)
    # Classes come in squares of 10 pixels, so the most frequent of every 2 x 2 is its value.
    np.testing.assert_array_equal(half, classes[::2, ::2])


def test_overviews_of_quantities_are_means_without_nodata(tmp_path, like):
    values = np.full((2, 700, 1100), -1, np.float32)
    values[:, :, 0::4], values[:, :, 1::4] = 0.25, 0.75
    values[:, :, 2::4] = 0.5
    with create_geotiff(tmp_path / "tmp.tif", like, 2, "float32", -1) as writer:
        writer.write(values, Window(0, 0, 700, 1100))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif", "average")
    with rasterio.open(tmp_path / "map.tif") as dataset:
        np.testing.assert_array_equal(dataset.read(), values)
    with rasterio.open(tmp_path / "map.tif", overview_level=0) as dataset:
        assert set(np.unique(dataset.read(2))) == {0.5}


@pytest.mark.parametrize(
    "transform",
    [
        TRANSFORM,
        Affine(0.1, 0, 600000.3, 0, -0.1, 5000000.7),
        Affine(1, 0, 500000, 0, 1, 4999000),
        Affine(1 / 3, 0, 500000.1, 0, -0.7, 5000000.9),
        Affine.translation(500000, 5000000) * Affine.rotation(30) * Affine.scale(2, -3),
    ],
    ids=["plain", "decimetre", "south-up", "non-square", "rotated"],
)
def test_transform_and_crs_are_copied_exactly(tmp_path, like, transform):
    write_map(tmp_path / "tmp.tif", replace(like, transform=transform), np.ones((700, 1100), np.uint8))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    info = read_info(tmp_path / "map.tif", allow_palette=True)
    assert info.transform == transform
    assert info.crs == like.crs


def test_control_points_go_along(tmp_path):
    points = [GroundControlPoint(r, c, 500000 + c, 5000000 - r) for r, c in ((0, 0), (0, 5), (4, 0), (4, 5))]
    source = read_info(
        make_raster(tmp_path / "source.tif", np.ones((4, 5), np.uint8), transform=None, crs="EPSG:32618", gcps=points)
    )
    write_map(tmp_path / "tmp.tif", source, np.ones((4, 5), np.uint8))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    info = read_info(tmp_path / "map.tif", allow_palette=True)
    assert (info.crs, info.transform) == (None, Affine.identity())
    assert [(p.row, p.col, p.x, p.y) for p in info.gcps] == [(p.row, p.col, p.x, p.y) for p in points]
    assert info.gcps_crs == source.gcps_crs


def test_raster_without_georeference_gives_one_without(tmp_path):
    source = read_info(make_raster(tmp_path / "source.tif", np.ones((1, 1), np.uint8), transform=None, crs=None))
    write_map(tmp_path / "tmp.tif", source, np.ones((1, 1), np.uint8))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    info = read_info(tmp_path / "map.tif", allow_palette=True)
    assert (info.crs, info.transform, info.height, info.width) == (None, Affine.identity(), 1, 1)


@pytest.mark.parametrize(
    "name",
    [
        "geostationary_projection.tif",
        "esri_wkt_2x2.tif",
        "float32_nodata_minus3.4e38.tif",
        "rgb_external_msk.tif",
        "tiny_rotated_geotransform.tif",
        "gcps_no_geotransform.vrt",
        "rpcs_no_geotransform.vrt",
        "derived_rotated30.tif",
        "derived_south_up.tif",
    ],
)
def test_georeference_of_real_rasters_is_kept(tmp_path, name):
    source = read_info(shared_data("odd", name))
    write_map(tmp_path / "tmp.tif", source, np.zeros((source.height, source.width), np.uint8))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    info = read_info(tmp_path / "map.tif", allow_palette=True)
    assert (info.transform, info.crs, info.gcps_crs) == (source.transform, source.crs, source.gcps_crs)
    assert (len(info.gcps), bool(info.rpcs)) == (len(source.gcps), bool(source.rpcs))
    assert names_in(tmp_path) == ["map.tif", "map.tif.aux.xml"]


@pytest.mark.parametrize(("size", "stride"), [(256, 192), (256, 256), (100, 100), (512, 512), (90, 77), (700, 700)])
def test_windows_of_any_alignment_give_the_same_file(tmp_path, like, classes, size, stride):
    with create_geotiff(tmp_path / "whole.tif", like, 1, "uint8", 255, tile=256) as writer:
        writer.write(classes, Window(0, 0, 700, 1100))
    scene = Window(0, 0, 700, 1100)
    with create_geotiff(tmp_path / "parts.tif", like, 1, "uint8", 255, tile=256) as writer:
        for window in sample_windows(700, 1100, size, stride):
            part = window.intersection(scene)
            writer.write(cut(classes, part), part)
    with rasterio.open(tmp_path / "parts.tif") as dataset:
        digest = hashlib.sha256(dataset.read(1).tobytes()).hexdigest()
    assert digest == hashlib.sha256(classes.tobytes()).hexdigest()
    assert (tmp_path / "parts.tif").stat().st_size <= 1.2 * (tmp_path / "whole.tif").stat().st_size


def test_windows_in_any_order_with_the_later_one_on_top(tmp_path, like, rng):
    expected = np.full((2, 700, 1100), 7, np.uint16)
    windows = [window.intersection(Window(0, 0, 700, 1100)) for window in sample_windows(700, 1100, 300, 170)]
    chosen = rng.permutation(len(windows))[: len(windows) // 2]
    with create_geotiff(tmp_path / "a.tif", like, 2, "uint16", 7, tile=128) as writer:
        for index in chosen:
            part = rng.integers(100, 5000, (2, *windows[index].shape)).astype(np.uint16)
            writer.write(part, windows[index])
            expected[(slice(None), *windows[index].within(Window(0, 0, 700, 1100)))] = part
    with rasterio.open(tmp_path / "a.tif") as dataset:
        np.testing.assert_array_equal(dataset.read(), expected)


def test_rows_of_tiles_are_not_kept_in_memory(tmp_path, like, classes):
    with create_geotiff(tmp_path / "a.tif", like, 1, "uint8", 255, tile=128) as writer:
        for tile in tiles(700, 1100, 128, 0):
            writer.write(cut(classes, tile.write), tile.write)
            assert not writer._pending
        most = 0
        for tile in tiles(700, 1100, 100, 0):
            writer.write(cut(classes, tile.write), tile.write)
            most = max(most, len(writer._pending))
        assert most <= 2 * 9


def test_what_was_never_written_is_nodata(tmp_path, like):
    with create_geotiff(tmp_path / "a.tif", like, 1, "uint8", 255) as writer:
        writer.write(np.ones((3, 4), np.uint8), Window(600, 1000, 3, 4))
    with rasterio.open(tmp_path / "a.tif") as dataset:
        written = dataset.read(1)
    assert (written[600:603, 1000:1004] == 1).all()
    assert (written == 255).sum() == 700 * 1100 - 12


@pytest.mark.parametrize(
    ("array", "window"),
    [
        (np.zeros((3, 4), np.uint8), Window(0, 0, 4, 4)),
        (np.zeros((4, 4), np.uint8), Window(698, 0, 4, 4)),
        (np.zeros((4, 4), np.int64), Window(0, 0, 4, 4)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, like, array, window):
    with (
        pytest.raises(ValueError, match=r"does not fit|the raster holds"),
        create_geotiff(tmp_path / "a.tif", like, 1, "uint8", 255) as writer,
    ):
        writer.write(array, window)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("nodata", [-9999, 256])
def test_nodata_that_does_not_fit_is_refused_before_the_work(tmp_path, like, nodata):
    with (
        pytest.raises(ValueError, match=f"nodata {nodata} does not fit uint8"),
        create_geotiff(tmp_path / "a.tif", like, 1, "uint8", nodata),
    ):
        pass


def test_nodata_of_the_source_does_not_matter(tmp_path):
    for name, array, nodata in (
        ("a", np.ones((1, 4, 5), np.int16), -9999),
        ("b", np.ones((1, 4, 5), np.float32), np.nan),
    ):
        source = read_info(make_raster(tmp_path / f"{name}.tif", array, nodata=nodata))
        write_map(tmp_path / "tmp.tif", source, np.ones((4, 5), np.uint8))
        finish_cog(tmp_path / "tmp.tif", tmp_path / f"{name}_map.tif")
        info = read_info(tmp_path / f"{name}_map.tif", allow_palette=True)
        assert (info.dtype, info.nodata) == ("uint8", 255)


def test_large_files_may_grow_beyond_four_gigabytes(like):
    huge = replace(like, height=30000, width=30000)
    assert _profile(huge, 6, "float32", -1, 512, {})["bigtiff"] == "IF_SAFER"


def test_a_large_file_is_bigtiff(tmp_path, like):
    huge = replace(like, height=30000, width=30000)
    # Nothing is written into it: blocks without pixels take no room.
    with create_geotiff(tmp_path / "a.tif", huge, 6, "float32", -1):
        pass
    assert (tmp_path / "a.tif").read_bytes()[:4] == b"II+\0"
    with create_geotiff(tmp_path / "b.tif", like, 1, "uint8", 255):
        pass
    assert (tmp_path / "b.tif").read_bytes()[:4] == b"II*\0"


def test_ids_beyond_uint8_go_into_uint16(tmp_path, like):
    values = np.full((700, 1100), 300, np.uint16)
    with create_geotiff(tmp_path / "tmp.tif", like, 1, "uint16", 65535, colours={300: "#ff0000"}) as writer:
        writer.write(values, Window(0, 0, 700, 1100))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    with rasterio.open(tmp_path / "map.tif") as dataset:
        assert (dataset.read(1) == 300).all()
        assert dataset.nodata == 65535
        assert dataset.colormap(1)[300] == (255, 0, 0, 255)


def test_four_8_bit_bands_are_not_called_rgba(tmp_path, like):
    with create_geotiff(tmp_path / "tmp.tif", like, 4, "uint8", 255) as writer:
        writer.write(np.zeros((4, 700, 1100), np.uint8), Window(0, 0, 700, 1100))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif", "average")
    info = read_info(tmp_path / "map.tif")
    assert (info.alpha_band, info.image_bands, info.palette) == (None, (1, 2, 3, 4), False)


def test_side_files_of_a_former_map_are_gone(tmp_path, like, classes):
    for suffix in (".aux.xml", ".ovr", ".msk"):
        (tmp_path / f"map.tif{suffix}").write_text("old")
    (tmp_path / "map.tif").write_text("old")
    with create_geotiff(tmp_path / "tmp.tif", like, 1, "uint8", 255) as writer:
        writer.write(classes, Window(0, 0, 700, 1100))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    assert names_in(tmp_path) == ["map.tif"]
    with open_raster(tmp_path / "map.tif") as raster:
        np.testing.assert_array_equal(raster.read(raster.info.window).image[0], classes)


def test_publish_puts_a_streamed_file_in_place(tmp_path, like, classes):
    (tmp_path / "labels.tif.ovr").write_text("old")
    write_map(tmp_path / "tmp.tif", like, classes)
    publish(tmp_path / "tmp.tif", tmp_path / "labels.tif")
    assert names_in(tmp_path) == ["labels.tif", "labels.tif.aux.xml"]
    assert "caf\u00e9 &amp; &lt;water&gt;" in (tmp_path / "labels.tif.aux.xml").read_text(encoding="utf-8")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_of_an_interrupted_file(tmp_path, like, error):
    def work():
        with create_geotiff(tmp_path / "tmp.tif", like, 1, "uint8", 255) as writer:
            writer.write(np.ones((512, 512), np.uint8), Window(0, 0, 512, 512))
            raise error

    with pytest.raises(error):
        work()
    assert names_in(tmp_path) == []


def test_a_failed_finish_leaves_the_former_map(tmp_path):
    (tmp_path / "map.tif").write_text("former")
    (tmp_path / "tmp.tif").write_text("not a raster")
    with pytest.raises(DataError, match=r"map\.tif: found a failed write"):
        finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    assert (tmp_path / "map.tif").read_text() == "former"
    assert names_in(tmp_path) == ["map.tif"]


def test_a_folder_that_is_not_there_is_named(tmp_path, like):
    with (
        pytest.raises(DataError, match=r"none/a\.tif: found a failed write .* check that the folder exists"),
        create_geotiff(tmp_path / "none" / "a.tif", like, 1, "uint8", 255),
    ):
        pass


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on the size of files")
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, like):
    script = f"""
        import resource, signal, sys
        import numpy as np
        from geoseg.errors import DataError
        from geoseg.geo.grid import Window
        from geoseg.geo.raster import create_geotiff, read_info
        like = read_info({str(tmp_path / "like.tif")!r})
        noise = np.random.default_rng(0).integers(0, 255, (700, 1100)).astype(np.uint8)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            with create_geotiff({str(tmp_path / "out.tif")!r}, like, 1, "uint8", 255) as writer:
                writer.write(noise, Window(0, 0, 700, 1100))
        except DataError as error:
            print(error)
            sys.exit(7)
    """
    make_raster(tmp_path / "like.tif", np.zeros((1, 700, 1100), np.uint8))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "out.tif: found a failed write" in done.stdout
    assert names_in(tmp_path) == ["like.tif"]


@pytest.mark.parametrize("colour", ["#12345", "red", (1, 2), (300, 0, 0)])
def test_what_is_no_colour_is_refused(tmp_path, like, colour):
    with (
        pytest.raises(ValueError, match="not a colour"),
        create_geotiff(tmp_path / "a.tif", like, 1, "uint8", 255, colours=[colour]),
    ):
        pass


def test_colours_of_several_bands_are_refused(tmp_path, like):
    with (
        pytest.raises(ValueError, match="one band of uint8 or uint16"),
        create_geotiff(tmp_path / "a.tif", like, 2, "uint8", 255, colours=COLOURS),
    ):
        pass


def test_same_file_sees_through_links(tmp_path):
    first = make_raster(tmp_path / "a.tif", np.zeros((1, 2, 2), np.uint8))
    link, other = tmp_path / "link.tif", tmp_path / "other.tif"
    link.symlink_to(first)
    assert same_file(first, link)
    assert same_file(first, tmp_path / "x" / ".." / "a.tif")
    assert not same_file(first, other)
    assert same_file(other, tmp_path / "." / "other.tif")
