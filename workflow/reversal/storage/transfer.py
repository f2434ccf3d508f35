"""Tables of how much transfers to the reverse direction: from fine-tuned edits, and from gradients to first order."""

import pandas as pd

from ..common import contrasts
from .vocabulary import CONVERGED

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

    Columns: those of RUN, measure, part, against, n, own and others (mean cosines), value (their difference, paired by
    fact), ci_low, ci_high, p; and, against the reverse, transfer with transfer_low and transfer_high: when a small step
    lowers the forward loss by one nat, how much the fact's reverse loss falls, minus that of other facts.
    """
    records = []
    for keys, run in table.groupby([*RUN, "measure", "part"], sort=False):
        run = run.set_index("fact")
        forward = run[run.against == "forward"]["product"]
        for against, rows in run.groupby("against", sort=False):
            transfer = UNKNOWN
            if against == "reverse" and len(forward):
                difference = rows["product"] - rows.product_others
                transfer = contrasts.ratio(difference.to_numpy(), forward.reindex(difference.index).to_numpy())
            cosines = rows[["cosine", "cosine_others"]].mean()
            value = _mean_change(rows.cosine - rows.cosine_others)
            records.append((*keys, against, len(rows), *cosines, *value, rows.p.iloc[0], *transfer))
    columns = [*RUN, "measure", "part", "against", "n", "own", "others", "value", "ci_low", "ci_high", "p"]
    return pd.DataFrame(records, columns=[*columns, "transfer", "transfer_low", "transfer_high"])
