"""Parts by name: frozen, and trained at another rate."""

import pytest
import torch

from geoseg.errors import ConfigError
from geoseg.learn.frozen import freeze, in_encoder, train_mode
from geoseg.learn.optimise import make_optimizer, set_rate
from geoseg.models import MODELS, build_model


@pytest.fixture(scope="module")
def net():
    return build_model("unetsmall", 2, 2)


def names(net, trained):
    return {name for name, parameter in net.named_parameters() if parameter.requires_grad == trained}


def test_the_encoder_by_its_name(net):
    count = freeze(net, ["encoder"])
    assert names(net, False) == {name for name, _ in net.named_parameters() if name.startswith("encoder.")}
    assert count == sum(parameter.numel() for parameter in net.encoder.parameters())
    net.requires_grad_(True)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_an_encoder_and_something_else(name):
    net = build_model(name, 2, 2)
    inside = [in_encoder(net, key) for key, _ in net.named_parameters()]
    assert any(inside)
    assert not all(inside)
    # What makes the logits is not part of it.
    last = [key for key, parameter in net.named_parameters() if parameter.shape[0] in (2, 8) and key.startswith("head")]
    assert not any(in_encoder(net, key) for key in last)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("head", {"head.weight", "head.bias"}), ("head.bias", {"head.bias"}), ("h*.w*", {"head.weight"})],
)
def test_modules_weights_and_patterns(net, pattern, expected):
    freeze(net, [pattern])
    assert names(net, False) == expected
    net.requires_grad_(True)


def test_a_name_that_fits_nothing_lists_parts_and_freezing_all_is_refused(net):
    with pytest.raises(ConfigError, match=r"training\.freeze: found 'enc', .* such as encoder, centre, decoder, head"):
        freeze(net, ["enc"])
    with pytest.raises(ConfigError, match="found all weights"):
        freeze(net, ["*"])
    assert not names(net, False)


def test_frozen_norms_stay_in_evaluation_mode(net):
    freeze(net, ["encoder"])
    train_mode(net)
    modes = {name: module.training for name, module in net.named_modules() if isinstance(module, torch.nn.BatchNorm2d)}
    assert {mode for name, mode in modes.items() if name.startswith("encoder.")} == {False}
    assert {mode for name, mode in modes.items() if not name.startswith("encoder.")} == {True}
    net.requires_grad_(True)


def test_the_encoder_has_a_rate_of_its_own(net):
    optimizer = make_optimizer("adamw", net, 0.1, 0.01, encoder_factor=0.25)
    set_rate(optimizer, 0.2)
    rates = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in net.named_parameters():
        assert rates[id(parameter)] == (0.05 if name.startswith("encoder.") else 0.2)
