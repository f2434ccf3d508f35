"""What four kinds of evidence say on one scale."""

import itertools

import numpy as np
import pandas as pd
import pytest

from reversal.storage import evidence, vocabulary

ABOUT = {"model": "mdm", "seed": 1, "stage": "seed_1", "group": "both"}


def tables(carried=0.02, cosine=0.01, alike=0.05, reverse=0.1, taken=0.8):
    """One model's four tables: each shows so much in common, of ceilings 0.8, 0.5, 0.9 and (edits) 8 of 10 nats."""
    readings = {"other": carried, "inverted": 0.8, "same": 0.95}
    rewriting = [
        ABOUT
        | {"rewritten": "p2d", "lesson": "rewrite", "weights": "all", "steps": "learnt", "about": "difference"}
        | {
            "asked": asked,
            "answer": "new",
            "transfer": share,
            "transfer_low": share - 0.01,
            "transfer_high": share + 0.01,
        }
        for asked, share in readings.items()
    ]
    gradients = [
        ABOUT
        | {"rewritten": "p2d", "part": "all", "against": against}
        | {"value": value, "ci_low": value - 0.01, "ci_high": value + 0.01}
        for against, value in (("reverse", cosine), ("forward", 0.5))
    ]
    pairs = (*vocabulary.CONCEPTS.values(), *vocabulary.STATES.values())
    symmetry = [
        ABOUT
        | {"layer": layer, "comparison": pair, "statistic": "debiased_cka", "ceiling": 0.9}
        | {"value": alike + far, "ci_low": alike + far - 0.02, "ci_high": alike + far + 0.02}
        for (layer, far), pair in itertools.product({"peak": 0.0, "3": 0.3, "12": 0.01}.items(), pairs)
    ]
    leads = {"efficacy": 10.0, "paraphrase": 8.0, "reverse_new": reverse}
    edits = [
        ABOUT
        | {"peak": peak, "statistic": "lead", "measure": measure, "fact": f"both-{i}", "value": lead * (1 + 0.01 * i)}
        for (measure, lead), i, peak in itertools.product(leads.items(), range(6), (True, False))
    ]
    edits += [
        ABOUT
        | {"peak": True, "statistic": "preferred", "measure": "efficacy", "when": "after", "fact": None, "value": taken}
    ]
    return [pd.DataFrame(rows) for rows in (rewriting, gradients, symmetry, edits)]


@pytest.mark.parametrize(("trained", "share"), [(["adapter"], 0.5), (["mlp", "all"], 1.0), (["mlp", "adapter"], 0.5)])
def test_lessons_that_train_all_weights_decide_or_else_those_named_first(trained, share):
    rewriting, *others = tables()
    lessons = [
        rewriting.assign(weights=weights, transfer=rewriting.transfer.where(rewriting.asked != "other", carried))
        for weights, carried in zip(trained, (0.4, 0.8), strict=False)
    ]
    found = evidence.summary(pd.concat(lessons), *others).set_index(["kind", "what"])
    assert found.share["rewriting", "p2d"] == pytest.approx(share)


def test_each_measure_is_a_share_of_its_ceiling():
    found = evidence.summary(*tables()).set_index(["kind", "what"])
    assert {kind: set(rows.index.get_level_values(1)) for kind, rows in found.groupby(level=0)} == {
        "rewriting": {"p2d"},
        "gradients": {"p2d"},
        "symmetry": set(evidence.ABOUT["symmetry"]),
        "edits": {"forward"},
    }
    assert found.share["rewriting", "p2d"] == pytest.approx(0.02 / 0.8)
    assert found.share["gradients", "p2d"] == pytest.approx(0.01 / 0.5)
    assert found.share["symmetry", "name"] == pytest.approx(0.05 / 0.9), "at the peak, not at another layer"
    assert found.share["symmetry", "state of name"] == pytest.approx(0.05 / 0.9)
    assert found.share["symmetry", "last state of name"] == pytest.approx(0.06 / 0.9), "12 is after 3"
    assert found.share["edits", "forward"] == pytest.approx(0.1 / 8)
    assert (found.verdict == "two").all()


def test_one_memory_is_told_from_two_and_from_a_part():
    one = evidence.summary(*tables(carried=0.75, cosine=0.4, alike=0.8, reverse=7.0))
    assert (one.verdict == "one").all()
    part = evidence.summary(*tables(carried=0.2, cosine=0.1, alike=0.2, reverse=2.0))
    assert (part.verdict == "partly").all()


@pytest.mark.parametrize(
    ("low", "high", "ceiling_low", "says"),
    [
        (-0.02, 0.08, 0.9, "two"),
        (0.01, 0.08, 0.9, "two"),
        (-0.6, 0.0, 0.9, "unclear"),
        (-0.02, 0.3, 0.9, "unclear"),
        (0.02, 0.3, 0.9, "unclear"),
        (0.12, 0.3, 0.9, "partly"),
        (0.6, 1.2, 0.9, "one"),
        (-0.02, 0.08, -0.01, "blind"),
        (-0.02, 0.08, np.nan, "blind"),
        (np.nan, np.nan, 0.9, "unclear"),
    ],
)
def test_a_verdict_is_what_the_whole_interval_allows(low, high, ceiling_low, says):
    assert evidence.verdict(low, high, ceiling_low) == says


def test_edits_that_do_not_take_tell_nothing():
    found = evidence.summary(*tables(taken=0.4)).set_index("kind")
    assert found.verdict["edits"] == "blind" and np.isnan(found.share["edits"])


def test_a_ceiling_that_is_unsure_makes_the_share_unsure_unless_it_is_near_0():
    sure, unsure = (evidence.share_of(0.2, 0.19, 0.21, 0.4, low) for low in (0.39, 0.1))
    assert sure.estimate == unsure.estimate == pytest.approx(0.5)
    assert unsure.high - unsure.low > 5 * (sure.high - sure.low)
    nothing = evidence.share_of(0.0, -0.01, 0.01, 0.4, 0.1)
    assert (nothing.low, nothing.high) == pytest.approx((-0.025, 0.025))


def test_over_networks_measure_and_ceiling_are_averaged_before_they_are_compared():
    rows = pd.DataFrame([[0.1, 0.0, 0.2, 0.2, 0.1], [0.1, 0.0, 0.2, 0.6, 0.5]], columns=evidence.MEASURED)
    (share, low, high), _ = evidence.pooled_share(rows)
    assert share == pytest.approx(0.25) and low < 0.25 < high
    alone, says = evidence.pooled_share(rows.head(1))
    assert alone == evidence.share_of(*rows.iloc[0]) and says == "unclear"
    assert evidence.pooled_share(rows.head(0))[1] == "blind"


def test_tables_without_rows_are_no_evidence():
    assert evidence.summary(*(table.head(0) for table in tables())).empty


def test_without_a_peak_the_lowest_layer_with_a_named_test_leads():
    rows = pd.DataFrame(
        [("0", vocabulary.STATES["name"]), ("3", vocabulary.CONCEPTS["name"]), ("10", vocabulary.CONCEPTS["name"])],
        columns=["layer", "comparison"],
    )
    assert evidence.leading(rows).layer.tolist() == ["3"]
    assert evidence.leading(rows.assign(layer=["peak", "3", "10"])).layer.tolist() == ["peak"]
    assert evidence.leading(rows.head(1)).layer.tolist() == ["0"]
