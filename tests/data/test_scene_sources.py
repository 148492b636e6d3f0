"""Lists of scenes beyond the four classic columns: folders, patterns, bands, areas, and STAC."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geoseg.data.scenes import Scene, read_scenes
from geoseg.errors import DataError


def table(folder: Path, *lines: str) -> list[Scene]:
    (folder / "prep.csv").write_text("\n".join(lines), encoding="utf-8")
    return read_scenes(folder / "prep.csv")


def problems_of(folder: Path, *lines: str) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        table(folder, *lines)
    return caught.value.problems


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_all_columns(tmp_path: Path) -> None:
    head = "weight,split,image,labels,attribute,layer,aoi,bands,nodata"
    (scene,) = table(tmp_path, head, "2.5,trn,a.tif,l.gpkg,cls,ground,aoi.gpkg,3 2 nir,-9999")
    assert scene == Scene(
        tmp_path / "a.tif",
        tmp_path / "l.gpkg",
        "cls",
        "trn",
        "ground",
        tmp_path / "aoi.gpkg",
        (3, 2, "nir"),
        -9999.0,
        2.5,
    )


def test_columns_by_their_long_names(tmp_path: Path) -> None:
    (scene,) = table(tmp_path, "image,label raster,split,area of interest", "a.tif,l.tif,val,z.gpkg")
    assert (scene.labels, scene.aoi, scene.attribute) == (tmp_path / "l.tif", tmp_path / "z.gpkg", None)


def test_numbers_that_are_none_are_named_with_the_line(tmp_path: Path) -> None:
    lines = ("image,labels,split,nodata,weight", "a.tif,l,trn,none,0", "b.tif,l,trn,nan,inf")
    assert [line.split("prep.csv, ")[1].split(",")[0] for line in problems_of(tmp_path, *lines)] == [
        "line 2: found nodata 'none'",
        "line 2: found weight '0'",
        "line 3: found weight 'inf'",
    ]


def test_names_that_gdal_opens_are_kept(tmp_path: Path) -> None:
    touch(tmp_path, "f.nc")
    scenes = table(
        tmp_path,
        "https://host/a.tif,https://host/l.geojson,c,trn",
        "netcdf:f.nc:v,l.gpkg,c,trn",
        "/vsizip/z.zip/a.tif,l,c,val",
    )
    assert [scene.image for scene in scenes] == [
        "https://host/a.tif",
        f'netcdf:"{tmp_path}/f.nc":v',
        "/vsizip/z.zip/a.tif",
    ]
    assert scenes[0].labels == "https://host/l.geojson"
    assert scenes[0].scene_id.startswith("a-")
    assert scenes[1].files() == [tmp_path / "f.nc", tmp_path / "l.gpkg"]


def test_a_folder_stands_for_its_rasters(tmp_path: Path) -> None:
    touch(tmp_path, "in/b.tif", "in/a.TIF", "in/a.tif.aux.xml", "in/notes.txt", "in/.hidden.tif", "in/deep/c.tif")
    scenes = table(tmp_path, "in,labels.gpkg,c,trn")
    assert [(scene.name, scene.labels) for scene in scenes] == [
        ("a.TIF", tmp_path / "labels.gpkg"),
        ("b.tif", tmp_path / "labels.gpkg"),
    ]
    assert len({scene.scene_id for scene in scenes}) == 2


def test_a_pattern_with_labels_by_stem(tmp_path: Path) -> None:
    touch(tmp_path, "x/one.tif", "x/two.tif", "x/one_label.tif", "x/two_label.tif", "x/one.tif.ovr")
    scenes = table(tmp_path, "image,labels,split,aoi", "x/*.tif,x/{stem}_label.tif,trn,aoi/{stem}.gpkg")
    assert [(scene.name, Path(scene.labels or "").name, Path(scene.aoi or "").name) for scene in scenes] == [
        ("one.tif", "one_label.tif", "one.gpkg"),
        ("two.tif", "two_label.tif", "two.gpkg"),
    ]


def test_a_pattern_or_folder_without_rasters(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = problems_of(tmp_path, "empty,l,c,trn", "x/*.tif,l,c,trn")
    assert found[0].startswith(f"{tmp_path}/prep.csv, line 1: found no raster in {tmp_path}/empty, expected a folder")
    assert found[1].startswith(
        f"{tmp_path}/prep.csv, line 2: found no raster in {tmp_path}/x/*.tif, expected a pattern"
    )


def test_the_same_image_by_two_rows_is_still_found(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.tif")
    (line,) = problems_of(tmp_path, "in,l.gpkg,c,trn", "in/*.tif,l.gpkg,c,val")
    assert "line 2: found the scene of line 1 again" in line


def test_one_file_per_band(tmp_path: Path) -> None:
    (joined,) = table(tmp_path, "s_B02.tif | s_B03.tif,l.gpkg,c,trn")
    (filled,) = table(tmp_path, "image,labels,attribute,split,bands", "s_{band}.tif,l.gpkg,c,trn,B02|B03")
    assert joined == filled
    assert joined.image == f"{tmp_path}/s_B02.tif|{tmp_path}/s_B03.tif"
    assert joined.scene_id == filled.scene_id
    assert joined.scene_id.startswith("s-")
    assert filled.bands is None
    (line,) = problems_of(tmp_path, "image,labels,split", "s_{band}.tif,l.gpkg,trn")
    assert "{band} in the image, but no bands" in line


def test_what_makes_a_scene_another_one(tmp_path: Path) -> None:
    def identity(**more: Any) -> str:
        return Scene(tmp_path / "a.tif", tmp_path / "l.gpkg", "c", "trn", **more).scene_id

    plain = identity()
    assert identity(where="line 3") == identity(weight=2.0) == plain
    assert len({plain, identity(aoi=tmp_path / "z.gpkg"), identity(bands=(1,)), identity(layer="x")}) == 4


def test_a_change_of_a_shapefile_shows_in_any_of_its_files(tmp_path: Path) -> None:
    touch(tmp_path, "a.tif", "l.shp", "l.dbf", "l.prj")
    scene = Scene(tmp_path / "a.tif", tmp_path / "l.shp", "c", "trn")
    assert [Path(name).name for name in scene.files()] == ["a.tif", "l.shp", "l.dbf", "l.prj"]


# STAC


def item(name: str, split: str | None = "train", **changes: Any) -> dict[str, Any]:
    """Return a STAC item with two image assets, labels, a thumbnail."""
    properties: dict[str, Any] = {"label:properties": ["landcover"]} | ({"ml-aoi:split": split} if split else {})
    assets = {
        "B02": {"href": f"./{name}_B02.tif", "roles": ["data"]},
        "B03": {"href": f"./{name}_B03.tif", "roles": ["data", "reflectance"]},
        "thumbnail": {"href": f"./{name}.png", "type": "image/png", "roles": ["thumbnail"]},
        "labels": {"href": f"./{name}.geojson", "type": "application/geo+json"},
    }
    made = {"type": "Feature", "stac_version": "1.0.0", "id": name, "geometry": None, "links": []}
    return {**made, "properties": properties, "assets": assets, **changes}


def stac(folder: Path, content: Any, name: str = "scenes.json") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return folder / name


def test_an_item_is_a_scene(tmp_path: Path) -> None:
    (scene,) = read_scenes(stac(tmp_path, item("a")))
    assert scene == Scene(f"{tmp_path}/a_B02.tif|{tmp_path}/a_B03.tif", tmp_path / "a.geojson", "landcover", "trn")


def test_an_item_collection_says_more_about_its_items(tmp_path: Path) -> None:
    assets = {
        "image": {"href": "https://host/b.tif?sig=1", "type": "image/tiff; application=geotiff"},
        "truth": {"href": f"file://{tmp_path}/b%20c.tif", "roles": ["labels-raster"]},
        "aoi": {"href": "aoi.gpkg"},
    }
    more = {"geoseg:split": "val", "geoseg:attribute": "cls", "geoseg:weight": 3, "geoseg:nodata": 0}
    features = [item("a", "test"), item("b", properties=more, assets=assets)]
    first, second = read_scenes(stac(tmp_path, {"type": "FeatureCollection", "features": features}))
    assert first.split == "tst"
    assert second == Scene(
        "https://host/b.tif?sig=1",
        tmp_path / "b c.tif",
        "cls",
        "val",
        aoi=tmp_path / "aoi.gpkg",
        nodata=0.0,
        weight=3.0,
    )


def test_a_catalog_leads_to_its_items(tmp_path: Path) -> None:
    stac(tmp_path, item("a"), "sub/a/a.json")
    stac(tmp_path, item("b", "validate"), "sub/b.json")
    links = [{"rel": "item", "href": "./a/a.json"}, {"rel": "item", "href": "./b.json"}, {"rel": "root", "href": "x"}]
    stac(tmp_path, {"type": "Collection", "links": [*links, {"rel": "child", "href": "../catalog.json"}]}, "sub/c.json")
    top = stac(tmp_path, {"type": "Catalog", "links": [{"rel": "child", "href": "sub/c.json"}]}, "catalog.json")
    scenes = read_scenes(top)
    assert [(scene.labels, scene.split) for scene in scenes] == [
        (tmp_path / "sub/a/a.geojson", "trn"),
        (tmp_path / "sub/b.geojson", "val"),
    ]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (item("a", None), "item a: found no split, expected trn, val or tst in the property geoseg:split"),
        (item("a", "holdout"), "found split 'holdout'"),
        (item("a", assets={}), "found no asset of an image"),
        (item("a", assets={"data": {"roles": ["data"]}}), "found an item that cannot be understood (KeyError('href'))"),
        (item("a", properties={"geoseg:split": "trn", "geoseg:weight": 0}), "found geoseg:weight 0.0"),
        (item("a", properties={"geoseg:split": "trn", "geoseg:nodata": "none"}), "cannot be understood"),
        ({"type": "FeatureCollection", "features": []}, "found no item"),
        ({"type": "Point"}, "found JSON of type 'Point'"),
        ([], "found JSON that is no object"),
    ],
)
def test_items_that_are_no_scene(tmp_path: Path, content: Any, found: str) -> None:
    with pytest.raises(DataError) as caught:
        read_scenes(stac(tmp_path, content))
    assert found in caught.value.problems[0]


def test_a_stac_file_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file, expected a STAC file"):
        read_scenes(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(DataError, match="found no JSON"):
        read_scenes(tmp_path / "bad.json")
