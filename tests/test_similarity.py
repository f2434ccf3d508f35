import numpy as np
import pandas as pd
import pytest
from scipy import linalg, spatial, stats

from reversal.common import contrasts
from reversal.storage import similarity, vocabulary

SIMILARITIES = [similarity.debiased_cka, similarity.rsa]
NAME, DESCRIPTION = vocabulary.CONCEPTS.values()
STATE = vocabulary.STATES["name"]
VALUES = "fact: value"
KINDS = ("output at subject", "value", "state at subject", "state at answer")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def planted(strength, rng, n=30, width=20, noise=0.1, parts=4):
    """Sets of vectors that are `strength` parts shared and one part their own: at 0, unrelated memories.

    Of each there are several parts, which differ by `noise`; two of values.
    """
    concept = rng.standard_normal((n, 6)) @ rng.standard_normal((6, width)) / 6**0.5

    def seen(kind):
        own = strength * concept + rng.standard_normal((n, width))
        return own + noise * rng.standard_normal((2 if kind == "value" else parts, n, width))

    return {vocabulary.side(kind, way): seen(kind) for kind in KINDS for way in vocabulary.WAYS}


def rotation(dimensions, rng):
    return np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0]


def compare(arrays, rng, **options):
    settings = {"components": 5, "permutations": 9_500} | options
    table = similarity.compare_all(arrays, rng=rng, **settings)
    return table.set_index(["comparison", "statistic"])


def ranks(first, second, rng, components=6):
    """Partner ranks (n, 2) and the folds they were found with."""
    fold = similarity.assign_folds(np.zeros(len(first)), 5, rng)
    located = similarity.locate({"first": first, "second": second}, fold, components)
    return similarity.partner_ranks(located["first"], located["second"], fold), fold


# Closed cases


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_space_is_wholly_similar_to_itself_rotated_scaled_and_moved(similarity, rng):
    first = rng.standard_normal((30, 12))
    assert similarity(first, first) == pytest.approx(1)
    assert similarity(first, 7 * first @ rotation(12, rng) + 3) == pytest.approx(1)


def test_held_out_facts_are_found_after_any_rotation_scaling_and_move(rng):
    first = rng.standard_normal((30, 6))
    found, _ = ranks(first, 7 * first @ rotation(6, rng) + 3, rng)
    assert (found == 1).all()


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_similarity_does_not_depend_on_which_comes_first(similarity, rng):
    first, second = rng.standard_normal((20, 9)), rng.standard_normal((20, 4))
    assert similarity(first, second) == pytest.approx(similarity(second, first))


def test_rsa_is_scipys_spearman_of_scipys_distances(rng):
    first, second = rng.standard_normal((25, 8)), rng.standard_normal((25, 3))
    expected = stats.spearmanr(spatial.distance.pdist(first), spatial.distance.pdist(second)).statistic
    assert similarity.rsa(first, second) == pytest.approx(expected)


def test_debiased_cka_is_the_ratio_of_unbiased_dependences(rng):
    def dependence(one, other):
        n = len(one)
        one, other = one - np.diag(np.diag(one)), other - np.diag(np.diag(other))
        total = one.sum() * other.sum() / ((n - 1) * (n - 2))
        return np.trace(one @ other) + total - 2 / (n - 2) * (one @ other).sum()

    first, second = rng.standard_normal((15, 8)), rng.standard_normal((15, 3)) + 2
    one, other = first @ first.T, second @ second.T
    expected = dependence(one, other) / np.sqrt(dependence(one, one) * dependence(other, other))
    assert similarity.debiased_cka(first, second) == pytest.approx(expected)


def test_with_few_facts_debiased_cka_sees_no_similarity_in_noise(rng):
    pairs = [(rng.standard_normal((20, 200)), rng.standard_normal((20, 200))) for _ in range(30)]
    assert np.mean([similarity.debiased_cka(*pair) for pair in pairs]) == pytest.approx(0, abs=0.05)


def test_nearness_is_one_for_the_same_vectors_moved_and_scaled_and_minus_a_share_for_unrelated_facts(rng):
    first = rng.standard_normal((20, 9))
    assert similarity.cosine_similarity(first, 5 * first + 3) == pytest.approx(1)
    assert similarity.cosine_similarity(first, -first) == pytest.approx(-1)
    unit = similarity._standard(first)
    turned = [similarity.cosine_similarity(first, first[np.roll(np.arange(20), shift)]) for shift in range(1, 20)]
    assert np.mean(turned) == pytest.approx(-1 / 19)
    assert (unit**2).sum() == pytest.approx(1)


def test_subspaces_overlap_wholly_with_themselves_and_not_with_their_complement(rng):
    basis = rotation(10, rng)
    first = rng.standard_normal((30, 3)) @ basis[:3]
    assert similarity.subspace_overlap(first, rng.standard_normal((30, 3)) @ basis[:3], 3) == pytest.approx(1)
    assert similarity.subspace_overlap(first, rng.standard_normal((30, 3)) @ basis[3:6], 3) == pytest.approx(
        0, abs=1e-6
    )
    assert np.isnan(similarity.subspace_overlap(first, rng.standard_normal((30, 10)), 4))


def test_the_chance_of_overlap_is_that_of_random_subspaces(rng):
    bases = np.linalg.qr(rng.standard_normal((2, 2000, 20, 4)))[0]
    naive = np.linalg.svd(bases[0].swapaxes(1, 2) @ bases[1], compute_uv=False).mean(-1)
    assert stats.ks_2samp(naive, similarity.overlaps_by_chance(20, 4, 2000, rng)).pvalue > 0.01


# What is there is found, what is not is not


def test_unrelated_memories_are_called_symmetric_no_more_often_than_the_level_says():
    seeds = 50
    tables = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        arrays = planted(0, rng, n=12, width=10)
        tables.append(compare(arrays, rng, components=3, pairs=(STATE,), permutations=2_950).reset_index())
    p = pd.concat(tables).set_index(["comparison", "statistic"]).p_value
    most = stats.binom.ppf(0.9999, seeds, 0.1)
    for statistic in vocabulary.STATISTICS:
        assert (p[STATE, statistic] <= 0.1).sum() <= most, statistic
    # Continuous statistics have uniform p-values; the discrete ones are only bounded.
    for statistic in ("debiased_cka", "rsa", "cosine_similarity"):
        assert stats.kstest(p[STATE, statistic], "uniform").pvalue > 1e-3, statistic


def test_a_shared_representation_is_found_and_grows_with_what_is_shared():
    def averaged(strength):
        generators = map(np.random.default_rng, range(3))
        pairs = (NAME, STATE, VALUES)
        tables = [compare(planted(strength, rng), rng, components=6, pairs=pairs) for rng in generators]
        return sum(tables) / len(tables)

    none, some, most = (averaged(strength) for strength in (0, 1, 6))
    for pair in (NAME, STATE, VALUES):
        for statistic in set(vocabulary.STATISTICS) - {"subspace_overlap"} - ({"probe"} if pair != STATE else set()):
            at = (pair, statistic)
            assert none.value[at] < some.value[at] < most.value[at], at
            assert most.p_value[at] < 0.02 < none.p_value[at], at
    assert most.value[VALUES, "retrieval_at_1"] > 0.9 and most.value[STATE, "probe"] > 0.9


def test_a_difference_between_groups_is_not_a_symmetry_of_facts():
    """Two kinds of facts that lie apart in every space, and nothing else in common."""
    groups = np.repeat(["p2d", "d2p"], 10)
    found = {"free": 0, "grouped": 0}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        arrays = planted(0, rng, n=20, width=8)
        for array in arrays.values():
            array[:, :10] += 2
        for kind, given in (("free", None), ("grouped", groups)):
            table = compare(arrays, rng, groups=given, components=3, pairs=(VALUES,))
            found[kind] += table.p_value[VALUES, "rsa"] <= 0.05
    assert found["free"] >= 18
    assert found["grouped"] <= 5


# What could have been seen


def test_the_ceiling_of_identical_halves_is_one_and_noise_lowers_it(rng):
    same, noisy = (compare(planted(0, np.random.default_rng(1), noise=noise), rng) for noise in (0, 1))
    whole = same.ceiling.dropna()
    assert whole.to_numpy() == pytest.approx(1) and len(whole) == len(same) - 5  # no probe of five pairs with values
    told = noisy.ceiling.dropna()
    assert (told <= 1).all() and (told.xs("debiased_cka", level=1) < 0.9).all()


def test_what_is_wholly_shared_but_for_noise_reaches_its_ceiling():
    """The same memory read twice: likeness between the directions is that of the halves within each."""
    found, pair = [], "fact: state at subject"
    for rng in map(np.random.default_rng, range(20)):
        memory = rng.standard_normal((30, 20))
        arrays = {side: memory + 0.7 * rng.standard_normal((4, 30, 20)) for side in vocabulary.PAIRS[pair]}
        found.append(compare(arrays, rng, pairs=(pair,), brief=True))
    mean = sum(found) / len(found)
    for statistic in ("debiased_cka", "cosine_similarity"):
        at = (pair, statistic)
        assert mean.value[at] == pytest.approx(mean.ceiling[at], abs=0.03) and mean.ceiling[at] < 0.9


def found_in(arrays, statistic, rng):
    """One statistic's `Finding` about the states of subjects."""
    pair = "fact: state at subject"
    halves = {side: similarity._halves(arrays[side]) for side in vocabulary.PAIRS[pair]}
    orders = similarity.permute(np.zeros(next(iter(halves.values())).shape[1]), 200, rng)
    if statistic == "cosine_similarity":
        return similarity._nearness_findings(halves, [pair], orders)[pair, statistic]
    return similarity._shape_findings(halves, [pair], orders, [statistic])[pair, statistic]


@pytest.mark.parametrize("statistic", ["debiased_cka", "cosine_similarity"])
def test_an_effect_as_large_as_the_least_is_found_four_times_in_five(statistic):
    """Planted by hand: the first side's other half, mixed into an unrelated memory."""
    n, powers, values = 24, [], []
    first, second = vocabulary.PAIRS["fact: state at subject"]
    rngs = map(np.random.default_rng, range(30))
    least = np.mean([found_in(planted(0, rng, n=n, noise=0.3), statistic, rng).least for rng in rngs])
    for share in {"cosine_similarity": (0, 0.01, 0.02, 0.03, 0.05), "debiased_cka": (0.05, 0.1, 0.15, 0.2, 0.3)}[
        statistic
    ]:
        seen = []
        for rng in map(np.random.default_rng, range(1000, 1060)):
            arrays = planted(0, rng, n=n, noise=0.3)
            parts = (1 - share) ** 0.5 * arrays[second], share**0.5 * arrays[first]
            if statistic == "cosine_similarity":
                arrays[second] = sum(parts)
            else:  # side by side, so that Gram matrices add up
                arrays[second] = np.concatenate(parts, axis=2)
            seen.append(found_in(arrays, statistic, rng))
        powers.append(np.mean([one.p_value <= 0.05 for one in seen]))
        values.append(np.mean([one.value for one in seen]))
    assert 0.65 < np.interp(least, values, powers) < 0.95, (least, values, powers)


def test_a_probe_that_knows_which_directions_vary_tells_facts_apart_where_others_are_drowned(rng):
    facts = np.concatenate([rng.standard_normal((20, 5)), np.zeros((20, 5))], axis=1)
    loud = np.concatenate([np.zeros(5), np.full(5, 3.0)])
    drawn = facts + rng.standard_normal((8, 20, 10)) * (0.2 + loud)
    told = similarity.linear_probe(drawn[:4], drawn[4:])
    nearest = np.argmax(drawn[4:].mean(0) @ drawn[:4].mean(0).T, axis=1) == np.arange(20)
    assert np.trace(told) / 20 > 0.6 > 0.4 > nearest.mean()
    assert told.sum(1) == pytest.approx(1)


def test_the_probe_is_the_discriminant_of_its_covariance(rng):
    taught, asked = rng.standard_normal((2, 3, 9, 6))
    means = taught.mean(0)
    within = ((taught - means).reshape(27, 6).T @ (taught - means).reshape(27, 6)) / (9 * 2)
    weight = np.linalg.inv(within + 0.1 * np.trace(within) / 6 * np.eye(6))
    means, centred = means - means.mean(0), asked - asked.mean((0, 1))
    score = centred @ weight @ means.T / np.sqrt(np.diagonal(means @ weight @ means.T))
    expected = np.mean([np.eye(9)[one] for one in score.argmax(-1)], axis=0)
    assert similarity.linear_probe(taught, asked) == pytest.approx(expected)


@pytest.mark.parametrize(("shared", "facts"), [(0.6, 30), (0.9, 30), (0.6, 15)])
def test_the_interval_of_a_similarity_holds_its_level(shared, facts):
    """Facts of which a part is shared, in spaces of a few large directions, as keys and values are."""
    rng = np.random.default_rng(7)
    size = 0.8 ** np.arange(20)

    def sides(n):
        common = rng.standard_normal((n, 20))
        return [(shared**0.5 * common + (1 - shared) ** 0.5 * rng.standard_normal((n, 20))) * size for _ in range(2)]

    truth = {"debiased_cka": shared**2, "rsa": similarity.rsa(*sides(1500))}
    held = dict.fromkeys(truth, 0)
    for _ in range(200):
        grams = [similarity._gram(side) for side in sides(facts)]
        for statistic, shape in (("debiased_cka", similarity._debiased), ("rsa", similarity._ranked)):
            found = contrasts.jackknife(*similarity._left_out(shape, *grams), contrasts.CHANGES)
            held[statistic] += found.low <= truth[statistic] <= found.high
    assert all(0.93 <= count / 200 <= 0.98 for count in held.values()), held


def test_every_interval_holds_its_estimate(rng):
    table = compare(planted(1, rng, n=24), rng).dropna(subset="value")
    assert ((table.ci_low <= table.value) & (table.value <= table.ci_high)).all()


def test_of_two_named_tests_on_unrelated_memories_one_in_twenty_families_errs():
    families, pairs, wrong = 400, (NAME, DESCRIPTION), 0
    for seed in range(families):
        rng = np.random.default_rng(seed)
        halves = {name: similarity._halves(space) for name, space in planted(0, rng, n=12, width=6).items()}
        alone = {
            (pair, vocabulary.HEADLINE): similarity.Finding(
                np.mean(
                    [
                        similarity.debiased_cka(*two)
                        for two in similarity._crossed(*map(halves.get, vocabulary.PAIRS[pair]))
                    ]
                )
            )
            for pair in pairs
        }
        found = similarity._named_findings(alone, halves, pairs, similarity.permute(np.zeros(12), 200, rng))
        assert all(one.p_adjusted >= one.p_value for one in found.values())
        wrong += any(one.p_adjusted <= 0.05 for one in found.values())
    assert stats.binom.ppf(0.001, families, 0.04) <= wrong <= stats.binom.ppf(0.999, families, 0.05)


def test_beyond_the_base_is_nothing_where_nothing_changed_and_clear_where_all_did(rng):
    arrays, pairs = planted(0, rng), list(vocabulary.STATES.values())
    assert (similarity.beyond(arrays, arrays, pairs=pairs).value == 0).all()
    gained = similarity.beyond(planted(6, rng), arrays, pairs=pairs)
    assert (gained.ci_low > 0).all() and gained.comparison.tolist() == pairs


def test_one_fact_apart_from_all_others_is_told(rng):
    arrays = planted(0, rng)
    arrays["value, reverse"][:, 3] *= 50
    largest = compare(arrays, rng, brief=True).largest
    assert largest[VALUES].iloc[0] > 0.9 > 0.3 > largest[STATE].iloc[0]


# Fast paths and held-out facts


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_fast_null_equals_comparing_anew_for_each_permutation(similarity, rng):
    shape = {"debiased_cka": similarity._debiased, "rsa": similarity._ranked}
    first, second = rng.standard_normal((13, 6)), rng.standard_normal((13, 9))
    orders = similarity.permute(np.zeros(13), 150, rng)
    shapes = [shape[similarity.__name__](similarity._gram(space)) for space in (first, second)]
    naive = [similarity(first, second[order]) for order in orders]
    assert similarity.inner_permuted(*shapes, orders) == pytest.approx(naive)


def test_the_fast_retrieval_null_equals_fitting_anew_for_each_permutation(rng):
    first, second = rng.standard_normal((2, 17, 9))
    fold = similarity.assign_folds(np.zeros(17), 4, rng)
    orders = similarity.permute(fold, 20, rng)
    located = similarity.locate({"first": first, "second": second}, fold, 4)
    fast = similarity.partner_ranks(located["first"], located["second"], fold, orders)
    for order, found in zip(orders, fast, strict=True):
        anew = similarity.locate({"first": first, "second": second[order]}, fold, 4)
        assert (similarity.partner_ranks(anew["first"], anew["second"], fold) == found).all()


def test_partner_ranks_follow_from_scipys_procrustes(rng):
    first = rng.standard_normal((15, 5))
    second = first @ rotation(5, rng) + 0.7 * rng.standard_normal((15, 5))
    fold = similarity.assign_folds(np.zeros(15), 3, rng)
    located = similarity.locate({"first": first, "second": second}, fold, 4)
    found = similarity.partner_ranks(located["first"], located["second"], fold)
    for held in range(3):
        one, other, inside = located["first"][held], located["second"][held], fold == held
        turn, _ = linalg.orthogonal_procrustes(one[~inside], other[~inside])
        away = spatial.distance.cdist(one[inside] @ turn, other[inside], "cosine")
        assert (found[inside, 0] == np.diag(stats.rankdata(away, axis=1))).all()
        assert (found[inside, 1] == np.diag(stats.rankdata(away, axis=0))).all()


def test_overlaps_of_some_facts_equal_those_computed_one_by_one(rng):
    first, second = rng.standard_normal((2, 16, 10))
    some = np.argsort(rng.random((6, 16)), axis=1)[:, :8]
    bases = [similarity.bases_of(space, some, 3) for space in (first, second)]
    naive = [similarity.subspace_overlap(first[own], second[own], 3) for own in some]
    assert similarity.overlaps_of(first, second, some, *bases) == pytest.approx(naive)


def test_held_out_facts_never_influence_what_is_fitted(rng):
    first, second = rng.standard_normal((2, 20, 8))
    fold = similarity.assign_folds(np.zeros(20), 4, rng)
    poison = np.flatnonzero(fold == 2)[0]
    poisoned = second.copy()
    poisoned[poison] = 1e6
    clean, changed = (similarity.locate({"first": first, "second": space}, fold, 4) for space in (second, poisoned))
    others = np.arange(20) != poison
    assert (clean["second"][2, others] == changed["second"][2, others]).all()
    assert not np.allclose(clean["second"][0, others], changed["second"][0, others])
    # One candidate moves and the fit does not, so every other candidate is passed by at most that one.
    before, after = (similarity.partner_ranks(one["first"], one["second"], fold) for one in (clean, changed))
    mates = (fold == 2) & others
    assert (np.abs(before[mates, 0] - after[mates, 0]) <= 1).all()
    assert (before[mates, 1] == after[mates, 1]).all()


def test_permutations_stay_within_groups_and_reach_every_place(rng):
    groups = np.array(["b", "a", "b", "a", "b", "c"])
    orders = similarity.permute(groups, 200, rng)
    assert (groups[orders] == groups).all()
    assert (np.sort(orders, axis=1) == np.arange(6)).all()
    assert {tuple(order[[0, 2, 4]]) for order in orders} == {
        (0, 2, 4), (0, 4, 2), (2, 0, 4), (2, 4, 0), (4, 0, 2), (4, 2, 0)
    }  # fmt: skip


def test_folds_share_out_each_group_and_hold_two_candidates_or_more(rng):
    groups = np.repeat([0, 1, 2], 10)
    fold = similarity.assign_folds(groups, 5, rng)
    assert (np.histogram2d(groups, fold, bins=(3, 5))[0] == 2).all()
    assert np.bincount(similarity.assign_folds(np.zeros(9), 8, rng)).min() == 2


# The tables


def test_the_table_has_a_row_for_each_statistic_and_the_same_seed_gives_it_again(rng):
    arrays = planted(1, rng, n=12)
    table = similarity.compare_all(arrays, components=3, permutations=950, rng=np.random.default_rng(1))
    again = similarity.compare_all(arrays, components=3, permutations=950, rng=np.random.default_rng(1))
    pd.testing.assert_frame_equal(table, again)
    assert list(table) == ["comparison", "statistic", *similarity.Finding._fields, "largest", "n"]
    assert not table.duplicated(["comparison", "statistic"]).any()
    named = table.comparison.isin((NAME, DESCRIPTION)) & (table.statistic == vocabulary.HEADLINE)
    assert (table.p_adjusted.notna() == named).all()
    planted_for = table.statistic.isin(["debiased_cka", "cosine_similarity"])
    assert (table.least.notna() <= planted_for).all()
    valued = table.comparison.str.contains("value")
    told = table[(table.statistic != "probe") | ~valued]
    assert told.drop(columns=["p_adjusted", "least"]).notna().all(axis=None) and (table.n == 12).all()
    assert (table.groupby("comparison").size() == len(vocabulary.STATISTICS)).all()
    assert told.p_value[~named].between(0.05, 1).all() and table.p_value[named].between(1 / 951, 1).all()
    brief = similarity.compare_all(arrays, components=3, permutations=950, rng=np.random.default_rng(1), brief=True)
    assert set(brief.statistic) == set(vocabulary.BRIEF)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_too_few_facts_give_a_full_table_of_nothing(n, rng):
    arrays = planted(0, rng, n=n)
    table = similarity.compare_all(arrays, components=3, permutations=90, rng=rng)
    assert len(table) == 10 * len(vocabulary.STATISTICS) and table.p_value.isna().all() and (table.n == n).all()
    assert table.p_adjusted.isna().all()
    assert len(similarity.pca_pairs(arrays, pairs=[NAME, STATE])) == (4 * n if n > 1 else 0)
    assert similarity.spectra(arrays).empty == (n < 2)


def test_the_fewest_facts_that_are_compared_give_numbers(rng):
    table = compare(planted(1, rng, n=8), rng, pairs=(STATE,))
    assert table.drop(columns=["p_adjusted", "least"]).notna().all(axis=None)


def test_one_part_has_no_ceiling_and_is_compared_all_the_same(rng):
    arrays = {name: array[:1] for name, array in planted(3, rng).items()}
    table = compare(arrays, rng, pairs=(STATE,))
    assert table.ceiling.isna().all() and table.least.isna().all()
    assert table.value.drop((STATE, "probe")).notna().all() and np.isnan(table.value[STATE, "probe"])
    assert table.p_value[STATE, "debiased_cka"] < 0.02


def test_values_that_are_all_alike_are_no_evidence(rng):
    arrays = planted(1, rng)
    arrays["value, reverse"][:] = 1
    table = compare(arrays, rng)
    assert table.loc[(VALUES, ["debiased_cka", "rsa", "subspace_overlap"]), "p_value"].isna().all()
    assert table.value[VALUES, "cosine_similarity"] == table.value[VALUES, "retrieval_at_1"] == 0
    assert table.value[VALUES, "outranked"] == pytest.approx(0.5)
    assert table.p_value[VALUES, "outranked"] == table.p_value[VALUES, "cosine_similarity"] == 1


def test_a_layer_pays_for_all_layers_and_the_peak_for_none():
    rows = [(model, layer, 0.01) for model in ("ar", "mdm") for layer in ("peak", "0", "1", "2")]
    table = pd.DataFrame(rows, columns=["model", "layer", "p_adjusted"]).assign(stage="seed_1")
    assert similarity.over_layers(table).p_adjusted.tolist() == pytest.approx([0.01, 0.03, 0.03, 0.03] * 2)


def test_effective_rank_counts_equal_directions(rng):
    arrays = planted(0, rng, n=30)
    arrays["value, forward"] = np.tile(np.eye(20)[:5] - np.eye(20)[5:10], (1, 6, 1))
    arrays["value, forward"][:, ::2] *= -1
    table = similarity.spectra(arrays).set_index("space")
    assert table.effective_rank["value, forward"].iloc[0] == pytest.approx(5)
    assert table.share["value, forward"].to_numpy()[:5] == pytest.approx(0.2)
    assert table.groupby("space").cumulative.last().to_numpy() == pytest.approx(1)
    assert len(table.loc["state at subject, forward"]) == 20


def test_paired_points_coincide_where_the_memories_are_the_same_but_for_offset_and_size(rng):
    arrays = planted(0, rng)
    arrays["value, reverse"] = 5 * arrays["value, forward"] + 2
    points = similarity.pca_pairs(arrays, pairs=[VALUES]).set_index(["comparison", "side", "fact"]).sort_index()
    first, second = (points.loc[(VALUES, side), ["x", "y"]] for side in vocabulary.COMPARISONS[VALUES])
    assert np.allclose(first, second)
    assert (points.x_share >= points.y_share).all()


# Refusals


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((2, 29, 20)), r"value, reverse has 29 facts; the other arrays have 30"),
        (np.ones((30, 20)), r"value, reverse has shape \(30, 20\); arrays are parts × facts × width"),
    ],
)
@pytest.mark.parametrize("function", [compare, lambda arrays, rng: similarity.spectra(arrays)])
def test_wrong_shapes_are_refused_in_one_line(array, message, function, rng):
    with pytest.raises(ValueError, match=message) as refusal:
        function(planted(0, rng) | {"value, reverse": array}, rng)
    assert "\n" not in str(refusal.value)


def test_a_fact_without_a_number_is_refused_by_its_index(rng):
    arrays = planted(0, rng)
    arrays["value, reverse"][1, 7, 3] = np.nan
    with pytest.raises(ValueError, match="value, reverse is not finite at fact 7"):
        compare(arrays, rng)


def test_what_does_not_fit_is_said_and_what_is_missing_is_not_compared(rng):
    arrays = planted(0, rng)
    with pytest.raises(ValueError, match="29 groups for 30 facts"):
        compare(arrays, rng, groups=["p2d"] * 29)
    with pytest.raises(ValueError, match="folds is 1"):
        compare(arrays, rng, folds=1)
    del arrays["value, reverse"]
    assert NAME not in compare(arrays, rng, brief=True).index.get_level_values(0)
