"""Do the forward and the reverse memory of a concept share a representation?

The forward run asks for the description of a name, the reverse run for the name of a description. At one layer
of one model they leave, for n facts, the mapping `arrays`:

    key_forward    (n, mlp)    of the names             value_forward  (n, width)  of the descriptions
    key_reverse    (n, mlp)    of the descriptions      value_reverse  (n, width)  of the names
    down_forward, down_reverse (width, mlp), the MLP's down-projection at the layer of each run

Row i is fact i throughout. A key times its down-projection is a projected key, in the values' own space.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import linalg, stats
from sklearn.decomposition import PCA

from ..common import intervals
from .vocabulary import COMPARISONS, PAIRS, REFERENCES, STATISTICS

LIMITS = {"linear_cka": (0, 1), "debiased_cka": (-1, 1), "rsa": (-1, 1), "subspace_overlap": (0, 1)}
FEWEST_FACTS = 8  # debiased CKA is free to vary from four facts up, and intervals come from halves
LEVEL = 0.95
ROUNDING = 1e-10  # a permutation that changes nothing is as symmetric, in whatever order its sums are taken


class Finding(NamedTuple):
    """A statistic, its interval, and what chance gives."""

    value: float
    ci_low: float = np.nan
    ci_high: float = np.nan
    null_mean: float = np.nan
    p_value: float = np.nan


def compare_all(arrays, *, components, permutations, draws, rng, groups=None, folds=5, pairs=tuple(PAIRS)):
    """Every statistic of the comparisons `pairs`: comparison, statistic, value, ci_low, ci_high, null_mean, p_value, n.

    linear_cka        centred kernel alignment; near 1 for *any* data with many more dimensions than facts
    debiased_cka      the same from unbiased estimates: 0 where nothing is shared, so the one to quote
    rsa               Spearman correlation of the distances between facts
    retrieval_at_1    share of held-out facts whose partner is the nearest held-out candidate (`partner_ranks`)
    mean_rank         the partner's mean rank among the candidates: 1 is best, and less is more symmetric
    subspace_overlap  mean cosine of the principal angles of the top subspaces, where both are in one space

    Retrieval and overlap use the first `components` principal components, or as many as facts and widths allow.
    With fewer than eight facts every number is NaN.

    Null: the pairing of facts is permuted; for retrieval within folds, where every fit stays as it is. Where
    facts come in kinds that differ for other reasons, such as the direction they were trained in, `groups` (n,)
    names the kinds: facts change places within their group only, and folds share out each group evenly.
    subspace_overlap ignores the pairing, so its null turns one subspace at random: it says that both runs use the
    same directions, not that they use them for the same facts. p is one-sided towards more symmetry,
    (1 + permutations at least as symmetric) / (1 + permutations).

    Intervals (95%) are over facts. A bootstrap draws facts twice, and copies are at distance zero in both spaces:
    a similarity of its own making, which pulls CKA and RSA up and lets retrieval find the copy. CKA, RSA and
    overlap are recomputed on `draws` random halves instead. That is the delete-half jackknife: no fact comes
    twice, and a half varies about the whole as the whole does about the truth. Deviations are taken from the
    halves' own mean, because these statistics drift with the number of facts. Retrieval has one outcome for each
    held-out fact, and takes Wilson's interval: of the share retrieved, and of the share of rivals ranked before
    the partner. A share varies less than a yes or no, so the rank's interval is on the wide side; a bootstrap of
    the ranks is too narrow, because facts share a fit.
    """
    spaces = _spaces(arrays)
    n = len(spaces["key forward"])
    if n < FEWEST_FACTS:
        return _table({(pair, name): Finding(np.nan) for pair in pairs for name in STATISTICS}, pairs, n)
    groups = _codes(groups, n)
    fold = assign_folds(groups, folds, rng)
    free = permute(groups, permutations, rng)
    within = permute(fold * n + groups, permutations, rng)
    halves = np.argsort(rng.random((draws, n)), axis=1)[:, : n // 2]
    findings = _shape_findings(spaces, pairs, free, halves)
    findings |= _retrieval_findings(spaces, pairs, fold, within, components)
    findings |= _overlap_findings(spaces, pairs, halves, components, permutations, rng)
    return _table(findings, pairs, n)


def correct(table, family=("model", "seed")):
    """`table` with p_adjusted: Holm over all comparisons, statistics and layers of one model and seed.

    A family is the rows that agree in those of the `family` columns that the table has. REFERENCES are in none.
    N permutations give no p below 1 / (N + 1): a family of m tests reaches .05 only where N + 1 ≥ 20 m.
    """
    tested = table.p_value.where(~table.comparison.isin(list(REFERENCES)))
    columns = [table[name] for name in family if name in table]
    adjusted = tested.groupby(columns).transform(intervals.holm) if columns else intervals.holm(tested)
    return table.assign(p_adjusted=adjusted)


def retrieval_curve(arrays, *, components, rng, groups=None, folds=5, pairs=tuple(COMPARISONS)):
    """Share of held-out facts whose partner is among the k nearest candidates, and what chance gives.

    Columns: comparison, k, value, ci_low, ci_high, chance, n. A generator in the state of the one that went into
    `compare_all` makes the same folds, so that k = 1 is its retrieval_at_1.
    """
    spaces = _spaces(arrays)
    n = len(spaces["key forward"])
    rows = []
    if n >= FEWEST_FACTS:
        fold = assign_folds(_codes(groups, n), folds, rng)
        located = locate(spaces, fold, components)
        candidates = np.bincount(fold)[fold]
        for pair in pairs:
            first, second = COMPARISONS[pair]
            ranks = partner_ranks(located[first], located[second], fold)
            for k in range(1, candidates.max() + 1):
                share = intervals.wilson((ranks <= k).mean(-1).sum(), n, LEVEL)
                rows.append((pair, k, *share, np.minimum(k / candidates, 1).mean(), n))
    return pd.DataFrame(rows, columns=["comparison", "k", "value", "ci_low", "ci_high", "chance", "n"])


def spectra(arrays):
    """Singular values of the centred facts in each of the six spaces, one row a component.

    Columns: space, component, singular_value, share, cumulative, effective_rank, n. `share` is of the variance.
    The effective rank is Roy and Vetterli's: the exponential of the entropy of the singular values' shares of
    their sum. Empty with fewer than two facts.
    """
    rows = []
    for name, space in _spaces(arrays).items():
        if len(space) < 2:
            continue
        values = linalg.svdvals(space - space.mean(0))[: len(space) - 1]
        with np.errstate(invalid="ignore"):
            share = values**2 / (values**2).sum()
            effective = np.exp(stats.entropy(values))
        for i, value in enumerate(values):
            rows.append((name, i + 1, value, share[i], share[: i + 1].sum(), effective, len(space)))
    columns = ["space", "component", "singular_value", "share", "cumulative", "effective_rank", "n"]
    return pd.DataFrame(rows, columns=columns)


def pca_pairs(arrays, *, pairs=tuple(COMPARISONS)):
    """The same facts twice in one plane, for the comparisons whose sides share a space.

    Columns: comparison, space, fact, side, x, y, x_share, y_share. `space` is "model" (values and projected keys)
    or "MLP" (keys). The plane is that of the first two principal components of both sides together, after each
    was centred on its own mean and scaled to the same spread: offset and size are not what is compared. `fact` is
    the row in `arrays`: two points of one comparison and fact are a pair. Empty with fewer than two facts.
    """
    spaces = _spaces(arrays)
    rows = []
    for pair in pairs:
        sides = COMPARISONS[pair]
        if _home(sides[0]) != _home(sides[1]) or len(spaces[sides[0]]) < 2:
            continue
        points = [_standard(spaces[side]) for side in sides]
        fit = _pca(np.concatenate(points), 2)
        for side, those in zip(sides, points, strict=True):
            for fact, (x, y) in enumerate(fit.transform(those)):
                rows.append((pair, _home(side), fact, side, x, y, *fit.explained_variance_ratio_))
    columns = ["comparison", "space", "fact", "side", "x", "y", "x_share", "y_share"]
    return pd.DataFrame(rows, columns=columns)


# CKA, debiased CKA and RSA are each an inner product of two symmetric unit matrices, one from each space.
# Permuting facts only permutes such a matrix, so a null needs no more than its entries in another order.


def linear_cka(first, second):
    """Linear centred kernel alignment of `first` (n, a) and `second` (n, b)."""
    return _similarity(_centred, first, second)


def debiased_cka(first, second):
    """Linear CKA of `first` (n, a) and `second` (n, b) from unbiased estimates of the dependence of each pair."""
    return _similarity(_debiased, first, second)


def rsa(first, second):
    """Spearman correlation of the Euclidean distances within `first` (n, a) and within `second` (n, b)."""
    return _similarity(_ranked, first, second)


def _similarity(shape, first, second):
    return float(_inner(shape(_gram(np.asarray(first, float))), shape(_gram(np.asarray(second, float)))))


def _centred(gram):
    return _unit(_recentre(gram))


def _debiased(gram):
    """U-centred inner products (..., n, n): without the diagonal, which only says how large each fact is."""
    n = gram.shape[-1]
    apart = ~np.eye(n, dtype=bool)
    rows = (gram * apart).sum(-1, keepdims=True) / (n - 2)
    middle = rows.sum(-2, keepdims=True) / (n - 1)
    return _unit((gram - rows - rows.swapaxes(-1, -2) + middle) * apart)


def _ranked(gram):
    """Centred ranks of the squared distances (..., n, n), zero on the diagonal."""
    size = np.diagonal(gram, axis1=-2, axis2=-1)
    i, j = np.triu_indices(gram.shape[-1], 1)
    ranks = stats.rankdata(size[..., i] + size[..., j] - 2 * gram[..., i, j], axis=-1)
    shape = np.zeros(gram.shape)
    shape[..., i, j] = shape[..., j, i] = ranks - ranks.mean(-1, keepdims=True)
    return _unit(shape)


def _unit(shape):
    with np.errstate(invalid="ignore"):
        return shape / np.linalg.norm(shape, axis=(-2, -1), keepdims=True)


def _inner(first, second):
    return np.einsum("...ij,...ij->...", first, second)


def inner_permuted(first, second, orders):
    """Inner products of `first` (n, n) with `second` (n, n), its facts in each of `orders` (N, n): (N,)."""
    n = len(first)
    i, j = np.triu_indices(n)
    weights = first[i, j] * np.where(i == j, 1, 2)
    # A few permutations at a time stay in the cache: four times as fast as all at once.
    blocks = np.array_split(orders, max(1, len(orders) // 64))
    return np.concatenate([second.ravel().take(block[:, i] * n + block[:, j]) @ weights for block in blocks])


def _shape_findings(spaces, pairs, orders, halves):
    grams = {name: _gram(space) for name, space in spaces.items()}
    findings = {}
    for statistic, shape in {"linear_cka": _centred, "debiased_cka": _debiased, "rsa": _ranked}.items():
        whole = {name: shape(gram) for name, gram in grams.items()}
        half = {name: shape(_restrict(gram, halves)) for name, gram in grams.items()}
        for pair in pairs:
            first, second = PAIRS[pair]
            value = float(_inner(whole[first], whole[second]))
            replicates = _inner(half[first], half[second])
            ends = _from_halves(value, replicates, orders.shape[1], LIMITS[statistic])
            null = inner_permuted(whole[first], whole[second], orders)
            findings[pair, statistic] = _finding(value, ends, null)
    return findings


def assign_folds(groups, folds, rng):
    """A fold for each fact (n,): the facts of each of `groups` (n,) dealt out evenly, at least two to a fold."""
    if folds < 2:
        raise ValueError(f"symmetry: folds is {folds}; holding facts out takes 2 or more")
    n = len(groups)
    fold = np.empty(n, int)
    fold[np.lexsort((rng.random(n), groups))] = np.arange(n) % min(folds, n // 2)
    return fold


def locate(spaces, fold, components):
    """Each fact's place on the principal components of the facts *outside* each fold: {space: (folds, n, r)}."""
    training = len(fold) - np.bincount(fold).max()
    r = min(components, training - 1, *(space.shape[1] for space in spaces.values()))
    located = {}
    for name, space in spaces.items():
        fits = [_pca(space[fold != held], r) for held in range(fold.max() + 1)]
        located[name] = np.stack([fit.transform(space) for fit in fits])
    return located


def partner_ranks(first, second, fold, orders=None):
    """The rank of each fact's partner among the candidates of its fold, from `first` and from `second`: (n, 2).

    `first` and `second` (folds, n, r) come from `locate`. For each fold, the rotation that best takes `first` to
    `second` is found on the facts outside it (orthogonal Procrustes), and the facts inside are ranked by cosine.
    Equals share their mean rank, so that facts which cannot be told apart score as by chance. With `orders`
    (N, n), which keep each fact in its fold, the facts of `second` are permuted first: (N, n, 2).
    """
    if orders is None:
        return partner_ranks(first, second, fold, np.arange(len(fold))[None])[0]
    ranks = np.empty((*orders.shape, 2))
    for held in range(fold.max() + 1):
        inside, outside = np.flatnonzero(fold == held), np.flatnonzero(fold != held)
        left, _, right = np.linalg.svd(first[held, outside].T @ second[held][orders[:, outside]])
        turned = _directions(first[held, inside]) @ left @ right  # (N, candidates, r)
        cosine = turned @ _directions(second[held])[orders[:, inside]].swapaxes(-1, -2)
        own = np.diagonal(cosine, axis1=-2, axis2=-1)
        for side, axis in enumerate((-1, -2)):
            partner = np.expand_dims(own, axis)
            ranks[:, inside, side] = (1 + (cosine > partner).sum(axis) + (cosine >= partner).sum(axis)) / 2
    return ranks


def _directions(points):
    return points / np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), np.finfo(float).tiny)


def _retrieval_findings(spaces, pairs, fold, orders, components):
    located = locate(spaces, fold, components)
    n = len(fold)
    rivals = np.bincount(fold)[fold].mean() - 1
    findings = {}
    for pair in pairs:
        first, second = PAIRS[pair]
        ranks = partner_ranks(located[first], located[second], fold)
        null = partner_ranks(located[first], located[second], fold, orders)
        share = intervals.wilson((ranks == 1).mean(-1).sum(), n, LEVEL)
        findings[pair, "retrieval_at_1"] = _finding(share.estimate, share[1:], (null == 1).mean((1, 2)))
        before = intervals.wilson(min(1, (ranks.mean() - 1) / rivals) * n, n, LEVEL)
        ends = 1 + rivals * np.array(before[1:])
        findings[pair, "mean_rank"] = _finding(ranks.mean(), ends, null.mean((1, 2)), less_is_more=True)
    return findings


def subspace_overlap(first, second, components):
    """Mean cosine of the principal angles between the top subspaces of `first` and `second` (n, d).

    NaN where the facts of either do not differ in that many directions.
    """
    fits = [_pca(np.asarray(space, float), components) for space in (first, second)]
    if any(fit.singular_values_[-1] <= ROUNDING * fit.singular_values_[0] for fit in fits):
        return np.nan
    return float(np.cos(linalg.subspace_angles(*(fit.components_.T for fit in fits))).mean())


def half_bases(space, halves, components):
    """Orthonormal bases of the halves' top subspaces, as weights (draws, h, r) of each half's facts."""
    variance, facts = np.linalg.eigh(_recentre(_restrict(_gram(space), halves)))
    variance, facts = variance[:, None, -components:], facts[..., -components:]
    empty = variance <= ROUNDING * variance[..., -1:]
    return np.where(empty, 0, facts / np.sqrt(np.where(empty, 1, variance)))


def overlaps_of_halves(first, second, halves, first_bases, second_bases):
    """`subspace_overlap` of each half (draws, h) from inner products and `half_bases` alone: (draws,)."""
    across = _restrict((first - first.mean(0)) @ (second - second.mean(0)).T, halves)
    cosines = np.linalg.svd(first_bases.swapaxes(-1, -2) @ across @ second_bases, compute_uv=False)
    return np.minimum(cosines, 1).mean(-1)


def overlaps_by_chance(width, components, draws, rng):
    """`subspace_overlap` of `draws` pairs of random subspaces of `width` dimensions: (draws,).

    The cosines are the singular values of a corner of a random rotation. For orthonormalised Gaussian columns
    that is G over the root of GᵀG + W, G their first rows, W the others' inner products, which are Wishart's.
    """
    corner = rng.standard_normal((draws, components, components))
    others = stats.wishart.rvs(width - components, np.eye(components), size=draws, random_state=rng)
    root = np.linalg.cholesky(corner.swapaxes(-1, -2) @ corner + np.reshape(others, corner.shape))
    return np.linalg.svd(np.linalg.solve(root, corner.swapaxes(-1, -2)), compute_uv=False).mean(-1)


def _overlap_findings(spaces, pairs, halves, components, permutations, rng):
    n = len(spaces["key forward"])
    # Subspaces of more than half the width meet whatever they hold.
    r = {name: min(components, n // 2 - 1, space.shape[1] // 2) for name, space in spaces.items()}
    bases = {name: half_bases(space, halves, r[name]) for name, space in spaces.items()}
    chance = {}
    for name in ("key forward", "value forward"):
        chance[_home(name)] = overlaps_by_chance(spaces[name].shape[1], r[name], permutations, rng)
    findings = {}
    for pair in pairs:
        first, second = PAIRS[pair]
        if _home(first) == _home(second):
            value = subspace_overlap(spaces[first], spaces[second], r[first])
            replicates = overlaps_of_halves(spaces[first], spaces[second], halves, bases[first], bases[second])
            ends = _from_halves(value, replicates, n, LIMITS["subspace_overlap"])
            findings[pair, "subspace_overlap"] = _finding(value, ends, chance[_home(first)])
    return findings


def permute(groups, count, rng):
    """`count` random orders of the facts, each fact staying within its one of `groups` (n,): (count, n)."""
    _, code = np.unique(groups, return_inverse=True)
    orders = np.empty((count, len(code)), int)
    orders[:, np.argsort(code, kind="stable")] = np.argsort(code + rng.random(orders.shape), axis=1)
    return orders


def _from_halves(value, replicates, n, limits):
    """Ends of the interval of `value` from the statistic on halves of the n facts, kept within its `limits`."""
    half = n // 2
    deviations = (replicates - replicates.mean()) * np.sqrt(half / (n - half))
    ends = value - np.quantile(deviations, [(1 + LEVEL) / 2, (1 - LEVEL) / 2])
    return np.clip(ends, *limits)


def _finding(value, ends, null, less_is_more=False):
    if np.isnan(value):
        return Finding(np.nan)
    excess = value - null if less_is_more else null - value
    p_value = (1 + (excess >= -ROUNDING).sum()) / (1 + len(null))
    return Finding(*map(float, (value, *ends, null.mean(), p_value)))


def _table(findings, pairs, n):
    rows = []
    for pair in pairs:
        first, second = PAIRS[pair]
        for statistic in STATISTICS:
            if statistic != "subspace_overlap" or _home(first) == _home(second):
                rows.append((pair, statistic, *findings[pair, statistic], n))
    return pd.DataFrame(rows, columns=["comparison", "statistic", *Finding._fields, "n"])


def _home(name):
    """The space that the vectors of this name live in: only within one space do subspaces make angles."""
    return "MLP" if name.startswith("key") else "model"


def _gram(space):
    centred = space - space.mean(0)
    return centred @ centred.T


def _recentre(gram):
    rows = gram.mean(-1, keepdims=True)
    return gram - rows - rows.swapaxes(-1, -2) + rows.mean(-2, keepdims=True)


def _restrict(gram, halves):
    return gram[halves[:, :, None], halves[:, None, :]]


def _standard(space):
    centred = space - space.mean(0)
    return centred / max(np.linalg.norm(centred), np.finfo(float).tiny)


def _pca(space, components):
    with np.errstate(invalid="ignore"):  # facts that are all alike have no variance to take shares of
        return PCA(components, svd_solver="full").fit(space)


def _codes(groups, n):
    groups = np.zeros(n, int) if groups is None else np.unique(groups, return_inverse=True)[1]
    if groups.shape != (n,):
        raise ValueError(f"symmetry: {len(groups)} groups for {n} facts; every fact has one group")
    return groups


def _spaces(arrays):
    """The six sets of vectors to compare, (n, mlp) or (n, width) in float64, from `arrays` once they are checked."""
    names = ("key_forward", "value_forward", "key_reverse", "value_reverse", "down_forward", "down_reverse")
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"symmetry: arrays lack {', '.join(missing)}")
    given = {name: np.asarray(arrays[name], float) for name in names}
    for name, array in given.items():
        if array.ndim != 2:
            raise ValueError(f"symmetry: {name} has shape {array.shape}; arrays have two dimensions")
    n, mlp = given["key_forward"].shape
    width = given["value_forward"].shape[1]
    for name, array in given.items():
        needed = {"key": (n, mlp), "value": (n, width), "down": (width, mlp)}[name.split("_")[0]]
        if array.shape != needed:
            raise ValueError(f"symmetry: {name} has shape {array.shape}; the other arrays need {needed}")
        if not np.isfinite(array).all():
            row = np.flatnonzero(~np.isfinite(array).all(1))[0]
            what = "row" if name.startswith("down") else "fact"
            raise ValueError(f"symmetry: {name} is not finite at {what} {row}; leave such facts out everywhere")
    return {
        "key forward": given["key_forward"],
        "projected key forward": given["key_forward"] @ given["down_forward"].T,
        "value forward": given["value_forward"],
        "key reverse": given["key_reverse"],
        "projected key reverse": given["key_reverse"] @ given["down_reverse"].T,
        "value reverse": given["value_reverse"],
    }
