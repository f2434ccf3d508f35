"""Do forward and reverse memories of a concept look alike? PCA, spectra, statistics by layer, retrieval."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..memory.vocabulary import BASE, IN_ONE_SPACE, PEAK
from .style import (
    BLUE,
    FAINT,
    GREEN,
    HEAT,
    PALE,
    RULE,
    SMALL,
    VERMILLION,
    Drawing,
    blank,
    ink_on,
    looks,
    nothing,
    percent,
    styled,
    titled,
)

STATISTICS = {"debiased_cka": "debiased CKA", "rsa": "RSA", "retrieval_at_1": "retrieval@1"}
SIGNIFICANT = 0.05
COMPARED = dict(zip(IN_ONE_SPACE, ("names", "descriptions", "keys of a fact", "values of a fact"), strict=True))
SPACES = {"key": (BLUE, "o"), "projected key": (GREEN, "^"), "value": (VERMILLION, "s")}
MOST_LABELLED = 8  # layers whose cells have room for a number
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
def symmetry_pca(table, *, models):
    """The same facts twice in one plane, pairs joined: a row a model, a column a pair of representations."""
    tuned = [run for run in runs(table, models) if run.tuned]
    columns = [pair for pair in COMPARED if pair in set(table.comparison)]
    if not tuned or not columns:
        return nothing(NO_FACTS)
    figure = blank(130 * len(tuned) + 60)
    grid = figure.subplots(len(tuned), len(columns), squeeze=False)
    facts, handles = 0, []
    for axes_row, run in zip(grid, tuned, strict=True):
        rows = at_peak(run.rows)
        facts = max(facts, rows.fact.nunique())
        for axes, pair in zip(axes_row, columns, strict=True):
            handles = _pairs(axes, rows[rows.comparison == pair]) or handles
        fewest, most = rows.groupby("comparison").fact.nunique().agg(["min", "max"])
        axes_row[0].set_ylabel(f"{run.label}, {_number(fewest, most)}\n{layers_of(rows)}")
    for axes, pair in zip(grid[0], columns, strict=True):
        titled(axes, COMPARED[pair], short(pair.split(": ")[-1]))
    figure.legend(handles, ["first of the pair", "second of the pair"], loc="outside lower center", ncols=2)
    return Drawing(figure, {"facts": facts, "models": " and ".join(run.label for run in tuned)})


def _pairs(axes, rows):
    """Points of both sides, each fact's two joined; shares of the variance along the axes."""
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")
    if rows.empty:
        axes.axis("off")
        return None
    sides = list(dict.fromkeys(rows.side))
    first, second = (rows[rows.side == side].set_index("fact")[["x", "y"]] for side in (sides[0], sides[-1]))
    both = first.merge(second, left_index=True, right_index=True, suffixes=("", "_2"))
    axes.plot([both.x, both.x_2], [both.y, both.y_2], color=RULE, linewidth=0.6, zorder=1)
    shares = f"PC1 {percent(rows.x_share.iloc[0])}, PC2 {percent(rows.y_share.iloc[0])}"
    axes.set_xlabel(shares, fontsize=SMALL, labelpad=2)
    hollow = {"markersize": 4, "markerfacecolor": "none"}
    return [
        *axes.plot(first.x, first.y, "o", color=BLUE, markersize=3.5),
        *axes.plot(second.x, second.y, "s", color=VERMILLION, **hollow),
    ]


@styled
def symmetry_spectra(table, *, models):
    """How many directions the facts of a space take: the variance that its first components hold, a panel a model."""
    found = runs(table, models)
    if not found:
        return nothing(NO_FACTS)
    down = -(-len(found) // 2)
    figure = blank(215 * down)
    grid = figure.subplots(down, min(2, len(found)), squeeze=False, sharex=True, sharey=True)
    ranks = []
    for axes, run in zip(grid.flat, found, strict=False):
        rows = at_peak(run.rows)
        for space, own in rows.groupby("space", sort=False):
            rank = own.effective_rank.iloc[0]
            kind, way = space.rsplit(" ", 1)
            color, marker = SPACES[kind]
            how = {"color": color, "marker": marker, "markersize": 4, "markevery": max(1, len(own) // 6)}
            line = "-" if way == "forward" else "--"
            label = f"{short(space)} ({rank:.1f})"
            axes.plot(own.component, 100 * own.cumulative, linestyle=line, linewidth=1.3, label=label, **how)
            ranks += [f"{space} {rank:.1f}"] if run is found[0] else []
        titled(axes, run.label, f"{layers_of(rows)}, {_facts(rows)}")
        axes.set_ylim(0, 103)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.legend(loc="lower right", title="space (effective rank)", title_fontsize=SMALL, handlelength=2.6)
    for axes in grid.flat[len(found) :]:
        axes.axis("off")
    for axes in grid[-1]:
        axes.set_xlabel("principal components")
    for axes in grid[:, 0]:
        axes.set_ylabel("variance held, %")
    return Drawing(figure, {"model": found[0].label, "ranks": ", ".join(ranks)})


@styled
def symmetry_layers(table, *, models):
    """Each statistic of each comparison, layer by layer, on one colour scale; a star where chance is ruled out."""
    table = table[table.statistic.isin(list(STATISTICS)) & table.p_adjusted.notna()]
    found = runs(table, models)
    if not found:
        return nothing(NO_FACTS)
    labels = set(table.layer.astype(str))
    layers = [*sorted(labels - {PEAK}, key=int), *(labels & {PEAK})]
    pairs = {run.label: list(dict.fromkeys(run.rows.comparison)) for run in found}
    statistics = [statistic for statistic in STATISTICS if statistic in set(table.statistic)]
    low, high = min(0.0, table.value.min()), max(table.value.max(), 1e-6)
    heights = [len(some) for some in pairs.values()]
    height = 12.5 * sum(heights) + 26 * len(found) + 80
    figure = blank(height)
    grid = figure.subplots(len(found), len(statistics), squeeze=False, sharey="row", height_ratios=heights)
    for axes_row, run in zip(grid, found, strict=True):
        for axes, statistic in zip(axes_row, statistics, strict=True):
            rows = run.rows[run.rows.statistic == statistic]
            image = _matrix(axes, rows, pairs[run.label], layers, low, high)
        axes_row[0].set_yticks(range(len(pairs[run.label])), [short(pair) for pair in pairs[run.label]])
        where = {"xycoords": "axes fraction", "textcoords": "offset points"}
        title = f"{run.label}, {_facts(run.rows)}"
        axes_row[0].annotate(title, (0, 1), (-4, 4), **where, ha="right", weight="bold")
    for axes, statistic in zip(grid[0], statistics, strict=True):
        axes.set_title(STATISTICS[statistic])
    for axes in grid[-1]:
        axes.set_xlabel("layer", labelpad=1)
    bar = figure.colorbar(image, ax=grid, orientation="horizontal", aspect=60, fraction=9 / height, pad=14 / height)
    bar.set_label(";  ".join(["value", f"* p < {SIGNIFICANT} after Holm's correction", *absent(found, models)]))
    bar.outline.set_visible(False)
    counts = absent(found, models) + [
        f"{run.label} {(run.rows.p_adjusted < SIGNIFICANT).sum()} of {len(run.rows)}" for run in found
    ]
    return Drawing(figure, {"significant": ", ".join(counts)})


def _matrix(axes, rows, pairs, layers, low, high):
    """Comparisons by layers: values where there is room, and stars."""
    rows = rows.assign(layer=rows.layer.astype(str))
    values, p_values = (
        rows.pivot_table(index="comparison", columns="layer", values=what).reindex(pairs, columns=layers).to_numpy()
        for what in ("value", "p_adjusted")
    )
    axes.set_facecolor(PALE)
    image = axes.imshow(values, cmap=HEAT, vmin=low, vmax=high, aspect="auto")
    for i, j in np.argwhere(np.isfinite(values)):
        star = "*" if p_values[i, j] < SIGNIFICANT else ""
        text = f"{_brief(values[i, j])}{star}" if len(layers) <= MOST_LABELLED else star
        axes.text(j, i, text, ha="center", va="center", fontsize=SMALL, color=ink_on(image.to_rgba(values[i, j])))
    last, every = len(layers) - 1, math.ceil(len(layers) / MOST_LABELLED)
    shown = [i for i in range(0, last, every) if last - i >= every] + [last]
    axes.set_xticks(shown, [layers[i] for i in shown])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return image


def _facts(rows):
    return _number(int(rows.n.min()), int(rows.n.max()))


def _number(fewest, most):
    return f"{most} facts" if fewest == most else f"{fewest} to {most} facts"


def _brief(value):
    """Two decimals, and no zero before the point."""
    return f"{round(value, 2) + 0:.2f}".replace("0.", ".", 1).replace("-", "−")


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
