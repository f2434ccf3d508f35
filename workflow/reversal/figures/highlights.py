# P3 to P1: figures/article.py (mine, brief of the main developer) draws all six, in 300 points; I register them there
# and remove highlights.py and example.py. Please don't go on with these two. (07:15)
"""Figures of the article's main text, one finding each, narrow enough for a phone to show them whole."""

import numpy as np

from ..common.contrasts import pool_seeds
from ..tracing.vocabulary import choose_corruption
from .read import select_most_steps
from .sheet import LEADING, MARGIN, Cell, Sheet, width_of
from .style import (
    BLUE,
    FAINT,
    LIGHT_BLUE,
    LIGHT_ORANGE,
    NORMAL,
    PALE,
    RULE,
    SMALL,
    VERMILLION,
    Drawing,
    draw_empty,
    first_model,
    new_figure,
    number,
    percent,
    styled,
)

WIDTH = 350  # points
ANSWERS = {"name": (BLUE, "o", "names"), "description": (VERMILLION, "s", "descriptions")}
# Training objectives of the reference run `objectives`, and whether a subject is ever predicted from its object.
OBJECTIVES = {
    "mdm": ("Masks anywhere", True),
    "uniform": ("Random words instead of masks", True),
    "gaussian": ("Gaussian noise instead of masks", True),
    "ar-reversed": ("Left to right, and backwards", True),
    "mdm-protected": ("Masks never on the subject", False),
    "mdm-out-of-sight": ("Subject masked only with the object", False),
    "mdm-mentioned": ("Subject predicted in other sentences", False),
    "mdm-completion": ("Responses only", False),
    "ar": ("Left to right", False),
}
ROLES = {"all subject tokens": (BLUE, "-", "o"), "answer positions": (VERMILLION, "--", "s")}
QUESTIONS = {"p2d_reverse": "Asked for the name", "d2p_reverse": "Asked for the description"}
EDITS = {"p2d": "A new description", "d2p": "A new name"}
ASKED = {"paraphrase": "asked in other words", "reverse": "asked in reverse"}


@styled
def four_masks(facts, train):
    """One training sentence under four masks, each with what it teaches."""
    people = {fact.id: fact for fact in facts if fact.group == "p2d"}
    row = next((row for row in train if row.fact in people), None)
    if row is None:
        return draw_empty("Nobody is taught name first.")
    words = _words(row)
    kinds = [kind for _, kind in words]
    places = {kind: [i for i, one in enumerate(kinds) if one == kind] for kind in ("subject", "object")}
    scattered = {*places["subject"][:1], *places["object"][1::2]}
    masks = {
        "object": (set(places["object"]), "A → B", "predict the object from the subject"),
        "subject": (set(places["subject"]), "B → A", "predict the subject from the object"),
        "some": (scattered, "some of each", "a little of both"),
        "both": (set(places["subject"]) | set(places["object"]), "neither", "nothing to predict from"),
    }
    sheet = Sheet(WIDTH)
    room = WIDTH - 2 * MARGIN
    for hidden, title, note in masks.values():
        sheet.heading(title, note)
        cells, widths = [], []
        for i, (word, kind) in enumerate(words):
            fill = {"subject": LIGHT_BLUE, "object": LIGHT_ORANGE}.get(kind, "white")
            cell = Cell("[MASK]", PALE, FAINT, FAINT) if i in hidden else Cell(word, fill, RULE)
            cells.append(cell)
            widths.append(width_of(max(word, "[MASK]", key=len), SMALL) + 6)
        sheet.cells(cells, widths, x=MARGIN, room=room, size=SMALL)
        sheet.y += 4
    return Drawing(sheet.finish(), {"sentence": f"{row.prompt}{row.completion}"})


def _words(row):
    """[(word, "subject", "object" or None)] of a row's sentence."""
    text = row.prompt + row.completion
    spans = {"subject": row.subject, "object": tuple(len(row.prompt) + end for end in row.answer)}
    words, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        kinds = [kind for kind, (low, high) in spans.items() if low <= start < high]
        words.append((word, kinds[0] if kinds else None))
        start += len(word)
    return words


@styled
def exposure(table, *, models):
    """Recall in reverse against the share of presentations in which a subject may be masked."""
    rows = select_most_steps(table[(table.trained == "reverse") & (table.noise == "mask")])
    graded = rows[(rows.people == "all") & (rows.protect == "subject") & (rows.family == "diffusion")]
    graded = graded[graded.train_on == "facts"]
    whole = rows[(rows.model == first_model(models, "diffusion")) & ~rows.protected].assign(exposure=1.0)
    shares = sorted({*graded.exposure, *whole.exposure})
    if len(shares) < 3:
        return draw_empty("No model was trained with a graded exposure.")
    figure = new_figure(190, WIDTH)
    axes, said = figure.subplots(), []
    for answer, (color, marker, label) in ANSWERS.items():
        found = [part[part.answer_type == answer] for part in (graded, whole)]
        found = sorted((row for part in found for row in part.itertuples()), key=lambda row: row.exposure)
        x = [shares.index(row.exposure) for row in found]
        ends = [[getattr(row, end) for row in found] for end in ("ci_low", "ci_high")]
        axes.fill_between(x, *ends, color=color, alpha=0.15, linewidth=0)
        axes.plot(x, [row.accuracy for row in found], color=color, marker=marker, label=label)
        said.append(f"{label}: " + ", ".join(f"{percent(row.accuracy)} at {row.exposure:.0%}" for row in found))
    axes.set_xticks(range(len(shares)), ["never", *(f"{share:.0%}" for share in shares[1:-1]), "always"])
    axes.set_xlabel("share of presentations in which the subject may be masked")
    _percent_axis(axes, "correct in reverse")
    axes.legend(loc="upper left")
    return Drawing(figure, {"recalled": "; ".join(said)})


@styled
def main_objectives(table, *, models):
    """Recall in reverse for objectives that do and do not predict a subject from its object."""
    rows = select_most_steps(table[table.trained == "reverse"])
    shown = [name for name in OBJECTIVES if name in set(rows.model)]
    if not shown:
        return draw_empty("None of these objectives was trained.")
    sheet, said = Sheet(WIDTH), []
    group, left, right = None, MARGIN + 6, WIDTH - MARGIN - 8
    for name in shown:
        title, predicted = OBJECTIVES[name]
        if predicted != group:
            group = predicted
            sheet.heading("The subject is predicted from the object" if predicted else "It never is")
        own = rows[rows.model == name]
        own = own[~own.protected] if (~own.protected).any() else own
        sheet.y += LEADING * NORMAL
        sheet.text(MARGIN, sheet.y, title)
        middle = sheet.y + 9
        sheet.line([left, right], [middle, middle], color=RULE)
        for answer, (color, marker, _) in ANSWERS.items():
            for row in own[own.answer_type == answer].itertuples():
                low, high = (left + (right - left) * end for end in (row.ci_low, row.ci_high))
                place = left + (right - left) * row.accuracy
                sheet.line([low, high], [middle, middle], color=color, linewidth=2, alpha=0.5)
                sheet.axes.plot([place], [middle], marker, color=color, markersize=6, clip_on=False, zorder=3)
                said.append(f"{title}, {answer}s {percent(row.accuracy)}")
        sheet.y = middle + 5
    sheet.y += LEADING * NORMAL
    for share in (0, 0.5, 1):
        sheet.text(left + (right - left) * share, sheet.y, f"{share:.0%}", ha="center", size=SMALL, color=FAINT)
    sheet.y += LEADING * NORMAL
    _legend(sheet)
    return Drawing(sheet.finish(), {"recalled": "; ".join(said)})


def _legend(sheet):
    x = MARGIN + 6
    for color, marker, label in ANSWERS.values():
        sheet.axes.plot([x], [sheet.y - 3], marker, color=color, markersize=5)
        sheet.text(x + 7, sheet.y, f"{label}, asked in reverse", size=SMALL)
        x += 150


@styled
def crossover(table, *, models):
    """Share of the total effect recovered at the subject and at the answer positions, by layer, for both questions."""
    rows = table[(table.model == first_model(models, "diffusion")) & (table.score == "log_probability")]
    rows = rows[(rows.kind == "state") & (rows.reading == "recovered") & (rows.stage == "t1")]
    rows = rows[rows.corruption == choose_corruption(rows.corruption)]
    splits = [split for split in QUESTIONS if split in set(rows.split)]
    if not splits:
        return draw_empty("No answer in reverse was traced.")
    figure, said = new_figure(185, WIDTH), []
    panels = figure.subplots(1, len(splits), sharey=True, squeeze=False)[0]
    for axes, split in zip(panels, splits, strict=True):
        axes.set_title(QUESTIONS[split])
        for role, (color, line, marker) in ROLES.items():
            own = rows[(rows.split == split) & (rows.role == role)]
            found = {layer: pool_seeds(part["mean"], part.ci_low, part.ci_high) for layer, part in own.groupby("layer")}
            estimate, low, high = np.transpose(list(found.values())) if found else np.empty((3, 0))
            axes.fill_between(list(found), low, high, color=color, alpha=0.15, linewidth=0)
            axes.plot(list(found), estimate, color=color, linestyle=line, marker=marker, markersize=4, label=role)
            shares = ", ".join(percent(max(0.0, share)) for share in estimate)
            said.append(f"{QUESTIONS[split].lower()}, {role} {shares}")
        axes.set_xlabel("restored after layer")
        axes.set_xticks(range(0, int(rows.layer.max()) + 1, 1 if rows.layer.max() < 10 else 4))
    _percent_axis(panels[0], "total effect recovered")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return Drawing(figure, {"shares": "; ".join(said)})


@styled
def edit_transfer(table, *, models):
    """How much of a fine-tuned edit appears in other words of the same question, and in the reverse direction."""
    rows = table[(table.model == first_model(models, "diffusion")) & (table.group == "both") & table.seed.notna()]
    rows = rows[(rows.kind == "replace") & (rows.answer == "new") & (rows.about == "difference")]
    rows = rows[(rows.steps == "converged") & (rows.weights == rows.weights.iloc[0] if len(rows) else True)]
    rows = rows[rows.transfer.notna() & rows.question.isin(ASKED)]
    if rows.empty:
        return draw_empty("No edit converged.")
    figure, said, labels = new_figure(150, WIDTH), [], []
    axes = figure.subplots()
    for edited, what in EDITS.items():
        for question, how in ASKED.items():
            own = rows[(rows.edited == edited) & (rows.question == question)]
            if own.empty:
                continue
            found = pool_seeds(own.transfer, own.transfer_low, own.transfer_high)
            color = VERMILLION if question == "reverse" else BLUE
            axes.barh(len(labels), found.estimate, color=color, height=0.6)
            axes.plot([found.low, found.high], [len(labels)] * 2, color="black", linewidth=1)
            labels.append(f"{what},\n{how}")
            said.append(f"{what.lower()}, {how}, {number(100 * found.estimate)}%")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.axvline(0, color=FAINT, linewidth=0.7)
    axes.xaxis.set_major_formatter(lambda share, _: percent(share) if share >= 0 else f"{100 * share:.0f}%")
    axes.set_xlabel("share of the edit's effect that appears")
    return Drawing(figure, {"shares": "; ".join(said)})


def _percent_axis(axes, label):
    axes.set_ylim(-0.05, 1.08)
    axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    axes.set_ylabel(label)
