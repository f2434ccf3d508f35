"""How similar are the forward and the reverse representation of a concept? Where MLPs peak, and by layer."""

from typing import NamedTuple

import pandas as pd
from matplotlib.lines import Line2D

from ..storage.vocabulary import (
    BASE,
    MAIN_STATISTICS,
    PAIRS,
    PEAK,
    PRIMARY_COMPARISONS,
    PRIMARY_STATISTIC,
    SHOWN_COMPARISONS,
    STATE_COMPARISONS,
    TWO_HALVES,
)
from .style import (
    FAINT,
    GREEN,
    INK,
    NARROW,
    PURPLE,
    RULE,
    SMALL,
    Drawing,
    choose_looks,
    draw_empty,
    draw_intervals,
    new_figure,
    number,
    offsets,
    styled,
)

# The comparisons to show, and their labels.
LABELS = {
    PRIMARY_COMPARISONS["name"]: "name: MLP output × value",
    PRIMARY_COMPARISONS["description"]: "description: value × MLP output",
    **{
        f"name: {kind} at subject × at answer": f"name as subject × answer: {kind}"
        for kind in ("key", "output", "state")
    },
    **{
        f"description: {kind} at answer × at subject": f"description as answer × subject: {kind}"
        for kind in ("key", "output", "state")
    },
    **{
        f"fact: {kind} at {position}": f"{position} × {position}: {kind}"
        for position in ("subject", "answer")
        for kind in ("key", "state")
    },
}
TITLES = {"debiased_cka": "debiased CKA", "cosine_similarity": "mean cosine", "linear_probe": "linear probe"}
# {concept: (colour, the comparisons to show, the first that a run has)}
CONCEPTS = {"name": (GREEN, SHOWN_COMPARISONS[::2]), "description": (PURPLE, SHOWN_COMPARISONS[1::2])}
TOO_FEW = "Too few facts have keys and values in both directions."


class Run(NamedTuple):
    """A model before or after fine-tuning: how it is drawn, and its rows of a table."""

    model: str
    stage: str
    label: str
    look: NamedTuple
    is_tuned: bool
    rows: pd.DataFrame


def split_runs(table, models):
    """The `Run`s of a table: each model with its first seed, then the bases."""
    seeds = sorted({stage for stage in table.stage if stage != BASE}, key=lambda stage: int(stage.split("_")[-1]))
    runs = []
    for stage in [*seeds[:1], BASE]:
        for name, look in choose_looks(models).items():
            rows = table[(table.model == name) & (table.stage == stage)]
            if len(rows):
                label = look.label if stage != BASE else f"{look.label} before fine-tuning"
                runs.append(Run(name, stage, label, look, stage != BASE, rows))
    return runs


@styled
def symmetry(table, *, models):
    """Draw every comparison where MLPs peak: a panel a statistic, a row a comparison, a mark a model.

    A pale bar beyond the mark ends at the ceiling; a tick is the minimum detectable effect.
    """
    runs = [run for run in split_runs(table[table.value.notna()], models) if run.is_tuned]
    shown = [pair for pair in LABELS if any(pair in set(select_main_layer(run.rows).comparison) for run in runs)]
    if not shown:
        return draw_empty(TOO_FEW)
    figure = new_figure(15 * len(shown) * max(1, len(runs) / 2) + 110)
    panels = figure.subplots(1, len(MAIN_STATISTICS), sharey=True)
    handles, descriptions = {}, []
    for axes, statistic in zip(panels, MAIN_STATISTICS, strict=True):
        for run, shift in zip(runs, offsets(len(runs), 0.36), strict=True):
            rows = select_main_layer(run.rows)
            rows = rows[rows.statistic == statistic].drop_duplicates("comparison")
            rows = rows.set_index("comparison").reindex(shown)
            _draw_marks(axes, rows, [y + shift for y in range(len(shown))], run.look, handles)
            if statistic == PRIMARY_STATISTIC:
                values = (
                    f"{LABELS[pair]} {number(row.value, 2)} of {number(row.ceiling, 2)}"
                    for pair, row in rows.dropna(subset="value").iterrows()
                )
                descriptions.append(f"{run.label}, {', '.join(values)}")
        axes.axvline(0, color=FAINT, linewidth=0.8)
        axes.set(title=TITLES[statistic], xlim=(-0.15, 1.03), ylim=(len(shown) - 0.5, -0.5))
        axes.grid(axis="x")
    panels[0].set_yticks(range(len(shown)), [LABELS[pair] for pair in shown])
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"models": "; ".join(descriptions)})


def _draw_marks(axes, rows, y, look, handles):
    """Draw estimates with intervals, ceilings and minimum detectable effects."""
    handles["ceiling: two halves of the templates"] = axes.hlines(
        y, rows.value, rows.ceiling, color=look.color, linewidth=4, alpha=0.15
    )
    ends = [center - 0.14 for center in y], [center + 0.14 for center in y]
    axes.vlines(rows.ceiling, *ends, color=look.color, linewidth=1.2)
    handles["minimum detectable effect"] = axes.plot(rows.minimum_detectable, y, "|", color=INK, markersize=5)[0]
    axes.hlines(y, rows.ci_low, rows.ci_high, color=look.color, linewidth=1.2)
    handles[look.label] = axes.plot(rows.value, y, look.marker, color=look.color, markersize=4.5)[0]


@styled
def symmetry_layers(table, *, models):
    """Draw hidden states of a concept as subject and as answer by layer, with ceilings; a panel for each concept."""
    table = table[(table.statistic == PRIMARY_STATISTIC) & (table.layer.astype(str) != PEAK) & table.value.notna()]
    table = table[table.comparison.isin(STATE_COMPARISONS.values())]
    runs = split_runs(table, models)
    if not runs:
        return draw_empty(TOO_FEW)
    figure = new_figure(240)
    panels = figure.subplots(1, len(STATE_COMPARISONS), sharey=True)
    handles, descriptions = {}, []
    for axes, (concept, pair) in zip(panels, STATE_COMPARISONS.items(), strict=True):
        for run, shift in zip(runs, offsets(len(runs), 0.12), strict=True):
            rows = run.rows[run.rows.comparison == pair]
            rows = rows.assign(layer=rows.layer.astype(int)).sort_values("layer")
            x, color, line = rows.layer + shift, run.look.color, "-" if run.is_tuned else ":"
            style = {"color": color, "linewidth": 1.3, "linestyle": line, "marker": run.look.marker}
            style |= {"markersize": 4.5, "markerfacecolor": color if run.is_tuned else "white"}
            interval = {"linewidth": 1, "alpha": 0.7}
            handles[run.label] = draw_intervals(axes, x, rows, "value", scale=1, interval=interval, **style)
            axes.plot(x, rows.ceiling, color=color, linewidth=0.8, linestyle=line, alpha=0.5)
            if run.is_tuned and len(rows):
                low, high = number(rows.value.min(), 2), number(rows.value.max(), 2)
                descriptions.append(f"{concept}s, {run.label} {low} to {high}")
        axes.set(title=f"{concept}s", xlabel="layer", ylim=(-0.15, 1.05), xticks=sorted(set(table.layer.astype(int))))
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.grid(axis="y")
    panels[0].set_ylabel("debiased CKA of hidden states:\nas subject × as answer")
    handles["ceilings"] = Line2D([], [], color=FAINT, linewidth=0.8)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"ranges": "; ".join(descriptions)})


@styled
def symmetry_pca(points, table, *, models):
    """Draw each concept twice in shared principal components, joined by a line: a row for each run.

    The first row shows what one thing measured twice looks like: the same output from two halves of the templates.
    """
    runs = _select_shown_runs(points, models)
    if not runs:
        return draw_empty(TOO_FEW)
    rows = [(f"{runs[0].label}, one output twice", runs[0], TWO_HALVES), *((run.label, run, "") for run in runs)]
    figure = new_figure(118 * len(rows) + 50, NARROW)
    panels, described = figure.subplots(len(rows), len(CONCEPTS), squeeze=False), []
    for line, (label, run, suffix) in zip(panels, rows, strict=True):
        for axes, (concept, (color, shown)) in zip(line, CONCEPTS.items(), strict=True):
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            comparison = next((pair for pair in shown if pair + suffix in set(run.rows.comparison)), None)
            if comparison is None:
                continue
            pairs = run.rows[run.rows.comparison == comparison + suffix]
            first, second = (pairs[pairs.side == side].set_index("fact") for side in _order_sides(pairs.side.unique()))
            second = second.loc[first.index]
            axes.plot([first.x, second.x], [first.y, second.y], color=RULE, linewidth=0.6, zorder=1)
            axes.plot(first.x, first.y, "o", color=color, markersize=3, zorder=2)
            axes.plot(second.x, second.y, "o", color=color, markersize=3.2, markerfacecolor="white", zorder=2)
            found = _find_statistic(table, run, comparison, PRIMARY_STATISTIC)
            if found is not None and not suffix:
                note = f"CKA {number(found.value, 2)} of {number(found.ceiling, 2)}"
                axes.set_title(note, fontsize=SMALL, fontweight="normal", color=FAINT)
                described += [f"{label}, {concept}s {note}"]
        line[0].set_ylabel(label.replace(", ", ",\n").replace(" before", "\nbefore"), fontsize=SMALL)
    for axes, concept in zip(panels[0], CONCEPTS, strict=True):
        axes.set_title(f"{concept}s")
    style = {"color": INK, "linestyle": "", "marker": "o", "markersize": 4}
    handles = {
        "as subject: the MLP's output for its key": Line2D([], [], **style),
        "as answer: its value, or else the MLP's output": Line2D([], [], **style, markerfacecolor="white"),
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=1)
    return Drawing(figure, {"similarities": "; ".join(described)})


@styled
def symmetry_spectra(spectra, table, *, models):
    """Draw singular spectra beside the overlap of subspaces by layer and under its two nulls, a row for each run."""
    runs = _select_shown_runs(spectra, models)
    if not runs:
        return draw_empty(TOO_FEW)
    figure = new_figure(125 * len(runs) + 90, NARROW)
    panels = figure.subplots(len(runs), 2, sharex="col", sharey=True, squeeze=False)
    handles, described, overlaps = {}, [], []
    for (left, right), run in zip(panels, runs, strict=True):
        for concept, (color, shown) in CONCEPTS.items():
            spaces = dict(tuple(run.rows.groupby("space")))
            comparison = next((pair for pair in shown if set(PAIRS[pair]) <= set(spaces)), None)
            if comparison is None:
                continue
            for side, line in zip(_order_sides(PAIRS[comparison]), ("-", "--"), strict=True):
                rows = spaces[side].sort_values("component")
                left.plot(rows.component, rows.cumulative, color=color, linestyle=line, linewidth=1.2)
                described.append(f"{run.label}, {side}: effective rank {number(rows.effective_rank.iloc[0])}")
            found = _draw_overlaps(right, table, run, shown, color)
            overlaps.append(f"{run.label}, {concept}s {', '.join(number(value, 2) for value in found)}")
            handles[f"{concept}s"] = Line2D([], [], color=color)
        left.set(ylim=(0, 1.02), ylabel=run.label.replace(" before", "\nbefore"))
        for axes in (left, right):
            axes.grid(axis="y")
    panels[0, 0].set_title("variance explained")
    panels[0, 1].set_title("overlap of subspaces")
    panels[-1, 0].set_xlabel("by components 1 to …")
    panels[-1, 1].set_xlabel("layer")
    handles |= {
        "left: as subject": Line2D([], [], color=INK),
        "left: as answer": Line2D([], [], color=INK, linestyle="--"),
        "right: at the answer": Line2D([], [], color=INK, marker="o", markersize=4),
        "right: as value": Line2D([], [], color=INK, marker="D", linestyle="", markersize=4),
        "right: permuted facts": Line2D([], [], color=INK, linestyle="", marker="_", markersize=9),
        "right: random keys": Line2D([], [], color=INK, linestyle="", marker="x", markersize=5),
        "right: two halves": Line2D([], [], color=INK, linestyle=":"),
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"ranks": "; ".join(described), "overlaps": "; ".join(overlaps)})


def _draw_overlaps(axes, table, run, shown, color):
    """Draw overlaps by layer: of values as diamonds, of answers as a line, nulls and ceilings. Return the last."""
    rows = table[(table.model == run.model) & (table.stage == run.stage) & (table.statistic == "subspace_overlap")]
    rows = rows[rows.layer.astype(str) != PEAK].assign(layer=lambda rows: rows.layer.astype(int))
    shift = {GREEN: -0.15, PURPLE: 0.15}[color]
    for pair, marker in zip(shown, "Do", strict=True):
        found = rows[rows.comparison == pair].sort_values("layer")
        x = found.layer + shift + (0.4 if marker == "D" else 0)
        style = {"marker": marker, "linestyle": "" if marker == "D" else "-", "color": color, "markersize": 4}
        draw_intervals(axes, x, found, "value", scale=1, interval={"linewidth": 1}, linewidth=1.2, **style)
        axes.plot(x, found.null_mean, "_", color=INK, markersize=9)
        axes.plot(x, found.matched_mean, "x", color=INK, markersize=4)
        if marker == "o":
            axes.plot(x, found.ceiling, color=color, linewidth=0.8, linestyle=":")
    return list(found.value)


def _select_shown_runs(rows, models):
    """The fine-tuned models, and the base of the first; each with its `rows` at the layer where values are."""
    runs = split_runs(rows, models)
    tuned, bases = ([run for run in runs if run.is_tuned == is_tuned] for is_tuned in (True, False))
    shown = [*tuned[:1], *[run for run in bases if tuned and run.model == tuned[0].model], *tuned[1:]]
    layers = {run.model: str(select_main_layer(run.rows).layer.iloc[0]) for run in tuned}
    chosen = []
    for run in shown:
        labels = run.rows.layer.astype(str)
        chosen.append(run._replace(rows=run.rows[labels == layers[run.model]]))
    return [run for run in chosen if len(run.rows)]


def _order_sides(sides):
    """Two sides, that of the MLP's output at the subject first."""
    return sorted(sides, key=lambda side: (not side.startswith("output at subject"), side))


def _find_statistic(table, run, comparison, statistic):
    """The row of a statistic at the run's layer, or None."""
    rows = table[(table.model == run.model) & (table.stage == run.stage) & (table.statistic == statistic)]
    rows = rows[(rows.comparison == comparison) & (rows.layer.astype(str) == str(run.rows.layer.iloc[0]))]
    return None if rows.empty else rows.iloc[0]


def select_main_layer(run):
    """One model's rows of symmetry at PEAK; without a peak, those of the lowest layer with primary comparisons."""
    labels = run.layer.astype(str)
    if (labels == PEAK).any():
        return run[labels == PEAK]
    has_values = (
        run.space.str.startswith("value") if "space" in run else run.comparison.isin(PRIMARY_COMPARISONS.values())
    )
    tested = labels[has_values]
    return run[labels == min(tested if len(tested) else labels, key=int)]
