"""What a raster may be: stacks, palettes, scales, several types, parts of files, names; each with its own values."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from conftest import TRANSFORM, UTM18, make_raster, shared_data

from geoseg.errors import DataError
from geoseg.geo.grid import Window
from geoseg.geo.raster import Reading, is_gdal_name, key_of, local_files, open_raster, read_info, same_file, stem
from geoseg.geo.raster.names import members, resolve

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def bands_of(path, reading: Reading | None = None, bands=None):
    with open_raster(path, bands, reading=reading) as raster:
        return raster.read(raster.info.window)


def constant(folder: Path, name: str, value, dtype: str = "uint16", **options) -> Path:
    return make_raster(folder / name, np.full((4, 5), value, dtype), **options)


def vrt(folder: Path, *bands: tuple[str, str], extra: str = "") -> Path:
    """Write a VRT of (file, type) bands: the one format whose bands differ in type."""
    parts = "".join(
        f'<VRTRasterBand dataType="{kind}" band="{n}">{extra}<SimpleSource><SourceFilename relativeToVRT="1">{name}'
        "</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>"
        for n, (name, kind) in enumerate(bands, start=1)
    )
    (folder / "mixed.vrt").write_text(f'<VRTDataset rasterXSize="5" rasterYSize="4">{parts}</VRTDataset>')
    return folder / "mixed.vrt"


# Stacks


def test_a_stack_has_the_bands_of_its_files_in_order(tmp_path: Path) -> None:
    paths = [constant(tmp_path, f"S2_B{n:02d}.tif", n) for n in (4, 3, 8)]
    name = "|".join(map(str, paths))
    info = read_info(name)
    assert (info.count, info.dtype, info.band_names, info.transform) == (3, "uint16", ("B04", "B03", "B08"), TRANSFORM)
    pixels = bands_of(name)
    assert pixels.image[:, 0, 0].tolist() == [4, 3, 8]
    assert pixels.valid.all()
    assert bands_of(name, bands=[3, 1]).image[:, 0, 0].tolist() == [8, 4]
    assert stem(name) == "S2"


def test_a_pixel_of_a_stack_is_valid_where_it_is_in_every_file_used(tmp_path: Path) -> None:
    first = np.full((4, 5), 7, np.int16)
    first[0, 0] = -1
    mask = np.ones((4, 5), bool)
    mask[3, 4] = False
    rgba = np.full((2, 4, 5), 9, np.int16)
    rgba[1, 1] = 0
    one = make_raster(tmp_path / "one.tif", first, nodata=-1)
    two = make_raster(tmp_path / "two.tif", np.full((4, 5), 8, np.int16), mask=mask)
    interpretation = [rasterio.enums.ColorInterp.gray, rasterio.enums.ColorInterp.alpha]
    three = make_raster(tmp_path / "three.tif", rgba, colorinterp=interpretation)
    expected = np.ones((4, 5), bool)
    expected[0, 0] = expected[3, 4] = False
    expected[1] = False
    pixels = bands_of(f"{one}|{two}|{three}")
    np.testing.assert_array_equal(pixels.valid, expected)
    assert len(pixels.image) == 3  # the alpha band is none
    assert bands_of(f"{one}|{two}|{three}", bands=[2]).valid.sum() == 19


def test_a_stack_reads_windows_that_overhang_and_travels_between_processes(tmp_path: Path, rng) -> None:
    arrays = rng.integers(0, 99, (2, 4, 5)).astype(np.uint8)
    name = "|".join(str(make_raster(tmp_path / f"{n}.tif", array)) for n, array in enumerate(arrays))
    with open_raster(name) as raster:
        copy = pickle.loads(pickle.dumps(raster))
        image, valid = copy.read(Window(2, 3, 4, 4))
        copy.close()
        assert raster.thumbnail(2).image.shape == (2, 2, 2)
    np.testing.assert_array_equal(image[:, :2, :2], arrays[:, 2:, 3:])
    assert valid.sum() == 4


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"transform": TRANSFORM * Affine.translation(1, 0)}, "the transform"),
        ({"crs": "EPSG:32617"}, "the CRS EPSG:32617"),
        ({"shape": (4, 6)}, "6 x 4 pixels"),
    ],
)
def test_files_of_another_grid_do_not_stack(tmp_path: Path, change, found: str) -> None:
    shape = change.pop("shape", (4, 5))
    one = constant(tmp_path, "one.tif", 1)
    two = make_raster(tmp_path / "two.tif", np.ones(shape, np.uint16), **change)
    with pytest.raises(DataError, match=f"two.tif: found {found}.*as in .*one.tif"):
        read_info(f"{one}|{two}")


def test_a_file_without_a_crs_takes_that_of_the_others(tmp_path: Path) -> None:
    one, two = constant(tmp_path, "one.tif", 1, crs=None), constant(tmp_path, "two.tif", 2)
    assert read_info(f"{one}|{two}").crs == read_info(two).crs
    nowhere = constant(tmp_path, "three.tif", 3, crs=None, transform=None)
    with pytest.raises(DataError, match=r"three\.tif: found the CRS none"):
        read_info(f"{two}|{nowhere}")


def test_files_of_two_types_stack_only_after_conversion(tmp_path: Path) -> None:
    name = f"{constant(tmp_path, 'a.tif', 200, 'uint8')}|{constant(tmp_path, 'b.tif', 4000, 'uint16')}"
    with pytest.raises(DataError, match=r"b.tif: found uint16 values, but uint8 in .*a.tif.*sample.dtype"):
        read_info(name)
    pixels = bands_of(name, Reading(dtype="uint16"))
    assert (pixels.image.dtype, pixels.image[:, 0, 0].tolist()) == (np.uint16, [200, 4000])


# Types


def test_bands_of_several_types_are_refused_or_converted(tmp_path: Path) -> None:
    constant(tmp_path, "a.tif", 200, "uint8")
    constant(tmp_path, "b.tif", 4000, "uint16")
    path = vrt(tmp_path, ("a.tif", "Byte"), ("b.tif", "UInt16"))
    with pytest.raises(DataError, match=r"bands of types uint16, uint8.*sample.dtype"):
        read_info(path)
    pixels = bands_of(path, Reading(dtype="int32"))
    assert (pixels.image.dtype, pixels.image[:, 0, 0].tolist()) == (np.int32, [200, 4000])


@pytest.mark.parametrize(
    ("stored", "wanted", "fits"),
    [
        ("uint8", "uint16", True),
        ("uint8", "int16", True),
        ("uint16", "int16", False),
        ("int16", "uint16", False),
        ("uint16", "uint8", False),
        ("float32", "int16", False),
        ("float64", "float32", True),
        ("int32", "float32", True),
        ("uint16", "float64", True),
    ],
)
def test_only_conversions_without_loss_are_made_except_to_float32(
    tmp_path: Path, stored: str, wanted: str, fits: bool
) -> None:
    path = constant(tmp_path, "a.tif", 100, stored)
    if not fits:
        with pytest.raises(DataError, match=f"{stored} values, which {wanted} does not hold without loss"):
            read_info(path, reading=Reading(dtype=wanted))
        return
    pixels = bands_of(path, Reading(dtype=wanted))
    assert pixels.image.dtype == wanted
    assert (pixels.image == 100).all()


def test_nodata_is_found_before_the_conversion(tmp_path: Path) -> None:
    array = np.array([[1e300, 5.0], [-9999.123456789, np.nan]])
    path = make_raster(tmp_path / "a.tif", array, nodata=-9999.123456789)
    pixels = bands_of(path, Reading(dtype="float32"))
    assert pixels.valid.tolist() == [[False, True], [False, False]]  # 1e300 is no float32
    assert np.isfinite(pixels.image).all()


def test_scale_and_offset_are_applied_when_asked(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "a.tif", np.array([[[0, 100]], [[50, 0]]], np.int16), nodata=0)
    with rasterio.open(path, "r+") as dataset:
        dataset.scales, dataset.offsets = (0.01, 2.0), (-0.5, 10.0)
    assert bands_of(path).image.tolist() == [[[0, 100]], [[50, 0]]]
    pixels = bands_of(path, Reading(apply_scale=True))
    assert pixels.image.dtype == np.float32
    assert pixels.image[0, 0, 1] == np.float32(0.5)
    assert pixels.image[1, 0, 0] == np.float32(110)
    assert pixels.valid.tolist() == [[False, False]]  # nodata means the stored 0
    assert read_info(path, reading=Reading(apply_scale=True)).dtype == "float32"


def test_values_outside_the_valid_range_are_unknown(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "a.tif", np.array([[[0, 5, 10]], [[7, 7, 11]]], np.uint8))
    assert bands_of(path, Reading(valid_range=(1, 10))).valid.tolist() == [[False, True, False]]
    assert bands_of(path, Reading(valid_range=(1, 10)), [1]).valid.tolist() == [[False, True, True]]


def test_a_nodata_value_given_counts_instead_of_the_files(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "a.tif", np.array([[0, 5, 10]], np.uint8), nodata=0)
    assert bands_of(path, Reading(nodata=5)).valid.tolist() == [[True, False, True]]


def test_complex_values_are_refused_even_with_a_conversion(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "a.tif", np.ones((2, 2), np.complex64))
    with pytest.raises(DataError, match="complex64 values, expected real numbers"):
        read_info(path, reading=Reading(dtype="float32"))


# Palettes


def palette(folder: Path, **options) -> Path:
    path = make_raster(folder / "p.tif", np.array([[0, 1, 2, 3]], np.uint8), photometric="PALETTE", **options)
    with rasterio.open(path, "r+") as dataset:
        dataset.write_colormap(1, {0: (9, 8, 7, 255), 1: (255, 0, 10, 255), 2: (1, 2, 3, 255)})
    return path


def test_a_palette_is_refused_or_expanded(tmp_path: Path) -> None:
    path = palette(tmp_path, nodata=2)
    with pytest.raises(DataError, match=r"a colour table.*sample.expand_palette"):
        read_info(path)
    info = read_info(path, reading=Reading(expand_palette=True))
    assert (info.count, info.dtype, info.band_names) == (3, "uint8", ("red", "green", "blue"))
    pixels = bands_of(path, Reading(expand_palette=True))
    assert pixels.image[:, 0, :2].T.tolist() == [[9, 8, 7], [255, 0, 10]]
    assert pixels.valid.tolist()[0][:3] == [True, True, False]
    assert bands_of(path, Reading(expand_palette=True), [3, 1]).image[:, 0, 1].tolist() == [10, 255]


# Names and other formats


def test_a_file_of_subdatasets_names_them(tmp_path: Path) -> None:
    path = shared_data("odd", "netcdf_3_subdatasets.nc")
    with pytest.raises(DataError, match=r"no bands.*(?i:netcdf):.*netcdf_3_subdatasets.nc.*:"):
        read_info(path)
    with rasterio.open(path) as dataset:
        part = dataset.subdatasets[0]
    info = read_info(part)
    assert info.count >= 1
    assert local_files(part) == [path]
    assert stem(part).startswith("netcdf_3_subdatasets_")


def test_a_png_with_a_world_file_is_in_place(tmp_path: Path) -> None:
    pixels = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    with rasterio.open(tmp_path / "a.png", "w", driver="PNG", width=5, height=4, count=3, dtype="uint8") as dataset:
        dataset.write(pixels)
    (tmp_path / "a.pgw").write_text("2\n0\n0\n-2\n101\n199\n")
    info = read_info(tmp_path / "a.png")
    assert info.transform == Affine(2, 0, 100, 0, -2, 200)
    np.testing.assert_array_equal(bands_of(tmp_path / "a.png").image, pixels)


def test_a_raster_inside_a_zip_and_a_jpeg_2000(tmp_path: Path) -> None:
    import zipfile

    path = constant(tmp_path, "a.tif", 3)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(path, "inner.tif")
    assert (bands_of(f"/vsizip/{tmp_path}/a.zip/inner.tif").image == 3).all()
    if "JP2OpenJPEG" not in rasterio.drivers.raster_driver_extensions().values():
        pytest.skip("this GDAL has no JPEG 2000")
    array = np.arange(64 * 64, dtype=np.uint16).reshape(1, 64, 64)
    profile = {"width": 64, "height": 64, "count": 1, "dtype": "uint16", "crs": UTM18, "transform": TRANSFORM}
    with rasterio.open(tmp_path / "a.jp2", "w", driver="JP2OpenJPEG", QUALITY=100, REVERSIBLE="YES", **profile) as jp2:
        jp2.write(array)
    np.testing.assert_array_equal(bands_of(tmp_path / "a.jp2").image, array)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b.tif", "b"),
        ("https://host/x/scene.tif?token=1", "scene"),
        ("/vsicurl/https://host/x/scene.tif", "scene"),
        ("/vsizip/a.zip/inner.tif", "inner"),
        ('NETCDF:"/data/f.nc":ndvi', "f_ndvi"),
        ("s/B02.tif|s/B03.tif", "s"),
        ("s/x_red.tif|s/x_nir.tif", "x"),
        ("s/x.tif|s/x_nir.tif", "x"),
    ],
)
def test_what_an_image_is_called(name: str, expected: str) -> None:
    assert stem(name) == expected


def test_only_plain_paths_are_taken_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "f.nc").touch()
    assert resolve("a.tif", tmp_path) == tmp_path / "a.tif"
    assert resolve("sub/../a.tif", tmp_path) == tmp_path / "a.tif"
    assert resolve("https://h/a.tif", tmp_path) == "https://h/a.tif"
    assert resolve("/vsis3/b/a.tif", tmp_path) == "/vsis3/b/a.tif"
    assert resolve("netcdf:f.nc:v", tmp_path) == f'netcdf:"{tmp_path}/f.nc":v'
    assert resolve("a.tif | b.tif", tmp_path) == f"{tmp_path}/a.tif|{tmp_path}/b.tif"
    assert is_gdal_name("s3://b/a.tif")
    assert not is_gdal_name("a.tif")


def test_a_bar_in_a_file_name_is_no_stack(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("no such names here")
    path = constant(tmp_path, "a|b.tif", 1)
    assert members(path) == [str(path)]
    assert read_info(path).count == 1


def test_a_stack_is_known_by_its_files(tmp_path: Path) -> None:
    a, b = constant(tmp_path, "a.tif", 1), constant(tmp_path, "b.tif", 1)
    (tmp_path / "link.tif").symlink_to(a)
    assert key_of(f"{tmp_path}/link.tif|{b}") == key_of(f"{a}|{b}") != key_of(f"{b}|{a}")
    assert local_files(f"{a}|https://h/x.tif|{b}") == [a, b]
    assert same_file(f"{a}|{b}", b)
    assert not same_file(f"{a}|{b}", tmp_path / "c.tif")
