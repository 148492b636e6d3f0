"""Classify, whatever the image comes as: other sources, other sizes of pixels, other number types."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import rasterio
import rasterio.rpc
import rasterio.shutil
from affine import Affine
from conftest import TRANSFORM, make_polygons, make_raster, pixel_box
from test_classify_command import _said, classify, files, make_model, noise, refused

from geoseg.evaluate import main as evaluate

HALF = TRANSFORM * Affine.scale(0.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "best.safetensors")


def read(path: Path) -> np.ndarray:
    with rasterio.open(path) as dataset:
        return np.asarray(dataset.read(1))


# Sources


# Serves parts of files, as GDAL asks for them. A process of its own: GDAL waits for it holding Python's lock.
_SERVER = """
import functools, http.server, sys
from pathlib import Path


class Ranges(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        path, asked = Path(self.translate_path(self.path)), self.headers.get("Range")
        if asked is None or not path.is_file():
            return super().do_GET()
        first, _, last = asked.removeprefix("bytes=").partition("-")
        data = path.read_bytes()
        part = data[int(first) : int(last or len(data)) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Ranges, directory=sys.argv[1]))
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Serve the folder when called, which returns its address."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("GDAL_HTTP_TIMEOUT", "20")
    running = []

    def start() -> str:
        words = [sys.executable, "-c", _SERVER, str(tmp_path)]
        running.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return f"http://127.0.0.1:{running[0].stdout.readline().strip()}"

    yield start
    for process in running:
        process.kill()
        process.communicate()


def as_vrt(image: Path, _: Callable[[], str]) -> str:
    rasterio.shutil.copy(image, image.with_name("other.vrt"), driver="VRT")
    return str(image.with_name("other.vrt"))


def as_zip(image: Path, _: Callable[[], str]) -> str:
    with zipfile.ZipFile(image.with_name("images.zip"), "w") as archive:
        archive.write(image, "inner/other.tif")
    return f"/vsizip/{image.parent}/images.zip/inner/other.tif"


def as_url(image: Path, server: Callable[[], str]) -> str:
    rasterio.shutil.copy(image, image.with_name("other.tif"), driver="COG", blocksize=128)
    return f"{server()}/other.tif"


def as_curl(image: Path, server: Callable[[], str]) -> str:
    return f"/vsicurl/{as_url(image, server)}"


def as_stac(image: Path, _: Callable[[], str]) -> str:
    """Write an item whose image lies beside it."""
    (image.with_name("items")).mkdir()
    image.with_name("other.tif").write_bytes(image.read_bytes())
    data = {"href": "../other.tif", "roles": ["data"], "type": "image/tiff; application=geotiff"}
    item = {"type": "Feature", "stac_version": "1.0.0", "id": "other", "properties": {}, "assets": {"image": data}}
    path = image.with_name("items") / "item.json"
    path.write_text(json.dumps({**item, "geometry": None, "links": []}))
    return str(path)


def as_list(image: Path, _: Callable[[], str]) -> str:
    image.with_name("other.tif").write_bytes(image.read_bytes())
    image.with_name("list.csv").write_text("split,image\ntst,other.tif\n")
    return str(image.with_name("list.csv"))


def as_bands(image: Path, _: Callable[[], str]) -> str:
    for number, band in enumerate(noise((2, 300, 200)), 1):
        make_raster(image.with_name(f"other_B{number}.tif"), band)
    return "|".join(str(image.with_name(f"other_B{number}.tif")) for number in (1, 2))


@pytest.mark.parametrize("source", [as_vrt, as_zip, as_url, as_curl, as_stac, as_list, as_bands])
def test_the_map_is_that_of_the_plain_file(
    model: Path, tmp_path: Path, server: Callable[[], str], source: Callable[[Path, Callable[[], str]], str]
):
    image = make_raster(tmp_path / "scene.tif", noise((2, 300, 200)))
    name = source(image, server)
    assert classify(model, tmp_path / "maps", image, name) == 0
    maps = {path.name for path in (tmp_path / "maps").glob("*.tif")}
    assert maps == {"scene_classes.tif", "other_classes.tif"}
    np.testing.assert_array_equal(read(tmp_path / "maps/other_classes.tif"), read(tmp_path / "maps/scene_classes.tif"))
    assert len(np.unique(read(tmp_path / "maps/other_classes.tif"))) == 3


# Pixels of another size


def finer(image: np.ndarray) -> np.ndarray:
    """Return the same ground in pixels of half the side."""
    return image.repeat(2, axis=1).repeat(2, axis=2)


def test_a_finer_image_is_read_in_the_pixels_of_the_training(model: Path, tmp_path: Path, capsys):
    image = noise((2, 70, 90))
    image[:, 20:30, 10:40] = 0
    make_raster(tmp_path / "plain.tif", image, nodata=0)
    make_raster(tmp_path / "fine.tif", finer(image), HALF, nodata=0)
    assert classify(model, tmp_path / "maps", tmp_path / "plain.tif", tmp_path / "fine.tif", more=("--resample",)) == 0
    said = _said(capsys)
    assert "fine.tif: 180 x 140 pixels of 0.5 are read as 90 x 70 of 1" in said
    assert "the model was trained on" not in said
    with (
        rasterio.open(tmp_path / "maps/plain_classes.tif") as plain,
        rasterio.open(tmp_path / "maps/fine_classes.tif") as fine,
    ):
        np.testing.assert_array_equal(fine.read(1), plain.read(1))
        assert fine.transform == plain.transform
        assert fine.bounds == plain.bounds
        assert "RESAMPLED" in fine.tags()
        assert "RESAMPLED" not in plain.tags()
    assert classify(model, tmp_path / "own", tmp_path / "fine.tif") == 0
    assert read(tmp_path / "own/fine_classes.tif").shape == (140, 180)
    assert "--resample" in _said(capsys)


def test_a_coarser_image_gives_a_finer_map(model: Path, tmp_path: Path):
    image = make_raster(tmp_path / "coarse.tif", noise((2, 30, 40)), TRANSFORM * Affine.scale(2.5))
    more = ("classification.resample=true", "classification.window=32")
    assert classify(model, tmp_path / "maps", image, more=more) == 0
    with rasterio.open(image) as source, rasterio.open(tmp_path / "maps/coarse_classes.tif") as made:
        assert made.shape == (75, 100)
        assert made.bounds == source.bounds
        assert made.res == (1, 1)
        assert (made.read(1) != 255).all()


def test_pixels_that_cannot_be_compared_are_not_resampled(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 30, 40)), crs=None)
    code = classify(model, tmp_path / "maps", image, more=("--resample",))
    refused(capsys, code, 2, "scene.tif", "cannot be compared", "classification.resample")
    assert files(tmp_path / "maps") == set()


def test_a_resampled_map_is_evaluated_against_its_image(model: Path, tmp_path: Path, capsys):
    image = noise((2, 70, 90))
    image[:, :, 60:] = 0  # where the image has no data, nothing is known
    path = make_raster(tmp_path / "fine.tif", finer(image), HALF, nodata=0)
    assert classify(model, tmp_path / "maps", path, more=("--resample",)) == 0
    class_map = tmp_path / "maps/fine_classes.tif"
    truth = make_polygons(tmp_path / "truth.gpkg", [pixel_box(0, 0, 70, 90)], {"class": ["F"]})
    words = ["--maps", class_map, "--references", truth, "--attribute", "class", "--images", path]
    assert evaluate([*map(str, words), "--output", str(tmp_path / "found")]) == 0
    counts = np.bincount(read(class_map).ravel(), minlength=256)[:3].tolist()
    assert sum(counts) == 70 * 60
    rows = [line.split(",")[1:4] for line in (tmp_path / "found/confusion.csv").read_text().splitlines()[1:]]
    assert [[int(cell) for cell in row] for row in rows] == [[0, 0, 0], counts, [0, 0, 0]]


# Number types


@pytest.mark.parametrize("dtype", ["int16", "uint32", "float32", "uint16"])
def test_the_same_numbers_in_another_type(model: Path, tmp_path: Path, capsys, dtype: str):
    image = noise((2, 50, 60))
    make_raster(tmp_path / "plain.tif", image)
    make_raster(tmp_path / "other.tif", image.astype(dtype))
    code = classify(model, tmp_path / "maps", tmp_path / "other.tif")
    refused(capsys, code, 2, f"{dtype} values", "uint8", "classification.convert_dtype: true")
    more = ("classification.convert_dtype=true",)
    assert classify(model, tmp_path / "maps", tmp_path / "plain.tif", tmp_path / "other.tif", more=more) == 0
    np.testing.assert_array_equal(read(tmp_path / "maps/other_classes.tif"), read(tmp_path / "maps/plain_classes.tif"))
    with rasterio.open(tmp_path / "maps/other_classes.tif") as made:
        assert json.loads(made.tags()["READING"]) == {"dtype": "uint8", "exact": True}


def test_a_number_that_does_not_fit_is_named(model: Path, tmp_path: Path, capsys):
    image = noise((2, 50, 60), "int16")
    make_raster(tmp_path / "good.tif", image)
    image[1, 40, 30] = 300
    make_raster(tmp_path / "bad.tif", image)
    more = ("classification.convert_dtype=true",)
    code = classify(model, tmp_path / "maps", tmp_path / "good.tif", tmp_path / "bad.tif", more=more)
    refused(capsys, code, 4, "bad.tif", "the value 300 in int16", "uint8 holds unchanged")
    assert {path.name for path in (tmp_path / "maps").glob("*.tif")} == {"good_classes.tif"}


def test_scale_and_offset_are_applied_as_in_sampling(tmp_path: Path):
    """A model of samples with scale applied sees 0.5 * value + 10; a file with those numbers gives the same map."""
    from geoseg.geo.raster import Reading

    model = make_model(tmp_path / "m.safetensors", dtype="float32", reading=Reading(apply_scale=True))
    image = noise((2, 50, 60))
    with rasterio.open(make_raster(tmp_path / "scaled.tif", image), "r+") as dataset:
        dataset.scales, dataset.offsets = (0.5, 0.5), (10, 10)
    make_raster(tmp_path / "plain.tif", (0.5 * image + 10).astype(np.float32))
    assert classify(model, tmp_path / "maps", tmp_path / "scaled.tif", tmp_path / "plain.tif") == 0
    scaled, plain = (read(tmp_path / f"maps/{name}_classes.tif") for name in ("scaled", "plain"))
    np.testing.assert_array_equal(scaled, plain)
    raw = make_model(tmp_path / "raw.safetensors")
    assert classify(raw, tmp_path / "raw", tmp_path / "scaled.tif") == 0
    assert (read(tmp_path / "raw/scaled_classes.tif") != scaled).any()


def test_another_crs_is_no_obstacle(model: Path, tmp_path: Path):
    """A map has the CRS of its image, whatever that of the training was."""
    image = noise((2, 50, 60))
    make_raster(tmp_path / "plain.tif", image)
    make_raster(tmp_path / "other.tif", image, crs="EPSG:3857")
    assert classify(model, tmp_path / "maps", tmp_path / "plain.tif", tmp_path / "other.tif") == 0
    np.testing.assert_array_equal(read(tmp_path / "maps/other_classes.tif"), read(tmp_path / "maps/plain_classes.tif"))
    with rasterio.open(tmp_path / "maps/other_classes.tif") as made:
        assert made.crs == "EPSG:3857"


# Odd rasters


def _masked(folder: Path, internal: bool) -> Path:
    mask = np.ones((40, 50), bool)
    mask[:, :12] = False
    path = make_raster(folder / "scene.tif", noise((2, 40, 50)), mask=mask if internal else None)
    if not internal:
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(path, "r+") as dataset:
            dataset.write_mask(mask)
        assert (folder / "scene.tif.msk").is_file()
    return path


def _all_nodata(folder: Path) -> Path:
    return make_raster(folder / "scene.tif", np.zeros((2, 300, 9), np.uint8), nodata=0)


def _one_pixel(folder: Path) -> Path:
    return make_raster(folder / "scene.tif", noise((2, 1, 1)))


def _oblong_pixels(folder: Path) -> Path:
    return make_raster(folder / "scene.tif", noise((2, 40, 50)), TRANSFORM * Affine.scale(1, 2))


def _whole_world(folder: Path) -> Path:
    return make_raster(folder / "scene.tif", noise((2, 18, 36)), Affine(10, 0, -180, 0, -10, 90), "EPSG:4326")


def _with_rpcs(folder: Path) -> Path:
    path = make_raster(folder / "scene.tif", noise((2, 40, 50)), None, None)
    ones = [1.0] + [0.0] * 19
    scales = dict.fromkeys(("height_scale", "lat_scale", "line_scale", "long_scale", "samp_scale"), 1.0)
    offsets = dict.fromkeys(("height_off", "lat_off", "line_off", "long_off", "samp_off"), 0.0)
    terms = dict.fromkeys(("line_num_coeff", "line_den_coeff", "samp_num_coeff", "samp_den_coeff"), ones)
    with rasterio.open(path, "r+") as dataset:
        dataset.rpcs = rasterio.rpc.RPC(**scales, **offsets, **terms)
    return path


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize(
    ("make", "unknown"),
    [
        (lambda folder: _masked(folder, internal=True), 40 * 12),
        (lambda folder: _masked(folder, internal=False), 40 * 12),
        (_all_nodata, 300 * 9),
        (_one_pixel, 0),
        (_oblong_pixels, 0),
        (_whole_world, 0),
        (_with_rpcs, 0),
    ],
)
def test_odd_rasters_have_maps_on_their_own_grid(
    model: Path, tmp_path: Path, make: Callable[[Path], Path], unknown: int
):
    image = make(tmp_path)
    assert classify(model, tmp_path / "maps", image) == 0
    with rasterio.open(image) as source, rasterio.open(tmp_path / "maps/scene_classes.tif") as made:
        assert (made.transform, made.crs, made.shape) == (source.transform, source.crs, source.shape)
        assert (made.rpcs is None) == (source.rpcs is None)
        found = made.read(1) == 255
        assert np.count_nonzero(found) == unknown
        np.testing.assert_array_equal(found, source.dataset_mask() == 0)
