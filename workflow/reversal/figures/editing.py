"""Rank-one edits: what they do to the edited question, to others, and in reverse."""

import numpy as np

from .style import INK, PALE, Drawing, blank, looks, nothing, offsets, percent, styled

MEASURES = {
    "efficacy": "edited question",
    "paraphrase": "other templates",
    "specificity": "neighbours unchanged",
    "reverse_new": "reverse: new object",
    "reverse_old": "reverse: old object",
}
OUTCOMES = {"preferred": "wanted answer more probable, %", "exact": "wanted answer given, %"}
GROUPS = {"both": "trained in both directions", "p2d": "trained person → description"}


@styled
def edits(table, *, models):
    """What rank-one edits do where tracing peaks, one row for each way to count, layer by layer, and edit by edit.

    A column for each group. Bars after, a tick before, with intervals; a dot for each edit.
    """
    everywhere = table[table.seed == table.seed.min()]
    each = everywhere[everywhere.fact.notna() & everywhere.peak]
    everywhere = everywhere[everywhere.fact.isna()]
    table = everywhere[everywhere.peak]
    names = [name for name in models if name in set(table.model)]
    groups = list(dict.fromkeys(table.group))
    measures = [measure for measure in MEASURES if measure in set(table.measure)]
    if not names or not measures:
        return nothing("No fact was edited.")
    swept = bool(everywhere.groupby("model").layer.nunique().gt(1).any())
    bars = 13 * len(measures) * len(names) + 50
    dots = 9 * len(measures) * len(names) + 40
    figure = blank(len(OUTCOMES) * bars + 160 * swept + dots + 30)
    heights = [bars] * len(OUTCOMES) + [160] * swept + [dots]
    grid = figure.subplots(len(heights), len(groups), sharey="row", squeeze=False, height_ratios=heights)
    handles, said = {}, []
    width = 0.8 / len(names)
    for axes_row, (statistic, title) in zip(grid, OUTCOMES.items(), strict=False):
        for axes, group in zip(axes_row, groups, strict=True):
            for name, shift in zip(names, offsets(len(names), width), strict=True):
                rows = table[(table.model == name) & (table.statistic == statistic) & (table.group == group)]
                after = _bars(axes, rows.set_index("measure"), measures, shift, width, looks(models)[name], handles)
                if statistic == "exact":
                    shares = zip(measures, after, strict=True)
                    told = ", ".join(f"{MEASURES[measure]} {percent(share)}" for measure, share in shares)
                    said.append(f"{looks(models)[name].label}, {GROUPS.get(group, group)}: {told}")
            axes.set(xlabel=title, xlim=(0, 104), ylim=(len(measures) - 0.5, -0.5))
            axes.grid(axis="x", color=PALE)
            axes.set_axisbelow(True)
        axes_row[0].set_yticks(range(len(measures)), [MEASURES[measure] for measure in measures])
    for axes, group in zip(grid[0], groups, strict=True):
        axes.set_title(GROUPS.get(group, group))
    if swept:
        for axes, group in zip(grid[-2], groups, strict=True):
            _by_layer(axes, everywhere[everywhere.group == group], names, looks(models), handles)
        grid[-2, 0].set_ylabel(OUTCOMES["preferred"].replace("answer ", "answer\n"))
    for axes, group in zip(grid[-1], groups, strict=True):
        _by_edit(axes, each[each.group == group], measures, names, looks(models))
    grid[-1, 0].set_yticks(range(len(measures)), [MEASURES[measure] for measure in measures])
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"models": "; ".join(said)})


def _by_edit(axes, table, measures, names, look):
    """A dot for each edit: how far it moved the wanted answer's log-probability."""
    for name, shift in zip(names, offsets(len(names), 0.35), strict=True):
        rows = table[(table.model == name) & table.measure.isin(measures)]
        y = rows.measure.map(measures.index) + shift
        axes.plot(rows.value, y, look[name].marker, color=look[name].color, markersize=3.5, alpha=0.6)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="change of its log p by each edit, nats", ylim=(len(measures) - 0.5, -0.5))
    axes.grid(axis="x", color=PALE)
    axes.set_axisbelow(True)


def _by_layer(axes, table, names, look, handles):
    """The edited question, and the same turned round, for edits in each layer."""
    shown = table[(table.statistic == "preferred") & (table.when == "after")]
    for measure, marker, fill in (("efficacy", "o", True), ("reverse_new", "s", False)):
        for name in names:
            rows = shown[(shown.model == name) & (shown.measure == measure)].sort_values("layer")
            color = look[name].color
            label = f"{look[name].label}, {MEASURES[measure]}"
            (handles[label],) = axes.plot(
                rows.layer,
                100 * rows.value,
                color=color,
                linestyle=look[name].line,
                marker=marker,
                markerfacecolor=color if fill else "white",
                label=label,
            )
    layers = sorted(set(shown.layer))
    axes.set(xlabel="edited layer", ylim=(-4, 104), xticks=layers)
    axes.grid(axis="y", color=PALE)


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
