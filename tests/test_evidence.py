"""Four kinds of evidence on one scale."""

import itertools

import numpy as np
import pandas as pd
import pytest

from reversal.figures.storage import MEASURES
from reversal.storage import evidence, vocabulary

RUN = {"model": "mdm", "seed": 1, "stage": "seed_1", "group": "both"}


def make_tables(transfer=0.02, cosine=0.01, cka=0.05, reverse=0.1, success=0.8):
    """One model's four tables, with these values; ceilings are 0.8, 0.5, 0.9 and (rank-one edits) 8 of 10 nats."""
    questions = {"reverse": transfer, "bayes_inverse": 0.8, "paraphrase": 0.95}
    edit = {"edited": "p2d", "kind": "replace", "weights": "all", "steps": "converged", "about": "difference"}
    finetuned = [
        RUN
        | edit
        | {"question": question, "answer": "new", "transfer": share}
        | {"transfer_low": share - 0.01, "transfer_high": share + 0.01}
        for question, share in questions.items()
    ]
    gradients = [
        RUN
        | {"edited": "p2d", "part": "all", "against": against}
        | {"value": value, "ci_low": value - 0.01, "ci_high": value + 0.01}
        for against, value in (("reverse", cosine), ("forward", 0.5))
    ]
    pairs = (*vocabulary.PRIMARY_COMPARISONS.values(), *vocabulary.STATE_COMPARISONS.values())
    symmetry = [
        RUN
        | {"layer": layer, "comparison": pair, "statistic": "debiased_cka", "ceiling": 0.9}
        | {"value": cka + shift, "ci_low": cka + shift - 0.02, "ci_high": cka + shift + 0.02}
        for (layer, shift), pair in itertools.product({"peak": 0.0, "3": 0.3, "12": 0.01}.items(), pairs)
    ]
    leads = {"efficacy": 10.0, "paraphrase": 8.0, "reverse_new": reverse}
    rank_one = [
        RUN
        | {"peak": peak, "statistic": "lead", "measure": measure, "fact": f"both-{i}", "value": lead * (1 + 0.01 * i)}
        for (measure, lead), i, peak in itertools.product(leads.items(), range(6), (True, False))
    ]
    efficacy = {"peak": True, "statistic": "preferred", "measure": "efficacy", "when": "after", "fact": None}
    rank_one += [RUN | efficacy | {"value": success}]
    return [pd.DataFrame(rows) for rows in (finetuned, gradients, symmetry, rank_one)]


@pytest.mark.parametrize(("trained", "share"), [(["adapter"], 0.5), (["mlp", "all"], 1.0), (["mlp", "adapter"], 0.5)])
def test_edits_of_all_weights_decide_or_else_those_of_the_first(trained, share):
    finetuned, *others = make_tables()
    edits = [
        finetuned.assign(weights=weights, transfer=finetuned.transfer.where(finetuned.question != "reverse", transfer))
        for weights, transfer in zip(trained, (0.4, 0.8), strict=False)
    ]
    table = evidence.summarize_evidence(pd.concat(edits), *others).set_index(["kind", "measure"])
    assert table.share["finetuned", "p2d"] == pytest.approx(share)


def test_each_measure_is_a_share_of_its_ceiling():
    table = evidence.summarize_evidence(*make_tables()).set_index(["kind", "measure"])
    assert set(table.index) == set(MEASURES) - {("finetuned", "d2p"), ("gradients", "d2p")}
    assert table.share["finetuned", "p2d"] == pytest.approx(0.02 / 0.8)
    assert table.share["gradients", "p2d"] == pytest.approx(0.01 / 0.5)
    assert table.share["symmetry", "name"] == pytest.approx(0.05 / 0.9), "at the peak, not at another layer"
    assert table.share["symmetry", "state of name"] == pytest.approx(0.05 / 0.9)
    assert table.share["symmetry", "last state of name"] == pytest.approx(0.06 / 0.9), "12 is after 3"
    assert table.share["rank_one", "forward"] == pytest.approx(0.1 / 8)
    assert (table.verdict == "separate").all()


def test_shared_and_partly_shared_storage_are_recognized():
    shared = evidence.summarize_evidence(*make_tables(transfer=0.75, cosine=0.4, cka=0.8, reverse=7.0))
    assert (shared.verdict == "shared").all()
    partial = evidence.summarize_evidence(*make_tables(transfer=0.2, cosine=0.1, cka=0.2, reverse=2.0))
    assert (partial.verdict == "partial").all()


@pytest.mark.parametrize(
    ("low", "high", "ceiling_low", "verdict"),
    [
        (-0.02, 0.08, 0.9, "separate"),
        (0.01, 0.08, 0.9, "separate"),
        (-0.6, 0.0, 0.9, "inconclusive"),
        (-0.02, 0.3, 0.9, "inconclusive"),
        (0.02, 0.3, 0.9, "inconclusive"),
        (0.12, 0.3, 0.9, "partial"),
        (0.6, 1.2, 0.9, "shared"),
        (-0.02, 0.08, -0.01, "underpowered"),
        (-0.02, 0.08, np.nan, "underpowered"),
        (np.nan, np.nan, 0.9, "inconclusive"),
    ],
)
def test_a_verdict_is_what_the_whole_interval_allows(low, high, ceiling_low, verdict):
    assert evidence.judge(low, high, ceiling_low) == verdict


def test_rank_one_edits_without_effect_are_underpowered():
    table = evidence.summarize_evidence(*make_tables(success=0.4)).set_index("kind")
    assert table.verdict["rank_one"] == "underpowered" and np.isnan(table.share["rank_one"])


def test_an_uncertain_ceiling_widens_the_interval_of_a_share_unless_it_is_near_0():
    certain, uncertain = (evidence.compute_share(0.2, 0.19, 0.21, 0.4, low) for low in (0.39, 0.1))
    assert certain.estimate == uncertain.estimate == pytest.approx(0.5)
    assert uncertain.high - uncertain.low > 5 * (certain.high - certain.low)
    zero = evidence.compute_share(0.0, -0.01, 0.01, 0.4, 0.1)
    assert (zero.low, zero.high) == pytest.approx((-0.025, 0.025))


def test_measure_and_ceiling_are_averaged_over_networks_before_the_ratio_is_taken():
    rows = pd.DataFrame([[0.1, 0.0, 0.2, 0.2, 0.1], [0.1, 0.0, 0.2, 0.6, 0.5]], columns=evidence.MEASURED)
    (share, low, high), _ = evidence.pool_share(rows)
    assert share == pytest.approx(0.25) and low < 0.25 < high
    single, verdict = evidence.pool_share(rows.head(1))
    assert single == evidence.compute_share(*rows.iloc[0]) and verdict == "inconclusive"
    assert evidence.pool_share(rows.head(0))[1] == "underpowered"


def test_empty_tables_give_an_empty_table_of_evidence():
    assert evidence.summarize_evidence(*(table.head(0) for table in make_tables())).empty


def test_without_a_peak_the_main_layer_is_the_lowest_with_a_primary_test():
    rows = pd.DataFrame(
        [
            ("0", vocabulary.STATE_COMPARISONS["name"]),
            ("3", vocabulary.PRIMARY_COMPARISONS["name"]),
            ("10", vocabulary.PRIMARY_COMPARISONS["name"]),
        ],
        columns=["layer", "comparison"],
    )
    assert evidence.select_main_layer(rows).layer.tolist() == ["3"]
    assert evidence.select_main_layer(rows.assign(layer=["peak", "3", "10"])).layer.tolist() == ["peak"]
    assert evidence.select_main_layer(rows.head(1)).layer.tolist() == ["0"]
