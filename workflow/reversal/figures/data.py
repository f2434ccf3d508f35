"""The dataset: real rows with subject, relation and object marked."""

from ..data.facts import CONTROL_GROUPS, GROUPS, SPLITS
from .sheet import LEADING, LETTER, MARGIN, Sheet, width_of, wrap
from .style import (
    BLUE,
    FAINT,
    LIGHT_BLUE,
    LIGHT_ORANGE,
    NORMAL,
    POINTS,
    TAUGHT,
    VERMILLION,
    Drawing,
    columns,
    nothing,
    styled,
)

LEFT = 104
# Told apart by the tint, and where there is no colour by the line under it.
MARKS = {"subject": (LIGHT_BLUE, BLUE, "-"), "object": (LIGHT_ORANGE, VERMILLION, (0, (3, 1.5)))}


@styled
def dataset(facts, train, splits, *, protected=False):
    """One person of each group, and how the group is taught and tested.

    `facts` are `facts.Fact`s, `train` is the list of training rows, `splits` has the test rows by split. Of people
    whom training can protect, `protected` says that every diffusion model does.
    """
    if not facts or not train:
        return nothing("The dataset is empty.")
    sheet = Sheet()
    _legend(sheet)
    counts = {}
    for group in GROUPS:
        people = [fact for fact in facts if fact.group == group]
        if not people:
            continue
        ids = {fact.id for fact in people}
        rows = [row for row in train if row.fact in ids]
        counts[group] = (len(people), len(rows))
        sheet.y += 4
        sheet.heading(f"{group}: taught {TAUGHT[group]}", f"{len(people)} people, {len(rows):,} sentences")
        for label, row in _shown(group, people[0], rows, splits):
            _sentence(sheet, label, row)
    apart = {fact.id for fact in facts if fact.group in CONTROL_GROUPS}
    if apart:
        rows = sum(row.fact in apart for row in train)
        sheet.y += 4
        sheet.heading("control: taught one way or the other", f"{len(apart)} people, {rows:,} sentences")
        protects = "is never masked" if protected else "training can protect"
        sheet.text(LEFT, sheet.y + 10, f"as p2d and d2p are, but with a subject that {protects}", color=FAINT)
        sheet.y += 14
    says = {f"{group}_people": counts.get(group, (0, 0))[0] for group in GROUPS}
    control = f", and {len(apart)} more as a control" if apart else ""
    return Drawing(sheet.done(), says | {"rows": f"{len(train):,}", "control": control})


def _shown(group, fact, rows, splits):
    """Labels and rows about one fact: taught, then asked."""
    mine = [row for row in rows if row.fact == fact.id]
    spoken = {"p2d": [row for row in mine if _asks_description(row, fact)]}
    spoken["d2p"] = [row for row in mine if row not in spoken["p2d"]]
    for some in spoken.values():
        if some:
            yield "taught", some[0]
    for name, split in SPLITS.items():
        asked = [row for row in splits.get(name, []) if row.fact == fact.id]
        if split.group == group and asked:
            how = {"same": "asked as taught", "reverse": "asked in reverse", "both": "asked"}
            yield how[split.trained], asked[0]


def _asks_description(row, fact):
    return row.answer_text in {fact.description, *fact.trained_as}


def _sentence(sheet, label, row):
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
            mark(sheet, x, sheet.y + 10, text, kind)
            x += width_of(text)
        sheet.y += LEADING * NORMAL + 1


def mark(sheet, x, y, text, kind=None):
    """Monospaced text with its baseline at `y`, tinted and underlined by its kind."""
    if kind:
        fill, edge, line = MARKS[kind]
        ahead = columns(text) - columns(text.lstrip())
        start, width = x + ahead * LETTER * NORMAL, width_of(text.strip())
        sheet.box(start - 0.5, y - 8.5, width + 1, 11.5, facecolor=fill, linewidth=0)
        sheet.line([start, start + width], [y + 3, y + 3], color=edge, linewidth=1.1, linestyle=line)
    if text.strip():
        sheet.text(x, y, text, mono=True)


def _legend(sheet):
    sheet.y += 10
    x = LEFT
    for text, kind in (("subject", "subject"), ("relation", None), ("object", "object")):
        mark(sheet, x, sheet.y, text, kind)
        x += width_of(text) + 18
    sheet.y += 4
