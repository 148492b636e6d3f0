"""From a file and overrides to a resolved, frozen Config; every problem in one report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from geoseg.config import Config, load_config, yamltext
from geoseg.errors import ConfigError
from geoseg.models.options import MODEL_OPTIONS

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str = "", *overrides: str) -> Config:
        path = tmp_path / "my.yaml"
        path.write_text(dedent(text))
        return load_config(path, overrides)

    return load


def problems(load: Load, text: str, *overrides: str) -> Sequence[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return caught.value.problems


@pytest.mark.parametrize("text", ["", "# nothing\n", "training:\n", "training: {}\nmodels:\n  unet:\n", "---\n"])
def test_an_empty_file_or_section_means_the_defaults(load: Load, tmp_path: Path, text: str) -> None:
    config = load(text)
    assert config.training.learning_rate == 1e-4
    assert config.global_.samples_size == config.sample.samples_dist == 256
    assert config.global_.num_classes == 2
    assert config.training.run_name == "unetsmall"
    assert config.classification.state_dict_path == tmp_path / "runs/unetsmall/best.safetensors"
    assert config.evaluation.prep_csv_file == tmp_path / "prep.csv"
    assert config.evaluation.output_path == tmp_path / "maps/evaluation"


def test_defaults_follow_the_keys_they_depend_on(load: Load, tmp_path: Path) -> None:
    config = load(
        """
        global: {samples_size: 128, classes: [background, road, roof], bands: [3, 2], model_name: unet}
        training: {output_path: out}
        classification: {output_path: m}
        sample: {prep_csv_file: sub/p.csv}
        """
    )
    assert config.sample.samples_dist == 128
    assert config.global_.num_classes == 3
    assert config.global_.number_of_bands == 2
    assert config.classification.state_dict_path == tmp_path / "out/unet/best.safetensors"
    assert config.evaluation.maps == tmp_path / "m"
    assert config.evaluation.prep_csv_file == tmp_path / "sub/p.csv"


def test_without_a_file_paths_are_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(None, ["training.output_path=out"])
    assert config.training.output_path == tmp_path / "out"
    assert config.global_.data_path == tmp_path / "data"


def test_the_same_file_finds_the_same_paths_from_any_folder(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load("training: {output_path: ../runs}")
    monkeypatch.chdir("/")
    relative = os.path.relpath(tmp_path / "my.yaml", "/")
    assert load_config(relative) == first
    assert first.training.output_path == tmp_path.parent / "runs"


def test_paths_are_expanded_and_remote_ones_kept(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PROJECT", "p1")
    config = load(
        """
        global: {data_path: ~/data}
        training: {output_path: /scratch/$PROJECT}
        classification:
          working_folder: s3://bucket/folder
          images: [/vsizip//a/b.zip/c.tif, https://host/x.tif, 'tiles/*.tif', /abs/../y.tif, "a, b.tif"]
        models: {unet: {pretrained: w.pth}, ternausnet: {pretrained: "${PROJECT}/w.pth"}}
        """
    )
    assert config.global_.data_path == Path("/home/me/data")
    assert config.training.output_path == Path("/scratch/p1")
    assert config.classification.working_folder == "s3://bucket/folder"
    assert config.classification.images == (
        "/vsizip//a/b.zip/c.tif",
        "https://host/x.tif",
        tmp_path / "tiles/*.tif",
        Path("/y.tif"),
        tmp_path / "a, b.tif",
    )
    assert config.models.unet.pretrained == tmp_path / "w.pth"
    assert config.models.ternausnet.pretrained == tmp_path / "p1/w.pth"


def test_a_variable_that_is_not_set_and_a_remote_output_are_refused(load: Load) -> None:
    found = problems(
        load, "training: {output_path: $NO_SUCH_VARIABLE/x}\nclassification: {output_path: s3://bucket/maps}"
    )
    assert "set the environment variable NO_SUCH_VARIABLE" in found[0]
    assert "use a path on this machine" in found[1]


def test_the_config_is_frozen(load: Load) -> None:
    config = load()
    with pytest.raises(ValidationError):
        config.training.batch_size = 3
    with pytest.raises(ValidationError):
        config.models.unet.dropout = True


@pytest.mark.parametrize("written", ["1e-4", "1.0e-4", "'1e-4'", "0.0001"])
def test_a_learning_rate_is_a_number_however_it_is_written(load: Load, written: str) -> None:
    assert load(f"training: {{learning_rate: {written}}}").training.learning_rate == 1e-4


def test_all_problems_are_reported_together(load: Load, tmp_path: Path) -> None:
    found = problems(
        load,
        """
        global: {num_classes: 3, samples_sice: 5, ignore_value: 2}
        training: {class_weights: [1, 2], resume: yes}
        trainig: {}
        models: {unet: {dropout: 3}}
        """,
        "training.devices=none",
    )
    file = tmp_path / "my.yaml"
    starts = [
        f"{file}: global.samples_sice: found an unknown key, expected one of samples_size, ",
        f"{file}: training.class_weights: found 2 weights, expected 3, one per class in the order of the ids; ",
        f"{file}: global.ignore_value: found 2, the id of a class, expected a value outside 0 to 2; ",
        f"{file}: training.resume: found 'yes', expected true or false; write true",
        "override training.devices: found 'none', expected a whole number from 1 to 1024; ",
        f"{file}: trainig: found an unknown section, expected one of global, sample, training, ",
        f"{file}: models.unet.dropout: found 3, expected true or false; write true or false, without quotes",
    ]
    for start in starts:
        assert sum(line.startswith(start) for line in found) == 1, start
    assert len(found) == len(starts)
    assert found[0].endswith("did you mean samples_size?")


def test_conflicts_with_a_key_that_is_wrong_itself_are_not_reported(load: Load) -> None:
    found = problems(load, "global: {num_classes: five}\ntraining: {class_weights: [1, 2, 3]}")
    assert len(found) == 1
    assert "global.num_classes" in found[0]


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        ("training: {batchsize: 1}", "training.batchsize", "did you mean batch_size?"),
        ("training: {Batch-Size: 1}", "training.Batch-Size", "did you mean batch_size?"),
        ("training: {samples_size: 1}", "training.samples_size", "it belongs in global"),
        ("num_epochs: 1", "num_epochs", "it belongs in training"),
        ("classificaton: {}", "classificaton", "did you mean classification?"),
        ("training: {xyz: 1}", "training.xyz", "remove it"),
        ("models: {unett: {}}", "models.unett", "did you mean unet?"),
        ("models: {unet: {drop_out: true}}", "models.unet.drop_out", "did you mean dropout?"),
        ("global: {classes: [a, {name: b, color: x}]}", "global.classes[1].color", "did you mean colour?"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_known_one(load: Load, text: str, key: str, remedy: str) -> None:
    (line,) = problems(load, text)
    assert f": {key}: found an unknown " in line
    assert line.endswith(f"; {remedy}")


@pytest.mark.parametrize("text", ["- a\n- b", "just text", "3"])
def test_a_file_that_is_no_mapping_is_refused(load: Load, text: str) -> None:
    (line,) = problems(load, text)
    assert "expected sections such as global: and training:" in line


@pytest.mark.parametrize("section", ["global: 3", "training: [batch_size, 3]", "models: text", "models: {unet: 3}"])
def test_a_section_that_is_no_mapping_is_refused(load: Load, section: str) -> None:
    (line,) = problems(load, section)
    assert "expected a section of keys" in line


def test_a_key_twice_is_refused(load: Load) -> None:
    (line,) = problems(load, "training:\n  learning_rate: 1\n  learning_rate: 2\n")
    assert "'learning_rate' twice (lines 2 and 3)" in line


def test_a_missing_file_names_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_config("no/such.yaml")
    assert caught.value.problems == (
        f"no/such.yaml: found no file {tmp_path}/no/such.yaml, expected a YAML config; correct the path",
    )


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\x00\x01\xff\xfe")
    with pytest.raises(ConfigError, match=r"x\.yaml: found"):
        load_config(path)


def test_inference_is_another_name_of_classification(load: Load, tmp_path: Path) -> None:
    assert load("inference: {overlap: 32}").classification.overlap == 32
    assert load("", "inference.overlap=16").classification.overlap == 16
    assert load("inference: {overlap: 32}", "classification.overlap=8").classification.overlap == 8
    (line,) = problems(load, "inference: {overlap: 3}\nclassification: {window: 64}")
    assert "two names of one section" in line


def test_options_of_a_model_that_is_not_chosen_are_checked_for_form_alone(load: Load) -> None:
    load("models: {ternausnet: {pretrained: ./no/such/file.pth}}")
    (line,) = problems(load, "models: {ternausnet: {pretrained: true}}")
    assert "models.ternausnet.pretrained: found true, expected false, or the path of a weight file" in line


def test_the_options_of_the_chosen_model_are_at_hand(load: Load, tmp_path: Path) -> None:
    config = load("models: {unet: {dropout: true, pretrained: w.pth}}", "global.model_name=unet")
    assert config.model_options() == {"dropout": True, "probability": 0.2, "pretrained": tmp_path / "w.pth"}


def test_the_models_section_knows_every_model(load: Load) -> None:
    models = load().models
    assert {name: type(getattr(models, name)) for name in type(models).model_fields} == MODEL_OPTIONS


def test_a_saved_config_loads_to_the_same_from_another_folder(load: Load, tmp_path: Path) -> None:
    config = load(
        """
        global:
          classes: [background, {name: "no", value: [1, "01"], colour: "#00ff00"}, {name: "1e-4", value: "yes"}]
          bands: [red, 2]
          seed: 0
        sample: {ignore_values: [9, "09"], workers: 2}
        training: {class_weights: [0, 1.5, 2], run_name: "2024-01-01", batch_size: auto, learning_rate: 1e-20}
        classification: {images: [a.tif, s3://b/c.tif], outputs: [classes, confidence]}
        models: {reversible_unet: {depth: [1, 2, 3]}, unet: {pretrained: w.pth}}
        """
    )
    saved = tmp_path / "elsewhere" / "config.yaml"
    config.save(saved)
    again = load_config(saved)
    assert again == config
    assert again.fingerprint() == config.fingerprint()
    assert [path.name for path in saved.parent.iterdir()] == ["config.yaml"]


def test_a_failed_save_leaves_the_old_file_and_no_other(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out" / "config.yaml"
    config = load()
    config.save(target)
    before = target.read_text()

    def fail(self: Config) -> str:
        raise OSError("disk full")

    monkeypatch.setattr(Config, "to_yaml", fail)
    with pytest.raises(OSError, match="disk full"):
        config.save(target)
    assert target.read_text() == before
    assert [path.name for path in target.parent.iterdir()] == ["config.yaml"]


def test_defaults_do_not_count_as_said_by_the_user(load: Load) -> None:
    config = load("global: {num_classes: 3}", "training.batch_size=8")
    assert config.global_.model_fields_set == {"num_classes"}
    assert config.training.model_fields_set == {"batch_size"}
    assert config.sample.model_fields_set == set()


def test_the_fingerprint_follows_the_settings(load: Load) -> None:
    assert load("").fingerprint() == load("training: {batch_size: 8}").fingerprint()
    assert load("").fingerprint() != load("training: {batch_size: 9}").fingerprint()


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.sampled_from(["auto", "yes", "", "a,b", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "value", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = [
    f"{field.alias or section}.{key}"
    for section, field in Config.model_fields.items()
    for key in field.annotation.model_fields  # type: ignore[union-attr]
]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_whatever_stands_in_a_file_it_loads_or_is_refused_in_words(values: dict[str, Any]) -> None:
    nested: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        nested.setdefault(section, {})[name] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_text(yamltext.render(nested))
        try:
            config = load_config(path)
        except ConfigError as error:
            lines = error.problems
        else:
            lines = ()
            assert Config.model_validate(config.as_dict(), context={"folder": Path(folder)}) == config
        assert all(line.startswith(f"{path}: ") and ", expected " in line for line in lines)
