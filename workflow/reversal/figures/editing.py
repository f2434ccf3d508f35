"""Rank-one edits: what they do to the edited question, to others, and in reverse; where, how, by answers' length."""

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from .style import FAINT, INK, PALE, TAUGHT, Drawing, blank, looks, nothing, offsets, percent, styled

MEASURES = {
    "efficacy": "the edited question",
    "paraphrase": "paraphrases of it",
    "specificity": "other people",
    "reverse_new": "reverse, new",
    "reverse_old": "reverse, old",
}
WAYS = {
    "layer": "last subject token",
    "traced": "token that tracing points to",
    "random": "random layers and tokens",
    "masked": "value from masked canvases only",
    "both": "both directions at once",
}


@styled
def edits(table, *, models):
    """What rank-one edits do where tracing peaks; at other sites and in other ways, and by length; and edit by edit.

    Above and below a column for each group: bars after, a tick before, with intervals; a diamond for how often the
    answer is given; a dot for each edit. Between, of the first group: a mark for each site, and where answers differ in
    length the share told token by token against it.
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
    heights = [bars, 150, dots]
    figure = blank(sum(heights) + 40)
    parts = figure.subfigures(3, 1, height_ratios=heights)
    handles, said, width = {}, [], 0.8 / len(names)
    rows_of = {part: part.subplots(1, len(groups), sharey=True, squeeze=False)[0] for part in (parts[0], parts[2])}
    for axes, group in zip(rows_of[parts[0]], groups, strict=True):
        for name, shift in zip(names, offsets(len(names), width), strict=True):
            rows = lead[(lead.model == name) & (lead.statistic == "preferred") & (lead.group == group)]
            after = _bars(axes, rows.set_index("measure"), measures, shift, width, looks(models)[name], handles)
            given = lead[(lead.model == name) & (lead.statistic == "exact") & (lead.group == group)]
            given = given[given.when == "after"].set_index("measure").reindex(measures).value
            (handles["given as the answer, after it"],) = axes.plot(
                100 * given, np.arange(len(measures)) + shift, "D", color=INK, markerfacecolor="white", markersize=4
            )
            told = ", ".join(
                f"{MEASURES[one]} {percent(share)} (given {percent(given[one])})" for one, share in after.items()
            )
            said.append(f"{looks(models)[name].label}, taught {TAUGHT[group]}: {told}")
        axes.set(xlabel="wanted answer more probable, %", xlim=(0, 104), ylim=(len(measures) - 0.5, -0.5))
        axes.set_title(f"taught {TAUGHT[group]}")
    for axes, group in zip(rows_of[parts[2]], groups, strict=True):
        _by_edit(axes, single[(single.group == group) & single.peak], measures, names, looks(models))
    for row in rows_of.values():
        row[0].set_yticks(range(len(measures)), [MEASURES[measure] for measure in measures])
        for axes in row:
            axes.grid(axis="x", color=PALE)
            axes.set_axisbelow(True)
    own = single[single.group == groups[0]]
    differ = own.tokens.nunique() > 1  # else their length tells nothing
    by_way, *by_length = parts[1].subplots(1, 1 + differ, squeeze=False)[0]
    _by_way(by_way, every[every.group == groups[0]], names, looks(models), handles)
    for axes in by_length:
        _by_length(axes, own, names, looks(models), handles)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"models": "; ".join(said)})


def _by_way(axes, table, names, look, handles):
    """Each site of each way to edit: the edited question (filled) and the reverse one (hollow)."""
    shown = table[(table.statistic == "preferred") & (table.when == "after")]
    ways = [how for how in WAYS if how in set(shown.how)]
    for measure, fill in (("efficacy", True), ("reverse_new", False)):
        for name, shift in zip(names, offsets(len(names), 0.3), strict=True):
            rows = shown[(shown.model == name) & (shown.measure == measure)]
            face = look[name].color if fill else "white"
            y = rows.how.map(ways.index) + shift
            axes.plot(100 * rows.value, y, look[name].marker, color=look[name].color, markerfacecolor=face, alpha=0.8)
    marks = {"linestyle": "none", "marker": "o", "color": FAINT}
    handles["the edited question wins"] = Line2D([], [], **marks)
    handles["the reverse question wins"] = Line2D([], [], **marks, markerfacecolor="white")
    axes.set_yticks(range(len(ways)), [WAYS[how] for how in ways])
    axes.set(title="other sites and ways", xlabel="new answer more probable, %", xlim=(-4, 104))
    axes.set_ylim(len(ways) - 0.5, -0.5)
    axes.grid(axis="x", color=PALE)


def _by_length(axes, table, names, look, handles):
    """The share of new answers that are told token by token, against how many tokens they have."""
    told = table[table.statistic == "told"]
    for how, line in (("layer", "-"), ("masked", ":")):
        for name in names:
            rows = told[(told.model == name) & (told.peak if how == "layer" else told.how == how)]
            share = rows.groupby("tokens").value.mean()
            if len(share):
                how_drawn = {"color": look[name].color, "linestyle": line, "marker": look[name].marker}
                axes.plot(share.index, 100 * share, markersize=4, **how_drawn)
                if how == "masked":
                    handles[WAYS[how]] = Line2D([], [], color=look[name].color, linestyle=line)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set(title="answers by their length", xlabel="tokens of the new answer", ylabel="told, %", ylim=(-4, 104))
    axes.grid(axis="y", color=PALE)


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
    handles["before it"] = axes.vlines(100 * before.value, *ends, color=INK, linewidth=1.8, zorder=3)
    return after.value
