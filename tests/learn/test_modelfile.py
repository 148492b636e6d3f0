"""The model file: opens without running code, fits or says why not."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from toys import make_spec

from geoseg.errors import ModelFileError
from geoseg.learn.modelfile import (
    ModelSpec,
    check_matches,
    load_model_file,
    load_weights,
    model_hash,
    read_model_spec,
    save_model_file,
    strip_prefixes,
)
from geoseg.models import build_model


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model("unetsmall", 2, 2)


@pytest.fixture
def path(tmp_path: Path, model) -> Path:
    save_model_file(tmp_path / "best.safetensors", model, make_spec())
    return tmp_path / "best.safetensors"


def rewrite(path: Path, **changes) -> Path:
    """Change fields of the metadata; None removes one."""
    from safetensors.torch import load_file

    plain = json.loads(read_model_spec(path).to_json()) | changes
    plain = {name: value for name, value in plain.items() if value is not None}
    save_file(load_file(path), path, metadata={"geoseg": json.dumps(plain)})
    return path


def test_comes_back_as_it_was(path, model):
    loaded, found = load_model_file(path)
    assert found == make_spec()
    assert not loaded.training
    image = torch.randn(1, 2, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(image), model.eval()(image))


def test_metadata_is_read_without_the_weights(path):
    found = read_model_spec(str(path))
    assert found == make_spec()
    assert found.class_names == ("background", "roof")
    assert found.normalisation.std == (3.0, 0.0)


def test_channels_last_weights_are_written_contiguous(tmp_path, model, path):
    model.to(memory_format=torch.channels_last)
    save_model_file(tmp_path / "again.safetensors", model, make_spec())
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_same_content_same_hash(tmp_path, model, path):
    save_model_file(tmp_path / "other.safetensors", model, make_spec(ignore_value=254))
    assert len(model_hash(path)) == 64
    assert model_hash(path) != model_hash(tmp_path / "other.safetensors")


def test_nothing_of_the_users_options_is_opened(tmp_path, model):
    """A path of pretrained weights is provenance; it need not exist where the file is used."""
    options = {"dropout": True, "pretrained": Path("/nowhere/vgg11.pth")}
    save_model_file(
        tmp_path / "m.safetensors", build_model("unetsmall", 2, 2, dropout=True), make_spec(model_options=options)
    )
    _, found = load_model_file(tmp_path / "m.safetensors")
    assert found.model_options == {"dropout": True, "pretrained": "/nowhere/vgg11.pth"}


def test_a_failed_write_leaves_the_old_file(path, model):
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        save_model_file(path, model, make_spec(trained={"loss": float("nan")}))
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["best.safetensors"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_forward_module.module."])
def test_prefixes_of_wrappers_are_dropped(model, prefix):
    wrapped = {prefix + name: value for name, value in model.state_dict().items()}
    assert strip_prefixes(wrapped).keys() == model.state_dict().keys()
    load_weights(model, wrapped, "a file", "unetsmall")


def test_a_wrapped_model_is_saved_bare(tmp_path, model, path):
    save_model_file(tmp_path / "wrapped.safetensors", torch.nn.DataParallel(model), make_spec())
    assert (tmp_path / "wrapped.safetensors").read_bytes() == path.read_bytes()


def test_weights_that_do_not_fit_are_listed_and_none_is_loaded(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = list(before)
    weights = {name: value + 1 for name, value in before.items() if name != names[0]}
    weights[names[2]] = torch.zeros(7)
    weights["surplus.weight"] = torch.zeros(1)
    with pytest.raises(ModelFileError) as caught:
        load_weights(model, weights, "some.safetensors", "unetsmall")
    line = str(caught.value)
    assert line.count("\n") == 0
    assert f"1 missing: {names[0]}" in line
    assert "1 unexpected: surplus.weight" in line
    assert f"{names[2]} (7,) instead of {tuple(before[names[2]].shape)}" in line
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_long_lists_are_cut(model):
    with pytest.raises(ModelFileError, match=r"missing: .* and \d+ more"):
        load_weights(model, {}, "some.safetensors", "unetsmall")


def test_weights_of_another_width_in_the_file(path, tmp_path):
    save_model_file(tmp_path / "wide.safetensors", build_model("unetsmall", 3, 2), make_spec())
    with pytest.raises(ModelFileError, match=r"wide\.safetensors: found weights that do not fit .*of another shape"):
        load_model_file(tmp_path / "wide.safetensors")


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "no such file"),
        (lambda path: path.write_bytes(b""), "damaged or of another format"),
        (lambda path: torch.save({"weight": torch.zeros(1)}, path), "damaged or of another format"),
        (lambda path: save_file({"weight": torch.zeros(1)}, path), "without geoseg's metadata"),
        (lambda path: save_file({"w": torch.zeros(1)}, path, metadata={"geoseg": "{"}), "cannot be understood"),
        (lambda path: save_file({"w": torch.zeros(1)}, path, metadata={"geoseg": "[]"}), "cannot be understood"),
    ],
)
def test_what_is_not_a_model_file_is_named(tmp_path, write, found):
    path = tmp_path / "model.safetensors"
    write(path)
    for read in (load_model_file, read_model_spec):
        with pytest.raises(ModelFileError, match=rf"model\.safetensors: found .*{found}"):
            read(path)


def test_a_truncated_file(path):
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="damaged"):
        load_model_file(path)


def test_metadata_without_a_needed_field(path):
    with pytest.raises(ModelFileError, match=r"cannot be understood.*num_classes"):
        load_model_file(rewrite(path, num_classes=None))


def test_fields_of_a_newer_version_are_passed_over(path):
    assert load_model_file(rewrite(path, invented_later=[1, 2]))[1].model_name == "unetsmall"


def test_a_model_that_this_version_does_not_have(path):
    with pytest.raises(
        ModelFileError, match=r"found model 'hypernet' \(written by geoseg .*expected a model of geoseg"
    ):
        load_model_file(rewrite(path, model_name="hypernet"))


def test_a_config_that_agrees():
    check_matches(
        make_spec(), "a file", model_name="unetsmall", bands=[1, 3], class_names=["background", "roof"], crs=None
    )


def test_a_config_that_says_otherwise_gets_one_line_per_difference_naming_both():
    with pytest.raises(ModelFileError) as caught:
        check_matches(
            make_spec(), "run/best.safetensors", model_name="unet", in_channels=4, num_classes=2, bands=(1, 2)
        )
    first, second, third = caught.value.problems
    assert first.startswith("run/best.safetensors: found model name 'unetsmall', expected 'unet'")
    assert "found in channels 2, expected 4" in second
    assert "found bands [1, 3], expected [1, 2]" in third


def test_json_is_strict_and_stable():
    text = make_spec().to_json()
    assert ModelSpec.from_json(text).to_json() == text
    assert "NaN" not in text
