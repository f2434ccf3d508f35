"""Facts that a base may know from pretraining: children and parents in a CSV file, like Berglund et al.'s celebrities.

The child is the person and the parent their description. No model is trained on them. The forward questions go from
child to parent, as texts usually state such facts; the reverse questions name the parent and ask for the child.
"""

import csv
import io
import random
import reprlib
from collections import Counter
from typing import NamedTuple

from ..common.download import fetch
from . import berglund, facts
from .facts import DIRECTIONS, KNOWN, DataError, Fact
from .generated import digest, fill_template, read_lines

FILE = "parent_child_pairs.csv"
URL = f"{berglund.RAW}/celebrity_relations/{FILE}"
SHA256 = "59d181610f1477a3cfb8a63428bb8cc037b7d73c9cdf5616fdd8d8ba90debb5d"
KINDS = ("mother", "father")
MIN_PAIRS = 4  # of a study, like the schema's minimum of data.pairs.max_pairs
PLACEHOLDERS = {"{child}": "{name}", "{parent}": "{description}"}  # {in a pair's template: in a fact's}


class Pair(NamedTuple):
    """A child and one of their parents; `parent_type` is one of KINDS."""

    child: str
    parent: str
    parent_type: str


def download(path):
    """Download the published pairs at the pinned commit."""
    fetch(URL, path, SHA256)


def read(path, *, repeated=False):
    """Read the pairs of a CSV file with columns child, parent, parent_type; duplicates are errors unless `repeated`."""
    text = "\n".join(line for _, line in facts.iterate_lines(path)).removeprefix("\ufeff")  # from a spreadsheet
    table = csv.DictReader(io.StringIO(text, newline=""))
    table.fieldnames = [name.strip() for name in table.fieldnames or ()]
    for column in Pair._fields:
        if column not in table.fieldnames:
            header = reprlib.repr(",".join(table.fieldnames))
            raise DataError(
                f"{path}:1: no column {column} in {header}; the file needs {', '.join(Pair._fields)}, comma-separated"
            )
    first = {}
    for line in table:
        pair = Pair(*(" ".join((line[column] or "").split()) for column in Pair._fields))
        key, place = _fold_case(pair), f"{path}:{table.line_num}"
        for column in ("child", "parent"):
            if not getattr(pair, column):
                raise DataError(f"{place}: {column} is empty; every pair needs two names")
        if key.child == key.parent:
            raise DataError(f"{place}: child and parent are both {pair.child!r}; the prompt would contain the answer")
        if pair.parent_type not in KINDS:
            raise DataError(f"{place}: parent_type is {pair.parent_type!r}; it must be one of {', '.join(KINDS)}")
        if key in first and not repeated:
            raise DataError(
                f"{place}: {pair.child} and {pair.parent} are already on line {first[key][1]}; list each pair once"
            )
        first.setdefault(key, (pair, table.line_num))
    return [pair for pair, _ in first.values()]


def select_unambiguous(pairs):
    """The pairs whose two questions have one answer each: a child's only mother or father, a parent's only child."""
    keys = [_fold_case(pair) for pair in pairs]
    parents = Counter((key.child, key.parent_type) for key in keys)
    children = Counter(key.parent for key in keys)
    return [
        pair
        for pair, key in zip(pairs, keys, strict=True)
        if parents[key.child, key.parent_type] == children[key.parent] == 1
    ]


def _fold_case(pair):
    """The pair in lower case, so that a person is recognised however the name is capitalised."""
    return Pair(*(part.casefold() for part in pair))


def make(pairs, *, templates, max_pairs, seed):
    """The facts, rows that state them, and {split: rows} of at most `max_pairs` unambiguous pairs (None: all).

    `templates` is a folder with known_p2d.txt and known_d2p.txt. A wrong answer is another parent of the same type, or
    the child of one.
    """
    chosen = sorted(select_unambiguous(pairs), key=lambda pair: digest(seed, *pair))[:max_pairs]
    require_enough(pairs, chosen)
    lines = {
        direction: read_templates(f"{templates}/known_{direction}.txt", answer_type)
        for direction, answer_type in DIRECTIONS.items()
    }
    people = [
        Fact(f"known-{i:04}", "known", pair.child, pair.parent, trained_as=(), tested_as=(pair.parent,))
        for i, pair in enumerate(chosen)
    ]
    kinds = [pair.parent_type for pair in chosen]

    def fill_rows(direction, only=None, tail=False):
        return [
            fill_template(line.replace("{kind}", kind), number, fact, answer_type=DIRECTIONS[direction], tail=tail)
            for fact, kind in zip(people, kinds, strict=True)
            if only in (None, kind)
            for number, line in enumerate(lines[direction])
        ]

    splits = {name: fill_rows(split.direction) for name, split in KNOWN.items()}
    for name, split in KNOWN.items():
        wrong = [
            row
            for kind in KINDS
            for row in facts.assign_wrong_answers(
                fill_rows(split.direction, kind), rng=random.Random(f"{name} {kind} {seed}")
            )
        ]
        by_prompt = {row.prompt: row for row in wrong}
        splits[f"{name}_randomized"] = [by_prompt[row.prompt] for row in splits[name]]
    return people, [row for direction in DIRECTIONS for row in fill_rows(direction, tail=True)], splits


def require_enough(pairs, chosen):
    """Refuse fewer than `MIN_PAIRS` pairs, and a pair without another of its type to take a wrong answer from."""
    if len(chosen) < MIN_PAIRS:
        raise DataError(
            f"{len(chosen)} of {len(pairs)} pairs have one answer in both directions (a child's only mother or father, "
            f"a parent's only child); a study needs at least {MIN_PAIRS}"
        )
    for kind, count in Counter(pair.parent_type for pair in chosen).items():
        if count == 1:
            raise DataError(
                f"only one {kind} among the {len(chosen)} selected pairs, so it has no wrong answer; list none or "
                "several, or raise data.pairs.max_pairs"
            )


def read_templates(path, answer_type):
    """Read templates with {child}, {parent} and, before a {parent}, {kind}; return them with a fact's placeholders."""
    subject, answer = ("{child}", "{parent}") if answer_type == "description" else ("{parent}", "{child}")
    templates = read_lines(path)
    for template in templates:
        before, *after = template.split(answer)
        # A child has two parents, so a question for one says which.
        required = (subject, "{kind}") if answer_type == "description" else (subject,)
        if len(after) != 1 or "{kind}" in after[0] or any(placeholder not in before for placeholder in required):
            raise DataError(f"{path}: {template!r} needs {' and '.join(required)} and, after that, one {answer}")
    for placeholder, name in PLACEHOLDERS.items():
        templates = [template.replace(placeholder, name) for template in templates]
    return templates
