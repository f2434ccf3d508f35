"""How an answer comes about: one step of denoising, and a whole generation."""

from typing import NamedTuple

import numpy as np

from .sheet import GAP, LEADING, MARGIN, Cell, Sheet, width_of, wrap
from .style import (
    BLUE,
    FAINT,
    INK,
    LIGHT_BLUE,
    LIGHT_ORANGE,
    NORMAL,
    PALE,
    POINTS,
    VERMILLION,
    Drawing,
    is_end,
    nothing,
    percent,
    plain,
    shown_token,
    styled,
)

MASK, END = "M", "∎"
GREY = "#d9d9d9"
MOST_STEPS = 8  # shown one under the other
# A description asked for in reverse is the longest and hardest answer; then what is easier.
PREFERRED = ("d2p_reverse", "p2d_same", "p2d_reverse", "d2p_same")
KEY = f"{MASK} masked token   {END} end of text   orange: the answer"
NO_COMPLETIONS = "There are no completions of a diffusion model to show."


class Token(NamedTuple):
    """A token of the response: where, what, when it was revealed for good and how probable it then was."""

    place: int
    text: str
    step: int
    confidence: float
    end: bool
    answer: bool


class Example(NamedTuple):
    """One generation, and the steps (from 0) of its first and last answer token, None where there is no answer."""

    prompt: str
    given: int  # tokens of the prompt
    tokens: list
    steps: int
    first: int | None
    last: int | None


def choose(completions, rows):
    """The `Example` to tell of: a correct one whose answer came in most steps; None where there are no completions.

    `completions` is a table of one diffusion model, `rows` are the questions (`facts.Row`). Of the numbers of steps the
    greatest is taken that `MOST_STEPS` and the number of masks allow: then every step reveals something.
    """
    completions = completions[completions.revealed.map(len) > 0]
    few = completions[completions.steps <= completions.revealed.map(len).clip(upper=MOST_STEPS)]
    if few.empty:
        few = completions[completions.steps == completions.steps.min()]
    answers = {(row.fact, row.prompt): row.answer_text for row in rows}
    best, merit = None, None
    for row in few[few.steps == few.steps.max()].itertuples():
        example = understand(row, answers.get((row.fact, row.prompt), row.reference))
        moments = {token.step for token in example.tokens if token.answer}
        preference = PREFERRED.index(row.split) if row.split in PREFERRED else len(PREFERRED)
        this = (bool(row.correct), -preference, len(moments))
        if merit is None or this > merit:
            best, merit = example, this
    return best


def understand(completion, answer):
    """The `Example` of one row of completions and its answer's text."""
    revealed = sorted(completion.revealed)
    places = answer_places([token for _, token, _, _ in revealed], answer)
    tokens = [
        Token(place, text, step, sure, is_end(text, completion.generation), i in places)
        for i, (place, text, step, sure) in enumerate(revealed)
    ]
    moments = [token.step for token in tokens if token.answer]
    first, last = (min(moments), max(moments)) if moments else (None, None)
    return Example(completion.prompt, revealed[0][0], tokens, int(completion.steps), first, last)


def answer_places(tokens, answer):
    """The numbers of the tokens (texts) that spell the answer; spaces and case do not count."""
    owner, spelt = [], ""
    for number, token in enumerate(tokens):
        bare = "".join(token.split()).lower()
        owner += [number] * len(bare)
        spelt += bare
    wanted = "".join(answer.split()).lower()
    start = spelt.find(wanted) if wanted else -1
    return set(owner[start : start + len(wanted)]) if start >= 0 else set()


@styled
def denoising_step(completions, rows, *, order="confidence"):
    """One step in the middle of a generation: predict every mask, keep some, mask the others again."""
    example = choose(completions, rows)
    if example is None:
        return nothing(NO_COMPLETIONS)
    step = middle_step(example)
    before = [token for token in example.tokens if token.step < step]
    kept = [token for token in example.tokens if token.step == step]
    dropped = len(example.tokens) - len(before) - len(kept)
    count = f"{len(kept)} " if len(kept) > 1 else ""
    keep = f"the {count}most probable" if order == "confidence" else f"{count or 'one '}at random"
    entering = [_cell(token) if token.step < step else _mask() for token in example.tokens]
    predicted = [
        _quiet(token)
        if token.step < step
        else _cell(token, bold=True, below=percent(token.confidence))
        if token.step == step
        else Cell("?", fill=PALE, ink=FAINT, edge=FAINT)
        for token in example.tokens
    ]
    leaving = [_cell(token) if token.step <= step else _mask() for token in example.tokens]
    sheet, widths = Sheet(), _widths(example)
    room = {"x": MARGIN, "room": POINTS - 2 * MARGIN}
    sheet.heading(f"Step {step + 1} of {example.steps}", KEY)
    _prompt(sheet, example)
    sheet.y += 2
    for title, note, cells in (
        ("1  Before", f"{len(before)} of {len(example.tokens)} tokens revealed", entering),
        (f"2  Predict every mask, keep {keep}", "probability below;  ?: predicted, not kept", predicted),
        (f"3  Mask the other {dropped} again", "what the next step sees", leaving),
    ):
        sheet.heading(title, note)
        sheet.cells(cells, widths, **room)
    return Drawing(
        sheet.done(),
        {
            "prompt": plain(example.prompt),
            "step": step + 1,
            "steps": example.steps,
            "before": len(before),
            "which": "the most probable are" if order == "confidence" else "some are",
            "kept": _listed([f"{_named(token)} ({percent(token.confidence)})" for token in kept]),
            "dropped": dropped,
        },
    )


@styled
def timeline(completions, rows):
    """A whole generation, a row a step, with t1, where the answer begins to appear, and t2, where it is complete."""
    example = choose(completions, rows)
    if example is None:
        return nothing(NO_COMPLETIONS)
    sheet, widths = Sheet(), _widths(example)
    left, right = 50, 52
    sheet.heading("What the canvas holds after each step", KEY)
    _prompt(sheet, example)
    sheet.y += 4
    end = left + min(POINTS - left - right, sum(widths) + GAP * len(widths)) + 4
    marks = {}
    if example.first is not None:
        marks.setdefault(example.first, []).append("t1")
        marks.setdefault(example.last, []).append("t2")
    for step in shown_steps(example):
        top = sheet.y
        cells = [_cell(token, bold=token.step == step) if token.step <= step else _mask() for token in example.tokens]
        sheet.cells(cells, widths, x=left, room=POINTS - left - right)
        sheet.text(left - 6, top + 10.5, f"step {step + 1}", ha="right", color=FAINT)
        if step in marks:
            sheet.text(end, top + 10.5, "◀ " + " = ".join(marks[step]), color=VERMILLION, weight="bold")
        sheet.y += 2
    if example.first is None:
        note = "The answer does not appear in this generation."
    else:
        note = "t1: the first answer token appears.  t2: the answer is complete.  Heavy edge: revealed at that step."
    sheet.text(MARGIN, sheet.y + 10, note, color=FAINT)
    sheet.y += 12
    return Drawing(
        sheet.done(),
        {
            "prompt": plain(example.prompt),
            "steps": example.steps,
            "answer": _appears(example),
        },
    )


def shown_steps(example):
    """The steps to show: all of few; of many some that reveal tokens, t1 and t2 among them, and the last."""
    if example.steps <= MOST_STEPS:
        return list(range(example.steps))
    telling = sorted({token.step for token in example.tokens})
    some = {telling[round(i)] for i in np.linspace(0, len(telling) - 1, min(len(telling), MOST_STEPS))}
    marks = {step for step in (example.first, example.last) if step is not None}
    return sorted(some | marks | {example.steps - 1})


def _appears(example):
    if example.first is None:
        return "The answer does not appear."
    first, last = example.first + 1, example.last + 1
    return f"The first token of the answer appears at step {first}, the last at step {last}."


def middle_step(example):
    """A step before the last and after the first, where possible one that reveals part of the answer."""
    steps = sorted({token.step for token in example.tokens})
    inner = [step for step in steps if 0 < step < example.steps - 1] or steps
    telling = [step for step in inner if any(token.answer and token.step == step for token in example.tokens)] or inner
    return telling[len(telling) // 2]


def _prompt(sheet, example):
    """The prompt as one band, over as many lines as it takes."""
    note = f"prompt: {example.given} tokens"
    room = POINTS - 2 * MARGIN
    lines = wrap([(example.prompt, None)], room - 8 - 80, lines=3)
    height = (len(lines) - 1) * LEADING * NORMAL + 16
    sheet.box(MARGIN, sheet.y, room, height, facecolor=LIGHT_BLUE, edgecolor=BLUE)
    for number, line in enumerate(lines):
        text = "".join(part for part, _ in line)
        sheet.text(MARGIN + 5, sheet.y + 11 + number * LEADING * NORMAL, text, mono=True)
    sheet.text(POINTS - MARGIN - 5, sheet.y + 11, note, ha="right", color=FAINT)
    sheet.y += height + 4


def _widths(example):
    return [9 if token.end else max(12, width_of(_label(token)) + 6) for token in example.tokens]


def _label(token):
    return END if token.end else shown_token(token.text)


def _named(token):
    return "the end of the text" if token.end else f"“{shown_token(token.text)}”"


def _listed(names, most=4):
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join(names[:most] + more)


def _cell(token, bold=False, below=""):
    fill, edge = (LIGHT_ORANGE, VERMILLION) if token.answer else ("white", INK if bold else FAINT)
    return Cell(_label(token), fill=fill, edge=edge, ink=FAINT if token.end else INK, bold=bold, below=below)


def _quiet(token):
    return Cell(_label(token), fill="white", edge=GREY, ink=FAINT)


def _mask():
    return Cell(MASK, fill=GREY, edge=GREY, ink=FAINT)
