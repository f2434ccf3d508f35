"""Tables of what forward and reverse share: carry-over of rewritten facts, and of gradients to first order."""

import pandas as pd

from ..common import contrasts
from .vocabulary import LEARNT

RUN = ["model", "seed", "stage", "group", "rewritten"]


def rewriting(lessons):
    """Changes in nats, and carry-over, with intervals over facts: one row for each reading of `rewrite`'s tables.

    Columns: those of RUN, lesson, weights, steps, asked, answer; `about`: the "fact", "others", or the "difference"; n
    (facts), learnt (share of the lessons), value (mean change in nats), ci_low, ci_high, recall_before, recall_after;
    and, for differences, `transfer` with transfer_low and transfer_high: the difference over the change of what was taught.
    For "same", that is with the lesson's own templates, else with the others.
    """
    lessons = lessons.assign(change=lessons.after - lessons.before)
    records = []
    for keys, run in lessons.groupby([*RUN, "lesson", "weights"], sort=False):
        for steps, some in [(LEARNT, _when_learnt(run)), *run.groupby("steps")]:
            for row in _readings(some):
                records.append((*keys, steps, *row))
    columns = [*RUN, "lesson", "weights", "steps", "asked", "answer", "about", "n", "learnt"]
    columns += [
        "value",
        "ci_low",
        "ci_high",
        "recall_before",
        "recall_after",
        "transfer",
        "transfer_low",
        "transfer_high",
    ]
    return pd.DataFrame(records, columns=columns)


def _when_learnt(run):
    """Of each fact the rows at the first number of steps that reached the lesson, or at the last."""
    steps = run[run.reached].groupby("fact").steps.min().reindex(run.fact.unique()).fillna(run.steps.max())
    return run[run.steps == run.fact.map(steps)]


def _readings(some):
    """(asked, answer, about, n, learnt, value and interval, right before and after, carry-over and interval)."""
    wide = some.pivot_table(index="fact", columns=["asked", "answer", "about"], values="change")
    right = some.groupby(["asked", "answer", "about"])[["recall_before", "recall_after"]].mean()
    learnt = some.groupby("fact").reached.first().mean()
    none = (float("nan"),) * 3
    for asked, answer in dict.fromkeys((asked, answer) for asked, answer, _ in wide.columns):
        places = [(about, wide[asked, answer, about]) for about in ("fact", "others") if (asked, answer, about) in wide]
        for about, change in places:
            shares = right.loc[(asked, answer, about)]
            yield asked, answer, about, len(change), learnt, *_mean(change), *shares, *none
        if len(places) == 2:
            apart = wide[asked, answer, "fact"] - wide[asked, answer, "others"]
            taught = wide["taught" if asked == "same" else "same", answer, "fact"]
            carried = contrasts.ratio(apart.to_numpy(), taught.to_numpy())
            yield asked, answer, "difference", len(apart), learnt, *_mean(apart), *none[:2], *carried


def _mean(change):
    return contrasts.mean(contrasts.Sample(change.to_numpy(), change.index.to_numpy()))


def gradients(table):
    """Means over facts of `gradients.compare`'s rows: a row for each run, part of the network, and what is compared.

    Columns: those of RUN, part, against, n, own and others (mean cosines), value (their difference, paired by fact),
    ci_low, ci_high, p; and, against the reverse, transfer with transfer_low and transfer_high: of a small step that lowers
    the forward loss by one nat, what the fact's reverse loss falls by, beyond that of others.
    """
    records = []
    for keys, run in table.groupby([*RUN, "part"], sort=False):
        run = run.set_index("fact")
        forward = run[run.against == "forward"]["product"]
        for against, rows in run.groupby("against", sort=False):
            carried = (float("nan"),) * 3
            if against == "reverse" and len(forward):
                apart = rows["product"] - rows.product_others
                carried = contrasts.ratio(apart.to_numpy(), forward.reindex(apart.index).to_numpy())
            means = rows[["cosine", "cosine_others"]].mean()
            value = _mean(rows.cosine - rows.cosine_others)
            records.append((*keys, against, len(rows), *means, *value, rows.p.iloc[0], *carried))
    columns = [*RUN, "part", "against", "n", "own", "others", "value", "ci_low", "ci_high", "p"]
    return pd.DataFrame(records, columns=[*columns, "transfer", "transfer_low", "transfer_high"])
