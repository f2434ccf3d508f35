"""Shared or separate storage: the transfer of fine-tuned edits, gradients, and tests on networks of known storage."""

from textwrap import wrap

import numpy as np
import pandas as pd

from ..storage.transfer import TESTS
from ..storage.vocabulary import BASE, CONVERGED, main_weights
from .article import NOTE, TEXT
from .style import (
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
    axes.grid(axis="x", color=PALE)
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
    known = known[known.scale == known.scale.unique()[np.argsort(known.scale.unique())][known.scale.nunique() // 2]]
    power = (
        _rank_tests(known)
        .reindex([test for test in TESTS if test in set(table.test)])
        .sort_values(["power", "gap"], ascending=False, kind="stable")
        .power
    )
    directions = [direction for direction in EDITED if direction in set(table.edited)]
    figure = new_figure(len(directions) * (26 * len(power) + 45) + 85, NARROW)
    grid = figure.subplots(len(directions), 1, squeeze=False)[:, 0]
    handles, descriptions = {}, []
    for axes, direction in zip(grid, directions, strict=True):
        axes.axvline(0, color=FAINT, linewidth=0.8)
        axes.axhline((power >= ENOUGH).sum() - 0.5, color=FAINT, linewidth=0.8, linestyle="--")
        for y, test in enumerate(power.index):
            rows = known[(known.test == test) & (known.edited == direction)]
            ends = (100 * rows.value).clip(*LIMITS)
            axes.hlines(y - 0.2, ends.min(), ends.max(), color=PALE, linewidth=5, zorder=0)
            for (people, part), (marker, color, label) in STORAGE.items():
                value = rows[(rows.people == people) & (rows.part == part)].value.mean()
                if np.isfinite(value):
                    style = {"color": INK, "markerfacecolor": color, "markersize": 5}
                    handles[label] = _draw_clipped(axes, y - 0.2, (value,) * 3, marker, **style)
                    descriptions.append(f"{EDITED[direction]}, {test}, {label}: {percent(value)}")
            axes.text(LIMITS[1] + 10, y, percent(rows.power_30.mean()), va="center", fontsize=NOTE)
            for (name, look), shift in zip(looks.items(), (0.08, 0.28), strict=False):
                shown = unknown[(unknown.model == name) & (unknown.test == test) & (unknown.edited == direction)]
                for row in shown.itertuples():
                    interval = row.value, row.ci_low, row.ci_high
                    handles[look.label] = _draw_clipped(
                        axes, y + shift, interval, look.marker, color=look.color, markersize=4
                    )
                    descriptions.append(f"{EDITED[direction]}, {test}, {look.label}: {percent(row.value)}")
        axes.set(xlim=(LIMITS[0] - 8, LIMITS[1] + 8), ylim=(len(power) - 0.4, -0.7))
        axes.set_title(EDITED[direction].capitalize(), fontsize=TEXT, x=-0.35)
        axes.text(LIMITS[1] + 10, -1, "power", fontsize=NOTE)
        axes.set_yticks(range(len(power)), ["\n".join(wrap(test, 20)) for test in power.index])
        axes.set_xlabel("transfer, % of the change", fontsize=NOTE)
        axes.tick_params(labelsize=NOTE)
        axes.grid(axis="x", color=PALE)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=NOTE)
    return Drawing(figure, {"transfer": "; ".join(descriptions)})


def _rank_tests(known):
    """By test: its mean power, and how far shared and separate storage lie apart, over the edited directions."""
    shared, separate = (
        known[(known.people == people) & (known.part == 1)].groupby("test").value.mean() for people in (1, 0)
    )
    return pd.DataFrame({"power": known.groupby("test").power_30.mean().round(2), "gap": shared - separate})


def _draw_clipped(axes, y, interval, marker, **style):
    """Draw a share with its interval (estimate, low, high); arrows point to what is beyond the scale."""
    value, low, high = 100 * np.array(interval)
    (mark,) = axes.plot(np.clip(value, *LIMITS), y, marker, **style)
    axes.hlines(y, *np.clip((low, high), LIMITS[0] - 5, LIMITS[1] + 5), color=style["color"])
    for end, limit, sign, arrow in ((low, LIMITS[0], -1, "<"), (high, LIMITS[1], 1, ">")):
        if sign * end > sign * limit:
            axes.plot(limit + 5 * sign, y, arrow, color=style["color"], markersize=3)
    return mark
