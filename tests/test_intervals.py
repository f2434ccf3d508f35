"""Wilson's and Student's intervals agree with SciPy's."""

import numpy as np
import pytest
from scipy import stats

from reversal.common import intervals


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(("correct", "n"), [(0, 7), (3, 10), (10, 10), (281, 300)])
def test_wilson_is_scipys_wilson(correct, n):
    expected = stats.binomtest(correct, n).proportion_ci(0.95, "wilson")
    assert intervals.wilson(correct, n) == pytest.approx((correct / n, expected.low, expected.high))


def test_wilson_of_columns_is_that_of_each_row_and_nan_without_answers():
    column = intervals.wilson([0, 3, 0], [7, 10, 0])
    assert column.low[1] == intervals.wilson(3, 10).low
    assert np.isnan(column.estimate[2])


def test_the_mean_over_facts_has_students_interval(rng):
    values = rng.standard_normal((12, 2, 3))
    values[4:, 1, 2] = np.nan  # missing values are left out
    cells = intervals.mean(values)
    assert cells.estimate.shape == (2, 3)
    for place, facts in (((0, 0), values[:, 0, 0]), ((1, 2), values[:4, 1, 2])):
        low, high = stats.t.interval(0.95, len(facts) - 1, facts.mean(), stats.sem(facts))
        assert [part[place] for part in cells] == pytest.approx((facts.mean(), low, high))


@pytest.mark.parametrize("values", [[], [np.nan, np.nan], [3.0]])
def test_without_two_facts_the_mean_has_no_interval(values):
    assert np.isnan(intervals.mean(values)[1:]).all()
