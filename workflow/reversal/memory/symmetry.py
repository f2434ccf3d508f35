"""Do the forward and the reverse memory of a concept share a representation?

The forward run asks for the description of a name, the reverse run for the name of a description. At one layer
of one model they leave, for n facts, the mapping `arrays`:

    key_forward    (n, mlp)    of the names             value_forward  (n, width)  of the descriptions
    key_reverse    (n, mlp)    of the descriptions      value_reverse  (n, width)  of the names
    output_forward, output_reverse (n, width), what the MLP says by itself where the value is put
    down_forward, down_reverse (width, mlp), the MLP's down-projection at the layer of each run

Row i is fact i throughout. A key times its down-projection is a projected key, in the values' own space.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import linalg, stats
from sklearn.decomposition import PCA

from ..common import contrasts, intervals
from .vocabulary import COMPARISONS, CONCEPTS, HEADLINE, PAIRS, PEAK, STATISTICS

FEWEST_FACTS = 8  # debiased CKA is free to vary from four facts up
FOR_LOOKING = 10  # statistics that are no named test take so many times fewer permutations
ROUNDING = 1e-10  # a permutation that changes nothing is as symmetric, in whatever order its sums are taken


class Finding(NamedTuple):
    """A statistic, its interval, and what chance gives."""

    value: float
    ci_low: float = np.nan
    ci_high: float = np.nan
    null_mean: float = np.nan
    p_value: float = np.nan  # of this test alone
    p_adjusted: float = np.nan  # of a named test, for all named ones


def compare_all(arrays, *, components, permutations, rng, groups=None, folds=5, pairs=tuple(PAIRS)):
    """Every statistic of the comparisons `pairs`: comparison, statistic, the fields of `Finding`, largest, n.

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

    Two tests were named beforehand: HEADLINE of each of CONCEPTS. They take all `permutations`, the same for both, and
    have a p_adjusted (max-T). Everything else is for looking: a tenth of the permutations, and p as it is.

    Intervals (95%) are over facts. CKA, RSA and overlap have the jackknife's, which leaves one fact out at a time: a
    bootstrap draws facts twice, and copies are at distance zero in both spaces, a similarity of its own making. On
    simulated facts it covers the truth in 93 to 97%, in more where nothing is shared. Linear CKA drifts with the number
    of facts, so that its interval is about as many facts, not about all. Retrieval has one outcome for each held-out
    fact, and takes Wilson's interval: of the share retrieved, and of the share of rivals ranked before the partner. A
    share varies less than a yes or no, so the rank's interval is on the wide side.

    `largest` is the largest share that one fact has in the variance of either side: near 1, CKA is about that fact.
    """
    spaces = _spaces(arrays)
    n = len(spaces["key forward"])
    if n < FEWEST_FACTS:
        return _table({(pair, name): Finding(np.nan) for pair in pairs for name in STATISTICS}, pairs, spaces)
    groups = _codes(groups, n)
    fold = assign_folds(groups, folds, rng)
    few = max(1, permutations // FOR_LOOKING)
    free = permute(groups, few, rng)
    within = permute(fold * n + groups, few, rng)
    findings = _shape_findings(spaces, pairs, free)
    findings |= _retrieval_findings(spaces, pairs, fold, within, components)
    findings |= _overlap_findings(spaces, pairs, components, few, rng)
    findings |= _named_findings(findings, spaces, pairs, permute(groups, permutations, rng))
    return _table(findings, pairs, spaces)


def _named_findings(findings, spaces, pairs, orders):
    """The findings of the named tests among `pairs`, with p-values from all `orders` (N, n)."""
    named = [pair for pair in CONCEPTS.values() if pair in pairs and not np.isnan(findings[pair, HEADLINE].value)]
    if not named:
        return {}
    shapes = [[_debiased(_gram(spaces[side])) for side in PAIRS[pair]] for pair in named]
    null = np.stack([inner_permuted(*pair, orders) for pair in shapes], axis=1)
    alone, family = contrasts.adjusted([findings[pair, HEADLINE].value for pair in named], null + ROUNDING)
    return {
        (pair, HEADLINE): findings[pair, HEADLINE]._replace(
            null_mean=null[:, i].mean(), p_value=alone[i], p_adjusted=family[i]
        )
        for i, pair in enumerate(named)
    }


def beyond(arrays, base):
    """HEADLINE of each of CONCEPTS in `arrays` less that in `base`, of the same facts: comparison, value, ci_low, …

    Its interval leaves the same fact out of both.
    """
    rows = []
    sides = [_spaces(one) for one in (arrays, base)]
    n = len(sides[0]["key forward"])
    for pair in CONCEPTS.values():
        found = Finding(np.nan)
        if n >= FEWEST_FACTS:
            grams = [[_gram(spaces[side]) for side in PAIRS[pair]] for spaces in sides]
            whole, without = (
                one - other for one, other in zip(*(_left_out(_debiased, *two) for two in grams), strict=True)
            )
            interval = contrasts.jackknife(whole / 2, without / 2, contrasts.CHANGES)
            found = Finding(*(2 * part for part in interval))
        rows.append((pair, found.value, found.ci_low, found.ci_high, n))
    return pd.DataFrame(rows, columns=["comparison", "value", "ci_low", "ci_high", "n"])


def over_layers(table, family=("model", "stage")):
    """`table` with the p_adjusted of each layer multiplied by the number of layers (Bonferroni), at most 1.

    At the peak, which tracing chose without looking at symmetry, it stays as it is. A family is the rows that agree in
    the `family` columns.
    """
    layers = table.layer.astype(str)
    count = layers.where(layers != PEAK).groupby([table[name] for name in family]).transform("nunique")
    return table.assign(p_adjusted=(table.p_adjusted * count.where(layers != PEAK, 1)).clip(upper=1))


def retrieval_curve(arrays, *, components, rng, groups=None, folds=5, pairs=tuple(COMPARISONS), permutations=200):
    """Share of held-out facts whose partner is among the k nearest candidates, and what chance gives.

    Columns: comparison, k, value, ci_low, ci_high, chance, n. Chance is what the same `permutations` within folds and
    groups give as in `compare_all`. A generator in the state of the one that went into it makes the same folds, so that
    k = 1 is its retrieval_at_1.
    """
    spaces = _spaces(arrays)
    n = len(spaces["key forward"])
    rows = []
    if n >= FEWEST_FACTS:
        groups = _codes(groups, n)
        fold = assign_folds(groups, folds, rng)
        located = locate(spaces, fold, components)
        orders = permute(fold * n + groups, permutations, rng)
        for pair in pairs:
            first, second = COMPARISONS[pair]
            ranks = partner_ranks(located[first], located[second], fold)
            null = partner_ranks(located[first], located[second], fold, orders)
            for k in range(1, np.bincount(fold).max() + 1):
                share = intervals.wilson((ranks <= k).mean(-1).sum(), n)
                rows.append((pair, k, *share, (null <= k).mean(), n))
    return pd.DataFrame(rows, columns=["comparison", "k", "value", "ci_low", "ci_high", "chance", "n"])


def spectra(arrays):
    """Singular values of the centred facts in each of the six spaces of keys and values, one row a component.

    Columns: space, component, singular_value, share, cumulative, effective_rank, n. `share` is of the variance.
    The effective rank is Roy and Vetterli's: the exponential of the entropy of the singular values' shares of
    their sum. Empty with fewer than two facts.
    """
    rows = []
    for name, space in _spaces(arrays).items():
        if len(space) < 2 or name.startswith("output"):
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


def _shape_findings(spaces, pairs, orders):
    grams = {name: _gram(space) for name, space in spaces.items()}
    findings = {}
    for statistic, shape in {"linear_cka": _centred, "debiased_cka": _debiased, "rsa": _ranked}.items():
        whole = {name: shape(gram) for name, gram in grams.items()}
        rest = {name: shape(_restrict(gram, _others(len(gram)))) for name, gram in grams.items()}
        for pair in pairs:
            first, second = PAIRS[pair]
            value = float(_inner(whole[first], whole[second]))
            ends = contrasts.jackknife(value, _inner(rest[first], rest[second]), contrasts.CHANGES)[1:]
            null = inner_permuted(whole[first], whole[second], orders)
            findings[pair, statistic] = _finding(value, ends, null)
    return findings


def _left_out(shape, first, second):
    """The inner product of the shapes of two Gram matrices (n, n), and those without each fact (n,)."""
    rest = [shape(_restrict(gram, _others(len(gram)))) for gram in (first, second)]
    return _inner(shape(first), shape(second)), _inner(*rest)


def _others(n):
    """The n − 1 other facts of each of n facts: (n, n − 1)."""
    return np.array([np.delete(np.arange(n), i) for i in range(n)])


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
        share = intervals.wilson((ranks == 1).mean(-1).sum(), n)
        findings[pair, "retrieval_at_1"] = _finding(share.estimate, share[1:], (null == 1).mean((1, 2)))
        before = intervals.wilson(min(1, (ranks.mean() - 1) / rivals) * n, n)
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


def bases_of(space, subsets, components):
    """Orthonormal bases of the top subspaces of `subsets` (m, h) of facts, as weights (m, h, r) of each one's facts."""
    variance, facts = np.linalg.eigh(_recentre(_restrict(_gram(space), subsets)))
    variance, facts = variance[:, None, -components:], facts[..., -components:]
    empty = variance <= ROUNDING * variance[..., -1:]
    return np.where(empty, 0, facts / np.sqrt(np.where(empty, 1, variance)))


def overlaps_of(first, second, subsets, first_bases, second_bases):
    """`subspace_overlap` of each of `subsets` (m, h) of facts from inner products and `bases_of` alone: (m,)."""
    across = _restrict((first - first.mean(0)) @ (second - second.mean(0)).T, subsets)
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


def _overlap_findings(spaces, pairs, components, permutations, rng):
    n = len(spaces["key forward"])
    # Subspaces of more than half the width meet whatever they hold.
    r = {name: min(components, n // 2 - 1, space.shape[1] // 2) for name, space in spaces.items()}
    rest = _others(n)
    bases = {name: bases_of(space, rest, r[name]) for name, space in spaces.items()}
    chance = {}
    for name in ("key forward", "value forward"):
        chance[_home(name)] = overlaps_by_chance(spaces[name].shape[1], r[name], permutations, rng)
    findings = {}
    for pair in pairs:
        first, second = PAIRS[pair]
        if _home(first) == _home(second):
            value = subspace_overlap(spaces[first], spaces[second], r[first])
            without = overlaps_of(spaces[first], spaces[second], rest, bases[first], bases[second])
            ends = contrasts.jackknife(value, without, contrasts.CHANGES)[1:]
            findings[pair, "subspace_overlap"] = _finding(value, ends, chance[_home(first)])
    return findings


def permute(groups, count, rng):
    """`count` random orders of the facts, each fact staying within its one of `groups` (n,): (count, n)."""
    _, code = np.unique(groups, return_inverse=True)
    orders = np.empty((count, len(code)), int)
    orders[:, np.argsort(code, kind="stable")] = np.argsort(code + rng.random(orders.shape), axis=1)
    return orders


def _finding(value, ends, null, less_is_more=False):
    if np.isnan(value):
        return Finding(np.nan)
    excess = value - null if less_is_more else null - value
    p_value = (1 + (excess >= -ROUNDING).sum()) / (1 + len(null))
    return Finding(*map(float, (value, *ends, null.mean(), p_value)))


def _table(findings, pairs, spaces):
    rows = []
    n = len(spaces["key forward"])
    share = {name: _largest_share(space) for name, space in spaces.items()}
    for pair in pairs:
        first, second = PAIRS[pair]
        for statistic in STATISTICS:
            if statistic != "subspace_overlap" or _home(first) == _home(second):
                rows.append((pair, statistic, *findings[pair, statistic], max(share[first], share[second]), n))
    return pd.DataFrame(rows, columns=["comparison", "statistic", *Finding._fields, "largest", "n"])


def _largest_share(space):
    """The largest share that one fact has in the variance of `space` (n, d)."""
    sizes = ((space - space.mean(0)) ** 2).sum(1) if len(space) else np.zeros(0)
    return float(sizes.max() / sizes.sum()) if sizes.any() else np.nan


def _home(name):
    """The space that the vectors of this name live in: only within one space do subspaces make angles."""
    return "MLP" if name.startswith("key") else "model"


def _gram(space):
    centred = space - space.mean(0)
    return centred @ centred.T


def _recentre(gram):
    rows = gram.mean(-1, keepdims=True)
    return gram - rows - rows.swapaxes(-1, -2) + rows.mean(-2, keepdims=True)


def _restrict(gram, subsets):
    return gram[subsets[:, :, None], subsets[:, None, :]]


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
    """The sets of vectors to compare, (n, mlp) or (n, width) in float64, from `arrays` once they are checked."""
    names = [f"{kind}_{way}" for kind in ("key", "value", "output", "down") for way in ("forward", "reverse")]
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"symmetry: arrays lack {', '.join(missing)}")
    given = {name: np.asarray(arrays[name], float) for name in names}
    for name, array in given.items():
        if array.ndim != 2:
            raise ValueError(f"symmetry: {name} has shape {array.shape}; arrays have two dimensions")
    n, mlp = given["key_forward"].shape
    width = given["value_forward"].shape[1]
    for name, array in given.items():
        needed = {"key": (n, mlp), "down": (width, mlp)}.get(name.split("_")[0], (n, width))
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
        "output forward": given["output_forward"],
        "output reverse": given["output_reverse"],
    }
