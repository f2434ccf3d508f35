import numpy as np
import pandas as pd
import pytest
from scipy import linalg, stats

from reversal.common import contrasts
from reversal.storage import similarity, vocabulary

NAME, DESCRIPTION = vocabulary.PRIMARY_COMPARISONS.values()
STATE = vocabulary.STATE_COMPARISONS["name"]
OUTPUTS = "name: output at subject × at answer"
KINDS = ("output at subject", "output at answer", "value", "state at subject", "state at answer")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def planted(strength, rng, n=30, width=20, noise=0.1, parts=4):
    """Vectors of each side that are `strength` parts shared and one part their own; at 0, the sides are unrelated.

    Each side has several parts, which differ by `noise`; values have two.
    """
    concept = rng.standard_normal((n, 6)) @ rng.standard_normal((6, width)) / 6**0.5

    def make_side(kind):
        own = strength * concept + rng.standard_normal((n, width))
        return own + noise * rng.standard_normal((2 if kind == "value" else parts, n, width))

    return {
        vocabulary.side_name(kind, direction): make_side(kind) for kind in KINDS for direction in vocabulary.DIRECTIONS
    }


def draw_rotation(dimensions, rng):
    return np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0]


def make_shape(space):
    return similarity._u_center(similarity._gram(space))


def debiased_cka(first, second):
    return similarity._inner(make_shape(first), make_shape(second))


def make_factors(arrays, pairs, make):
    """{side: what `make` makes of each half} of the sides of `pairs`."""
    sides = {side for pair in pairs for side in vocabulary.PAIRS[pair]}
    return {side: [make(half) for half in similarity._split_halves(arrays[side])] for side in sides}


def compare(arrays, rng, **options):
    facts = next(iter(arrays.values())).shape[1]
    settings = {"components": 5, "permutations": 9_500, "pairs": tuple(vocabulary.PAIRS), "groups": np.zeros(facts)}
    settings |= options
    table = similarity.compare_all(arrays, rng=rng, **settings)
    return table.set_index(["comparison", "statistic"])


# Closed cases


def test_a_space_has_cka_1_with_itself_rotated_scaled_and_moved(rng):
    first = rng.standard_normal((30, 12))
    assert debiased_cka(first, first) == pytest.approx(1)
    assert debiased_cka(first, 7 * first @ draw_rotation(12, rng) + 3) == pytest.approx(1)


def test_debiased_cka_is_the_ratio_of_unbiased_dependences(rng):
    def dependence(one, other):
        n = len(one)
        one, other = one - np.diag(np.diag(one)), other - np.diag(np.diag(other))
        total = one.sum() * other.sum() / ((n - 1) * (n - 2))
        return np.trace(one @ other) + total - 2 / (n - 2) * (one @ other).sum()

    first, second = rng.standard_normal((15, 8)), rng.standard_normal((15, 3)) + 2
    one, other = first @ first.T, second @ second.T
    expected = dependence(one, other) / np.sqrt(dependence(one, one) * dependence(other, other))
    assert debiased_cka(first, second) == pytest.approx(expected)


def test_with_few_facts_debiased_cka_of_noise_is_0(rng):
    pairs = [(rng.standard_normal((20, 200)), rng.standard_normal((20, 200))) for _ in range(30)]
    assert np.mean([debiased_cka(*pair) for pair in pairs]) == pytest.approx(0, abs=0.05)


def test_cosine_similarity_is_1_for_the_same_vectors_moved_and_scaled_and_slightly_negative_for_unrelated_facts(rng):
    first = rng.standard_normal((20, 9))
    unit, moved = similarity._standardize(first), similarity._standardize(5 * first + 3)
    assert (unit * moved).sum() == pytest.approx(1)
    rolled = [(unit * unit[np.roll(np.arange(20), shift)]).sum() for shift in range(1, 20)]
    assert np.mean(rolled) == pytest.approx(-1 / 19)


def test_subspaces_overlap_fully_with_themselves_and_not_with_their_complement(rng):
    basis, facts = draw_rotation(10, rng), np.arange(30)[None]
    inside, outside = (rng.standard_normal((30, 3)) @ basis[part] for part in (slice(3), slice(3, 6)))
    first = rng.standard_normal((30, 3)) @ basis[:3]
    assert similarity.overlap_subsets(first, inside, facts, facts, 3) == pytest.approx(1)
    assert similarity.overlap_subsets(first, outside, facts, facts, 3) == pytest.approx(0, abs=1e-6)
    assert np.isnan(similarity.overlap_subsets(first, rng.standard_normal((30, 10)), facts, facts, 4))


# Level and power


def test_the_tests_of_unrelated_sides_hold_their_level():
    seeds = 50
    tables = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        arrays = planted(0, rng, n=12, width=10)
        tables.append(compare(arrays, rng, components=3, pairs=(OUTPUTS,), permutations=2_950).reset_index())
    p = pd.concat(tables).set_index(["comparison", "statistic"]).p_value
    most = stats.binom.ppf(0.9999, seeds, 0.1)
    for statistic in vocabulary.STATISTICS:
        assert (p[OUTPUTS, statistic] <= 0.1).sum() <= most, statistic
    # Continuous statistics have uniform p-values; the discrete ones are only bounded.
    for statistic in ("debiased_cka", "cosine_similarity"):
        assert stats.kstest(p[OUTPUTS, statistic], "uniform").pvalue > 1e-3, statistic


def test_a_shared_representation_is_detected_and_similarity_grows_with_it():
    def averaged(strength):
        generators = map(np.random.default_rng, range(3))
        pairs = (NAME, STATE)
        tables = [compare(planted(strength, rng), rng, components=6, pairs=pairs) for rng in generators]
        return sum(tables) / len(tables)

    none, some, most = (averaged(strength) for strength in (0, 1, 6))
    for pair in (NAME, STATE):
        for statistic in set(vocabulary.MAIN_STATISTICS) - ({"linear_probe"} if pair != STATE else set()):
            at = (pair, statistic)
            assert none.value[at] < some.value[at] < most.value[at], at
            assert most.p_value[at] < 0.02 < none.p_value[at], at
    assert most.value[STATE, "linear_probe"] > 0.9


def test_subspaces_are_shared_by_the_same_facts_or_by_all(rng):
    """Facts with directions of their own, and facts that all lie in one subspace but nowhere in particular."""
    own = rng.standard_normal((24, 60))
    basis = rng.standard_normal((4, 60))
    for is_own in (True, False):
        sides = [own if is_own else rng.standard_normal((24, 4)) @ basis for _ in range(2)]
        noisy = [side + 0.1 * rng.standard_normal((4, 24, 60)) for side in sides]
        arrays = dict(zip(vocabulary.PAIRS[OUTPUTS], noisy, strict=True))
        found = compare(arrays, rng, components=4, pairs=(OUTPUTS,)).loc[(OUTPUTS, "subspace_overlap")]
        assert found.value > 0.9 and (found.p_value < 0.02) == is_own
        assert np.isnan(found.matched_p)  # without keys


def test_unrelated_keys_through_one_down_projection_overlap_as_random_keys_do(rng):
    down_projection, p_values = rng.standard_normal((12, 60)), []
    random = np.linalg.qr(rng.standard_normal((2, 200, 60, 8)))[0]
    chance = np.linalg.svd(random[0].swapaxes(1, 2) @ random[1], compute_uv=False).mean()
    for _ in range(12):
        arrays = {}
        for side in vocabulary.PAIRS[OUTPUTS]:
            keys = np.maximum(rng.standard_normal((24, 12)), 0) + 0.05 * rng.standard_normal((4, 24, 12))
            arrays |= {side.replace("output", "key"): keys, side: keys @ down_projection}
        found = compare(arrays, rng, components=8, pairs=(OUTPUTS,), permutations=2_000)
        found = found.loc[(OUTPUTS, "subspace_overlap")]
        assert found.value > 1.5 * chance and found.matched_mean == pytest.approx(found.value, abs=0.1)
        p_values.append(found.matched_p)
    assert sum(p <= 0.1 for p in p_values) <= 4  # by chance one, and five or more in one of 200 cases
    assert similarity.find_down_projection(arrays) == pytest.approx(down_projection)
    shuffled = similarity.draw_matched_outputs(keys, down_projection, rng)
    assert shuffled.mean(1) == pytest.approx((keys @ down_projection).mean(1))
    few = {side: array[:1, :4] for side, array in arrays.items()}
    assert similarity.find_down_projection(few) is None


def test_a_difference_between_groups_is_not_a_symmetry_of_facts():
    """Two kinds of facts that differ in every space, and share nothing else."""
    groups = np.repeat(["p2d", "d2p"], 10)
    found = {"free": 0, "grouped": 0}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        arrays = planted(0, rng, n=20, width=8)
        for array in arrays.values():
            array[:, :10] += 2
        for kind, given in (("free", np.zeros(20)), ("grouped", groups)):
            table = compare(arrays, rng, groups=given, components=3, pairs=(NAME,))
            found[kind] += table.p_value[NAME, "debiased_cka"] <= 0.05
    assert found["free"] >= 18
    assert found["grouped"] <= 5


# Ceilings and minimum detectable effects


def test_the_ceiling_of_identical_halves_is_one_and_noise_lowers_it(rng):
    same, noisy = (compare(planted(0, np.random.default_rng(1), noise=noise), rng) for noise in (0, 1))
    ceilings = same.ceiling.dropna()
    # Four pairs with values have no probe.
    assert ceilings.to_numpy() == pytest.approx(1) and len(ceilings) == len(same) - 4
    ceilings = noisy.ceiling.dropna()
    assert (ceilings <= 1).all() and (ceilings.xs("debiased_cka", level=1) < 0.9).all()


def test_shared_storage_with_noise_reaches_its_ceiling():
    """The same vectors read twice: the similarity of the directions is that of the halves within each."""
    tables, pair = [], "fact: state at subject"
    for rng in map(np.random.default_rng, range(20)):
        vectors = rng.standard_normal((30, 20))
        arrays = {side: vectors + 0.7 * rng.standard_normal((4, 30, 20)) for side in vocabulary.PAIRS[pair]}
        tables.append(compare(arrays, rng, pairs=(pair,)))
    mean = sum(tables) / len(tables)
    for statistic in ("debiased_cka", "cosine_similarity"):
        at = (pair, statistic)
        assert mean.value[at] == pytest.approx(mean.ceiling[at], abs=0.03) and mean.ceiling[at] < 0.9


def measure(arrays, statistic, rng):
    """The `Finding` of one statistic of the states of subjects."""
    pairs = ["fact: state at subject"]
    factors = make_factors(arrays, pairs, make_shape if statistic == "debiased_cka" else similarity._standardize)
    orders = similarity.permute(np.zeros(24), 200, rng)
    [finding] = similarity._compare_products(statistic, factors, pairs, orders).values()
    return finding


@pytest.mark.parametrize("statistic", ["debiased_cka", "cosine_similarity"])
def test_a_minimum_detectable_effect_is_detected_with_the_power_of_the_test(statistic):
    """The effect is planted: the first side's other half, mixed into an unrelated side."""
    n, powers, values = 24, [], []
    first, second = vocabulary.PAIRS["fact: state at subject"]
    rngs = map(np.random.default_rng, range(30))
    detectable = np.mean([measure(planted(0, rng, n=n, noise=0.3), statistic, rng).minimum_detectable for rng in rngs])
    for share in {"cosine_similarity": (0, 0.01, 0.02, 0.03, 0.05), "debiased_cka": (0.05, 0.1, 0.15, 0.2, 0.3)}[
        statistic
    ]:
        findings = []
        for rng in map(np.random.default_rng, range(1000, 1060)):
            arrays = planted(0, rng, n=n, noise=0.3)
            parts = (1 - share) ** 0.5 * arrays[second], share**0.5 * arrays[first]
            if statistic == "cosine_similarity":
                arrays[second] = sum(parts)
            else:  # side by side, so that Gram matrices add up
                arrays[second] = np.concatenate(parts, axis=2)
            findings.append(measure(arrays, statistic, rng))
        powers.append(np.mean([finding.p_value <= 0.05 for finding in findings]))
        values.append(np.mean([finding.value for finding in findings]))
    assert 0.65 < np.interp(detectable, values, powers) < 0.95, (detectable, values, powers)


def test_the_probe_identifies_facts_despite_directions_with_large_noise(rng):
    facts = np.concatenate([rng.standard_normal((20, 5)), np.zeros((20, 5))], axis=1)
    loud = np.concatenate([np.zeros(5), np.full(5, 3.0)])
    drawn = facts + rng.standard_normal((8, 20, 10)) * (0.2 + loud)
    confusion = similarity.linear_probe(drawn[:4], drawn[4:])
    nearest = np.argmax(drawn[4:].mean(0) @ drawn[:4].mean(0).T, axis=1) == np.arange(20)
    assert np.trace(confusion) / 20 > 0.6 > 0.4 > nearest.mean()
    assert confusion.sum(1) == pytest.approx(1)


def test_the_probe_is_the_discriminant_of_its_covariance(rng):
    train, test = rng.standard_normal((2, 3, 9, 6))
    means = train.mean(0)
    within = ((train - means).reshape(27, 6).T @ (train - means).reshape(27, 6)) / (9 * 2)
    weight = np.linalg.inv(within + 0.1 * np.trace(within) / 6 * np.eye(6))
    means, centred = means - means.mean(0), test - test.mean((0, 1))
    score = centred @ weight @ means.T / np.sqrt(np.diagonal(means @ weight @ means.T))
    expected = np.mean([np.eye(9)[one] for one in score.argmax(-1)], axis=0)
    assert similarity.linear_probe(train, test) == pytest.approx(expected)


@pytest.mark.parametrize(("shared", "facts"), [(0.6, 30), (0.9, 30), (0.6, 15)])
def test_the_interval_of_a_similarity_holds_its_level(shared, facts):
    """Facts of which a part is shared, in spaces of a few large directions, as keys and values are."""
    rng = np.random.default_rng(7)
    size = 0.8 ** np.arange(20)

    def sides(n):
        common = rng.standard_normal((n, 20))
        return [(shared**0.5 * common + (1 - shared) ** 0.5 * rng.standard_normal((n, 20))) * size for _ in range(2)]

    covered = 0
    for _ in range(200):
        first, second = sides(facts)
        without = [debiased_cka(*(np.delete(side, i, axis=0) for side in (first, second))) for i in range(facts)]
        interval = contrasts.jackknife(debiased_cka(first, second), [without], bounded=True)
        covered += interval.low <= shared**2 <= interval.high
    assert 0.93 <= covered / 200 <= 0.98


def test_every_interval_contains_its_estimate(rng):
    table = compare(planted(1, rng, n=24), rng).dropna(subset="value")
    assert ((table.ci_low <= table.value) & (table.value <= table.ci_high)).all()


def test_the_two_primary_tests_together_hold_their_level_on_unrelated_sides():
    families, pairs, errors = 400, (NAME, DESCRIPTION), 0
    for seed in range(families):
        rng = np.random.default_rng(seed)
        shapes = make_factors(planted(0, rng, n=12, width=6), pairs, make_shape)
        alone = similarity._compare_products("debiased_cka", shapes, pairs, similarity.permute(np.zeros(12), 1, rng))
        findings = similarity._test_primary(alone, shapes, similarity.permute(np.zeros(12), 200, rng))
        assert all(finding.p_adjusted >= finding.p_value for finding in findings.values())
        errors += any(finding.p_adjusted <= 0.05 for finding in findings.values())
    assert stats.binom.ppf(0.001, families, 0.04) <= errors <= stats.binom.ppf(0.999, families, 0.05)


# Fast paths


def test_the_fast_null_equals_comparing_anew_for_each_permutation(rng):
    first, second = rng.standard_normal((13, 6)), rng.standard_normal((13, 9))
    orders = similarity.permute(np.zeros(13), 150, rng)
    shapes = [make_shape(space) for space in (first, second)]
    naive = [debiased_cka(first, second[order]) for order in orders]
    assert similarity.permuted_inner_products(*shapes, orders) == pytest.approx(naive)


def test_overlaps_of_subsets_equal_those_computed_one_by_one(rng):
    first, second = rng.standard_normal((2, 16, 10))
    subsets, others = np.argsort(rng.random((2, 6, 16)), axis=2)[..., :8]
    naive = []
    for subset, other in zip(subsets, others, strict=True):
        bases = [np.linalg.svd(space - space.mean(0))[2][:3].T for space in (first[subset], second[other])]
        naive.append(np.cos(linalg.subspace_angles(*bases)).mean())
    assert similarity.overlap_subsets(first, second, subsets, others, 3) == pytest.approx(naive)
    second[others[0]] = 1  # which do not differ
    assert np.isnan(similarity.overlap_subsets(first, second, subsets, others, 3)[0])


def test_permutations_stay_within_groups_and_reach_every_position(rng):
    groups = np.array(["b", "a", "b", "a", "b", "c"])
    orders = similarity.permute(groups, 200, rng)
    assert (groups[orders] == groups).all()
    assert (np.sort(orders, axis=1) == np.arange(6)).all()
    assert {tuple(order[[0, 2, 4]]) for order in orders} == {
        (0, 2, 4), (0, 4, 2), (2, 0, 4), (2, 4, 0), (4, 0, 2), (4, 2, 0)
    }  # fmt: skip


# The tables


def test_the_table_has_a_row_for_each_statistic_and_the_same_seed_gives_it_again(rng):
    arrays = planted(1, rng, n=12)
    table, again = (compare(arrays, np.random.default_rng(1), permutations=950).reset_index() for _ in range(2))
    pd.testing.assert_frame_equal(table, again)
    for pair, statistics in table.groupby("comparison").statistic.agg(tuple).items():
        assert statistics == similarity._list_statistics(pair)
    primary = table.comparison.isin((NAME, DESCRIPTION)) & (table.statistic == vocabulary.PRIMARY_STATISTIC)
    assert (table.p_adjusted.notna() == primary).all() and (table.n == 12).all()
    known = table[(table.statistic != "linear_probe") | ~table.comparison.str.contains("value")]
    assert known[["value", "ci_low", "ci_high", "ceiling", "null_mean"]].notna().all(axis=None)
    assert known.p_value[~primary].between(0.05, 1).all() and table.p_value[primary].between(1 / 951, 1).all()


@pytest.mark.parametrize("n", [0, 1, 7])
def test_too_few_facts_give_a_table_of_missing_values(n, rng):
    arrays = planted(0, rng, n=n)
    table = compare(arrays, rng, permutations=90)
    assert len(table) > 30 and table.p_value.isna().all() and (table.n == n).all()
    assert table.p_adjusted.isna().all()
    assert len(similarity.pca_pairs(arrays, pairs=[NAME, OUTPUTS])) == (8 * n if n > 1 else 0)
    assert similarity.spectra(arrays).empty == (n < 2)


def test_one_part_is_compared_without_a_ceiling(rng):
    arrays = {name: array[:1] for name, array in planted(3, rng).items()}
    table = compare(arrays, rng, pairs=(STATE,))
    assert table.ceiling.isna().all() and table.minimum_detectable.isna().all()
    assert table.value.drop((STATE, "linear_probe")).notna().all() and np.isnan(table.value[STATE, "linear_probe"])
    assert table.p_value[STATE, "debiased_cka"] < 0.02


def test_identical_values_are_no_evidence(rng):
    arrays = planted(1, rng)
    arrays["value, reverse"][:] = 1
    table = compare(arrays, rng)
    assert table.p_value[NAME].loc[["debiased_cka", "subspace_overlap"]].isna().all()
    assert table.value[NAME, "cosine_similarity"] == 0 and table.p_value[NAME, "cosine_similarity"] == 1


def test_layers_are_corrected_for_all_layers_and_the_peak_for_none():
    rows = [(model, layer, 0.01) for model in ("ar", "mdm") for layer in ("peak", "0", "1", "2")]
    table = pd.DataFrame(rows, columns=["model", "layer", "p_adjusted"]).assign(stage="seed_1")
    assert similarity.adjust_for_layers(table).p_adjusted.tolist() == pytest.approx([0.01, 0.03, 0.03, 0.03] * 2)


def test_effective_rank_counts_equal_directions(rng):
    arrays = planted(0, rng, n=30)
    arrays["value, forward"] = np.tile(np.eye(20)[:5] - np.eye(20)[5:10], (1, 6, 1))
    arrays["value, forward"][:, ::2] *= -1
    table = similarity.spectra(arrays).set_index("space")
    assert table.effective_rank["value, forward"].iloc[0] == pytest.approx(5)
    assert table.share["value, forward"].to_numpy()[:5] == pytest.approx(0.2)
    assert table.groupby("space").cumulative.last().to_numpy() == pytest.approx(1)
    assert len(table.loc["state at subject, forward"]) == 20


def test_paired_points_coincide_where_the_sides_differ_only_by_offset_and_scale(rng):
    arrays = planted(0, rng)
    arrays["value, reverse"] = 5 * arrays["output at subject, forward"] + 2
    points = similarity.pca_pairs(arrays, pairs=[NAME]).set_index(["comparison", "side", "fact"]).sort_index()
    first, second = (points.loc[(NAME, side), ["x", "y"]] for side in vocabulary.COMPARISONS[NAME])
    assert np.allclose(first, second)


def test_missing_sides_are_not_compared(rng):
    arrays = planted(0, rng, n=8)
    del arrays["value, reverse"]
    found = compare(arrays, rng).index.get_level_values(0)
    assert NAME not in found and DESCRIPTION in found
