from __future__ import annotations

from pathlib import Path

import pytest

from geoseg.data.scenes import Scene, read_scenes
from geoseg.errors import DataError


def _read(folder: Path, text: str, encoding: str = "utf-8") -> list[Scene]:
    path = folder / "prep.csv"
    path.write_bytes(text.encode(encoding))
    return read_scenes(path)


def _problems(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        _read(folder, text)
    return caught.value.problems


ROW = ("a.tif", "a.gpkg", "cls", "trn")


def test_row_without_header(tmp_path: Path) -> None:
    (scene,) = _read(tmp_path, "a.tif,a.gpkg,cls,trn\n")

    assert scene == Scene(tmp_path / "a.tif", tmp_path / "a.gpkg", "cls", "trn")


@pytest.mark.parametrize(
    "text",
    [
        "image,labels,attribute,split\na.tif,a.gpkg,cls,trn\n",
        "image; labels ;attribute;split\r\n a.tif ;a.gpkg; cls ;trn\r\n",
        "image\tlabels\tattribute\tsplit\na.tif\ta.gpkg\tcls\ttrn\n",
        "split,attribute,labels,image\ntrn,cls,a.gpkg,a.tif\n",
        "Image,Labels,Attribute,Split\n\na.tif,a.gpkg,cls,TRN\n\n",
        '"image","labels","attribute","split"\n"a.tif","a.gpkg","cls","trn"\n',
        "image,labels,attribute,split,layer\na.tif,a.gpkg,cls,trn,\n",
    ],
    ids=["comma", "semicolon and spaces", "tab", "other order", "capitals and blank lines", "quoted", "layer"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_ways_to_write_the_same(tmp_path: Path, text: str, encoding: str) -> None:
    (scene,) = _read(tmp_path, text, encoding)

    assert (scene.image.name, scene.labels.name, scene.attribute, scene.split) == ROW


def test_text_that_looks_like_a_missing_value_stays_text(tmp_path: Path) -> None:
    scenes = _read(tmp_path, "NA/a.tif,NA/nan.gpkg,NA,trn\nb.tif,b.gpkg,None,val\n")

    assert [s.attribute for s in scenes] == ["NA", "None"]
    assert scenes[0].image == tmp_path / "NA" / "a.tif"
    assert scenes[0].labels == tmp_path / "NA" / "nan.gpkg"


def test_attributes_called_like_columns_are_no_header(tmp_path: Path) -> None:
    (scene,) = _read(tmp_path, "a.tif,a.gpkg,split,trn\n")

    assert scene.attribute == "split"


def test_paths_are_relative_to_the_list_not_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "list" / "prep.csv").write_text("../a.tif,/data/a.gpkg,cls,trn\n")
    monkeypatch.chdir(tmp_path / "list")
    first = read_scenes("prep.csv")
    monkeypatch.chdir(tmp_path / "elsewhere")

    second = read_scenes(Path("../list/prep.csv"))

    assert first[0].image.resolve() == second[0].image.resolve() == tmp_path / "a.tif"
    assert second[0].labels == Path("/data/a.gpkg")
    assert first[0].scene_id == second[0].scene_id


def test_empty_cells_mean_none(tmp_path: Path) -> None:
    (scene,) = _read(tmp_path, "a.tif,,,tst\n")

    assert scene.labels is None
    assert scene.attribute is None


def test_a_path_with_commas_in_quotes(tmp_path: Path) -> None:
    (scene,) = _read(tmp_path, '"a,b.tif",a.gpkg,cls,trn\n')

    assert scene.image.name == "a,b.tif"


def test_splits_by_their_common_names(tmp_path: Path) -> None:
    names = ["trn", "TRAIN", "training", "val", "Valid", "validation", "tst", "test"]
    scenes = _read(tmp_path, "".join(f"{i}.tif,{i}.gpkg,cls,{name}\n" for i, name in enumerate(names)))

    assert [scene.split for scene in scenes] == ["trn"] * 3 + ["val"] * 3 + ["tst"] * 2


def test_all_problems_at_once_with_their_lines(tmp_path: Path) -> None:
    problems = _problems(
        tmp_path, "image,labels,attribute,split\na.tif,a.gpkg,cls,training set\n\n,b.gpkg,cls,val\nc.tif,c\n"
    )

    assert len(problems) == 3
    assert "line 2" in problems[0]
    assert "'training set'" in problems[0]
    assert "trn, val or tst" in problems[0]
    assert "line 4" in problems[1]
    assert "no image" in problems[1]
    assert "line 5" in problems[2]
    assert "2 cell(s)" in problems[2]


def test_header_with_a_wrong_name_is_explained(tmp_path: Path) -> None:
    (line,) = _problems(tmp_path, "imgae,labels,attribute,split\na.tif,a.gpkg,cls,trn\n")

    assert "'imgae'" in line
    assert "imgae for image" in line


def test_one_column_header_is_explained(tmp_path: Path) -> None:
    (line,) = _problems(tmp_path, "image\na.tif\n")

    assert "header of 'image'" in line
    assert "separate its columns" in line


def test_too_many_cells(tmp_path: Path) -> None:
    (line,) = _problems(tmp_path, "my,image.tif,a.gpkg,cls,trn,layer,more\n")

    assert "7 cells" in line
    assert "quotes" in line


def test_the_same_scene_twice(tmp_path: Path) -> None:
    (line,) = _problems(tmp_path, "a.tif,a.gpkg,cls,trn\nb.tif,b.gpkg,cls,trn\n./a.tif,a.gpkg,cls,val\n")

    assert "line 3" in line
    assert "line 1" in line


@pytest.mark.parametrize("text", ["", "\n\n", "image,labels,attribute,split\n"])
def test_no_scene(tmp_path: Path, text: str) -> None:
    (line,) = _problems(tmp_path, text)

    assert "no scene" in line


def test_missing_file_names_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DataError, match=str(tmp_path / "prep.csv")):
        read_scenes("prep.csv")


def test_other_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prep.csv").write_bytes("forêt.tif,a.gpkg,cls,trn\n".encode("latin-1"))

    with pytest.raises(DataError, match="UTF-8"):
        read_scenes(tmp_path / "prep.csv")


def test_scene_id_depends_on_what_makes_a_scene() -> None:
    base = Scene(Path("/d/a b.tif"), Path("/d/a.gpkg"), "cls", "trn")
    others = [
        Scene(Path("/e/a b.tif"), Path("/d/a.gpkg"), "cls", "trn"),
        Scene(Path("/d/a b.tif"), Path("/d/b.gpkg"), "cls", "trn"),
        Scene(Path("/d/a b.tif"), Path("/d/a.gpkg"), "type", "trn"),
        Scene(Path("/d/a b.tif"), Path("/d/a.gpkg"), "cls", "trn", layer="x"),
    ]

    ids = {base.scene_id, *(scene.scene_id for scene in others)}

    assert len(ids) == 5
    assert all(name.startswith("a_b-") and len(name) == len("a_b-") + 8 for name in ids)
    assert base.scene_id == Scene(Path("/d/a b.tif"), Path("/d/a.gpkg"), "cls", "val").scene_id
