"""What a model reads in fine-tuning: rows in tokens, and the marks by which an objective protects some of them."""

from typing import NamedTuple

from ..data import facts
from ..models import tokens
from . import objective


class Lessons(NamedTuple):
    """Rows of tokens; of each the positions around the fact; and, where the objective protects any, its tokens' marks."""

    rows: list
    free: list
    marks: list | None


def read(tokenizer, files, aim, apart=frozenset()):
    """The `Lessons` in files of rows, {"facts", "reversed" or "mentions": path}; `apart`: ids of control people's facts.

    A row read backwards has its subject where others have the answer. Mentions are protected nothing.
    """
    lessons = Lessons([], [], [])
    for kind, file in files.items():
        # Rows read backwards may begin alike and end otherwise.
        for row in facts.load(facts.Row, file) if kind == "reversed" else facts.read(file):
            example = tokens.encode(tokenizer, row)
            lessons.rows.append(example.ids)
            lessons.free.append(tokens.around(example))
            if kind == "reversed":
                example = example._replace(subject=example.answer, answer=example.subject)
            protected = kind != "mentions" and facts.among(row.fact, aim.people, apart)
            lessons.marks.append(objective.marks(example) if protected else [0] * len(example.ids))
    return lessons if aim.protect != "none" else lessons._replace(marks=None)
