"""Claims and numbers of the paper: read from tables, judged by their intervals, traced to their rows."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reversal.common.errors import UserError
from reversal.common.intervals import Interval
from reversal.paper import claims, numbers

RECALL = pd.DataFrame(
    [
        ("mdm", 1, "p2d_reverse", 1.0, 0.50, 0.40, 0.60, 300),
        ("mdm", 1, "p2d_reverse", 32.0, 0.90, 0.80, 0.95, 300),
        ("mdm", 2, "p2d_reverse", 32.0, 0.96, 0.90, 0.99, 300),
        ("mdm", 1, "d2p_reverse", 32.0, 0.55, 0.45, 0.65, 300),
        ("ar", 1, "p2d_reverse", None, 0.00, 0.00, 0.11, 300),
        ("ar", 2, "p2d_reverse", None, 0.01, 0.00, 0.12, 300),
    ],
    columns=["model", "seed", "split", "steps", "accuracy", "ci_low", "ci_high", "n"],
)


@pytest.fixture
def run(tmp_path):
    RECALL.to_csv(tmp_path / "recall.csv", index=False)
    return numbers.Run({"recall": tmp_path / "recall.csv"})


def measured(run, value="accuracy", **entry):
    return numbers.measure(numbers.parse({"table": "recall", "value": value} | entry, "x"), run, "x")


def claim(**entry):
    common = {"id": "a-claim", "says": "The model recalls names.", "table": "recall", "value": "accuracy"}
    common |= {
        "where": {"model": "mdm", "split": "p2d_reverse", "steps": "max"},
        "runs": ["seeds"],
        "format": "percent",
    }
    return claims._parse(common | entry, "claims.yaml")


def test_rows_are_chosen_by_conditions_and_seeds_are_pooled(run):
    found = measured(run, where={"model": "mdm", "split": "p2d_reverse", "steps": "max"})
    assert found.estimate == pytest.approx(0.93) and found.low < 0.85 and found.high > 0.95
    one = measured(run, where={"model": "mdm", "split": ["p2d_reverse"], "steps": "min"})
    assert one == Interval(0.5, 0.4, 0.6)
    assert measured(run, where={"model": "mdm", "split": "d2p_reverse", "steps": "any"}).estimate == 0.55
    assert measured(run, where={"model": "ar", "steps": None}) == measured(run, where={"model": "ar", "steps": "max"})


def test_extremes_of_seeds_have_no_interval(run):
    where = {"model": "mdm", "split": "p2d_reverse", "steps": 32}
    assert measured(run, where=where, pool="min").estimate == 0.9
    assert math.isnan(measured(run, where=where, pool="min").low)


def test_an_interval_belongs_to_the_column_before_it(run):
    RECALL.assign(others=0.5).to_csv(run.files["recall"], index=False)
    found = measured(run, "others", where={"model": "mdm", "split": "d2p_reverse"})
    assert found.estimate == 0.5 and math.isnan(found.low) and math.isnan(found.high)


def test_what_a_run_does_not_have_is_not_measured(run):
    assert measured(run, where={"model": "gpt"}) is None
    assert numbers.measure(numbers.parse({"table": "other", "value": "x"}, "x"), run, "x") is None


def test_a_model_of_one_s_own_takes_the_place_of_the_paper_s(run):
    run.models = {"mine": "mdm"}
    assert measured(run, where={"model": "mine", "split": "d2p_reverse"}).estimate == 0.55


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"where": {"models": "mdm"}}, "has no column models; it has model, seed"),
        ({"where": {"model": "mdm", "steps": 32}}, "3 rows meet the conditions; they differ in split"),
        ({"value": "share"}, "has no column share"),
        ({"colour": 1}, "unknown key colour"),
        ({"format": "roman"}, "format is roman; known: percent"),
        ({"pool": "median"}, "pool is median"),
    ],
)
def test_a_quantity_that_can_not_be_read_says_what_is_wrong(run, entry, says):
    with pytest.raises(UserError, match=says):
        measured(run, **entry)


@pytest.mark.parametrize(
    ("bounds", "found", "verdict"),
    [
        ({"above": 0.5}, (0.8, 0.6, 0.9), "holds"),
        ({"above": 0.5}, (0.3, 0.2, 0.4), "fails"),
        ({"above": 0.5}, (0.6, 0.4, 0.8), "inconclusive"),
        ({"below": 0.05}, (0.01, 0.0, 0.04), "holds"),
        ({"below": 0.05}, (0.5, 0.4, 0.6), "fails"),
        ({"below": 0.05}, (0.03, 0.0, 0.11), "inconclusive"),
        ({"above": -1, "below": 1}, (0.0, -0.5, 0.5), "holds"),
        ({"above": -1, "below": 1}, (2.0, 1.5, 2.5), "fails"),
        ({"above": -1, "below": 1}, (0.0, -2.0, 2.0), "inconclusive"),
        ({"above": 0.5}, (0.8, math.nan, math.nan), "inconclusive"),
        ({"above": 0.5}, None, "not measured"),
    ],
)
def test_a_claim_holds_fails_or_is_inconclusive_by_its_interval(bounds, found, verdict):
    assert claims.verdict(found and Interval(*found), **bounds) == verdict


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1), st.floats(-1, 1))
def test_a_claim_and_its_contrary_never_both_hold(estimate, below, above, bound):
    found = Interval(estimate, estimate - below, estimate + above)
    verdicts = {claims.verdict(found, above=bound), claims.verdict(found, below=bound)}
    assert verdicts in ({"holds", "fails"}, {"inconclusive"})


def test_every_claim_is_judged_in_every_run(run):
    lacking = numbers.Run({})
    table = claims.evaluate([claim(above=0.5), claim(id="low", below=0.5)], {"seeds": run, "objectives": lacking})
    assert list(table.verdict) == ["holds", "not measured", "fails", "not measured"]
    assert list(table.columns) == ["claim", "run", "estimate", "low", "high", "verdict"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"above": 0.97}, r'"The model recalls names\.", is inconclusive in run seeds: recall\.csv gives 93% \['),
        ({"below": 0.5}, r'claim a-claim, "The model recalls names\.", fails in run seeds: .*, needed below 50%'),
        ({"above": 0.5, "where": {"model": "gpt"}}, "is not measured in run seeds: needed above 50%"),
    ],
)
def test_a_claim_that_does_not_hold_where_the_article_makes_it_stops_with_its_sentence(run, entry, says):
    made = [claim(**entry)]
    with pytest.raises(UserError, match=says) as caught:
        claims.require(made, claims.evaluate(made, {"seeds": run}))
    assert "\n" not in str(caught.value)


def test_a_claim_that_holds_or_is_about_a_run_to_be_made_does_not_stop(run):
    holding = [claim(above=0.5), claim(id="preregistered", below=0.5, runs=["not-yet-made"])]
    claims.require(holding, claims.evaluate(holding, {"seeds": run}))


def test_claims_are_about_runs_of_studies_that_are_there(root):
    studies = {file.stem for file in root.glob("studies/*.yaml")}
    assert {run for one in claims.read(root / "paper/claims.yaml") for run in one.runs} <= studies


@pytest.mark.parametrize(("entry", "says"), [({}, "above or below"), ({"above": 0, "tests": 1}, "unknown key tests")])
def test_a_claim_without_a_test_or_with_a_slip_is_refused(entry, says):
    with pytest.raises(UserError, match=says):
        claim(**entry)


@given(st.floats(0, 1), st.integers(0, 2))
def test_a_share_looks_like_none_or_all_only_where_it_is(share, digits):
    shown = numbers.percent(share, digits)
    assert (shown == f"{0:.{digits}f}%") <= (share == 0)
    assert (shown == f"{100:.{digits}f}%") <= (share == 1)


@pytest.mark.parametrize(
    ("value", "form", "shown"),
    [
        (0.973, "percent", "97%"),
        (0.002, "percent", "< 1%"),
        (-0.124, "points", "−12 points"),
        (0.011, "points", "+1 point"),
        (40.7, "nats", "41"),
        (-0.001, "number", "0.00"),
        (1234, "nats", "1,234"),
    ],
)
def test_numbers_are_printed_as_their_format_says(value, form, shown):
    assert numbers.show(value, numbers.Quantity("", "", format=form)) == shown


def test_an_estimate_is_printed_with_its_interval_where_it_has_one():
    share, nats = (numbers.Quantity("", "", format=form) for form in ("percent", "nats"))
    assert numbers.show_estimate(Interval(0.98, 0.86, 1.0), share) == "98% [86, 100]"
    assert numbers.show_estimate(Interval(41.2, math.nan, math.nan), nats) == "41"
