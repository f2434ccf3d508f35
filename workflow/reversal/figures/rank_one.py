"""Rank-one edits: what they do to the edited question, to others, and in reverse; on average and edit by edit."""

import numpy as np
from matplotlib.lines import Line2D

from ..data.facts import GROUPS
from .style import INK, PALE, TAUGHT, Drawing, blank, looks, nothing, offsets, percent, styled

MEASURES = {
    "efficacy": "the edited question",
    "paraphrase": "paraphrases of it",
    "specificity": "other people",
    "reverse_new": "reverse, new",
    "reverse_old": "reverse, old",
}


@styled
def edits(table, *, models):
    """What rank-one edits do where tracing peaks, and edit by edit; a column for each group.

    Bars after, with intervals; a tick before; a diamond for how often the answer is given. Below, a dot for each edit.
    """
    table = table[table.seed == table.seed.min()]
    single, every = table[table.fact.notna()], table[table.fact.isna()]
    lead = every[every.peak]
    names = [name for name in models if name in set(lead.model)]
    groups = list(dict.fromkeys(lead.group))
    measures = [measure for measure in MEASURES if measure in set(lead.measure)]
    if not names or not measures:
        return nothing("No fact was edited.")
    bars, dots = 13 * len(measures) * len(names) + 50, 9 * len(measures) * len(names) + 40
    figure = blank(bars + dots + 40)
    above, below = figure.subplots(2, len(groups), sharey=True, squeeze=False, height_ratios=(bars, dots))
    handles, said, width = {}, [], 0.8 / len(names)
    for axes, group in zip(above, groups, strict=True):
        for name, shift in zip(names, offsets(len(names), width), strict=True):
            rows = lead[(lead.model == name) & (lead.statistic == "preferred") & (lead.group == group)]
            after = _bars(axes, rows.set_index("measure"), measures, shift, width, looks(models)[name], handles)
            given = lead[(lead.model == name) & (lead.statistic == "exact") & (lead.group == group)]
            given = given[given.when == "after"].set_index("measure").reindex(measures).value
            hollow = {"color": INK, "markerfacecolor": "white", "markersize": 4, "clip_on": False, "zorder": 4}
            (given_mark,) = axes.plot(100 * given, np.arange(len(measures)) + shift, "D", **hollow)
            told = ", ".join(
                f"{MEASURES[one]} {percent(share)} (given {percent(given[one])})" for one, share in after.items()
            )
            said.append(f"{looks(models)[name].label}, {_people(group)}: {told}")
        axes.set(xlabel="wanted answer more probable, %", xlim=(0, 104), ylim=(len(measures) - 0.5, -0.5))
        axes.set_title(_people(group))
    for axes, group in zip(below, groups, strict=True):
        _by_edit(axes, single[(single.group == group) & single.peak], measures, names, looks(models))
    above[0].set_yticks(range(len(measures)), [MEASURES[measure] for measure in measures])
    for axes in (*above, *below):
        axes.grid(axis="x", color=PALE)
        axes.set_axisbelow(True)
    # A legend would lay the vertical line of a tick down.
    tick = {"marker": "|", "markersize": 10, "markeredgewidth": 1.8, "linestyle": ""}
    handles["before the edit"] = Line2D([], [], color=INK, **tick)
    handles["after it, 95% interval"] = Line2D([], [], color=INK, linewidth=1.1)
    handles["after it, given as the answer"] = given_mark
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"models": "; ".join(said)})


def _people(group):
    return f"taught {TAUGHT[group]}" if group in GROUPS else "taught nothing here"


def _by_edit(axes, table, measures, names, look):
    """A dot for each edit: how far it moved the wanted answer's lead over its rival."""
    table = table[table.when == "change"]
    for name, shift in zip(names, offsets(len(names), 0.35), strict=True):
        rows = table[(table.model == name) & table.measure.isin(measures)]
        y = rows.measure.map(measures.index) + shift
        axes.plot(rows.value, y, look[name].marker, color=look[name].color, markersize=3.5, alpha=0.6)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="change of its lead by each edit, nats", ylim=(len(measures) - 0.5, -0.5))


def _bars(axes, rows, measures, shift, width, look, handles):
    """Bars of one model `shift` off the measures' places; the shares after the edit."""
    before, after = (rows[rows.when == when].reindex(measures) for when in ("before", "after"))
    y = np.arange(len(measures)) + shift
    how = {"color": look.color, "alpha": 0.75, "edgecolor": "white", "linewidth": 0}
    hatch = "" if look.line == "-" else "///"
    handles[f"{look.label}, after the edit"] = axes.barh(y, 100 * after.value, 0.9 * width, hatch=hatch, **how)
    axes.hlines(y, 100 * after.ci_low, 100 * after.ci_high, color=INK, linewidth=1.1)
    ends = (y - 0.45 * width, y + 0.45 * width)
    axes.vlines(100 * before.value, *ends, color=INK, linewidth=1.8, zorder=3)
    return after.value
