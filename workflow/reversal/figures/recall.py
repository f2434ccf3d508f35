"""Recall: training curves, accuracy against denoising steps, and what bases know from pretraining."""

from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from ..data.facts import KNOWN, RECALL_SPLITS, SPLITS
from ..models.vocabulary import FAMILIES
from .read import select_most_steps
from .style import (
    DIRECTION_LABELS,
    FAINT,
    INK,
    SMALL,
    Drawing,
    choose_looks,
    describe_split,
    draw_empty,
    new_figure,
    offsets,
    percent,
    styled,
)


@styled
def training_curves(history, *, models):
    """The loss of fine-tuning, each family on its own scale: raw values faint, with a running mean."""
    if history.empty:
        return draw_empty("There is no training history.")
    styles = choose_looks(models)
    units = {"diffusion": "bound on −log p, nats a token", "autoregressive": "−log p, nats a token"}
    families = [family for family in FAMILIES if any(models[name] == family for name in set(history.model))]
    figure = new_figure(210)
    panels = figure.subplots(1, len(families), squeeze=False)[0]
    losses = {}
    for axes, family in zip(panels, families, strict=True):
        for (name, seed), rows in history.groupby(["model", "seed"], sort=False):
            if models[name] != family:
                continue
            look = styles[name]
            smooth = rows.loss.rolling(max(1, len(rows) // 30), center=True, min_periods=1).mean()
            axes.plot(rows.step, rows.loss, color=look.color, linewidth=0.6, alpha=0.25)
            several = list(models.values()).count(family) > 1
            label = f"{look.label}, seed {seed}" if several else f"seed {seed}"
            axes.plot(rows.step, smooth, color=look.color, linestyle=look.line, label=label)
            losses[family] = f"{FAMILIES[family].name} from {smooth.iloc[0]:.2f} to {smooth.iloc[-1]:.2f}"
        axes.set_title(FAMILIES[family].name.capitalize())
        axes.set_xlabel("training step")
        axes.set_ylabel(units[family])
        if (history.loss > 0).all():
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        if len(axes.lines) > 2:
            axes.legend(loc="upper right")
    return Drawing(figure, {"losses": "; ".join(losses.values())})


@styled
def step_scaling(scaling, published=None, *, models):
    """Recall against denoising steps, a panel per split, with intervals; the AR as a level line.

    `published` (columns steps and the splits, in percent) adds published values as hollow markers.
    """
    scaling = scaling[scaling.split.isin(RECALL_SPLITS)]
    if scaling.empty:
        return draw_empty("There is no recall to show.")
    styles = choose_looks(models)
    figure = new_figure(330)
    panels = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    counts = sorted({int(steps) for steps in scaling.steps.dropna()}) or [1]
    for axes, split in zip(panels, RECALL_SPLITS, strict=True):
        for name, look in styles.items():
            rows = scaling[(scaling.split == split) & (scaling.model == name)]
            if rows.steps.notna().any():
                _draw_curve(axes, rows, look)
            elif len(rows):
                _draw_level(axes, rows, look, counts)
        if published is not None:
            axes.plot(
                published.steps, published[split], "D", markerfacecolor="none", markeredgecolor=INK, label="published"
            )
        axes.set_title(describe_split(split), pad=16)
        note = f"trained {DIRECTION_LABELS[SPLITS[split].group]} ({SPLITS[split].file})"
        place = {"xycoords": "axes fraction", "textcoords": "offset points"}
        axes.annotate(note, (0, 1), (0, 5), **place, fontsize=SMALL, color=FAINT)
        axes.set(ylim=(-4, 104))
        axes.grid(axis="y")
    panels[0].set_xscale("log", base=2)
    for axes in panels:
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.set_xlim(counts[0] / 1.25, counts[-1] * 1.25)
    for axes in panels[2:]:
        axes.set_xlabel("denoising steps")
    for axes in panels[::2]:
        axes.set_ylabel("correct answers, %")
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return Drawing(figure, {"recalled": "; ".join(_list_recall(scaling, styles))})


def _list_recall(scaling, styles):
    """In words, for each model: its recall in each test, with the most denoising steps."""
    for name, look in styles.items():
        rows = scaling[scaling.model == name]
        takes_steps, best = rows.steps.notna().any(), select_most_steps(rows)
        shares = ", ".join(percent(best[best.split == split].accuracy.mean()) for split in RECALL_SPLITS)
        yield f"{look.label}{f' with {rows.steps.max():.0f} steps' if takes_steps else ''} {shares}"


def _draw_curve(axes, rows, look):
    """Draw a model's accuracy against steps: a line through the mean over seeds, and the interval of each seed."""
    mean = rows.groupby("steps").accuracy.mean() * 100
    axes.plot(mean.index, mean, color=look.color, linestyle=look.line, marker=look.marker, label=look.label)
    seeds = list(dict.fromkeys(rows.seed))
    for seed, shift in zip(seeds, offsets(len(seeds), 0.08), strict=True):
        of_seed = rows[rows.seed == seed]
        x = of_seed.steps.astype(float) * 2**shift
        axes.vlines(x, 100 * of_seed.ci_low, 100 * of_seed.ci_high, color=look.color, linewidth=1.2)


def _draw_level(axes, rows, look, counts):
    """Draw a model that takes no steps as a level line with its interval as a band."""
    ends = (counts[0] / 1.25, counts[-1] * 1.25)
    axes.fill_between(
        ends, 100 * rows.ci_low.min(), 100 * rows.ci_high.max(), color=look.color, alpha=0.15, linewidth=0
    )
    axes.plot(ends, [100 * rows.accuracy.mean()] * 2, color=look.color, linestyle=look.line, label=look.label)


@styled
def base_knowledge(recall, likelihood, *, models):
    """Dots with intervals per direction: correct answers, and the log-ratio of a correct and a wrong answer.

    Diffusion models are shown with the most denoising steps.
    """
    if recall.empty:
        return draw_empty("There are no answers to show.")
    recall = recall[recall.steps.isna() | (recall.steps == recall.groupby("model").steps.transform("max"))]
    styles = choose_looks(models)
    figure = new_figure(60 + 30 * len(styles))
    share, ratio = figure.subplots(1, 2, sharey=True)
    for number, (name, split) in enumerate(KNOWN.items()):
        for shift, (model, look) in zip(offsets(len(styles), 0.3), styles.items(), strict=True):
            for axes, table, value, scale in ((share, recall, "accuracy", 100), (ratio, likelihood, "difference", 1)):
                rows = table[(table.split == name) & (table.model == model)]
                y = [number + shift] * len(rows)
                axes.hlines(y, scale * rows.ci_low, scale * rows.ci_high, color=look.color)
                label = look.label if split.answer_type == "description" else None
                axes.plot(scale * rows[value], y, look.marker, color=look.color, label=label)
    for axes in (share, ratio):
        axes.grid(axis="x")
    share.set(xlim=(-4, 104), ylim=(len(KNOWN) - 0.5, -0.5), title="Correct answers", xlabel="%")
    ratio.set(title="Correct against wrong answer", xlabel="log p(correct) − log p(wrong), nats")
    ratio.axvline(0, color=FAINT, linewidth=0.8, linestyle=":")
    share.set_yticks(range(len(KNOWN)), [DIRECTION_LABELS[split] for split in KNOWN])
    figure.legend(*share.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return Drawing(figure, {"recalled": "; ".join(_list_known(recall, styles))})


def _list_known(recall, styles):
    """In words, for each model: its recall of parents and of children."""
    for name, look in styles.items():
        shares = [percent(recall[(recall.model == name) & (recall.split == split)].accuracy.mean()) for split in KNOWN]
        yield f"{look.label} {' and '.join(shares)}"
