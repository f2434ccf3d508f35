"""Intervals have their nominal coverage, by simulation at the sizes of the studies. Seeds are fixed."""

import numpy as np
import pytest
from scipy import stats

from reversal.common import contrasts, intervals
from reversal.common.contrasts import CHANGES, SHARES, Sample

TIMES = 1500  # simulated studies: two standard errors of a coverage of 95% are 1.1 points


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def coverage(interval, truth):
    """The share of intervals that contain the truth."""
    return np.mean((interval.low <= truth) & (truth <= interval.high))


def simulate_answers(rng, ease, people, templates):
    """Correct answers (rows, TIMES) by a probit model, and the fact and template of each row.

    `people` (n, 1, TIMES) and `templates` (1, m, TIMES) are their effects.
    """
    correct = ease + people + templates + rng.standard_normal((people.shape[0], templates.shape[1], TIMES)) > 0
    n, m = correct.shape[:2]
    return correct.reshape(n * m, TIMES).astype(float), np.repeat(np.arange(n), m), np.tile(np.arange(m), n)


def draw_effects(rng, count, spread, axis):
    """Normal effects of `count` people (axis 0) or templates (axis 1) in each simulated study."""
    return spread * rng.standard_normal((count, 1, TIMES) if axis == 0 else (1, count, TIMES))


def expected_share(ease, *spreads):
    """The expected share of correct answers by the same model."""
    return stats.norm.cdf(ease / np.sqrt(1 + sum(spread**2 for spread in spreads)))


@pytest.mark.parametrize(("ease", "people", "templates"), [(0, 1, 0.7), (1, 0, 0.7), (1.5, 1, 0.7), (2.5, 1, 0)])
def test_recall_of_30_people_by_10_templates_is_covered(rng, ease, people, templates):
    answers = simulate_answers(rng, ease, draw_effects(rng, 30, people, 0), draw_effects(rng, 10, templates, 1))
    covered = coverage(contrasts.mean(Sample(*answers), SHARES), expected_share(ease, people, templates))
    assert 0.93 <= covered <= (0.97 if ease < 2 else 0.99)  # near 100% the unit is the person, even if prompts vary


@pytest.mark.parametrize("facts", [6, 10])
@pytest.mark.parametrize("ease", [0, 1, 2])
def test_recall_of_few_people_is_covered(rng, facts, ease):
    answers = simulate_answers(rng, ease, draw_effects(rng, facts, 1, 0), draw_effects(rng, 10, 0.7, 1))
    assert coverage(contrasts.mean(Sample(*answers), SHARES), expected_share(ease, 1, 0.7)) >= 0.93


@pytest.mark.parametrize("facts", [6, 10])
@pytest.mark.parametrize("known", [0.02, 0.05, 0.1, 0.2])
def test_a_difference_to_few_people_with_recall_near_zero_is_covered(rng, facts, known):
    many = simulate_answers(rng, 2.5, draw_effects(rng, 30, 1, 0), draw_effects(rng, 10, 0, 1))
    templates = np.tile(np.arange(10), facts)
    few = np.repeat(rng.random((facts, TIMES)) < known, 10, axis=0)
    interval = contrasts.difference(
        Sample(*many), Sample(few, np.repeat(np.arange(facts), 10) + 100, templates), CHANGES
    )
    assert coverage(interval, expected_share(2.5, 1, 0) - known) >= (0.93 if facts * known > 0.2 else 0.9)


@pytest.mark.parametrize("facts", [6, 10])
@pytest.mark.parametrize(("before", "after"), [(0.0, 0.9), (0.05, 0.7), (0.1, 0.2)])
def test_a_change_of_few_facts_is_covered(rng, facts, before, after):
    ends = [rng.random((facts, TIMES)) < share for share in (before, after)]
    interval = contrasts.difference(*(Sample(end, np.arange(facts)) for end in ends[::-1]), CHANGES)
    assert coverage(interval, after - before) >= 0.93


@pytest.mark.parametrize(("facts", "templates"), [(6, 1), (10, 10), (30, 10)])
def test_no_bound_is_beyond_that_of_identical_answers(rng, facts, templates):
    rows = facts * templates
    correct = rng.permutation(rows)[:, None] < np.arange(rows + 1)  # none, one, …, all
    sample = Sample(correct, np.repeat(np.arange(facts), templates), np.tile(np.arange(templates), facts))
    interval = contrasts.mean(sample, SHARES)
    assert (interval.low <= interval.low[-1] + 1e-9).all() and (interval.high >= interval.high[0] - 1e-9).all()
    assert interval.low[-1] == pytest.approx(1 - interval.high[0])


@pytest.mark.parametrize("shared", ["facts and templates", "templates", "facts"])
@pytest.mark.parametrize("eases", [(1.5, 1), (2, 0.5)])
def test_a_difference_is_covered_whatever_its_samples_share(rng, shared, eases):
    people, templates = draw_effects(rng, 30, 1, 0), draw_effects(rng, 10, 0.7, 1)
    other_people = (
        0.7 * people + 0.5**0.5 * draw_effects(rng, 30, 1, 0) if "facts" in shared else draw_effects(rng, 30, 1, 0)
    )
    other_templates = templates if "templates" in shared else draw_effects(rng, 10, 0.7, 1)
    first = simulate_answers(rng, eases[0], people, templates)
    values, facts, prompts = simulate_answers(rng, eases[1], other_people, other_templates)
    second = Sample(values, facts + 100 * ("facts" not in shared), prompts + 100 * ("templates" not in shared))
    truth = expected_share(eases[0], 1, 0.7) - expected_share(eases[1], 1, 0.7)
    assert 0.93 <= coverage(contrasts.difference(Sample(*first), second, CHANGES), truth) <= 0.97


def test_a_positive_correlation_of_pairs_narrows_their_difference_and_a_negative_one_widens_it(rng):
    first = rng.standard_normal(20)
    widths = {}
    for name, second in {"together": first + 0.1 * rng.standard_normal(20), "opposed": -first}.items():
        for design, names in {"paired": np.arange(20), "apart": np.arange(20) + 100}.items():
            interval = contrasts.difference(Sample(first, np.arange(20)), Sample(second, names))
            widths[name, design] = interval.high - interval.low
    assert widths["together", "paired"] < widths["together", "apart"]
    assert widths["opposed", "paired"] > widths["opposed", "apart"]


def test_a_mean_of_five_facts_by_two_templates_is_covered_by_a_finite_interval(rng):
    """With less than one of Satterthwaite's degrees of freedom, Student's t would give bounds of 50 digits."""
    sample = Sample(rng.standard_normal((10, TIMES)), np.repeat(np.arange(5), 2), np.tile(np.arange(2), 5))
    interval = contrasts.mean(sample)
    assert coverage(interval, 0) >= 0.93 and np.max(interval.high - interval.low) < 100


def test_one_value_per_fact_gives_students_interval(rng):
    values = rng.standard_normal((12, 3))
    values[4:, 2] = np.nan
    for bound, expected in zip(contrasts.mean(Sample(values, np.arange(12))), intervals.mean(values), strict=True):
        assert bound == pytest.approx(expected)


@pytest.mark.parametrize(("value", "ends"), [(0, (0, 0.1135)), (1, (0.8865, 1))])
def test_if_all_answers_agree_the_fact_is_the_unit(value, ends):
    facts, templates = np.repeat(np.arange(30), 10), np.tile(np.arange(10), 30)
    interval = contrasts.mean(Sample(np.full(300, value), facts, templates), SHARES)
    assert interval == pytest.approx((value, *ends), abs=1e-4)


def test_two_models_that_agree_everywhere_may_differ_on_other_people():
    sample = Sample(np.ones(300), np.repeat(np.arange(30), 10), np.tile(np.arange(10), 30))
    assert contrasts.difference(sample, sample, CHANGES) == pytest.approx((0, -0.1135, 0.1135), abs=1e-4)


def test_a_difference_to_zero_of_six_people_is_as_uncertain_as_six_people_are(rng):
    values, facts, templates = simulate_answers(rng, 2.5, draw_effects(rng, 30, 1, 0), draw_effects(rng, 10, 0, 1))
    first = Sample(values, facts, templates)
    interval = contrasts.difference(first, Sample(np.zeros((6, TIMES)), np.arange(6) + 100, np.arange(6)), CHANGES)
    assert (interval.low < contrasts.mean(first, SHARES).estimate - 0.39).all()


def test_one_fact_or_none_gives_no_bounds():
    assert np.isnan(contrasts.mean(Sample([0.5, 1], ["a", "a"], [1, 2]), SHARES)[1:]).all()
    assert np.isnan(contrasts.mean(Sample([], []))).all()


@pytest.mark.parametrize("facts", [10, 15, 30])
def test_a_ratio_of_means_is_covered(rng, facts):
    below = 3 + rng.standard_normal((facts, TIMES))
    above = 0.6 * below + 1.5 * rng.standard_normal((facts, TIMES))
    assert 0.93 <= coverage(contrasts.ratio(above, below), 0.6) <= 0.97


def test_a_ratio_to_a_mean_that_may_be_zero_is_undefined(rng):
    below = rng.standard_normal((15, TIMES))
    assert np.isnan(contrasts.ratio(below + 1, below).low).mean() == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(("facts", "cells"), [(15, 8), (15, 90), (30, 90)])
def test_a_simultaneous_band_covers_all_cells_at_once(rng, facts, cells):
    covered = 0
    for _ in range(500):
        noise = (rng.standard_normal((facts, 1)) + rng.standard_normal((facts, cells))) * np.linspace(0.2, 2, cells)
        interval = contrasts.simultaneous_band(noise, rng=rng, draws=300)
        covered += ((interval.low <= 0) & (interval.high >= 0)).all()
    assert 0.93 <= covered / 500 <= 0.97


@pytest.mark.parametrize("cells", [4, 90])
def test_noise_has_no_peak(rng, cells):
    places = [contrasts.find_peak(rng.standard_normal((15, cells)), rng=rng, draws=300).place for _ in range(300)]
    assert places.count("nowhere") >= 0.95 * 300


@pytest.mark.parametrize("cells", [4, 90])
def test_two_equal_cells_share_the_peak(rng, cells):
    level = np.where(np.arange(cells) < 2, 3.0, 0)
    peaks = []
    for _ in range(400):
        values = level + rng.standard_normal((15, 1)) + rng.standard_normal((15, cells))
        peaks.append(contrasts.find_peak(values, rng=rng, draws=300))
    assert 0.93 <= np.mean([peak.place == "shared" for peak in peaks]) <= 0.97
    assert np.mean([peak.low <= 3 <= peak.high for peak in peaks]) >= 0.93


def test_a_cell_that_stands_out_is_the_peak(rng):
    values = rng.standard_normal((15, 6)) + np.array([0, 0, 5, 1, 0, 0])
    values[3:, 5] = np.nan  # too few facts to be a peak
    peak = contrasts.find_peak(values, rng=rng)
    assert (peak.cell, peak.place, peak.rivals) == (2, "here", ())
    assert peak.low < peak.estimate < peak.high


@pytest.mark.parametrize("values", [np.empty((0, 3)), np.ones((1, 3)), np.full((4, 3), np.nan)])
def test_without_facts_there_is_no_peak(values, rng):
    peak = contrasts.find_peak(values, rng=rng)
    assert peak.cell is None and peak.place == "nowhere"


def test_a_family_of_tests_has_the_error_rate_of_one_test(rng):
    alone, family = [], []
    for _ in range(TIMES):
        null = rng.standard_normal((200, 4)) + rng.standard_normal((200, 1))
        observed = rng.standard_normal(4) + rng.standard_normal()
        p, adjusted = contrasts.adjust_p_values(observed * [1, 2, 3, 4], null * [1, 2, 3, 4])
        assert (adjusted >= p).all()
        alone.append(p[0] <= 0.05)
        family.append((adjusted <= 0.05).any())
    assert 0.03 <= np.mean(alone) <= 0.07 and 0.03 <= np.mean(family) <= 0.07


def test_max_t_is_more_powerful_than_bonferroni_if_tests_are_correlated(rng):
    shared = rng.standard_normal((2000, 1))
    p, adjusted = contrasts.adjust_p_values(np.full(20, 2.4), shared + 0.2 * rng.standard_normal((2000, 20)))
    assert (adjusted <= 0.05).all() and (np.minimum(20 * p, 1) > 0.05).all()


def test_the_jackknife_covers_a_correlation(rng):
    covered = 0
    for _ in range(TIMES):
        pairs = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 30)
        without = np.stack([np.delete(pairs, i, axis=0) for i in range(30)])
        without = without - without.mean(1, keepdims=True)
        products = without.swapaxes(1, 2) @ without
        without = products[:, 0, 1] / np.sqrt(products[:, 0, 0] * products[:, 1, 1])
        interval = contrasts.jackknife(np.corrcoef(pairs.T)[0, 1], [without], bounded=True)
        covered += interval.low <= 0.6 <= interval.high
    assert 0.93 <= covered / TIMES <= 0.97


@pytest.mark.parametrize("paired", [False, True])
def test_the_correlation_of_two_maps_is_covered_in_spite_of_their_noise(rng, paired):
    covered, raw, ceilings = [], [], []
    for _ in range(300):
        first, other = rng.standard_normal((2, 88))
        second = 0.95 * first + 0.3 * other
        noise = rng.standard_normal((2, 15, 88)) + (rng.standard_normal((15, 88)) if paired else 0)
        comparison = contrasts.compare_maps(first + noise[0], second + noise[1], rng=rng, paired=paired, halves=20)
        truth = np.corrcoef(first, second)[0, 1]
        covered.append(comparison.correlation.low <= truth <= comparison.correlation.high)
        raw.append(comparison.raw)
        ceilings.append(comparison.ceiling)
    assert 0.93 <= np.mean(covered) <= 0.98
    assert paired or np.mean(raw) < np.mean(ceilings) < 0.97


@pytest.mark.parametrize("question_weight", [0.0, 0.5, 1.0])
def test_the_contrast_of_maps_covers_what_was_planted(question_weight, rng):
    """Maps made of a part of the question and a part of the people, whose correlations follow from the weights."""
    covered, estimates = [], []
    people_weight = 1 - question_weight
    norm = question_weight**2 + people_weight**2 + 0.25
    truth = (question_weight**2 - people_weight**2) / norm
    for _ in range(150):
        drawn = rng.standard_normal((88, 8))
        parts = np.linalg.qr(drawn - drawn.mean(0))[0].T * np.sqrt(88)  # orthogonal, mean 0, variance 1
        maps = {
            (people, question): people_weight * parts[people]
            + question_weight * parts[2 + question]
            + 0.5 * parts[4 + 2 * people + question]
            for people in (0, 1)
            for question in (0, 1)
        }
        groups = []
        for people, n in ((0, 12), (1, 9)):
            person = rng.standard_normal((n, 88))  # noise that a person's two maps share
            groups.append([maps[people, question] + person + rng.standard_normal((n, 88)) for question in (0, 1)])
        contrast = contrasts.contrast_maps(*groups)
        estimates.append(contrast.estimate)
        covered.append(contrast.low <= truth <= contrast.high)
    assert np.mean(estimates) == pytest.approx(truth, abs=0.03)
    assert np.mean(covered) >= 0.91


def test_the_jackknife_of_halves_covers_a_mean(rng):
    covered = 0
    for _ in range(400):
        facts = rng.standard_normal(48)
        halves = [facts[rng.permutation(48)[:24]].mean() for _ in range(40)]
        interval = contrasts.jackknife_halves(halves)
        covered += interval.low <= 0 <= interval.high
    assert 0.92 <= covered / 400 <= 0.99


def test_a_correlation_corrected_for_noise_is_not_cut_off_at_1(rng):
    level = rng.standard_normal(88)
    found = [
        contrasts.compare_maps(*(level + rng.standard_normal((2, 6, 88))), rng=rng, halves=20).correlation.estimate
        for _ in range(60)
    ]
    assert max(found) > 1 and np.mean(found) == pytest.approx(1, abs=0.02)


def test_a_mean_over_networks_covers_the_mean_of_all_such_networks(rng):
    """Five networks with 20 shared facts: the coverage is nominal or above."""
    covered = 0
    for _ in range(400):
        facts, networks = rng.standard_normal(20), 0.2 * rng.standard_normal(5)
        means = [
            contrasts.mean(contrasts.Sample(facts + network + 0.5 * rng.standard_normal(20), np.arange(20)))
            for network in networks
        ]
        pooled = contrasts.pool_seeds(*zip(*means, strict=True))
        covered += pooled.low <= 0 <= pooled.high
    assert 0.93 <= covered / 400 <= 1
    alone = contrasts.pool_seeds([1.0], [0.5], [2.0])
    assert alone == (1.0, 0.5, 2.0)
    assert contrasts.pool_seeds([0.9, 1.0], [0.8, 0.9], [1.0, 1.0], contrasts.SHARES).high == 1
