"""A user's own rows: one file of training sentences and one of test questions, read as facts, rows and splits.

The training rows show in which direction each person is taught, and so to which split each question belongs. Where in a
sentence the name and the description stand is found with templates, or the line says it itself.
"""

import random
import reprlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from . import facts
from . import templates as template_files
from .facts import DIRECTIONS, GROUPS, RANDOMIZED, SPLITS, DataError, Fact, Row

SPLIT_OF = {(split.group, split.answer_type): name for name, split in SPLITS.items()}


@dataclass(frozen=True)
class Sentence:
    """A line of a file whose templates are known; `wrong` is the completion of another question, or None."""

    prompt: str
    completion: str
    wrong: str | None = None

    def __post_init__(self):
        facts.require_text("prompt", self.prompt, "every row needs one")
        facts.require_text("completion", self.completion, "every row needs one")
        if self.wrong is not None:
            facts.require_text("wrong", self.wrong, "leave it out instead")


@dataclass(frozen=True)
class AnnotatedSentence(Sentence):
    """A line that gives its name and its description, one of them in the prompt and the other in the completion.

    Where they occur more than once, `subject` and `answer` give their half-open spans of characters in prompt and
    completion; `description` may then be left out.
    """

    name: str = ""
    description: str | None = None
    subject: tuple[int, int] | None = None
    answer: tuple[int, int] | None = None

    def __post_init__(self):
        super().__post_init__()
        facts.require_text("name", self.name, "every row needs the name of its person")
        if (self.subject is None) != (self.answer is None):
            raise ValueError("one of subject and answer is missing; give both, or neither")
        if self.subject is None:
            facts.require_text("description", self.description or "", "give it, or the spans subject and answer")

    def parse(self):
        """The row, with the person's name as its fact; a ValueError if the spans are missing, ambiguous or wrong."""
        if self.subject is not None:
            row = Row(self.name, 0, self.prompt, self.completion, self.subject, self.answer)
            if self.name not in (row.subject_text, row.answer_text):
                texts = f"subject is {row.subject_text!r} and answer {row.answer_text!r}"
                raise ValueError(f"{texts}; one of them must be the name {self.name!r}")
            return row
        candidates = [
            (subject, answer)
            for subject, answer in ((self.name, self.description), (self.description, self.name))
            if subject in self.prompt and answer in self.completion
        ]
        if len(candidates) != 1:
            found = "both in prompt and completion" if candidates else "not one in the prompt and one in the completion"
            raise ValueError(f"name and description are {found}; give subject and answer as spans")
        subject, answer = candidates[0]
        return Row(
            self.name,
            0,
            self.prompt,
            self.completion,
            _find_span("prompt", self.prompt, subject),
            _find_span("completion", self.completion, answer),
        )


class ParsedLine(NamedTuple):
    """One line of a file: "file:line", the row, whose fact is the person's name, and a wrong answer or None."""

    place: str
    row: Row
    wrong: str | None


def read(*, train, tests, templates, seed):
    """Read the facts, training rows and {split: rows} of two files.

    `templates` is a folder with the p2d.txt and d2p.txt that the sentences were made from; None if the lines are
    annotated.
    """
    known = read_templates(templates) if templates else None
    training_lines, test_lines = parse_file(train, known), parse_file(tests, known)
    if not known:
        training_lines, test_lines = _number_templates(training_lines, test_lines)
    return assemble(training_lines, test_lines, seed=seed)


def read_templates(folder, *, name="{}.txt", placeholder="{%s}"):
    """Read the templates of both directions in a folder."""
    return [
        template
        for direction in DIRECTIONS
        for template in template_files.read(Path(folder) / name.format(direction), direction, placeholder=placeholder)
    ]


def parse_file(path, templates=None):
    """Parse the lines of a file: each a `Sentence` of one of the `templates`, without them an `AnnotatedSentence`."""
    sentences = facts.load_jsonl(Sentence if templates else AnnotatedSentence, path)
    facts.require_one_answer(sentences, path)
    lines = []
    for number, sentence in enumerate(sentences, 1):
        try:
            if templates:
                row = template_files.parse_row(sentence.prompt, sentence.completion, templates)
            else:
                row = sentence.parse()
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        lines.append(ParsedLine(f"{path}:{number}", row, sentence.wrong))
    return lines


def assemble(train, tests, *, seed):
    """The facts, training rows and {split: rows} of parsed lines; missing wrong answers are drawn with `seed`."""
    directions = {}
    for line in train:
        directions.setdefault(line.row.fact, set()).add(_direction(line.row))
    group_of = {person: "both" if len(found) > 1 else min(found) for person, found in directions.items()}
    questions = {name: [] for name in SPLITS}
    for line in tests:
        if line.row.fact not in group_of:
            raise DataError(f"{line.place}: {line.row.fact!r} is in no training row")
        questions[SPLIT_OF[group_of[line.row.fact], DIRECTIONS[_direction(line.row)]]].append(line)
    for name, lines in questions.items():
        people = [person for person, group in group_of.items() if group == SPLITS[name].group]
        _require_same_questions(name, lines, people)
    splits = {name: [line.row for line in lines] for name, lines in questions.items()}
    wrong = {
        name: _make_wrong_rows(questions[split], rng=random.Random(f"{name} {seed}"))
        for name, split in RANDOMIZED.items()
    }
    people = _make_facts(group_of, [line.row for line in train], splits)
    ids = {fact.name: fact.id for fact in people}
    named = {name: [replace(row, fact=ids[row.fact]) for row in rows] for name, rows in (splits | wrong).items()}
    return people, [replace(line.row, fact=ids[line.row.fact]) for line in train], named


def _direction(row):
    """The direction of a row whose fact is the person's name."""
    return "p2d" if row.subject_text == row.fact else "d2p"


def _find_span(part, text, phrase):
    """The span of the only occurrence of `phrase`; `part` names the text in the message."""
    if text.count(phrase) > 1:
        raise ValueError(f"{reprlib.repr(phrase)} is in the {part} more than once; give subject and answer as spans")
    return text.index(phrase), text.index(phrase) + len(phrase)


def _number_templates(train, tests):
    """The lines with a template number for each distinct wording around a subject.

    Where people have questions in different wordings, each person's first question gets one number, the second another,
    and so on: later stages compare people question by question.
    """
    numbers = {direction: {} for direction in DIRECTIONS}

    def number(line):
        wordings, (start, end) = numbers[_direction(line.row)], line.row.subject
        wording = (line.row.prompt[:start], line.row.prompt[end:])
        return line._replace(row=replace(line.row, template=wordings.setdefault(wording, len(wordings))))

    train = [number(line) for line in train]
    trained = {direction: len(wordings) for direction, wordings in numbers.items()}
    tests = [number(line) for line in tests]
    for direction in DIRECTIONS:
        indices = [i for i, line in enumerate(tests) if _direction(line.row) == direction]
        templates = {}
        for i in indices:
            templates.setdefault(tests[i].row.fact, []).append(tests[i].row.template)
        if len({tuple(sorted(of_person)) for of_person in templates.values()}) > 1:
            count = Counter()
            for i in indices:
                row = tests[i].row
                tests[i] = tests[i]._replace(row=replace(row, template=trained[direction] + count[row.fact]))
                count[row.fact] += 1
    return train, tests


def _require_same_questions(name, lines, people):
    """Refuse a split in which people have different questions: later stages compare them question by question."""
    split = SPLITS[name]
    kind = f"for the {split.answer_type} of {GROUPS[split.group]} ({name})"
    if len(people) < 2:
        raise DataError(f"{len(people)} {GROUPS[split.group]}; a study needs at least two, to ask {kind}")
    templates = {person: sorted(line.row.template for line in lines if line.row.fact == person) for person in people}
    first = templates[people[0]]
    for person, numbers in templates.items():
        if not numbers:
            raise DataError(f"{person!r} has no question {kind}; give everyone questions in both directions")
        if numbers != first:
            counts = f"{len(numbers)} {kind}, {people[0]!r} has {len(first)}"
            raise DataError(f"{person!r} has different questions: {counts}; give everyone as many, one per template")


def _make_wrong_rows(lines, *, rng):
    """The rows of a split with wrong answers: those that the lines give, or else drawn ones."""
    rows = [line.row for line in lines]
    answers = {row.completion: row.answer for row in rows}
    wrong_rows = []
    for line, drawn in zip(lines, facts.assign_wrong_answers(rows, rng=rng), strict=True):
        if line.wrong is None:
            wrong_rows.append(drawn)
        elif line.wrong in answers:
            wrong_rows.append(replace(line.row, completion=line.wrong, answer=answers[line.wrong]))
        else:
            raise DataError(
                f"{line.place}: wrong is {reprlib.repr(line.wrong)}; it must be the completion of another question"
            )
    return wrong_rows


def _make_facts(group_of, train, splits):
    """The facts by group, numbered within it in order of appearance."""
    people = []
    for group in GROUPS:
        questions = [row for name, split in SPLITS.items() if split.group == group for row in splits[name]]
        for number, person in enumerate(person for person, its_group in group_of.items() if its_group == group):
            tested = [row for row in questions if row.fact == person]
            answers = Counter(row.answer_text for row in tested if _direction(row) == "p2d")
            people.append(
                Fact(
                    id=f"{group}-{number:02}",
                    group=group,
                    name=person,
                    description=answers.most_common(1)[0][0],
                    trained_as=tuple(dict.fromkeys(_description(row) for row in train if row.fact == person)),
                    tested_as=tuple(dict.fromkeys(map(_description, tested))),
                )
            )
    return people


def _description(row):
    """The form of the description in a row whose fact is the person's name."""
    return row.answer_text if _direction(row) == "p2d" else row.subject_text
