"""Claims hold their level, by simulation at the sizes of the studies. Seeds are fixed: none fails by chance."""

import numpy as np
import pytest
from scipy import stats

from reversal.common import contrasts, intervals
from reversal.common.contrasts import CHANGES, SHARES, Sample

TIMES = 1500  # simulated studies: a level of 95% is met within 1.1 points, two standard errors


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def covered(found, truth):
    return np.mean((found.low <= truth) & (truth <= found.high))


def answers(rng, ease, people, templates):
    """Right answers (rows, TIMES) of `people` (n, 1, TIMES) to `templates` (1, m, TIMES); rows' facts, templates."""
    right = ease + people + templates + rng.standard_normal((people.shape[0], templates.shape[1], TIMES)) > 0
    n, m = right.shape[:2]
    return right.reshape(n * m, TIMES).astype(float), np.repeat(np.arange(n), m), np.tile(np.arange(m), n)


def effects(rng, count, spread, axis):
    return spread * rng.standard_normal((count, 1, TIMES) if axis == 0 else (1, count, TIMES))


def share(ease, *spreads):
    return stats.norm.cdf(ease / np.sqrt(1 + sum(spread**2 for spread in spreads)))


@pytest.mark.parametrize(("ease", "people", "templates"), [(0, 1, 0.7), (1, 0, 0.7), (1.5, 1, 0.7), (2.5, 1, 0)])
def test_recall_of_30_people_by_10_templates_is_covered(rng, ease, people, templates):
    drawn = answers(rng, ease, effects(rng, 30, people, 0), effects(rng, 10, templates, 1))
    held = covered(contrasts.mean(Sample(*drawn), SHARES), share(ease, people, templates))
    assert 0.93 <= held <= (0.97 if ease < 2 else 0.99)  # near 100% the people are the unit, even where prompts vary


@pytest.mark.parametrize("facts", [6, 10])
@pytest.mark.parametrize("ease", [0, 1, 2])
def test_recall_of_few_people_is_covered(rng, facts, ease):
    drawn = answers(rng, ease, effects(rng, facts, 1, 0), effects(rng, 10, 0.7, 1))
    assert covered(contrasts.mean(Sample(*drawn), SHARES), share(ease, 1, 0.7)) >= 0.93


@pytest.mark.parametrize("facts", [6, 10])
@pytest.mark.parametrize("known", [0.02, 0.05, 0.1, 0.2])
def test_a_gap_to_few_people_of_whom_hardly_anyone_is_known_is_covered(rng, facts, known):
    many = answers(rng, 2.5, effects(rng, 30, 1, 0), effects(rng, 10, 0, 1))
    templates = np.tile(np.arange(10), facts)
    few = np.repeat(rng.random((facts, TIMES)) < known, 10, axis=0)
    found = contrasts.difference(Sample(*many), Sample(few, np.repeat(np.arange(facts), 10) + 100, templates), CHANGES)
    assert covered(found, share(2.5, 1, 0) - known) >= (0.93 if facts * known > 0.2 else 0.9)


@pytest.mark.parametrize("facts", [6, 10])
@pytest.mark.parametrize(("before", "after"), [(0.0, 0.9), (0.05, 0.7), (0.1, 0.2)])
def test_a_change_of_few_facts_is_covered(rng, facts, before, after):
    ends = [rng.random((facts, TIMES)) < share for share in (before, after)]
    found = contrasts.difference(*(Sample(end, np.arange(facts)) for end in ends[::-1]), CHANGES)
    assert covered(found, after - before) >= 0.93


@pytest.mark.parametrize(("facts", "templates"), [(6, 1), (10, 10), (30, 10)])
def test_no_share_is_surer_than_one_on_which_all_agree(rng, facts, templates):
    rows = facts * templates
    right = rng.permutation(rows)[:, None] < np.arange(rows + 1)  # none, one, …, all
    asked = Sample(right, np.repeat(np.arange(facts), templates), np.tile(np.arange(templates), facts))
    found = contrasts.mean(asked, SHARES)
    assert (found.low <= found.low[-1] + 1e-9).all() and (found.high >= found.high[0] - 1e-9).all()
    assert found.low[-1] == pytest.approx(1 - found.high[0])


def test_over_facts_alone_varied_templates_are_not_covered(rng):
    values, facts, _ = answers(rng, 1, effects(rng, 30, 0, 0), effects(rng, 10, 0.7, 1))
    assert covered(contrasts.mean(Sample(values, facts), SHARES), share(1, 0.7)) < 0.7


@pytest.mark.parametrize("shared", ["facts and templates", "templates", "facts"])
@pytest.mark.parametrize("eases", [(1.5, 1), (2, 0.5)])
def test_a_difference_is_covered_whatever_its_samples_share(rng, shared, eases):
    people, templates = effects(rng, 30, 1, 0), effects(rng, 10, 0.7, 1)
    other_people = 0.7 * people + 0.5**0.5 * effects(rng, 30, 1, 0) if "facts" in shared else effects(rng, 30, 1, 0)
    other_templates = templates if "templates" in shared else effects(rng, 10, 0.7, 1)
    first = answers(rng, eases[0], people, templates)
    values, facts, asked = answers(rng, eases[1], other_people, other_templates)
    second = Sample(values, facts + 100 * ("facts" not in shared), asked + 100 * ("templates" not in shared))
    truth = share(eases[0], 1, 0.7) - share(eases[1], 1, 0.7)
    assert 0.93 <= covered(contrasts.difference(Sample(*first), second, CHANGES), truth) <= 0.97


def test_pairs_that_rise_and_fall_together_differ_more_surely_and_opposed_ones_less(rng):
    one = rng.standard_normal(20)
    widths = {}
    for name, other in {"together": one + 0.1 * rng.standard_normal(20), "opposed": -one}.items():
        for how, names in {"paired": np.arange(20), "apart": np.arange(20) + 100}.items():
            found = contrasts.difference(Sample(one, np.arange(20)), Sample(other, names))
            widths[name, how] = found.high - found.low
    assert widths["together", "paired"] < widths["together", "apart"]
    assert widths["opposed", "paired"] > widths["opposed", "apart"]


def test_a_mean_of_five_facts_by_two_templates_is_covered_by_ends_that_can_be_told(rng):
    """By a share of Satterthwaite's degrees of freedom, Student's t would have ends of 50 digits."""
    sample = Sample(rng.standard_normal((10, TIMES)), np.repeat(np.arange(5), 2), np.tile(np.arange(2), 5))
    found = contrasts.mean(sample)
    assert covered(found, 0) >= 0.93 and np.max(found.high - found.low) < 100


def test_one_value_a_fact_gives_students_interval(rng):
    values = rng.standard_normal((12, 3))
    values[4:, 2] = np.nan
    for mine, known in zip(contrasts.mean(Sample(values, np.arange(12))), intervals.mean(values), strict=True):
        assert mine == pytest.approx(known)


@pytest.mark.parametrize(("value", "ends"), [(0, (0, 0.1135)), (1, (0.8865, 1))])
def test_where_all_answers_agree_the_fact_is_the_unit(value, ends):
    facts, templates = np.repeat(np.arange(30), 10), np.tile(np.arange(10), 30)
    found = contrasts.mean(Sample(np.full(300, value), facts, templates), SHARES)
    assert found == pytest.approx((value, *ends), abs=1e-4)


def test_two_models_that_agree_everywhere_may_yet_differ_for_other_people():
    sample = Sample(np.ones(300), np.repeat(np.arange(30), 10), np.tile(np.arange(10), 30))
    assert contrasts.difference(sample, sample, CHANGES) == pytest.approx((0, -0.1135, 0.1135), abs=1e-4)


def test_a_gap_to_none_of_six_people_is_no_surer_than_the_six_allow(rng):
    values, facts, templates = answers(rng, 2.5, effects(rng, 30, 1, 0), effects(rng, 10, 0, 1))
    first = Sample(values, facts, templates)
    found = contrasts.difference(first, Sample(np.zeros((6, TIMES)), np.arange(6) + 100, np.arange(6)), CHANGES)
    assert (found.low < contrasts.mean(first, SHARES).estimate - 0.39).all()


def test_one_fact_or_none_gives_no_ends():
    assert np.isnan(contrasts.mean(Sample([0.5, 1], ["a", "a"], [1, 2]), SHARES)[1:]).all()
    assert np.isnan(contrasts.mean(Sample([], []))).all()


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.1, 1, "more"), (-1, -0.1, "less"), (-1, 1, "unclear"), (0, 1, "unclear"), (-1, 0, "unclear")],
)
def test_verdicts(low, high, word):
    assert contrasts.sign_of(low, high) == word
    assert contrasts.sign_of(low, np.nan) == contrasts.sign_of(np.nan, high) == "unclear"


@pytest.mark.parametrize("facts", [10, 15, 30])
def test_a_ratio_of_means_is_covered(rng, facts):
    below = 3 + rng.standard_normal((facts, TIMES))
    above = 0.6 * below + 1.5 * rng.standard_normal((facts, TIMES))
    assert 0.93 <= covered(contrasts.ratio(above, below), 0.6) <= 0.97


def test_there_is_no_ratio_to_what_may_be_nothing(rng):
    below = rng.standard_normal((15, TIMES))
    assert np.isnan(contrasts.ratio(below + 1, below).low).mean() == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(("facts", "cells"), [(15, 8), (15, 90), (30, 90)])
def test_a_band_holds_all_cells_at_once(rng, facts, cells):
    held = 0
    for _ in range(500):
        noise = (rng.standard_normal((facts, 1)) + rng.standard_normal((facts, cells))) * np.linspace(0.2, 2, cells)
        found = contrasts.simultaneous_band(noise, rng=rng, draws=300)
        held += ((found.low <= 0) & (found.high >= 0)).all()
    assert 0.93 <= held / 500 <= 0.97


@pytest.mark.parametrize("cells", [4, 90])
def test_noise_has_its_peak_nowhere(rng, cells):
    found = [contrasts.find_peak(rng.standard_normal((15, cells)), rng=rng, draws=300).place for _ in range(300)]
    assert found.count("nowhere") >= 0.95 * 300


@pytest.mark.parametrize("cells", [4, 90])
def test_of_two_cells_as_large_none_is_said_to_be_the_peak(rng, cells):
    level = np.where(np.arange(cells) < 2, 3.0, 0)
    found = []
    for _ in range(400):
        values = level + rng.standard_normal((15, 1)) + rng.standard_normal((15, cells))
        found.append(contrasts.find_peak(values, rng=rng, draws=300))
    assert 0.93 <= np.mean([one.place == "shared" for one in found]) <= 0.97
    assert np.mean([one.low <= 3 <= one.high for one in found]) >= 0.93


def test_a_cell_that_stands_out_is_the_peak_and_its_margin_is_told(rng):
    values = rng.standard_normal((15, 6)) + np.array([0, 0, 5, 1, 0, 0])
    values[3:, 5] = np.nan  # too few to be one
    found = contrasts.find_peak(values, rng=rng)
    assert (found.cell, found.place, found.rivals) == (2, "here", ())
    assert found.low < found.estimate < found.high and 2 < found.margin.low < 4 < found.margin.high


@pytest.mark.parametrize("values", [np.empty((0, 3)), np.ones((1, 3)), np.full((4, 3), np.nan)])
def test_without_facts_there_is_no_peak(values, rng):
    found = contrasts.find_peak(values, rng=rng)
    assert found.cell is None and found.place == "nowhere"


def test_a_family_of_tests_errs_together_as_often_as_one_alone(rng):
    alone, family = [], []
    for _ in range(TIMES):
        null = rng.standard_normal((200, 4)) + rng.standard_normal((200, 1))
        observed = rng.standard_normal(4) + rng.standard_normal()
        p, adjusted = contrasts.adjust_p_values(observed * [1, 2, 3, 4], null * [1, 2, 3, 4])
        assert (adjusted >= p).all()
        alone.append(p[0] <= 0.05)
        family.append((adjusted <= 0.05).any())
    assert 0.03 <= np.mean(alone) <= 0.07 and 0.03 <= np.mean(family) <= 0.07


def test_max_t_finds_more_than_bonferroni_where_tests_go_together(rng):
    shared = rng.standard_normal((2000, 1))
    p, adjusted = contrasts.adjust_p_values(np.full(20, 2.4), shared + 0.2 * rng.standard_normal((2000, 20)))
    assert (adjusted <= 0.05).all() and (np.minimum(20 * p, 1) > 0.05).all()


def test_the_jackknife_covers_a_correlation(rng):
    held = 0
    for _ in range(TIMES):
        pairs = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 30)
        without = np.stack([np.delete(pairs, i, axis=0) for i in range(30)])
        without = without - without.mean(1, keepdims=True)
        products = without.swapaxes(1, 2) @ without
        without = products[:, 0, 1] / np.sqrt(products[:, 0, 0] * products[:, 1, 1])
        found = contrasts.jackknife(np.corrcoef(pairs.T)[0, 1], without, CHANGES)
        held += found.low <= 0.6 <= found.high
    assert 0.93 <= held / TIMES <= 0.97


@pytest.mark.parametrize("paired", [False, True])
def test_the_likeness_of_two_maps_is_covered_in_spite_of_their_noise(rng, paired):
    held, slopes, raw, ceilings = [], [], [], []
    for _ in range(300):
        first, other = rng.standard_normal((2, 88))
        second = 0.95 * first + 0.3 * other
        noise = rng.standard_normal((2, 15, 88)) + (rng.standard_normal((15, 88)) if paired else 0)
        found = contrasts.compare_maps(first + noise[0], second + noise[1], rng=rng, paired=paired, halves=20)
        truth = np.corrcoef(first, second)[0, 1]
        held.append(found.correlation.low <= truth <= found.correlation.high)
        slopes.append(found.slope.low <= np.polyfit(first, second, 1)[0] <= found.slope.high)
        raw.append(found.raw)
        ceilings.append(found.ceiling)
    assert 0.93 <= np.mean(held) <= 0.98 and 0.93 <= np.mean(slopes) <= 0.98
    assert paired or np.mean(raw) < np.mean(ceilings) < 0.97


def test_a_few_large_cells_make_a_correlation_but_no_rank_correlation(rng):
    level = np.where(np.arange(88) < 5, 10, 0)
    maps = level + 0.1 * rng.standard_normal((2, 15, 88))
    found = contrasts.compare_maps(*maps, rng=rng)
    assert found.raw > 0.99 and found.rank < 0.4 and found.rank_ceiling < 0.5 and found.ceiling > 0.99


def test_maps_of_too_few_cells_are_not_compared(rng):
    assert np.isnan(contrasts.compare_maps(np.ones((5, 2)), np.ones((5, 2)), rng=rng).raw)


def test_a_mean_over_networks_covers_the_mean_of_all_such_networks(rng):
    """Five networks, 20 facts that err alike in all of them: the truth lies within as often as promised, or more."""
    inside = 0
    for _ in range(400):
        facts, own = rng.standard_normal(20), 0.2 * rng.standard_normal(5)
        found = [
            contrasts.mean(contrasts.Sample(facts + one + 0.5 * rng.standard_normal(20), np.arange(20))) for one in own
        ]
        pooled = contrasts.pool_seeds(*zip(*found, strict=True))
        inside += pooled.low <= 0 <= pooled.high
    assert 0.93 <= inside / 400 <= 1
    alone = contrasts.pool_seeds([1.0], [0.5], [2.0])
    assert alone == (1.0, 0.5, 2.0)
