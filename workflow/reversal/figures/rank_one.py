"""Rank-one edits: their effect on the edited prompt, on others and on the reverse direction; means and single edits."""

import numpy as np
from matplotlib.lines import Line2D

from ..data.facts import GROUPS
from .style import DIRECTION_LABELS, INK, PALE, Drawing, choose_looks, draw_empty, new_figure, offsets, percent, styled

MEASURES = {
    "efficacy": "edited prompt",
    "paraphrase": "paraphrases of it",
    "specificity": "other people",
    "reverse_new": "reverse, new",
    "reverse_old": "reverse, old",
}


@styled
def rank_one_edits(table, *, models):
    """Draw rank-one edits at the traced peak, on average (above) and edit by edit (below); a column for each group.

    Bars are after the edit, with intervals; ticks before it; diamonds how often the expected answer is given. Below,
    each dot is an edit.
    """
    table = table[(table.seed == table.seed.min()) & (table.peak == True)]  # noqa: E712, a table without edits has no type
    by_edit, means = table[table.fact.notna()], table[table.fact.isna()]
    looks = {name: look for name, look in choose_looks(models).items() if name in set(means.model)}
    groups = list(dict.fromkeys(means.group))
    measures = [measure for measure in MEASURES if measure in set(means.measure)]
    if not looks or not measures:
        return draw_empty("No fact was edited.")
    bars, dots = 13 * len(measures) * len(looks) + 50, 9 * len(measures) * len(looks) + 40
    figure = new_figure(bars + dots + 40)
    above, below = figure.subplots(2, len(groups), sharey=True, squeeze=False, height_ratios=(bars, dots))
    handles, descriptions, width = {}, [], 0.8 / len(looks)
    for axes, group in zip(above, groups, strict=True):
        for (name, look), shift in zip(looks.items(), offsets(len(looks), width), strict=True):
            rows = means[(means.model == name) & (means.group == group)]
            preferred = rows[rows.statistic == "preferred"].set_index("measure")
            after = _draw_bars(axes, preferred, measures, shift, width, look, handles)
            exact = rows[(rows.statistic == "exact") & (rows.when == "after")]
            exact = exact.set_index("measure").reindex(measures).value
            hollow = {"color": INK, "markerfacecolor": "white", "markersize": 4, "clip_on": False, "zorder": 4}
            (diamond,) = axes.plot(100 * exact, np.arange(len(measures)) + shift, "D", **hollow)
            shares = (
                f"{MEASURES[measure]} {percent(share)} (given {percent(exact[measure])})"
                for measure, share in after.items()
            )
            descriptions.append(f"{look.label}, {_describe_group(group)}: {', '.join(shares)}")
        axes.set(xlabel="expected answer more probable, %", xlim=(0, 104), ylim=(len(measures) - 0.5, -0.5))
        axes.set_title(_describe_group(group))
    for axes, group in zip(below, groups, strict=True):
        _draw_each_edit(axes, by_edit[by_edit.group == group], measures, looks)
    above[0].set_yticks(range(len(measures)), [MEASURES[measure] for measure in measures])
    for axes in (*above, *below):
        axes.grid(axis="x", color=PALE)
        axes.set_axisbelow(True)
    # Markers, because a legend would draw the vertical line of a tick horizontally.
    tick = {"marker": "|", "markersize": 10, "markeredgewidth": 1.8, "linestyle": ""}
    handles["before the edit"] = Line2D([], [], color=INK, **tick)
    handles["after it, 95% interval"] = Line2D([], [], color=INK, linewidth=1.1)
    handles["after it, given as the answer"] = diamond
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"models": "; ".join(descriptions)})


def _describe_group(group):
    return f"trained {DIRECTION_LABELS[group]}" if group in GROUPS else "not trained here"


def _draw_each_edit(axes, table, measures, looks):
    """Draw a dot for each edit: its change of the expected answer's lead over the alternative."""
    table = table[table.when == "change"]
    for (name, look), shift in zip(looks.items(), offsets(len(looks), 0.35), strict=True):
        rows = table[(table.model == name) & table.measure.isin(measures)]
        y = rows.measure.map(measures.index) + shift
        axes.plot(rows.value, y, look.marker, color=look.color, markersize=3.5, alpha=0.6)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="change of its lead by each edit, nats", ylim=(len(measures) - 0.5, -0.5))


def _draw_bars(axes, rows, measures, shift, width, look, handles):
    """Draw one model's bars, `shift` off the measures' positions; return the shares after the edit."""
    before, after = (rows[rows.when == when].reindex(measures) for when in ("before", "after"))
    y = np.arange(len(measures)) + shift
    style = {"color": look.color, "alpha": 0.75, "edgecolor": "white", "linewidth": 0}
    hatch = "" if look.line == "-" else "///"
    handles[f"{look.label}, after the edit"] = axes.barh(y, 100 * after.value, 0.9 * width, hatch=hatch, **style)
    axes.hlines(y, 100 * after.ci_low, 100 * after.ci_high, color=INK, linewidth=1.1)
    axes.vlines(100 * before.value, y - 0.45 * width, y + 0.45 * width, color=INK, linewidth=1.8, zorder=3)
    return after.value
