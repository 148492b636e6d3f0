"""Every shipped config loads, the classic one means what it says, and the reference page is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import make_config_docs
from geoseg.config import Config, load_config
from geoseg.models.options import MODEL_OPTIONS

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "config").glob("*.yaml"))


def test_there_are_configs() -> None:
    assert {"classic.yaml", "minimal.yaml", "multispectral.yaml", "small_gpu.yaml"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_shipped_config_loads_and_survives_saving(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    config.save(tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_shipped_config_begins_with_a_comment(path: Path) -> None:
    assert path.read_text().startswith("# ")


def test_shipped_configs_mean_the_same_to_any_yaml_reader() -> None:
    # Users look at the files with other tools too, where an unquoted `no` would be false.
    for path in FILES:
        read = yaml.safe_load(path.read_text().replace("1e-", "1.0e-"))
        ours = load_config(path).as_dict()
        for section, keys in read.items():
            for key, value in keys.items():
                if isinstance(value, bool | int | float):
                    assert ours[section][key] == value, f"{path.name}: {section}.{key}"


def test_the_classic_file_means_the_same() -> None:
    folder = ROOT / "config"
    config = load_config(folder / "classic.yaml")
    assert config.global_.model_dump(exclude_unset=True) == {
        "samples_size": 256,
        "num_classes": 5,
        "data_path": folder / "data",
        "number_of_bands": 4,
        "model_name": "unetsmall",
    }
    assert config.sample.model_dump(exclude_unset=True) == {
        "prep_csv_file": folder / "prep.csv",
        "samples_dist": 200,
        "remove_background": True,
        "mask_input_image": False,
    }
    assert config.training.model_dump(exclude_unset=True) == {
        "output_path": folder / "runs",
        "num_trn_samples": 3356,
        "num_val_samples": 1370,
        "batch_size": 32,
        "num_epochs": 100,
        "learning_rate": 0.0001,
        "weight_decay": 0.0,
        "step_size": 4,
        "gamma": 0.9,
        "class_weights": False,
    }
    assert config.classification.working_folder == folder / "to_classify"
    assert config.classification.state_dict_path == folder / "runs/unetsmall/best.safetensors"
    options = {"dropout": False, "probability": 0.2, "pretrained": False}
    assert config.models.unet.model_dump() == config.models.unetsmall.model_dump() == options
    assert config.models.checkpointed_unet.model_dump(exclude_unset=True) == options
    assert config.models.ternausnet.pretrained == folder / "models/vgg11.pth"
    assert config.models.reversible_unet.model_fields_set == set()


def test_the_reference_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_config_docs.main(["--check"]) == 0, "run `make docs`"
    assert capsys.readouterr().err == ""


def test_a_stale_reference_page_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_config_docs, "TARGET", tmp_path / "docs" / "config.md")
    assert make_config_docs.main(["--check"]) == 1
    assert make_config_docs.main([]) == 0
    assert make_config_docs.main(["--check"]) == 0
    (tmp_path / "docs" / "config.md").write_text("old")
    assert make_config_docs.main(["--check"]) == 1
    assert "make docs" in capsys.readouterr().err


def test_every_key_has_a_description_and_a_row() -> None:
    page = make_config_docs.make_page()
    sections = [field.annotation for field in Config.model_fields.values()]
    for model in [*sections, *MODEL_OPTIONS.values()]:
        assert isinstance(model, type)
        for name, field in model.model_fields.items():
            if name in MODEL_OPTIONS:
                continue
            assert field.description, name
            assert field.description.endswith("."), name
            assert f"| `{name}` |" in page
