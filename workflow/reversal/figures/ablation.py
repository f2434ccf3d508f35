"""What each choice of the sampler is worth: recall as one of them changes."""

from ..data.facts import RECALL_SPLITS
from .style import (
    BLUE,
    GREEN,
    PALE,
    PURPLE,
    SMALL,
    VERMILLION,
    Drawing,
    blank,
    elide,
    first_of,
    nothing,
    offsets,
    percent,
    phrase,
    styled,
)

LINES = dict(
    zip(RECALL_SPLITS, ((BLUE, "o", "-"), (PURPLE, "^", ":"), (GREEN, "D", "-."), (VERMILLION, "s", "--")), strict=True)
)


@styled
def ablations(table, *, models):
    """A panel for each choice, its values along the bottom, the configured one shaded; a line a split."""
    table = table[(table.model == first_of(models, "diffusion")) & (table.seed == table.seed.min())]
    factors = list(dict.fromkeys(table.factor))
    if not factors:
        return nothing("No choice of the sampler was changed.")
    across = min(len(factors), 3)
    down = -(-len(factors) // across)
    figure = blank(130 * down + 50)
    grid = figure.subplots(down, across, sharey=True, squeeze=False)
    handles, said = {}, []
    for axes, factor in zip(grid.flat, factors, strict=False):
        rows = table[table.factor == factor]
        values = _in_order(rows.value.astype(str))
        for shift, (split, (color, marker, line)) in zip(offsets(4, 0.07), LINES.items(), strict=True):
            own = rows[rows.split == split].assign(value=lambda own: own.value.astype(str)).set_index("value")
            own = own.reindex(values)
            x = [i + shift for i in range(len(values))]
            how = {"color": color, "marker": marker, "linestyle": line, "linewidth": 1.2, "markersize": 4}
            handles[phrase(split)] = axes.plot(x, 100 * own.accuracy, **how)[0]
            axes.vlines(x, 100 * own.ci_low, 100 * own.ci_high, color=color, linewidth=0.9)
        for value in dict.fromkeys(rows[rows.configured].value.astype(str)):
            axes.axvspan(values.index(value) - 0.3, values.index(value) + 0.3, color=PALE, zorder=0)
        axes.set_xticks(range(len(values)), [elide(value, 40 // len(values)) for value in values], fontsize=SMALL)
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.set_title(factor)
        means = rows.groupby(rows.value.astype(str)).accuracy.mean().reindex(values)
        said.append(f"{factor}: " + ", ".join(f"{value} {percent(mean)}" for value, mean in means.items()))
    for axes in grid.flat[len(factors) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel("answers right, %")
    grid[0, 0].set_ylim(-4, 104)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"means": "; ".join(said)})


def _in_order(values):
    """Different values, numbers by size after words in the order they came."""
    values = list(dict.fromkeys(values))
    return sorted(values, key=lambda value: (_number(value) is not None, _number(value) or 0))


def _number(value):
    try:
        return float(value)
    except ValueError:
        return None
