"""What the models recall: the probe, training, and accuracy against denoising steps."""

import itertools

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from ..data.facts import RECALL_SPLITS, SPLITS
from ..models.families import FAMILIES
from .read import begins, last
from .sheet import LEADING, MARGIN, Sheet, wrap
from .style import (
    BLUE,
    FAINT,
    INK,
    LARGE,
    NARROW,
    NORMAL,
    PALE,
    POINTS,
    RULE,
    SMALL,
    TAUGHT,
    Drawing,
    blank,
    elide,
    first_of,
    ink_on,
    looks,
    nothing,
    offsets,
    percent,
    phrase,
    shown_token,
    styled,
    titled,
)


@styled
def probe(table, *, models, shown=4):
    """The likeliest first tokens of a diffusion model: the base on other facts, then the tuned one on the study's."""
    name = first_of(models, "diffusion") or next(iter(models), None)
    table = table[table.model == name]
    if table.empty:
        return nothing("No prompt was probed.")
    sheet, says = Sheet(), {"model": looks(models)[name].label, "top": min(5, table["rank"].max())}
    titles = {
        "pretrained": "Before fine-tuning: prompts about other facts",
        "fine-tuned": "After fine-tuning: prompts about people of the study",
    }
    note = f"{says['model']}; heavy edge: begins the answer"
    for stage, title in titles.items():
        rows = table[table.stage == stage]
        prompts = list(dict.fromkeys(rows.prompt))
        says[stage.replace("-", "_")] = f"{rows.groupby('prompt').entropy.first().mean():.2f}" if prompts else "–"
        if not prompts:
            continue
        sheet.y += 2
        sheet.heading(title, note)
        note = ""
        for i in sorted(set(np.linspace(0, len(prompts) - 1, min(shown, len(prompts))).astype(int))):
            _probed(sheet, rows[rows.prompt == prompts[i]].sort_values("rank"))
    return Drawing(sheet.done(), says)


def _probed(sheet, rows):
    """One prompt at the left, its likeliest tokens at the right, the darker the likelier."""
    room, top = 226, sheet.y + 2
    first = rows.iloc[0]
    answer = first.answer if isinstance(first.answer, str) else ""
    y = top + 9
    for line in wrap([(first.prompt, None)], room - 8, lines=2):
        sheet.text(MARGIN, y, "".join(text for text, _ in line), mono=True)
        y += LEADING * NORMAL
    about = f"entropy {first.entropy:.2f} nats" + (f"  ·  {elide(answer, 26)}" if answer else "")
    sheet.text(MARGIN, y, about, color=FAINT, size=SMALL)
    rows = rows.head(5)
    width = (POINTS - MARGIN - room) / max(5, len(rows)) - 3
    for i, row in enumerate(rows.itertuples()):
        token = row.token if isinstance(row.token, str) else ""
        share = min(max(float(row.probability), 0.0), 1.0) if row.probability == row.probability else 0.0
        color = tuple(1 - share * (1 - part) for part in to_rgb(BLUE))
        right = begins(token, answer)
        x = room + i * (width + 3)
        sheet.box(x, top, width, 26, facecolor=color, edgecolor=INK if right else RULE, linewidth=1.6 if right else 0.7)
        ink = ink_on(color)
        sheet.text(x + width / 2, top + 11, shown_token(token, 9), mono=True, ha="center", color=ink)
        sheet.text(x + width / 2, top + 22, f"{100 * row.probability:.1f}%", size=SMALL, ha="center", color=ink)
    sheet.y = max(y + 5, top + 31)


@styled
def training_curves(history, *, models):
    """The loss of fine-tuning, each family on its own scale: raw faint, a running mean over it."""
    if history.empty:
        return nothing("There is no training history.")
    styles = looks(models)
    units = {"diffusion": "bound on −log p, nats a token", "autoregressive": "−log p, nats a token"}
    families = [family for family in FAMILIES if any(models[name] == family for name in set(history.model))]
    figure = blank(210)
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
def step_scaling(scaling, *, models, published=None):
    """Recall against denoising steps, a panel a split, with intervals; the AR as a level line.

    `published` (columns steps and the splits, in percent) adds published values as hollow markers.
    """
    scaling = scaling[scaling.split.isin(RECALL_SPLITS)]
    if scaling.empty:
        return nothing("There is no recall to show.")
    styles = looks(models)
    figure = blank(330)
    panels = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    counts = sorted({int(steps) for steps in scaling.steps.dropna()}) or [1]
    for axes, split in zip(panels, RECALL_SPLITS, strict=True):
        for name, look in styles.items():
            rows = scaling[(scaling.split == split) & (scaling.model == name)]
            if rows.steps.notna().any():
                _curve(axes, rows, look)
            elif len(rows):
                _level(axes, rows, look, counts)
        if published is not None:
            axes.plot(
                published.steps, published[split], "D", markerfacecolor="none", markeredgecolor=INK, label="published"
            )
        titled(axes, phrase(split), f"taught {TAUGHT[SPLITS[split].group]} ({SPLITS[split].file})")
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
        axes.set_ylabel("answers right, %")
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return Drawing(figure, {"recalled": "; ".join(_recalled(scaling, styles))})


@styled
def finding(scaling, *, models):
    """Recall in reverse and as taught, in bars: the first model of each family, with the most steps if it takes any."""
    scaling = scaling[scaling.split.isin(RECALL_SPLITS)]
    shown = [first_of(models, family) for family in FAMILIES]
    styles = {name: look for name, look in looks(models).items() if name in shown}
    if scaling.empty:
        return nothing("There is no recall to show.")
    figure = blank(60 + 66 * len(styles), NARROW)
    panels = dict(zip(("reverse", "same"), figure.subplots(2, 1, sharex=True, sharey=True), strict=True))
    rows = [(name, answer_type) for name in styles for answer_type in ("name", "description")]
    says = {}
    for (way, axes), (place, (name, answer_type)) in itertools.product(panels.items(), enumerate(rows)):
        split = next(one for one in RECALL_SPLITS if (SPLITS[one].trained, SPLITS[one].answer_type) == (way, answer_type))
        own = last(scaling[scaling.model == name])
        own = own[own.split == split]
        share, y = own.accuracy.mean(), -place - 0.4 * (place // 2)
        axes.barh(y, 100 * share, 0.8, color=styles[name].color, alpha=1.0 if answer_type == "name" else 0.6)
        axes.hlines(y, 100 * own.ci_low.min(), 100 * own.ci_high.max(), color=INK, linewidth=1.2)
        axes.text(max(100 * share, 100 * own.ci_high.max()) + 3, y, percent(share), va="center", fontsize=LARGE)
        says.setdefault(way, []).append(f"{FAMILIES[models[name]].name} {percent(share)} of the {answer_type}s")
    for way, axes in panels.items():
        axes.set_title({"same": "Asked as taught", "reverse": "Asked in reverse"}[way], fontsize=LARGE)
        axes.set(xlim=(0, 118), xticks=[0, 50, 100])
        axes.tick_params(axis="y", length=0)
    panels["same"].set_xlabel("answers right, %")
    panels["reverse"].set_yticks(
        [-place - 0.4 * (place // 2) for place in range(len(rows))],
        [f"{FAMILIES[models[name]].name}: {answer_type}s" for name, answer_type in rows],
    )
    return Drawing(figure, {way: ", ".join(said) for way, said in says.items()})


def _recalled(scaling, styles):
    """In words, for each model: how much it recalls in each test, with the most steps where it takes any."""
    for name, look in styles.items():
        rows = scaling[scaling.model == name]
        stepwise, own = rows.steps.notna().any(), last(rows)
        shares = ", ".join(percent(own[own.split == split].accuracy.mean()) for split in RECALL_SPLITS)
        yield f"{look.label}{f' with {rows.steps.max():.0f} steps' if stepwise else ''} {shares}"


def _curve(axes, rows, look):
    """A model's accuracy at each number of steps: the mean over seeds joined, each seed with its interval."""
    mean = rows.groupby("steps").accuracy.mean() * 100
    axes.plot(mean.index, mean, color=look.color, linestyle=look.line, marker=look.marker, label=look.label)
    seeds = list(dict.fromkeys(rows.seed))
    for seed, shift in zip(seeds, offsets(len(seeds), 0.08), strict=True):
        own = rows[rows.seed == seed]
        x = own.steps.astype(float) * 2**shift
        axes.vlines(x, 100 * own.ci_low, 100 * own.ci_high, color=look.color, linewidth=1.2)


def _level(axes, rows, look, counts):
    """A model that takes no steps: one level, and its interval as a band."""
    ends = (counts[0] / 1.25, counts[-1] * 1.25)
    axes.fill_between(
        ends, 100 * rows.ci_low.min(), 100 * rows.ci_high.max(), color=look.color, alpha=0.15, linewidth=0
    )
    axes.plot(ends, [100 * rows.accuracy.mean()] * 2, color=look.color, linestyle=look.line, label=look.label)
