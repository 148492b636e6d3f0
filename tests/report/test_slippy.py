"""The tiles of the map in a report: what they hold, where they lie, and how many bytes they take."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import TRANSFORM, UTM18, make_polygons, make_raster, pixel_box
from PIL import Image

from geoseg.assess.blocks import Reference
from geoseg.geo.ground import Ground
from geoseg.geo.vector import ClassMapping, read_labels
from geoseg.report.quicklook import Legend
from geoseg.report.scenemap import UNKNOWN_COLOUR, scene_layers
from geoseg.report.slippy import MapLayer, MapScene, slippy_map

COLOURS = ("#ff0000", "#00ff00", "#0000ff")


def content_of(scenes, **more) -> dict:
    html, script = slippy_map(scenes, len(scenes), [("a <b>", "#ff0000")], **more)
    assert "a &lt;b&gt;" in html
    assert "slippy-data" in script
    data = re.search(r'id="slippy-data">(.*?)</script>', html, re.S)
    return json.loads(data[1])


def tile(layer: dict, level: int, number: int) -> np.ndarray:
    kind = re.fullmatch(r"data:image/(png|webp);base64,", layer["prefix"])
    picture = Image.open(io.BytesIO(base64.b64decode(layer["tiles"][level][number])))
    assert picture.format.lower() == kind[1]
    return np.asarray(picture.convert("RGBA"))


def test_levels_and_tiles(rng: np.random.Generator):
    numbers = rng.integers(0, 4, (600, 300)).astype(np.uint8)  # 3 is beyond the colours
    smooth = np.broadcast_to(np.linspace(0, 255, 600)[:, None, None], (600, 300, 3)).astype(np.uint8)
    layers = [MapLayer("image", smooth), MapLayer("classes", numbers, COLOURS, False, 0.5)]
    (scene,) = content_of([MapScene("north", (1200, 600), layers)])["scenes"]
    assert (scene["name"], scene["height"], scene["width"]) == ("north", 1200, 600)
    levels = [(level["factor"], level["rows"], level["columns"]) for level in scene["levels"]]
    assert levels == [(2, 3, 2), (4, 2, 1), (8, 1, 1)]  # the pictures have half the raster's pixels
    image, classes = scene["layers"]
    assert (classes["shown"], classes["opacity"], classes["exact"]) == (False, 0.5, True)
    assert [len(tiles) for tiles in image["tiles"]] == [6, 2, 1]
    lower_right = tile(classes, 0, 5)
    part = numbers[512:, 256:]
    assert lower_right.shape == (88, 44, 4)
    table = np.array([[255, 0, 0, 255], [0, 255, 0, 255], [0, 0, 255, 255], [0, 0, 0, 0]])
    np.testing.assert_array_equal(lower_right[part < 3], table[part[part < 3]])
    assert (lower_right[part == 3, 3] == 0).all()
    assert tile(image, 2, 0).shape == (150, 75, 4)
    np.testing.assert_allclose(tile(image, 2, 0)[:, 0, 0], smooth[1::4, 0, 0], atol=8)


def test_tiles_with_nothing_to_see_are_left_out():
    numbers = np.full((256, 512), 9, np.uint8)
    numbers[5, 5] = 1
    (scene,) = content_of([MapScene("a", (256, 512), [MapLayer("classes", numbers, COLOURS)])])["scenes"]
    assert [bool(text) for text in scene["layers"][0]["tiles"][0]] == [True, False]


def test_bytes_are_bounded(rng: np.random.Generator):
    noise = rng.integers(0, 256, (1500, 1500, 3)).astype(np.uint8)
    scenes = [MapScene(name, (1500, 1500), [MapLayer("image", noise)]) for name in "ab"]
    whole = content_of(scenes[:1])["scenes"][0]
    assert len(whole["levels"]) == 4
    few = content_of(scenes, max_bytes=600_000)["scenes"]
    assert [len(scene["levels"]) for scene in few] == [2, 2]  # 300 kB each: not the levels of 1500 and 750 pixels
    assert few[0]["levels"] == whole["levels"][2:]
    assert len(json.dumps(few)) < 1_000_000
    assert len(content_of(scenes[:1], max_bytes=1)["scenes"][0]["levels"]) == 1


def test_layers_of_several_sizes_are_refused():
    layers = [MapLayer("a", np.zeros((5, 5), np.uint8), COLOURS), MapLayer("b", np.zeros((5, 6), np.uint8), COLOURS)]
    with pytest.raises(ValueError, match="several sizes"):
        content_of([MapScene("x", (5, 5), layers)])


def test_the_end_of_the_data_cannot_be_forged():
    scene = MapScene("</script><script>alert(1)", (2, 2), [MapLayer("a", np.zeros((2, 2), np.uint8), COLOURS)])
    html, _ = slippy_map([scene], 1, [])
    assert html.count("</script>") == 1
    assert content_of([scene])["scenes"][0]["name"] == scene.name


def test_layers_of_a_scene(tmp_path: Path, rng: np.random.Generator):
    image = make_raster(tmp_path / "i.tif", rng.integers(1, 255, (3, 20, 30)).astype(np.uint8), nodata=0)
    classes = np.zeros((20, 30), np.uint8)
    classes[:5], classes[5:8] = 1, 255
    class_map = make_raster(tmp_path / "m.tif", classes, nodata=255)
    difference = make_raster(tmp_path / "d.tif", classes * 0 + 2, nodata=255)
    polygons = make_polygons(tmp_path / "r.gpkg", [pixel_box(0, 0, 20, 10)], {"c": [1]})
    labels = read_labels(polygons, "c", UTM18, ClassMapping(num_classes=2))
    legend = Legend(("background", "field"), COLOURS[:2])
    made = scene_layers("n", class_map, legend, Reference(Ground(labels), image), difference)
    assert made.size == (20, 30)
    assert [layer.name for layer in made.layers] == ["image", "reference", "class map", "difference"]
    reference, mapped = made.layers[1], made.layers[2]
    assert mapped.colours[2] == UNKNOWN_COLOUR
    # Background is transparent (255), the class has its number, what has no class is grey (2).
    assert [int(mapped.picture[row, 0]) for row in (0, 6, 9)] == [1, 2, 255]
    assert [int(reference.picture[0, col]) for col in (0, 9, 10)] == [1, 1, 255]
    assert made.layers[3].picture.max() == 2
    thinned = scene_layers("n", class_map, legend, Reference(Ground(labels)), max_side=15)
    assert [layer.picture.shape for layer in thinned.layers] == [(10, 15), (10, 15)]
    assert thinned.size == (20, 30)
    assert TRANSFORM.a == 1
