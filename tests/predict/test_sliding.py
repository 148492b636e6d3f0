"""Sliding over a raster: every pixel once, at its place, as if the network had seen the whole scene."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from geoseg.errors import DataError
from geoseg.geo.grid import Window
from geoseg.geo.raster import Pixels
from geoseg.predict.plan import PART, SlidingOptions, count_windows, parts, runs
from geoseg.predict.predictor import Predictor
from geoseg.predict.sliding import NODATA, best_class, plan_windows, predict_blocks, predict_scores

SHAPES = [(600, 600), (257, 1000), (100, 180), (1, 1), (256, 257)]


class ArraySource:
    """A scene in memory that pads like a raster and remembers the windows read."""

    def __init__(self, image: np.ndarray, valid: np.ndarray | None = None) -> None:
        self.image = image
        self.valid = np.ones(image.shape[1:], dtype=bool) if valid is None else valid
        self.windows: list[Window] = []

    def read(self, window: Window) -> Pixels:
        self.windows.append(window)
        image = np.zeros((self.image.shape[0], window.height, window.width), dtype=self.image.dtype)
        valid = np.zeros((window.height, window.width), dtype=bool)
        part = window.intersection(Window(0, 0, *self.valid.shape))
        if part is not None:
            inside, outside = part.within(window), part.within(Window(0, 0, *self.valid.shape))
            valid[inside] = self.valid[outside]
            image[:, inside[0], inside[1]] = self.image[:, outside[0], outside[1]]
        return Pixels(image, valid)


def classified(predictor: Predictor, source, shape, probabilities: bool = False, **options):
    """Return the class map (and probabilities) of a scene, checking that every pixel comes once."""
    plan = plan_windows(predictor, *shape, SlidingOptions(**options))
    done: list[int] = []
    classes, times = np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=int)
    likelihood = np.zeros((predictor.num_classes, *shape), dtype=np.float32)
    for block in predict_blocks(predictor, source, plan, None, probabilities, done.append):
        at = block.window.within(Window(0, 0, *shape))
        classes[at] = block.classes
        times[at] += 1
        if block.probabilities is not None:
            likelihood[:, at[0], at[1]] = block.probabilities
    assert (times == 1).all()
    assert sum(done) == count_windows(plan)
    return (classes, likelihood) if probabilities else classes


def one_hot(batch: torch.Tensor) -> torch.Tensor:
    """A network that reads the class of a pixel from band 1."""
    return 8 * nn.functional.one_hot(batch[:, 0].long(), 5).movedim(-1, 1).to(batch.dtype)


def pattern(shape) -> np.ndarray:
    rows, columns = np.indices(shape)
    return ((rows // 7 + columns // 11) % 5).astype(np.uint8)


def window_options(blending: str):
    yield from ({"overlap": overlap, "window": 128, "blending": blending} for overlap in (0, 32, 64, 128))
    yield from ({"overlap": 32, "window": window, "blending": blending} for window in (64, 100, 512, None))


@pytest.mark.parametrize("blending", ["none", "hann", "gaussian"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_pattern_comes_back_at_its_place(shape, blending: str):
    wanted = pattern(shape)
    source = ArraySource(wanted[None])
    predictor = Predictor(one_hot, num_classes=5, size_divisor=8, receptive_radius=0)
    for options in window_options(blending):
        np.testing.assert_array_equal(classified(predictor, source, shape, **options), wanted, err_msg=str(options))


@pytest.mark.parametrize("batch_size", [2, 7])
def test_batches_change_nothing(batch_size: int):
    source = ArraySource(pattern((257, 300))[None])
    predictor = Predictor(one_hot, num_classes=5, size_divisor=8)
    for blending in ("none", "hann", "gaussian"):
        result = classified(
            predictor, source, (257, 300), window=64, overlap=16, blending=blending, batch_size=batch_size
        )
        np.testing.assert_array_equal(result, pattern((257, 300)))


@pytest.mark.parametrize("blending", ["none", "hann", "gaussian"])
def test_a_constant_network_gives_a_constant_map(blending: str):
    def constant(batch: torch.Tensor) -> torch.Tensor:
        return torch.tensor([0.1, 2.3, -1.0]).view(1, 3, 1, 1).expand(len(batch), 3, *batch.shape[2:])

    predictor = Predictor(constant, num_classes=3, size_divisor=8)
    expected = torch.tensor([0.1, 2.3, -1.0]).view(1, 3, 1, 1).expand(1, 3, 8, 8).softmax(1)[0, :, 0, 0].numpy()
    source = ArraySource(np.zeros((1, 300, 420), dtype=np.uint8))
    for stride in (256, 192, 128, 64, 32, 100):
        classes, likelihood = classified(
            predictor, source, (300, 420), True, window=stride, overlap=24, blending=blending
        )
        assert (classes == 1).all()
        np.testing.assert_allclose(likelihood[:, 0, 0], expected, rtol=1e-6)
        assert (likelihood == likelihood[:, :1, :1]).all()


def test_windows_lie_at_multiples_of_the_divisor():
    source = ArraySource(np.zeros((1, 300, 500), dtype=np.uint8))
    predictor = Predictor(one_hot, num_classes=5, size_divisor=16, receptive_radius=51)
    for blending in ("none", "hann", "gaussian"):
        classified(predictor, source, (300, 500), window=100, blending=blending)
    assert {n % 16 for w in source.windows for n in (w.row_off, w.col_off, w.height, w.width)} == {0}
    assert max(w.width for w in source.windows) >= 100 + 2 * 51


@pytest.mark.parametrize(
    ("radius", "overlap", "expected"), [(51, None, 56), (None, None, 64), (1000, None, 256), (51, 0, 0), (51, 30, 32)]
)
def test_context_follows_the_network_unless_it_is_given(radius, overlap, expected: int):
    predictor = Predictor(one_hot, num_classes=5, size_divisor=8, receptive_radius=radius)
    plan = plan_windows(predictor, 5000, 5000, SlidingOptions(overlap=overlap))
    assert (plan.side, plan.context, plan.batch_size) == (512, expected, 1)


def test_a_small_scene_takes_a_small_window():
    assert plan_windows(Predictor(one_hot, 5, size_divisor=8), 100, 181, SlidingOptions()).side == 184


@pytest.mark.parametrize("wrong", [{"blending": "linear"}, {"window": 0}, {"overlap": -1}, {"batch_size": 0}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match=r"expected one of|at least"):
        SlidingOptions(**wrong)


class SmallNet(nn.Module):
    """Two levels with batch norm; a pixel sees less than 20 pixels around it."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.coarse = nn.Sequential(nn.MaxPool2d(4), nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.head = nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        fine = self.fine(image)
        coarse = nn.functional.interpolate(self.coarse(fine), scale_factor=4, mode="bilinear")
        return self.head(torch.cat([fine, coarse], 1))


def trained_like(net: nn.Module) -> nn.Module:
    """Give every batch norm statistics and weights of its own, as training would."""
    generator = torch.Generator().manual_seed(3)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.bias.data):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
            for tensor in (module.running_var, module.weight.data):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return net.double().eval()


def seamless(net: nn.Module, divisor: int, radius: int, bands: int, shape, dtype=torch.float64) -> float:
    """Return how far tiled scores are from those of the whole scene, farther than `radius` from its edge.

    As a share of the largest score.
    """
    image = np.random.default_rng(0).normal(size=(bands, *shape))
    predictor = Predictor(net, 3, size_divisor=divisor, receptive_radius=radius, dtype=dtype)
    with torch.inference_mode():
        whole = net(torch.from_numpy(image)[None].to(dtype))[0]
    tiled = torch.zeros_like(whole)
    plan = plan_windows(predictor, *shape, SlidingOptions(window=64))
    for block in predict_scores(predictor, ArraySource(image), plan):
        rows, columns = block.window.within(Window(0, 0, *shape))
        tiled[:, rows, columns] = block.scores
    inside = slice(radius, -radius)
    assert whole[:, inside, inside].std() > 1e-3
    return float((tiled - whole)[:, inside, inside].abs().max() / whole.abs().max())


def test_no_seams_with_enough_context():
    torch.manual_seed(0)
    net = trained_like(SmallNet())
    assert seamless(net, 4, 20, 2, (192, 256)) < 1e-10
    assert seamless(net, 4, 2, 2, (192, 256)) > 1e-3  # the test can see seams


def test_no_seams_with_a_unet():
    models = pytest.importorskip("geoseg.models")
    torch.manual_seed(0)
    net = trained_like(models.build_model("unetsmall", in_channels=4, num_classes=3))
    assert seamless(net, net.size_divisor, net.receptive_radius, 4, (128, 128)) < 1e-10
    assert seamless(net.float(), net.size_divisor, net.receptive_radius, 4, (128, 128), torch.float32) < 1e-4


@pytest.mark.parametrize("blending", ["none", "hann", "gaussian"])
def test_a_few_invalid_pixels_stay_a_few(blending: str):
    torch.manual_seed(0)
    net = trained_like(SmallNet())
    predictor = Predictor(net, 3, size_divisor=4, receptive_radius=20, dtype=torch.float64)
    rng = np.random.default_rng(1)
    image, valid = rng.normal(size=(2, 200, 200)), np.ones((200, 200), dtype=bool)
    specks = rng.integers(60, 80, size=(2, 10))
    valid[tuple(specks)] = False
    options = {"window": 64, "blending": blending}
    clean = classified(predictor, ArraySource(image), (200, 200), **options)
    dirty = classified(predictor, ArraySource(image, valid), (200, 200), **options)
    np.testing.assert_array_equal(dirty == NODATA, ~valid)
    far = np.ones((200, 200), dtype=bool)
    far[60 - 20 : 80 + 20, 60 - 20 : 80 + 20] = False
    np.testing.assert_array_equal(dirty[far], clean[far])


def test_invalid_pixels_reach_the_network_as_zero():
    seen = []

    def spy(batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.clone())
        return torch.zeros(len(batch), 2, *batch.shape[2:])

    valid = np.ones((8, 8), dtype=bool)
    valid[2, 3] = False
    _, likelihood = classified(Predictor(spy, 2), ArraySource(np.full((1, 8, 8), 7.0), valid), (8, 8), True, overlap=0)
    assert seen[0][0, 0, 2, 3] == 0
    assert seen[0].sum() == 7 * 63
    assert np.isnan(likelihood[:, 2, 3]).all()
    assert np.isnan(likelihood).sum() == 2


def test_windows_without_a_valid_pixel_are_not_computed():
    calls = []

    def spy(batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return torch.zeros(len(batch), 2, *batch.shape[2:])

    valid = np.zeros((64, 64), dtype=bool)
    valid[40, 40] = True
    for blending in ("none", "hann", "gaussian"):
        calls.clear()
        source = ArraySource(np.zeros((1, 64, 64)), valid)
        result = classified(Predictor(spy, 2), source, (64, 64), window=16, overlap=0, blending=blending)
        assert len(calls) == 1
        assert result[40, 40] == 0
        assert (result == NODATA).sum() == 64 * 64 - 1


def test_a_network_with_other_classes_is_refused():
    source = ArraySource(np.zeros((1, 8, 8), dtype=np.uint8))
    with pytest.raises(ValueError, match="gives 5 scores"):
        classified(Predictor(one_hot, num_classes=4), source, (8, 8))


def test_scores_that_are_not_numbers_are_refused():
    for value in (torch.nan, torch.inf):
        scores = torch.zeros(2, 30, 30)
        scores[1, 20, 10] = value
        with pytest.raises(DataError, match="not finite"):
            best_class(scores)


def test_the_lowest_of_equal_classes_wins():
    assert best_class(torch.tensor([1.0, 2.0, 2.0]).view(3, 1, 1)).tolist() == [[1]]


@pytest.mark.parametrize("blending", ["none", "hann", "gaussian"])
@pytest.mark.parametrize("window", [32, 48])
def test_any_region_is_as_in_the_whole(blending: str, window: int):
    """Where strips and runs of parts begin changes no bit, so that they may be computed in any order, or anew."""
    torch.manual_seed(0)
    predictor = Predictor(trained_like(SmallNet()), 3, size_divisor=4, receptive_radius=20, dtype=torch.float64)
    shape = (170, 300)
    source = ArraySource(np.random.default_rng(1).normal(size=(2, *shape)))
    plan = plan_windows(predictor, *shape, SlidingOptions(window=window, blending=blending))
    whole = torch.zeros(3, *shape, dtype=torch.float64)
    for block in predict_scores(predictor, source, plan):
        rows, columns = block.window.within(Window(0, 0, *shape))
        whole[:, rows, columns] = block.scores
    for region in (Window(64, 128, 60, 100), Window(0, 0, 40, 300), Window(128, 256, 42, 44), Window(0, 296, 170, 4)):
        times = np.zeros(region.shape, int)
        for block in predict_scores(predictor, source, plan, region):
            rows, columns = block.window.within(Window(0, 0, *shape))
            if blending == "none":  # other windows, whose sums are rounded otherwise
                torch.testing.assert_close(block.scores, whole[:, rows, columns], rtol=0, atol=1e-10)
            else:
                assert torch.equal(block.scores, whole[:, rows, columns])
            times[block.window.within(region)] += 1
        assert (times == 1).all()


@pytest.mark.parametrize("blending", ["none", "hann"])
def test_parts_partition_a_scene(blending: str):
    predictor = Predictor(one_hot, num_classes=5, size_divisor=8, receptive_radius=51)
    for shape in ((1, 1), (5000, 30_000), (PART, 2 * PART), (PART + 1, 90_001)):
        plan = plan_windows(predictor, *shape, SlidingOptions(blending=blending))
        found = parts(plan)
        assert sum(part.height * part.width for part in found) == shape[0] * shape[1]
        assert all(part.row_off % PART == part.col_off % PART == 0 for part in found)
        assert [part for run in runs(found) for part in run] == found
        assert len(runs(found)) == -(-shape[1] // plan.strip)
        assert len(runs(found[:1] + found[2:])) >= 1


_MEASURE = """
import numpy as np, torch
from geoseg.geo.grid import Window
from geoseg.geo.raster import Pixels
from geoseg.memory.measure import peak_resident_bytes
from geoseg.predict.plan import SlidingOptions, parts, runs
from geoseg.predict.predictor import Predictor
from geoseg.predict.sliding import plan_windows, predict_blocks

torch.set_num_threads(1)
predictor = Predictor(lambda batch: batch.repeat(1, 6, 1, 1), num_classes=6)

class Endless:
    def read(self, window):
        return Pixels(np.ones((1, window.height, window.width), np.uint8), np.ones((window.height, window.width), bool))

for blending, height, width in (
    ("none", 256, 25_000), ("none", 25_000, 256), ("hann", 25_000, 256), ("hann", 256, 25_000)
):
    plan = plan_windows(predictor, height, width, SlidingOptions(window=256, overlap=64, blending=blending))
    before = 0
    for run in runs(parts(plan)):
        region = Window(run[0].row_off, run[0].col_off, sum(part.height for part in run), run[0].width)
        for number, _ in enumerate(predict_blocks(predictor, Endless(), plan, region)):
            before = before or (number == 8 and peak_resident_bytes())
    print(peak_resident_bytes() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells it for a program")
def test_memory_does_not_grow_with_the_raster():
    printed = subprocess.run([sys.executable, "-c", _MEASURE], check=True, capture_output=True, text=True).stdout
    grown = [int(line) // 2**20 for line in printed.split()]
    # The scores of the scene would be 170 MiB.
    assert max(grown) < 12
