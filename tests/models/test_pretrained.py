"""Networks that start from other networks' weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from geoseg.data.normalise import Normalisation
from geoseg.errors import ModelFileError
from geoseg.learn.modelfile import ModelSpec, save_model_file
from geoseg.models import MODELS, build_model
from geoseg.models.pretrained import adapt_bands, load_pretrained


def saved(path: Path, bands: int = 3, classes: int = 5, name: str = "unetsmall") -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    state = build_model(name, bands, classes).state_dict()
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    return state


@pytest.mark.parametrize("file", ["w.safetensors", "w.pth"])
def test_weights_are_those_of_the_file(tmp_path: Path, file: str) -> None:
    state = saved(tmp_path / file)
    net = build_model("unetsmall", 3, 5, pretrained=tmp_path / file)
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())


def test_further_bands_start_from_the_mean_and_are_used(tmp_path: Path) -> None:
    state = saved(tmp_path / "w.safetensors")
    net = build_model("unetsmall", 5, 5, pretrained=tmp_path / "w.safetensors")
    first = net.encoder[0].conv1.weight
    assert torch.equal(first[:, :3], state["encoder.0.conv1.weight"])
    for band in (3, 4):
        torch.testing.assert_close(first[:, band], state["encoder.0.conv1.weight"].mean(1))
    images = torch.randn(2, 5, 32, 32)
    out = net(images)
    images[:, 3] = 0
    changed = net(images)
    assert not torch.equal(out, changed)
    changed.sum().backward()
    assert first.grad[:, 4].abs().max() > 0


def test_fewer_bands_keep_the_sum() -> None:
    weight = torch.randn(8, 3, 3, 3)
    torch.testing.assert_close(adapt_bands(weight, 1).sum(1), weight.sum(1))
    torch.testing.assert_close(adapt_bands(weight, 2).sum(1), weight.sum(1))
    assert torch.equal(adapt_bands(weight, 3), weight)


def test_other_classes_keep_a_fresh_head(tmp_path: Path) -> None:
    state = saved(tmp_path / "w.safetensors")
    torch.manual_seed(0)
    fresh = build_model("unetsmall", 3, 2).head.weight.detach().clone()
    torch.manual_seed(0)
    net = build_model("checkpointed_unet", 3, 2, pretrained=tmp_path / "w.safetensors")
    assert torch.equal(net.head.weight, fresh)
    assert torch.equal(net.centre.conv1.weight, state["centre.conv1.weight"])


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_takes_its_weights_with_other_bands_and_classes(tmp_path: Path, name: str) -> None:
    state = saved(tmp_path / "w.safetensors", bands=3, classes=5, name=name)
    torch.manual_seed(0)
    net = build_model(name, 4, 2)
    drawn = {key: value.clone() for key, value in net.state_dict().items()}
    loaded = load_pretrained(net, tmp_path / "w.safetensors")
    assert (len(loaded.adapted), len(loaded.fresh), loaded.unused) == (1, 2, ())
    assert len(loaded.same) == len(drawn) - 3
    own = net.state_dict()
    assert all(torch.equal(own[key], state[key]) for key in loaded.same)
    for line in loaded.fresh:  # weight and bias of the layer that makes the classes
        key, why = line.split(", ")
        assert torch.equal(own[key], drawn[key])
        assert why == "of other classes"
    (line,) = loaded.adapted
    key = line.split(" from ")[0]
    assert line == f"{key} from 3 to 4 bands"
    assert torch.equal(own[key][:, :3], state[key])
    torch.testing.assert_close(own[key][:, 3], state[key].mean(1))
    assert net.train()(torch.randn(2, 4, 32, 32)).shape == (2, 2, 32, 32)


def test_a_model_file_of_geoseg_is_a_start(tmp_path: Path) -> None:
    first = build_model("unetsmall", 4, 5)
    statistics = ({"mean": 1.0, "std": 2.0},) * 4
    spec = ModelSpec(
        "unetsmall", {}, 4, 5, ({"id": 0, "name": "background"},), (1, 2, 3, 4), (None,) * 4, "uint8",
        Normalisation.from_statistics(statistics), 255, 64,
    )  # fmt: skip
    save_model_file(tmp_path / "best.safetensors", first, spec)
    net = build_model("unetsmall", 1, 5)
    loaded = load_pretrained(net, tmp_path / "best.safetensors")
    assert str(loaded) == (
        f"starting from {tmp_path}/best.safetensors: {len(first.state_dict()) - 1} weights as they are, "
        "1 adapted (encoder.0.conv1.weight from 4 to 1 bands)"
    )
    assert torch.equal(net.centre.conv1.weight, first.centre.conv1.weight)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "w.safetensors")
    with pytest.raises(ModelFileError, match=r"missing.*decoder\.3|decoder\.3.*missing"):
        build_model("unet", 3, 5, pretrained=tmp_path / "w.safetensors")
    state = saved(tmp_path / "w.safetensors")
    state["centre.conv2.weight"] = torch.zeros(256, 256, 1, 1)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ModelFileError, match=r"shape \(centre\.conv2\.weight"):
        build_model("unetsmall", 3, 5, pretrained=tmp_path / "w.safetensors")


@pytest.mark.parametrize("file", ["w.safetensors", "w.pth"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\x80\x04\x95not a pickle."])
def test_damaged_files_are_refused_by_name(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelFileError, match=file):
        build_model("unetsmall", 3, 5, pretrained=tmp_path / file)


def test_files_that_are_absent_or_hold_code_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no file"):
        build_model("unetsmall", 3, 5, pretrained=tmp_path / "absent.pth")
    torch.save(build_model("unetsmall", 3, 5), tmp_path / "whole.pth")
    with pytest.raises(ModelFileError, match=r"whole\.pth"):
        build_model("unetsmall", 3, 5, pretrained=tmp_path / "whole.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ModelFileError, match="list"):
        build_model("unetsmall", 3, 5, pretrained=tmp_path / "list.pth")
