"""Batch norm, ReLU and convolution whose gradients need less memory than autograd's.

The numbers are those of the modules run one after the other, bit for bit on a CPU; the backward pass differs in what is
alive while it runs: the gradient of the weights is taken before that of the input, and the ReLU's gradient is written
over the convolution's. With `keep=False` the ReLU's output is not saved either: it is made again from the norm's input,
which is saved anyway.

Other norms than `BatchNorm2d`, and modules with hooks, run as they are, under ordinary autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

aten = torch.ops.aten

CHANNEL_GROUPS = 8
VECTOR = 8
ALL = slice(None)

_Grads = tuple[Tensor, Tensor, Tensor]


class _Saved(NamedTuple):
    """A batch norm's weights and what its kernel found, by channel."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    invstd: Tensor


def norm_act(image: Tensor, norm: nn.Module) -> Tensor:
    """Return relu(norm(image)).

    Args:
        image: (N, C, H, W).
        norm: The module that normalises it.
    """
    if not (isinstance(norm, nn.BatchNorm2d) and _is_plain(norm)):
        return torch.relu(norm(image))
    return _result(_NormAct.apply(image, norm.weight, norm.bias, _NormState(norm)))  # type: ignore[no-untyped-call]


def norm_act_conv(image: Tensor, norm: nn.Module, conv: nn.Conv2d, keep: bool = True, in_place: bool = False) -> Tensor:
    """Return conv(relu(norm(image))).

    Args:
        image: (N, C, H, W).
        norm: The module that normalises it.
        conv: The convolution, of one group and padded by zeros.
        keep: Save the ReLU's output for backward; otherwise it is made again.
        in_place: Where it is made again, also take the norm's gradient a few channels at a time over the storage of the
            convolution's: two maps less at the peak, for copies.
    """
    if not (isinstance(norm, nn.BatchNorm2d) and _is_plain(norm) and _is_plain(conv)):
        return _result(conv(torch.relu(norm(image))))
    how = _How(_NormState(norm), _ConvArguments(conv), keep, in_place)
    weights = (norm.weight, norm.bias, conv.weight, conv.bias)
    return _result(_NormActConv.apply(image, *weights, how))  # type: ignore[no-untyped-call]


def _result(value: Any) -> Tensor:
    """Give back the type that autograd's `apply` and a module's call lose."""
    out: Tensor = value
    return out


def _is_plain(module: nn.Module) -> bool:
    """Whether the hand-written gradient stands for calling this module while a graph is built."""
    if not torch.is_grad_enabled():
        return False
    if type(module) is nn.BatchNorm2d:
        able = module.affine and module.momentum is not None
    else:
        able = type(module) is nn.Conv2d and module.groups == 1 and not isinstance(module.padding, str)
        able = able and module.padding_mode == "zeros"
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return able and not any(hooks) and "forward" not in module.__dict__


class _NormState:
    """What a batch norm's kernel takes besides the image, weight and bias."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        self.training = norm.training or norm.running_mean is None
        tracks = not norm.training or norm.track_running_stats
        self.mean, self.var = (norm.running_mean, norm.running_var) if tracks else (None, None)
        self.momentum, self.eps = norm.momentum or 0.0, norm.eps
        if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)

    def forward(self, image: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise as the module would, statistics included."""
        if self.training and image.numel() == image.shape[1]:
            raise ValueError(f"batch norm needs more than one value per channel when training, found {image.shape}")
        return torch.native_batch_norm(image, weight, bias, self.mean, self.var, self.training, self.momentum, self.eps)

    def relu_again(self, image: Tensor, saved: _Saved) -> Tensor:
        """Return relu(norm(image)) once more, without touching the statistics."""
        mean, var = (None, None) if self.training else (self.mean, self.var)
        out = torch.native_batch_norm(image, saved.weight, saved.bias, mean, var, self.training, 0.0, self.eps)[0]
        return out.relu_()

    def backward(self, grad: Tensor, image: Tensor, saved: _Saved, channels: slice = ALL) -> _Grads:
        """Return the gradients of some channels of the image, and of their weights and biases."""
        vectors = (saved.weight, self.mean, self.var, saved.mean, saved.invstd)
        result: _Grads = aten.native_batch_norm_backward(
            grad, image, *(_part(vector, channels) for vector in vectors), self.training, self.eps, [True, True, True]
        )
        return result


class _ConvArguments:
    """What a convolution's kernels take besides tensors."""

    def __init__(self, conv: nn.Conv2d) -> None:
        self.stride, self.padding, self.dilation = conv.stride, _pair(conv.padding), conv.dilation

    def forward(self, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.conv2d(image, weight, bias, self.stride, self.padding, self.dilation)

    def backward(self, grad: Tensor, image: Tensor, weight: Tensor, which: list[bool]) -> tuple[Tensor, ...]:
        """Return the gradients of image, weight and bias, those that are asked for."""
        result: tuple[Tensor, ...] = aten.convolution_backward(
            grad, image, weight, [weight.shape[0]], self.stride, self.padding, self.dilation, False, [0, 0], 1, which
        )
        return result


class _How(NamedTuple):
    """What `_NormActConv` takes besides tensors."""

    norm: _NormState
    conv: _ConvArguments
    keep: bool
    in_place: bool


def _pair(padding: str | tuple[int, ...]) -> tuple[int, ...]:
    assert not isinstance(padding, str), "modules with such padding run under ordinary autograd"
    return padding


def _part(value: Tensor | None, channels: slice) -> Tensor | None:
    return value if value is None or not value.numel() else value[channels]


def _channel_groups(image: Tensor) -> Iterator[tuple[slice, torch.memory_format]]:
    """Yield slices of the channels, and the layout that copies of them are to have."""
    channels = image.shape[1]
    size = -(-channels // CHANNEL_GROUPS)
    last = image.is_contiguous(memory_format=torch.channels_last) and not image.is_contiguous()
    if last:
        size = -(-size // VECTOR) * VECTOR  # whole vectors: the kernels round the rest of a row differently
    for start in range(0, channels, size):
        yield slice(start, start + size), torch.channels_last if last else torch.contiguous_format


def _compute_dtype(image: Tensor) -> torch.dtype:
    """Return the dtype that autocast gives a convolution, or the image's own."""
    kind = image.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else image.dtype


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor, norm: _NormState) -> Tensor:
        out, mean, invstd = norm.forward(image, weight, bias)
        out.relu_()
        ctx.norm = norm
        ctx.save_for_backward(image, out, weight, bias, mean, invstd)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        image, out, *vectors = ctx.saved_tensors
        # The incoming gradient belongs to somebody else: the result goes to new memory.
        grad = aten.threshold_backward(grad, out, 0)
        del out
        return *ctx.norm.backward(grad, image, _Saved(*vectors)), None


class _NormActConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, image: Tensor, weight: Tensor, bias: Tensor, filters: Tensor, offset: Tensor | None, how: _How
    ) -> Tensor:
        act, mean, invstd = how.norm.forward(image, weight, bias)
        act.relu_()
        ctx.how, ctx.dtype = how, _compute_dtype(image)
        with torch.autocast(image.device.type, enabled=False):
            act = act.to(ctx.dtype)
            result = how.conv.forward(act, filters.to(ctx.dtype), None if offset is None else offset.to(ctx.dtype))
        ctx.save_for_backward(image, act if how.keep else None, filters, weight, bias, mean, invstd)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        image, act, filters, *vectors = ctx.saved_tensors
        norm, conv, saved, low = ctx.how.norm, ctx.how.conv, _Saved(*vectors), filters.to(ctx.dtype)
        needs = ctx.needs_input_grad
        if act is None:
            act = norm.relu_again(image, saved).to(ctx.dtype)
        _, *grad_conv = conv.backward(grad, act, low, [False, needs[3], needs[4]])
        grad_conv = [value if value is None else value.to(filters.dtype) for value in grad_conv]
        if not any(needs[:3]):
            return None, None, None, *grad_conv, None
        # With the act kept, its storage is somebody's anyway; otherwise a bit a number says where the ReLU was open.
        is_open = act if ctx.how.keep else act > 0
        del act
        # Of the image only the shape matters here.
        grad_act = conv.backward(grad, image.to(ctx.dtype), low, [True, False, False])[0].to(image.dtype)
        if ctx.how.keep or not ctx.how.in_place:
            is_open = is_open.to(image.dtype)  # a mask, or kept in the dtype of autocast
            aten.threshold_backward.grad_input(grad_act, is_open, 0, grad_input=grad_act)
            del is_open
            return *norm.backward(grad_act, image, saved), *grad_conv, None
        return *_backward_in_place(norm, grad_act, is_open, image, saved), *grad_conv, None


def _backward_in_place(
    norm: _NormState, grad: Tensor, is_open: Tensor, image: Tensor, saved: _Saved
) -> tuple[Tensor, ...]:
    """Write the gradient of the norm's input over `grad`; return it and the gradients of weight and bias."""
    parts = []
    for channels, layout in _channel_groups(image):
        piece = grad[:, channels].contiguous(memory_format=layout)
        opened = is_open[:, channels].to(piece.dtype, memory_format=layout)
        aten.threshold_backward.grad_input(piece, opened, 0, grad_input=piece)
        del opened
        grad[:, channels], *others = norm.backward(
            piece, image[:, channels].contiguous(memory_format=layout), saved, channels
        )
        parts.append(others)
    return grad, *(torch.cat(values) for values in zip(*parts, strict=True))
