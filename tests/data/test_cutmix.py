"""A rectangle of one sample in another."""

from __future__ import annotations

import numpy as np

from geoseg.data.augment import paste


def mixed(seed: int, size: int = 40) -> tuple[np.ndarray, np.ndarray]:
    image, label = np.zeros((2, size, size), np.float32), np.zeros((size, size), np.uint8)
    other = np.arange(2 * size * size, dtype=np.float32).reshape(image.shape) + 1, np.full_like(label, 3)
    paste(image, label, other, seed)
    new = image != 0
    np.testing.assert_array_equal(image[new], other[0][new])
    np.testing.assert_array_equal(new[0], label == 3)
    np.testing.assert_array_equal(new[1], label == 3)
    return image, label


def test_image_and_label_of_the_same_rectangle_come_from_the_other() -> None:
    for seed in range(30):
        rows, cols = np.nonzero(mixed(seed)[1])
        if len(rows):
            assert len(rows) == (np.ptp(rows) + 1) * (np.ptp(cols) + 1)


def test_equal_seeds_give_equal_rectangles_and_others_differ() -> None:
    assert mixed(5)[1].tobytes() == mixed(5)[1].tobytes()
    assert len({mixed(seed)[1].tobytes() for seed in range(20)}) > 15


def test_the_whole_range_of_shares_is_drawn() -> None:
    """Uniform area, cut off at the edges: from next to nothing to nearly all, a third of the pixels on average."""
    shares = [(mixed(seed)[1] == 3).mean() for seed in range(300)]
    assert min(shares) < 0.02
    assert max(shares) > 0.75
    assert 0.25 < np.mean(shares) < 0.4
