"""The dataset: rows of the study with subject, relation and object marked."""

from ..data.facts import CONTROL_GROUPS, GROUPS, SPLITS
from .sheet import LEADING, LETTER, MARGIN, Sheet, width_of, wrap
from .style import (
    BLUE,
    DIRECTION_LABELS,
    FAINT,
    LIGHT_BLUE,
    LIGHT_ORANGE,
    NORMAL,
    POINTS,
    VERMILLION,
    Drawing,
    columns,
    draw_empty,
    styled,
)

LEFT = 104
# A tint and, for readers without colour, a line below.
MARKS = {"subject": (LIGHT_BLUE, BLUE, "-"), "object": (LIGHT_ORANGE, VERMILLION, (0, (3, 1.5)))}


@styled
def dataset(facts, train, splits, *, protected=False):
    """One person of each group, with training and test rows.

    `facts` is a list of `facts.Fact`, `train` of training rows, `splits` is {split: rows}. `protected` tells whether
    every diffusion model protects the control people's subjects.
    """
    if not facts or not train:
        return draw_empty("The dataset is empty.")
    sheet = Sheet()
    _draw_legend(sheet)
    counts = {}
    for group in GROUPS:
        people = [fact for fact in facts if fact.group == group]
        if not people:
            continue
        ids = {fact.id for fact in people}
        rows = [row for row in train if row.fact in ids]
        counts[group] = (len(people), len(rows))
        sheet.y += 4
        sheet.heading(f"{group}: trained {DIRECTION_LABELS[group]}", f"{len(people)} people, {len(rows):,} sentences")
        for label, row in _select_rows(group, people[0], rows, splits):
            _draw_row(sheet, label, row)
    control_facts = {fact.id for fact in facts if fact.group in CONTROL_GROUPS}
    if control_facts:
        rows = sum(row.fact in control_facts for row in train)
        sheet.y += 4
        sheet.heading("control: trained in one direction", f"{len(control_facts)} people, {rows:,} sentences")
        protection = "is never masked" if protected else "training can protect"
        sheet.text(LEFT, sheet.y + 10, f"like p2d and d2p, but with a subject that {protection}", color=FAINT)
        sheet.y += 14
    says = {f"{group}_people": counts.get(group, (0, 0))[0] for group in GROUPS}
    control = f", and {len(control_facts)} more as a control" if control_facts else ""
    return Drawing(sheet.finish(), says | {"rows": f"{len(train):,}", "control": control})


def _select_rows(group, fact, rows, splits):
    """Yield (label, row) of one fact: a training row of each direction, then a question of each of its splits."""
    trained = [row for row in rows if row.fact == fact.id]
    by_direction = {"p2d": [row for row in trained if _asks_description(row, fact)]}
    by_direction["d2p"] = [row for row in trained if row not in by_direction["p2d"]]
    for of_direction in by_direction.values():
        if of_direction:
            yield "training", of_direction[0]
    for name, split in SPLITS.items():
        questions = [row for row in splits.get(name, []) if row.fact == fact.id]
        if split.group == group and questions:
            labels = {"same": "same direction", "reverse": "reverse direction", "both": "test"}
            yield labels[split.trained], questions[0]


def _asks_description(row, fact):
    return row.answer_text in {fact.description, *fact.trained_as}


def _draw_row(sheet, label, row):
    """Draw a row with its subject and object marked, and a label at the left."""
    (start, end), (first, last) = row.subject, row.answer
    pieces = [
        (row.prompt[:start], None),
        (row.prompt[start:end], "subject"),
        (row.prompt[end:] + row.completion[:first], None),
        (row.completion[first:last], "object"),
        (row.completion[last:], None),
    ]
    sheet.y += 3
    sheet.text(LEFT - 8, sheet.y + 10, label, ha="right", color=FAINT)
    for line in wrap(pieces, POINTS - LEFT - MARGIN, lines=4):
        x = LEFT
        for text, kind in line:
            draw_marked(sheet, x, sheet.y + 10, text, kind)
            x += width_of(text)
        sheet.y += LEADING * NORMAL + 1


def draw_marked(sheet, x, y, text, kind=None):
    """Draw monospaced text with its baseline at `y`, tinted and underlined as its `kind`, a key of `MARKS`."""
    if kind:
        fill, edge, line = MARKS[kind]
        indent = columns(text) - columns(text.lstrip())
        start, width = x + indent * LETTER * NORMAL, width_of(text.strip())
        sheet.box(start - 0.5, y - 8.5, width + 1, 11.5, facecolor=fill, linewidth=0)
        sheet.line([start, start + width], [y + 3, y + 3], color=edge, linewidth=1.1, linestyle=line)
    if text.strip():
        sheet.text(x, y, text, mono=True)


def _draw_legend(sheet):
    sheet.y += 10
    x = LEFT
    for text, kind in (("subject", "subject"), ("relation", None), ("object", "object")):
        draw_marked(sheet, x, sheet.y, text, kind)
        x += width_of(text) + 18
    sheet.y += 4
