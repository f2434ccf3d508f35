"""What may be claimed: means, contrasts, ratios, peaks and likenesses, each with an interval that holds its level.

    mean(Sample(values, facts, templates))    a mean whose facts and templates might both have been others
    difference(first, second)                 a contrast: facts and templates that both samples have are paired
    ratio(above, below)                       of two means over the same facts; none without a clear denominator
    band(values), peak(values)                many cells at once, and the largest of them: interval, margin, rivals
    alike(first, second)                      two maps of cells: correlations, slope, and the most one could have seen
    adjusted(observed, null)                  p-values of several tests, alone and as a family (max-T)
    pooled(estimates, lows, highs)            of one thing in several networks, their mean
    jackknife(value, without)                 the interval of any statistic, from what it is without each fact
    verdict(low, high), Peak.place            the words

A NaN is a measurement that was not made: it is left out. What cannot be known is NaN, never an error. Every interval is
at 95% and every test at 5%, which tests/test_contrasts.py holds by simulation at the sizes of the studies.
"""

from typing import NamedTuple

import numpy as np
from scipy import special  # scipy.stats would take every job that imports this a second more

from .intervals import Interval, wilson

LEVEL = 0.95
SHARES = (0, 1)  # the limits of a share
CHANGES = (-1, 1)  # of the difference of two shares


class Sample(NamedTuple):
    """Measurements: `values` (rows, ...), each row's fact and, where templates may matter, its template (rows,)."""

    values: np.ndarray
    facts: np.ndarray
    templates: np.ndarray | None = None


def verdict(low, high):
    """Whether an interval lies above zero ("more"), below it ("less") or neither ("unclear", also if unknown)."""
    if np.isnan(low) or np.isnan(high):
        return "unclear"
    return "more" if low > 0 else "less" if high < 0 else "unclear"


def mean(sample, limits=None):
    """The mean of a sample's values, all rows alike, and its `Interval` over facts and templates.

    The variance is that of two crossed random effects: facts' means and templates' means, less the noise that both
    contain. The reach is Student's, with Satterthwaite's degrees of freedom; a percentile bootstrap of both covers one
    or two points less with ten templates. With `limits`, which are SHARES, the interval stays within them: it is
    Wilson's, of as many independent draws as would vary so much. Where all rows agree their number is that of the
    facts: 0 of 30 people, however often they are asked, is [0, 0.11]. No other share is surer of that end.
    """
    found = _moments([(1, sample)])
    return _shaped((_student if limits is None else _wilson)(found), found.shape)


def difference(first, second, limits=None):
    """The mean of `first` less that of `second`, and its `Interval`.

    What the samples share is paired: a fact or a template of the same name moves both. So the same people asked by two
    models, before and after an edit, or other people asked with the same templates, need no functions of their own.
    With `limits`, which are CHANGES, both are shares: the interval is made of theirs (Newcombe 1998), so that a share
    of 0 of six people adds what it leaves open.
    """
    found = _moments([(1, first), (-1, second)])
    if limits is None:
        return _shaped(_student(found), found.shape)
    own = [_moments([(1, sample)]) for sample in (first, second)]
    (one, low, high), (other, its_low, its_high) = map(_wilson, own)
    spread = [np.sqrt(part.variance) for part in own]
    with np.errstate(invalid="ignore", divide="ignore"):
        together = (spread[0] ** 2 + spread[1] ** 2 - found.variance) / (2 * spread[0] * spread[1])
    together = np.where(_agree(own[0]) | _agree(own[1]), 0, np.clip(together, -1, 1))
    ends = [
        one - other + side * np.sqrt(np.maximum(a**2 + b**2 - 2 * together * a * b, 0))
        for side, a, b in ((-1, one - low, its_high - other), (1, high - one, other - its_low))
    ]
    return _shaped((one - other, *ends), found.shape)


class _Moments(NamedTuple):
    """The signed sum of samples' means: estimate, variance, degrees of freedom and facts, each (cells,)."""

    estimate: np.ndarray
    variance: np.ndarray
    freedom: np.ndarray
    people: np.ndarray
    shape: tuple  # of the cells


def _moments(signed):
    shape = np.shape(signed[0][1].values)[1:]
    facts, templates = ([getattr(sample, of) for _, sample in signed] for of in ("facts", "templates"))
    estimate, parts, known = 0, [], []
    for sign, sample in signed:
        values = np.asarray(sample.values, float).reshape(len(sample.values), int(np.prod(shape)))
        known.append(~np.isnan(values))
        with np.errstate(invalid="ignore", divide="ignore"):
            own = np.where(known[-1], values, 0).sum(0) / known[-1].sum(0)
            parts.append(np.where(known[-1], sign * (values - own) / known[-1].sum(0), 0))
        estimate = estimate + sign * own
    variance, freedom = _between(parts, known, facts)
    if all(names is not None for names in templates):
        variance, freedom = _crossed(parts, known, facts, templates)
    people = np.min([_clusters([own], [own], [names])[1][0].sum(0) for own, names in zip(known, facts, strict=True)], 0)
    return _Moments(estimate, variance, freedom, people, shape)


def _crossed(parts, known, facts, templates):
    """The variance (cells,) of a mean over facts and templates, and Satterthwaite's degrees of freedom."""
    by_fact, by_template = _between(parts, known, facts), _between(parts, known, templates)
    noise = _within(parts, known, facts, templates)
    crossed = (by_fact[1] > 0) & (by_template[1] > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.fmax.reduce([by_fact[0] + by_template[0] - noise[0], by_fact[0], by_template[0]])
        freedom = variance**2 / np.nansum([part**2 / free for part, free in (by_fact, by_template, noise)], axis=0)
        # A few facts and templates can give less than one degree, and with it an interval of any length.
        freedom = np.where(variance > 0, np.maximum(freedom, 1), by_fact[1])
    return np.where(crossed, variance, by_fact[0]), np.where(crossed, freedom, by_fact[1])


def _between(parts, known, names):
    """The variance (cells,) that clusters give a mean, from each row's part in it, and its degrees of freedom."""
    sums, there = _clusters(parts, known, names)
    count = there.any(0).sum(0)
    apart = count - sum(own.sum(0) for own in there) == 0  # no cluster is in two samples
    freedom = count - np.where(apart, len(parts), 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (sums.sum(0) ** 2).sum(0) * count / freedom, freedom


def _clusters(parts, known, names):
    """Sums (samples, clusters, cells) of the rows' parts, and whether a sample has any row of the cluster."""
    _, codes = np.unique(np.concatenate(names), return_inverse=True)
    codes = np.split(codes, np.cumsum([len(own) for own in names])[:-1])
    many = max((code.max(initial=-1) for code in codes), default=-1) + 1
    sums, rows = np.zeros((2, len(parts), many, parts[0].shape[1]))
    for i, code in enumerate(codes):
        np.add.at(sums[i], code, parts[i])
        np.add.at(rows[i], code, known[i])
    return sums, rows > 0


def _within(parts, known, facts, templates):
    """The variance (cells,) of a mean from what neither facts nor templates explain, and its degrees of freedom."""
    paired = len(parts) > 1 and all(np.isin(one[0], one[1]).any() for one in (facts, templates))
    blocks = [range(len(parts))] if paired else [[i] for i in range(len(parts))]
    noise, freedom = 0, 0
    for block in blocks:
        rows = np.unique(np.concatenate([facts[i] for i in block]), return_inverse=True)
        columns = np.unique(np.concatenate([templates[i] for i in block]), return_inverse=True)
        cells, filled = np.zeros((2, len(rows[0]), len(columns[0]), parts[0].shape[1]))
        np.add.at(cells, (rows[1], columns[1]), np.concatenate([parts[i] for i in block]))
        np.add.at(filled, (rows[1], columns[1]), np.concatenate([known[i] for i in block]))
        filled = filled > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            left = cells - cells.sum(1, keepdims=True) / filled.sum(1, keepdims=True)
            left = left - (cells.sum(0, keepdims=True) / filled.sum(0, keepdims=True))
            count = filled.sum((0, 1))
            free = np.maximum(count - filled.any(1).sum(0) - filled.any(0).sum(0) + 1, 0)
            noise = noise + np.where(free > 0, np.where(filled, left**2, 0).sum((0, 1)) * count / free, 0)
        freedom = freedom + free
    return noise, freedom


def _student(found):
    """The estimate and both ends (cells,) of Student's intervals."""
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = _quantile(found.freedom) * np.sqrt(found.variance)
    return found.estimate, found.estimate - reach, found.estimate + reach


def _wilson(found):
    """The same of Wilson's intervals of shares.

    So many people leave it open that a share `slack` of others differs from all of them, and no interval excludes that:
    the draws are at most those at which its end is there. So its ends rise with the share.
    """
    share = found.estimate
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = np.where(_agree(found), special.ndtri((1 + LEVEL) / 2), _quantile(found.freedom))
        slack = np.where(found.people > 1, wilson(0, np.maximum(found.people, 1)).high, np.nan)
        nearest = np.minimum(share, 1 - share)
        most = np.where(nearest < slack, reach**2 * slack * (1 - slack) / (slack - nearest) ** 2, np.inf)
        draws = np.where(_agree(found), found.people, np.minimum(share * (1 - share) / found.variance, most))
        middle = (share * draws + reach**2 / 2) / (draws + reach**2)
        around = reach / (draws + reach**2) * np.sqrt(draws * share * (1 - share) + reach**2 / 4)
        return share, *(np.where(np.isnan(slack), np.nan, np.clip(middle + side * around, 0, 1)) for side in (-1, 1))


def _agree(found):
    return found.variance <= np.finfo(float).eps


def _shaped(parts, shape):
    """An `Interval` of parts (cells,): arrays of a shape, or floats."""
    parts = [np.broadcast_to(part, (int(np.prod(shape)),)).reshape(shape) for part in parts]
    return Interval(*(float(part) if part.ndim == 0 else part for part in parts))


def ratio(above, below):
    """The mean of `above` (facts, ...) over that of `below` (facts, ...): Fieller's `Interval` over facts.

    All NaN where the interval of the denominator holds 0: a share of nothing is none.
    """
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below, float))
    both = ~np.isnan(above + below)
    n = both.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [np.where(both, one, 0).sum(0) / n for one in (above, below)]
        apart = [np.where(both, one - centre, 0) for one, centre in zip((above, below), means, strict=True)]
        scale = _quantile(n - 1) ** 2 / (n - 1) / n
        a, b, ab = (scale * (one * other).sum(0) for one, other in (apart[:1] * 2, apart[1:] * 2, apart))
        # The ends are the ratios r at which above − r · below is just clear of 0.
        square = means[1] ** 2 - b
        middle = (means[0] * means[1] - ab) / square
        reach = np.sqrt(np.maximum(middle**2 - (means[0] ** 2 - a) / square, 0))
        clear = square > 0
        parts = (means[0] / means[1], middle - reach, middle + reach)
    return _shaped([np.where(clear, part, np.nan).ravel() for part in parts], np.shape(n))


def pooled(estimates, lows, highs):
    """The mean of what networks that differ in their seed alone give, each with an interval over the same facts.

    Facts are counted as if they erred alike in every network, and the networks' own differences come on top: it is
    about the mean over such networks, for such facts. Of a single network it is what that network gives.
    """
    estimates, lows, highs = (np.asarray(part, float) for part in (estimates, lows, highs))
    center, n = estimates.mean(), len(estimates)
    spread = _quantile(n - 1) * estimates.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
    below, above = (np.hypot(np.abs(ends - estimates).mean(), spread) for ends in (lows, highs))
    return Interval(center, center - below, center + above)


class Peak(NamedTuple):
    """The largest of many means over facts; `cell` and `rivals` are numbers among the cells."""

    cell: int | None
    estimate: float
    low: float  # simultaneous over all cells, so that the choice is paid for
    high: float
    margin: Interval  # over the next largest
    rivals: tuple  # the other cells that are not clearly smaller

    @property
    def place(self):
        """ "here" if the cell is clearly above 0 and all others, "shared" if above 0 alone, else "nowhere"."""
        if not self.low > 0:
            return "nowhere"
        return "shared" if self.rivals else "here"


def peak(values, *, rng, draws=1000):
    """The `Peak` of the means over facts of `values` (facts, cells); cells that most facts lack are left out.

    A maximum picked from many cells is above 0 by its own interval too often: its interval is that of `band`. Its
    margins are plain paired intervals: for a cell that is not the largest to look so takes a difference in one
    direction, whatever the number of cells (Gutmann and Maymin 1987).
    """
    values, cells = _common(values)
    nothing = Interval(np.nan, np.nan, np.nan)
    if not len(cells):
        return Peak(None, *nothing, nothing, ())
    all_at_once = band(values, rng=rng, draws=draws)
    best = int(np.argmax(all_at_once.estimate))
    over = mean(Sample(values[:, [best]] - values, np.arange(len(values))))
    others = [i for i in np.argsort(-all_at_once.estimate, kind="stable") if i != best]
    margin = Interval(*(float(part[others[0]]) for part in over)) if others else nothing
    rivals = tuple(int(cells[i]) for i in others if not over.low[i] > 0)
    return Peak(int(cells[best]), *(float(part[best]) for part in all_at_once), margin=margin, rivals=rivals)


def band(values, *, rng, draws=1000):
    """Means over facts of `values` (facts, cells) with intervals that hold all at once: an `Interval` of arrays.

    They are as many standard errors wide as the largest |t| of all cells is, at most, in 95% of `draws` that turn each
    fact's deviations round, or not, at random.
    """
    values = np.asarray(values, float)
    known = ~np.isnan(values)
    n = known.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(known, values, 0).sum(0) / n
        apart = np.where(known, values - means, 0)
        turned = rng.choice([-1.0, 1.0], size=(draws, len(values))) @ apart / n
        errors = np.sqrt(np.maximum((apart**2).sum(0) / n - turned**2, 0) / (n - 1))
        reach = np.quantile(np.where(errors > 0, np.abs(turned) / errors, 0).max(1), LEVEL)
        slack = reach * np.sqrt((apart**2).sum(0) / n / (n - 1))
    return Interval(means, means - slack, means + slack)


def _common(values):
    """The cells of `values` (facts, cells) that more than one fact and at least half of them have: values, numbers."""
    values = np.asarray(values, float)
    cells = np.flatnonzero((~np.isnan(values)).sum(0) >= max(2, len(values) / 2))
    return values[:, cells], cells


def jackknife(value, without, limits=None):
    """The `Interval` of a statistic, from what it is on the whole and `without` (n,) each of n facts.

    With `limits`, such as (−1, 1) of a correlation, the reach is taken on Fisher's scale, so that it stays within them.
    """
    return _jackknifed(value, [np.asarray(without, float)], limits)


def _jackknifed(value, without, limits=None):
    """The same for several samples that are independent: `without` has an array (n,) for each."""
    scale, back = (lambda x: x, lambda x: x) if limits is None else _fisher(*limits)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole, left_out = scale(float(value)), [scale(np.asarray(own, float)) for own in without]
        variances = np.array([(len(own) - 1) * own.var() for own in left_out])
        free = np.array([len(own) - 1 for own in left_out])
        freedom = variances.sum() ** 2 / (variances**2 / free).sum() if variances.any() else free.min()
        reach = _quantile(freedom) * np.sqrt(variances.sum())
    return Interval(float(value), *(float(back(whole + side)) for side in (-reach, reach)))


def _fisher(least, most):
    half, middle = (most - least) / 2, (most + least) / 2
    return lambda x: np.arctanh((x - middle) / half), lambda x: middle + half * np.tanh(x)


def adjusted(observed, null):
    """p-values of tests `observed` (tests,) by `null` (permutations, tests): alone, and adjusted for the family.

    Large is surprising. Tests are put on one scale by the mean and spread of their null, and the adjusted p of each is
    that of the largest among it and all less surprising ones (Westfall and Young's step-down max-T). The rows of
    `null` are the same permutations for all tests, so that what tests have in common is not paid for twice.
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


class Likeness(NamedTuple):
    """How alike two maps are over their cells."""

    correlation: Interval  # Pearson's, of the maps without their noise
    slope: Interval  # of the second on the first, without its noise
    raw: float  # Pearson's correlation of the mean maps as they are
    ceiling: float  # what `raw` would be if the maps were the same but for noise
    rank: float  # Spearman's correlation as it is: small cells count like large ones
    rank_ceiling: float
    cells: int


def alike(first, second, *, rng, paired=False, halves=200):
    """The `Likeness` of the mean maps of `first` and `second`, each (facts, cells); `paired` if of the same facts.

    Noise makes two mean maps less alike than what they estimate. Products of *different* facts' maps are free of it, so
    `correlation` and `slope` are made of those; their intervals are the jackknife's over facts. A ceiling is the
    correlation of each map's halves, brought to its full number of facts (Spearman and Brown).
    """
    shared = np.intersect1d(_common(first)[1], _common(second)[1])
    if len(shared) < 3 or min(len(first), len(second)) < 3:
        unknown = Interval(np.nan, np.nan, np.nan)
        return Likeness(unknown, unknown, *[np.nan] * 4, len(shared))
    maps = [_filled(np.asarray(one, float)[:, shared]) for one in (first, second)]
    rows = [one - one.mean(1, keepdims=True) for one in maps]
    own = [_products(one, one, same=True) for one in rows]
    both, *without = _products(*rows, same=paired)
    if paired:
        moments = [(own[0][0], own[1][0], both), (own[0][1], own[1][1], without[0])]
    else:
        moments = [(own[0][0], own[1][0], both), (own[0][1], own[1][0], without[0]), (own[0][0], own[1][1], without[1])]
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = [xy / np.sqrt(np.where((xx > 0) & (yy > 0), xx * yy, np.nan)) for xx, yy, xy in moments]
        slopes = [xy / np.where(xx > 0, xx, np.nan) for xx, _, xy in moments]
    means = [one.mean(0) for one in maps]
    splits = [_halves(one, rng, halves) for one in maps]
    return Likeness(
        Interval(*np.clip(_jackknifed(correlations[0], correlations[1:]), -1, 1)),
        _jackknifed(slopes[0], slopes[1:]),
        float(_pearson(*means)),
        _ceiling([_pearson(*parts) for parts in splits]),
        float(_pearson(*map(_ranks, means))),
        _ceiling([_pearson(*map(_ranks, parts)) for parts in splits]),
        len(shared),
    )


def _filled(values):
    """`values` (facts, cells), what was not measured replaced by the mean of the other facts."""
    return np.where(np.isnan(values), np.nanmean(values, axis=0), values)


def _products(first, second, *, same):
    """The mean inner product of a map of `first` (n, cells) and one of `second` (m, cells), and it without each fact.

    `same`: rows of one number are of one fact, and their product is left out; the result is then (whole, without (n,)),
    else (whole, without one of `first` (n,), without one of `second` (m,)).
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
    """The correlation (...) over the last axis of maps (..., cells)."""
    first, second = (one - one.mean(-1, keepdims=True) for one in (first, second))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))


def _ranks(maps):
    from scipy.stats import rankdata  # here, for the reason given above

    return rankdata(maps, axis=-1)


def _quantile(freedom):
    """How many standard errors an interval reaches, by Student's t."""
    return special.stdtrit(freedom, (1 + LEVEL) / 2)


def _halves(values, rng, draws):
    """Mean maps (draws, cells) of random halves of the facts of `values` (facts, cells), and of the other halves."""
    order = np.argsort(rng.random((draws, len(values))), axis=1)
    half = len(values) // 2
    return values[order[:, :half]].mean(1), values[order[:, half:]].mean(1)


def _ceiling(correlations):
    """The correlation of two maps that differ in noise alone, from those of the halves of each."""
    together = [max(float(np.mean(own)), 0) for own in correlations]
    return float(np.sqrt(np.prod([2 * one / (1 + one) for one in together])))
