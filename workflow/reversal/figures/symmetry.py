"""Do forward and reverse memories of a concept look alike? Where MLPs matter most, and by layer."""

from typing import NamedTuple

import pandas as pd
from matplotlib.lines import Line2D

from ..storage.evidence import leading
from ..storage.vocabulary import BASE, BRIEF, CONCEPTS, HEADLINE, PEAK, STATES
from .style import FAINT, INK, PALE, Drawing, blank, looks, nothing, number, offsets, styled

# The comparisons to show, what to call them, and the groups they are in.
SHOWN = {
    CONCEPTS["name"]: "name: MLP output × value",
    CONCEPTS["description"]: "description: value × MLP output",
    **{
        f"name: {kind} at subject × at answer": f"name as subject × answer: {kind}"
        for kind in ("key", "output", "state")
    },
    **{
        f"description: {kind} at answer × at subject": f"description as answer × subject: {kind}"
        for kind in ("key", "output", "state")
    },
    **{
        f"fact: {kind} at {place}": f"{place} × {place}: {kind}"
        for place in ("subject", "answer")
        for kind in ("key", "state")
    },
}
TITLES = {"debiased_cka": "debiased CKA", "cosine_similarity": "mean cosine", "probe": "told by a probe"}
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


@styled
def symmetry(table, *, models):
    """Every comparison where MLPs matter most: a panel a statistic, a row a comparison, a mark a model.

    A bar beyond the mark is its ceiling, a tick what so many facts would have shown four times in five.
    """
    found = [run for run in runs(table[table.value.notna()], models) if run.tuned]
    shown = [pair for pair in SHOWN if any(pair in set(leading(run.rows).comparison) for run in found)]
    if not shown:
        return nothing(NO_FACTS)
    figure = blank(15 * len(shown) * max(1, len(found) / 2) + 110)
    panels = figure.subplots(1, len(BRIEF), sharey=True)
    used, said = {}, []
    for axes, statistic in zip(panels, BRIEF, strict=True):
        for run, shift in zip(found, offsets(len(found), 0.36), strict=True):
            own = leading(run.rows)
            own = own[own.statistic == statistic].drop_duplicates("comparison").set_index("comparison").reindex(shown)
            _marks(axes, own, [y + shift for y in range(len(shown))], run.look, used)
            if statistic == HEADLINE:
                told = (
                    f"{SHOWN[pair]} {number(row.value, 2)} of {number(row.ceiling, 2)}"
                    for pair, row in own.dropna(subset="value").iterrows()
                )
                said.append(f"{run.label}, {', '.join(told)}")
        axes.axvline(0, color=FAINT, linewidth=0.8)
        axes.set(title=TITLES[statistic], xlim=(-0.15, 1.03), ylim=(len(shown) - 0.5, -0.5))
        axes.grid(axis="x", color=PALE)
        axes.set_axisbelow(True)
    panels[0].set_yticks(range(len(shown)), [SHOWN[pair] for pair in shown])
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"models": "; ".join(said)})


def _marks(axes, rows, y, look, used):
    """Estimates with intervals; how far they could have gone; and what would have been seen."""
    used["ceiling: two halves of the templates"] = axes.hlines(
        y, rows.value, rows.ceiling, color=look.color, linewidth=4, alpha=0.15
    )
    axes.vlines(rows.ceiling, [one - 0.14 for one in y], [one + 0.14 for one in y], color=look.color, linewidth=1.2)
    used["least that so many facts show"] = axes.plot(rows.least, y, "|", color=INK, markersize=5)[0]
    axes.hlines(y, rows.ci_low, rows.ci_high, color=look.color, linewidth=1.2)
    used[look.label] = axes.plot(rows.value, y, look.marker, color=look.color, markersize=4.5)[0]


@styled
def symmetry_layers(table, *, models):
    """Hidden states of a concept as subject and as answer, layer by layer, a panel a concept, with their ceilings."""
    table = table[(table.statistic == HEADLINE) & (table.layer.astype(str) != PEAK) & table.value.notna()]
    table = table[table.comparison.isin(STATES.values())]
    found = runs(table, models)
    if not found:
        return nothing(NO_FACTS)
    figure = blank(240)
    panels = figure.subplots(1, len(STATES), sharey=True)
    used, said = {}, []
    for axes, (what, pair) in zip(panels, STATES.items(), strict=True):
        for run, shift in zip(found, offsets(len(found), 0.12), strict=True):
            rows = run.rows[run.rows.comparison == pair]
            rows = rows.assign(layer=rows.layer.astype(int)).sort_values("layer")
            line = "-" if run.tuned else ":"
            how = {"color": run.look.color, "linewidth": 1.3, "linestyle": line, "marker": run.look.marker}
            how |= {"markersize": 4.5, "markerfacecolor": run.look.color if run.tuned else "white"}
            axes.vlines(rows.layer + shift, rows.ci_low, rows.ci_high, color=run.look.color, linewidth=1, alpha=0.7)
            used[run.label] = axes.plot(rows.layer + shift, rows.value, **how)[0]
            axes.plot(rows.layer + shift, rows.ceiling, color=run.look.color, linewidth=0.8, linestyle=line, alpha=0.5)
            if run.tuned and len(rows):
                said.append(f"{what}s, {run.label} {number(rows.value.min(), 2)} to {number(rows.value.max(), 2)}")
        axes.set(title=f"{what}s", xlabel="layer", ylim=(-0.15, 1.05), xticks=sorted(set(table.layer.astype(int))))
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.grid(axis="y", color=PALE)
    panels[0].set_ylabel("debiased CKA of hidden states:\nas subject × as answer")
    used["ceilings"] = Line2D([], [], color=FAINT, linewidth=0.8)
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=3)
    return Drawing(figure, {"ranges": "; ".join(said)})
