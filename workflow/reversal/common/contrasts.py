"""Statistics for claims: estimates with 95% intervals that keep their coverage when facts and templates repeat.

    mean(Sample(values, facts, templates))    a mean over facts and templates, both random (crossed random effects)
    difference(first, second)                 a contrast; facts and templates that both samples have are paired
    ratio(above, below)                       two means over the same facts (Fieller); NaN if the denominator may be 0
    simultaneous_band(values)                 many cells at once (max-T)
    find_peak(values)                         the largest cell, and its rivals
    compare_maps(first, second)               correlations of two maps, and the noise ceiling
    adjust_p_values(observed, null)           p-values of several tests, alone and for the family (step-down max-T)
    pool_seeds(estimates, lows, highs)        the mean over networks that differ in their seed alone
    jackknife(value, [without])               the interval of any statistic, from its values without each fact

NaN means "not measured" and is left out; what cannot be estimated is NaN, never an error. tests/test_contrasts.py
checks the coverage by simulation at the sizes of the studies.
"""

import functools
from typing import NamedTuple

import numpy as np
from scipy import special  # scipy.stats would take every job that imports this a second more

from .intervals import LEVEL, Interval, wilson

SHARES = (0, 1)  # the limits of a share
CHANGES = (-1, 1)  # of the difference of two shares


class Sample(NamedTuple):
    """Measurements: `values` (rows, ...), the fact of each row (rows,) and, if templates vary, its template (rows,)."""

    values: np.ndarray
    facts: np.ndarray
    templates: np.ndarray | None = None


def mean(sample, limits=None):
    """The mean of a sample, every row weighted equally, as an `Interval` over facts and templates.

    The variance is that of two crossed random effects: the variance of the facts' means plus that of the templates'
    means, less the noise that both contain. The interval is Student's with Satterthwaite's degrees of freedom; a
    percentile bootstrap over both covers one or two points less with ten templates. With `limits`, which are SHARES,
    it is Wilson's for the effective number of independent draws, and stays within them. If all rows agree, that number
    is the number of facts: 0 of 30 people is [0, 0.11], however many questions each was asked.
    """
    moments = _estimate_moments([(1, sample)])
    return _reshape_interval((_student_interval if limits is None else _wilson_interval)(moments), moments.shape)


def difference(first, second, limits=None):
    """The mean of `first` minus that of `second`, as an `Interval`.

    Facts and templates that occur in both samples are paired: the same people tested on two models, before and after an
    edit, or different people tested with the same templates. With `limits`, which are CHANGES, both samples are shares
    and the interval combines their Wilson intervals (Newcombe 1998).
    """
    moments = _estimate_moments([(1, first), (-1, second)])
    if limits is None:
        return _reshape_interval(_student_interval(moments), moments.shape)
    part = [_estimate_moments([(1, sample)]) for sample in (first, second)]
    (first_mean, low, high), (second_mean, second_low, second_high) = map(_wilson_interval, part)
    spread = [np.sqrt(part.variance) for part in part]
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = (spread[0] ** 2 + spread[1] ** 2 - moments.variance) / (2 * spread[0] * spread[1])
    correlation = np.where(_is_constant(part[0]) | _is_constant(part[1]), 0, np.clip(correlation, -1, 1))
    ends = [
        first_mean - second_mean + side * np.sqrt(np.maximum(a**2 + b**2 - 2 * correlation * a * b, 0))
        for side, a, b in (
            (-1, first_mean - low, second_high - second_mean),
            (1, high - first_mean, second_mean - second_low),
        )
    ]
    return _reshape_interval((first_mean - second_mean, *ends), moments.shape)


class _Moments(NamedTuple):
    """Signed sum of the samples' means: estimate, variance, degrees of freedom and number of facts, each (cells,)."""

    estimate: np.ndarray
    variance: np.ndarray
    freedom: np.ndarray
    people: np.ndarray
    shape: tuple  # of the cells


def _estimate_moments(signed):
    shape = np.shape(signed[0][1].values)[1:]
    facts, templates = ([getattr(sample, of) for _, sample in signed] for of in ("facts", "templates"))
    estimate, parts, measured = 0, [], []
    for sign, sample in signed:
        values = np.asarray(sample.values, float).reshape(len(sample.values), int(np.prod(shape)))
        measured.append(~np.isnan(values))
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.where(measured[-1], values, 0).sum(0) / measured[-1].sum(0)
            parts.append(np.where(measured[-1], sign * (values - part) / measured[-1].sum(0), 0))
        estimate = estimate + sign * part
    variance, freedom = _cluster_variance(parts, measured, facts)
    if all(names is not None for names in templates):
        variance, freedom = _crossed_variance(parts, measured, facts, templates)
    people = np.min(
        [_sum_clusters([part], [part], [names])[1][0].sum(0) for part, names in zip(measured, facts, strict=True)], 0
    )
    return _Moments(estimate, variance, freedom, people, shape)


def _crossed_variance(parts, measured, facts, templates):
    """The variance (cells,) of a mean over facts and templates, and Satterthwaite's degrees of freedom."""
    by_fact, by_template = _cluster_variance(parts, measured, facts), _cluster_variance(parts, measured, templates)
    noise = _residual_variance(parts, measured, facts, templates)
    crossed = (by_fact[1] > 0) & (by_template[1] > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.fmax.reduce([by_fact[0] + by_template[0] - noise[0], by_fact[0], by_template[0]])
        freedom = variance**2 / np.nansum([part**2 / free for part, free in (by_fact, by_template, noise)], axis=0)
        # With few facts and templates there can be less than one degree of freedom, and an interval of any length.
        freedom = np.where(variance > 0, np.maximum(freedom, 1), by_fact[1])
    return np.where(crossed, variance, by_fact[0]), np.where(crossed, freedom, by_fact[1])


def _cluster_variance(parts, measured, names):
    """Variance (cells,) of a mean between clusters, from each row's part in it, and its degrees of freedom."""
    sums, present = _sum_clusters(parts, measured, names)
    count = present.any(0).sum(0)
    deviations = count - sum(part.sum(0) for part in present) == 0  # no cluster is in two samples
    freedom = count - np.where(deviations, len(parts), 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (sums.sum(0) ** 2).sum(0) * count / freedom, freedom


def _sum_clusters(parts, measured, names):
    """Sums (samples, clusters, cells) of the rows' parts, and whether a sample has rows of the cluster."""
    _, codes = np.unique(np.concatenate(names), return_inverse=True)
    codes = np.split(codes, np.cumsum([len(part) for part in names])[:-1])
    many = max((code.max(initial=-1) for code in codes), default=-1) + 1
    sums, rows = np.zeros((2, len(parts), many, parts[0].shape[1]))
    for i, code in enumerate(codes):
        np.add.at(sums[i], code, parts[i])
        np.add.at(rows[i], code, measured[i])
    return sums, rows > 0


def _residual_variance(parts, measured, facts, templates):
    """Variance (cells,) of a mean that neither facts nor templates explain, and its degrees of freedom."""
    paired = len(parts) > 1 and all(np.isin(ids[0], ids[1]).any() for ids in (facts, templates))
    blocks = [range(len(parts))] if paired else [[i] for i in range(len(parts))]
    noise, freedom = 0, 0
    for block in blocks:
        rows = np.unique(np.concatenate([facts[i] for i in block]), return_inverse=True)
        columns = np.unique(np.concatenate([templates[i] for i in block]), return_inverse=True)
        cells, filled = np.zeros((2, len(rows[0]), len(columns[0]), parts[0].shape[1]))
        np.add.at(cells, (rows[1], columns[1]), np.concatenate([parts[i] for i in block]))
        np.add.at(filled, (rows[1], columns[1]), np.concatenate([measured[i] for i in block]))
        filled = filled > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            left = cells - cells.sum(1, keepdims=True) / filled.sum(1, keepdims=True)
            left = left - (cells.sum(0, keepdims=True) / filled.sum(0, keepdims=True))
            count = filled.sum((0, 1))
            free = np.maximum(count - filled.any(1).sum(0) - filled.any(0).sum(0) + 1, 0)
            noise = noise + np.where(free > 0, np.where(filled, left**2, 0).sum((0, 1)) * count / free, 0)
        freedom = freedom + free
    return noise, freedom


def _student_interval(moments):
    """Student's intervals: estimate, low and high, each (cells,)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        width = _quantile(moments.freedom) * np.sqrt(moments.variance)
    return moments.estimate, moments.estimate - width, moments.estimate + width


def _wilson_interval(moments):
    """Wilson's intervals of shares: estimate, low and high, each (cells,).

    With so many facts, a share `slack` of other people may differ from all of them, and no interval may exclude that.
    This bounds the effective number of draws, and makes the ends of the interval rise with the share.
    """
    share = moments.estimate
    with np.errstate(invalid="ignore", divide="ignore"):
        width = np.where(_is_constant(moments), special.ndtri((1 + LEVEL) / 2), _quantile(moments.freedom))
        slack = np.where(moments.people > 1, wilson(0, np.maximum(moments.people, 1)).high, np.nan)
        nearest = np.minimum(share, 1 - share)
        most = np.where(nearest < slack, width**2 * slack * (1 - slack) / (slack - nearest) ** 2, np.inf)
        draws = np.where(
            _is_constant(moments), moments.people, np.minimum(share * (1 - share) / moments.variance, most)
        )
        middle = (share * draws + width**2 / 2) / (draws + width**2)
        around = width / (draws + width**2) * np.sqrt(draws * share * (1 - share) + width**2 / 4)
        return share, *(np.where(np.isnan(slack), np.nan, np.clip(middle + side * around, 0, 1)) for side in (-1, 1))


def _is_constant(moments):
    return moments.variance <= np.finfo(float).eps


def _reshape_interval(parts, shape):
    """An `Interval` from parts (cells,): arrays of the given shape, or floats."""
    parts = [np.broadcast_to(part, (int(np.prod(shape)),)).reshape(shape) for part in parts]
    return Interval(*(float(part) if part.ndim == 0 else part for part in parts))


def ratio(above, below):
    """The mean of `above` (facts, ...) divided by that of `below` (facts, ...): Fieller's `Interval` over facts.

    NaN if the interval of the denominator contains 0.
    """
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below, float))
    both = ~np.isnan(above + below)
    n = both.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [np.where(both, values, 0).sum(0) / n for values in (above, below)]
        deviations = [np.where(both, values - centre, 0) for values, centre in zip((above, below), means, strict=True)]
        scale = _quantile(n - 1) ** 2 / (n - 1) / n
        a, b, ab = (scale * (x * y).sum(0) for x, y in (deviations[:1] * 2, deviations[1:] * 2, deviations))
        # The ends are the ratios r at which the interval of above − r · below begins to exclude 0.
        square = means[1] ** 2 - b
        middle = (means[0] * means[1] - ab) / square
        width = np.sqrt(np.maximum(middle**2 - (means[0] ** 2 - a) / square, 0))
        clear = square > 0
        parts = (means[0] / means[1], middle - width, middle + width)
    return _reshape_interval([np.where(clear, part, np.nan).ravel() for part in parts], np.shape(n))


def pool_seeds(estimates, lows, highs, limits=(-np.inf, np.inf)):
    """The mean over networks that differ in their seed alone, each with an interval over the same facts.

    The errors of the facts are assumed to be the same in every network, and the spread between networks is added: the
    interval is for the mean over such networks and such facts, and ends at the `limits`. For a single network it is
    that network's own.
    """
    estimates, lows, highs = (np.asarray(part, float) for part in (estimates, lows, highs))
    center, n = estimates.mean(), len(estimates)
    spread = _quantile(n - 1) * estimates.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
    below, above = (np.hypot(np.abs(ends - estimates).mean(), spread) for ends in (lows, highs))
    return Interval(center, *np.clip([center - below, center + above], *limits))


class Peak(NamedTuple):
    """The largest of many means over facts; `cell` and `rivals` are indices of cells."""

    cell: int | None
    estimate: float
    low: float  # simultaneous over all cells, to correct for choosing the largest
    high: float
    rivals: tuple  # cells whose difference from the largest may be 0

    @property
    def place(self):
        """ "here" if the interval is above 0 and no rival is left, "shared" if there are rivals, else "nowhere"."""
        if not self.low > 0:
            return "nowhere"
        return "shared" if self.rivals else "here"


def find_peak(values, *, rng, draws=1000):
    """The `Peak` of the means over facts of `values` (facts, cells); cells that most facts lack are left out.

    The interval of a maximum chosen from many cells must be simultaneous (`simultaneous_band`). Its differences from
    the others are plain paired intervals, which need no correction for the number of cells (Gutmann and Maymin 1987).
    """
    values, cells = _select_cells(values)
    if not len(cells):
        return Peak(None, np.nan, np.nan, np.nan, ())
    simultaneous = simultaneous_band(values, rng=rng, draws=draws)
    best = int(np.argmax(simultaneous.estimate))
    over = mean(Sample(values[:, [best]] - values, np.arange(len(values))))
    others = [i for i in np.argsort(-simultaneous.estimate, kind="stable") if i != best]
    rivals = tuple(int(cells[i]) for i in others if not over.low[i] > 0)
    return Peak(int(cells[best]), *(float(part[best]) for part in simultaneous), rivals=rivals)


def simultaneous_band(values, *, rng, draws=1000):
    """Means over facts of `values` (facts, cells) with simultaneous 95% intervals: an `Interval` of arrays.

    Their width, in standard errors, is the 95% quantile of the largest |t| over cells when the sign of each fact's
    deviations is flipped at random, `draws` times.
    """
    values = np.asarray(values, float)
    measured = ~np.isnan(values)
    n = measured.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(measured, values, 0).sum(0) / n
        deviations = np.where(measured, values - means, 0)
        flipped = rng.choice([-1.0, 1.0], size=(draws, len(values))) @ deviations / n
        errors = np.sqrt(np.maximum((deviations**2).sum(0) / n - flipped**2, 0) / (n - 1))
        width = np.quantile(np.where(errors > 0, np.abs(flipped) / errors, 0).max(1), LEVEL)
        slack = width * np.sqrt((deviations**2).sum(0) / n / (n - 1))
    return Interval(means, means - slack, means + slack)


def _select_cells(values):
    """The cells of `values` (facts, cells) that at least two facts, and half of them, have: values and indices."""
    values = np.asarray(values, float)
    cells = np.flatnonzero((~np.isnan(values)).sum(0) >= max(2, len(values) / 2))
    return values[:, cells], cells


def jackknife(value, without, *, bounded=False):
    """The `Interval` of a statistic, from its `value` on all facts and its values `without` each of them.

    `without` has an array (n,) for each independent sample of facts. If `bounded`, the statistic is a similarity from
    −1 to 1, and so are the ends, which are computed on Fisher's scale.
    """
    scale, back = (np.arctanh, np.tanh) if bounded else (np.asarray, np.asarray)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole, left_out = scale(float(value)), [scale(np.asarray(part, float)) for part in without]
        variances = np.array([(len(part) - 1) * part.var() for part in left_out])
        free = np.array([len(part) - 1 for part in left_out])
        freedom = variances.sum() ** 2 / (variances**2 / free).sum() if variances.any() else free.min()
        width = _quantile(freedom) * np.sqrt(variances.sum())
    return Interval(float(value), *(float(back(whole + side)) for side in (-width, width)))


def jackknife_halves(values):
    """The interval of a bounded statistic from its `values` in random halves of the facts, on Fisher's scale."""
    # Of a statistic that deletes d of n facts, the variance is (n − d) / d times that over subsets: here, that itself.
    values = np.asarray(values, float)
    with np.errstate(invalid="ignore", divide="ignore"):
        middle, width = np.arctanh(values.mean()), _quantile(len(values) - 1) * np.arctanh(values).std(ddof=1)
    return Interval(*map(float, (values.mean(), np.tanh(middle - width), np.tanh(middle + width))))


def adjust_p_values(observed, null):
    """p-values of tests `observed` (tests,) under `null` (permutations, tests): alone, and adjusted for the family.

    Large values are significant. Tests are standardised by the mean and spread of their null; the adjusted p-value
    of each is that of the maximum over it and all less significant ones (Westfall and Young's step-down max-T). The
    rows of `null` are the same permutations for all tests, which keeps the correlation between tests.
    """
    observed, null = np.asarray(observed, float), np.asarray(null, float)
    alone = (1 + (null >= observed).sum(0)) / (1 + len(null))
    spread = np.maximum(null.std(0), np.finfo(float).tiny)
    scaled, chance = (observed - null.mean(0)) / spread, (null - null.mean(0)) / spread
    order = np.argsort(-scaled)
    largest = np.maximum.accumulate(chance[:, order[::-1]], axis=1)[:, ::-1]
    stepped = (1 + (largest >= scaled[order]).sum(0)) / (1 + len(null))
    family = np.empty(len(observed))
    family[order] = np.maximum.accumulate(stepped)
    return alone, np.maximum(family, alone)


class MapSimilarity(NamedTuple):
    """How similar two maps are over their cells."""

    correlation: Interval  # Pearson's, corrected for the noise of the maps; the correction can take it beyond 1
    raw: float  # Pearson's correlation of the mean maps, uncorrected
    ceiling: float  # the expected `raw` of two maps that differ in noise alone


def compare_maps(first, second, *, rng, paired=False, halves=200):
    """The `MapSimilarity` of the mean maps of `first` and `second`, each (facts, cells); `paired` if of the same facts.

    Noise lowers the correlation of two mean maps. Inner products of *different* facts' maps are free of it, so
    `correlation` is made of those, with a jackknife interval over facts. The ceiling is the correlation of random
    halves of each map, extrapolated to all facts (Spearman-Brown).
    """
    maps = _share_cells(first, second)
    if maps[0].shape[1] < 3 or min(map(len, maps)) < 3:
        return MapSimilarity(Interval(np.nan, np.nan, np.nan), np.nan, np.nan)
    correlations = _correct_correlations(_map_moments(*maps, paired=paired))
    splits = [_split_halves(values, rng, halves) for values in maps]
    return MapSimilarity(
        jackknife(correlations[0], correlations[1:]),
        float(_pearson(*(values.mean(0) for values in maps))),
        _noise_ceiling([_pearson(*parts) for parts in splits]),
    )


def contrast_maps(first_people, second_people):
    """How much more alike two maps of one question are than two maps of the same people: `Interval`.

    Each argument has two maps (facts, cells) of the same people, of question A and of question B. The estimate is the
    mean correlation of maps of one question and different people, minus that of maps of the same people and different
    questions, all corrected for noise as in `compare_maps` and over the same cells. The jackknife leaves a person out
    of both maps at once.
    """
    maps = _share_cells(*first_people, *second_people)
    if maps[0].shape[1] < 3 or min(map(len, maps)) < 3:
        return Interval(np.nan, np.nan, np.nan)
    first, second = maps[:2], maps[2:]
    a, b = (_correct_correlations(_map_moments(*pair, paired=False)) for pair in zip(first, second, strict=True))
    c, d = (_correct_correlations(_map_moments(*pair, paired=True)) for pair in (first, second))
    value = a[0] + b[0] - c[0] - d[0]
    without = [a[1] + b[1] - c[1] - d[0], a[2] + b[2] - c[0] - d[1]]  # without each of the first, of the second people
    return jackknife(value / 2, [part / 2 for part in without])


def _share_cells(*maps):
    """The maps over the cells that enough facts of each have, with missing entries filled."""
    shared = functools.reduce(np.intersect1d, [_select_cells(values)[1] for values in maps])
    return [_fill_missing(np.asarray(values, float)[:, shared]) for values in maps]


def _map_moments(first, second, *, paired):
    """Noise-free (xx, yy, xy) of two mean maps: of all facts, then (n,) without each; if not `paired`, of each map."""
    rows = [values - values.mean(1, keepdims=True) for values in (first, second)]
    (xx, xx_without), (yy, yy_without) = (_cross_products(centred, centred, same=True) for centred in rows)
    xy, *without = _cross_products(*rows, same=paired)
    if paired:
        return [(xx, yy, xy), (xx_without, yy_without, without[0])]
    return [(xx, yy, xy), (xx_without, yy, without[0]), (xx, yy_without, without[1])]


def _correct_correlations(moments):
    with np.errstate(invalid="ignore", divide="ignore"):
        return [xy / np.sqrt(np.where((xx > 0) & (yy > 0), xx * yy, np.nan)) for xx, yy, xy in moments]


def _fill_missing(values):
    """`values` (facts, cells) with missing entries replaced by the mean of the other facts."""
    return np.where(np.isnan(values), np.nanmean(values, axis=0), values)


def _cross_products(first, second, *, same):
    """The mean inner product of rows of `first` (n, cells) and `second` (m, cells), and its values without each fact.

    If `same`, row i of both is the same fact and these products are left out; the result is (mean, without (n,)), else
    (mean, without a row of `first` (n,), without a row of `second` (m,)).
    """
    table = first @ second.T
    n, m = table.shape
    if not same:
        total = table.sum()
        return total / n / m, (total - table.sum(1)) / (n - 1) / m, (total - table.sum(0)) / n / (m - 1)
    table = np.where(np.eye(n, dtype=bool), 0, table)
    total = table.sum()
    return total / n / (n - 1), (total - table.sum(0) - table.sum(1)) / (n - 1) / (n - 2)


def _pearson(first, second):
    """Pearson's correlation (...) over the last axis of maps (..., cells)."""
    first, second = (values - values.mean(-1, keepdims=True) for values in (first, second))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))


def _quantile(freedom):
    """Half the width of Student's interval, in standard errors."""
    return special.stdtrit(freedom, (1 + LEVEL) / 2)


def _split_halves(values, rng, draws):
    """Mean maps (draws, cells) of random halves of the facts of `values` (facts, cells), and of the complements."""
    order = np.argsort(rng.random((draws, len(values))), axis=1)
    half = len(values) // 2
    return values[order[:, :half]].mean(1), values[order[:, half:]].mean(1)


def _noise_ceiling(correlations):
    """The expected correlation of two maps that differ in noise alone, from the correlations of the halves of each."""
    correlation = [max(float(np.mean(part)), 0) for part in correlations]
    return float(np.sqrt(np.prod([2 * r / (1 + r) for r in correlation])))
