"""Denoising: one step of a generation, and a whole generation step by step."""

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
    draw_empty,
    is_end,
    percent,
    plain,
    shown_token,
    styled,
)

MASK, END = "M", "∎"
GREY = "#d9d9d9"
MAX_STEPS = 8  # in the figure
# Splits to take the example from, the longest and hardest answers first.
PREFERRED_SPLITS = ("d2p_reverse", "p2d_same", "p2d_reverse", "d2p_same")
KEY = f"{MASK} masked token   {END} end of text   orange: the answer"
NO_COMPLETIONS = "There are no completions of a diffusion model to show."


class Token(NamedTuple):
    """A token after the prompt, with the step that revealed it for the last time and its probability then."""

    position: int
    text: str
    step: int
    confidence: float
    is_end: bool
    in_answer: bool


class Example(NamedTuple):
    """One generation, with the steps (from 0) of its first and last answer token, None if it lacks the answer."""

    prompt: str
    prompt_tokens: int
    tokens: list
    steps: int
    first: int | None
    last: int | None


def choose_example(completions, rows):
    """A correct `Example` whose answer took the most steps; None if there are no completions.

    `completions` is a table of one diffusion model, `rows` are its questions (`facts.Row`). The number of steps is the
    greatest one within `MAX_STEPS` and the number of masked tokens, so that every step reveals something.
    """
    completions = completions[completions.revealed.map(len) > 0]
    few = completions[completions.steps <= completions.revealed.map(len).clip(upper=MAX_STEPS)]
    if few.empty:
        few = completions[completions.steps == completions.steps.min()]
    answers = {(row.fact, row.prompt): row.answer_text for row in rows}
    best, best_score = None, None
    for row in few[few.steps == few.steps.max()].itertuples():
        example = parse_example(row, answers.get((row.fact, row.prompt), row.reference))
        answer_steps = {token.step for token in example.tokens if token.in_answer}
        place = PREFERRED_SPLITS.index(row.split) if row.split in PREFERRED_SPLITS else len(PREFERRED_SPLITS)
        score = (bool(row.correct), -place, len(answer_steps))
        if best_score is None or score > best_score:
            best, best_score = example, score
    return best


def parse_example(completion, answer):
    """The `Example` of one row of completions and its answer's text."""
    revealed = sorted(completion.revealed)
    in_answer = find_answer_tokens([token for _, token, _, _ in revealed], answer)
    tokens = [
        Token(position, text, step, confidence, is_end(text, completion.generation), i in in_answer)
        for i, (position, text, step, confidence) in enumerate(revealed)
    ]
    steps = [token.step for token in tokens if token.in_answer]
    first, last = (min(steps), max(steps)) if steps else (None, None)
    return Example(completion.prompt, revealed[0][0], tokens, int(completion.steps), first, last)


def find_answer_tokens(tokens, answer):
    """The indices of the `tokens` (texts) that spell the answer, ignoring spaces and case."""
    owner, letters = [], ""
    for number, token in enumerate(tokens):
        text = "".join(token.split()).lower()
        owner += [number] * len(text)
        letters += text
    target = "".join(answer.split()).lower()
    start = letters.find(target) if target else -1
    return set(owner[start : start + len(target)]) if start >= 0 else set()


@styled
def denoising_step(completions, rows, *, order="confidence"):
    """One step in the middle of a generation: predict every mask, keep some predictions, mask the others again."""
    example = choose_example(completions, rows)
    if example is None:
        return draw_empty(NO_COMPLETIONS)
    step = choose_middle_step(example)
    before = [token for token in example.tokens if token.step < step]
    revealed = [token for token in example.tokens if token.step == step]
    remasked = len(example.tokens) - len(before) - len(revealed)
    count = f"{len(revealed)} " if len(revealed) > 1 else ""
    choice = f"the {count}most probable" if order == "confidence" else f"{count or 'one '}at random"
    cells_before = [_token_cell(token) if token.step < step else _mask_cell() for token in example.tokens]
    cells_predicted = [
        _faint_cell(token)
        if token.step < step
        else _token_cell(token, bold=True, below=percent(token.confidence))
        if token.step == step
        else Cell("?", fill=PALE, ink=FAINT, edge=FAINT)
        for token in example.tokens
    ]
    cells_after = [_token_cell(token) if token.step <= step else _mask_cell() for token in example.tokens]
    sheet, widths = Sheet(), _cell_widths(example)
    room = {"x": MARGIN, "room": POINTS - 2 * MARGIN}
    sheet.heading(f"Step {step + 1} of {example.steps}", KEY)
    _draw_prompt(sheet, example)
    sheet.y += 2
    for title, note, cells in (
        ("1  Before", f"{len(before)} of {len(example.tokens)} tokens revealed", cells_before),
        (f"2  Predict every mask, keep {choice}", "probability below;  ?: predicted, not kept", cells_predicted),
        (f"3  Mask the other {remasked} again", "what the next step sees", cells_after),
    ):
        sheet.heading(title, note)
        sheet.cells(cells, widths, **room)
    return Drawing(
        sheet.finish(),
        {
            "prompt": plain(example.prompt),
            "step": step + 1,
            "steps": example.steps,
            "before": len(before),
            "which": "the most probable are" if order == "confidence" else "some are",
            "revealed": _join_names([f"{_name(token)} ({percent(token.confidence)})" for token in revealed]),
            "remasked": remasked,
        },
    )


@styled
def timeline(completions, rows):
    """A whole generation, a row per step, with t1, where the answer begins to appear, and t2, where it is complete."""
    example = choose_example(completions, rows)
    if example is None:
        return draw_empty(NO_COMPLETIONS)
    sheet, widths = Sheet(), _cell_widths(example)
    left, right = 50, 52
    sheet.heading("The canvas after each step", KEY)
    _draw_prompt(sheet, example)
    sheet.y += 4
    end = left + min(POINTS - left - right, sum(widths) + GAP * len(widths)) + 4
    marks = {}
    if example.first is not None:
        marks.setdefault(example.first, []).append("t1")
        marks.setdefault(example.last, []).append("t2")
    for step in select_steps(example):
        top = sheet.y
        cells = [
            _token_cell(token, bold=token.step == step) if token.step <= step else _mask_cell()
            for token in example.tokens
        ]
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
        sheet.finish(),
        {"prompt": plain(example.prompt), "steps": example.steps, "answer": _describe_answer_steps(example)},
    )


def select_steps(example):
    """The steps to draw: all if there are few; otherwise some that reveal tokens, with t1, t2 and the last step."""
    if example.steps <= MAX_STEPS:
        return list(range(example.steps))
    revealing = sorted({token.step for token in example.tokens})
    spaced = {revealing[round(i)] for i in np.linspace(0, len(revealing) - 1, min(len(revealing), MAX_STEPS))}
    marked = {step for step in (example.first, example.last) if step is not None}
    return sorted(spaced | marked | {example.steps - 1})


def _describe_answer_steps(example):
    if example.first is None:
        return "The answer does not appear."
    first, last = example.first + 1, example.last + 1
    return f"The first token of the answer appears at step {first}, the last at step {last}."


def choose_middle_step(example):
    """A step between the first and the last, if possible one that reveals part of the answer."""
    steps = sorted({token.step for token in example.tokens})
    inner = [step for step in steps if 0 < step < example.steps - 1] or steps
    answer_steps = {token.step for token in example.tokens if token.in_answer}
    candidates = [step for step in inner if step in answer_steps] or inner
    return candidates[len(candidates) // 2]


def _draw_prompt(sheet, example):
    """Draw the prompt as one band, wrapped to several lines if needed."""
    note = f"prompt: {example.prompt_tokens} tokens"
    room = POINTS - 2 * MARGIN
    lines = wrap([(example.prompt, None)], room - 8 - 80, lines=3)
    height = (len(lines) - 1) * LEADING * NORMAL + 16
    sheet.box(MARGIN, sheet.y, room, height, facecolor=LIGHT_BLUE, edgecolor=BLUE)
    for number, line in enumerate(lines):
        text = "".join(part for part, _ in line)
        sheet.text(MARGIN + 5, sheet.y + 11 + number * LEADING * NORMAL, text, mono=True)
    sheet.text(POINTS - MARGIN - 5, sheet.y + 11, note, ha="right", color=FAINT)
    sheet.y += height + 4


def _cell_widths(example):
    return [9 if token.is_end else max(12, width_of(_label(token)) + 6) for token in example.tokens]


def _label(token):
    return END if token.is_end else shown_token(token.text)


def _name(token):
    return "the end of the text" if token.is_end else f"“{shown_token(token.text)}”"


def _join_names(names, most=4):
    """The first names, and how many more there are."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join(names[:most] + more)


def _token_cell(token, bold=False, below=""):
    fill, edge = (LIGHT_ORANGE, VERMILLION) if token.in_answer else ("white", INK if bold else FAINT)
    return Cell(_label(token), fill=fill, edge=edge, ink=FAINT if token.is_end else INK, bold=bold, below=below)


def _faint_cell(token):
    return Cell(_label(token), fill="white", edge=GREY, ink=FAINT)


def _mask_cell():
    return Cell(MASK, fill=GREY, edge=GREY, ink=FAINT)
