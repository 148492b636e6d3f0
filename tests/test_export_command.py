"""The export command: graphs that compute what the model file's network does, the STAC item, and the model card."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from test_classify_command import make_model

from geoseg.data.normalise import Normalisation
from geoseg.export import main
from geoseg.learn.exchange import InferenceGraph
from geoseg.learn.modelfile import METADATA_KEY, ModelSpec, load_model_file, model_hash, save_model_file
from geoseg.learn.stacitem import band_names
from geoseg.models import build_model
from geoseg.report.modelcard import model_card

NORMALISATION = Normalisation((100.0, 7.0), (50.0, 0.0))
TRAINED = {"epoch": 7, "score": 0.81, "monitor": "mean_iou", "iou": [0.9, 0.7, 0.5], "sizes": [1, 2]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_model(folder / "best.safetensors", normalisation=NORMALISATION, trained=TRAINED)


@pytest.fixture(scope="module")
def exported(model: Path) -> Path:
    assert main(["--model", str(model), "--formats", "torch", "stac", "card"]) == 0
    return model.parent / "export"


def expected_logits(model: Path, image: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return what classification computes: normalised as for training, then the network."""
    network, spec = load_model_file(model)
    with torch.no_grad():
        return network(torch.from_numpy(spec.normalisation.apply(image, valid))[None]).numpy()


def example(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return an image, its validity, and both as the graphs take them: NaN in one band is enough."""
    image = rng.integers(0, 255, (2, 40, 56)).astype(np.float32)
    valid = rng.random((40, 56)) < 0.9
    given = image.copy()
    given[1, ~valid] = np.nan
    return image, valid, given[None]


def test_the_program_gives_the_networks_logits(exported: Path, model: Path, rng: np.random.Generator):
    image, valid, given = example(rng)
    program = torch.export.load(exported / "model.pt2").module()
    with torch.no_grad():
        found = program(torch.from_numpy(given)).numpy()
        several = program(torch.from_numpy(np.concatenate([given, given, given]))).numpy()
    expected = expected_logits(model, image, valid)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(several[2:], expected, atol=1e-4 * np.abs(expected).max())


def test_onnx_gives_the_networks_logits(model: Path, tmp_path: Path, rng: np.random.Generator, capsys):
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install 'geoseg[export]'")
    import onnxruntime

    assert main(["--model", str(model), "--output", str(tmp_path), "--formats", "onnx"]) == 0
    assert "within" in capsys.readouterr().out
    image, valid, given = example(rng)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [entry.shape for entry in session.get_inputs()] == [["batch", 2, "height", "width"]]
    found = session.run(None, {"images": np.concatenate([given, given])})[0]
    expected = expected_logits(model, image, valid)
    np.testing.assert_allclose(found[1:], expected, atol=1e-4 * np.abs(expected).max())
    spec = ModelSpec.from_json(session.get_modelmeta().custom_metadata_map[METADATA_KEY])
    assert spec.class_names == ("background", "field", "water")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["checkpointed_unet", "reversible_unet"])
def test_memory_saving_networks_export_as_plain_graphs(tmp_path: Path, name: str):
    options = {"levels": 1, "width": 8, "depth": 1} if name == "reversible_unet" else {}
    torch.manual_seed(0)
    network = build_model(name, 2, 3, **options)
    _, spec = load_model_file(make_model(tmp_path / "other.safetensors"))
    plain = {entry: getattr(spec, entry) for entry in vars(spec)}
    path = tmp_path / "best.safetensors"
    save_model_file(path, network, ModelSpec(**{**plain, "model_name": name, "model_options": options}))
    formats = ["torch", "onnx"] if importlib.util.find_spec("onnxruntime") else ["torch"]
    assert main(["--model", str(path), "--formats", *formats]) == 0
    program = torch.export.load(tmp_path / "export/model.pt2")
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any("conv2d" in name for name in names)
    assert not any(
        word in name.lower() for name in names for word in ("autograd", "checkpoint", "rebuild", "higher_order")
    )


def test_the_graph_switches_memory_saving_off():
    network = build_model("reversible_unet", 2, 3, levels=1, width=8, depth=1)
    graph = InferenceGraph(network, NORMALISATION)
    assert graph.network.body.save_memory is False
    assert not graph.network.training
    assert graph.scale.flatten().tolist() == [pytest.approx(0.02), 1.0]  # a band that never varies is divided by 1


def test_the_item(exported: Path, model: Path):
    item = json.loads((exported / "stac_item.json").read_text())
    properties, assets = item["properties"], item["assets"]
    assert {"mlm:name", "mlm:architecture", "mlm:tasks", "mlm:input", "mlm:output"} <= set(properties)
    assert re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_.\-\s]+[a-zA-Z0-9]", properties["mlm:name"])
    (given,), (result,) = properties["mlm:input"], properties["mlm:output"]
    assert given["input"]["shape"] == [-1, 2, -1, -1]
    assert given["bands"] == [band["name"] for band in properties["bands"]] == ["red", "band-2"]
    assert given["value_scaling"] is None  # the graph does it
    assert [entry["name"] for entry in result["classification:classes"]] == ["background", "field", "water"]
    assert result["classification:classes"][0]["color_hint"] == "101010"
    assert "color_hint" not in result["classification:classes"][1]
    assert assets["weights"]["href"] == "../best.safetensors"
    assert (exported / assets["weights"]["href"]).resolve() == model.resolve()
    assert assets["weights"]["file:checksum"] == "1220" + model_hash(model)
    assert assets["torch"]["mlm:artifact_type"] == "torch.export.save"
    assert "mlm:model" in assets["torch"]["roles"]
    assert properties["mlm:total_parameters"] == sum(p.numel() for p in build_model("unetsmall", 2, 3).parameters())
    assert set(assets) == {"torch", "weights", "card"}


def test_the_item_of_the_weights_alone_says_how_to_scale(model: Path, tmp_path: Path):
    assert main(["--model", str(model), "--output", str(tmp_path), "--formats", "stac"]) == 0
    item = json.loads((tmp_path / "stac_item.json").read_text())
    scaling = item["properties"]["mlm:input"][0]["value_scaling"]
    assert scaling == [
        {"type": "z-score", "mean": 100.0, "stddev": 50.0},
        {"type": "z-score", "mean": 7.0, "stddev": 1.0},
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["stac_item.json"]


def test_the_card(exported: Path, model: Path):
    text = (exported / "model_card.md").read_text()
    for line in ("| red | 1 | 100 | 50 |", "| 1 | field | F | - |", "| score | 0.81 |", "| field | 0.7 |"):
        assert line in text
    assert model_hash(model) in text
    assert "51 pixels around it" in text
    assert "sizes" not in text  # a list that is not of the classes
    assert "pixels of about 1 x 1 units of EPSG:32618, with" in text
    assert text.index("| epoch | 7 |") > text.index("## How it was made") > text.index("| score |")


def test_a_strangers_names_stay_in_their_cells():
    classes = ({"id": 0, "name": "<script>x</script>"}, {"id": 1, "name": "a|b\n# c", "value": ["`rm`"]})
    spec = ModelSpec(
        "unetsmall", {}, 1, 2, classes, (1,), ("x|y",), "uint8", Normalisation((0.0,), (1.0,)), 255, 64, crs='P["q|r",'
        + "x" * 50 + "]", resolution=(1.0, 1.0)
    )  # fmt: skip
    text = model_card(spec, {}, None)
    assert "<script>" not in text
    assert "\n# c" not in text
    assert "a\\|b # c" in text
    assert "The file holds no scores." in text
    assert "the whole window" in text
    assert "units of q\\|r, with" in text


def test_bands_of_one_name_are_told_apart():
    spec = ModelSpec(
        "unetsmall", {}, 3, 2, (), (3, 1, 2), ("a", "a", None), "uint8", Normalisation((0.0,) * 3, (1.0,) * 3), 255, 64
    )
    assert band_names(spec) == ["a-3", "a-1", "band-2"]


def test_without_the_packages_onnx_is_left_out_or_refused(model, tmp_path: Path, monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "onnxscript" else real(name, *a))
    assert main(["--model", str(model), "--output", str(tmp_path / "x"), "--formats", "onnx"]) == 2
    assert "geoseg[export]" in capsys.readouterr().err
    assert not (tmp_path / "x/model.onnx").exists()


def test_a_folder_that_cannot_be_made_is_one_line(model, tmp_path: Path, capsys):
    (tmp_path / "afile").write_text("kept")
    for folder in (tmp_path / "afile", tmp_path / "afile/below", Path("/proc/x")):
        assert main(["--model", str(model), "--output", str(folder), "--formats", "card"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{folder}: found a folder that cannot be made")
    assert (tmp_path / "afile").read_text() == "kept"


def test_what_is_no_model_file_is_refused(tmp_path: Path, capsys):
    assert main(["--model", str(tmp_path / "none.safetensors")]) == 2
    assert "no such file" in capsys.readouterr().err
    torch.save({"a": torch.zeros(1)}, tmp_path / "pickle.pth")
    assert main(["--model", str(tmp_path / "pickle.pth")]) == 2
    assert "damaged or of another format" in capsys.readouterr().err
    assert not (tmp_path / "export").exists()
