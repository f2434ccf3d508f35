"""Do the forward and the reverse memory of a concept share a representation?

The forward run asks for the description of a name, the reverse run for the name of a description. At one layer of one
model they leave, for n facts, the mapping `arrays`: {side: (P, n, d)}, as the vocabulary names its sides. P parts are
the same vectors from P sets of templates. Row i is fact i throughout.

Vectors of few templates are noisy, and noise hides what is shared. So every likeness is measured between one half of
the parts forward and the *other* half in reverse, and beside it stands its ceiling: the same likeness of the two halves
of each side, by their geometric mean. What is small beside its ceiling is small; what is small and has a small ceiling
could not have been seen.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import linalg, stats
from sklearn.decomposition import PCA

from ..common import contrasts, intervals
from .vocabulary import BRIEF, CONCEPTS, HEADLINE, PAIRS, PEAK, STATISTICS

FEWEST_FACTS = 8  # debiased CKA is free to vary from four facts up
FOR_LOOKING = 50  # statistics that are no named test take so many times fewer permutations
ROUNDING = 1e-10  # a permutation that changes nothing is as symmetric, in whatever order its sums are taken
LEVEL, POWER = 0.05, 0.8  # of a test: how often it may err, and how often it should find what is there
SHRUNK = 0.1  # of the mean variance within facts, which the probe adds to that of every direction
SHARES = np.linspace(0, 1, 101)  # that are planted


class Finding(NamedTuple):
    """A statistic, its interval, what chance gives, and what could have been seen."""

    value: float
    ci_low: float = np.nan
    ci_high: float = np.nan
    ceiling: float = np.nan  # of the same thing from two halves of the templates
    least: float = np.nan  # the smallest value that as many facts would have shown four times in five
    null_mean: float = np.nan
    p_value: float = np.nan  # of this test alone
    p_adjusted: float = np.nan  # of a named test, for all named ones


def compare_all(arrays, *, components, permutations, rng, groups=None, folds=5, pairs=tuple(PAIRS), brief=False):
    """Every statistic of the comparisons `pairs`: comparison, statistic, the fields of `Finding`, largest, n.

    `brief`: the first three below alone, which take a tenth of the time.

    debiased_cka      centred kernel alignment from unbiased estimates: 0 where nothing is shared, so the one to quote
    cosine_similarity          mean cosine of a fact's own two vectors, each side centred, weighted by their size; that of
                      unrelated facts is −1/(n − 1) of it
    probe             share of facts that a classifier of facts, trained forward, tells in reverse (`linear_probe`)
    rsa               Spearman correlation of the distances between facts
    retrieval_at_1    share of held-out facts whose partner is the nearest held-out candidate (`partner_ranks`)
    outranked         share of the other candidates that are less near than the partner
    subspace_overlap  mean cosine of the principal angles of the top subspaces

    Both sides of a comparison are in one space. The probe needs four parts. Retrieval and overlap use the first
    `components` principal components, or as many as facts and widths allow. With fewer than eight facts every number
    is NaN; with one part there are no halves, and no ceilings.

    Null: the pairing of facts is permuted; for retrieval within folds, where every fit stays as it is. Where
    facts come in kinds that differ for other reasons, such as the direction they were trained in, `groups` (n,)
    names the kinds: facts change places within their group only, and folds share out each group evenly.
    subspace_overlap ignores the pairing, so its null turns one subspace at random: it says that both runs use the
    same directions, not that they use them for the same facts. p is one-sided towards more symmetry,
    (1 + permutations at least as symmetric) / (1 + permutations).

    Two tests were named beforehand: HEADLINE of each of CONCEPTS. They take all `permutations`, the same for both, and
    have a p_adjusted (max-T). Everything else is for looking: a fiftieth of the permutations, and p as it is.

    `least`, of debiased CKA and cosine_similarity, comes from planting (`smallest_seen`).

    Intervals (95%) are over facts. CKA, RSA, cosine_similarity and overlap have the jackknife's, which leaves one fact out at a
    time: a bootstrap draws facts twice, and copies are at distance zero in both spaces, a similarity of its own making.
    On simulated facts it covers the truth in 93 to 97%, in more where nothing is shared. Shares have Wilson's.

    `largest` is the largest share that one fact has in the variance of either side: near 1, CKA is about that fact.
    """
    pairs = [pair for pair in pairs if all(one in arrays for one in PAIRS[pair])]
    spaces = _checked(arrays)
    n = next(iter(spaces.values())).shape[1] if spaces else 0
    if n < FEWEST_FACTS or not pairs:
        told = BRIEF if brief else STATISTICS
        return _table({(pair, name): Finding(np.nan) for pair in pairs for name in told}, pairs, spaces, n)
    used = {one for pair in pairs for one in PAIRS[pair]}
    halves = {name: _halves(space) for name, space in spaces.items() if name in used}
    groups = _codes(groups, n)
    fold = assign_folds(groups, folds, rng)
    few = max(1, permutations // FOR_LOOKING)
    free = permute(groups, few, rng)
    within = permute(fold * n + groups, few, rng)
    findings = _shape_findings(halves, pairs, free, ("debiased_cka",) if brief else ("debiased_cka", "rsa"))
    findings |= _nearness_findings(halves, pairs, free)
    findings |= _probe_findings(spaces, pairs, free)
    if not brief:
        findings |= _retrieval_findings(halves, pairs, fold, within, components)
        findings |= _overlap_findings(halves, pairs, components, few, rng)
    findings |= _named_findings(findings, halves, pairs, permute(groups, permutations, rng))
    return _table(findings, pairs, spaces, n)


def _halves(space):
    """The means (2, n, d) of every other part of a space (P, n, d); of one part alone (1, n, d)."""
    return np.stack([space[first::2].mean(0) for first in range(min(2, len(space)))])


def _crossed(first, second):
    """Pairs of what was made of each half of two sides: never the same half of both, where there are two."""
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    return [(first[0], second[-1]), (first[-1], second[0])]


def _ceiling(first, second, likeness):
    """The geometric mean of the likenesses of the halves within each side; NaN where a side has no halves."""
    if min(len(first), len(second)) < 2:
        return np.nan
    return float(np.sqrt(np.prod([max(0.0, float(likeness(*side))) for side in (first, second)])))


def _named_findings(findings, halves, pairs, orders):
    """The findings of the named tests among `pairs`, with p-values from all `orders` (N, n)."""
    named = [pair for pair in CONCEPTS.values() if pair in pairs and not np.isnan(findings[pair, HEADLINE].value)]
    if not named:
        return {}
    shapes = {one: [_debiased(_gram(half)) for half in halves[one]] for pair in named for one in PAIRS[pair]}
    null = np.stack(
        [_null_of_shapes(*(shapes[one] for one in PAIRS[pair]), orders) for pair in named],
        axis=1,
    )
    alone, family = contrasts.adjusted([findings[pair, HEADLINE].value for pair in named], null + ROUNDING)
    return {
        (pair, HEADLINE): findings[pair, HEADLINE]._replace(
            null_mean=null[:, i].mean(), p_value=alone[i], p_adjusted=family[i]
        )
        for i, pair in enumerate(named)
    }


def beyond(arrays, base, *, pairs):
    """HEADLINE of each of `pairs` in `arrays` less that in `base`, of the same facts: comparison, value, ci_low, …

    Its interval leaves the same fact out of both.
    """
    rows = []
    for pair in pairs:
        found, n = Finding(np.nan), arrays[PAIRS[pair][0]].shape[1]
        if n >= FEWEST_FACTS:
            ends = []
            for one in (arrays, base):
                first, second = (
                    [_gram(half) for half in _halves(np.asarray(one[name], float))] for name in PAIRS[pair]
                )
                left_out = [_left_out(_debiased, *two) for two in _crossed(first, second)]
                ends.append([np.mean(part, axis=0) for part in zip(*left_out, strict=True)])
            whole, without = (own - other for own, other in zip(*ends, strict=True))
            interval = contrasts.jackknife(whole / 2, without / 2, contrasts.CHANGES)
            found = Finding(*(2 * part for part in interval))
        rows.append((pair, found.value, found.ci_low, found.ci_high, n))
    return pd.DataFrame(rows, columns=["comparison", "value", "ci_low", "ci_high", "n"])


def over_layers(table):
    """`table` with the p_adjusted of each layer multiplied by the number of layers (Bonferroni), at most 1.

    At the peak, which tracing chose without looking at symmetry, it stays as it is. A family is the rows of a model and
    a stage, and its layers are those with a test.
    """
    layers = table.layer.astype(str)
    tested = layers.where((layers != PEAK) & table.p_adjusted.notna())
    count = tested.groupby([table.model, table.stage]).transform("nunique")
    return table.assign(p_adjusted=(table.p_adjusted * count.where(layers != PEAK, 1)).clip(upper=1))


def spectra(arrays):
    """Singular values of the centred facts of each side of `arrays`, a mean over parts; one row a component.

    Columns: space, component, singular_value, share, cumulative, effective_rank, n. `share` is of the variance.
    The effective rank is Roy and Vetterli's: the exponential of the entropy of the singular values' shares of
    their sum. Empty with fewer than two facts.
    """
    rows = []
    for name, space in _checked(arrays).items():
        space = space.mean(0)
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


def pca_pairs(arrays, *, pairs):
    """The same facts twice in one plane, for each of the comparisons `pairs`.

    Columns: comparison, fact, side, x, y, x_share, y_share. The plane is that of the first two principal components of
    both sides together, after each was centred on its own mean and scaled to the same spread: offset and size are not
    what is compared. `fact` is the row in `arrays`: two points of one comparison and fact are a pair. Empty with fewer
    than two facts.
    """
    spaces = _checked(arrays)
    rows = []
    for pair in pairs:
        sides = PAIRS[pair]
        if spaces[sides[0]].shape[1] < 2:
            continue
        points = [_standard(spaces[side].mean(0)) for side in sides]
        fit = _pca(np.concatenate(points), 2)
        for side, those in zip(sides, points, strict=True):
            for fact, (x, y) in enumerate(fit.transform(those)):
                rows.append((pair, fact, side, x, y, *fit.explained_variance_ratio_))
    return pd.DataFrame(rows, columns=["comparison", "fact", "side", "x", "y", "x_share", "y_share"])


# Debiased CKA and RSA are each an inner product of two symmetric unit matrices, one from each space, and cosine_similarity is
# one of two unit sets of vectors. Permuting facts only permutes rows, so a null needs no more than entries in another
# order; and what is planted into one of them is planted into the product.


def debiased_cka(first, second):
    """Linear CKA of `first` (n, a) and `second` (n, b) from unbiased estimates of the dependence of each pair."""
    return _similarity(_debiased, first, second)


def rsa(first, second):
    """Spearman correlation of the Euclidean distances within `first` (n, a) and within `second` (n, b)."""
    return _similarity(_ranked, first, second)


def cosine_similarity(first, second):
    """Mean cosine of each fact's vectors in `first` and `second` (n, d), both centred, weighted by their size."""
    return float((_standard(np.asarray(first, float)) * _standard(np.asarray(second, float))).sum())


def _similarity(shape, first, second):
    return float(_inner(shape(_gram(np.asarray(first, float))), shape(_gram(np.asarray(second, float)))))


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
    shape = np.zeros_like(gram)
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


def diagonal_permuted(table, orders):
    """Sums over facts of a `table` (n, n), of each fact and what takes its partner's place in `orders` (N, n): (N,)."""
    return table[np.arange(len(table)), orders].sum(1)


def _null_of_shapes(first, second, orders):
    return np.mean([inner_permuted(*two, orders) for two in _crossed(first, second)], axis=0)


def smallest_seen(unrelated, noise, ceiling, between, *, level=LEVEL, mix=lambda share: (1 - share, share)):
    """The smallest value of an inner product of two unit shapes that a test would have found, four times in five.

    It is planted: in place of the second side comes a mixture, 1 − s parts of that side with its facts permuted, which
    is unrelated to the first, and s parts of the first side's own other half, as one memory would give; `mix` has
    the weights. Inner products of the first side with all of it follow from those of the parts: `unrelated` (N,)
    are those with the second side in N orders, `noise` (N,) those with the other half in these orders, `ceiling` that
    with the other half in its own order, and `between` (N,) those of the two parts. A mixture is found where few random
    pairings of it, `level`, are as alike. The value is the mean at the smallest s that suffices; NaN where none does.
    """
    shuffled = np.roll(noise, 1)  # a mixture's parts are permuted by other permutations
    for share in SHARES:
        rest, planted = mix(share)
        needed = np.quantile(rest * unrelated + planted * shuffled, 1 - level)
        seen = rest * unrelated + planted * ceiling
        if (seen > needed).mean() >= POWER:
            size = np.sqrt(np.maximum(rest**2 + planted**2 + 2 * rest * planted * between, ROUNDING))
            return float((seen / size).mean())
    return np.nan


def _level(pair):
    return LEVEL / len(CONCEPTS) if pair in CONCEPTS.values() else LEVEL


def _shape_findings(halves, pairs, orders, statistics):
    grams = {name: [_gram(half) for half in space] for name, space in halves.items()}
    findings = {}
    for statistic in statistics:
        shape = {"debiased_cka": _debiased, "rsa": _ranked}[statistic]
        whole = {name: [shape(gram) for gram in some] for name, some in grams.items()}
        rest = {name: [shape(_restrict(gram, _others(len(gram)))) for gram in some] for name, some in grams.items()}
        for pair in pairs:
            first, second = PAIRS[pair]
            value = np.mean([_inner(*two) for two in _crossed(whole[first], whole[second])])
            without = np.mean([_inner(*two) for two in _crossed(rest[first], rest[second])], axis=0)
            ends = contrasts.jackknife(value, without, contrasts.CHANGES)[1:]
            null = _null_of_shapes(whole[first], whole[second], orders)
            found = _finding(value, ends, null, _ceiling(whole[first], whole[second], _inner))
            if statistic == "debiased_cka" and not np.isnan(found.ceiling):
                own, other, second_half = *whole[first], whole[second][1]
                parts = (
                    inner_permuted(own, second_half, orders),
                    inner_permuted(own, other, orders),
                    _inner(own, other),
                    inner_permuted(other, second_half, orders),
                )
                found = found._replace(least=smallest_seen(*parts, level=_level(pair)))
            findings[pair, statistic] = found
    return findings


def _nearness_findings(halves, pairs, orders):
    units = {name: [_standard(half) for half in space] for name, space in halves.items()}
    findings = {}
    for pair in pairs:
        first, second = (units[one] for one in PAIRS[pair])
        tables = [one @ other.T for one, other in _crossed(first, second)]
        value = np.mean([np.trace(table) for table in tables])
        without = np.mean([_nearness_without(*two) for two in _crossed(first, second)], axis=0)
        ends = contrasts.jackknife(value, without, contrasts.CHANGES)[1:]
        null = np.mean([diagonal_permuted(table, orders) for table in tables], axis=0)
        found = _finding(value, ends, null, _ceiling(first, second, lambda one, other: (one * other).sum()))
        if not np.isnan(found.ceiling):
            own, other = first[0] @ second[1].T, first[0] @ first[1].T
            between = diagonal_permuted(first[1] @ second[1].T, orders)
            parts = (diagonal_permuted(own, orders), diagonal_permuted(other, orders), np.trace(other), between)
            found = found._replace(least=smallest_seen(*parts, mix=lambda share: (np.sqrt(1 - share), np.sqrt(share))))
        findings[pair, "cosine_similarity"] = found
    return findings


def _nearness_without(first, second):
    """`cosine_similarity` without each fact (n,), from unit sides (n, d): leaving one out moves the centre of the others too."""
    n = len(first)
    products = [
        n / (n - 1) * (one * other).sum(1) for one, other in ((first, second), (first, first), (second, second))
    ]
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((first * second).sum() - products[0]) / np.sqrt((1 - products[1]) * (1 - products[2]))


def linear_probe(taught, asked):
    """How often a probe that was taught facts takes each of `asked` for each of them: (facts asked, facts taught).

    `taught` (p, n, d) and `asked` (q, n, d) have p and q vectors of each fact. The probe is a linear discriminant: it
    weighs directions by how little a fact's own vectors vary in them, with a ridge of SHRUNK, and takes
    the fact whose mean has the largest cosine. Both sides are centred: what all facts have in common is no fact's.
    """
    p, n, d = taught.shape
    means = taught.mean(0)
    varied = (taught - means).reshape(p * n, d) / np.sqrt(n * max(1, p - 1))
    means, asked = means - means.mean(0), asked - asked.mean((0, 1))
    ridge = max(SHRUNK * (varied**2).sum() / min(d, p * n), ROUNDING * (means**2).mean(), ROUNDING)
    # By Woodbury's identity: vectors are few beside their width.
    inner = np.linalg.inv(ridge * np.eye(p * n) + varied @ varied.T)

    def weighed(one, other):
        return (one @ other.T - (one @ varied.T) @ inner @ (other @ varied.T).T) / ridge

    found = np.zeros((n, n))
    sizes = np.sqrt(np.maximum(np.diagonal(weighed(means, means)), np.finfo(float).tiny))
    for vectors in asked:
        taken = np.argmax(weighed(vectors, means) / sizes, axis=1)
        found[np.arange(n), taken] += 1 / len(asked)
    return found


def _probe_findings(spaces, pairs, orders):
    findings, ceilings = {}, {}

    def table(first, second):
        """Taught with one half's parts and asked with the other's, both ways."""
        return np.mean([linear_probe(spaces[first][a::2], spaces[second][1 - a :: 2]) for a in (0, 1)], axis=0)

    for pair in pairs:
        sides = PAIRS[pair]
        if min(len(spaces[one]) for one in sides) < 4:
            findings[pair, "probe"] = Finding(np.nan)
            continue
        found = table(*sides)
        for one in sides:
            if one not in ceilings:
                ceilings[one] = np.trace(table(one, one)) / len(found)
        share = contrasts.mean(contrasts.Sample(np.diagonal(found), np.arange(len(found))), contrasts.SHARES)
        ceiling = float(np.sqrt(np.prod([ceilings[one] for one in sides])))
        null = diagonal_permuted(found, orders) / len(found)
        findings[pair, "probe"] = _finding(share.estimate, share[1:], null, ceiling)
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


def _retrieval_findings(halves, pairs, fold, orders, components):
    flat = {(name, h): half for name, space in halves.items() for h, half in enumerate(space)}
    located = locate(flat, fold, components)
    located = {name: [located[name, h] for h in range(len(space))] for name, space in halves.items()}
    n = len(fold)
    rivals = (np.bincount(fold)[fold] - 1)[:, None]  # of each fact
    readings = {"retrieval_at_1": lambda ranks: ranks == 1, "outranked": lambda ranks: 1 - (ranks - 1) / rivals}
    findings = {}
    for pair in pairs:
        first, second = (located[one] for one in PAIRS[pair])
        crossed = _crossed(first, second)
        ranks = [partner_ranks(*two, fold) for two in crossed]
        null = [partner_ranks(*two, fold, orders) for two in crossed]
        for name, reading in readings.items():

            def found(one, other, reading=reading):
                return reading(partner_ranks(one, other, fold)).mean()

            share = intervals.wilson(min(n, np.mean([reading(one) for one in ranks]) * n), n)
            chance = np.mean([reading(one).mean((1, 2)) for one in null], axis=0)
            ceiling = _ceiling(first, second, found)
            findings[pair, name] = _finding(share.estimate, share[1:], chance, ceiling)
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


def _overlap_findings(halves, pairs, components, permutations, rng):
    n = next(iter(halves.values())).shape[1]
    rest = _others(n)
    # Subspaces of more than half the width meet whatever they hold.
    r = {name: min(components, n // 2 - 1, space.shape[2] // 2) for name, space in halves.items()}
    both = {name: [(half, bases_of(half, rest, r[name])) for half in space] for name, space in halves.items()}
    chance = {}
    for width, count in sorted({(space.shape[2], r[name]) for name, space in halves.items()}):
        chance[width] = overlaps_by_chance(width, count, permutations, rng)
    findings = {}
    for pair in pairs:
        first, second = PAIRS[pair]
        crossed = _crossed(both[first], both[second])

        def overlap(one, other, components=r[first]):
            return subspace_overlap(one[0], other[0], components)

        value = np.mean([overlap(*two) for two in crossed])
        without = np.mean([overlaps_of(one[0], other[0], rest, one[1], other[1]) for one, other in crossed], axis=0)
        ends = contrasts.jackknife(value, without, contrasts.CHANGES)[1:]
        ceiling = _ceiling(both[first], both[second], overlap)
        findings[pair, "subspace_overlap"] = _finding(value, ends, chance[halves[first].shape[2]], ceiling)
    return findings


def permute(groups, count, rng):
    """`count` random orders of the facts, each fact staying within its one of `groups` (n,): (count, n)."""
    _, code = np.unique(groups, return_inverse=True)
    orders = np.empty((count, len(code)), int)
    orders[:, np.argsort(code, kind="stable")] = np.argsort(code + rng.random(orders.shape), axis=1)
    return orders


def _finding(value, ends, null, ceiling):
    if np.isnan(value):
        return Finding(np.nan)
    p_value = (1 + (null - value >= -ROUNDING).sum()) / (1 + len(null))
    found = {"ceiling": ceiling, "null_mean": null.mean(), "p_value": p_value}
    return Finding(*map(float, (value, *ends)), **{name: float(one) for name, one in found.items()})


def _table(findings, pairs, spaces, n):
    rows = []
    share = {name: _largest_share(space) for name, space in spaces.items()}
    for pair in pairs:
        first, second = PAIRS[pair]
        for statistic in [name for name in STATISTICS if (pair, name) in findings]:
            rows.append((pair, statistic, *findings[pair, statistic], max(share[first], share[second]), n))
    return pd.DataFrame(rows, columns=["comparison", "statistic", *Finding._fields, "largest", "n"])


def _largest_share(space):
    """The largest share that one fact has in the variance of `space` (P, n, d), a mean over parts."""
    space = space.mean(0)
    sizes = ((space - space.mean(0)) ** 2).sum(1) if len(space) else np.zeros(0)
    return float(sizes.max() / sizes.sum()) if sizes.any() else np.nan


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


def _checked(arrays):
    """`arrays` in float64, once they are checked: {side: (P, n, d)}, with one n for all."""
    given = {name: np.asarray(array, float) for name, array in arrays.items()}
    for name, array in given.items():
        if array.ndim != 3:
            raise ValueError(f"symmetry: {name} has shape {array.shape}; arrays are parts × facts × width")
        facts = next(iter(given.values())).shape[1]
        if array.shape[1] != facts:
            raise ValueError(f"symmetry: {name} has {array.shape[1]} facts; the other arrays have {facts}")
        if not np.isfinite(array).all():
            fact = np.flatnonzero(~np.isfinite(array).all((0, 2)))[0]
            raise ValueError(f"symmetry: {name} is not finite at fact {fact}; leave such facts out everywhere")
    return given
