"""Do forward and reverse memories of a concept look alike? PCA, spectra, statistics by layer, retrieval."""

import numpy as np
from matplotlib.ticker import MaxNLocator

from .style import (
    BLUE,
    FAINT,
    GREEN,
    HEAT,
    INK,
    PALE,
    PURPLE,
    RULE,
    SMALL,
    VERMILLION,
    Drawing,
    blank,
    elide,
    ink_on,
    looks,
    nothing,
    percent,
    styled,
    titled,
)

STATISTICS = {"debiased_cka": "debiased CKA", "rsa": "RSA", "retrieval_at_1": "retrieval@1"}
SIGNIFICANT = 0.05
CONCEPTS = {
    "name: projected key forward × value reverse": "names",
    "description: value forward × projected key reverse": "descriptions",
    "projected keys: forward × reverse": "keys of a fact",
    "values: forward × reverse": "values of a fact",
}
MOST_LABELLED = 8  # layers whose cells have room for a number
NO_FACTS = "Too few facts have keys and values in both directions."


def short(name):
    """A comparison or a space in few letters: W·key is a key times the down-projection."""
    for long, brief in (("projected key", "W·key"), ("forward", "fwd"), ("reverse", "rev")):
        name = name.replace(long, brief)
    return name


def _label(model, styles):
    return styles[model].label if model in styles else elide(model, 24)


def _one(table):
    """The rows of the first seed."""
    return table[table.seed == table.seed.min()] if len(table) else table


@styled
def symmetry_pca(table, *, models):
    """The same facts twice in one plane, pairs joined: a row a model, a column a pair of representations."""
    table = _one(table)
    names = list(dict.fromkeys(table.model))
    columns = [pair for pair in CONCEPTS if pair in set(table.comparison)]
    if not names or not columns:
        return nothing(NO_FACTS)
    styles = looks(models)
    figure = blank(130 * len(names) + 60)
    grid = figure.subplots(len(names), len(columns), squeeze=False)
    for axes_row, name in zip(grid, names, strict=True):
        for axes, pair in zip(axes_row, columns, strict=True):
            _pairs(axes, table[(table.model == name) & (table.comparison == pair)])
        axes_row[0].set_ylabel(_label(name, styles), weight="bold")
    for axes, pair in zip(grid[0], columns, strict=True):
        titled(axes, CONCEPTS[pair], short(pair.split(": ")[-1]))
    marks = [axes for axes in grid.flat if axes.lines]
    if marks:
        handles = marks[0].lines[-2:]
        figure.legend(handles, ["first of the pair", "second of the pair"], loc="outside lower center", ncols=2)
    facts = table.groupby(["model", "comparison"]).fact.nunique()
    return Drawing(figure, {"facts": int(facts.max()), "models": ", ".join(_label(name, styles) for name in names)})


def _pairs(axes, rows):
    """Points of both sides, each fact's two joined; shares of the variance along the axes."""
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")
    if rows.empty:
        axes.axis("off")
        return
    sides = list(dict.fromkeys(rows.side))
    first, second = (rows[rows.side == side].set_index("fact")[["x", "y"]] for side in (sides[0], sides[-1]))
    both = first.merge(second, left_index=True, right_index=True, suffixes=("", "_2"))
    axes.plot([both.x, both.x_2], [both.y, both.y_2], color=RULE, linewidth=0.6, zorder=1)
    axes.plot(first.x, first.y, "o", color=BLUE, markersize=3.5)
    axes.plot(second.x, second.y, "s", color=VERMILLION, markersize=4, markerfacecolor="none")
    x, y = rows.x_share.iloc[0], rows.y_share.iloc[0]
    axes.set_xlabel(f"PC1 {percent(x)}, PC2 {percent(y)}", fontsize=SMALL, labelpad=2)


SPACES = {"key": (BLUE, "o"), "projected key": (GREEN, "^"), "value": (VERMILLION, "s")}


@styled
def symmetry_spectra(table, *, models):
    """How many directions the facts of a space take: the variance that its first components hold, a panel a model."""
    table = _one(table)
    names = list(dict.fromkeys(table.model))
    if not names:
        return nothing(NO_FACTS)
    styles = looks(models)
    across = min(len(names), 3)
    figure = blank(250 * -(-len(names) // across))
    grid = figure.subplots(-(-len(names) // across), across, squeeze=False, sharey=True)
    ranks = {}
    for axes, name in zip(grid.flat, names, strict=False):
        for space, rows in table[table.model == name].groupby("space", sort=False):
            kind, way = space.rsplit(" ", 1)
            color, marker = SPACES[kind]
            rank = rows.effective_rank.iloc[0]
            every = max(1, len(rows) // 6)
            axes.plot(
                rows.component,
                100 * rows.cumulative,
                color=color,
                marker=marker,
                markevery=every,
                markersize=4,
                linestyle="-" if way == "forward" else "--",
                linewidth=1.3,
                label=f"{short(space)} ({rank:.1f})",
            )
            ranks.setdefault(name, []).append(f"{space} {rank:.1f}")
        axes.set_title(_label(name, styles))
        axes.set_xlabel("principal components")
        axes.set_ylim(0, 103)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.legend(loc="lower right", title="space (effective rank)", title_fontsize=SMALL, handlelength=2.6)
    for axes in grid.flat[len(names) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel("variance held, %")
    return Drawing(figure, {"model": _label(names[0], styles), "ranks": ", ".join(ranks[names[0]])})


@styled
def symmetry_layers(table, *, models):
    """Each statistic of each comparison, layer by layer, on one colour scale; a star where chance is ruled out."""
    table = _one(table)
    table = table[table.statistic.isin(list(STATISTICS)) & table.p_adjusted.notna()]
    names = list(dict.fromkeys(table.model))
    if not names:
        return nothing(NO_FACTS)
    table = table.assign(layer=table.layer.astype(int) if "layer" in table else 0)
    styles = looks(models)
    pairs, layers = list(dict.fromkeys(table.comparison)), sorted(table.layer.unique())
    statistics = [statistic for statistic in STATISTICS if statistic in set(table.statistic)]
    low, high = min(0.0, table.value.min()), max(table.value.max(), 1e-6)
    figure = blank((12.5 * len(pairs) + 34) * len(names) + 60)
    grid = figure.subplots(len(names), len(statistics), squeeze=False, sharey=True)
    for axes_row, name in zip(grid, names, strict=True):
        for axes, statistic in zip(axes_row, statistics, strict=True):
            rows = table[(table.model == name) & (table.statistic == statistic)]
            image = _matrix(axes, rows, pairs, layers, low, high)
        axes_row[0].annotate(
            _label(name, styles),
            (0, 1),
            (-4, 4),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            weight="bold",
        )
        axes_row[0].set_yticks(range(len(pairs)), [short(pair) for pair in pairs])
    for axes, statistic in zip(grid[0], statistics, strict=True):
        axes.set_title(STATISTICS[statistic])
    for axes in grid[-1]:
        axes.set_xlabel("layer", labelpad=1)
    bar = figure.colorbar(image, ax=grid, orientation="horizontal", aspect=60, fraction=0.04, pad=0.02)
    bar.set_label(f"value;  * p < {SIGNIFICANT} after Holm's correction")
    bar.outline.set_visible(False)
    found = table[table.p_adjusted < SIGNIFICANT]
    counts = [
        f"{_label(name, styles)} {(found.model == name).sum()} of {(table.model == name).sum()}" for name in names
    ]
    return Drawing(figure, {"significant": ", ".join(counts)})


def _matrix(axes, rows, pairs, layers, low, high):
    """Comparisons by layers: values where there is room, and stars."""
    grids = [
        rows.pivot_table(index="comparison", columns="layer", values=value).reindex(pairs, columns=layers).to_numpy()
        for value in ("value", "p_adjusted")
    ]
    axes.set_facecolor(PALE)
    image = axes.imshow(grids[0], cmap=HEAT, vmin=low, vmax=high, aspect="auto")
    for i, j in np.argwhere(np.isfinite(grids[0])):
        value, star = grids[0][i, j], "*" if grids[1][i, j] < SIGNIFICANT else ""
        text = f"{round(value, 2) + 0:.2f}{star}" if len(layers) <= MOST_LABELLED else star
        axes.text(j, i, text, ha="center", va="center", fontsize=SMALL, color=ink_on(image.to_rgba(value)))
    shown = [round(i) for i in np.linspace(0, len(layers) - 1, min(len(layers), MOST_LABELLED))]
    axes.set_xticks(shown, [str(layers[i]) for i in shown])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return image


@styled
def symmetry_retrieval(table, *, models):
    """Is a fact's partner among the k nearest? A panel a pair of representations, each model with its interval."""
    table = _one(table)
    pairs = [pair for pair in CONCEPTS if pair in set(table.comparison)]
    if not pairs:
        return nothing(NO_FACTS)
    styles = looks(models)
    figure = blank(300)
    grid = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    used, firsts = {}, []
    for axes, pair in zip(grid, pairs, strict=False):
        rows = table[table.comparison == pair]
        chance = rows.groupby("k").chance.mean()
        used["chance"] = axes.plot(chance.index, 100 * chance, color=FAINT, linestyle=":", linewidth=1.2)[0]
        for number, (name, own) in enumerate(rows.groupby("model", sort=False)):
            color, marker, line = _drawn_as(name, styles, number)
            axes.fill_between(own.k, 100 * own.ci_low, 100 * own.ci_high, color=color, alpha=0.13, linewidth=0)
            label = _label(name, styles)
            used[label] = axes.plot(own.k, 100 * own.value, color=color, marker=marker, linestyle=line, markersize=4)[0]
            firsts.append(f"{CONCEPTS[pair]}, {label} {percent(own.value.iloc[0])}")
        titled(axes, CONCEPTS[pair], short(pair.split(": ")[-1]))
        axes.set_ylim(-3, 103)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes in grid[len(pairs) :]:
        axes.axis("off")
    for axes in grid[::2]:
        axes.set_ylabel("partner found, %")
    for axes in grid[2:]:
        axes.set_xlabel("among the k nearest")
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=5)
    return Drawing(figure, {"first": "; ".join(firsts), "chance": percent(table[table.k == 1].chance.mean())})


def _drawn_as(model, styles, number):
    """Colour, marker and line of a model, or of a control that is no model of the study."""
    if model in styles:
        return styles[model][1:]
    return (PURPLE, GREEN, INK)[number % 3], ("^", "v", "d")[number % 3], ((0, (1, 1)), "-.", (0, (5, 1)))[number % 3]
