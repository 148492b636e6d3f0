"""Recomputed modules against the same modules left alone."""

from __future__ import annotations

import copy
import gc
import io
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from geoseg.memory import Replay, measure_step, recompute, run_recomputed

Make = Callable[[], nn.Module]


class Part(nn.Module):
    """Convolution, norm, ReLU in place, dropout, convolution."""

    def __init__(self, norm: nn.Module | None = None, dropout: float = 0.0, inplace: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = norm or nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=inplace)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, image: Tensor, scale: float = 1.0) -> Tensor:
        return self.second(self.dropout(self.act(self.norm(self.first(image))))) * scale


def chain(make: Make = Part) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(make(), make(), make()).double()


def wrapped(net: nn.Sequential) -> nn.Sequential:
    twin = copy.deepcopy(net)
    for part in twin:
        recompute(part)
    return twin


def images_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*(shape or (2, 4, 12, 12)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def step(net: nn.Module, images: Tensor, seed: int = 7) -> Tensor:
    torch.manual_seed(seed)
    out = net(images)
    out.square().mean().backward()
    return out.detach()


def assert_same(one: nn.Module, two: nn.Module) -> None:
    for (key, first), second in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.equal(first, second), key
    for (key, first), second in zip(one.named_parameters(), two.parameters(), strict=True):
        assert (first.grad is None) == (second.grad is None), key
        assert first.grad is None or torch.equal(first.grad, second.grad), key


class Calls(TorchDispatchMode):
    """Notes the result dtype of each convolution, forward ones and backward ones apart."""

    def __init__(self) -> None:
        super().__init__()
        self.forward: list[torch.dtype] = []
        self.backward = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            self.forward.append(result.dtype)
        if func is torch.ops.aten.convolution_backward.default:
            self.backward += 1
        return result


def test_outputs_gradients_and_buffers_are_equal_for_two_steps() -> None:
    plain = chain()
    twin = wrapped(plain)
    for seed in (1, 2):
        images = images_of(seed=seed)
        assert torch.equal(step(plain, images), step(twin, images))
        assert_same(plain, twin)
    assert int(plain[0].norm.num_batches_tracked) == 2


def test_class_and_keys_stay() -> None:
    part = Part()
    keys = list(part.state_dict())
    assert recompute(part) is part
    assert type(part) is Part
    assert list(part.state_dict()) == keys
    assert len(list(part.modules())) == len(list(Part().modules()))


def test_twice_is_once() -> None:
    net = wrapped(chain())
    for part in net:
        recompute(part)
    with Calls() as calls:
        step(net, images_of())
    assert len(calls.forward) == 6 + 3  # each part's last convolution is not needed again


def test_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match="module"):
        recompute(lambda image: image)


def test_statistics_are_those_of_one_pass_from_a_fresh_norm() -> None:
    plain = chain()
    twin = wrapped(plain)
    step(plain, images_of()), step(twin, images_of())
    for one, two in zip(plain, twin, strict=True):
        assert int(two.norm.num_batches_tracked) == 1
        assert torch.equal(one.norm.running_mean, two.norm.running_mean)
        assert torch.equal(one.norm.running_var, two.norm.running_var)


def test_train_mode_passes_without_gradient_move_the_statistics() -> None:
    plain = chain()
    twin = wrapped(plain)
    with torch.no_grad():
        for seed in range(20):
            plain(images_of(seed=seed)), twin(images_of(seed=seed))
    assert_same(plain, twin)
    assert int(twin[0].norm.num_batches_tracked) == 20


def test_forward_without_backward_then_a_step() -> None:
    plain = chain()
    twin = wrapped(plain)
    for net in (plain, twin):
        net(images_of(seed=3))
        step(net, images_of())
    assert_same(plain, twin)


def test_dropout_drops_the_same_and_random_numbers_go_on_the_same() -> None:
    plain = chain(lambda: Part(dropout=0.5))
    twin = wrapped(plain)
    assert torch.equal(step(plain, images_of()), step(twin, images_of()))
    assert_same(plain, twin)
    step(plain, images_of())
    after = torch.rand(3)
    step(twin, images_of())
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize("how", ["eval", "no_grad", "frozen"])
def test_nothing_runs_twice_where_nothing_is_saved(how: str) -> None:
    net, images = wrapped(chain()), images_of()
    if how == "eval":
        net.eval()
    if how == "frozen":
        net.requires_grad_(False)
    with Calls() as calls, torch.set_grad_enabled(how != "no_grad"):
        out = net(images)
        if how == "eval":
            out.sum().backward()
    assert len(calls.forward) == 6


def test_autocast_is_the_same_in_both_runs() -> None:
    net, images = wrapped(chain()).float(), images_of().float()
    with Calls() as calls:
        with torch.autocast("cpu", torch.bfloat16):
            out = net(images)
        out.float().sum().backward()
    assert calls.forward == [torch.bfloat16] * 9
    with Calls() as calls:
        net(images).sum().backward()
    assert calls.forward == [torch.float32] * 9


def test_autocast_gradients_are_equal() -> None:
    plain, images = chain().float(), images_of().float()
    twin = wrapped(plain)
    for net in (plain, twin):
        with torch.autocast("cpu", torch.bfloat16):
            out = net(images)
        out.float().square().mean().backward()
    assert_same(plain, twin)


@pytest.mark.parametrize("frozen", [[0], [1], [2], [0, 1], [1, 2]])
def test_frozen_parts_stay_and_the_others_learn(frozen: list[int]) -> None:
    plain = chain()
    for index in frozen:
        plain[index].requires_grad_(False)
    twin = wrapped(plain)
    step(plain, images_of()), step(twin, images_of())
    assert_same(plain, twin)
    assert all((part.first.weight.grad is None) == (index in frozen) for index, part in enumerate(twin))


def test_frozen_norms_stay_frozen_in_the_second_run() -> None:
    plain = chain()
    plain[1].norm.eval()
    twin = wrapped(plain)
    before = {key: value.clone() for key, value in twin[1].norm.state_dict().items()}
    step(plain, images_of()), step(twin, images_of())
    assert_same(plain, twin)
    assert not twin[1].norm.training
    assert all(torch.equal(before[key], value) for key, value in twin[1].norm.state_dict().items())


def test_the_second_run_has_the_mode_of_the_first() -> None:
    plain = chain(lambda: Part(dropout=0.5))
    twin = wrapped(plain)
    for net in (plain, twin):
        torch.manual_seed(0)
        loss = net(images_of()).square().mean()
        net.eval()
        loss.backward()
        assert not any(module.training for module in net.modules())
    assert_same(plain, twin)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d, lambda n: nn.GroupNorm(2, n)])
@pytest.mark.parametrize("inplace", [False, True])
def test_norms_with_and_without_activation_in_place(norm: Callable[[int], nn.Module], inplace: bool) -> None:
    plain = chain(lambda: Part(norm(8), inplace=False))
    twin = wrapped(plain)
    for part in twin:
        part.act.inplace = inplace
    step(plain, images_of()), step(twin, images_of())
    assert_same(plain, twin)
    assert all(torch.isfinite(parameter.grad).all() for parameter in twin.parameters())
    assert all(part.first.weight.grad.abs().max() > 0 for part in twin)


def test_buffers_that_decide_the_result_are_as_in_the_first_run() -> None:
    class Drifting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 1, 1))
            self.register_buffer("steps", torch.zeros(()))
            self.register_buffer("large", torch.zeros(1 << 15))

        def forward(self, image: Tensor) -> Tensor:
            self.steps.add_(1)
            self.large = self.large + 1  # another tensor under the same name
            return torch.sigmoid(image * self.weight * self.steps * self.large[0]) * self.weight

    plain = nn.Sequential(Drifting(), Drifting()).double()
    twin = wrapped(plain)
    for _ in range(2):
        step(plain, images_of()), step(twin, images_of())
        assert_same(plain, twin)
    assert twin[0].steps == 2


def test_accumulated_gradients() -> None:
    plain = chain()
    twin = wrapped(plain)
    for net in (plain, twin):
        for seed in (1, 2, 3):
            step(net, images_of(seed=seed))
    assert_same(plain, twin)


def test_two_forwards_before_their_backwards() -> None:
    plain = chain()
    twin = wrapped(plain)
    for net in (plain, twin):
        first, second = net(images_of(seed=1)).square().mean(), net(images_of(seed=2)).square().mean()
        first.backward()
        second.backward()
    assert_same(plain, twin)


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    twin = wrapped(chain(lambda: Part(dropout=0.5)))
    loss = twin(images_of()).square().mean()
    loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in twin.parameters()]
    twin.zero_grad()
    loss.backward()
    assert all(torch.equal(one, two.grad) for one, two in zip(first, twin.parameters(), strict=True))


def test_gradients_of_gradients_are_right() -> None:
    plain = chain()
    twin = wrapped(plain)
    for net in (plain, twin):
        images = images_of().requires_grad_()
        (slope,) = torch.autograd.grad(net(images).square().mean(), images, create_graph=True)
        slope.square().sum().backward()
    for one, two in zip(plain.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize("kind", ["channels_last", "sliced", "expanded"])
def test_layouts_of_the_input(kind: str) -> None:
    plain = chain()
    twin = wrapped(plain)
    images = {
        "channels_last": images_of().contiguous(memory_format=torch.channels_last),
        "sliced": images_of(2, 8, 24, 12)[:, ::2, ::2],
        "expanded": images_of(1, 4, 12, 12).expand(3, 4, 12, 12),
    }[kind]
    assert torch.equal(step(plain, images), step(twin, images))
    assert_same(plain, twin)


def test_the_output_may_be_changed_in_place() -> None:
    plain = chain()
    twin = wrapped(plain)
    for net in (plain, twin):
        out = net(images_of())
        out *= 2
        out.square().mean().backward()
    assert_same(plain, twin)


def test_an_input_changed_by_the_module_itself_is_refused() -> None:
    net = recompute(nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1)).double())
    with pytest.raises(RuntimeError, match="in place"):
        net(images_of() * 1)


def test_an_input_changed_before_backward_is_refused() -> None:
    net, images = wrapped(chain()), images_of()
    loss = net(images).sum()
    images += 1
    with pytest.raises(RuntimeError, match=r"changed|modified by an inplace"):
        loss.backward()


def test_weights_changed_before_backward_are_refused() -> None:
    net = wrapped(chain())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step(net, images_of())
    loss = net(images_of()).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"weights .* changed"):
        loss.backward()


def test_after_an_error_in_backward_the_next_step_is_right() -> None:
    class Failing(nn.Module):
        fail = True

        def forward(self, image: Tensor) -> Tensor:
            if image.requires_grad and self.fail:
                image.register_hook(self.raise_error)
            return image * 2

        def raise_error(self, _grad: Tensor) -> None:
            raise MemoryError("no memory")

    plain = nn.Sequential(*chain(lambda: Part(dropout=0.5)), Failing(), Part().double())
    twin = copy.deepcopy(plain)
    for index in (0, 1, 2, 4):
        recompute(twin[index])
    for net in (plain, twin):
        torch.manual_seed(5)
        loss = net(images_of()).sum()
        with pytest.raises(MemoryError):
            loss.backward()
        net.zero_grad()
        net[3].fail = False
        del loss
        step(net, images_of(seed=2))
    assert_same(plain, twin)


def test_an_error_inside_the_second_run_leaves_modes_buffers_and_random_numbers() -> None:
    class Once(nn.Module):
        runs = 0

        def forward(self, image: Tensor) -> Tensor:
            self.runs += 1
            if self.runs > 1:
                raise MemoryError("no memory")
            return image

    net = nn.Sequential(nn.BatchNorm2d(4), nn.Sigmoid(), Once(), nn.Sigmoid()).double()
    recompute(net)
    loss = net(images_of()).sum()
    net.eval()
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    tracked = net[0].running_mean
    with pytest.raises(MemoryError):
        loss.backward()
    assert net[0].running_mean is tracked
    assert not net[0].training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_copies_recompute_by_themselves() -> None:
    net = wrapped(chain())
    twin = copy.deepcopy(net)
    with Calls() as calls:
        step(twin, images_of())
    assert len(calls.forward) == 9
    assert all(parameter.grad is None for parameter in net.parameters())
    assert twin[0].forward.module is twin[0]


def test_saved_modules_recompute_when_loaded() -> None:
    net, file = wrapped(chain()), io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    with Calls() as calls:
        step(twin, images_of())
    step(net, images_of())
    assert len(calls.forward) == 9
    assert_same(net, twin)


def test_state_dict_goes_to_a_plain_module_and_back() -> None:
    twin, plain = wrapped(chain()), chain()
    step(twin, images_of())
    plain.load_state_dict(twin.state_dict())
    twin.load_state_dict(plain.state_dict())
    assert torch.equal(plain.eval()(images_of()), twin.eval()(images_of()))


def test_named_arguments_and_nested_wrapping() -> None:
    plain = Part().double()
    twin = recompute(copy.deepcopy(plain))
    recompute(twin.first), recompute(twin.second)
    for net in (plain, twin):
        net(images_of(), scale=3.0).square().mean().backward()
    assert_same(plain, twin)


def test_hooks_on_the_wrapped_module_run_once() -> None:
    net, seen = recompute(Part().double()), []
    net.register_forward_hook(lambda *_: seen.append(1))
    step(net, images_of())
    assert seen == [1]


def test_memory_is_flat_over_steps_and_falls_with_wrapping() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(*[Part() for _ in range(8)])
    twin = wrapped(plain)
    images, labels = torch.randn(2, 4, 32, 32), torch.randint(0, 4, (2, 32, 32))
    before = measure_step(plain, images, labels)
    gc.disable()
    try:
        first, *others = (measure_step(twin, images, labels) for _ in range(4))
    finally:
        gc.enable()
    assert first.saved < 0.35 * before.saved
    assert first.peak < 0.45 * before.peak
    assert all((memory.saved, memory.peak) == (first.saved, first.peak) for memory in others)


def test_nothing_stays_alive_after_fifty_steps_without_garbage_collection() -> None:
    net = wrapped(chain())
    for _ in range(2):
        step(net, images_of())
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = sum(isinstance(thing, Tensor) for thing in gc.get_objects())
            for _ in range(50):
                step(net, images_of())
            after = sum(isinstance(thing, Tensor) for thing in gc.get_objects())
    finally:
        gc.enable()
    assert after <= before + 5


def test_replay_holds_then_makes_again() -> None:
    part, images = Part(dropout=0.5).double(), images_of()
    torch.manual_seed(3)
    replay = Replay(part, images, modules=[part])
    result = part(images)
    after = torch.rand(3)
    with replay.holding(result):
        assert replay.get() is result
    state = copy.deepcopy(part.state_dict())
    torch.manual_seed(3)
    again = replay.get()
    assert torch.equal(again, result)
    assert again.requires_grad
    assert again.grad_fn is None
    part(images)
    assert torch.equal(after, torch.rand(3))  # replaying drew no numbers
    assert int(part.norm.num_batches_tracked) == int(state["norm.num_batches_tracked"]) + 1


def test_functions_of_several_modules() -> None:
    plain = chain()
    twin = copy.deepcopy(plain)

    def run(image: Tensor) -> Tensor:
        return twin[1](twin[0](image))

    plain(images_of()).square().mean().backward()
    twin[2](run_recomputed(run, images_of(), modules=[twin[0], twin[1]])).square().mean().backward()
    assert_same(plain, twin)


def test_inside_a_recomputed_part_the_inputs_of_inner_ones_are_not_kept() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleList(recompute(Part()) for _ in range(4))

        def forward(self, image: Tensor) -> Tensor:
            for part in self.inner:
                image = part(image)
            return image

    images, labels = torch.randn(2, 4, 32, 32), torch.randint(0, 4, (2, 32, 32))
    memory = measure_step(recompute(Outer()), images, labels)
    logits_and_loss = 2 * images.numel() * 4
    assert memory.saved < logits_and_loss + images.numel() * 4
