"""The rows of fine-tuning in tokens, with the marks by which an objective protects some of the tokens."""

from typing import NamedTuple

from ..data import facts
from ..models import tokens
from .objective import mark_tokens


class TrainingRows(NamedTuple):
    """Rows in tokens, with one list per row: the positions outside its fact, and its tokens' marks.

    `marks` is None if the objective needs none.
    """

    rows: list
    context_positions: list
    marks: list | None


def read(tokenizer, files, objective, control_facts=frozenset()):
    """Tokenise the files {kind: path}, kind being one of `facts.TRAIN_ON`, and mark protected tokens.

    `control_facts` are the ids of the control people's facts. A reversed row has its subject where others have the
    answer. Only rows that state facts are protected.
    """
    training_rows = TrainingRows([], [], [])
    for kind, file in files.items():
        # Different reversed rows may have the same prompt, which `facts.read` refuses.
        for row in facts.load_jsonl(facts.Row, file) if kind == "reversed" else facts.read(file):
            if kind == "control_mentions" and row.fact not in control_facts:
                continue
            example = tokens.encode(tokenizer, row)
            training_rows.rows.append(example.ids)
            training_rows.context_positions.append(tokens.context_positions(example))
            if kind == "reversed":
                example = example._replace(subject=example.answer, answer=example.subject)
            states_fact = kind in ("facts", "reversed")
            protected = states_fact and facts.is_protected(row.fact, objective.people, control_facts)
            training_rows.marks.append(mark_tokens(example, protected=protected))
    needs_marks = objective.protect != "none" or objective.whole_entities
    return training_rows if needs_marks else training_rows._replace(marks=None)
