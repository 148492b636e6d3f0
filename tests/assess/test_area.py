"""The stratified estimator against the worked example of its paper, plain sums, and many drawn samples."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoseg.assess.area import Z95, allocate, estimate, sample_size

# Olofsson et al. 2014, section 5: deforestation, forest gain, stable forest, stable non-forest; pixels of 30 m.
PIXELS = [200_000, 150_000, 3_200_000, 6_450_000]
COUNTS = [[66, 0, 5, 4], [0, 55, 8, 12], [1, 0, 153, 11], [2, 1, 9, 313]]
HECTARES = 0.09


def test_the_papers_areas():
    made = estimate(COUNTS, np.array(PIXELS) * HECTARES)
    # By hand: 200000*66/75 + 3200000*1/165 + 6450000*2/325 = 235,086 pixels.
    assert made.area[0] / HECTARES == pytest.approx(235_086, abs=1)
    np.testing.assert_allclose(made.area, [21_158, 11_686, 285_770, 581_386], atol=1)
    # Printed: 21,158 +- 6158, from a standard error of 34,907 pixels (times 1.96: 68,418); 11,686 +- 3756;
    # 285,770 +- 15,510; 581,386 +- 16,282 hectares.
    assert made.area_error[0] / HECTARES == pytest.approx(34_907, abs=1)
    np.testing.assert_allclose(1.96 * made.area_error, [6158, 3756, 15_510, 16_282], rtol=1e-3)
    assert made.area.sum() == pytest.approx(900_000)


def test_the_papers_accuracies():
    made = estimate(COUNTS, PIXELS)
    np.testing.assert_allclose(made.users, [0.88, 0.73, 0.93, 0.96], atol=0.005)
    np.testing.assert_allclose(1.96 * made.users_error, [0.07, 0.10, 0.04, 0.02], atol=0.005)
    np.testing.assert_allclose(made.producers, [0.75, 0.85, 0.93, 0.96], atol=0.005)
    np.testing.assert_allclose(1.96 * made.producers_error[0], 0.21, atol=0.005)
    assert made.overall == pytest.approx(0.95, abs=0.005)
    assert 1.96 * made.overall_error == pytest.approx(0.02, abs=0.005)


def test_the_papers_sample_size_and_allocations():
    expected = [0.70, 0.60, 0.90, 0.95]
    assert sample_size(PIXELS, expected, 0.01) == 641
    pixels = np.array(PIXELS)
    made = allocate(640, PIXELS, pixels, expected, "proportional", least=75)
    # 75 for each of the two rare classes, the other 490 in proportion 3200 : 6450; the paper rounds to 165 and 325.
    assert list(made) == [75, 75, 162, 328]
    assert list(allocate(640, PIXELS, pixels, expected, "proportional", least=0)) == [13, 9, 205, 413]
    assert list(allocate(640, PIXELS, pixels, expected, "equal")) == [160] * 4
    # W S = 0.00917, 0.00735, 0.096, 0.14057 of 0.25308.
    assert list(allocate(640, PIXELS, pixels, expected, "variance", least=0)) == [23, 19, 243, 355]


def test_variances_written_out():
    """Equations 5, 6, 7 and 10 as loops, to catch a slip in the vectorised ones."""
    made = estimate(COUNTS, PIXELS)
    n, areas = np.array(COUNTS, float), np.array(PIXELS, float)
    rows, total = n.sum(axis=1), areas.sum()
    weights = areas / total
    for k in range(4):
        variance = sum(
            (weights[i] * (weights[i] * n[i, k] / rows[i]) - (weights[i] * n[i, k] / rows[i]) ** 2) / (rows[i] - 1)
            for i in range(4)
        )
        assert made.area_error[k] == pytest.approx(total * math.sqrt(variance))
        users = [n[i, i] / rows[i] for i in range(4)]
        true = sum(areas[i] * n[i, k] / rows[i] for i in range(4))
        producers = areas[k] * users[k] / true
        own = areas[k] ** 2 * (1 - producers) ** 2 * users[k] * (1 - users[k]) / (rows[k] - 1)
        others = sum(
            areas[i] ** 2 * n[i, k] / rows[i] * (1 - n[i, k] / rows[i]) / (rows[i] - 1) for i in range(4) if i != k
        )
        assert made.producers_error[k] == pytest.approx(math.sqrt(own + producers**2 * others) / true)
    overall = sum(weights[i] ** 2 * users[i] * (1 - users[i]) / (rows[i] - 1) for i in range(4))
    assert made.overall_error == pytest.approx(math.sqrt(overall))


def test_intervals_hold_the_truth_in_95_of_100_samples(rng: np.random.Generator):
    population = np.array([[900, 80, 20], [300, 4500, 200], [50, 450, 3500]])
    truth, mapped = population.sum(axis=0), population.sum(axis=1)
    right = np.diagonal(population).sum() / population.sum()
    held, areas = np.zeros(4), []
    for _ in range(1500):
        counts = [rng.multinomial(150, row / row.sum()) for row in population]
        made = estimate(counts, mapped)
        held[:3] += np.abs(made.area - truth) <= made.half_width
        held[3] += abs(made.overall - right) <= Z95 * made.overall_error
        areas.append(made.area)
    np.testing.assert_allclose(np.mean(areas, axis=0), truth, rtol=0.005)  # unbiased
    np.testing.assert_allclose(np.std(areas, axis=0), made.area_error, rtol=0.25)
    assert ((held / 1500 > 0.925) & (held / 1500 < 0.97)).all(), held / 1500


def test_classes_that_the_map_or_the_sample_lacks():
    made = estimate([[8, 1, 1], [0, 9, 1], [0, 0, 0]], [100, 50, 0])  # the map has none of class 2
    assert made.area[2] == pytest.approx(100 * 0.1 + 50 * 0.1)
    assert math.isnan(made.users[2])
    assert made.producers[2] == 0
    silent = estimate([[8, 2, 0], [0, 9, 1], [0, 0, 0]], [100, 50, 3])  # nobody looked at class 2 of the map
    assert np.isnan(silent.area).all()
    assert silent.users[0] == 0.8
    single = estimate([[1, 0], [1, 9]], [5, 5])
    assert single.area[0] == pytest.approx(5 + 0.5)
    assert math.isnan(single.area_error[0])
    json.dumps(silent.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("counts", "mapped"), [([[1, 0]], [1, 1]), ([[1, 0], [0, -1]], [1, 1]), ([[1, 0], [0, 1]], [1, 0])]
)
def test_what_makes_no_sense_is_refused(counts, mapped):
    with pytest.raises(ValueError, match="class"):
        estimate(counts, mapped)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.floats(0.01, 100)), min_size=1, max_size=6),
    st.integers(1, 1000),
    st.integers(0, 100),
    st.sampled_from(["proportional", "equal", "variance"]),
)
def test_every_point_is_shared_out(classes, total, least, method):
    pixels = np.array([count for count, _ in classes])
    areas = pixels * np.array([size for _, size in classes])
    made = allocate(total, areas, pixels, [0.8] * len(pixels), method, least)
    assert made.sum() == min(total, pixels.sum())
    assert (made <= pixels).all()
    present = pixels > 0
    floor = min(least, min(total, pixels.sum()) // max(1, present.sum()))
    assert (made >= np.minimum(floor, pixels)).all()
