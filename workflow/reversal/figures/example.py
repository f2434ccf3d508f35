"""One person asked in both directions, and the answer of one model of each family."""

from ..data.facts import FORWARD_REVERSE
from ..models.vocabulary import FAMILIES
from .read import select_most_steps
from .sheet import LEADING, MARGIN, Sheet, wrap
from .style import (
    GREEN,
    NORMAL,
    PALE,
    VERMILLION,
    Drawing,
    choose_looks,
    draw_empty,
    first_model,
    percent,
    plain,
    styled,
)

WIDTH = 350  # points: a phone shows the figure whole
LABEL, SHARE = 34, 46  # widths of the columns beside an answer
SIZE = NORMAL + 0.5
HEADINGS = {"same": "Asked forward, as it was taught", "reverse": "Asked in reverse"}
# The example that shows the difference where there is one: who is right in which direction.
WANTED = {("diffusion", "same"), ("diffusion", "reverse"), ("autoregressive", "same")}


@styled
def ask_both_ways(completions, *, models):
    """One person taught name first, asked forward and in reverse, with each family's answer and its share correct.

    `completions` is the table of all models; `models` is {name: family}.
    """
    answers = {}
    for family in FAMILIES:
        own = completions[completions.model == first_model(models, family)]
        own = select_most_steps(own[own.split.isin(FORWARD_REVERSE["p2d"])])
        answers |= {(family, split.split("_")[1]): rows for split, rows in own.groupby("split")}
    example = choose_person(answers)
    if not example:
        return draw_empty("Nobody was asked in both directions.")
    sheet, looks, shares = Sheet(WIDTH), choose_looks(models), {}
    for direction, heading in HEADINGS.items():
        asked = {family: row for (family, way), row in example.items() if way == direction}
        if not asked:
            continue
        sheet.heading(heading)
        prompt = f"{next(iter(asked.values())).prompt} …"
        for line in wrap([(prompt, None)], WIDTH - 2 * MARGIN, SIZE, lines=3):
            sheet.y += LEADING * SIZE
            sheet.text(MARGIN, sheet.y, "".join(text for text, _ in line), mono=True, size=SIZE)
        sheet.y += 6
        for family, row in asked.items():
            shares[family, direction] = percent(answers[family, direction].correct.mean())
            _answer(sheet, looks[row.model], row, shares[family, direction])
    said = "; ".join(
        f"{FAMILIES[family].name} {share} {'forward' if way == 'same' else 'in reverse'}"
        for (family, way), share in shares.items()
    )
    return Drawing(sheet.finish(), {"name": plain(_name(example)), "recalled": said})


def _answer(sheet, look, row, share):
    """A shaded line: the model, ✓ or ✗, its answer, and the share of all such questions that it answers."""
    room = WIDTH - 2 * MARGIN - LABEL - SHARE - 14
    lines = wrap([(row.generation.strip() or "(nothing)", None)], room, SIZE, lines=2)
    height = LEADING * SIZE * len(lines) + 6
    sheet.box(MARGIN, sheet.y, WIDTH - 2 * MARGIN, height, facecolor=PALE, edgecolor="none")
    first = sheet.y + LEADING * SIZE - 1
    mark, color = ("✓", GREEN) if row.correct else ("✗", VERMILLION)
    sheet.text(MARGIN + 5, first, look.label, color=look.color, fontweight="bold", size=SIZE)
    sheet.text(MARGIN + LABEL, first, mark, color=color, fontweight="bold", size=SIZE + 2)
    for number, line in enumerate(lines):
        where = MARGIN + LABEL + 14, first + number * LEADING * SIZE
        sheet.text(*where, "".join(text for text, _ in line), mono=True, size=SIZE)
    sheet.text(WIDTH - MARGIN - 5, first, share, ha="right", fontweight="bold", size=SIZE + 2, color=color)
    sheet.y += height + 3


def choose_person(answers):
    """{(family, direction): completion} of one person and one prompt each way; None where nobody was asked both ways.

    Prefers a person whom the diffusion model answers word for word both ways and the autoregressive model forward only.
    """
    best = None
    rows = {key: _best_rows(table, key in WANTED) for key, table in answers.items()}
    for fact in dict.fromkeys(fact for table in answers.values() for fact in table.fact):
        example = {key: found[fact] for key, found in rows.items() if fact in found}
        if {way for _, way in example} != {"same", "reverse"}:
            continue
        points = sum(point for point, _ in example.values())
        if best is None or points > best[0]:
            best = points, {key: row for key, (_, row) in example.items()}
    return _same_prompts(best[1], answers) if best else None


def _best_rows(table, right):
    """{fact: (points, row)}: of each fact's completions the one that comes closest to what is wanted."""
    found = {}
    for row in table.itertuples():
        exact = row.generation.strip(" .").lower() == row.reference.strip(" .").lower()
        points = 2 * (row.correct == right) + (exact if right else len(row.generation) < 60)
        if row.fact not in found or points > found[row.fact][0]:
            found[row.fact] = points, row
    return found


def _same_prompts(example, answers):
    """The example with one prompt for both families in each direction, that of the diffusion model if there is one."""
    for direction in HEADINGS:
        leading = example.get(("diffusion", direction)) or example.get(("autoregressive", direction))
        for family in FAMILIES:
            if (family, direction) in example:
                rows = answers[family, direction]
                same = rows[(rows.fact == leading.fact) & (rows.prompt == leading.prompt)]
                if len(same):
                    example[family, direction] = next(same.itertuples())
    return example


def _name(example):
    return next((row.reference.strip() for (_, way), row in example.items() if way == "reverse"), "nobody")
