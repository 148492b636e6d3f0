"""Reading: values unchanged, validity from every source, any georeference, any process."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings

import numpy as np
import pytest
import rasterio
from affine import Affine
from conftest import TRANSFORM, make_raster, shared_data
from rasterio.control import GroundControlPoint
from rasterio.enums import ColorInterp

from geoseg.errors import DataError
from geoseg.geo.grid import Window, sample_windows
from geoseg.geo.raster import Reading, open_raster, read_info, read_tags

RGBA = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]


def read_all(path, bands=None, **options):
    with open_raster(path, bands, **options) as raster:
        return raster.read(raster.info.window)


def bands_of(values, height=4, width=5, dtype="uint8"):
    return np.stack([np.full((height, width), value, dtype) for value in values])


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("uint8", 0, 255), ("uint16", 0, 10000), ("int16", -32767, 32767), ("float32", 0.0, 1.0), ("float64", -1e9, 1e9)],
)
def test_values_are_handed_on_unchanged(tmp_path, dtype, low, high):
    array = np.linspace(low, high, 3 * 6 * 7).reshape(3, 6, 7).astype(dtype)
    image, valid = read_all(make_raster(tmp_path / "a.tif", array))
    assert image.dtype == dtype
    np.testing.assert_array_equal(image, array)
    assert valid.all()


def test_bands_come_in_the_order_asked_for(tmp_path):
    path = make_raster(tmp_path / "a.tif", bands_of([10, 20, 30, 40]))
    assert read_all(path, [3, 2, 1]).image[:, 0, 0].tolist() == [30, 20, 10]
    assert read_all(path, [4]).image[:, 2, 3].tolist() == [40]
    assert read_all(path).image[:, 0, 0].tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize("bands", [[0, 1, 2], [5], [], [-1]])
def test_bands_that_are_not_there_are_refused(tmp_path, bands):
    path = make_raster(tmp_path / "a.tif", bands_of([10, 20, 30, 40]))
    with pytest.raises(DataError, match=r"a\.tif: found bands .* expected numbers from 1 to 4; numbering starts at 1"):
        read_all(path, bands)


def test_windows_may_overhang_or_miss_the_raster(tmp_path, rng):
    array = rng.integers(1, 255, (2, 5, 6)).astype(np.uint8)
    padded = np.zeros((2, 25, 26), np.uint8)
    padded[:, 10:15, 10:16] = array
    with open_raster(make_raster(tmp_path / "a.tif", array)) as raster:
        for window in (Window(-3, -2, 6, 5), Window(2, 3, 9, 9), Window(-4, -4, 12, 13), Window(6, 0, 3, 3)):
            image, valid = raster.read(window)
            rows, cols = window.within(Window(-10, -10, 25, 26))
            np.testing.assert_array_equal(image, padded[:, rows, cols])
            np.testing.assert_array_equal(valid, padded[0, rows, cols] > 0)


def test_nodata_in_any_band_makes_a_pixel_invalid(tmp_path):
    array = bands_of([7, 8], dtype="int16")
    array[0, 0, 0] = array[1, 2, 2] = -9999
    image, valid = read_all(make_raster(tmp_path / "a.tif", array, nodata=-9999))
    assert np.argwhere(~valid).tolist() == [[0, 0], [2, 2]]
    assert image[0, 0, 0] == -9999
    # A band that is not read does not decide.
    assert np.argwhere(~read_all(tmp_path / "a.tif", [2]).valid).tolist() == [[2, 2]]


@pytest.mark.parametrize("nodata", [None, np.nan, -3.4028234663852886e38])
def test_nan_and_infinite_are_invalid_and_become_zero(tmp_path, nodata):
    array = bands_of([1.5, 2.5], dtype="float32")
    array[0, 1, 1], array[1, 2, 2], array[1, 3, 3] = np.nan, np.inf, -np.inf
    image, valid = read_all(make_raster(tmp_path / "a.tif", array, nodata=nodata))
    assert np.argwhere(~valid).tolist() == [[1, 1], [2, 2], [3, 3]]
    assert np.isfinite(image).all()
    assert image[0, 1, 1] == 0
    assert image[1, 1, 1] == 2.5


def test_nodata_of_more_digits_than_float32_has(tmp_path):
    array = bands_of([1], dtype="float32")
    array[0, 0, 0] = np.float32(-3.4e38)
    assert read_all(make_raster(tmp_path / "a.tif", array, nodata=-3.4e38)).valid.sum() == 19


@pytest.mark.parametrize("nodata", ["-9999", "0.5", "300", "nan", "1e40"])
def test_nodata_no_pixel_can_hold_marks_nothing(tmp_path, nodata):
    make_raster(tmp_path / "a.tif", bands_of([0]))
    vrt = tmp_path / "a.vrt"
    vrt.write_text(
        '<VRTDataset rasterXSize="5" rasterYSize="4"><VRTRasterBand dataType="Byte" band="1">'
        f"<NoDataValue>{nodata}</NoDataValue><SimpleSource>"
        '<SourceFilename relativeToVRT="1">a.tif</SourceFilename><SourceBand>1</SourceBand></SimpleSource>'
        "</VRTRasterBand></VRTDataset>"
    )
    assert read_all(vrt).valid.all()


def test_alpha_is_validity_and_no_image_band(tmp_path):
    array = bands_of([10, 20, 30, 255])
    array[3, :, :2] = 0
    array[3, 0, 4] = 1
    path = make_raster(tmp_path / "a.tif", array, photometric="RGB", colorinterp=RGBA)
    info = read_info(path)
    assert (info.alpha_band, info.image_bands) == (4, (1, 2, 3))
    image, valid = read_all(path)
    assert len(image) == 3
    np.testing.assert_array_equal(valid, np.tile([False, False, True, True, True], (4, 1)))
    assert image[0, 0, 0] == 10


def test_alpha_that_is_asked_for_is_a_band(tmp_path):
    array = bands_of([10, 20, 30, 0])
    image, valid = read_all(make_raster(tmp_path / "a.tif", array, photometric="RGB", colorinterp=RGBA), [1, 4])
    assert image[:, 0, 0].tolist() == [10, 0]
    assert valid.all()


def test_fourth_band_that_is_not_alpha_is_kept(tmp_path):
    path = make_raster(tmp_path / "a.tif", bands_of([10, 20, 30, 0]))
    assert read_info(path).image_bands == (1, 2, 3, 4)
    assert read_all(path).valid.all()


def test_alpha_alone_is_no_image(tmp_path):
    grey = [ColorInterp.gray, ColorInterp.alpha]
    path = make_raster(tmp_path / "a.tif", bands_of([9, 255]), colorinterp=grey)
    assert read_info(path).image_bands == (1,)


@pytest.mark.parametrize("internal", [True, False])
def test_mask_band_internal_or_beside_the_file(tmp_path, internal):
    mask = np.ones((4, 5), bool)
    mask[:, 3:] = False
    path = make_raster(tmp_path / "a.tif", bands_of([10, 20, 30]), mask=mask if internal else None)
    if not internal:
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(path, "r+") as dataset:
            dataset.write_mask(mask)
    assert (tmp_path / "a.tif.msk").exists() is not internal
    np.testing.assert_array_equal(read_all(path).valid, mask)
    np.testing.assert_array_equal(read_all(path, [2]).valid, mask)


def test_each_band_may_have_a_mask_of_its_own(tmp_path):
    make_raster(tmp_path / "a.tif", bands_of([10, 20]))
    masks = np.full((2, 4, 5), 255, np.uint8)
    masks[0, 0, 0] = masks[1, 1, 1] = 0
    make_raster(tmp_path / "masks.tif", masks)
    band = (
        '<VRTRasterBand dataType="Byte" band="{0}"><SimpleSource><SourceFilename relativeToVRT="1">a.tif'
        "</SourceFilename><SourceBand>{0}</SourceBand></SimpleSource><MaskBand>"
        '<VRTRasterBand dataType="Byte"><SimpleSource><SourceFilename relativeToVRT="1">masks.tif</SourceFilename>'
        "<SourceBand>{0}</SourceBand></SimpleSource></VRTRasterBand></MaskBand></VRTRasterBand>"
    )
    vrt = tmp_path / "a.vrt"
    vrt.write_text(f'<VRTDataset rasterXSize="5" rasterYSize="4">{band.format(1)}{band.format(2)}</VRTDataset>')
    assert np.argwhere(~read_all(vrt).valid).tolist() == [[0, 0], [1, 1]]
    assert np.argwhere(~read_all(vrt, [2]).valid).tolist() == [[1, 1]]


def test_big_endian_files_give_native_contiguous_arrays(tmp_path):
    array = np.arange(20, dtype="uint16").reshape(1, 4, 5) * 1000
    image, _ = read_all(make_raster(tmp_path / "a.tif", array, endianness="BIG"))
    assert (tmp_path / "a.tif").read_bytes()[:2] == b"MM"
    assert image.dtype.isnative
    assert image.flags.c_contiguous
    np.testing.assert_array_equal(image, array)


@pytest.mark.parametrize(
    "transform",
    [
        TRANSFORM,
        Affine(0.1, 0, 600000.3, 0, -0.1, 5000000.7),
        Affine(1, 0, 500000, 0, 1, 4999000),
        Affine(2, 0, 500000, 0, -5, 5000000),
        Affine.translation(500000, 5000000) * Affine.rotation(30) * Affine.scale(2, -3),
    ],
    ids=["plain", "decimetre", "south-up", "non-square", "rotated"],
)
def test_any_transform_is_read_as_it_is(tmp_path, transform):
    info = read_info(make_raster(tmp_path / "a.tif", bands_of([1]), transform))
    assert info.transform == transform
    assert info.crs.to_epsg() == 32618


def test_resolution_of_a_rotated_raster_is_its_pixels_sides(tmp_path):
    transform = Affine.translation(500000, 5000000) * Affine.rotation(30) * Affine.scale(2, -3)
    assert read_info(make_raster(tmp_path / "a.tif", bands_of([1]), transform)).resolution == pytest.approx((2, 3))


def test_raster_without_georeference_opens_without_a_warning(tmp_path):
    path = make_raster(tmp_path / "a.tif", bands_of([1]), transform=None, crs=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        info = read_info(path)
        read_all(path)
    assert info.transform == Affine.identity()
    assert info.crs is None
    assert not info.georeferenced


def test_control_points_are_kept_and_their_crs_is_not_the_rasters(tmp_path):
    points = [GroundControlPoint(r, c, 500000 + c, 5000000 - r) for r, c in ((0, 0), (0, 5), (4, 0), (4, 5))]
    path = make_raster(tmp_path / "a.tif", bands_of([1]), transform=None, crs="EPSG:32618", gcps=points)
    info = read_info(path)
    assert info.crs is None
    assert not info.georeferenced
    assert info.gcps_crs.to_epsg() == 32618
    assert [(p.row, p.col, p.x, p.y) for p in info.gcps] == [(p.row, p.col, p.x, p.y) for p in points]


def test_names_of_bands_and_counts(tmp_path):
    info = read_info(make_raster(tmp_path / "a.tif", bands_of([1, 2]), band_names=["red", "nir"], nodata=9))
    assert info.band_names == ("red", "nir")
    assert (info.height, info.width, info.count, info.dtype, info.nodata) == (4, 5, 2, "uint8", 9)
    assert info.window == Window(0, 0, 4, 5)


def test_tags(tmp_path):
    path = make_raster(tmp_path / "a.tif", bands_of([1]))
    with rasterio.open(path, "r+") as dataset:
        dataset.update_tags(model_hash="abc")
    assert read_tags(path)["model_hash"] == "abc"
    with pytest.raises(DataError, match="no such file"):
        read_tags(tmp_path / "gone.tif")


def test_missing_and_unreadable_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.tif: found no such file, expected a raster"):
        read_info(tmp_path / "gone.tif")
    (tmp_path / "text.tif").write_text("not a raster")
    with pytest.raises(DataError, match=r"text\.tif: found an unreadable raster"):
        read_info(tmp_path / "text.tif")


def test_complex_and_flat_rasters_are_refused(tmp_path):
    with pytest.raises(DataError, match="complex64 values, expected real numbers"):
        read_info(make_raster(tmp_path / "a.tif", bands_of([1], dtype="complex64")))
    flat = make_raster(tmp_path / "b.tif", bands_of([1]), Affine(1, 1, 500000, 1, 1, 5000000))
    with pytest.raises(DataError, match="flattens the ground"):
        read_info(flat)


def test_palette_is_refused_as_image_and_read_as_class_map(tmp_path):
    path = make_raster(tmp_path / "a.tif", bands_of([1]), photometric="PALETTE")
    with rasterio.open(path, "r+") as dataset:
        dataset.write_colormap(1, {1: (255, 0, 0, 255)})
    with pytest.raises(DataError, match=r"a colour table.*gdal_translate -expand rgb"):
        read_info(path)
    assert (read_all(path, allow_palette=True).image == 1).all()


def test_damaged_blocks_are_named(tmp_path, rng):
    path = make_raster(tmp_path / "a.tif", rng.integers(0, 255, (1, 64, 64)).astype(np.uint8), compress="deflate")
    path.write_bytes(path.read_bytes()[:-2500])
    with open_raster(path) as raster, pytest.raises(DataError, match=r"a\.tif: found damaged data in rows 32-63, col"):
        raster.read(Window(32, 0, 32, 64))


def test_an_open_raster_can_be_pickled_and_forked(tmp_path, rng):
    array = rng.integers(0, 255, (3, 300, 300)).astype(np.uint8)
    with open_raster(make_raster(tmp_path / "a.tif", array, tiled=True, blockxsize=64, blockysize=64)) as raster:
        windows = sample_windows(300, 300, 50, 30)
        expected = [array[:, w.row_off : w.row_stop, w.col_off : w.col_stop].sum() for w in windows]
        raster.read(windows[0])
        assert pickle.loads(pickle.dumps(raster)).read(windows[3]).image.sum() == expected[3]
        context = multiprocessing.get_context("fork")
        global _FORKED
        _FORKED = raster
        with context.Pool(3) as pool:
            assert pool.map(_sum_of, windows, chunksize=1) == expected


def _sum_of(window):
    return int(_FORKED.read(window).image.sum())


def test_thumbnail_shows_the_whole_raster(tmp_path):
    array = np.zeros((1, 100, 200), np.uint8)
    array[:, :, 100:] = 9
    with open_raster(make_raster(tmp_path / "a.tif", array)) as raster:
        image, valid = raster.thumbnail(50)
    assert image.shape == (1, 25, 50)
    assert valid.all()
    assert (image[0, :, :25] == 0).all()
    assert (image[0, :, 25:] == 9).all()


@pytest.mark.parametrize(
    ("name", "fraction"),
    [
        ("derived_reference.tif", 1.0),
        ("derived_rgba.tif", 520 / 640),
        ("derived_internal_mask.tif", 520 / 640),
        ("all_nodata.tif", 0.0),
        ("derived_south_up.tif", 1.0),
    ],
)
def test_validity_of_real_rasters(name, fraction):
    assert read_all(shared_data("odd", name)).valid.mean() == pytest.approx(fraction)


def test_subdatasets_are_listed():
    with pytest.raises(DataError, match=r"no bands, .* name one of its parts instead: netcdf:.*Band1"):
        read_info(shared_data("odd", "netcdf_3_subdatasets.nc"))


def test_a_really_damaged_file_is_named():
    path = shared_data("odd", "corrupt_blocks.tif")
    with pytest.raises(DataError, match=r"corrupt_blocks\.tif: found damaged data in rows 0-1023"):
        read_all(path)


@pytest.mark.parametrize("value", [1e300, -1e300, 3.5e38, -np.finfo(np.float64).max])
def test_numbers_beyond_float32_are_invalid_like_infinity(tmp_path, value):
    array = np.full((1, 4, 5), 3.4e38)
    array[0, 1, 2] = value
    path = make_raster(tmp_path / "a.tif", array)
    for reading in (Reading(), Reading(dtype="float32")):
        image, valid = read_all(path, reading=reading)
        expected = np.ones((4, 5), bool)
        expected[1, 2] = False
        np.testing.assert_array_equal(valid, expected)
        assert image[0, 1, 2] == 0
        assert (image[0][valid] == image.dtype.type(3.4e38)).all()
