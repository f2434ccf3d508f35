"""Ablations of the sampler: recall as one setting changes."""

from ..data.facts import RECALL_SPLITS
from .style import (
    BLUE,
    GREEN,
    PALE,
    PURPLE,
    SMALL,
    VERMILLION,
    Drawing,
    describe_split,
    draw_empty,
    elide,
    first_model,
    new_figure,
    offsets,
    percent,
    styled,
)

LINES = dict(
    zip(RECALL_SPLITS, ((BLUE, "o", "-"), (PURPLE, "^", ":"), (GREEN, "D", "-."), (VERMILLION, "s", "--")), strict=True)
)


@styled
def ablations(table, *, models):
    """A panel per setting with its values on the x-axis, the configured one shaded, and a line per split."""
    table = table[(table.model == first_model(models, "diffusion")) & (table.seed == table.seed.min())]
    factors = list(dict.fromkeys(table.factor))
    if not factors:
        return draw_empty("No setting of the sampler was changed.")
    columns = min(len(factors), 3)
    lines = -(-len(factors) // columns)
    figure = new_figure(130 * lines + 50)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    handles, summaries = {}, []
    for axes, factor in zip(grid.flat, factors, strict=False):
        rows = table[table.factor == factor]
        values = _sort_values(rows.value.astype(str))
        for shift, (split, (color, marker, line)) in zip(offsets(4, 0.07), LINES.items(), strict=True):
            shown = rows[rows.split == split].assign(value=lambda rows: rows.value.astype(str)).set_index("value")
            shown = shown.reindex(values)
            x = [i + shift for i in range(len(values))]
            style = {"color": color, "marker": marker, "linestyle": line, "linewidth": 1.2, "markersize": 4}
            handles[describe_split(split)] = axes.plot(x, 100 * shown.accuracy, **style)[0]
            axes.vlines(x, 100 * shown.ci_low, 100 * shown.ci_high, color=color, linewidth=0.9)
        for value in dict.fromkeys(rows[rows.configured].value.astype(str)):
            axes.axvspan(values.index(value) - 0.3, values.index(value) + 0.3, color=PALE, zorder=0)
        axes.set_xticks(range(len(values)), [elide(value, 40 // len(values)) for value in values], fontsize=SMALL)
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.set_title(factor)
        means = rows.groupby(rows.value.astype(str)).accuracy.mean().reindex(values)
        summaries.append(f"{factor}: " + ", ".join(f"{value} {percent(mean)}" for value, mean in means.items()))
    for axes in grid.flat[len(factors) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel("correct answers, %")
    grid[0, 0].set_ylim(-4, 104)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"means": "; ".join(summaries)})


def _sort_values(values):
    """Distinct values: words in order of appearance, then numbers by size."""
    values = list(dict.fromkeys(values))
    return sorted(values, key=lambda value: (_parse_number(value) is not None, _parse_number(value) or 0))


def _parse_number(value):
    """A text as a number, or None."""
    try:
        return float(value)
    except ValueError:
        return None
