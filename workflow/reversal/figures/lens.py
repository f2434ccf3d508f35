"""What single layers and heads hold: the logit lens over denoising steps, effects of heads, attribution patching."""

from matplotlib.ticker import MaxNLocator

from ..tracing.vocabulary import STAGES
from .style import (
    BLUE,
    FAINT,
    GREEN,
    HEAT,
    ORANGE,
    SMALL,
    VERMILLION,
    Drawing,
    add_color_bar,
    choose_looks,
    describe_split,
    draw_empty,
    draw_intervals,
    first_model,
    ink_on,
    new_figure,
    number,
    offsets,
    percent,
    pluralize,
    styled,
)
from .tracing import FAINT_INTERVAL, NO_TRACES, TESTS, choose_panels, select_panel

# Names first, descriptions below; on the left the same direction, on the right the reverse.
SPLITS = sorted(TESTS, key=lambda split: (not describe_split(split).startswith("names"), "reverse" in split))


@styled
def logit_lens(table, *, models):
    """Probability of the answer in every layer and step; below, when each token is readable and when it is revealed.

    `table` is logit_lens.csv. A column of panels for each direction, a row for names and one for descriptions.
    """
    table = table[(table.model == first_model(models, "diffusion")) & (table.seed == table.seed.min())]
    splits = [split for split in SPLITS if split in set(table.split)]
    if not splits:
        return draw_empty(NO_TRACES)
    depth, rows = int(table.layer.max()) + 1, -(-len(splits) // 2)
    pairs = [table[table.split.isin(splits[2 * row : 2 * row + 2])] for row in range(rows)]
    tokens = [int(pair.token.max()) + 1 for pair in pairs]
    ratios = [height for count in tokens for height in (min(12 * depth, 220), 8 * count + 8)]
    figure, described = new_figure(sum(ratios) + 58 * rows + 46), []
    grid = figure.subplots(2 * rows, 2, squeeze=False, sharex=True, height_ratios=ratios)
    for place in range(2 * rows):
        if place >= len(splits):
            for axes in grid[2 * (place // 2) : 2 * (place // 2) + 2, place % 2]:
                axes.set_axis_off()
            continue
        split, (heat, strip) = splits[place], grid[2 * (place // 2) : 2 * (place // 2) + 2, place % 2]
        of_split = table[table.split == split]
        means = of_split[of_split.reading == "probability"].pivot(index="layer", columns="step", values="mean")
        ends = (means.columns.min() + 0.5, means.columns.max() + 1.5, depth - 0.5, -0.5)
        image = heat.imshow(means, cmap=HEAT, vmin=0, vmax=1, aspect="auto", extent=ends)
        heat.invert_yaxis()
        heat.set_title(f"{describe_split(split).capitalize()}, {pluralize(of_split.n.max(), 'fact')}")
        heat.set_ylabel("layer" if place % 2 == 0 else "")
        heat.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        readable, revealed = (
            of_split[of_split.reading == reading].set_index("token")["mean"] + 1 for reading in ("readable", "revealed")
        )
        strip.hlines(revealed.index, readable, revealed, color=FAINT, linewidth=0.8)
        shown = strip.plot(readable, readable.index, "o", color=VERMILLION, markerfacecolor="white", markersize=4)
        done = strip.plot(revealed, revealed.index, "o", color=VERMILLION, markersize=4)
        strip.set(ylim=(tokens[place // 2] - 0.4, -0.6), yticks=[])
        strip.set_ylabel("token" if place % 2 == 0 else "")
        if place // 2 == rows - 1:
            strip.set_xlabel("denoising step", labelpad=1)
        strip.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        at_reveal = of_split[of_split.reading == "at_reveal"].set_index("layer")["mean"]
        half = at_reveal[at_reveal >= 0.5].index.min()
        where = f"from layer {half:.0f} on" if half == half else "in no layer"
        described.append(
            f"{describe_split(split)}, half of the probability {where} when a token is revealed; the first token is "
            f"readable at step {number(readable.iloc[0])} and revealed at step {number(revealed.iloc[0])}, "
            f"the last at steps {number(readable.iloc[-1])} and {number(revealed.iloc[-1])}"
        )
    labels = ("readable in the last layer", "revealed")
    figure.legend([shown[0], done[0]], labels, loc="outside lower left", ncols=2)
    label = "probability of the answer tokens still masked"
    add_color_bar(figure, image, grid.flat, label, "right", fraction=0.03, pad=0.01)
    return Drawing(figure, {"tests": "; ".join(described)})


LABELLED = 0.05  # the least share that is written into its cell


@styled
def attention_heads(table, *, models):
    """Share of the total effect that each attention head recovers at the answer positions: heads by layers.

    `table` is attention_heads.csv.
    """
    table = table[(table.seed == table.seed.min()) & table["mean"].notna()]
    columns = choose_panels(set(zip(table.model, table.split, strict=True)), models)
    if not columns:
        return draw_empty(NO_TRACES)
    heads, depth = int(table["head"].max()) + 1, int(table.layer.max()) + 1
    figure, described = new_figure(min(17 * depth, 400) + 95), []
    grid = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for axes, panel in zip(grid, columns, strict=True):
        rows = select_panel(table, panel)
        means = rows.pivot(index="layer", columns="head", values="mean").reindex(range(depth), columns=range(heads))
        image = axes.imshow(means, cmap=HEAT, vmin=0, vmax=1, aspect="auto")
        for row in rows[rows["mean"].abs() >= LABELLED].itertuples() if heads <= 8 and depth <= 20 else ():
            color = ink_on(image.to_rgba(min(max(row.mean, 0), 1)))
            axes.text(row.head, row.layer, percent(row.mean), ha="center", va="center", fontsize=SMALL, color=color)
        axes.invert_yaxis()
        title = panel.title.replace(": ", "\n").replace(", ", ",\n")
        axes.set_title(f"{title}\n{pluralize(rows.n.max(), 'fact')}")
        axes.set_xlabel("head", labelpad=1)
        axes.xaxis.set_major_locator(MaxNLocator(min(heads, 8), integer=True))
        axes.tick_params(length=0)
        top = rows.loc[rows["mean"].idxmax()]
        described.append(f"{panel.title}, head {top['head']:.0f} of layer {top.layer:.0f}, {percent(top['mean'])}")
    grid[0].set_ylabel("layer")
    grid[0].yaxis.set_major_locator(MaxNLocator(8, integer=True))
    label = "share of the total effect recovered by one head at the answer positions"
    add_color_bar(figure, image, grid, label, fraction=0.04, pad=0.02)
    return Drawing(figure, {"largest": "; ".join(described)})


MEASURES = {"correlation": "rank correlation with the exact trace", "missed": "share of the ten strongest missed"}


@styled
def attribution(table, *, models):
    """Agreement of attribution patching with exact traces by stage: a line for each model and test.

    `table` is attribution.csv.
    """
    table = table[(table.seed == table.seed.min()) & (table.n > 1)]
    runs = [(model, split) for model in models for split in SPLITS]
    runs = [run for run in runs if run in set(zip(table.model, table.split, strict=True))]
    if not runs:
        return draw_empty(NO_TRACES)
    figure, handles, described = new_figure(230), {}, []
    panels = figure.subplots(1, len(MEASURES))
    for (model, split), shift in zip(runs, offsets(len(runs), 0.06), strict=True):
        rows = table[(table.model == model) & (table.split == split)]
        diffusion, reverse = models[model] == "diffusion", "reverse" in split
        color = ((ORANGE, VERMILLION), (GREEN, BLUE))[diffusion]["name" not in describe_split(split)]
        look = {"color": color, "linestyle": "--" if reverse else "-", "marker": "s" if reverse else "o"}
        look |= {"markersize": 4, "linewidth": 1.2}
        label = f"{choose_looks(models)[model].label}: {describe_split(split)}"
        for axes, measure in zip(panels, MEASURES, strict=True):
            of_measure = rows[rows.measure == measure].set_index("stage")
            of_measure = of_measure.loc[[stage for stage in STAGES if stage in of_measure.index]]
            x = [STAGES.index(stage) + shift for stage in of_measure.index]
            handles[label] = draw_intervals(axes, x, of_measure, "mean", scale=1, interval=FAINT_INTERVAL, **look)
        first = rows[rows.stage == STAGES[0]].set_index("measure")["mean"]
        described.append(
            f"{label}, at t1 {number(first.correlation, 2)}, {percent(first.missed)} missed; "
            f"the exact trace costs {number(first.cost)} times as much"
        )
    for axes, (measure, title) in zip(panels, MEASURES.items(), strict=True):
        axes.set_title(title)
        axes.set_xticks(range(len(STAGES)), STAGES)
        axes.set_ylim(min(0, axes.get_ylim()[0]) if measure == "correlation" else -0.03, 1.03)
        axes.axhline(0, color=FAINT, linewidth=0.7)
    panels[1].yaxis.set_major_formatter(lambda share, _: percent(share))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"agreement": "; ".join(described)})
