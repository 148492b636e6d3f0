"""The U-Net against plain modules, and its recomputing form against itself."""

from __future__ import annotations

import copy
import io
import os
import socket
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geoseg.memory import estimate_step, measure_step
from geoseg.models import MODELS, build_model
from geoseg.models.blocks import ConvBlock
from geoseg.models.unet import UNet

MIB = 1 << 20


def thin(**options: object) -> UNet:
    torch.manual_seed(0)
    return UNet(4, 5, widths=(8, 16, 32), **options)


def recomputing(net: UNet) -> UNet:
    return copy.deepcopy(net).recompute_activations()


def batch(size: int = 24, count: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = 3 + 5 * torch.randn(count, 4, size, size, generator=generator, dtype=torch.float64)
    return images.to(dtype), torch.randint(0, 5, (count, size, size), generator=generator)


def step(net: nn.Module, images: Tensor, labels: Tensor, autocast: bool = False, seed: int = 7) -> Tensor:
    torch.manual_seed(seed)
    net.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = net(images)
        loss = F.cross_entropy(out, labels)
    loss.backward()
    return out.detach()


def assert_same(one: nn.Module, two: nn.Module) -> None:
    for (key, first), second in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.equal(first, second), key
    for (key, first), second in zip(one.named_parameters(), two.parameters(), strict=True):
        assert (first.grad is None) == (second.grad is None), key
        assert first.grad is None or torch.equal(first.grad, second.grad), key


def oracle(net: UNet, images: Tensor) -> Tensor:
    """Run the U-Net as it is drawn: module after module, skips concatenated."""

    def block(part: ConvBlock, x: Tensor) -> Tensor:
        x = F.relu(part.norm1(part.conv1(x)))
        return part.dropout(F.relu(part.norm2(part.conv2(x))))

    skips, x = [], images
    for part in net.encoder:
        skips.append(block(part, x))
        x = F.max_pool2d(skips[-1], 2)
    x = block(net.centre, x)
    for part, skip in zip(reversed(net.decoder), reversed(skips), strict=True):
        x = block(part, torch.cat([skip, part.up(x)], 1))
    return net.head(x)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("frozen_norms", [False, True])
def test_the_network_is_the_drawing(recompute: bool, frozen_norms: bool) -> None:
    net = thin().double()
    images, labels = batch(dtype=torch.float64)
    step(net, images, labels)  # statistics that are not those of a fresh norm
    net = recomputing(net) if recompute else net
    for module in net.modules():
        if frozen_norms and isinstance(module, nn.BatchNorm2d):
            module.eval()
    twin = copy.deepcopy(net)
    out = step(net, images, labels)
    twin.zero_grad()
    expected = oracle(twin, images)
    F.cross_entropy(expected, labels).backward()
    torch.testing.assert_close(out, expected.detach(), rtol=1e-12, atol=1e-12)
    for (key, one), two in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-10, atol=1e-13, msg=key)
    for (key, one), two in zip(net.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12, msg=key)


@pytest.mark.parametrize("base", ["unetsmall", "unet"])
def test_checkpointed_unet_is_its_base(base: str) -> None:
    torch.manual_seed(0)
    plain = build_model(base, 4, 5)
    torch.manual_seed(0)
    twin = build_model("checkpointed_unet", 4, 5, base=base)
    assert type(twin) is type(plain)
    images, labels = batch(32)
    for _ in range(2):
        assert torch.equal(step(plain, images, labels), step(twin, images, labels))
        assert_same(plain, twin)
    plain.load_state_dict(twin.state_dict())


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_recomputing_changes_no_bit(dropout: bool, autocast: bool, layout: torch.memory_format) -> None:
    plain = thin(dropout=dropout, probability=0.5).to(memory_format=layout)
    twin = recomputing(plain)
    for size in (24, 37):
        images, labels = batch(size, seed=size)
        images = images.contiguous(memory_format=layout)
        first = step(plain, images, labels, autocast)
        after = torch.rand(2)
        assert torch.equal(first, step(twin, images, labels, autocast))
        assert torch.equal(after, torch.rand(2))
        assert_same(plain, twin)


@pytest.mark.parametrize("frozen", ["encoder", "decoder", "encoder.0", "head", "decoder.0"])
def test_frozen_parts(frozen: str) -> None:
    plain = thin()
    plain.get_submodule(frozen).requires_grad_(False)
    plain.get_submodule(frozen).eval()
    before = copy.deepcopy(plain.get_submodule(frozen).state_dict())
    twin = recomputing(plain)
    for net in (plain, twin):
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        for seed in range(2):
            step(net, *batch(seed=seed))
            optimizer.step()
    assert_same(plain, twin)
    for key, value in twin.get_submodule(frozen).state_dict().items():
        assert torch.equal(value, before[key]), key
    assert any(not torch.equal(p, q) for p, q in zip(twin.parameters(), thin().parameters(), strict=True))


@pytest.mark.parametrize("make", [lambda n: nn.GroupNorm(2, n), lambda n: nn.InstanceNorm2d(n, affine=True)])
def test_other_norms_run_as_they_are(make: object) -> None:
    plain = thin().double()
    for block in [module for module in plain.modules() if isinstance(module, ConvBlock)]:
        for name in ("norm1", "norm2"):
            setattr(block, name, make(getattr(block, name).num_features).double())
    twin, drawn = recomputing(plain), copy.deepcopy(plain)
    images, labels = batch(dtype=torch.float64)
    assert torch.equal(step(plain, images, labels), step(twin, images, labels))
    assert_same(plain, twin)
    F.cross_entropy(oracle(drawn, images), labels).backward()
    for one, two in zip(plain.parameters(), drawn.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-9, atol=1e-12)


def test_hooks_on_inner_modules_run() -> None:
    net, seen = thin(), []
    net.decoder[0].norm1.register_forward_hook(lambda *_: seen.append("norm"))
    net.encoder[0].conv2.register_forward_hook(lambda *_: seen.append("conv"))
    twin, drawn = thin(), thin()
    assert torch.equal(step(net, *batch()), step(twin, *batch()))
    assert sorted(seen) == ["conv", "norm"]
    assert_same(net, drawn.load_state_dict(net.state_dict()) and net)


def test_eval_and_no_grad_keep_nothing_and_run_once() -> None:
    plain = thin()
    twin = recomputing(plain)
    images, labels = batch()
    with torch.no_grad():
        assert torch.equal(plain(images), twin(images))
    assert_same(plain, twin)
    plain.eval(), twin.eval()
    assert torch.equal(step(plain, images, labels), step(twin, images, labels))
    assert_same(plain, twin)


def test_gradients_of_gradients_are_refused_not_wrong() -> None:
    images = batch()[0].requires_grad_()
    (slope,) = torch.autograd.grad(thin()(images).square().mean(), images, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


def test_retained_graph_and_accumulation() -> None:
    plain = thin(dropout=True)
    twin = recomputing(plain)
    for net in (plain, twin):
        torch.manual_seed(3)
        loss = F.cross_entropy(net(batch()[0]), batch()[1])
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same(plain, twin)


def test_copies_and_pickles_recompute() -> None:
    net, file = recomputing(thin()), io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    images, labels = batch(64)
    saved = {measure_step(twin, images, labels).saved for twin in (net, copy.deepcopy(net), loaded)}
    assert len(saved) == 1
    assert saved.pop() < 0.3 * measure_step(thin(), images, labels).saved


def test_memory_of_checkpointed_unet() -> None:
    plain, twin = (estimate_step(build_model(name, 4, 5), 8, 256) for name in ("unetsmall", "checkpointed_unet"))
    assert twin.saved / 8 <= 20 * MIB
    assert twin.peak / 8 <= 55 * MIB
    assert twin.peak < 0.36 * plain.peak


def test_convolutions_run_forward_once_and_again_once() -> None:
    calls = {"aten.convolution.default": 0, "aten.convolution_backward.default": 0}

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if str(func) in calls:
                calls[str(func)] += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for net in (thin(), recomputing(thin())):
        calls.update(dict.fromkeys(calls, 0))
        with Count():
            step(net, *batch())
        counts.append(dict(calls))
    plain, twin = (count["aten.convolution.default"] for count in counts)
    # All but the centre's two once more; besides, the two of the finest encoder block for its skip, and the finest
    # doubled image's.
    assert twin == 2 * plain - 2 + 3
    assert counts[0]["aten.convolution_backward.default"] == counts[1]["aten.convolution_backward.default"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _still_norms(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return net


def _train_one_of_two(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    images, labels = batch(32, count=4)
    mine = slice(2 * rank, 2 * rank + 2)
    result = {}
    for name in ("unetsmall", "checkpointed_unet"):
        for find_unused in (False, True):
            torch.manual_seed(0)
            net = _still_norms(build_model(name, 4, 5))
            shared = nn.parallel.DistributedDataParallel(net, find_unused_parameters=find_unused)
            for _ in range(2):
                step(shared, images[mine], labels[mine])
            result[name, find_unused] = [parameter.grad for parameter in net.parameters()]
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(thin())
    with pytest.raises(ValueError, match="GPU"):  # rather than statistics of one process alone
        synchronised(images[mine])
    if rank == 0:
        torch.save(result, Path(folder) / "gradients.pt")
    torch.distributed.barrier()
    os._exit(0)  # threads of the group that are not joined in time would abort a process that ends by destructors


def test_two_processes_have_the_gradients_of_the_joined_batch(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_train_one_of_two, (_free_port(), str(tmp_path)), nprocs=2)
    found = torch.load(tmp_path / "gradients.pt")
    torch.manual_seed(0)
    alone = _still_norms(build_model("unetsmall", 4, 5))
    step(alone, *batch(32, count=4))
    assert len(found) == 4
    for key, gradients in found.items():
        for one, two, three in zip(gradients, alone.parameters(), found["unetsmall", False], strict=True):
            torch.testing.assert_close(one, two.grad, rtol=1e-3, atol=1e-5, msg=str(key))
            assert torch.equal(one, three), key


def test_every_unet_is_in_models() -> None:
    assert {"unet", "unetsmall", "checkpointed_unet"} <= set(MODELS)
