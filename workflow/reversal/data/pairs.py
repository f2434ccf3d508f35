"""Facts that a base may know: children and their parents in a CSV file, such as Berglund et al.'s celebrities.

A person is a child; what is known of them is who one of their parents is. Nobody is taught anything: forward, from
child to parent, is how such facts are mostly told, and in reverse they are asked about by the parent's name.
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
from .generated import digest, fill, read_lines

FILE = "parent_child_pairs.csv"
URL = f"{berglund.RAW}/celebrity_relations/{FILE}"
SHA256 = "59d181610f1477a3cfb8a63428bb8cc037b7d73c9cdf5616fdd8d8ba90debb5d"
KINDS = ("mother", "father")
LEAST = 4  # pairs of a study, as data.pairs.most has it
GAPS = {"{child}": "{name}", "{parent}": "{description}"}  # of a pair's templates, and what a fact calls them


class Pair(NamedTuple):
    """A child and one of their parents; `parent_type` is one of KINDS."""

    child: str
    parent: str
    parent_type: str


def download(path):
    """Fetch the published pairs at their pinned commit."""
    fetch(URL, path, SHA256)


def read(path, *, repeated=False):
    """The pairs of a CSV file with columns child, parent, parent_type, and maybe others; some may be `repeated`."""
    text = "\n".join(line for _, line in facts.lines(path)).removeprefix("\ufeff")  # which spreadsheets put there
    table = csv.DictReader(io.StringIO(text, newline=""))
    table.fieldnames = [name.strip() for name in table.fieldnames or ()]
    for column in Pair._fields:
        if column not in table.fieldnames:
            there = reprlib.repr(",".join(table.fieldnames))
            raise DataError(
                f"{path}:1: no column {column} in {there}; the columns are {', '.join(Pair._fields)}, commas between"
            )
    found = {}
    for line in table:
        pair = Pair(*(" ".join((line[column] or "").split()) for column in Pair._fields))
        key, where = _key(pair), f"{path}:{table.line_num}"
        for column in ("child", "parent"):
            if not getattr(pair, column):
                raise DataError(f"{where}: {column} is empty; every pair has two names")
        if key.child == key.parent:
            raise DataError(f"{where}: child and parent are both {pair.child!r}; the question would have its answer")
        if pair.parent_type not in KINDS:
            raise DataError(f"{where}: parent_type is {pair.parent_type!r}; it is one of {', '.join(KINDS)}")
        if key in found and not repeated:
            raise DataError(
                f"{where}: {pair.child} and {pair.parent} are in line {found[key][1]} too; a pair is told once"
            )
        found.setdefault(key, (pair, table.line_num))
    return [pair for pair, _ in found.values()]


def answerable(pairs):
    """The pairs of which both questions have one answer: a child's only mother or father, a parent's only child."""
    keys = [_key(pair) for pair in pairs]
    parents = Counter((key.child, key.parent_type) for key in keys)
    children = Counter(key.parent for key in keys)
    return [
        pair
        for pair, key in zip(pairs, keys, strict=True)
        if parents[key.child, key.parent_type] == children[key.parent] == 1
    ]


def _key(pair):
    """The pair in small letters: a name in other capitals is the same person's."""
    return Pair(*(part.casefold() for part in pair))


def make(pairs, *, templates, most, seed):
    """The facts, rows that state them, and {split: rows} of at most `most` answerable pairs (None: all).

    `templates` is a folder with known_p2d.txt and known_d2p.txt. A wrong answer is another parent of the same kind, or
    the child of one.
    """
    chosen = sorted(answerable(pairs), key=lambda pair: digest(seed, *pair))[:most]
    require_several(pairs, chosen)
    lines = {way: read_templates(f"{templates}/known_{way}.txt", answer_type) for way, answer_type in DIRECTIONS.items()}
    people = [
        Fact(f"known-{i:04}", "known", pair.child, pair.parent, trained_as=(), tested_as=(pair.parent,))
        for i, pair in enumerate(chosen)
    ]
    kinds = [pair.parent_type for pair in chosen]

    def rows(way, kind=None, tail=False):
        return [
            fill(line.replace("{kind}", own), number, fact, answer_type=DIRECTIONS[way], tail=tail)
            for fact, own in zip(people, kinds, strict=True)
            if kind in (None, own)
            for number, line in enumerate(lines[way])
        ]

    splits = {name: rows(split.direction) for name, split in KNOWN.items()}
    for name, split in KNOWN.items():
        wrong = [
            row
            for kind in KINDS
            for row in facts.randomized(rows(split.direction, kind), rng=random.Random(f"{name} {kind} {seed}"))
        ]
        by_prompt = {row.prompt: row for row in wrong}
        splits[f"{name}_randomized"] = [by_prompt[row.prompt] for row in splits[name]]
    return people, [row for way in DIRECTIONS for row in rows(way, tail=True)], splits


def require_several(pairs, chosen):
    """Refuse too few pairs `chosen` to be asked about: each needs another of its kind, for a wrong answer."""
    if len(chosen) < LEAST:
        raise DataError(
            f"of {len(pairs)} pairs, {len(chosen)} have one answer both ways (a child's only mother or father, a "
            f"parent's only child); a study asks about {LEAST} at least"
        )
    for kind, count in Counter(pair.parent_type for pair in chosen).items():
        if count == 1:
            raise DataError(
                f"one {kind} among the {len(chosen)} pairs that are asked about; give none or several, for a wrong "
                "answer, or a larger data.pairs.most"
            )


def read_templates(path, answer_type):
    """Templates with {child}, {parent} and maybe {kind}, what is asked for last; with the names that facts have."""
    given, asked = ("{child}", "{parent}") if answer_type == "description" else ("{parent}", "{child}")
    templates = read_lines(path)
    for template in templates:
        before, *after = template.split(asked)
        needed = (given, "{kind}") if answer_type == "description" else (given,)  # a child has a mother and a father
        if len(after) != 1 or "{kind}" in after[0] or any(gap not in before for gap in needed):
            raise DataError(f"{path}: {template!r} needs {' and '.join(needed)} and, after that, one {asked}")
    for gap, name in GAPS.items():
        templates = [template.replace(gap, name) for template in templates]
    return templates
