"""Tables of how much transfers to the reverse direction: from edits, and from gradients to first order.

All tests of shared storage are put on one scale, transfer, and each is scored on networks of known storage: a test has
power where it tells a network that stores each fact once from one that stores it twice.
"""

from statistics import NormalDist

import numpy as np
import pandas as pd

from ..common import contrasts
from .vocabulary import BASE, CONVERGED

RUN = ["model", "seed", "stage", "group", "edited"]
UNKNOWN = (float("nan"),) * 3


def summarize_edits(edits):
    """Changes in nats, and transfer, with intervals over facts: a row for each question, answer and group of facts.

    `edits` are tables of `finetuned.make_all_edits`. Columns: those of RUN, kind, weights, steps, question, answer;
    `about`: the "fact", "others", or their "difference"; n (facts), converged (share of the edits), value (mean change
    in nats), ci_low, ci_high, recall_before, recall_after; and, for differences, `transfer` with transfer_low and
    transfer_high: the difference as a share of the edit's own change. That change is measured on the held-out
    templates; for the question "paraphrase", on the templates of the edit.
    """
    edits = edits.assign(change=edits.after - edits.before)
    records = []
    for keys, run in edits.groupby([*RUN, "kind", "weights"], sort=False):
        for steps, rows in [(CONVERGED, _select_converged(run)), *run.groupby("steps")]:
            for record in _summarize_questions(rows):
                records.append((*keys, steps, *record))
    columns = [*RUN, "kind", "weights", "steps", "question", "answer", "about", "n", "converged"]
    columns += ["value", "ci_low", "ci_high", "recall_before", "recall_after"]
    columns += ["transfer", "transfer_low", "transfer_high"]
    return pd.DataFrame(records, columns=columns)


def _select_converged(run):
    """Each fact's rows at the first number of steps at which its edit converged, or at the last."""
    steps = run[run.converged].groupby("fact").steps.min().reindex(run.fact.unique()).fillna(run.steps.max())
    return run[run.steps == run.fact.map(steps)]


def _summarize_questions(rows):
    """Yield the values of `summarize_edits`' columns from question on."""
    changes = rows.pivot_table(index="fact", columns=["question", "answer", "about"], values="change")
    recall = rows.groupby(["question", "answer", "about"])[["recall_before", "recall_after"]].mean()
    converged = rows.groupby("fact").converged.first().mean()
    for question, answer in dict.fromkeys((question, answer) for question, answer, _ in changes.columns):
        measured = [about for about in ("fact", "others") if (question, answer, about) in changes]
        for about in measured:
            change = changes[question, answer, about]
            shares = recall.loc[(question, answer, about)]
            yield question, answer, about, len(change), converged, *_mean_change(change), *shares, *UNKNOWN
        if len(measured) == 2:
            difference = changes[question, answer, "fact"] - changes[question, answer, "others"]
            own = changes["edited" if question == "paraphrase" else "paraphrase", answer, "fact"]
            transfer = contrasts.ratio(difference.to_numpy(), own.to_numpy())
            mean = _mean_change(difference)
            yield question, answer, "difference", len(difference), converged, *mean, *UNKNOWN[:2], *transfer


def _mean_change(change):
    return contrasts.mean(contrasts.Sample(change.to_numpy(), change.index.to_numpy()))


def summarize_gradients(table):
    """Means over facts of the rows of `gradients.compare`: a row for each run, part of the network, and comparison.

    Columns: those of RUN, measure, part, against, n, value (the mean cosine less that with other facts), ci_low,
    ci_high; and, against the reverse, transfer with transfer_low and transfer_high: when a small step lowers the
    forward loss by one nat, how much the fact's reverse loss falls, minus that of other facts.
    """
    records = []
    for keys, run in table.groupby([*RUN, "measure", "part"], sort=False):
        run = run.set_index("fact")
        forward = run[run.against == "forward"]["product"]
        for against, rows in run.groupby("against", sort=False):
            transfer = UNKNOWN
            if against == "reverse":
                difference = rows["product"] - rows.product_others
                transfer = contrasts.ratio(difference.to_numpy(), forward.reindex(difference.index).to_numpy())
            value = _mean_change(rows.cosine - rows.cosine_others)
            records.append((*keys, against, len(rows), *value, *transfer))
    columns = [*RUN, "measure", "part", "against", "n", "value", "ci_low", "ci_high"]
    return pd.DataFrame(records, columns=[*columns, "transfer", "transfer_low", "transfer_high"])


# The tests of shared storage: rows of `summarize_edits` or of `summarize_gradients`, all about the reverse question.
TESTS = {
    "edit, 4 steps": {"kind": "replace", "weights": "all", "steps": "4", "answer": "new"},
    "edit, 16 steps": {"kind": "replace", "weights": "all", "steps": "16", "answer": "new"},
    "edit, 64 steps": {"kind": "replace", "weights": "all", "steps": "64", "answer": "new"},
    "edit, both directions replayed": {"kind": "replay_both", "weights": "all", "steps": CONVERGED, "answer": "new"},
    "edit where tracing points": {"kind": "replace", "weights": "traced", "steps": CONVERGED, "answer": "new"},
    "damage by the edit": {"kind": "replace", "weights": "all", "steps": CONVERGED, "answer": "old"},
    "forgetting": {"kind": "forget", "weights": "all", "steps": CONVERGED, "answer": "old"},
    "knock-out": {"kind": "knock_out", "weights": "all", "steps": CONVERGED, "answer": "old"},
    "knock-out where tracing points": {"kind": "knock_out", "weights": "traced", "steps": CONVERGED, "answer": "old"},
    "erasing where tracing points": {"kind": "erase", "weights": "traced", "steps": CONVERGED, "answer": "old"},
    "erasing in all MLPs": {"kind": "erase", "weights": "mlp", "steps": CONVERGED, "answer": "old"},
    "relearning": {"kind": "relearn", "weights": "all", "steps": CONVERGED, "answer": "old"},
    "gradients": {"measure": "gradient"},
    "attributions": {"measure": "attribution"},
}
POWER_AT = 30  # facts
SHARING = ("people", "part", "scale")  # of a store
RECALL = {
    "recall": ("paraphrase", "fact"),
    "recall_others": ("paraphrase", "others"),
    "reverse": ("reverse", "fact"),
    "reverse_others": ("reverse", "others"),
}


def summarize_tests(edits, gradients, stores):
    """What every test shows on every network, pooled over seeds, and its power: a row for each model, test, direction.

    `edits` and `gradients` are tables of `summarize_edits` and `summarize_gradients`; `stores` has for networks of
    known storage what they share, {model: {"people", "part", "scale"}}. Columns: model, people and part (shared, empty
    where unknown), scale, test, edited, seeds, n (facts), value (transfer), ci_low, ci_high; recall after an edit, of
    the edited fact and of others, in the edited direction (recall, recall_others) and in reverse (reverse,
    reverse_others); and for networks that share everything, power_30: the probability that one network of so many facts
    is told from the network of separate storage and the same scale, that is, that its 95% interval lies above what that
    network shows.
    """
    edits, gradients = edits[edits.stage != BASE], gradients[gradients.stage != BASE]
    records = []
    for test, conditions in TESTS.items():
        if "measure" in conditions:
            recall = {}
            rows = _select(gradients, conditions | {"part": "all", "against": "reverse"})
        else:
            old_answers = _select(edits, conditions | {"answer": "old"})
            recall = old_answers.groupby(["model", "edited", "question", "about"]).recall_after.mean().to_dict()
            rows = _select(edits, conditions | {"about": "difference", "question": "reverse"})
        for (model, edited), runs in rows.groupby(["model", "edited"], sort=False):
            runs = runs[runs.group == runs.group.iloc[0]].dropna(subset=["transfer"])
            if not len(runs):
                continue
            store = stores.get(model, dict.fromkeys(SHARING, np.nan))
            pooled = contrasts.pool_seeds(runs.transfer, runs.transfer_low, runs.transfer_high)
            error = (runs.transfer_high - runs.transfer_low).mean() / 2 / 1.96 * np.sqrt(runs.n.mean())  # of one fact
            sharing = [store[key] for key in SHARING]
            after = [recall.get((model, edited, *key), np.nan) for key in RECALL.values()]
            records.append((model, *sharing, test, edited, len(runs), int(runs.n.mean()), *pooled, *after, error))
    columns = ["model", *SHARING, "test", "edited", "seeds", "n", "value", "ci_low", "ci_high", *RECALL, "error"]
    table = pd.DataFrame(records, columns=columns)
    separate = table[table.people == 0].set_index(["scale", "test", "edited"]).value
    table["power_30"] = [
        _compute_power(row.value - separate[row.scale, row.test, row.edited], row.error / np.sqrt(POWER_AT))
        if row.people * row.part == 1 and (row.scale, row.test, row.edited) in separate.index
        else np.nan
        for row in table.itertuples()
    ]
    return table.drop(columns="error")


def _select(table, conditions):
    """The rows of a table with these values, as text, in its columns."""
    for column, value in conditions.items():
        table = table[table[column].astype(str) == value]
    return table


def _compute_power(difference, error):
    """The probability that a normal estimate with this mean and standard error exceeds 0 by 1.96 errors."""
    return NormalDist().cdf(difference / error - 1.96) if error > 0 else float(difference > 0)
