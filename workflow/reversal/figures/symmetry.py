"""How similar are the forward and the reverse representation of a concept? Where MLPs peak, and by layer."""

from typing import NamedTuple

import pandas as pd
from matplotlib.lines import Line2D

from ..storage.vocabulary import (
    BASE,
    MAIN_STATISTICS,
    PEAK,
    PRIMARY_COMPARISONS,
    PRIMARY_STATISTIC,
    STATE_COMPARISONS,
)
from .style import FAINT, INK, PALE, Drawing, choose_looks, draw_empty, new_figure, number, offsets, styled

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
TOO_FEW = "Too few facts have keys and values in both directions."


class Run(NamedTuple):
    """A model before or after fine-tuning: how it is drawn, and its rows of a table."""

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
                runs.append(Run(label, look, stage != BASE, rows))
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
        axes.grid(axis="x", color=PALE)
        axes.set_axisbelow(True)
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
            axes.vlines(x, rows.ci_low, rows.ci_high, color=color, linewidth=1, alpha=0.7)
            handles[run.label] = axes.plot(x, rows.value, **style)[0]
            axes.plot(x, rows.ceiling, color=color, linewidth=0.8, linestyle=line, alpha=0.5)
            if run.is_tuned and len(rows):
                low, high = number(rows.value.min(), 2), number(rows.value.max(), 2)
                descriptions.append(f"{concept}s, {run.label} {low} to {high}")
        axes.set(title=f"{concept}s", xlabel="layer", ylim=(-0.15, 1.05), xticks=sorted(set(table.layer.astype(int))))
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.grid(axis="y", color=PALE)
    panels[0].set_ylabel("debiased CKA of hidden states:\nas subject × as answer")
    handles["ceilings"] = Line2D([], [], color=FAINT, linewidth=0.8)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"ranges": "; ".join(descriptions)})


def select_main_layer(run):
    """One model's rows of symmetry at PEAK; without a peak, those of the lowest layer with primary comparisons."""
    labels = run.layer.astype(str)
    if (labels == PEAK).any():
        return run[labels == PEAK]
    tested = labels[run.comparison.isin(PRIMARY_COMPARISONS.values())]
    return run[labels == min(tested if len(tested) else labels, key=int)]
