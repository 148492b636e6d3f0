"""TernausNet against the published drawing, and the weight files that it starts from."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from geoseg.errors import ModelFileError
from geoseg.memory import estimate_step, recompute
from geoseg.models import build_model
from geoseg.models.pretrained import load_pretrained
from geoseg.models.ternausnet import TernausNet

# Names and shapes as torchvision gives them to a VGG11, with and without batch norm: place, filters, inputs.
VGG11 = ((0, 64, 3), (3, 128, 64), (6, 256, 128), (8, 256, 256), (11, 512, 256), (13, 512, 512), (16, 512, 512))
VGG11 += ((18, 512, 512),)
VGG11_BN = tuple((place, *shape[1:]) for place, shape in zip((0, 4, 8, 11, 15, 18, 22, 25), VGG11, strict=True))
CLASSIFIER = {"0": (4096, 25088), "3": (4096, 4096), "6": (1000, 4096)}
# The decoder of the published files: name, its tensor's shape; each has a bias as well.
DECODER = {
    "center.block.0.conv": (512, 512, 3, 3),
    "center.block.1": (512, 256, 3, 3),
    "dec5.block.0.conv": (512, 768, 3, 3),
    "dec5.block.1": (512, 256, 3, 3),
    "dec4.block.0.conv": (512, 768, 3, 3),
    "dec4.block.1": (512, 128, 3, 3),
    "dec3.block.0.conv": (256, 384, 3, 3),
    "dec3.block.1": (256, 64, 3, 3),
    "dec2.block.0.conv": (128, 192, 3, 3),
    "dec2.block.1": (128, 32, 3, 3),
    "dec1.conv": (32, 96, 3, 3),
    "final": (1, 32, 1, 1),
}
ALIASES = ("conv1", "conv2", "conv3s", "conv3", "conv4s", "conv4", "conv5s", "conv5")


def _random(*shape: int) -> Tensor:
    return torch.randn(shape) / 10


def vgg11(places: tuple[tuple[int, int, int], ...] = VGG11, normed: bool = False) -> dict[str, Tensor]:
    """A file of VGG11 with random weights; the classifier takes no room."""
    torch.manual_seed(1)
    state = {}
    for place, filters, inputs in places:
        state |= {
            f"features.{place}.weight": _random(filters, inputs, 3, 3),
            f"features.{place}.bias": _random(filters),
        }
        if normed:
            norm = {"weight": 1 + _random(filters), "bias": _random(filters), "running_mean": _random(filters)}
            norm |= {"running_var": torch.rand(filters) + 0.5, "num_batches_tracked": torch.tensor(7)}
            state |= {f"features.{place + 1}.{part}": value for part, value in norm.items()}
    for place, shape in CLASSIFIER.items():
        state |= {f"classifier.{place}.weight": torch.zeros(1).expand(shape)}
        state |= {f"classifier.{place}.bias": torch.zeros(1).expand(shape[:1])}
    return state


def published() -> dict[str, Tensor]:
    """A file of TernausNet as it was published: the encoder's tensors under two names, one class."""
    state, encoder = {}, vgg11()
    for (place, *_), alias in zip(VGG11, ALIASES, strict=True):
        for part in ("weight", "bias"):
            state[f"module.encoder.{place}.{part}"] = encoder[f"features.{place}.{part}"]
            state[f"module.{alias}.{part}"] = state[f"module.encoder.{place}.{part}"]
    for name, shape in DECODER.items():
        out = shape[1] if name.endswith("block.1") else shape[0]  # transposed convolutions: inputs first
        state |= {f"module.{name}.weight": _random(*shape), f"module.{name}.bias": _random(out)}
    return state


@pytest.fixture(scope="module")
def net() -> TernausNet:
    torch.manual_seed(0)
    return build_model("ternausnet", 3, 1 + 1)


def oracle(net: TernausNet, image: Tensor) -> Tensor:
    """The network as it is drawn: skips concatenated, layer after layer."""

    def both(conv: nn.Module, x: Tensor) -> Tensor:
        return F.relu(conv(x))

    skips, x, e = [], image, net.encoder
    for places in ((0,), (3,), (6, 8), (11, 13), (16, 18)):
        for place in places:
            x = both(e[place], x)
        skips.append(x)
        x = F.max_pool2d(x, 2)
    for part in (net.center, net.dec5, net.dec4, net.dec3, net.dec2):
        x = both(part.block[1], both(part.block[0].conv, x))
        x = torch.cat([x, skips.pop()], 1)
    return net.final(both(net.dec1.conv, x))


def test_the_network_is_the_drawing() -> None:
    net = TernausNet(3, 2, divide=4)
    twin, drawn = copy.deepcopy(net).double(), copy.deepcopy(net).double()
    image = torch.randn(1, 3, 32, 64, dtype=torch.float64)
    out, expected = twin(image), oracle(drawn, image)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-12)
    out.square().sum().backward()
    expected.square().sum().backward()
    for (key, one), two in zip(twin.named_parameters(), drawn.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-8, atol=1e-10, msg=key)


def test_its_names_and_shapes_are_those_of_the_published_files(net: TernausNet) -> None:
    own = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    file = {key.removeprefix("module."): tuple(value.shape) for key, value in published().items()}
    file = {key: shape for key, shape in file.items() if key.split(".")[0] not in ALIASES}
    assert own.keys() == file.keys()
    assert {key for key in own if own[key] != file[key]} == {"final.weight", "final.bias"}


def test_recomputing_changes_no_bit_and_saves_memory() -> None:
    net = TernausNet(3, 2, divide=4)
    image = torch.randn(1, 3, 64, 64)
    twin = copy.deepcopy(net)
    twin.recompute = True
    outside = recompute(copy.deepcopy(net))
    for one in (net, twin, outside):
        one.zero_grad()
        one(image).square().sum().backward()
    for key, parameter in net.named_parameters():
        assert torch.equal(parameter.grad, twin.get_parameter(key).grad), key
        assert torch.equal(parameter.grad, outside.get_parameter(key).grad), key
    plain, saving = estimate_step(net, 2, 256), estimate_step(twin, 2, 256)
    assert saving.saved < 0.6 * plain.saved
    assert saving.peak < 0.75 * plain.peak


def test_a_network_that_starts_from_nothing_keeps_the_size_of_its_signal(net: TernausNet) -> None:
    # He et al. 2015: without norms, a wrong scale would be multiplied nineteen times.
    assert 0.05 < net(torch.randn(2, 3, 64, 64)).std() < 5


def test_files_of_vgg11_make_the_encoder(tmp_path: Path, net: TernausNet) -> None:
    state = vgg11()
    torch.save(state, tmp_path / "vgg11.pth")
    fresh = copy.deepcopy(net)
    loaded = load_pretrained(fresh, tmp_path / "vgg11.pth")
    for place, *_ in VGG11:
        assert torch.equal(fresh.encoder[place].weight, state[f"features.{place}.weight"])
        assert torch.equal(fresh.encoder[place].bias, state[f"features.{place}.bias"])
    assert torch.equal(fresh.dec3.block[1].weight, net.dec3.block[1].weight)
    assert (len(loaded.same), len(loaded.adapted), len(loaded.fresh), len(loaded.unused)) == (16, 0, 24, 6)
    assert "16 weights as they are, 24 drawn anew (center.block.0.conv.weight" in str(loaded)
    assert "6 of the file not used (classifier.0.weight" in str(loaded)


def test_more_bands_than_the_file_has(tmp_path: Path) -> None:
    state = vgg11()
    torch.save(state, tmp_path / "vgg11.pth")
    wide = build_model("ternausnet", 5, 4)
    loaded = load_pretrained(wide, tmp_path / "vgg11.pth")
    first = state["features.0.weight"]
    assert torch.equal(wide.encoder[0].weight[:, :3], first)
    for band in (3, 4):
        torch.testing.assert_close(wide.encoder[0].weight[:, band], first.mean(1))
    assert loaded.adapted == ("encoder.0.weight from 3 to 5 bands",)
    image = torch.randn(1, 5, 32, 32)
    out, dark = wide(image), image.clone()
    dark[:, 4] = 0
    assert not torch.equal(wide(dark), out)
    out.square().sum().backward()
    assert wide.encoder[0].weight.grad[:, 4].abs().max() > 0


def test_files_with_batch_norm_do_what_their_encoder_does(tmp_path: Path, net: TernausNet) -> None:
    state = vgg11(VGG11_BN, normed=True)
    torch.save(state, tmp_path / "vgg11_bn.pth")
    folded = copy.deepcopy(net).double()
    loaded = load_pretrained(folded, tmp_path / "vgg11_bn.pth")
    assert len(loaded.same) == 16
    x = image = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    for place, *_ in VGG11_BN:
        conv, norm = ({p: v.double() for p, v in _parts(state, place + i).items()} for i in (0, 1))
        x = F.conv2d(x, conv["weight"], conv["bias"], padding=1)
        x = F.relu(F.batch_norm(x, norm["running_mean"], norm["running_var"], norm["weight"], norm["bias"]))
        x = F.max_pool2d(x, 2) if place in (0, 4, 11, 18, 25) else x
    torch.testing.assert_close(folded.encoder(image), x, rtol=1e-4, atol=1e-5)


def _parts(state: dict[str, Tensor], place: int) -> dict[str, Tensor]:
    start = f"features.{place}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def test_published_files_fill_all_but_the_classes(tmp_path: Path, net: TernausNet) -> None:
    state = published()
    torch.save({"model": state, "epoch": 3}, tmp_path / "TernausNet.pt")
    filled = copy.deepcopy(net)
    loaded = load_pretrained(filled, tmp_path / "TernausNet.pt")
    for key, value in filled.state_dict().items():
        expected = net.state_dict()[key] if key.startswith("final") else state[f"module.{key}"]
        assert torch.equal(value, expected), key
    assert len(loaded.same) == 38
    assert loaded.fresh == ("final.weight, of other classes", "final.bias, of other classes")
    assert {name.split(".")[0] for name in loaded.unused} == set(ALIASES)


def test_its_own_files_come_back(tmp_path: Path, net: TernausNet) -> None:
    save_file(net.state_dict(), tmp_path / "best.safetensors")
    again = build_model("ternausnet", 3, 2, pretrained=tmp_path / "best.safetensors")
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in again.state_dict().items())


@pytest.mark.parametrize("normed", [False, True])
def test_another_vgg_is_refused(tmp_path: Path, net: TernausNet, normed: bool) -> None:
    step = 3 if normed else 2
    state = vgg11(((0, 64, 3), (step, 64, 64), (2 * step + 1, 128, 64)), normed)  # as a VGG13 begins
    torch.save(state, tmp_path / "vgg13.pth")
    with pytest.raises(ModelFileError, match=r"vgg13\.pth.* weights unknown \(.*TernausNet"):
        load_pretrained(copy.deepcopy(net), tmp_path / "vgg13.pth")


def test_a_published_file_that_lacks_something_is_refused(tmp_path: Path, net: TernausNet) -> None:
    partial = {name: value for name, value in published().items() if "dec3" not in name}
    torch.save(partial, tmp_path / "partial.pth")
    with pytest.raises(ModelFileError, match=r"4 weights missing \(dec3\.block\.0\.conv\.bias"):
        load_pretrained(copy.deepcopy(net), tmp_path / "partial.pth")
