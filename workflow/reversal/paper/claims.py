"""Claims: sentences of the paper with the test that each must pass, evaluated on this run and on every reference run.

A claim is an entry of paper/claims.yaml: a quantity (table, rows, column) and bounds. It holds where the whole interval
lies within the bounds, fails where the whole interval lies outside, and is inconclusive otherwise. The article states a
claim about the runs that it names: one that does not hold there stops the build.
"""

import math
from typing import NamedTuple

import pandas as pd

from ..common.errors import UserError
from ..common.intervals import Interval
from . import numbers

HOLDS, FAILS, INCONCLUSIVE, NOT_MEASURED = ("holds", "fails", "inconclusive", "not measured")
CLAIM_KEYS = ("id", "says", "short", "above", "below", "runs")


class Claim(NamedTuple):
    """One sentence and its test."""

    id: str
    says: str
    short: str  # for the matrix of claims and runs
    quantity: numbers.Quantity
    above: float | None
    below: float | None
    runs: list  # the reference runs that the sentence is about; one that is still to be made asserts nothing yet

    @property
    def test(self):
        """The test in words: "above 50%"."""
        bounds = (("above", self.above), ("below", self.below))
        return " and ".join(f"{side} {self.show_bound(bound)}" for side, bound in bounds if bound is not None)

    def show_bound(self, bound):
        """A bound in the claim's format, without rounding it away."""
        scale = numbers.FORMATS[self.quantity.format][2]
        return f"{scale * bound:g}".replace("-", numbers.MINUS) + {100: "%"}.get(scale, "")

    def show(self, estimate):
        """An estimate with its interval in the claim's format."""
        return numbers.show_estimate(estimate, self.quantity)


def read(path):
    """The claims of a file, in its order."""
    claims = [_parse(entry, path) for entry in numbers.read_yaml(path)]
    ids = [claim.id for claim in claims]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise UserError(f"{path}: two claims have the id {twice[0]}")
    return claims


def _parse(entry, path):
    source = f"{path}: {entry.get('id', 'a claim')}"
    for key in ("id", "says", "runs"):
        if key not in entry:
            raise UserError(f"{source}: {key} is missing")
    bounds = [entry.get(side) for side in ("above", "below")]
    if bounds == [None, None]:
        raise UserError(f"{source}: a claim has a bound, above or below")
    quantity = numbers.parse({key: value for key, value in entry.items() if key not in CLAIM_KEYS}, source)
    short = entry.get("short", entry["id"].replace("-", " "))
    return Claim(entry["id"], " ".join(entry["says"].split()), short, quantity, *bounds, entry["runs"])


def verdict(estimate, above=None, below=None):
    """What an interval says of bounds, either or both; None is what was not measured."""
    if estimate is None:
        return NOT_MEASURED
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return INCONCLUSIVE
    above, below = -math.inf if above is None else above, math.inf if below is None else below
    if estimate.low > above and estimate.high < below:
        return HOLDS
    return FAILS if estimate.high < above or estimate.low > below else INCONCLUSIVE


def evaluate(claims, runs, source="paper/claims.yaml"):
    """The table of claims × `runs` ({name: Run}): estimate, interval and verdict."""
    rows = []
    for claim in claims:
        for name, run in runs.items():
            estimate = numbers.measure(claim.quantity, run, f"{source}: {claim.id}")
            rows.append([claim.id, name, *(estimate or [math.nan] * 3), verdict(estimate, claim.above, claim.below)])
    return pd.DataFrame(rows, columns=["claim", "run", "estimate", "low", "high", "verdict"])


def require(claims, table, source="paper/claims.yaml"):
    """Stop where a claim does not hold in a run that its sentence is about."""
    found = {(row.claim, row.run): row for row in table.itertuples()}
    for claim in claims:
        for run in claim.runs:
            row = found.get((claim.id, run))  # None: written down before the run
            if row and row.verdict != HOLDS:
                interval = Interval(row.estimate, row.low, row.high)
                given = (
                    "" if row.verdict == NOT_MEASURED else f"{claim.quantity.table}.csv gives {claim.show(interval)}, "
                )
                raise UserError(
                    f'{source}: claim {claim.id}, "{claim.says}", {"" if row.verdict == FAILS else "is "}{row.verdict} '
                    f"in run {run}: {given}needed {claim.test}; correct the sentence, the claim or the table"
                )


def require_references(path, tables):
    """Stop where a claim of the file `path` does not hold in the reference runs that these `tables` belong to."""
    stated = read(path)
    require(stated, evaluate(stated, numbers.group_runs(file for file in tables if file.endswith(".csv")), path), path)
