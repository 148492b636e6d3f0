"""Division that says where it means nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ratio(part: NDArray[np.number], whole: NDArray[np.number]) -> NDArray[np.float64]:
    """Return part / whole, NaN where whole is 0; neither is negative."""
    result: NDArray[np.float64] = np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0)
    return result
