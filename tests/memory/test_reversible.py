"""The reversible library against its oracle, the same program under ordinary autograd."""

from __future__ import annotations

import copy
import gc
import io
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from geoseg.memory.reversible import (
    AdditiveCoupling,
    AffineCoupling,
    ChannelExchange,
    HaarDown,
    HaarUp,
    InvertibleStep,
    MergeSkip,
    PixelShuffleUp,
    PixelUnshuffleDown,
    ReversibleSequence,
    SplitSkip,
    SwapHalves,
    check_invertible,
)


def branch(width: int, outputs: int | None = None, dropout: float = 0.0, inplace: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=inplace),
        nn.Dropout(dropout),
        nn.Conv2d(width, outputs or width, 3, padding=1),
    )


def program(width: int, dropout: float = 0.0) -> list[InvertibleStep]:
    """A small U: two levels, a skip, every kind of step, halves of `width` channels."""
    return [
        AdditiveCoupling(branch(width, dropout=dropout), branch(width, dropout=dropout)),
        ChannelExchange(),
        SplitSkip(),
        PixelUnshuffleDown(),
        AffineCoupling(branch(2 * width, 4 * width), branch(2 * width, 4 * width, dropout)),
        PixelShuffleUp(),
        MergeSkip(),
        SwapHalves(),
        AdditiveCoupling(branch(width, dropout=dropout)),
    ]


def pair(
    *steps: InvertibleStep, dtype: torch.dtype = torch.float64, **options
) -> tuple[ReversibleSequence, ReversibleSequence]:
    saving = ReversibleSequence(*steps, **options).to(dtype)
    oracle = copy.deepcopy(saving)
    oracle.save_memory = False
    return saving, oracle


def image(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def train_step(net: nn.Module, x: Tensor, seed: int = 1) -> tuple[Tensor, Tensor | None]:
    """One forward and backward with a loss that weighs every output differently; returns output and input gradient."""
    torch.manual_seed(seed)
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = net(x)
    (y * image(*y.shape, seed=7).to(y)).sum().backward()
    return y.detach(), x.grad


def assert_same(found: nn.Module, right: nn.Module, tolerance: float = 1e-11) -> None:
    """Every gradient and every buffer agree."""
    largest = max(float(p.grad.abs().max()) for p in right.parameters() if p.grad is not None)
    for (name, p), q in zip(found.named_parameters(), right.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            assert float((p.grad - q.grad).abs().max()) <= tolerance * largest, name
    for (name, b), c in zip(found.named_buffers(), right.buffers(), strict=True):
        torch.testing.assert_close(b, c, rtol=tolerance, atol=tolerance, msg=name)


class Convolutions(TorchDispatchMode):
    """Notes the dtype of each convolution's result, and counts the backward ones."""

    def __init__(self) -> None:
        super().__init__()
        self.forward: list[torch.dtype] = []
        self.backward = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            self.forward.append(out.dtype)
        self.backward += func is torch.ops.aten.convolution_backward.default
        return out


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of living tensors made inside, other than those of `known`, and their peak."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = [x.untyped_storage() for x in known]
        self.sizes: dict[int, int] = {}
        self.peak = 0

    @property
    def now(self) -> int:
        return sum(self.sizes.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self._note(x.untyped_storage())
        self.peak = max(self.peak, self.now)
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.sizes and all(key != known._cdata for known in self.known):
            self.sizes[key] = storage.nbytes()
            weakref.finalize(storage, self.sizes.pop, key, None)


# --- gradients, buffers, random streams ---


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_two_steps_equal_ordinary_autograd(layout: torch.memory_format, dropout: float) -> None:
    saving, oracle = pair(*program(4, dropout), channels=8)
    optimizers = [torch.optim.SGD(net.parameters(), 0.01, momentum=0.9) for net in (saving, oracle)]
    for number in range(2):
        x = image(2, 8, 8, 12, seed=number).contiguous(memory_format=layout)
        results = []
        for net, optimizer in zip((saving, oracle), optimizers, strict=True):
            optimizer.zero_grad()
            y, gradient = train_step(net, x, seed=number)
            results.append((y, gradient, torch.get_rng_state()))
        torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-11)
        torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-11, atol=1e-11)
        assert torch.equal(results[0][2], results[1][2]), "the random stream went elsewhere"
        assert_same(saving, oracle)
        for optimizer in optimizers:
            optimizer.step()
    assert {int(b) for n, b in saving.named_buffers() if n.endswith("num_batches_tracked")} == {2}


def test_statistics_move_without_backward_too() -> None:
    saving, oracle = pair(*program(4))
    with torch.no_grad():
        for number in range(5):
            for net in (saving, oracle):
                net(image(2, 8, 8, 8, seed=number))
    for net in (saving, oracle):
        net(image(2, 8, 8, 8, seed=9))  # forward alone, thrown away
        train_step(net, image(2, 8, 8, 8, seed=10))
    assert_same(saving, oracle)


def test_input_comes_back_for_data_that_is_not_standardised() -> None:
    saving, oracle = pair(
        *[AdditiveCoupling(branch(4), branch(4)) for _ in range(4)], dtype=torch.float32, monitor_every=1
    )
    x = image(2, 8, 16, 16, dtype=torch.float32) * 50 + 500
    train_step(saving, x)
    assert saving.inverse_error is not None
    assert saving.inverse_error < 1e-6
    train_step(oracle, x)
    assert_same(saving, oracle, 1e-5)


def test_random_stream_and_masks_over_eight_couplings() -> None:
    saving, oracle = pair(*[AdditiveCoupling(branch(2, dropout=0.5), branch(2, dropout=0.5)) for _ in range(8)])
    for net in (saving, oracle):
        train_step(net, image(2, 4, 6, 6))
    assert_same(saving, oracle)
    drawn = [torch.rand(3)]
    train_step(oracle, image(2, 4, 6, 6))
    drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d,
        lambda c: nn.InstanceNorm2d(c, affine=True, track_running_stats=True),
        lambda c: nn.GroupNorm(2, c),
    ],
)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.ELU])
def test_in_place_activations_after_any_norm(norm, activation) -> None:
    def part(inplace: bool) -> nn.Sequential:
        return nn.Sequential(
            norm(4), activation(inplace=inplace), nn.Conv2d(4, 4, 3, padding=1), norm(4), activation(inplace=inplace)
        )

    saving = ReversibleSequence(AdditiveCoupling(part(True), part(True)), AdditiveCoupling(part(True))).double()
    oracle = ReversibleSequence(
        AdditiveCoupling(part(False), part(False)), AdditiveCoupling(part(False)), save_memory=False
    ).double()
    oracle.load_state_dict(saving.state_dict())
    for net in (saving, oracle):
        train_step(net, image(2, 8, 6, 6))
    assert_same(saving, oracle)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in saving.parameters())


def test_buffers_of_other_modules_are_as_after_one_run() -> None:
    def part() -> nn.Module:
        return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(2, 2, 3, padding=1)))

    saving, oracle = pair(AdditiveCoupling(part(), part()))
    for net in (saving, oracle):
        train_step(net, image(2, 4, 6, 6))
    assert_same(saving, oracle)


def test_modes_are_those_of_the_forward_pass() -> None:
    saving, oracle = pair(*program(4, 0.5))
    x = image(2, 8, 8, 8)
    for net in (saving, oracle):
        net.steps[0].f[1].eval()  # a frozen batch norm
        net.steps[0].f[1].requires_grad_(False)
        torch.manual_seed(0)
        y = net(x)
        net.eval()  # somebody evaluates in between
        (y * image(*y.shape, seed=7)).sum().backward()
        assert not any(module.training for module in net.modules())
    assert_same(saving, oracle)
    assert int(saving.steps[0].f[1].num_batches_tracked) == 0


# --- parameters as inputs of the graph ---


def test_an_input_without_gradient_still_trains_every_parameter() -> None:
    saving, oracle = pair(*program(4))
    x = image(2, 8, 8, 8)
    for net in (saving, oracle):
        net(x).square().sum().backward()
    assert_same(saving, oracle)
    assert all(p.grad is not None for p in saving.parameters())


def test_frozen_first_steps() -> None:
    saving, oracle = pair(*program(4))
    for net in (saving, oracle):
        net.steps[0].requires_grad_(False)
        net(image(2, 8, 8, 8)).square().sum().backward()
    assert_same(saving, oracle)
    assert all(p.grad is None for p in saving.steps[0].parameters())


def test_accumulation_shared_weights_and_hooks() -> None:
    shared = branch(4)
    saving, oracle = pair(AdditiveCoupling(shared, shared), AdditiveCoupling(shared))
    seen: list[int] = []
    next(saving.parameters()).register_post_accumulate_grad_hook(lambda p: seen.append(1))
    for net in (saving, oracle):
        for number in range(2):
            train_step(net, image(2, 8, 8, 8, seed=number))
    assert_same(saving, oracle)
    assert len(seen) == 2


def test_gradient_with_respect_to_one_parameter() -> None:
    saving, oracle = pair(*program(4))
    found = []
    for net in (saving, oracle):
        loss = net(image(2, 8, 8, 8)).square().sum()
        found.append(torch.autograd.grad(loss, [net.steps[4].f[0].weight])[0])
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


def test_changed_weights_are_noticed() -> None:
    net = ReversibleSequence(*program(4)).double()
    loss = net(image(2, 8, 8, 8)).square().sum()
    with torch.no_grad():
        net.steps[0].f[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# --- other people's tensors ---


@pytest.mark.parametrize("stem", [nn.ReLU(), nn.Sigmoid(), nn.LeakyReLU(), nn.ReLU(inplace=True), nn.BatchNorm2d(8)])
def test_layers_around_keep_their_tensors(stem: nn.Module) -> None:
    saving, oracle = pair(*program(4))
    nets = []
    for body in (saving, oracle):
        torch.manual_seed(3)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), copy.deepcopy(stem), body, nn.ReLU(), nn.Conv2d(8, 2, 1)
        ).double()
        train_step(net, image(2, 3, 8, 8))
        nets.append(net)
    assert_same(*nets)


def test_input_used_elsewhere_and_output_kept() -> None:
    saving, oracle = pair(*program(4))
    x = image(2, 8, 8, 8)
    before = x.clone()
    for net in (saving, oracle):
        stem = nn.Conv2d(8, 8, 1, bias=False, dtype=torch.float64)
        nn.init.constant_(stem.weight, 0.3)
        h = stem(x)
        y = net(h)
        kept = y.detach().clone()
        (y.exp() * h).sum().backward()
        assert torch.equal(y.detach(), kept)
        net.stem_gradient = stem.weight.grad
    assert torch.equal(x, before)
    torch.testing.assert_close(saving.stem_gradient, oracle.stem_gradient, rtol=1e-10, atol=1e-10)
    assert_same(saving, oracle)


def test_one_gradient_tensor_for_two_outputs_is_not_written_to() -> None:
    saving, oracle = pair(*program(4))
    for net in (saving, oracle):
        a, b = image(2, 4, 8, 8).requires_grad_(), image(2, 4, 8, 8, seed=1).requires_grad_()
        y, z = net(a, b)
        (y + z).square().sum().backward()
        net.found = a.grad, b.grad
    torch.testing.assert_close(saving.found, oracle.found, rtol=1e-11, atol=1e-11)


def test_changing_the_output_in_place_is_refused() -> None:
    net = ReversibleSequence(*program(4)).double()
    y = net(image(2, 8, 8, 8))
    y.relu_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_branch_that_changes_its_input_is_refused() -> None:
    part = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1))
    for save_memory in (True, False):
        net = ReversibleSequence(AdditiveCoupling(part), save_memory=save_memory)
        with pytest.raises(RuntimeError, match=r"step 0, AdditiveCoupling: a branch changed its input"):
            net(torch.ones(1, 8, 4, 4))


@pytest.mark.parametrize("kind", ["channels_last", "sliced", "transposed", "expanded"])
def test_layouts_equal_a_contiguous_copy(kind: str) -> None:
    wide = image(4, 10, 8, 8)
    x = {
        "channels_last": wide[:2, :8].contiguous(memory_format=torch.channels_last),
        "sliced": wide[::2, 1:9],
        "transposed": wide[:2, :8].transpose(2, 3),
        "expanded": wide[:1, :8].expand(2, 8, 8, 8),
    }[kind]
    found, right = pair(*program(4))
    right.save_memory = True
    y, gradient = train_step(found, x)
    z, other = train_step(right, x.contiguous())
    torch.testing.assert_close(y, z, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradient, other, rtol=1e-11, atol=1e-11)
    assert_same(found, right)


# --- backward, again and again ---


def test_second_backward_over_a_retained_graph_gives_the_same() -> None:
    net = ReversibleSequence(*program(4, 0.5)).double()
    x = image(2, 8, 8, 8).requires_grad_()
    loss = net(x).square().sum()
    loss.backward(retain_graph=True)
    first = [x.grad.clone(), *(p.grad.clone() for p in net.parameters())]
    loss.backward()
    second = [x.grad, *(p.grad for p in net.parameters())]
    for once, twice in zip(first, second, strict=True):
        assert torch.equal(2 * once, twice)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_of_gradients_are_refused() -> None:
    net = ReversibleSequence(*program(4)).double()
    x = image(2, 8, 8, 8).requires_grad_()
    (gradient,) = torch.autograd.grad(net(x).square().sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


class Failing(nn.Module):
    """The identity, until told to fail in its second run."""

    def __init__(self) -> None:
        super().__init__()
        self.fail = False
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.fail:
            raise MemoryError("no room")
        return x * self.scale


def test_after_an_error_in_backward_everything_is_as_before() -> None:
    steps = [
        AdditiveCoupling(branch(4)),
        AdditiveCoupling(nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(4), Failing())),
        *program(4),
    ]
    saving, oracle = pair(*steps)
    x = image(2, 8, 8, 8)
    with LiveBytes(x, *saving.parameters(), *saving.buffers()) as live:
        torch.manual_seed(0)
        loss = saving(x).square().sum()
        random = torch.get_rng_state()
        saving.steps[1].f[2].fail = True
        with pytest.raises(MemoryError, match="no room"):
            loss.backward()
        assert torch.equal(torch.get_rng_state(), random)
        assert all(m.track_running_stats for m in saving.modules() if isinstance(m, nn.BatchNorm2d))
        with pytest.raises(RuntimeError):
            loss.backward()
        del loss
        saving.zero_grad()
        gc.collect()
        assert live.now <= 2 * random.numel()
    torch.manual_seed(0)
    oracle(x)
    saving.steps[1].f[2].fail = False
    for net in (saving, oracle):
        train_step(net, image(2, 8, 8, 8))
    assert_same(saving, oracle)


def test_fifty_steps_leave_nothing_behind() -> None:
    net = ReversibleSequence(*program(2, 0.5))
    x = image(2, 4, 8, 8, dtype=torch.float32)
    gc.disable()
    try:
        with LiveBytes() as live:
            sizes = []
            for _ in range(50):
                net.zero_grad()
                net(x).square().sum().backward()
                sizes.append(live.now)
    finally:
        gc.enable()
    assert sizes[5] == sizes[-1]


# --- memory and work ---


def _bytes(net: nn.Module, x: Tensor) -> tuple[int, int]:
    with LiveBytes(x, *net.parameters(), *net.buffers()) as live:
        y = net(x)
        saved = live.now
        y.sum().backward()
    return saved, live.peak - sum(p.numel() * p.element_size() for p in net.parameters())


def test_memory_does_not_grow_with_depth() -> None:
    x = image(2, 8, 64, 64, dtype=torch.float32)
    size = x.numel() * x.element_size()

    def chain(count: int, save_memory: bool) -> nn.Module:
        return ReversibleSequence(
            [AdditiveCoupling(branch(4), branch(4)) for _ in range(count)], save_memory=save_memory
        )

    found = {count: _bytes(chain(count, True), x) for count in (4, 32)}
    plain = {count: _bytes(chain(count, False), x) for count in (4, 32)}
    assert found[32][0] < 1.2 * size
    assert found[32][1] < 1.1 * found[4][1]
    assert plain[32][0] > 6 * plain[4][0]


def test_without_gradients_nothing_is_saved() -> None:
    net = ReversibleSequence(*program(4))
    x = image(2, 8, 16, 16, dtype=torch.float32)
    for prepare in (torch.no_grad, torch.inference_mode):
        net.eval()
        with LiveBytes(x, *net.parameters(), *net.buffers()) as live, prepare():
            y = net(x)
            assert not y.requires_grad
            assert live.now == y.numel() * 4


def test_every_branch_runs_twice_and_no_more() -> None:
    net = ReversibleSequence([AdditiveCoupling(branch(4), branch(4)), AffineCoupling(branch(4, 8), branch(4, 8))])
    x = image(2, 8, 8, 8, dtype=torch.float32).requires_grad_()
    with Convolutions() as forward:
        y = net(x).sum()
    with Convolutions() as backward:
        y.backward()
    assert (len(forward.forward), len(backward.forward), backward.backward) == (8, 8, 8)


# --- precision ---


def test_rebuild_runs_under_the_forward_passs_autocast() -> None:
    saving, oracle = pair(*program(4), dtype=torch.float32)
    x = image(2, 8, 8, 8, dtype=torch.float32)
    for inside in (False, True):
        with Convolutions() as forward, torch.autocast("cpu", torch.bfloat16):
            y = saving(x)
        assert y.dtype == torch.float32
        with Convolutions() as backward, torch.autocast("cpu", torch.bfloat16, enabled=inside):
            (y * image(*y.shape, seed=7).to(y)).sum().backward()
        assert forward.forward == backward.forward == [torch.bfloat16] * 10
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            train_step(oracle, x)
    assert_same(saving, oracle, 0.05)


def test_autocast_on_in_backward_alone_changes_nothing() -> None:
    saving, oracle = pair(*program(4), dtype=torch.float32)
    for net in (saving, oracle):
        loss = net(image(2, 8, 8, 8, dtype=torch.float32)).square().sum()
        with Convolutions() as seen, torch.autocast("cpu", torch.bfloat16):
            loss.backward()
        assert set(seen.forward) <= {torch.float32}
    assert_same(saving, oracle, 1e-5)


def test_bfloat16_weights_keep_a_float32_stream() -> None:
    net = ReversibleSequence([AdditiveCoupling(branch(4), branch(4))] * 4).to(torch.bfloat16)
    x = image(2, 8, 8, 8, dtype=torch.bfloat16).requires_grad_()
    y = net(x)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype) == (torch.float32, torch.bfloat16)


def test_gradients_of_32_couplings_in_float32() -> None:
    steps = [AdditiveCoupling(branch(4), branch(4)) for _ in range(32)]
    right = ReversibleSequence(copy.deepcopy(steps)).double()
    found = ReversibleSequence(steps)
    train_step(right, image(2, 8, 16, 16, dtype=torch.float32).double())
    train_step(found, image(2, 8, 16, 16, dtype=torch.float32))
    reference = torch.cat([p.grad.flatten() for p in right.parameters()])
    gradient = torch.cat([p.grad.flatten() for p in found.parameters()]).double()
    assert float((gradient - reference).norm() / reference.norm()) < 1e-5


@pytest.mark.parametrize(
    "options",
    [{"exact": True}, {"exact": True, "bits": 16}, {"stream": "int16"}, {"stream": "int16", "share_output": False}],
)
@pytest.mark.parametrize("low", [False, True])
def test_a_fixed_point_stream_comes_back_bit_by_bit(options: dict, low: bool) -> None:
    steps = [AdditiveCoupling(branch(4), branch(4)) for _ in range(32)]
    saving, oracle = pair(*steps, dtype=torch.float32, monitor_every=1, **options)
    x = image(2, 8, 8, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        y, gradient = train_step(saving, x)
        z, other = train_step(oracle, x)
    assert saving.inverse_error == 0.0
    assert torch.equal(y, z)
    assert torch.equal(gradient, other)
    assert torch.equal(y * 2.0**saving.stream.bits, (y * 2.0**saving.stream.bits).round())
    for p, q in zip(saving.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


def test_an_int16_stream_saves_two_bytes_a_value() -> None:
    x = image(2, 8, 64, 64, dtype=torch.float32)
    net = ReversibleSequence([AdditiveCoupling(branch(4)) for _ in range(3)], stream="int16", share_output=False)
    with LiveBytes(x, *net.parameters(), *net.buffers()) as live:
        loss = net(x).sum()
        assert live.now < 2.1 * x.numel()
    loss.backward()


def test_monitor_warns_with_numbers_and_remedy() -> None:
    net = ReversibleSequence([AdditiveCoupling(branch(4))], monitor_every=2)
    net.tolerance = -1.0
    x = image(2, 8, 8, 8, dtype=torch.float32) * 1e3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_step(net, x)
    with pytest.warns(RuntimeWarning, match=r"relative error of \d.*exact=True"):
        train_step(net, x)
    crowded = ReversibleSequence([AdditiveCoupling(branch(4))], stream="int16", monitor_every=1)
    with pytest.warns(RuntimeWarning, match="use fewer bits"):
        train_step(crowded, x)


@pytest.mark.parametrize("slices", [2, 3, 7])
def test_slices_of_the_batch_change_nothing_but_memory(slices: int) -> None:
    def part() -> nn.Sequential:
        return nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1))

    whole = ReversibleSequence(AdditiveCoupling(part(), part()), AdditiveCoupling(part())).double()
    sliced = copy.deepcopy(whole)
    for step in sliced.steps:
        step.slices = slices
    x = image(5, 8, 32, 32)
    peaks = []
    for net in (whole, sliced):
        with LiveBytes(x, *net.parameters()) as live:
            train_step(net, x)
        peaks.append(live.peak)
    assert_same(sliced, whole)
    assert peaks[1] < peaks[0] - x.numel() * 4


def test_slices_draw_the_same_random_numbers_again() -> None:
    net = ReversibleSequence(
        AdditiveCoupling(nn.Sequential(nn.Dropout(0.5), nn.Conv2d(4, 4, 1)), slices=2), monitor_every=1
    )
    net.double()
    train_step(net, image(4, 8, 6, 6))
    assert net.inverse_error < 1e-15


# --- wrong use, and odds and ends ---


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ReversibleSequence(program(4), channels=15), "found 15 channels, expected an even number"),
        (lambda: ReversibleSequence(SplitSkip(), channels=6), r"step 0, SplitSkip: found a half of 3 channels"),
        (lambda: ReversibleSequence(ChannelExchange(), channels=6), r"step 0, ChannelExchange: found halves of 3"),
        (lambda: ReversibleSequence(PixelShuffleUp(), channels=12), r"step 0, PixelShuffleUp: found halves of 6 and 6"),
        (lambda: ReversibleSequence(MergeSkip(), channels=8), r"step 0, MergeSkip: found 2 tensors"),
        (lambda: ReversibleSequence(program(4))(torch.ones(1, 5, 8, 8)), "found 5 channels"),
        (
            lambda: ReversibleSequence(program(4))(torch.ones(1, 8, 7, 8)),
            r"step 3, PixelUnshuffleDown: found a size of 7 x 8",
        ),
        (lambda: AdditiveCoupling(branch(4))(torch.ones(1, 7, 8, 8)), "AdditiveCoupling: found 7 channels"),
        (
            lambda: ReversibleSequence(AdditiveCoupling(branch(4, 2)))(torch.ones(1, 8, 8, 8)),
            r"branch output of shape \(1, 2, 8, 8\)",
        ),
        (lambda: ReversibleSequence(SplitSkip())(torch.ones(1, 8, 8, 8)), "found 1 skips left at the end"),
        (
            lambda: ReversibleSequence(AffineCoupling(branch(4, 8)), exact=True)(torch.ones(1, 8, 8, 8)),
            "use AdditiveCoupling",
        ),
        (lambda: ReversibleSequence(program(4), stream="int8"), "expected 'float32' or 'int16'"),
        (lambda: ReversibleSequence(program(4), bits=3), "set exact=True"),
        (lambda: AdditiveCoupling(branch(4), slices=2), "found batch norm and 2 slices"),
    ],
)
def test_wrong_use_names_the_layer(make, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_only_invertible_steps_are_taken() -> None:
    with pytest.raises(TypeError, match="step 1: found Conv2d"):
        ReversibleSequence(AdditiveCoupling(branch(4)), nn.Conv2d(8, 8, 1))


def test_copies_pickles_and_state_dicts() -> None:
    net = ReversibleSequence(*program(4)).double()
    train_step(net, image(2, 8, 8, 8))
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    others = [copy.deepcopy(net), torch.load(file, weights_only=False)]
    for each in (net, *others):
        each.zero_grad()
        train_step(each, image(2, 8, 8, 8))
    for other in others:
        assert_same(other, net)
        net.load_state_dict(other.state_dict())


def test_inverse_and_single_steps() -> None:
    net = ReversibleSequence(*program(4)).double().eval()
    x = image(2, 8, 8, 8)
    torch.testing.assert_close(net.inverse(net(x)), x, rtol=1e-11, atol=1e-11)
    for step in (AdditiveCoupling(branch(4)).double().eval(), PixelUnshuffleDown(), ChannelExchange()):
        torch.testing.assert_close(step.invert(step(x)), x, rtol=1e-11, atol=1e-11)
    halves = PixelUnshuffleDown()(x).chunk(2, 1)
    assert torch.equal(halves[0], F.pixel_unshuffle(x[:, :4], 2))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_haar_is_orthogonal_and_starts_with_the_mean(layout: torch.memory_format) -> None:
    x = image(2, 8, 8, 12).contiguous(memory_format=layout)
    before = x.clone()
    y = HaarDown()(x)
    torch.testing.assert_close(y[:, :16:4], 2 * F.avg_pool2d(x[:, :4], 2), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(y.square().sum(), x.square().sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(HaarUp()(y), x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(HaarDown().invert(y), x, rtol=1e-12, atol=1e-12)
    assert torch.equal(x, before)


@pytest.mark.parametrize("options", [{}, {"exact": True}])
def test_haar_inside_a_sequence(options: dict) -> None:
    steps = [SplitSkip(), HaarDown(), AdditiveCoupling(branch(8), branch(8)), HaarUp(), MergeSkip()]
    dtype = torch.float32 if options else torch.float64
    saving, oracle = pair(*steps, dtype=dtype, channels=8, monitor_every=1, **options)
    for net in (saving, oracle):
        train_step(net, image(2, 8, 8, 8, dtype=dtype))
    assert_same(saving, oracle, 1e-5 if options else 1e-11)
    assert saving.inverse_error == 0 if options else saving.inverse_error < 1e-14
    with pytest.raises(ValueError, match="HaarDown: found an int16 stream"):
        ReversibleSequence(steps, stream="int16")(image(2, 8, 8, 8, dtype=torch.float32))


class Scale(InvertibleStep):
    """A step by somebody else, as short as the contract allows."""

    def __init__(self, right: bool = True) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((4, 1, 1), 0.3))
        self.right = right

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        a, b = state
        return a * self.log.exp() + b, b

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        a, b = state
        return (a - b) / (self.log.exp() if self.right else self.log), b


def test_a_new_step_and_its_check() -> None:
    x = image(2, 8, 8, 8)
    report = check_invertible(Scale().double(), x)
    assert max(report.rebuilt, report.parameter_gradients) < 1e-14
    saving, oracle = pair(*program(4), Scale(), *program(4))
    for net in (saving, oracle):
        train_step(net, x)
    assert_same(saving, oracle)
    check_invertible(saving, x)
    with pytest.raises(ValueError, match="rebuilt is off by"):
        check_invertible(Scale(right=False).double(), x)


def test_a_compiled_network_steps_around_the_sequence_and_equals_the_plain_one() -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), ReversibleSequence(*program(4)), nn.Conv2d(8, 2, 1)).double()
    other = copy.deepcopy(net)
    batch = torch.randn(2, 3, 8, 8, dtype=torch.float64)

    plain = net(batch)
    plain.square().mean().backward()
    compiled = torch.compile(other, backend="eager")(batch)
    compiled.square().mean().backward()

    assert torch.equal(compiled, plain)
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, rtol=1e-9, atol=1e-12)
