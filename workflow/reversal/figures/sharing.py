"""One memory or two: how much of a rewritten fact reaches its reverse, and whether both pull at the same weights."""

import re

from .style import FAINT, INK, PALE, Drawing, blank, looks, nothing, offsets, percent, styled

# What is asked after a lesson, and the answer by which it is read: of the inversion the new one, since the old answer
# falls there only when another overtakes it.
ASKED = {
    ("same", "new"): "same question, other words",
    ("inverted", "new"): "control: reverse derived from\nforward answers (one memory)",
    ("other", "old"): "reverse question, old answer",
    ("other", "new"): "reverse question, new answer",
}
REWRITTEN = {"p2d": "rewritten: person → description", "d2p": "rewritten: description → person"}
PARTS = ("attention", "mlp")


@styled
def one_memory(rewriting, gradients, *, models):
    """Above, the share of a lesson that carries over, by model and direction; below, cosines of gradients by layer."""
    chosen = rewriting[(rewriting.lesson == "rewrite") & (rewriting.weights == "all") & (rewriting.steps == "learnt")]
    chosen = chosen[(chosen.about == "difference") & (chosen.stage != "base")]
    names = [name for name in models if name in set(chosen.model)]
    if not names:
        return nothing("No fact was rewritten.")
    group = chosen.group.iloc[0]
    chosen = chosen[(chosen.group == group) & (chosen.seed == chosen.seed.min())]
    directions = [direction for direction in REWRITTEN if direction in set(chosen.rewritten)]
    figure = blank(330)
    above, below = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    handles, said = {}, []
    for axes, direction in zip(_row(above, len(directions), sharey=True), directions, strict=True):
        rows = chosen[chosen.rewritten == direction].set_index(["model", "asked", "answer"])
        said += _carried(axes, rows, names, looks(models), handles)
        axes.set_title(REWRITTEN[direction])
    above.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    own = gradients[(gradients.stage != "base") & (gradients.group == group) & (gradients.rewritten == directions[0])]
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
    for x, label in ((0, "two memories"), (100, "one memory")):
        axes.axvline(x, color=FAINT, linewidth=0.8, linestyle=":")
        axes.annotate(
            label, (x, 1), (0, -1), ("data", "axes fraction"), "offset points", color=FAINT, ha="center", va="top"
        )
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
    axes.set(xlabel="share of the change that carries over, %", ylim=(len(ASKED) - 0.5, -0.9), xlim=(-15, 122))
    axes.set_yticks(range(len(ASKED)), ASKED.values())
    axes.grid(axis="x", color=PALE)
    return said


def _cosines(axes, rows, look, handles):
    """By layer, how much more a fact's forward gradient is like its own than like others'."""
    for kind, marker in zip(PARTS, ("o", "^"), strict=True):
        for against, fill, label in (
            ("forward", True, "same question, other words"),
            ("reverse", False, "reverse question"),
        ):
            some = rows[rows.part.str.fullmatch(rf"{kind} \d+") & (rows.against == against)]
            layers = [int(re.search(r"\d+", part)[0]) for part in some.part]
            color = look.color if fill else INK
            axes.vlines(layers, some.ci_low, some.ci_high, color=color, linewidth=0.8)
            (handles[f"{'MLP' if kind == 'mlp' else kind}: {label}"],) = axes.plot(
                layers,
                some.value,
                marker=marker,
                color=color,
                markerfacecolor=color if fill else "white",
                linewidth=0.8,
            )
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set(title=f"{look.label}: are a fact's gradients alike?", xlabel="layer")
    axes.grid(axis="y", color=PALE)
