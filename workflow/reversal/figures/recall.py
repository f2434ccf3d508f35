"""Recall: the probe of first tokens, training curves, and accuracy against denoising steps."""

import itertools

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from ..data.facts import RECALL_SPLITS, SPLITS
from ..models.vocabulary import FAMILIES
from .read import is_start_of, select_most_steps
from .sheet import LEADING, MARGIN, Sheet, wrap
from .style import (
    BLUE,
    DIRECTION_LABELS,
    FAINT,
    INK,
    LARGE,
    NARROW,
    NORMAL,
    PALE,
    POINTS,
    QUESTION_LABELS,
    RULE,
    SMALL,
    Drawing,
    add_title,
    choose_looks,
    describe_split,
    draw_empty,
    elide,
    first_model,
    ink_on,
    new_figure,
    offsets,
    percent,
    shown_token,
    styled,
)


@styled
def probe(table, *, models, shown=4):
    """The most likely first tokens of a diffusion model: the base on other facts, the fine-tuned one on the study's."""
    name = first_model(models, "diffusion") or next(iter(models), None)
    table = table[table.model == name]
    if table.empty:
        return draw_empty("No prompt was probed.")
    sheet, values = Sheet(), {"model": choose_looks(models)[name].label, "top": min(5, table["rank"].max())}
    titles = {
        "pretrained": "Before fine-tuning: prompts about other facts",
        "fine-tuned": "After fine-tuning: prompts about people of the study",
    }
    note = f"{values['model']}; heavy edge: start of the answer"
    for stage, title in titles.items():
        rows = table[table.stage == stage]
        prompts = list(dict.fromkeys(rows.prompt))
        values[stage.replace("-", "_")] = f"{rows.groupby('prompt').entropy.first().mean():.2f}" if prompts else "–"
        if not prompts:
            continue
        sheet.y += 2
        sheet.heading(title, note)
        note = ""
        for i in sorted(set(np.linspace(0, len(prompts) - 1, min(shown, len(prompts))).astype(int))):
            _draw_probe(sheet, rows[rows.prompt == prompts[i]].sort_values("rank"))
    return Drawing(sheet.finish(), values)


def _draw_probe(sheet, rows):
    """Draw a prompt at the left and its most likely tokens at the right, darker if more likely."""
    room, top = 226, sheet.y + 2
    first = rows.iloc[0]
    answer = first.answer if isinstance(first.answer, str) else ""
    y = top + 9
    for line in wrap([(first.prompt, None)], room - 8, lines=2):
        sheet.text(MARGIN, y, "".join(text for text, _ in line), mono=True)
        y += LEADING * NORMAL
    note = f"entropy {first.entropy:.2f} nats" + (f"  ·  {elide(answer, 26)}" if answer else "")
    sheet.text(MARGIN, y, note, color=FAINT, size=SMALL)
    rows = rows.head(5)
    width = (POINTS - MARGIN - room) / max(5, len(rows)) - 3
    for i, row in enumerate(rows.itertuples()):
        token = row.token if isinstance(row.token, str) else ""
        share = min(max(float(row.probability), 0.0), 1.0) if row.probability == row.probability else 0.0
        color = tuple(1 - share * (1 - part) for part in to_rgb(BLUE))
        right = is_start_of(token, answer)
        x = room + i * (width + 3)
        sheet.box(x, top, width, 26, facecolor=color, edgecolor=INK if right else RULE, linewidth=1.6 if right else 0.7)
        ink = ink_on(color)
        sheet.text(x + width / 2, top + 11, shown_token(token, 9), mono=True, ha="center", color=ink)
        sheet.text(x + width / 2, top + 22, f"{100 * row.probability:.1f}%", size=SMALL, ha="center", color=ink)
    sheet.y = max(y + 5, top + 31)


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
            _log_scale(axes)
        if len(axes.lines) > 2:
            axes.legend(loc="upper right")
    return Drawing(figure, {"losses": "; ".join(losses.values())})


def _log_scale(axes):
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


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
        add_title(
            axes, describe_split(split), f"trained {DIRECTION_LABELS[SPLITS[split].group]} ({SPLITS[split].file})"
        )
        axes.set(ylim=(-4, 104))
        axes.grid(axis="y", color=PALE)
        axes.set_axisbelow(True)
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


@styled
def finding(scaling, *, models):
    """Bars of recall in the reverse and in the same direction: the first model of each family, with the most steps."""
    scaling = scaling[scaling.split.isin(RECALL_SPLITS)]
    shown = [first_model(models, family) for family in FAMILIES]
    styles = {name: look for name, look in choose_looks(models).items() if name in shown}
    if scaling.empty:
        return draw_empty("There is no recall to show.")
    figure = new_figure(60 + 66 * len(styles), NARROW)
    panels = dict(zip(("reverse", "same"), figure.subplots(2, 1, sharex=True, sharey=True), strict=True))
    rows = [(name, answer_type) for name in styles for answer_type in ("name", "description")]
    summaries = {}
    for (trained, axes), (place, (name, answer_type)) in itertools.product(panels.items(), enumerate(rows)):
        split = next(
            split
            for split in RECALL_SPLITS
            if (SPLITS[split].trained, SPLITS[split].answer_type) == (trained, answer_type)
        )
        bars = select_most_steps(scaling[scaling.model == name])
        bars = bars[bars.split == split]
        share, y = bars.accuracy.mean(), -place - 0.4 * (place // 2)
        axes.barh(y, 100 * share, 0.8, color=styles[name].color, alpha=1.0 if answer_type == "name" else 0.6)
        axes.hlines(y, 100 * bars.ci_low.min(), 100 * bars.ci_high.max(), color=INK, linewidth=1.2)
        axes.text(max(100 * share, 100 * bars.ci_high.max()) + 3, y, percent(share), va="center", fontsize=LARGE)
        summaries.setdefault(trained, []).append(
            f"{FAMILIES[models[name]].name} {percent(share)} of the {answer_type}s"
        )
    for trained, axes in panels.items():
        axes.set_title(QUESTION_LABELS[trained].capitalize(), fontsize=LARGE)
        axes.set(xlim=(0, 118), xticks=[0, 50, 100])
        axes.tick_params(axis="y", length=0)
    panels["same"].set_xlabel("correct answers, %")
    panels["reverse"].set_yticks(
        [-place - 0.4 * (place // 2) for place in range(len(rows))],
        [f"{FAMILIES[models[name]].name}: {answer_type}s" for name, answer_type in rows],
    )
    return Drawing(figure, {trained: ", ".join(parts) for trained, parts in summaries.items()})


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
