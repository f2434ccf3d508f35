"""One memory or two: what rewriting carries over, whether both questions pull at the same weights, and all evidence."""

import numpy as np
from matplotlib.lines import Line2D

from ..memory.evidence import ONE, TWO
from ..memory.vocabulary import BASE, LEARNT
from .style import (
    FAINT,
    INK,
    LIGHT_BLUE,
    LIGHT_ORANGE,
    PALE,
    SMALL,
    Drawing,
    blank,
    looks,
    nothing,
    offsets,
    percent,
    styled,
)

# What is asked after a lesson, and the answer by which it is read. The old answer's loss is this person's alone; but in
# the inversion it falls only when another overtakes it, so that there the new answer tells.
ASKED = {
    ("same", "old"): "same question, other words",
    ("inverted", "new"): "control: one memory by construction\n(reverse derived from forward answers)",
    ("other", "old"): "reverse question, old answer",
    ("other", "new"): "reverse question, new answer",
}
REWRITTEN = {"p2d": "rewritten: person → description", "d2p": "rewritten: description → person"}
PARTS = {"attention": "o", "mlp": "^"}
NAMES = {"attention": "attention", "mlp": "MLP"}


@styled
def one_memory(rewriting, gradients, *, models):
    """Above, the share of a lesson that carries over, by model and direction; below, cosines of gradients by layer."""
    chosen = rewriting[(rewriting.lesson == "rewrite") & (rewriting.weights == "all") & (rewriting.steps == LEARNT)]
    chosen = chosen[(chosen.about == "difference") & (chosen.stage != BASE)]
    names = [name for name in models if name in set(chosen.model)]
    if not names:
        return nothing("No fact was rewritten.")
    group = chosen.group.iloc[0]
    chosen = chosen[(chosen.group == group) & (chosen.seed == chosen.seed.min())]
    directions = [direction for direction in REWRITTEN if direction in set(chosen.rewritten)]
    figure = blank(330)
    above, below = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    handles, said = {}, []
    for axes, direction in zip(_row(above, len(directions), sharey=True, sharex=True), directions, strict=True):
        rows = chosen[chosen.rewritten == direction].set_index(["model", "asked", "answer"])
        said += _carried(axes, rows, names, looks(models), handles)
        axes.set_title(REWRITTEN[direction])
    above.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    own = gradients[(gradients.stage != BASE) & (gradients.group == group) & (gradients.rewritten == directions[0])]
    handles = {}
    for axes, name in zip(_row(below, len(names), sharey=True), names, strict=True):
        rows = own[(own.model == name) & (own.seed == own[own.model == name].seed.min())]
        _cosines(axes, rows, looks(models)[name], handles)
    below.axes[0].set_ylabel("cosine, own less others")
    below.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"carried": "; ".join(said)})


def _row(part, count, **how):
    return part.subplots(1, count, squeeze=False, **how)[0]


def _carried(axes, rows, names, look, handles):
    """Dots with intervals: nothing carries over at 0, everything at 100%."""
    said = []
    axes.axvline(0, color=FAINT, linewidth=0.8)
    for name, shift in zip(names, offsets(len(names), 0.3), strict=True):
        for y, (asked, what) in enumerate(ASKED.items()):
            if (name, *asked) not in rows.index:
                continue
            found = rows.loc[(name, *asked)]
            axes.hlines(y + shift, 100 * found.carry_low, 100 * found.carry_high, color=look[name].color)
            (handles[look[name].label],) = axes.plot(
                100 * found.carry_over, y + shift, look[name].marker, color=look[name].color
            )
            said.append(f"{look[name].label}, {' '.join(what.split())}: {percent(found.carry_over)}")
    axes.set(xlabel="carries over, % of the change", ylim=(len(ASKED) - 0.5, -0.5))
    axes.set_yticks(range(len(ASKED)), ASKED.values())
    axes.grid(axis="x", color=PALE)
    return said


def _cosines(axes, rows, look, handles):
    """By layer, how much more a fact's forward gradient is like its own than like others'."""
    for kind, marker in PARTS.items():
        for against, label in (("forward", "same question, other words"), ("reverse", "reverse question")):
            some = rows[rows.part.str.fullmatch(rf"{kind} \d+") & (rows.against == against)]
            layers = [int(part.split()[-1]) for part in some.part]
            fill, line = (look.color, "-") if against == "forward" else ("white", ":")
            axes.vlines(layers, some.ci_low, some.ci_high, color=look.color, linewidth=0.8)
            axes.plot(layers, some.value, marker + line, color=look.color, markerfacecolor=fill, linewidth=0.8)
            handles[f"{NAMES[kind]}: {label}"] = Line2D(
                [], [], marker=marker, linestyle=line, color=INK, markerfacecolor=INK if line == "-" else "white"
            )
    axes.set_xticks(layers)
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set(title=f"{look.label}: are a fact's gradients alike?", xlabel="layer")
    axes.grid(axis="y", color=PALE)


# What is on the summary's rows.
MEASURED = {
    ("rewriting", "p2d"): "rewriting person → description",
    ("rewriting", "d2p"): "rewriting description → person",
    ("gradients", "p2d"): "gradients, asked for the description",
    ("gradients", "d2p"): "gradients, asked for the name",
    ("symmetry", "name"): "names: MLP output and value",
    ("symmetry", "description"): "descriptions: MLP output and value",
    ("symmetry", "state of name"): "names: states as subject and answer",
    ("symmetry", "state of description"): "descriptions: states as subject and answer",
    ("edits", "forward"): "rank-one edit of the forward question",
}


@styled
def memories(table, *, models):
    """All evidence on one scale, a row a measure, a mark a model: 0 for two memories, 1 for one."""
    rows = [key for key in MEASURED if key in set(zip(table.kind, table.what, strict=True))]
    names = [name for name in models if name in set(table.model)]
    if not rows or not names:
        return nothing("Nothing tells one memory from two.")
    figure = blank(22 * len(rows) + 90)
    axes = figure.subplots()
    axes.axvspan(-100, 100 * TWO, color=LIGHT_ORANGE, alpha=0.45, linewidth=0)
    axes.axvspan(100 * ONE, 1000, color=LIGHT_BLUE, alpha=0.6, linewidth=0)
    handles, said = {}, []
    for name, shift in zip(names, offsets(len(names), 0.3), strict=True):
        look, own = looks(models)[name], table[table.model == name].groupby(["kind", "what"])
        for y, key in enumerate(rows):
            if key not in own.groups:
                continue
            found = own.get_group(key)
            share = 100 * found.share.mean()
            blind = (found.verdict == "blind").any() or np.isnan(share)
            if not blind:
                axes.hlines(y + shift, 100 * found.share_low.min(), 100 * found.share_high.max(), color=look.color)
                (handles[look.label],) = axes.plot(share, y + shift, look.marker, color=look.color)
            else:
                axes.text(
                    3, y + shift, f"{look.label}: could not have been seen", va="center", fontsize=SMALL, color=FAINT
                )
            said.append(f"{look.label}, {MEASURED[key]}: {'unknown' if blind else percent(share / 100)}")
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.axvline(100, color=INK, linewidth=0.8, linestyle=":")
    ends = table[table.verdict != "blind"][["share_low", "share_high"]].to_numpy(float)
    low, high = (100 * end for end in (min([-0.1, *_finite(ends)]), max([1.1, *_finite(ends)])))
    axes.set(xlim=(max(low, -60), min(high, 160)), ylim=(len(rows) - 0.4, -0.9))
    axes.text(100 * TWO - 2, -0.7, "two memories", ha="right", va="center", fontsize=SMALL, color=FAINT)
    axes.text(100 * ONE + 2, -0.7, "one memory", ha="left", va="center", fontsize=SMALL, color=FAINT)
    axes.set_xlabel("in common, % of what one memory would show")
    axes.set_yticks(range(len(rows)), [MEASURED[key] for key in rows])
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    return Drawing(figure, {"shares": "; ".join(said)})


def _finite(ends):
    return ends[np.isfinite(ends)]
