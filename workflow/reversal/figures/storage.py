"""Shared or separate storage: the transfer of fine-tuned edits, gradients, and tests on networks of known storage."""

import numpy as np

from ..storage.transfer import TESTS
from ..storage.vocabulary import BASE, CONVERGED, main_weights
from .style import (
    FAINT,
    INK,
    LIGHT_BLUE,
    NARROW,
    PALE,
    SMALL,
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
    tests = [test for test in TESTS if test in set(table.test)]
    directions = [direction for direction in EDITED if direction in set(table.edited)]
    figure = new_figure(len(directions) * (24 * len(tests) + 60) + 60, NARROW)
    grid = figure.subplots(len(directions), 1, squeeze=False, sharex=True)
    axes_of = dict(zip(directions, grid[:, 0], strict=True))
    handles, descriptions = {}, []
    for direction, axes in axes_of.items():
        axes.axvline(0, color=FAINT, linewidth=0.8)
        for y, test in enumerate(tests):
            rows = known[(known.test == test) & (known.edited == direction)]
            ends = 100 * rows.value.clip(LIMITS[0] / 100, LIMITS[1] / 100)
            axes.hlines(y, ends.min(), ends.max(), color=PALE, linewidth=5, zorder=0)
            for (people, part), (marker, color, label) in STORAGE.items():
                value = rows[(rows.people == people) & (rows.part == part)].value.mean()
                if np.isfinite(value):
                    x = np.clip(100 * value, *LIMITS)
                    (handles[label],) = axes.plot(x, y, marker, color=INK, markerfacecolor=color, markersize=5)
                    descriptions.append(f"{EDITED[direction]}, {test}, {label}: {percent(value)}")
            power = rows.power_30.mean()
            if np.isfinite(power):
                axes.text(LIMITS[1] + 3, y, percent(power), va="center", fontsize=SMALL, color=FAINT)
            for (name, look), shift in zip(looks.items(), (0.22, 0.38), strict=False):
                shown = table[(table.model == name) & (table.test == test) & (table.edited == direction)]
                for row in shown.itertuples():
                    low, center, high = np.clip([100 * row.ci_low, 100 * row.value, 100 * row.ci_high], *LIMITS)
                    axes.hlines(y + shift, low, high, color=look.color)
                    (handles[look.label],) = axes.plot(center, y + shift, look.marker, color=look.color, markersize=4)
                    descriptions.append(f"{EDITED[direction]}, {test}, {look.label}: {percent(row.value)}")
        axes.set(xlim=LIMITS, ylim=(len(tests) - 0.4, -1.1), title=EDITED[direction])
        axes.text(LIMITS[1] + 3, -0.9, "power", va="center", fontsize=SMALL, color=FAINT)
        axes.set_yticks(range(len(tests)), tests)
        axes.grid(axis="x", color=PALE)
    grid[-1, 0].set_xlabel("transfer, % of the change")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"transfer": "; ".join(descriptions)})
