"""The reversal curse: one fact asked both ways of both families, and the likelihood test."""

import pandas as pd

from ..data.facts import FORWARD_REVERSE, RECALL_SPLITS, SPLITS
from ..models.families import FAMILIES
from .read import last
from .sheet import LEADING, MARGIN, Sheet, wrap
from .style import (
    FAINT,
    GREEN,
    NORMAL,
    POINTS,
    SMALL,
    TAUGHT,
    VERMILLION,
    Drawing,
    first_of,
    looks,
    nothing,
    offsets,
    percent,
    phrase,
    plain,
    styled,
)

# What the curse is, if it is there: the autoregressive model right as taught and wrong in reverse, the other right.
WISH = {
    ("autoregressive", "p2d_same"): True,
    ("autoregressive", "p2d_reverse"): False,
    ("diffusion", "p2d_same"): True,
    ("diffusion", "p2d_reverse"): True,
}
WEIGHT = {"autoregressive": 2, "diffusion": 1}


@styled
def reversal_curse(completions, likelihood, *, models):
    """One fact asked both ways of both families; below, the likelihood test of every model.

    `completions` and `likelihood` are tables of all models; `models` is {name: family}.
    """
    if completions.empty:
        return nothing("There are no completions to show.")
    sheet = Sheet()
    asked = {}
    for family in ("autoregressive", "diffusion"):
        name = first_of(models, family)
        of = completions[(completions.model == name) & completions.split.isin(FORWARD_REVERSE["p2d"])]
        if len(of):
            asked[family] = last(of[of.seed == of.seed.iloc[0]])
    example = choose_example(asked)
    if example:
        _panels(sheet, example, asked, looks(models))
        sheet.y += 6
    _likelihood(sheet, likelihood[likelihood.split.isin(RECALL_SPLITS)], looks(models))
    shares = {
        FAMILIES[family].name: [percent(rows[rows.split == split].correct.mean()) for split in FORWARD_REVERSE["p2d"]]
        for family, rows in asked.items()
    }
    recalled = "; ".join(f"{family} {same} and {reverse}" for family, (same, reverse) in shares.items())
    return Drawing(sheet.done(), {"name": _name(example), "recalled": recalled})


def choose_example(asked):
    """{(family, split): completion} of one fact, asked as it was taught and in reverse; None where there is none.

    `asked` has the completions of one model of each family. The fact is the first that comes closest to `WISH`.
    """
    rows = pd.concat([rows.assign(family=family) for family, rows in asked.items()]) if asked else pd.DataFrame()
    if rows.empty:
        return None
    granted = [correct == WISH[tuple(key)] for correct, *key in zip(rows.correct, rows.family, rows.split, strict=True)]
    rows["points"] = rows.family.map(WEIGHT) * granted
    points = rows.groupby(["fact", "split", "prompt"], sort=False).points.sum().reset_index()
    best = points.loc[points.groupby(["fact", "split"], sort=False).points.idxmax()]
    total = best.groupby("fact", sort=False).points.agg(["sum", "size"])
    total = total[total["size"] == 2]["sum"]
    if total.empty:
        return None
    prompts = set(best[best.fact == total.idxmax()].prompt)
    chosen = rows[(rows.fact == total.idxmax()) & rows.prompt.isin(prompts)]
    return {(row.family, row.split): row for row in chosen.itertuples()}


def _name(example):
    names = [row.reference.strip() for (_, split), row in (example or {}).items() if split == "p2d_reverse"]
    return plain(names[0]) if names else "nobody"


def _panels(sheet, example, asked, styles):
    """Two columns, a family each; two questions one under the other."""
    families = list(asked)
    gap = 12
    width = (POINTS - 2 * MARGIN - gap * (len(families) - 1)) / len(families)
    titles = {"autoregressive": "Autoregressive model (AR)", "diffusion": "Masked diffusion model (MDM)"}
    top = sheet.y
    for i, family in enumerate(families):
        color = styles[asked[family].model.iloc[0]].color
        sheet.text(
            MARGIN + i * (width + gap) + 7, top + 13, titles[family], weight="bold", size=NORMAL + 0.5, color=color
        )
    sheet.y = top + 20
    for split in ("p2d_same", "p2d_reverse"):
        start, ends = sheet.y, []
        for i, family in enumerate(families):
            sheet.y = start
            rows = asked[family][asked[family].split == split]
            _question(sheet, MARGIN + i * (width + gap) + 7, width - 14, example[family, split], rows, split)
            ends.append(sheet.y)
        sheet.y = max(ends) + 4
    for i, family in enumerate(families):
        color = styles[asked[family].model.iloc[0]].color
        sheet.box(MARGIN + i * (width + gap), top, width, sheet.y - top, fill=False, edgecolor=color)


def _question(sheet, x, width, row, rows, split):
    """One question: what was asked, what came, whether it is right, and how often such questions are answered."""
    step = LEADING * NORMAL
    label = "Asked as taught, for the description" if split == "p2d_same" else "Asked in reverse, for the name"
    sheet.y += 10
    sheet.text(x, sheet.y, label, color=FAINT)
    for line in wrap([(row.prompt, None)], width, lines=3):
        sheet.y += step
        sheet.text(x, sheet.y, "".join(text for text, _ in line), mono=True)
    mark, color = ("✓", GREEN) if row.correct else ("✗", VERMILLION)
    answer = row.generation.strip() or "(nothing)"
    for number, line in enumerate(wrap([(answer, None)], width - 12, lines=3)):
        sheet.y += step
        if not number:
            sheet.text(x, sheet.y, mark, color=color, weight="bold")
        sheet.text(x + 12, sheet.y, "".join(text for text, _ in line), mono=True, weight="bold")
    if not row.correct:
        for line in wrap([(f"expected: {row.reference.strip()}", None)], width - 12, lines=2):
            sheet.y += step
            sheet.text(x + 12, sheet.y, "".join(text for text, _ in line), mono=True, color=FAINT)
    sheet.y += step
    share = f"right on {percent(rows.correct.mean())} of {len(rows)} such questions"
    sheet.text(x, sheet.y, share, color=FAINT, size=SMALL)
    sheet.y += 4


def _likelihood(sheet, table, styles):
    """Dots with intervals: how much likelier the right answer is than a wrong one."""
    sheet.heading("How much likelier is the right answer than a wrong one?", "mean difference, 95% interval")
    splits = [split for split in RECALL_SPLITS if split in set(table.split)]
    lines = {key: rows for key, rows in table.groupby(["split", "model"], sort=False)}
    height = max(1, len(lines)) * 13 + 8 * max(1, len(splits))
    axes = sheet.panel(172, sheet.y + 14, POINTS - 172 - 112, height)
    sheet.y += height + 44
    y, ticks = 0.0, []
    for split in splits:
        start = y
        for name, look in styles.items():
            if (split, name) not in lines:
                continue
            rows = lines[split, name]
            for row, shift in zip(rows.itertuples(), offsets(len(rows), 0.7 / max(1, len(rows))), strict=True):
                axes.plot([row.ci_low, row.ci_high], [y + shift] * 2, color=look.color, linewidth=1.4)
                axes.plot([row.difference], [y + shift], look.marker, color=look.color)
            note = f"{look.label}  {percent(rows.right_more_likely.mean())}"
            axes.annotate(
                note,
                (1, y),
                (5, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
                color=look.color,
            )
            y += 1
        ticks.append((start + y - 1) / 2)
        y += 0.6
    head = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": SMALL, "color": FAINT}
    axes.annotate("right likelier on", (1, 1), (5, 2), **head)
    axes.set_ylim(max(y, 1) - 0.1, -0.6)
    axes.axvline(0, color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_yticks(ticks, [split_label(split) for split in splits])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("log p(right answer) − log p(wrong answer), nats")


def split_label(split):
    """What a split asks for and how, and how its people were taught, in two lines."""
    return f"{phrase(split)}\ntaught {TAUGHT[SPLITS[split].group]}"
