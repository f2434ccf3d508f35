"""Do the forward and the reverse direction store a concept in the same representation?

The forward prompts ask for the description of a name, the reverse prompts for the name of a description. At one layer
of one model they leave, for n facts, the mapping `arrays`: {side: (P, n, d)}, with the sides that the vocabulary names.
The P parts are the same vectors from P sets of templates. Row i is fact i throughout.

Vectors from few templates are noisy, and noise hides what is shared. So every statistic compares one half of the parts
of the forward side with the *other* half of the reverse side, and comes with a noise ceiling: the same statistic of the
two halves of each side, combined by their geometric mean. A value far below its ceiling is evidence against similarity;
with a low ceiling no similarity could have been detected.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import linalg, stats
from sklearn.decomposition import PCA

from ..common import contrasts
from .vocabulary import (
    DIRECTIONS,
    MAIN_STATISTICS,
    PAIRS,
    PEAK,
    POSITIONS,
    PRIMARY_COMPARISONS,
    PRIMARY_STATISTIC,
    SHOWN_COMPARISONS,
    STATISTICS,
    TWO_HALVES,
    side_name,
)

MIN_FACTS = 8  # debiased CKA needs at least four
EXPLORATORY = 50  # exploratory statistics take so many times fewer permutations than the primary tests
ROUNDING = 1e-10  # tolerance for sums taken in another order: a permutation that changes nothing is as symmetric
LEVEL, POWER = 0.05, 0.8  # of a test
SHRINKAGE = 0.1  # of the linear probe: ridge, as a share of the mean variance within facts
PLANTED_SHARES = np.linspace(0, 1, 101)
HALVES, NULL_HALVES = 40, 4  # random halves of the facts whose subspaces are compared: for the value, for its tests


class Finding(NamedTuple):
    """A statistic, its interval, its null distribution, and what could have been detected."""

    value: float
    ci_low: float = np.nan
    ci_high: float = np.nan
    ceiling: float = np.nan  # the same statistic between two halves of the templates
    minimum_detectable: float = np.nan  # smallest value that a test with as many facts detects with power POWER
    null_mean: float = np.nan
    p_value: float = np.nan  # of this test alone
    p_adjusted: float = np.nan  # of a primary test, for all primary tests
    matched_mean: float = np.nan  # of subspaces, under the null of random keys through the same down-projection
    matched_p: float = np.nan


def compare_all(arrays, *, pairs, groups, components, permutations, rng):
    """Every statistic of those of the comparisons `pairs` that `arrays` has: comparison, statistic, `Finding`, n.

    debiased_cka       centred kernel alignment from unbiased estimates: 0 where nothing is shared, so the one to quote
    cosine_similarity  mean cosine of a fact's two vectors, each side centred, weighted by their norms; of unrelated
                       facts it is −1/(n − 1) of that
    linear_probe       share of facts that a linear classifier, trained forward, identifies in reverse (`linear_probe`)
    subspace_overlap   of SHOWN_COMPARISONS: mean cosine of the principal angles between the top subspaces of both sides

    Both sides of a comparison lie in one space. The probe needs four parts. Subspaces have `components` dimensions, or
    as many as facts and widths allow. With fewer than MIN_FACTS facts every number is NaN; with one part there are no
    halves, and no ceilings.

    Null: the pairing of facts is permuted. Where facts come in kinds that differ for other reasons, such as the
    direction they were trained in, `groups` (n,) names the kinds: facts are permuted within their group only. p is
    one-sided towards more symmetry, (1 + permutations at least as symmetric) / (1 + permutations).

    The subspace of all facts ignores their pairing, so subspaces are those of random halves of the facts: of the same
    half on both sides, under the null of different facts. A second null is activation-matched: one side becomes what
    the same down-projection makes of random keys, in which each neuron takes its activations from facts at random
    (`draw_matched_outputs`). Two sets of outputs of one MLP share directions anyway; random ones would be too weak.

    There are two primary (preregistered) tests: PRIMARY_STATISTIC of each of PRIMARY_COMPARISONS. They take all
    `permutations`, the same for both, and have a p_adjusted (max-T). Everything else is exploratory: it takes a
    fiftieth of the permutations, and its p is not adjusted.

    minimum_detectable, for debiased CKA and cosine similarity, comes from planted effects (`plant_minimum_detectable`).

    Intervals (95%) are over facts. CKA and cosine similarity have the jackknife's, which leaves one fact out at a time:
    a bootstrap draws facts twice, and copies are at distance zero in both spaces, which adds similarity. On simulated
    facts it covers the truth in 93 to 97%, in more where nothing is shared. Overlaps have the jackknife's that leaves
    half of the facts out. Shares have Wilson's.
    """
    pairs = [pair for pair in pairs if all(side in arrays for side in PAIRS[pair])]
    n = len(groups)
    if n < MIN_FACTS:
        findings = {(pair, name): Finding(np.nan) for pair in pairs for name in _list_statistics(pair)}
        return _make_table(findings, pairs, n)
    spaces = {side: np.asarray(array, float) for side, array in arrays.items()}
    halves = {side: _split_halves(space) for side, space in spaces.items()}
    primary_orders = permute(groups, permutations, rng)  # drawn first, so that nothing exploratory changes them
    orders = permute(groups, max(1, permutations // EXPLORATORY), rng)
    shapes = {side: [_u_center(_gram(half)) for half in space] for side, space in halves.items()}
    units = {side: [_standardize(half) for half in space] for side, space in halves.items()}
    findings = _compare_products("debiased_cka", shapes, pairs, orders)
    findings |= _compare_products("cosine_similarity", units, pairs, orders)
    findings |= _compare_by_probe(spaces, pairs, orders)
    findings |= _compare_subspaces(spaces, halves, pairs, orders, groups, components, rng)
    findings |= _test_primary(findings, shapes, primary_orders)
    return _make_table(findings, pairs, n)


def _list_statistics(pair):
    return STATISTICS if pair in SHOWN_COMPARISONS else MAIN_STATISTICS


def _split_halves(space):
    """The means (2, n, d) of the even and of the odd parts of a space (P, n, d); of one part alone (1, n, d)."""
    return np.stack([space[first::2].mean(0) for first in range(min(2, len(space)))])


def _cross_halves(first, second):
    """Pairs of one half of each side: never the same half of both, where there are two."""
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    return [(first[0], second[-1]), (first[-1], second[0])]


def _compute_ceiling(first, second, similarity):
    """The geometric mean over both sides of the similarity of a side's two halves; NaN where a side has no halves."""
    if min(len(first), len(second)) < 2:
        return np.nan
    return float(np.sqrt(np.prod([max(0.0, float(similarity(*side))) for side in (first, second)])))


def _test_primary(findings, shapes, orders):
    """The findings of the primary tests among all `findings`, with p-values from all `orders` (N, n)."""
    primary = [pair for pair in PRIMARY_COMPARISONS.values() if (pair, PRIMARY_STATISTIC) in findings]
    primary = [pair for pair in primary if not np.isnan(findings[pair, PRIMARY_STATISTIC].value)]
    if not primary:
        return {}
    sides = [[shapes[side] for side in PAIRS[pair]] for pair in primary]
    null = np.stack([_permute_crossed(PRIMARY_STATISTIC, *two, orders) for two in sides], axis=1)
    values = [findings[pair, PRIMARY_STATISTIC].value for pair in primary]
    p_values, p_adjusted = contrasts.adjust_p_values(values, null + ROUNDING)
    return {
        (pair, PRIMARY_STATISTIC): findings[pair, PRIMARY_STATISTIC]._replace(
            null_mean=null[:, i].mean(), p_value=p_values[i], p_adjusted=p_adjusted[i]
        )
        for i, pair in enumerate(primary)
    }


def adjust_for_layers(table):
    """Multiply the p_adjusted of each layer by the number of layers (Bonferroni), up to 1.

    At the peak, which tracing chooses without symmetry, it stays as it is. A family is the rows of a model and a stage,
    and its layers are those with a test.
    """
    layers = table.layer.astype(str)
    tested = layers.where((layers != PEAK) & table.p_adjusted.notna())
    count = tested.groupby([table.model, table.stage]).transform("nunique")
    return table.assign(p_adjusted=(table.p_adjusted * count.where(layers != PEAK, 1)).clip(upper=1))


def spectra(arrays):
    """Singular values of the centred facts of each side of `arrays`, averaged over parts; one row a component.

    Columns: space, component, share, cumulative, effective_rank, n. `share` is of the variance. The effective rank is
    Roy and Vetterli's: the exponential of the entropy of the singular values' shares of their sum. Empty with fewer
    than two facts.
    """
    rows = []
    for side, space in arrays.items():
        space = np.mean(space, axis=0, dtype=float)
        if len(space) < 2:
            continue
        values = linalg.svdvals(space - space.mean(0))[: len(space) - 1]
        with np.errstate(invalid="ignore"):
            share = values**2 / (values**2).sum()
            effective_rank = np.exp(stats.entropy(values))
        for i in range(len(values)):
            rows.append((side, i + 1, share[i], share[: i + 1].sum(), effective_rank, len(space)))
    return pd.DataFrame(rows, columns=["space", "component", "share", "cumulative", "effective_rank", "n"])


def pca_pairs(arrays, *, pairs):
    """Both sides of each of the comparisons `pairs` in one plane, for a scatter plot.

    Columns: comparison, fact, side, x, y. The plane is that of the first two principal components of both sides
    together, after each is centred and scaled to the same spread, because offset and scale are not compared. `fact` is
    the row in `arrays`: two points of one comparison and fact are a pair. TWO_HALVES after a comparison marks what the
    same thing looks like twice: its output at the subject from one half of the templates and from the other. Empty with
    fewer than two facts.
    """
    drawn, halved = {}, {}
    for pair in pairs:
        sides = {side: np.asarray(arrays[side], float) for side in PAIRS[pair] if side in arrays}
        if len(sides) < 2 or min(space.shape[1] for space in sides.values()) < 2:
            continue
        drawn[pair] = [(side, space.mean(0)) for side, space in sides.items()]
        subject = next(side for side in sides if side.startswith("output at subject"))
        halves = _split_halves(sides[subject])
        if len(halves) == 2:
            halved[pair + TWO_HALVES] = [(f"{subject}, half {i + 1}", half) for i, half in enumerate(halves)]
    rows = []
    for pair, sides in (drawn | halved).items():
        points = [_standardize(space) for _, space in sides]
        with np.errstate(invalid="ignore"):  # identical facts have no variance to take shares of
            plane = PCA(2, svd_solver="full").fit(np.concatenate(points))
        for (side, _), side_points in zip(sides, points, strict=True):
            for fact, (x, y) in enumerate(plane.transform(side_points)):
                rows.append((pair, fact, side, x, y))
    return pd.DataFrame(rows, columns=["comparison", "fact", "side", "x", "y"])


# Debiased CKA is an inner product of two symmetric matrices of norm 1 ("shapes"), one from each space,
# and the cosine similarity is one of two sets of vectors of norm 1. Permuting facts only permutes rows, so a null
# reorders entries; and a mixture planted into one factor is a mixture of products.


def _u_center(gram):
    """U-centred inner products (..., n, n) of norm 1, without the diagonal, which only has each fact's norm."""
    n = gram.shape[-1]
    off_diagonal = ~np.eye(n, dtype=bool)
    rows = (gram * off_diagonal).sum(-1, keepdims=True) / (n - 2)
    total = rows.sum(-2, keepdims=True) / (n - 1)
    return _normalize((gram - rows - rows.swapaxes(-1, -2) + total) * off_diagonal)


def _normalize(matrix):
    with np.errstate(invalid="ignore"):
        return matrix / np.linalg.norm(matrix, axis=(-2, -1), keepdims=True)


def _inner(first, second):
    return np.einsum("...ij,...ij->...", first, second)


def permuted_inner_products(first, second, orders):
    """Inner products of `first` (n, n) with `second` (n, n), its facts in each of `orders` (N, n): (N,)."""
    n = len(first)
    i, j = np.triu_indices(n)
    weights = first[i, j] * np.where(i == j, 1, 2)
    # A few permutations at a time stay in the cache: four times as fast as all at once.
    blocks = np.array_split(orders, max(1, len(orders) // 64))
    return np.concatenate([second.ravel().take(block[:, i] * n + block[:, j]) @ weights for block in blocks])


def permuted_diagonal_sums(table, orders):
    """Sums of the diagonal of a `table` (n, n) with its columns in each of `orders` (N, n): (N,)."""
    return table[np.arange(len(table)), orders].sum(1)


def plant_minimum_detectable(unrelated, noise, ceiling, between, *, level, mix):
    """The smallest value of an inner product of two unit shapes that a test at `level` detects with power POWER.

    An effect is planted: the second side is replaced by a mixture of 1 − s parts of that side with its facts permuted,
    which is unrelated to the first, and s parts of the first side's own other half, as under shared storage; `mix`
    gives the weights. The inner products of the first side with the mixture follow from those with its parts:
    `unrelated` (N,) with the second side in N orders, `noise` (N,) with the other half in these orders, `ceiling` with
    the other half in its own order; `between` (N,) are those of the two parts. The result is the mean value at the
    smallest s with enough power; NaN where there is none.
    """
    shuffled = np.roll(noise, 1)  # the parts of a mixture have different permutations
    for share in PLANTED_SHARES:
        rest, planted = mix(share)
        critical = np.quantile(rest * unrelated + planted * shuffled, 1 - level)
        observed = rest * unrelated + planted * ceiling
        if (observed > critical).mean() >= POWER:
            norm = np.sqrt(np.maximum(rest**2 + planted**2 + 2 * rest * planted * between, ROUNDING))
            return float((observed / norm).mean())
    return np.nan


class Product(NamedTuple):
    """How an inner product of two factors of norm 1 changes with the facts; N orders are (N, n)."""

    leave_one_out: Callable  # first, second → the product without each fact (n,)
    permuted: Callable  # first, second, orders → with the facts of the second in each of the orders (N,)
    mix: Callable  # share → the weights of two parts in a factor of which the second is a planted share


def _compare_products(statistic, factors, pairs, orders):
    """{(pair, statistic): `Finding`} of the inner products of `factors`, {side: those of its halves}."""
    product, findings = PRODUCTS[statistic], {}
    for pair in pairs:
        first, second = (factors[side] for side in PAIRS[pair])
        crossed = _cross_halves(first, second)
        value = np.mean([_inner(*two) for two in crossed])
        without = np.mean([product.leave_one_out(*two) for two in crossed], axis=0)
        ends = contrasts.jackknife(value, [without], bounded=True)[1:]
        null = _permute_crossed(statistic, first, second, orders)
        finding = _make_finding(value, ends, null, _compute_ceiling(first, second, _inner))
        if not np.isnan(finding.ceiling):
            half, other_half, second_half = *first, second[1]
            parts = (
                product.permuted(half, second_half, orders),
                product.permuted(half, other_half, orders),
                _inner(half, other_half),
                product.permuted(other_half, second_half, orders),
            )
            is_primary = statistic == PRIMARY_STATISTIC and pair in PRIMARY_COMPARISONS.values()
            level = LEVEL / len(PRIMARY_COMPARISONS) if is_primary else LEVEL  # Bonferroni's
            detectable = plant_minimum_detectable(*parts, level=level, mix=product.mix)
            finding = finding._replace(minimum_detectable=detectable)
        findings[pair, statistic] = finding
    return findings


def _permute_crossed(statistic, first, second, orders):
    """The null (N,) of an inner product of two sides' factors, averaged over crossed halves."""
    permuted = PRODUCTS[statistic].permuted
    return np.mean([permuted(*two, orders) for two in _cross_halves(first, second)], axis=0)


def _cka_leave_one_out(first, second):
    """Debiased CKA without each fact (n,), from two shapes (n, n)."""
    n = len(first)
    others = np.array([np.delete(np.arange(n), i) for i in range(n)])
    return _inner(*(_u_center(_restrict(shape, others)) for shape in (first, second)))


def _cosine_leave_one_out(first, second):
    """Cosine similarity without each fact (n,), from unit sides (n, d): leaving one out moves the mean too."""
    n = len(first)
    products = [n / (n - 1) * (x * y).sum(1) for x, y in ((first, second), (first, first), (second, second))]
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((first * second).sum() - products[0]) / np.sqrt((1 - products[1]) * (1 - products[2]))


def _permute_cosines(first, second, orders):
    return permuted_diagonal_sums(first @ second.T, orders)


PRODUCTS = {
    "debiased_cka": Product(_cka_leave_one_out, permuted_inner_products, lambda share: (1 - share, share)),
    "cosine_similarity": Product(
        _cosine_leave_one_out, _permute_cosines, lambda share: (np.sqrt(1 - share), np.sqrt(share))
    ),
}


def linear_probe(train, test):
    """How often a linear probe of facts classifies each fact of `test` as each fact: (n true, n predicted).

    `train` (p, n, d) and `test` (q, n, d) have p and q vectors of each fact. The probe is a linear discriminant: it
    weighs directions by how little a fact's own vectors vary in them, with a ridge of SHRINKAGE, and predicts the fact
    whose mean has the largest cosine. Both sides are centred, because what all facts share identifies none.
    """
    p, n, d = train.shape
    means = train.mean(0)
    within = (train - means).reshape(p * n, d) / np.sqrt(n * max(1, p - 1))
    means, test = means - means.mean(0), test - test.mean((0, 1))
    ridge = max(SHRINKAGE * (within**2).sum() / min(d, p * n), ROUNDING * (means**2).mean(), ROUNDING)
    # By Woodbury's identity, because there are fewer vectors than dimensions.
    inner = np.linalg.inv(ridge * np.eye(p * n) + within @ within.T)

    def weighted_products(x, y):
        return (x @ y.T - (x @ within.T) @ inner @ (y @ within.T).T) / ridge

    confusion = np.zeros((n, n))
    norms = np.sqrt(np.maximum(np.diagonal(weighted_products(means, means)), np.finfo(float).tiny))
    for vectors in test:
        predicted = np.argmax(weighted_products(vectors, means) / norms, axis=1)
        confusion[np.arange(n), predicted] += 1 / len(test)
    return confusion


def _compare_by_probe(spaces, pairs, orders):
    """{(pair, "linear_probe"): `Finding`}."""
    findings, ceilings = {}, {}

    def classify(first, second):
        """Train with one half's parts and test with the other's, both ways."""
        return np.mean([linear_probe(spaces[first][a::2], spaces[second][1 - a :: 2]) for a in (0, 1)], axis=0)

    for pair in pairs:
        sides = PAIRS[pair]
        if min(len(spaces[side]) for side in sides) < 4:
            findings[pair, "linear_probe"] = Finding(np.nan)
            continue
        confusion = classify(*sides)
        n = len(confusion)
        for side in sides:
            if side not in ceilings:
                ceilings[side] = np.trace(classify(side, side)) / n
        share = contrasts.mean(contrasts.Sample(np.diagonal(confusion), np.arange(n)), contrasts.SHARES)
        ceiling = float(np.sqrt(np.prod([ceilings[side] for side in sides])))
        null = permuted_diagonal_sums(confusion, orders) / n
        findings[pair, "linear_probe"] = _make_finding(share.estimate, share[1:], null, ceiling)
    return findings


def overlap_subsets(first, second, subsets, other_subsets, components):
    """Mean cosine of the principal angles between the top subspaces of `first` and `second` (n, d): (m,).

    Those of `first` are over each of `subsets` (m, h) of facts, those of `second` over each of `other_subsets`, from
    inner products alone. NaN where the facts of a subset do not differ in that many directions.
    """
    bases = [_subset_bases(*side, components) for side in ((first, subsets), (second, other_subsets))]
    across = (first - first.mean(0)) @ (second - second.mean(0)).T
    across = across[subsets[:, :, None], other_subsets[:, None, :]]
    products = bases[0].swapaxes(-1, -2) @ across @ bases[1]
    known = np.isfinite(products).all((-2, -1))
    cosines = np.linalg.svd(np.where(known[:, None, None], products, 0), compute_uv=False)
    return np.where(known, np.minimum(cosines, 1).mean(-1), np.nan)


def _subset_bases(space, subsets, components):
    """Orthonormal bases of the top subspaces of `subsets` (m, h) of facts, as weights (m, h, r) of each one's facts."""
    variance, facts = np.linalg.eigh(_recentre(_restrict(_gram(space), subsets)))
    variance, facts = variance[:, None, -components:], facts[..., -components:]
    return facts / np.sqrt(np.where(variance > ROUNDING * variance[..., -1:], variance, np.nan))


def find_down_projection(spaces):
    """The matrix (mlp, width) that turns the keys of `spaces` ({side: (P, n, d)}) into the MLP's outputs.

    None where the vectors are too few to determine it, or where no matrix does.
    """
    places = [(position, direction) for position in POSITIONS for direction in DIRECTIONS]
    sides = [[side_name(f"{kind} at {at}", direction) for kind in ("key", "output")] for at, direction in places]
    pairs = [pair for pair in sides if all(side in spaces for side in pair)]
    if not pairs:
        return None
    keys, outputs = (
        np.concatenate([spaces[pair[i]].reshape(-1, spaces[pair[i]].shape[-1]) for pair in pairs]) for i in (0, 1)
    )
    matrix, _, rank, _ = np.linalg.lstsq(keys, outputs, rcond=None)
    error = np.linalg.norm(keys @ matrix - outputs) / max(np.linalg.norm(outputs), np.finfo(float).tiny)
    return matrix if rank == keys.shape[1] < len(keys) and error < 1e-3 else None


def draw_matched_outputs(keys, down_projection, rng):
    """The MLP's outputs (P, n, width) for random keys: each neuron of `keys` (P, n, mlp) permutes its facts alone.

    All parts have the same permutations, because the parts of a fact are alike.
    """
    _, n, neurons = keys.shape
    orders = rng.permuted(np.tile(np.arange(n)[:, None], neurons), axis=0)
    return np.take_along_axis(keys, orders[None], axis=1) @ down_projection


def _compare_subspaces(spaces, halves, pairs, orders, groups, components, rng):
    """{(pair, "subspace_overlap"): `Finding`}; overlaps are means over random halves of the facts."""
    n, count = len(groups), len(orders)
    order = permute(groups, HALVES, rng)[:, np.argsort(groups, kind="stable")]  # sorted by group, random within it
    subsets = order[:, : 2 * (n // 2) : 2]
    tested = subsets[:NULL_HALVES]
    repeated = np.tile(tested, (count, 1))
    permuted = orders[:, tested].reshape(repeated.shape)
    down_projection = find_down_projection(spaces)
    findings = {}
    for pair in [pair for pair in pairs if pair in SHOWN_COMPARISONS]:
        sides = PAIRS[pair]
        crossed = _cross_halves(*(halves[side] for side in sides))
        # Subspaces of more than half the width intersect in any case.
        r = min(components, subsets.shape[1] - 1, *(halves[side].shape[2] // 2 for side in sides))

        def overlap(first, second, subsets=subsets, other=None, r=r):
            return overlap_subsets(first, second, subsets, subsets if other is None else other, r)

        same = np.mean([overlap(*two) for two in crossed], axis=0)
        null = np.mean([overlap(*two, repeated, permuted).reshape(count, -1) for two in crossed], axis=(0, 2))
        ceiling = _compute_ceiling(*(halves[side] for side in sides), lambda *two: overlap(*two).mean())
        ends = contrasts.jackknife_halves(same)[1:]
        observed = same[:NULL_HALVES].mean()
        finding = _make_finding(same.mean(), ends, null, ceiling)
        if not np.isnan(finding.value):
            finding = finding._replace(p_value=_p_value(observed, null))
        if down_projection is not None and not np.isnan(finding.value):
            matched = _overlap_matched(sides, halves, down_projection, lambda *two: overlap(*two, tested), count, rng)
            finding = finding._replace(matched_mean=matched.mean(), matched_p=_p_value(observed, matched))
        findings[pair, "subspace_overlap"] = finding
    return findings


def _overlap_matched(sides, halves, down_projection, overlap, count, rng):
    """The activation-matched null (count,): the outputs at the subject are replaced by `draw_matched_outputs`."""
    replaced = next(i for i, side in enumerate(sides) if side.startswith("output at subject"))
    keys = halves[sides[replaced].replace("output", "key", 1)]
    other = halves[sides[1 - replaced]]
    null = np.empty(count)
    for i in range(count):
        drawn = draw_matched_outputs(keys, down_projection, rng)
        null[i] = np.mean([overlap(*two) for two in _cross_halves(drawn, other)])
    return null


def permute(groups, count, rng):
    """`count` random orders of the facts, each fact staying within its one of `groups` (n,): (count, n)."""
    _, code = np.unique(groups, return_inverse=True)
    orders = np.empty((count, len(code)), int)
    orders[:, np.argsort(code, kind="stable")] = np.argsort(code + rng.random(orders.shape), axis=1)
    return orders


def _make_finding(value, ends, null, ceiling):
    """The `Finding` of a value with the ends of its interval, its null (N,) and its ceiling."""
    if np.isnan(value):
        return Finding(np.nan)
    rest = {"ceiling": ceiling, "null_mean": null.mean(), "p_value": _p_value(value, null)}
    return Finding(*map(float, (value, *ends)), **{name: float(number) for name, number in rest.items()})


def _p_value(value, null):
    return (1 + (null - value >= -ROUNDING).sum()) / (1 + len(null))


def _make_table(findings, pairs, n):
    rows = []
    for pair in pairs:
        for statistic in _list_statistics(pair):
            rows.append((pair, statistic, *findings[pair, statistic], n))
    return pd.DataFrame(rows, columns=["comparison", "statistic", *Finding._fields, "n"])


def _gram(space):
    centred = space - space.mean(0)
    return centred @ centred.T


def _recentre(gram):
    rows = gram.mean(-1, keepdims=True)
    return gram - rows - rows.swapaxes(-1, -2) + rows.mean(-2, keepdims=True)


def _restrict(gram, subsets):
    """The Gram matrices (m, h, h) of `subsets` (m, h) of facts."""
    return gram[subsets[:, :, None], subsets[:, None, :]]


def _standardize(space):
    """`space` centred and scaled to norm 1."""
    centred = space - space.mean(0)
    return centred / max(np.linalg.norm(centred), np.finfo(float).tiny)
