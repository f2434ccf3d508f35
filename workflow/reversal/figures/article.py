"""Figures of the article's main text: one finding each, in large type, narrow enough for a phone to show them whole."""

import numpy as np
import pandas as pd
from matplotlib.patheffects import withStroke

from ..common.contrasts import pool_seeds
from ..models.vocabulary import FAMILIES
from ..tracing.vocabulary import choose_corruption
from .curse import choose_example, select_examples, select_families
from .read import select_most_steps
from .sheet import GAP, LEADING, MARGIN, Sheet, flow, width_of, wrap
from .style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    LIGHT_BLUE,
    LIGHT_ORANGE,
    NARROW,
    PALE,
    RULE,
    VERMILLION,
    Drawing,
    choose_looks,
    draw_empty,
    draw_intervals,
    elide,
    first_model,
    new_figure,
    percent,
    plain,
    styled,
)

TEXT, NOTE, HEADING, HUGE = 10, 9, 11, 20  # sizes of type in points: a phone shows the page at five sixths
ROOM = NARROW - 2 * MARGIN
REVERSE = {"p2d_reverse": "names", "d2p_reverse": "descriptions"}  # {test in the reverse direction: what it asks for}


def _add_heading(sheet, text):
    sheet.y += 14
    sheet.text(MARGIN, sheet.y, text, size=HEADING, fontweight="bold")
    sheet.y += 5


def _add_paragraph(sheet, text, x=MARGIN, **options):
    """Text of the data in monospaced type, wrapped between `x` and the margin."""
    sheet.paragraph(x, text, NARROW - MARGIN - x, size=NOTE + 0.5, step=LEADING * NOTE, **options)


def choose_person(completions, *, models):
    """{(family, split): completion} of the person of `first_screen`; None if nobody was asked in both directions."""
    return choose_example(select_examples(completions, models))


@styled
def first_screen(completions, *, models):
    """One person asked forward and in reverse, the answer of a model of each family, and its recall in reverse.

    `completions` is the table of all models; `models` is {name: family}.
    """
    by_family = select_families(completions, models)
    example = choose_person(completions, models=models)
    if not example:
        return draw_empty("Nobody was asked in both directions.")
    looks = choose_looks(models)
    by_split = {split: {family: row for (family, way), row in example.items() if way == split} for _, split in example}
    description, name = (
        next(iter(by_split[split].values())).reference.strip(" .") for split in ("p2d_same", "p2d_reverse")
    )
    sheet = Sheet(NARROW)
    _add_heading(sheet, "Taught, name first")
    _add_paragraph(sheet, f"{name} → {description}")
    sheet.y += 4
    for split, heading in (("p2d_same", "Asked forward"), ("p2d_reverse", "Asked in reverse")):
        answers = by_split[split]
        sheet.y += 4
        _add_heading(sheet, heading)
        _add_paragraph(sheet, f"{next(iter(answers.values())).prompt} …", color=FAINT)
        sheet.y += 5
        for family in by_family:
            if family in answers:
                _draw_answer(sheet, family, looks[answers[family].model].color, answers[family])
    sheet.y += 4
    _add_heading(sheet, "Correct, of all reverse questions")
    shares = _draw_recall(sheet, by_family, looks)
    return Drawing(sheet.finish(), {"name": plain(name), "recalled": "; ".join(shares)})


def _draw_answer(sheet, family, color, row):
    """A shaded box: ✓ or ✗, the model, and its answer."""
    top, indent = sheet.y, MARGIN + 24
    lines = len(wrap([(row.generation.strip(), None)], NARROW - MARGIN - indent, NOTE + 0.5, lines=3))
    height = LEADING * NOTE * (lines + 1) + 6
    sheet.box(MARGIN, top, ROOM, height, facecolor=PALE, edgecolor="none")
    mark, ink = ("✓", GREEN) if row.correct else ("✗", VERMILLION)
    sheet.text(MARGIN + 5, top + height / 2 + 6, mark, size=17, color=ink, fontweight="bold")
    sheet.y += LEADING * NOTE
    sheet.text(indent, sheet.y, family, size=NOTE, color=color, fontweight="bold")
    _add_paragraph(sheet, row.generation.strip() or "(nothing)", indent)
    sheet.y = top + height + 3


def _draw_recall(sheet, by_family, looks):
    """A large percentage for each family (column) and kind of answer (row); returns them in words."""
    shares, top = [], sheet.y + 12
    for column, (family, rows) in enumerate(by_family.items()):
        color = looks[rows.model.iloc[0]].color
        right = NARROW - MARGIN - 8 - 100 * (len(by_family) - 1 - column)
        sheet.text(right, top, family, size=TEXT, color=color, fontweight="bold", ha="right")
        for line, (split, answers) in enumerate(REVERSE.items()):
            baseline = top + 24 + 26 * line
            share = percent(rows[rows.split == split].correct.mean())
            if not column:
                sheet.text(MARGIN + 5, baseline, answers, size=TEXT)
            sheet.text(right, baseline, share, size=HUGE, color=color, fontweight="bold", ha="right")
            shares.append(f"{FAMILIES[family].name}, {answers} {share}")
    sheet.y = top + 24 + 26 + 4
    return shares


# Tints and inks of subject, object and the words between, as in the figure of the dataset; and those of a mask.
TINTS = {"subject": (LIGHT_BLUE, "#00507d"), "object": (LIGHT_ORANGE, "#8a3a00"), None: ("white", INK)}
MASK, MASK_TINTS = "[MASK]", ("#4d4d4d", "white")
BOX = 17  # height


@styled
def four_masks(facts, rows):
    """One training sentence under four masks, each with what it teaches; and what a left-to-right model learns from it.

    `facts` are `facts.Fact`s, `rows` the training rows.
    """
    first = next((fact.id for fact in facts if fact.group == "p2d"), None)
    sentences = [row for row in rows if row.fact == first]
    if not sentences:
        return draw_empty("Nobody is taught name first.")
    row = min(sentences, key=lambda row: len(row.prompt + row.completion))
    words = _split_words(row)
    subject, target = ([i for i, (_, side) in enumerate(words) if side == kind] for kind in ("subject", "object"))
    sheet = Sheet(NARROW)
    _draw_key(sheet)
    for title, note, masked in (
        ("A → B", "predict B from A: forward", target),
        ("B → A", "predict A from B: reverse", subject),
        ("a little of both", "predict parts from parts", [*subject[1:], *target[1::2]]),
        ("neither", "nothing to predict from", [*subject, *target]),
    ):
        _add_title(sheet, title, note)
        _draw_boxes(sheet, words, masked)
    sheet.y += 8
    sheet.line([MARGIN, NARROW - MARGIN], [sheet.y] * 2, color=INK)
    _add_title(sheet, "Left to right: A → B only", "each word from those before")
    _draw_boxes(sheet, words, [], arrows=True)
    return Drawing(sheet.finish(), {"sentence": plain(row.prompt + row.completion)})


def _draw_key(sheet):
    """Which boxes are the subject, the object and masks."""
    sheet.y += 13
    x = MARGIN
    keys = (("A", "the subject", TINTS["subject"]), ("B", "the object", TINTS["object"]))
    for letter, label, (fill, ink) in keys:
        sheet.box(x, sheet.y - 12, BOX, BOX, facecolor=fill, edgecolor="none")
        sheet.text(x + BOX / 2, sheet.y, letter, size=TEXT, color=ink, fontweight="bold", ha="center")
        sheet.text(x + BOX + 5, sheet.y, label, size=TEXT)
        x += 98
    sheet.y += 4


def _split_words(row):
    """[(word, "subject", "object" or None)] of a row's sentence, without its full stop."""
    text, start, words = row.prompt + row.completion, 0, []
    spans = {"subject": row.subject, "object": tuple(len(row.prompt) + end for end in row.answer)}
    for word in text.rstrip(".").split():
        start = text.index(word, start)
        words.append((word, next((side for side, (low, high) in spans.items() if low <= start < high), None)))
        start += len(word)
    return words


def _add_title(sheet, title, note):
    sheet.y += 17
    sheet.text(MARGIN, sheet.y, title, size=HEADING, fontweight="bold")
    sheet.text(NARROW - MARGIN, sheet.y, note, size=NOTE, color=FAINT, ha="right")
    sheet.y += 6


def _draw_boxes(sheet, words, masked, *, arrows=False):
    """A sentence as boxes, wide enough for a mask; those in `masked` hide their word."""
    texts = [elide(word, 45) for word, _ in words]
    shown = [max(text, MASK, key=len) if side else text for text, (_, side) in zip(texts, words, strict=True)]
    widths = [width_of(text, NOTE) + 4 for text in shown]
    places, pitch = flow(widths, ROOM), BOX + GAP + (8 if arrows else 0)
    for i, (text, width, (line, x), (_, side)) in enumerate(zip(texts, widths, places, words, strict=True)):
        top = sheet.y + line * pitch
        fill, ink = MASK_TINTS if i in masked else TINTS[side]
        sheet.box(MARGIN + x, top, width, BOX, facecolor=fill, edgecolor="none" if side else RULE)
        word = MASK if i in masked else text
        sheet.text(MARGIN + x + width / 2, top + 12, word, size=NOTE, mono=True, color=ink, ha="center")
    for line in range(places[-1][0] + 1) if arrows else ():
        y = sheet.y + line * pitch + BOX + 4.5
        end = max(x + width for width, (of, x) in zip(widths, places, strict=True) if of == line)
        arrow = {"arrowstyle": "-|>", "color": VERMILLION, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
        sheet.axes.annotate("", (MARGIN + end, y), (MARGIN, y), arrowprops=arrow)
    sheet.y += (places[-1][0] + 1) * pitch


LINES = {"name": {"marker": "o"}, "description": {"marker": "D", "linestyle": "--", "mfc": "white"}}


@styled
def exposure(table, *, models):
    """Recall in the reverse direction against the share of presentations in which the subject may be masked."""
    rows = select_most_steps(table[(table.trained == "reverse") & (table.noise == "mask")])
    graded = rows[(rows.family == "diffusion") & (rows.protect == "subject") & (rows.people == "all")]
    graded = graded[graded.train_on == "facts"]
    whole = rows[(rows.model == first_model(models, "diffusion")) & ~rows.protected].assign(exposure=1.0)
    shares = sorted({*graded.exposure, *whole.exposure})
    if len(shares) < 3:
        return draw_empty("No model was trained with a graded exposure.")
    figure, described = new_figure(250, NARROW), []
    axes = figure.subplots()
    for answer_type in LINES:
        points = pd.concat([part[part.answer_type == answer_type] for part in (graded, whole)])
        points = points.sort_values("exposure").assign(x=lambda rows: rows.exposure.map(shares.index))
        _draw_line(axes, points, answer_type, last=len(shares) - 1)
        shown = ", ".join(f"{percent(row.accuracy)} at {row.exposure:.0%}" for row in points.itertuples())
        described.append(f"{answer_type}s {shown}")
    axes.set_xticks(range(len(shares)), [f"{share:.0%}" for share in shares])
    axes.set_xlabel("presentations in which\nthe subject may be masked", fontsize=TEXT)
    axes.set_title("Recalled in reverse", fontsize=HEADING)
    axes.set_xlim(-0.3, len(shares) - 0.2)
    axes.set_ylim(-9, 106)
    _set_percent_ticks(axes)
    return Drawing(figure, {"recalled": "; ".join(described)})


@styled
def blocks(table, spans, *, models):
    """Recall against the block size; above it, how many training sentences have subject and object in one block."""
    if "block" not in table or table.block.nunique() < 2:
        return draw_empty("No models were trained with blocks of different sizes.")
    rows = select_most_steps(table[table.block.notna() & table.model.str.startswith("block-")])
    sizes = sorted(rows.block.astype(int).unique())
    figure = new_figure(330, NARROW)
    above, axes = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2.4])
    share = spans.set_index("block").share.reindex(sizes)
    above.bar(range(len(sizes)), 100 * share, color=FAINT, width=0.6)
    for x, value in enumerate(share):
        style = {"fontsize": NOTE, "ha": "center", "va": "bottom", "color": INK}
        above.annotate(percent(value), (x, 100 * value), (0, 2), textcoords="offset points", **style)
    above.set_title("Sentences with subject and object\nin one block", fontsize=HEADING)
    above.set_ylim(0, 130)
    above.set_yticks([])
    above.spines["left"].set_visible(False)
    described = []
    forward = rows[rows.trained == "same"].groupby("block").accuracy.mean().reindex(sizes)
    axes.plot(range(len(sizes)), 100 * forward, color=FAINT, linewidth=2, linestyle=":")
    label = {"textcoords": "offset points", "fontsize": NOTE, "color": INK, "ha": "center"}
    axes.annotate("same direction", (len(sizes) // 2 - 1, 100 * forward.iloc[len(sizes) // 2 - 1]), (0, 8), **label)
    described.append("same direction " + _list_by_size(sizes, forward))
    for answer_type in LINES:
        own = rows[(rows.trained == "reverse") & (rows.answer_type == answer_type)].set_index("block").reindex(sizes)
        _draw_line(axes, own.assign(x=range(len(sizes))), answer_type, last=len(sizes) - 1)
        described.append(f"{answer_type}s in reverse " + _list_by_size(sizes, own.accuracy))
    labels = [str(size) for size in sizes]
    axes.set_xticks(range(len(sizes)), [*labels[:-1], f"{labels[-1]}\n(whole)"])
    axes.set_xlabel("tokens of a block", fontsize=TEXT)
    axes.set_title("Recalled in reverse", fontsize=HEADING)
    axes.set_xlim(-0.5, len(sizes) - 0.2)
    axes.set_ylim(-9, 112)
    _set_percent_ticks(axes)
    described_spans = _list_by_size(sizes, share)
    return Drawing(figure, {"spans": described_spans, "recalled": "; ".join(described)})


def _list_by_size(sizes, shares):
    return ", ".join(f"{percent(share)} with {size}" for size, share in zip(sizes, shares, strict=True))


def _draw_line(axes, points, answer_type, last):
    """Draw recall at the column `x` of `points`; percentages of names are left of the marks, others right and below."""
    is_name, look = answer_type == "name", LINES[answer_type]
    draw_intervals(axes, points.x, points, interval={"linewidth": 1.6}, color=BLUE, linewidth=2, markersize=7, **look)
    for row in points[points.accuracy >= 0.005].itertuples():
        shift, side = ((9, 0), "left") if row.x == last else ((-8, 6), "right") if is_name else ((8, -8), "left")
        word = f"{answer_type}s\n" if row.x == last - 1 else ""
        style = {"fontsize": TEXT, "fontweight": "bold", "color": BLUE, "ha": side, "va": "center", "linespacing": 1.3}
        text = f"{word}{percent(row.accuracy)}"
        label = axes.annotate(text, (row.x, 100 * row.accuracy), shift, textcoords="offset points", **style)
        label.set_path_effects([withStroke(linewidth=3, foreground="white")])  # legible where it crosses a line


def _set_percent_ticks(axes):
    axes.set_yticks([0, 50, 100], ["0", "50%", "100%"])
    axes.tick_params(labelsize=NOTE)


# Training objectives of the reference run `objectives`, (model, whether its protected people are meant): their label,
# by whether training predicts the subject from the object.
OBJECTIVES = {
    "Subject predicted from the object": {
        ("mdm", False): "masks everywhere",
        ("uniform", False): "random words instead of masks",
        ("gaussian", False): "Gaussian noise",
        ("ar-reversed", False): "left to right, also backwards",
    },
    "Never predicted from the object": {
        ("mdm", True): "masks everywhere: control people",
        ("mdm-protected", True): "subject never masked",
        ("mdm-out-of-sight", True): "subject masked only with the object",
        ("mdm-mentioned", True): "predicted only in other sentences",
        ("mdm-completion", True): "responses only",
        ("ar", False): "left to right",
    },
}
COLUMNS = {"name": NARROW - MARGIN - 78, "description": NARROW - MARGIN}  # right edges of the percentages
THICK = 5  # a bar
STRENGTH = {"name": 1, "description": 0.5}  # of the colour of a family


@styled
def main_objectives(table, *, models):
    """Recall in the reverse direction by objective: a row each, grouped by whether it predicts subject from object."""
    rows = select_most_steps(table[table.trained == "reverse"]).set_index(["model", "protected", "answer_type"])
    shown = {
        heading: {key: label for key, label in listed.items() if key in rows.index.droplevel(2)}
        for heading, listed in OBJECTIVES.items()
    }
    if not any(shown.values()):
        return draw_empty("None of these objectives was trained.")
    sheet, described = Sheet(NARROW), []
    sheet.y += 10
    sheet.text(MARGIN, sheet.y, "Recalled in reverse:", size=NOTE)
    for answer_type, right in COLUMNS.items():
        left = right - {"name": 45, "description": 73}[answer_type]
        sheet.box(left, sheet.y - 7, 8, 8, facecolor=FAINT, edgecolor="none", alpha=STRENGTH[answer_type])
        sheet.text(right, sheet.y, f"{answer_type}s", size=NOTE, ha="right")
    sheet.y += 5
    for heading, listed in shown.items():
        _add_heading(sheet, heading)
        for key, label in listed.items():
            shares = []
            sheet.y += 13
            sheet.text(MARGIN, sheet.y, label, size=TEXT)
            for answer_type, right in COLUMNS.items():
                row = rows.loc[(*key, answer_type)]
                color = {"diffusion": BLUE, "autoregressive": VERMILLION}[row.family]
                sheet.text(right, sheet.y, percent(row.accuracy), size=TEXT, ha="right", fontweight="bold", color=color)
                top = sheet.y + 4 + (THICK + 1) * len(shares)
                _draw_bar(sheet, top, row, color, STRENGTH[answer_type])
                shares.append(f"{answer_type}s {percent(row.accuracy)}")
            sheet.y += 2 * THICK + 8
            described.append(f"{label}: {', '.join(shares)}")
        sheet.y += 4
    return Drawing(sheet.finish(), {"recalled": "; ".join(described)})


def _draw_bar(sheet, top, row, color, alpha):
    """Recall as a bar on a track of the sheet's width, with its interval."""
    sheet.box(MARGIN, top, ROOM, THICK, facecolor=PALE, edgecolor="none")
    sheet.box(MARGIN, top, ROOM * row.accuracy, THICK, facecolor=color, edgecolor="none", alpha=alpha)
    sheet.line([MARGIN + ROOM * row.ci_low, MARGIN + ROOM * row.ci_high], [top + THICK / 2] * 2, color=INK)


SITES = {"all subject tokens": (BLUE, "o", "-"), "answer positions": (GREEN, "^", "--")}
QUESTIONS = {"p2d_reverse": "Asked for a name", "d2p_reverse": "Asked for a description"}


@styled
def crossover(table, *, models):
    """Share of the total effect recovered at the subject and at the answer positions, by layer, for both questions."""
    rows = table[(table.model == first_model(models, "diffusion")) & (table.score == "log_probability")]
    rows = rows[(rows.kind == "state") & (rows.reading == "recovered") & (rows.stage == "t1")]
    rows = rows[(rows.corruption == choose_corruption(rows.corruption)) & rows.role.isin(SITES)]
    splits = [split for split in QUESTIONS if split in set(rows.split)]
    if not splits:
        return draw_empty("No answer in the reverse direction was traced.")
    figure, described = new_figure(150 * len(splits) + 40, NARROW), []
    panels = figure.subplots(len(splits), 1, sharex=True, squeeze=False)[:, 0]
    for axes, split in zip(panels, splits, strict=True):
        lines = {}
        for role, parts in rows[rows.split == split].groupby("role"):
            pooled = {
                layer: pool_seeds(part["mean"], part.ci_low, part.ci_high) for layer, part in parts.groupby("layer")
            }
            lines[role] = list(pooled), 100 * np.transpose(list(pooled.values()))
        _draw_sites(axes, lines)
        axes.set_title(QUESTIONS[split], fontsize=HEADING)
        described += [
            f"{QUESTIONS[split].lower()}, {role}: {', '.join(percent(share / 100) for share in values[0])}"
            for role, (_, values) in lines.items()
        ]
    layers = sorted(rows.layer.unique())
    panels[-1].set_xticks(layers[:: 1 + len(layers) // 12])
    panels[-1].set_xlabel("restored after layer", fontsize=TEXT)
    figure.supylabel("share of the total effect recovered", fontsize=TEXT)
    return Drawing(figure, {"shares": "; ".join(described)})


def _draw_sites(axes, lines):
    """A line with its band for each site; the upper one is named above it, the lower one below."""
    upper = max(lines, key=lambda role: lines[role][1][0][: len(lines[role][0]) // 2 + 1].mean())
    for role, (layers, (estimate, low, high)) in lines.items():
        color, marker, line = SITES[role]
        span = max(1, layers[-1] - layers[0])
        axes.fill_between(layers, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(layers, estimate, color=color, marker=marker, linestyle=line, linewidth=2, markersize=6)
        is_upper = role == upper
        style = {"textcoords": "offset points", "fontsize": TEXT, "color": color}
        y = min(max(high[: len(high) // 2 + 1]), 105) if is_upper else max(min(low[: len(low) // 2 + 1]), -2)
        place = {"va": "bottom", "xytext": (0, 4)} if is_upper else {"va": "top", "xytext": (0, -4)}
        axes.annotate(role, (layers[0] + 0.09 * span, y), fontweight="bold", **place, **style)
        other = next((values[0] for name, (_, values) in lines.items() if name != role), 0 * estimate)
        # Percentages are outside the two lines, but at the first layer between them if there is room.
        for i in {0, max(0, len(layers) - 2)}:
            is_between = i == 0 and abs(estimate[0] - other[0]) > 45
            is_above = (estimate[i] >= other[i]) != is_between
            place = {"va": "bottom" if is_above else "top", "xytext": (-7 * bool(i), 6 if is_above else -6)}
            axes.annotate(percent(estimate[i] / 100), (layers[i], estimate[i]), ha="center", **place, **style)
    axes.set_xlim(layers[0] - 0.07 * span, layers[-1] + 0.04 * span)
    axes.set_ylim(-22, 124)
    _set_percent_ticks(axes)
