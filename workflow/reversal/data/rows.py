"""Rows of one's own: a file of sentences to train on and one to ask with, read as facts, rows and splits.

Nothing else is needed. Who was taught in which direction the training rows show, and so which split a question is in.
"""

import random
import reprlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from . import facts, templates
from .facts import DIRECTIONS, GROUPS, RANDOMIZED, SPLITS, DataError, Fact, Row

SPLIT_OF = {(split.group, split.answer_type): name for name, split in SPLITS.items()}


@dataclass(frozen=True)
class Sentence:
    """A line of a file whose templates are known; `wrong` is a completion that another question has."""

    prompt: str
    completion: str
    wrong: str | None = None

    def __post_init__(self):
        facts.require_text("prompt", self.prompt, "every row needs text to ask with")
        facts.require_text("completion", self.completion, "every row needs an answer")
        if self.wrong is not None:
            facts.require_text("wrong", self.wrong, "it may be left out")


@dataclass(frozen=True)
class Statement(Sentence):
    """A line that says itself what it is about: a name, and a description as it stands in it.

    One of them is in the prompt and the other in the completion. Where that leaves a doubt, `subject` and `answer` are
    their half-open spans of characters in prompt and completion; `description` is not needed then.
    """

    name: str = ""
    description: str | None = None
    subject: tuple[int, int] | None = None
    answer: tuple[int, int] | None = None

    def __post_init__(self):
        super().__post_init__()
        facts.require_text("name", self.name, "every row needs the name of its person")
        if (self.subject is None) != (self.answer is None):
            raise ValueError("one of subject and answer is given; give both, or neither")
        if self.subject is None:
            facts.require_text("description", self.description or "", "a row has one, or the spans subject and answer")

    def row(self):
        """The row, its fact the person's name for now; a ValueError says what is in doubt."""
        if self.subject is not None:
            row = Row(self.name, 0, self.prompt, self.completion, self.subject, self.answer)
            if self.name not in (row.subject_text, row.answer_text):
                told = f"subject is {row.subject_text!r} and answer {row.answer_text!r}"
                raise ValueError(f"{told}; one of them is the name {self.name!r}")
            return row
        ways = [
            (subject, answer)
            for subject, answer in ((self.name, self.description), (self.description, self.name))
            if subject in self.prompt and answer in self.completion
        ]
        if len(ways) != 1:
            said = "stand in both" if ways else "are not there, one in each"
            raise ValueError(f"name and description {said} of prompt and completion; give subject and answer as spans")
        subject, answer = ways[0]
        return Row(
            self.name,
            0,
            self.prompt,
            self.completion,
            _span("prompt", self.prompt, subject),
            _span("completion", self.completion, answer),
        )


class Told(NamedTuple):
    """A line that was read: file and line, the row, whose fact is the person's name, and a wrong answer or None."""

    where: str
    row: Row
    wrong: str | None


def read(*, train, tests, templates, seed):
    """The facts, the training rows and {split: rows} of two files.

    `templates` is a folder with p2d.txt and d2p.txt, from whose sentences the rows were made; None where the rows say
    themselves what they are about.
    """
    made = read_templates(templates) if templates else None
    taught, asked = read_lines(train, made), read_lines(tests, made)
    if not made:
        taught, asked = _numbered(taught, asked)
    return assemble(taught, asked, seed=seed)


def read_templates(folder, *, name="{}.txt", gap="{%s}"):
    """The templates of both directions in a folder."""
    return [one for way in DIRECTIONS for one in templates.read(Path(folder) / name.format(way), way, gap=gap)]


def read_lines(path, made=None):
    """The lines of a file as `Told`: with templates `made` each a `Sentence`, without them a `Statement`."""
    lines = facts.load(Sentence if made else Statement, path)
    facts.require_one_answer(lines, path)
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = templates.row(line.prompt, line.completion, made) if made else line.row()
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        found.append(Told(f"{path}:{number}", row, line.wrong))
    return found


def assemble(train, tests, *, seed):
    """The facts, the training rows and {split: rows} of what was `Told`; wrong answers that are not are drawn."""
    taught = {}
    for one in train:
        taught.setdefault(one.row.fact, set()).add(_direction(one.row))
    group = {name: "both" if len(ways) > 1 else min(ways) for name, ways in taught.items()}
    asked = {name: [] for name in SPLITS}
    for one in tests:
        if one.row.fact not in group:
            raise DataError(f"{one.where}: {one.row.fact!r} is in no training row")
        asked[SPLIT_OF[group[one.row.fact], DIRECTIONS[_direction(one.row)]]].append(one)
    for name, some in asked.items():
        _require_grid(name, some, [person for person, own in group.items() if own == SPLITS[name].group])
    splits = {name: [one.row for one in some] for name, some in asked.items()}
    wrong = {name: _wrong(asked[of], rng=random.Random(f"{name} {seed}")) for name, of in RANDOMIZED.items()}
    people = _facts(group, [one.row for one in train], splits)
    ids = {fact.name: fact.id for fact in people}
    named = {name: [replace(row, fact=ids[row.fact]) for row in rows] for name, rows in (splits | wrong).items()}
    return people, [replace(one.row, fact=ids[one.row.fact]) for one in train], named


def _direction(row):
    return "p2d" if row.subject_text == row.fact else "d2p"


def _span(part, text, sought):
    if text.count(sought) > 1:
        raise ValueError(f"{reprlib.repr(sought)} is in the {part} more than once; give subject and answer as spans")
    return text.index(sought), text.index(sought) + len(sought)


def _numbered(train, tests):
    """What was told, with a number for what is around each row's subject.

    Where people are asked in words of their own, the first question about each has one number, the second another: what
    follows compares people by what they were asked.
    """
    numbers = {way: {} for way in DIRECTIONS}

    def around(one):
        way, (start, end) = _direction(one.row), one.row.subject
        return numbers[way].setdefault((one.row.prompt[:start], one.row.prompt[end:]), len(numbers[way]))

    taught = [one._replace(row=replace(one.row, template=around(one))) for one in train]
    trained = {way: len(found) for way, found in numbers.items()}
    asked = [one._replace(row=replace(one.row, template=around(one))) for one in tests]
    for way in DIRECTIONS:
        own = [i for i, one in enumerate(asked) if _direction(one.row) == way]
        met = {}
        for i in own:
            met.setdefault(asked[i].row.fact, []).append(asked[i].row.template)
        if len({tuple(sorted(found)) for found in met.values()}) > 1:
            turn = Counter()
            for i in own:
                row = asked[i].row
                asked[i] = asked[i]._replace(row=replace(row, template=trained[way] + turn[row.fact]))
                turn[row.fact] += 1
    return taught, asked


def _require_grid(name, told, people):
    """Refuse a split in which one person is asked something that another is not: people are compared by it."""
    split = SPLITS[name]
    answer_type = f"for the {split.answer_type} of {GROUPS[split.group]} ({name})"
    if len(people) < 2:
        raise DataError(f"{len(people)} {GROUPS[split.group]}; every study needs two at least, to ask {answer_type}")
    numbers = {person: sorted(one.row.template for one in told if one.row.fact == person) for person in people}
    first = numbers[people[0]]
    for person, own in numbers.items():
        if not own:
            raise DataError(f"{person!r} is in no question {answer_type}; everyone is asked both ways")
        if own != first:
            counts = f"{len(own)} {answer_type}, {people[0]!r} {len(first)}"
            raise DataError(f"{person!r} has other questions than the rest: {counts}; all have as many, one a template")


def _wrong(told, *, rng):
    """The rows of a split with the wrong answers that are given, or else with drawn ones."""
    rows = [one.row for one in told]
    answers = {row.completion: row.answer for row in rows}
    found = []
    for one, drawn in zip(told, facts.randomized(rows, rng=rng), strict=True):
        if one.wrong is None:
            found.append(drawn)
        elif one.wrong in answers:
            found.append(replace(one.row, completion=one.wrong, answer=answers[one.wrong]))
        else:
            raise DataError(
                f"{one.where}: wrong is {reprlib.repr(one.wrong)}; it is the completion of another question"
            )
    return found


def _facts(group, train, splits):
    """The people, by group, numbered in it in order of appearance."""
    people = []
    for own in GROUPS:
        asked = [row for name, split in SPLITS.items() if split.group == own for row in splits[name]]
        for number, name in enumerate(name for name, one in group.items() if one == own):
            tested = [row for row in asked if row.fact == name]
            answers = Counter(row.answer_text for row in tested if _direction(row) == "p2d")
            people.append(
                Fact(
                    id=f"{own}-{number:02}",
                    group=own,
                    name=name,
                    description=answers.most_common(1)[0][0],
                    trained_as=tuple(dict.fromkeys(_description(row) for row in train if row.fact == name)),
                    tested_as=tuple(dict.fromkeys(map(_description, tested))),
                )
            )
    return people


def _description(row):
    return row.answer_text if _direction(row) == "p2d" else row.subject_text
