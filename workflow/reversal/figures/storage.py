"""Shared or separate storage: the transfer of fine-tuned edits, the gradients of both directions, and all evidence."""

import numpy as np

from ..storage.evidence import SEPARATE, SHARED, pool_share
from ..storage.vocabulary import BASE, CONVERGED, main_weights
from .style import (
    FAINT,
    INK,
    LIGHT_BLUE,
    LIGHT_ORANGE,
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

# The questions after an edit, and whether its old or its new answer is measured. Below each of the reverse question
# comes its positive control, in which storage is shared by construction: the reverse derived from the forward answers.
QUESTIONS = {
    ("paraphrase", "old"): "paraphrase",
    ("reverse", "old"): "reverse, old answer",
    ("bayes_inverse", "old"): "(if shared)",
    ("reverse", "new"): "reverse, new answer",
    ("bayes_inverse", "new"): "(if shared)",
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
    gradients = gradients[gradients.part == "all"]
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
            if "bayes_inverse" in key:
                mark.set_markerfacecolor("white")
            else:
                handles[look.label] = mark
            drawn.append((f"{look.label}, {label}", estimate))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels.values())
    axes.grid(axis="x", color=PALE)
    return drawn


# The rows of the summary.
MEASURES = {
    ("finetuned", "p2d"): "edited person → description",
    ("finetuned", "d2p"): "edited description → person",
    ("gradients", "p2d"): "gradients, asked for the description",
    ("gradients", "d2p"): "gradients, asked for the name",
    ("symmetry", "name"): "names: MLP output and value",
    ("symmetry", "description"): "descriptions: MLP output and value",
    ("symmetry", "state of name"): "names: states, layer of the values",
    ("symmetry", "state of description"): "descriptions: states, layer of the values",
    ("symmetry", "last state of name"): "names: states, last layer read",
    ("symmetry", "last state of description"): "descriptions: states, last layer read",
    ("rank_one", "forward"): "rank-one edit of the forward prompt",
}
LIMITS = (-60, 120)  # of the scale, in percent


@styled
def evidence(table, *, models):
    """Draw all evidence on one scale, a row a measure, a mark a model: 0 is separate storage, 100% shared storage."""
    measures = [key for key in MEASURES if key in set(zip(table.kind, table.measure, strict=True))]
    looks = {name: look for name, look in choose_looks(models).items() if name in set(table.model)}
    if not measures or not looks:
        return draw_empty("There is no evidence on shared or separate storage.")
    figure = new_figure(33 * len(measures) + 90, NARROW)
    axes = figure.subplots()
    axes.axvspan(-100, 100 * SEPARATE, color=LIGHT_ORANGE, alpha=0.45, linewidth=0)
    axes.axvspan(100 * SHARED, 1000, color=LIGHT_BLUE, alpha=0.6, linewidth=0)
    handles, descriptions = {}, []
    for (name, look), shift in zip(looks.items(), offsets(len(looks), 0.24), strict=True):
        groups = table[table.model == name].groupby(["kind", "measure"])
        for y, key in enumerate(measures):
            if key not in groups.groups:
                continue
            share, verdict = pool_share(groups.get_group(key))
            is_known = verdict != "underpowered"
            if is_known:
                handles[look.label] = _draw_share(axes, y + shift, share, look)
            else:
                style = {"va": "center", "fontsize": SMALL, "color": FAINT}
                axes.text(LIMITS[0] + 1, y + shift, f"{look.label}: underpowered", **style)
            shown = percent(share.estimate) if is_known else "underpowered"
            descriptions.append(f"{look.label}, {MEASURES[key]}: {shown}")
    axes.axvline(100, color=INK, linewidth=0.8, linestyle=":")
    axes.set(xlim=LIMITS, ylim=(len(measures) - 0.6, -1.1), yticks=[])
    axes.text(LIMITS[0] + 1, -0.9, "separate storage", va="center", fontsize=SMALL, color=FAINT)
    axes.text(100 * SHARED + 2, -0.9, "shared storage", va="center", fontsize=SMALL, color=FAINT)
    for y, key in enumerate(measures):  # above its marks, because a phone has no room beside them
        axes.text(LIMITS[0] + 1, y - 0.4, MEASURES[key], va="center", fontsize=SMALL)
        axes.vlines(0, y - 0.22, y + 0.3, color=INK, linewidth=0.8, zorder=1)
    axes.set_xlabel("in common, % of what shared storage would show")
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    return Drawing(figure, {"shares": "; ".join(descriptions)})


def _draw_share(axes, y, share, look):
    """Draw a share with its interval, with arrows where they leave the scale; return its mark."""
    low, center, high = np.clip([100 * share.low, 100 * share.estimate, 100 * share.high], *LIMITS)
    axes.hlines(y, low, high, color=look.color)
    (mark,) = axes.plot(center, y, look.marker, color=look.color, clip_on=False)
    for end, arrow in ((low, "<"), (high, ">")):
        if end in LIMITS:
            axes.plot(end, y, arrow, color=look.color, markersize=4, clip_on=False)
    if center in LIMITS:
        is_left = share.estimate < 0
        style = {"ha": "left" if is_left else "right", "va": "center", "fontsize": SMALL, "color": look.color}
        style["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.text(center + (4 if is_left else -4), y, percent(share.estimate), **style)
    return mark
