"""Storage: rank-one and fine-tuned edits, gradients, and tests on networks of known storage."""

from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ..data.facts import GROUPS
from ..storage.transfer import TESTS
from ..storage.vocabulary import BASE, CONVERGED, main_weights
from .article import NOTE, TEXT
from .style import (
    DIRECTION_LABELS,
    FAINT,
    INK,
    LIGHT_BLUE,
    NARROW,
    PALE,
    Drawing,
    choose_looks,
    draw_empty,
    new_figure,
    number,
    offsets,
    percent,
    styled,
)

# The questions after an edit, and whether its old or its new answer is measured.
QUESTIONS = {
    ("paraphrase", "old"): "paraphrase",
    ("reverse", "old"): "reverse, old answer",
    ("reverse", "new"): "reverse, new answer",
}
EDITED = {"p2d": "edited: person → description", "d2p": "edited: description → person"}
GRADIENTS = {"forward": "paraphrase", "reverse": "reverse"}


@styled
def finetuned_edits(edits, gradients, *, models):
    """Draw the transfer of fine-tuned edits (above) and the similarity of gradients (below), a column a direction."""
    edits = edits[(edits.kind == "replace") & (edits.weights == main_weights(edits.weights))]
    edits = edits[(edits.steps == CONVERGED) & (edits.about == "difference") & (edits.stage != BASE)]
    looks = {name: look for name, look in choose_looks(models).items() if name in set(edits.model)}
    if not looks:
        return draw_empty("No fact was edited.")
    group, seed = edits.group.iloc[0], edits.seed.min()
    edits = edits[(edits.group == group) & (edits.seed == seed)]
    gradients = gradients[(gradients.stage != BASE) & (gradients.group == group) & (gradients.seed == seed)]
    gradients = gradients[(gradients.part == "all") & (gradients.measure == "gradient")]
    directions = [direction for direction in EDITED if direction in set(edits.edited)]
    figure = new_figure(320)
    grid = figure.subplots(2, len(directions), squeeze=False, sharey="row", sharex="row", height_ratios=(1.7, 1))
    handles, descriptions = {}, []
    for (above, below), direction in zip(grid.T, directions, strict=True):
        rows = edits[edits.edited == direction].set_index(["model", "question", "answer"])
        percentages = rows[["transfer", "transfer_low", "transfer_high"]] * 100
        drawn = _draw_dots(above, percentages, QUESTIONS, looks, handles)
        shares = ", ".join(f"{label} {percent(share / 100)}" for label, share in drawn)
        descriptions.append(f"{EDITED[direction]}: {shares}")
        above.set(title=EDITED[direction], xlabel="transfer, % of the change")
        rows = gradients[gradients.edited == direction].set_index(["model", "against"])[["value", "ci_low", "ci_high"]]
        drawn = _draw_dots(below, rows, GRADIENTS, looks, handles)
        descriptions += [f"gradients, {label} {number(cosine, 2)}" for label, cosine in drawn]
        below.set_xlabel("cosine of gradients, own minus others'")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    return Drawing(figure, {"transfer": "; ".join(descriptions)})


def _draw_dots(axes, rows, labels, looks, handles):
    """Draw estimates with intervals, the columns of `rows`, one line for each of `labels`: [(label, estimate), …]."""
    drawn = []
    axes.axvline(0, color=FAINT, linewidth=0.8)
    for (name, look), shift in zip(looks.items(), offsets(len(looks), 0.3), strict=True):
        for y, (key, label) in enumerate(labels.items()):
            index = (name, *key) if isinstance(key, tuple) else (name, key)
            if index not in rows.index:
                continue
            estimate, low, high = rows.loc[index]
            axes.hlines(y + shift, low, high, color=look.color)
            (mark,) = axes.plot(estimate, y + shift, look.marker, color=look.color)
            handles[look.label] = mark
            drawn.append((f"{look.label}, {label}", estimate))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels.values())
    axes.grid(axis="x")
    return drawn


LIMITS = (-40, 100)  # of the scale, in percent
ENOUGH = 0.8  # power
# Shared people and part of each fact: marker, fill and label.
STORAGE = {
    (0, 1): ("s", "white", "separate"),
    (1, 0.5): ("D", LIGHT_BLUE, "half of each fact shared"),
    (0.5, 1): ("o", LIGHT_BLUE, "half of the people shared"),
    (1, 1): ("s", INK, "shared"),
}


@styled
def storage_tests(table, *, models):
    """Draw what each test shows on networks of known storage, with its power, and on the models of the study."""
    known, unknown = table.dropna(subset=["people"]), table[table.people.isna()]
    looks = choose_looks({name: family for name, family in models.items() if name in set(unknown.model)})
    if not len(known) or not looks:
        return draw_empty("No network of known storage was tested.")
    # Where the store's weights are about as large as those around it.
    known = known[known.scale == sorted(known.scale.unique())[known.scale.nunique() // 2]]
    power = _sort_by_power(known, [test for test in TESTS if test in set(table.test)])
    directions = [direction for direction in EDITED if direction in set(table.edited)]
    figure = new_figure(len(directions) * (26 * len(power) + 45) + 85, NARROW)
    grid = figure.subplots(len(directions), 1, squeeze=False)[:, 0]
    handles, descriptions = {}, []
    for axes, direction in zip(grid, directions, strict=True):
        axes.axvline(0, color=FAINT, linewidth=0.8)
        axes.axhline((power >= ENOUGH).sum() - 0.5, color=FAINT, linewidth=0.8, linestyle="--")
        for y, test in enumerate(power.index):
            rows, shown = known[(known.test == test) & (known.edited == direction)], []
            ends = (100 * rows.value).clip(*LIMITS)
            axes.hlines(y - 0.2, ends.min(), ends.max(), color=PALE, linewidth=5, zorder=0)
            for (people, part), (marker, color, label) in STORAGE.items():
                value = rows[(rows.people == people) & (rows.part == part)].value.mean()
                if np.isfinite(value):
                    style = {"color": INK, "markerfacecolor": color, "markersize": 5}
                    handles[label] = _draw_clipped(axes, y - 0.2, (value,) * 3, marker, **style)
                    shown.append(f"{label} {percent(value)}")
            shown.append(f"power {percent(rows.power_30.mean())}")
            axes.text(LIMITS[1] + 10, y, percent(rows.power_30.mean()), va="center", fontsize=NOTE)
            for (name, look), shift in zip(looks.items(), (0.08, 0.28), strict=False):
                own = unknown[(unknown.model == name) & (unknown.test == test) & (unknown.edited == direction)]
                for row in own.itertuples():
                    interval = row.value, row.ci_low, row.ci_high
                    handles[look.label] = _draw_clipped(
                        axes, y + shift, interval, look.marker, color=look.color, markersize=4
                    )
                    shown.append(f"{look.label} {percent(row.value)}")
            descriptions.append(f"{EDITED[direction]}, {test}: {', '.join(shown)}")
        axes.set(xlim=(LIMITS[0] - 8, LIMITS[1] + 8), ylim=(len(power) - 0.4, -0.7))
        axes.set_title(EDITED[direction].capitalize(), fontsize=TEXT, x=-0.35)
        axes.text(LIMITS[1] + 10, -1, "power", fontsize=NOTE)
        axes.set_yticks(range(len(power)), ["\n".join(wrap(test, 20)) for test in power.index])
        axes.set_xlabel("transfer, % of the change", fontsize=NOTE)
        axes.tick_params(labelsize=NOTE)
        axes.grid(axis="x")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=NOTE)
    return Drawing(figure, {"transfer": "; ".join(descriptions)})


def _sort_by_power(known, tests):
    """The mean power of each test, the largest first; of equal power, those where storage makes most difference."""
    shared, separate = (
        known[(known.people == people) & (known.part == 1)].groupby("test").value.mean() for people in (1, 0)
    )
    ranks = pd.DataFrame({"power": known.groupby("test").power_30.mean().round(2), "gap": shared - separate})
    return ranks.reindex(tests).sort_values(["power", "gap"], ascending=False, kind="stable").power


def _draw_clipped(axes, y, interval, marker, **style):
    """Draw a share with its interval (estimate, low, high); arrows point to what is beyond the scale."""
    value, low, high = 100 * np.array(interval)
    (mark,) = axes.plot(np.clip(value, *LIMITS), y, marker, **style)
    axes.hlines(y, *np.clip((low, high), LIMITS[0] - 5, LIMITS[1] + 5), color=style["color"])
    for end, limit, sign, arrow in ((low, LIMITS[0], -1, "<"), (high, LIMITS[1], 1, ">")):
        if sign * end > sign * limit:
            axes.plot(limit + 5 * sign, y, arrow, color=style["color"], markersize=3)
    return mark


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
        axes.grid(axis="x")
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
