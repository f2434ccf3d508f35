"""Do forward and reverse memories of a concept look alike? By layer, and by retrieval."""

from typing import NamedTuple

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..memory.vocabulary import BASE, CONCEPTS, HEADLINE, IN_ONE_SPACE, PEAK
from .style import FAINT, RULE, Drawing, blank, looks, nothing, offsets, percent, styled, titled

SIGNIFICANT = 0.05
COMPARED = dict(zip(IN_ONE_SPACE, ("names", "descriptions", "keys of a fact", "values of a fact"), strict=True))
# The same values and the keys that they were sought from.
WITHIN = {"name": "within reverse: projected key × value", "description": "within forward: projected key × value"}
NO_FACTS = "Too few facts have keys and values in both directions."


class Run(NamedTuple):
    """A model, fine-tuned or before it: how it is drawn, and its rows of a table."""

    label: str
    look: NamedTuple
    tuned: bool
    rows: pd.DataFrame


def runs(table, models):
    """The `Run`s of a table: each model with its first seed, then the bases."""
    seeds = sorted({stage for stage in table.stage if stage != BASE}, key=lambda stage: int(stage.split("_")[-1]))
    found = []
    for stage in [*seeds[:1], BASE]:
        for name, look in looks(models).items():
            rows = table[(table.model == name) & (table.stage == stage)]
            if len(rows):
                label = look.label if stage != BASE else f"{look.label} before fine-tuning"
                found.append(Run(label, look, stage != BASE, rows))
    return found


def absent(found, models):
    """Words about models whose facts were too few to compare."""
    there = {run.look.label for run in found if run.tuned}
    return [f"{look.label}: too few facts" for look in looks(models).values() if look.label not in there]


def at_peak(rows):
    """A run's rows at the layers where its MLPs matter most, or, where nothing was traced, at the middle layer."""
    layers = list(dict.fromkeys(rows.layer.astype(str)))
    layer = PEAK if PEAK in layers else layers[len(layers) // 2]
    return rows[rows.layer.astype(str) == layer]


def layers_of(rows):
    """In words: the layers that rows are from, forward and in reverse."""
    ahead, back = rows.layer_forward.iloc[0], rows.layer_reverse.iloc[0]
    return f"layer {ahead}" if ahead == back else f"layers {ahead} and {back}"


def short(name):
    """A comparison or a space in few letters: W·key is a key times the down-projection."""
    for long, brief in (("projected key", "W·key"), ("forward", "fwd"), ("reverse", "rev")):
        name = name.replace(long, brief)
    return name


@styled
def symmetry_layers(table, *, models):
    """The named tests layer by layer, a panel a concept, each model with its interval and what chance gives.

    A filled mark is a test that chance does not explain; the dashed line is a key and the value of its own direction.
    """
    table = table[(table.statistic == HEADLINE) & (table.layer.astype(str) != PEAK)]
    found = runs(table, models)
    if not found:
        return nothing(NO_FACTS)
    figure = blank(260)
    panels = figure.subplots(1, len(CONCEPTS), sharey=True)
    used, counts = {}, []
    for axes, (what, pair) in zip(panels, CONCEPTS.items(), strict=True):
        for run, shift in zip(found, offsets(len(found), 0.12), strict=True):
            rows = run.rows.assign(layer=run.rows.layer.astype(int)).sort_values("layer")
            _course(axes, rows[rows.comparison == pair], run, shift, used)
            within = rows[rows.comparison == WITHIN[what]]
            if run.tuned:
                how = {"color": run.look.color, "linestyle": (0, (4, 2)), "linewidth": 0.9, "alpha": 0.7}
                used[f"{run.label}, within one direction"] = axes.plot(within.layer, within.value, **how)[0]
        axes.axhline(0, color=RULE, linewidth=0.8, zorder=0)
        titled(axes, f"{what}s", short(pair.split(": ")[-1]))
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    panels[0].set_ylabel("debiased CKA")
    for run in found:
        named = run.rows[run.rows.p_adjusted.notna()]
        counts.append(f"{run.label} {(named.p_adjusted < SIGNIFICANT).sum()} of {len(named)}")
    used |= {words: Line2D([], [], linestyle="none") for words in absent(found, models)}
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"significant": ", ".join(absent(found, models) + counts)})


def _course(axes, rows, run, shift, used):
    """One test of one run over the layers: estimates with intervals, filled where chance is ruled out."""
    color, x = run.look.color, rows.layer + shift
    axes.vlines(x, rows.ci_low, rows.ci_high, color=color, linewidth=1.1, alpha=0.9 if run.tuned else 0.4)
    axes.plot(x, rows.value, color=color, linestyle="-" if run.tuned else ":", linewidth=1.2)
    clear = rows.p_adjusted < SIGNIFICANT
    mark = {"linestyle": "none", "marker": run.look.marker, "markersize": 5, "color": color}
    axes.plot(x[clear], rows.value[clear], **mark)
    axes.plot(x[~clear], rows.value[~clear], markerfacecolor="white", **mark)
    used["chance"] = axes.plot(x, rows.null_mean, "_", color=FAINT, markersize=7)[0]
    line = {"linestyle": "-" if run.tuned else ":", "markerfacecolor": "white"}
    used[run.label] = Line2D([], [], color=color, marker=run.look.marker, markersize=5, **line)
    used[f"p < {SIGNIFICANT}, adjusted for tests and layers"] = Line2D(
        [], [], color=FAINT, marker="o", linestyle="none"
    )


def _facts(rows):
    return _number(int(rows.n.min()), int(rows.n.max()))


def _number(fewest, most):
    return f"{most} facts" if fewest == most else f"{fewest} to {most} facts"


@styled
def symmetry_retrieval(table, *, models):
    """Is a fact's partner among the k nearest? A panel a pair of representations, each model with its interval."""
    pairs = [pair for pair in COMPARED if pair in set(table.comparison)]
    found = runs(table, models)
    if not pairs or not found:
        return nothing(NO_FACTS)
    figure = blank(320)
    grid = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    used, firsts = {}, []
    for axes, pair in zip(grid, pairs, strict=False):
        chances = set()
        for run in found:
            rows = at_peak(run.rows)
            own = rows[rows.comparison == pair]
            share = 0.15 if run.tuned else 0.07
            axes.fill_between(
                own.k, 100 * own.ci_low, 100 * own.ci_high, color=run.look.color, alpha=share, linewidth=0
            )
            line = {"linestyle": run.look.line} if run.tuned else {"linestyle": (0, (1, 1)), "markerfacecolor": "white"}
            how = {"color": run.look.color, "marker": run.look.marker, "markersize": 4, "linewidth": 1.4, **line}
            used[f"{run.label}, {layers_of(rows)}, {_facts(rows)}"] = axes.plot(own.k, 100 * own.value, **how)[0]
            if run.tuned:
                firsts.append(f"{COMPARED[pair]}, {run.label} {percent(own[own.k == 1].value.mean())}")
                chances.add(tuple(zip(own.k, 100 * own.chance, strict=True)))
        for chance in filter(None, chances):  # models with fewer facts have fewer candidates
            used["chance"] = axes.plot(*zip(*chance, strict=True), color=FAINT, linestyle="-.", linewidth=1)[0]
        titled(axes, COMPARED[pair], short(pair.split(": ")[-1]))
        axes.set_ylim(-3, 103)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes in grid[len(pairs) :]:
        axes.axis("off")
    for axes in grid[::2]:
        axes.set_ylabel("partner found, %")
    for axes in grid[2:]:
        axes.set_xlabel("among the k nearest")
    used |= {words: Line2D([], [], linestyle="none") for words in absent(found, models)}
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"first": "; ".join(firsts), "chance": percent(table[table.k == 1].chance.mean())})
