"""Rank-one edits: what they do to the edited question, to others, and in reverse."""

import numpy as np

from .style import (
    INK,
    PALE,
    Drawing,
    blank,
    looks,
    nothing,
    offsets,
    percent,
    styled,
)

MEASURES = {
    "efficacy": "edited\nquestion",
    "paraphrase": "other\ntemplates",
    "specificity": "neighbours\nunchanged",
    "reverse_new": "reverse:\nnew object",
    "reverse_old": "reverse:\nold object",
}
OUTCOMES = {"preferred": "wanted answer more probable, % of edits", "exact": "wanted answer given, % of edits"}


@styled
def edits(table, *, models):
    """What rank-one edits do: bars after, a tick before, each with its interval; a panel for each way to count."""
    table = table[table.seed == table.seed.min()]
    names = [name for name in models if name in set(table.model)]
    measures = [measure for measure in MEASURES if measure in set(table.measure)]
    if not names or not measures:
        return nothing("No fact was edited.")
    styles = looks(models)
    figure = blank(330)
    panels = figure.subplots(len(OUTCOMES), 1, sharex=True, squeeze=False)[:, 0]
    width = 0.8 / len(names)
    handles, said = {}, {}
    for axes, (statistic, title) in zip(panels, OUTCOMES.items(), strict=True):
        for name, shift in zip(names, offsets(len(names), width), strict=True):
            look = styles[name]
            rows = table[(table.model == name) & (table.statistic == statistic)].set_index("measure")
            before, after = (rows[rows.when == when].reindex(measures) for when in ("before", "after"))
            x = np.arange(len(measures)) + shift
            handles["before the edit"] = axes.hlines(
                100 * before.value, x - 0.45 * width, x + 0.45 * width, color=INK, linewidth=1.6, zorder=3
            )
            how = {"color": look.color, "alpha": 0.75, "edgecolor": "white", "linewidth": 0}
            hatch = "" if look.line == "-" else "///"
            handles[f"{look.label}, after"] = axes.bar(x, 100 * after.value, 0.9 * width, hatch=hatch, **how)
            axes.vlines(x, 100 * after.ci_low, 100 * after.ci_high, color=INK, linewidth=1.1)
            shares = zip(measures, after.value, strict=True)
            said[look.label] = ", ".join(f"{MEASURES[m].replace(chr(10), ' ')} {percent(v)}" for m, v in shares)
        axes.set_title(title)
        axes.set_ylim(0, 104)
        axes.grid(axis="y", color=PALE)
        axes.set_axisbelow(True)
    panels[-1].set_xticks(range(len(measures)), [MEASURES[measure] for measure in measures])
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return Drawing(figure, {"models": "; ".join(f"{label}: {text}" for label, text in said.items())})
