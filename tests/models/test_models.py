"""What every network in MODELS must do."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys

import pytest
import torch

from geoseg.errors import ConfigError
from geoseg.models import MODELS, build_model
from geoseg.models.ternausnet import TernausNet


def images_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def built(name: str, channels: int = 4, classes: int = 5, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(name, channels, classes, **options)


@pytest.fixture(params=sorted(MODELS))
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    # Of its 23 million weights a sixteenth will do here; tests/models/test_ternausnet.py has the published ones.
    monkeypatch.setitem(MODELS, "ternausnet", functools.partial(TernausNet, divide=4))
    return request.param


@pytest.mark.parametrize(("height", "width"), [(16, 16), (17, 16), (33, 47), (64, 32)])
def test_logits_have_the_size_of_the_image(name: str, height: int, width: int) -> None:
    net = built(name, 3, 7)
    assert net(images_of((2, 3, height, width))).shape == (2, 7, height, width)


@pytest.mark.parametrize("channels", [1, 2, 13])
def test_any_number_of_bands(name: str, channels: int) -> None:
    assert built(name, channels, 2)(images_of((2, channels, 16, 16))).shape == (2, 2, 16, 16)


def test_dtype_is_kept(name: str) -> None:
    assert built(name)(images_of((2, 4, 16, 16))).dtype == torch.float32
    assert built(name).double()(images_of((2, 4, 16, 16), torch.float64)).dtype == torch.float64


def test_same_seed_same_weights_and_logits(name: str) -> None:
    first, second, images = built(name), built(name), images_of((2, 4, 32, 32))
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key
    assert torch.equal(first(images), second(images))


def test_state_dict_round_trip(name: str) -> None:
    first, images = built(name), images_of((2, 4, 32, 32))
    first(images)
    torch.manual_seed(1)
    second = build_model(name, 4, 5)
    assert not torch.equal(first.eval()(images), second.eval()(images))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(images), second(images))


def test_a_deep_copy_is_equal_and_apart(name: str) -> None:
    net, images = built(name), images_of((2, 4, 32, 32))
    twin = copy.deepcopy(net)
    net(images).sum().backward()
    assert all(parameter.grad is None for parameter in twin.parameters())
    twin(images).sum().backward()
    for (key, one), two in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad), key
    for (key, one), two in zip(net.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(one, two), key


def test_padding_inside_is_padding_outside(name: str) -> None:
    net, images = built(name).double().eval(), images_of((1, 4, 37, 50), torch.float64)
    side = net.size_divisor
    padded = torch.nn.functional.pad(images, (0, -50 % side, 0, -37 % side))
    with torch.no_grad():
        assert torch.equal(net(images), net(padded)[..., :37, :50])


def test_eval_does_not_depend_on_the_batch(name: str) -> None:
    net, images = built(name).double().eval(), images_of((3, 4, 32, 32), torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(net(images)[1:2], net(images[1:2]), rtol=1e-12, atol=1e-12)


def test_gradients_reach_every_parameter_and_the_image(name: str) -> None:
    net, images = built(name), images_of((2, 4, 32, 32)).requires_grad_()
    net(images).square().mean().backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.abs().max() > 0, key
    assert images.grad is not None
    assert images.grad.abs().max() > 0


def test_receptive_radius_is_the_true_one(name: str) -> None:
    # Weights as below make values explode, and a sum of 1e40 and 1 cannot be taken apart again: keep them instead.
    options = {"save_memory": False} if name == "reversible_unet" else {}
    net = built(name, 1, 2, **options).double().eval()
    if net.receptive_radius is None:
        pytest.skip("this network looks at the whole image")
    # Positive weights and inputs cannot cancel, and every ReLU is open: each pixel that can matter does.
    for parameter in net.parameters():
        parameter.data.abs_().add_(1e-3)
    side = 2 * net.size_divisor * (net.receptive_radius // net.size_divisor + 1)
    reached = 0
    # The pixels that see furthest: at the ends of a coarsest cell, or after its first, whose steps all round up. A
    # ramp, so that pooling takes the pixel that lies furthest.
    ramp = torch.linspace(1, 2, side, dtype=torch.float64).expand(1, 1, 16, side)  # a strip: columns are enough
    for shift in (0, 1, net.size_divisor - 1):
        image = (ramp if shift < 2 else ramp.flip(-1)).clone().requires_grad_()
        pixel = side // 2 + shift
        net(image)[0, 1, 8, pixel].backward()
        touched = image.grad[0, 0].nonzero()[:, 1]
        reached = max(reached, int((touched - pixel).abs().max()))
    assert reached <= net.receptive_radius < reached + net.size_divisor


def test_logits_move_with_the_image(name: str) -> None:
    # Weights as below make values explode, and a sum of 1e40 and 1 cannot be taken apart again: keep them instead.
    options = {"save_memory": False} if name == "reversible_unet" else {}
    net = built(name, 1, 2, **options).double().eval()
    if net.receptive_radius is None:
        pytest.skip("this network looks at the whole image")
    radius, step = net.receptive_radius, net.size_divisor
    side = 2 * step * (radius // step + 2)
    image = images_of((1, 1, 16, side + step), torch.float64)
    with torch.no_grad():
        whole, moved = net(image), net(image[..., step:])
    inner = slice(radius, side - radius)
    torch.testing.assert_close(whole[..., step:][..., inner], moved[..., inner], rtol=1e-10, atol=1e-10)


def test_channels_last_gives_the_same_logits(name: str) -> None:
    net, images = built(name).double(), images_of((2, 4, 32, 32), torch.float64)
    twin = copy.deepcopy(net).to(memory_format=torch.channels_last)
    expected, found = net(images), twin(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_wrong_image_is_refused(name: str) -> None:
    net = built(name)
    with pytest.raises(ValueError, match="16"):
        net(images_of((2, 4, 15, 64)))
    with pytest.raises(ValueError, match="4"):
        net(images_of((2, 3, 64, 64)))


def test_unknown_names_are_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        build_model("unett", 4, 5)
    with pytest.raises(ConfigError, match="wdith"):
        build_model(name, 4, 5, wdith=3)


@pytest.mark.parametrize(("channels", "classes"), [(0, 5), (4, 1), (4, 256)])
def test_numbers_out_of_range_are_refused(name: str, channels: int, classes: int) -> None:
    with pytest.raises(ConfigError):
        build_model(name, channels, classes)


def test_names_are_known_without_torch() -> None:
    code = "import sys, geoseg.models as m; assert m.MODELS; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes_of_the_unets() -> None:
    count = {key: sum(p.numel() for p in built(key).parameters()) for key in ("unet", "unetsmall")}
    # By hand: convolutions without biases, two numbers per channel and norm, transposed convolutions and head with.
    assert count["unetsmall"] == 1_924_224 + 2 * 2 * (2 * (32 + 64 + 128) + 256) + (128 + 64 + 32) + (32 * 5 + 5)
    assert 30e6 < count["unet"] < 32e6
    assert (built("unetsmall").receptive_radius, built("unet").receptive_radius) == (51, 107)
    assert (built("unetsmall").size_divisor, built("unet").size_divisor) == (8, 16)


def test_dropout_drops_while_training_alone() -> None:
    net, images = built("unetsmall", dropout=True, probability=0.5), images_of((2, 4, 32, 32))
    assert not torch.equal(net(images), net(images))
    net.eval()
    assert torch.equal(net(images), net(images))
