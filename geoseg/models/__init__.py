"""Networks by name.

`MODELS` is the one list of what can be built; `build_model` checks the options and builds. Every network takes images
(N, in_channels, H, W) with H, W >= 16 and returns logits (N, num_classes, H, W), and states two numbers that tiling
needs: `size_divisor`, the pixels by which an image can be shifted without changing its logits, and `receptive_radius`,
how far a pixel's logits look, or None where they depend on the whole image.

torch is imported only when something is built: the config reads the names and options alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from geoseg.errors import ConfigError, problem
from geoseg.models.options import make_options

if TYPE_CHECKING:
    from torch import nn


def _unet(in_channels: int, num_classes: int, **options: Any) -> nn.Module:
    from geoseg.models.unet import UNet

    return UNet(in_channels, num_classes, widths=(64, 128, 256, 512, 1024), **options)


def _unetsmall(in_channels: int, num_classes: int, **options: Any) -> nn.Module:
    from geoseg.models.unet import UNet

    return UNet(in_channels, num_classes, widths=(32, 64, 128, 256), **options)


def _reversible_unet(in_channels: int, num_classes: int, **options: Any) -> nn.Module:
    from geoseg.models.reversible_unet import ReversibleUNet

    return ReversibleUNet(in_channels, num_classes, **options)


def _checkpointed_unet(in_channels: int, num_classes: int, base: str = "unetsmall", **options: Any) -> nn.Module:
    net = MODELS[base](in_channels, num_classes, **options)
    return net.recompute_activations()


def _ternausnet(in_channels: int, num_classes: int, **options: Any) -> nn.Module:
    from geoseg.models.ternausnet import TernausNet

    return TernausNet(in_channels, num_classes, **options)


MODELS: dict[str, Callable[..., Any]] = {
    "unet": _unet,
    "unetsmall": _unetsmall,
    "checkpointed_unet": _checkpointed_unet,
    "reversible_unet": _reversible_unet,
    "ternausnet": _ternausnet,
}


def build_model(name: str, in_channels: int, num_classes: int, **options: Any) -> nn.Module:
    """Build a network.

    Args:
        name: A name in MODELS.
        in_channels: Bands of the images, at least 1.
        num_classes: Classes, background included, 2 to 255.
        options: The model's options, `geoseg.models.options` has them; what is left out takes its default.

    Returns:
        The network in train mode, with attributes `size_divisor` and `receptive_radius` in pixels.

    Raises:
        ConfigError: The name or an option is unknown, or a value is out of range.
    """
    if name not in MODELS:
        raise ConfigError(problem("model", repr(name), f"one of {', '.join(MODELS)}", "choose one of these"))
    if in_channels < 1:
        raise ConfigError(problem(f"model {name}", f"{in_channels} bands", "at least 1", "select the image's bands"))
    if not 2 <= num_classes <= 255:
        raise ConfigError(
            problem(f"model {name}", f"{num_classes} classes", "2 to 255, background included", "correct the number")
        )
    values = make_options(name, options).model_dump()
    pretrained = values.pop("pretrained", False)
    net = MODELS[name](in_channels, num_classes, **values)
    if pretrained:
        from geoseg.models.pretrained import load_pretrained

        load_pretrained(net, pretrained)
    return net
