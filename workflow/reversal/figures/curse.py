"""The reversal curse: one fact in both directions, as answered by both families, and the likelihood test."""

import pandas as pd

from ..data.facts import FORWARD_REVERSE, RECALL_SPLITS, SPLITS
from ..models.vocabulary import FAMILIES
from .read import select_most_steps
from .sheet import LEADING, MARGIN, Sheet
from .style import (
    DIRECTION_LABELS,
    FAINT,
    GREEN,
    NORMAL,
    POINTS,
    SMALL,
    VERMILLION,
    Drawing,
    choose_looks,
    describe_split,
    draw_empty,
    first_model,
    offsets,
    percent,
    plain,
    styled,
)

# {(family, split): is it correct} of a fact that shows the curse in the autoregressive model alone.
CURSE_PATTERN = {
    ("autoregressive", "p2d_same"): True,
    ("autoregressive", "p2d_reverse"): False,
    ("diffusion", "p2d_same"): True,
    ("diffusion", "p2d_reverse"): True,
}
WEIGHTS = {"autoregressive": 2, "diffusion": 1}  # of the families in the choice of an example
CLEAR = 0.1  # weight of a clear answer: all of them together weigh less than one match of the pattern


@styled
def reversal_curse(completions, likelihood, *, models):
    """One fact in both directions, as answered by both families; below, the likelihood test of every model.

    `completions` and `likelihood` are tables of all models; `models` is {name: family}.
    """
    if completions.empty:
        return draw_empty("There are no completions to show.")
    sheet = Sheet()
    by_family = dict(sorted(select_examples(completions, models).items()))
    example = choose_example(by_family)
    if example:
        _draw_panels(sheet, example, by_family, choose_looks(models))
        sheet.y += 6
    _draw_likelihood(sheet, likelihood[likelihood.split.isin(RECALL_SPLITS)], choose_looks(models))
    shares = {
        FAMILIES[family].name: [percent(rows[rows.split == split].correct.mean()) for split in FORWARD_REVERSE["p2d"]]
        for family, rows in by_family.items()
    }
    recalled = "; ".join(f"{family} {same} and {reverse}" for family, (same, reverse) in shares.items())
    return Drawing(sheet.finish(), {"name": _find_name(example), "recalled": recalled})


def select_families(completions, models):
    """{family: completions of its first model, with the most steps}, of families that have any."""
    own = {family: completions[completions.model == first_model(models, family)] for family in FAMILIES}
    return {family: select_most_steps(rows) for family, rows in own.items() if len(rows)}


def select_examples(completions, models):
    """{family: completions to choose an example from}: of the first seed, about people taught name first."""
    return {
        family: rows[(rows.seed == rows.seed.iloc[0]) & rows.split.isin(FORWARD_REVERSE["p2d"])]
        for family, rows in select_families(completions, models).items()
    }


def choose_example(by_family):
    """{(family, split): completion} of one fact in both directions; None if there is none.

    `by_family` has the completions of one model of each family. The fact is the first that best matches
    `CURSE_PATTERN`, if possible with clear answers.
    """
    parts = [rows.assign(family=family) for family, rows in by_family.items()]
    rows = pd.concat(parts) if parts else pd.DataFrame()
    if rows.empty:
        return None
    expected = [CURSE_PATTERN[key] for key in zip(rows.family, rows.split, strict=True)]
    rows["points"] = rows.family.map(WEIGHTS) * (rows.correct == expected)
    rows["points"] += [CLEAR * _is_clear(row, right) for row, right in zip(rows.itertuples(), expected, strict=True)]
    points = rows.groupby(["fact", "split", "prompt"], sort=False).points.sum().reset_index()
    best = points.loc[points.groupby(["fact", "split"], sort=False).points.idxmax()]
    total = best.groupby("fact", sort=False).points.agg(["sum", "size"])
    total = total[total["size"] == 2]["sum"]
    if total.empty:
        return None
    prompts = set(best[best.fact == total.idxmax()].prompt)
    chosen = rows[(rows.fact == total.idxmax()) & rows.prompt.isin(prompts)]
    return {(row.family, row.split): row for row in chosen.itertuples()}


def _is_clear(row, expected):
    """Whether a generation equals the reference or, if `expected` to be wrong, has its length and form."""
    words, reference = row.generation.strip(" .").split(), row.reference.strip(" .").split()
    if expected:
        return words == reference
    has_form = len(words) == len(reference) and words[0].istitle() == reference[0].istitle()
    return has_form and not set(words) & set(row.prompt.split())


def _find_name(example):
    """The name that the example's reverse question asks for."""
    names = [row.reference.strip() for (_, split), row in (example or {}).items() if split == "p2d_reverse"]
    return plain(names[0]) if names else "nobody"


def _draw_panels(sheet, example, by_family, styles):
    """Draw a column per family with the two questions below each other."""
    families = list(by_family)
    gap = 12
    width = (POINTS - 2 * MARGIN - gap * (len(families) - 1)) / len(families)
    titles = {"autoregressive": "Autoregressive model (AR)", "diffusion": "Masked diffusion model (MDM)"}
    top = sheet.y
    for i, family in enumerate(families):
        color = styles[by_family[family].model.iloc[0]].color
        sheet.text(
            MARGIN + i * (width + gap) + 7, top + 13, titles[family], weight="bold", size=NORMAL + 0.5, color=color
        )
    sheet.y = top + 20
    for split in ("p2d_same", "p2d_reverse"):
        start, ends = sheet.y, []
        for i, family in enumerate(families):
            sheet.y = start
            rows = by_family[family][by_family[family].split == split]
            _draw_question(sheet, MARGIN + i * (width + gap) + 7, width - 14, example[family, split], rows, split)
            ends.append(sheet.y)
        sheet.y = max(ends) + 4
    for i, family in enumerate(families):
        color = styles[by_family[family].model.iloc[0]].color
        sheet.box(MARGIN + i * (width + gap), top, width, sheet.y - top, fill=False, edgecolor=color)


def _draw_question(sheet, x, width, row, rows, split):
    """Draw one question: the prompt, the generation, whether it is correct, and the accuracy on such questions."""
    step = LEADING * NORMAL
    label = "Same direction: the description" if split == "p2d_same" else "Reverse direction: the name"
    sheet.y += 10
    sheet.text(x, sheet.y, label, color=FAINT)
    sheet.paragraph(x, row.prompt, width)
    mark, color = ("✓", GREEN) if row.correct else ("✗", VERMILLION)
    sheet.text(x, sheet.y + step, mark, color=color, weight="bold")
    sheet.paragraph(x + 12, row.generation.strip() or "(nothing)", width - 12, weight="bold")
    if not row.correct:
        sheet.paragraph(x + 12, f"expected: {row.reference.strip()}", width - 12, lines=2, color=FAINT)
    sheet.y += step
    accuracy = f"correct on {percent(rows.correct.mean())} of {len(rows)} such questions"
    sheet.text(x, sheet.y, accuracy, color=FAINT, size=SMALL)
    sheet.y += 4


def _draw_likelihood(sheet, table, styles):
    """Draw dots with intervals: how much more likely the correct answer is than a wrong one."""
    sheet.heading("Is the correct answer more likely than a wrong one?", "mean difference, 95% interval")
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
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
            axes.annotate(note, (1, y), (5, 0), **place, fontsize=SMALL, color=look.color)
            y += 1
        ticks.append((start + y - 1) / 2)
        y += 0.6
    head = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": SMALL, "color": FAINT}
    axes.annotate("more likely on", (1, 1), (5, 2), **head)
    axes.set_ylim(max(y, 1) - 0.1, -0.6)
    axes.axvline(0, color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_yticks(ticks, [_label_split(split) for split in splits])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("log p(correct answer) − log p(wrong answer), nats")


def _label_split(split):
    """The test and the direction of training, in two lines."""
    return f"{describe_split(split)}\ntrained {DIRECTION_LABELS[SPLITS[split].group]}"
