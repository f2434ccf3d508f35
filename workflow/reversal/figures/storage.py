"""One memory or two: what rewriting carries over, whether both questions pull at the same weights, and all evidence."""

import numpy as np

from ..storage.evidence import ONE, TWO, pooled_share
from ..storage.vocabulary import BASE, LEARNT, mainly_trained
from .style import (
    FAINT,
    INK,
    LIGHT_BLUE,
    LIGHT_ORANGE,
    NARROW,
    PALE,
    SMALL,
    Drawing,
    blank,
    looks,
    nothing,
    number,
    offsets,
    percent,
    styled,
)

# What is asked after a lesson, and the answer by which it is read; under each reading of the reverse question what it
# would be, had both directions one memory by construction: a reverse that is derived from the forward answers.
ASKED = {
    ("same", "old"): "same question, other words",
    ("other", "old"): "reverse, old answer",
    ("inverted", "old"): "(if one memory)",
    ("other", "new"): "reverse, new answer",
    ("inverted", "new"): "(if one memory)",
}
REWRITTEN = {"p2d": "taught anew: person → description", "d2p": "taught anew: description → person"}
PULLS = {"forward": "same question, other words", "reverse": "reverse question"}


@styled
def one_memory(rewriting, gradients, *, models):
    """Above, how much of a lesson carries over; below, whether a fact's gradients are alike; a column a direction."""
    chosen = rewriting[(rewriting.lesson == "rewrite") & (rewriting.weights == mainly_trained(rewriting.weights))]
    chosen = chosen[(chosen.steps == LEARNT) & (chosen.about == "difference") & (chosen.stage != BASE)]
    names = [name for name in models if name in set(chosen.model)]
    if not names:
        return nothing("No fact was rewritten.")
    group, seed = chosen.group.iloc[0], chosen.seed.min()
    chosen = chosen[(chosen.group == group) & (chosen.seed == seed)]
    pulls = gradients[(gradients.stage != BASE) & (gradients.group == group) & (gradients.seed == seed)]
    pulls = pulls[pulls.part == "all"]
    directions = [direction for direction in REWRITTEN if direction in set(chosen.rewritten)]
    figure = blank(320)
    grid = figure.subplots(2, len(directions), squeeze=False, sharey="row", sharex="row", height_ratios=(1.7, 1))
    handles, said = {}, []
    for (above, below), direction in zip(grid.T, directions, strict=True):
        rows = chosen[chosen.rewritten == direction].set_index(["model", "asked", "answer"])
        shares = rows[["transfer", "transfer_low", "transfer_high"]] * 100
        told = _dots(above, shares, ASKED, names, looks(models), handles)
        said.append(f"{REWRITTEN[direction]}: " + ", ".join(f"{who} {percent(share / 100)}" for who, share in told))
        above.set(title=REWRITTEN[direction], xlabel="carries over, % of the change")
        rows = pulls[pulls.rewritten == direction].set_index(["model", "against"])[["value", "ci_low", "ci_high"]]
        told = _dots(below, rows, PULLS, names, looks(models), handles)
        said += [f"gradients, {who} {number(cosine, 2)}" for who, cosine in told]
        below.set_xlabel("cosine of gradients, own less others'")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    return Drawing(figure, {"carried": "; ".join(said)})


def _dots(axes, rows, asked, names, look, handles):
    """Estimates with intervals, the columns of `rows`, a place for each of `asked`: [(who and what, estimate), …]."""
    said = []
    axes.axvline(0, color=FAINT, linewidth=0.8)
    for name, shift in zip(names, offsets(len(names), 0.3), strict=True):
        for y, (key, what) in enumerate(asked.items()):
            at = (name, *key) if isinstance(key, tuple) else (name, key)
            if at not in rows.index:
                continue
            estimate, low, high = rows.loc[at]
            axes.hlines(y + shift, low, high, color=look[name].color)
            (mark,) = axes.plot(estimate, y + shift, look[name].marker, color=look[name].color)
            if "inverted" in key:
                mark.set_markerfacecolor("white")
            else:
                handles[look[name].label] = mark
            said.append((f"{look[name].label}, {' '.join(what.split())}", estimate))
    axes.set_ylim(len(asked) - 0.5, -0.5)
    axes.set_yticks(range(len(asked)), asked.values())
    axes.grid(axis="x", color=PALE)
    return said


# What is on the summary's rows.
MEASURED = {
    ("rewriting", "p2d"): "rewriting person → description",
    ("rewriting", "d2p"): "rewriting description → person",
    ("gradients", "p2d"): "gradients, asked for the description",
    ("gradients", "d2p"): "gradients, asked for the name",
    ("symmetry", "name"): "names: MLP output and value",
    ("symmetry", "description"): "descriptions: MLP output and value",
    ("symmetry", "state of name"): "names: states, layer of the values",
    ("symmetry", "state of description"): "descriptions: states, layer of the values",
    ("symmetry", "last state of name"): "names: states, last layer read",
    ("symmetry", "last state of description"): "descriptions: states, last layer read",
    ("edits", "forward"): "rank-one edit of the forward question",
}


LIMITS = (-60, 120)  # of the scale, in percent


@styled
def memories(table, *, models):
    """All evidence on one scale, a row a measure, a mark a model: 0 for two memories, 1 for one."""
    rows = [key for key in MEASURED if key in set(zip(table.kind, table.what, strict=True))]
    names = [name for name in models if name in set(table.model)]
    if not rows or not names:
        return nothing("Nothing tells one memory from two.")
    figure = blank(33 * len(rows) + 90, NARROW)
    axes = figure.subplots()
    axes.axvspan(-100, 100 * TWO, color=LIGHT_ORANGE, alpha=0.45, linewidth=0)
    axes.axvspan(100 * ONE, 1000, color=LIGHT_BLUE, alpha=0.6, linewidth=0)
    handles, said = {}, []
    for name, shift in zip(names, offsets(len(names), 0.24), strict=True):
        look, own = looks(models)[name], table[table.model == name].groupby(["kind", "what"])
        for y, key in enumerate(rows):
            if key not in own.groups:
                continue
            (share, *ends), said_of_it = pooled_share(own.get_group(key))
            blind = said_of_it == "blind"
            if not blind:
                low, center, high = np.clip([100 * ends[0], 100 * share, 100 * ends[1]], *LIMITS)
                axes.hlines(y + shift, low, high, color=look.color)
                (handles[look.label],) = axes.plot(center, y + shift, look.marker, color=look.color, clip_on=False)
                for end, marker in ((low, "<"), (high, ">")):
                    if end in LIMITS:  # it goes on outside
                        axes.plot(end, y + shift, marker, color=look.color, markersize=4, clip_on=False)
                if center in LIMITS:
                    how = {"ha": "left" if share < 0 else "right", "fontsize": SMALL, "color": look.color}
                    how["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                    axes.text(center + (4 if share < 0 else -4), y + shift, percent(share), va="center", **how)
            else:
                how = {"va": "center", "fontsize": SMALL, "color": FAINT}
                axes.text(LIMITS[0] + 1, y + shift, f"{look.label}: cannot tell", **how)
            said.append(f"{look.label}, {MEASURED[key]}: {'unknown' if blind else percent(share)}")
    axes.axvline(100, color=INK, linewidth=0.8, linestyle=":")
    axes.set(xlim=LIMITS, ylim=(len(rows) - 0.6, -1.1), yticks=[])
    axes.text(LIMITS[0] + 1, -0.9, "two memories", va="center", fontsize=SMALL, color=FAINT)
    axes.text(100 * ONE + 2, -0.9, "one memory", va="center", fontsize=SMALL, color=FAINT)
    for y, key in enumerate(rows):  # above its marks, where a phone has room
        axes.text(LIMITS[0] + 1, y - 0.4, MEASURED[key], va="center", fontsize=SMALL)
        axes.vlines(0, y - 0.22, y + 0.3, color=INK, linewidth=0.8, zorder=1)
    axes.set_xlabel("in common, % of what one memory would show")
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    return Drawing(figure, {"shares": "; ".join(said)})
