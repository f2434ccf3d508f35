"""Simple intervals: Wilson's of a share, Student's of a mean. `contrasts` has those that claims rest on.

NaN means "not measured" and is left out; what cannot be estimated is NaN, never an error.
"""

from typing import NamedTuple

import numpy as np
from scipy import special  # scipy.stats would take every job that imports this a second more

LEVEL = 0.95


class Interval(NamedTuple):
    """An estimate and the ends of its interval: floats, or arrays of one shape."""

    estimate: float | np.ndarray
    low: float | np.ndarray
    high: float | np.ndarray


def wilson(correct, n):
    """Wilson's score interval of the share `correct` / `n`, numbers or arrays; `correct` may be a sum of fractions.

    scipy's `binomtest` gives the same numbers for one pair of whole numbers; tables need arrays and n = 0.
    """
    correct, n = np.broadcast_arrays(np.asarray(correct, float), np.asarray(n, float))
    z = special.ndtri((1 + LEVEL) / 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = correct / n
        middle = (correct + z**2 / 2) / (n + z**2)
        reach = z / (n + z**2) * np.sqrt(n * share * (1 - share) + z**2 / 4)
    return _interval(share, np.maximum(middle - reach, 0), np.minimum(middle + reach, 1))


def mean(values):
    """Student's interval of the mean over facts of `values` (facts, ...); a single fact gives NaN ends."""
    values = np.asarray(values, float)
    known = ~np.isnan(values)
    n = known.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        estimate = np.where(known, values, 0).sum(0) / n
        variance = np.where(known, (values - estimate) ** 2, 0).sum(0) / (n - 1)
        reach = special.stdtrit(n - 1, (1 + LEVEL) / 2) * np.sqrt(variance / n)
    return _interval(estimate, estimate - reach, estimate + reach)


def _interval(*parts):
    return Interval(*(float(part) if np.ndim(part) == 0 else np.asarray(part) for part in parts))
