"""Wilson's and Student's intervals agree with SciPy's."""

import numpy as np
import pytest
from scipy import stats

from reversal.common import intervals


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(("correct", "n"), [(0, 7), (3, 10), (10, 10), (281, 300)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson_is_scipys_wilson(correct, n, level):
    expected = stats.binomtest(correct, n).proportion_ci(level, "wilson")
    assert intervals.wilson(correct, n, level) == pytest.approx((correct / n, expected.low, expected.high))


def test_wilson_without_rows_is_nan():
    assert np.isnan(intervals.wilson(0, 0).estimate)


def test_wilson_of_all_correct_ends_at_one_and_starts_below():
    estimate, low, high = intervals.wilson(10, 10)
    assert estimate == high == 1 and 0.6 < low < 1


def test_wilson_accepts_whole_columns():
    column = intervals.wilson([0, 3, 0], [7, 10, 0])
    assert column.low[1] == intervals.wilson(3, 10).low
    assert np.isnan(column.estimate[2])


def test_more_correct_answers_than_rows_are_rejected():
    with pytest.raises(ValueError, match="between 0 and n"):
        intervals.wilson(11, 10)


def test_the_mean_over_facts_has_students_interval(rng):
    values = rng.standard_normal(12)
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert intervals.mean(values) == pytest.approx((values.mean(), low, high))


def test_means_of_many_cells_ignore_missing_values(rng):
    values = rng.standard_normal((9, 2, 3))
    values[4:, 1, 2] = np.nan
    cells = intervals.mean(values)
    assert cells.estimate.shape == (2, 3)
    assert cells.low[1, 2] == pytest.approx(intervals.mean(values[:4, 1, 2]).low)


@pytest.mark.parametrize("values", [[], [np.nan, np.nan]])
def test_the_mean_without_values_is_nan(values):
    assert np.isnan(intervals.mean(values)).all()


def test_one_fact_gives_a_mean_without_an_interval():
    estimate, low, high = intervals.mean([3.0])
    assert estimate == 3 and np.isnan(low) and np.isnan(high)
