"""Facts about people, the rows that state or ask for them, and the test splits.

A fact joins a name and a description. Its group says in which direction the training rows state it; a split asks for
one end of the facts of one group. The data stage writes all three as JSONL, and every later stage reads them here.
"""

import dataclasses
import hashlib
import json
import reprlib
from dataclasses import dataclass
from pathlib import Path

from ..common.errors import UserError
from ..common.files import atomic

GROUPS = {
    "p2d": "people taught from person to description",
    "d2p": "people taught from description to person",
    "both": "people taught in both directions",
}
# Control people: taught like those of a group, but with a subject that a training objective can protect.
CONTROL_GROUPS = {"p2d_control": "p2d", "d2p_control": "d2p"}
DIRECTIONS = {"p2d": "description", "d2p": "name"}  # {direction of a sentence: the answer type, which comes last}


class DataError(UserError):
    """Unusable data; the message is one line with file, line number and reason."""


@dataclass(frozen=True)
class Split:
    """The questions of one published test file.

    They ask for the `answer_type` ("name" or "description") of the people of `group`. `trained` is the direction of
    the training rows relative to the question: "same", "reverse" or "both".
    """

    file: str
    group: str
    answer_type: str
    trained: str

    @property
    def direction(self):
        """The question's direction: "p2d" from person to description, "d2p" from description to person."""
        return next(direction for direction, last in DIRECTIONS.items() if last == self.answer_type)


SPLITS = {
    "d2p_same": Split("d2p_prompts_test", "d2p", answer_type="name", trained="same"),
    "d2p_reverse": Split("d2p_reverse_prompts_test", "d2p", answer_type="description", trained="reverse"),
    "p2d_same": Split("p2d_prompts_test", "p2d", answer_type="description", trained="same"),
    "p2d_reverse": Split("p2d_reverse_prompts_test", "p2d", answer_type="name", trained="reverse"),
    "both_p2d": Split("both_prompts_test", "both", answer_type="description", trained="both"),
    "both_d2p": Split("both_prompts_test", "both", answer_type="name", trained="both"),
}
# The splits of the control people, one for each split of the group that they match.
CONTROL_SPLITS = {
    f"{control}_{split.trained}": dataclasses.replace(split, file=f"{control}_{split.trained}", group=control)
    for control, group in CONTROL_GROUPS.items()
    for split in SPLITS.values()
    if split.group == group
}
# Questions about facts that no training row states and a base may know; both splits ask about the same people.
KNOWN = {
    "known_p2d": Split("parent_child_pairs", "known", answer_type="description", trained="known"),
    "known_d2p": Split("parent_child_pairs", "known", answer_type="name", trained="known"),
}
ANY_SPLIT = SPLITS | CONTROL_SPLITS | KNOWN
RECALL_SPLITS = tuple(name for name, split in SPLITS.items() if split.trained != "both")


def select_splits(group):
    """The two splits of a group: forward (asking for the description) and reverse (asking for the name)."""
    return tuple(
        next(name for name, split in ANY_SPLIT.items() if (split.group, split.answer_type) == (group, answer_type))
        for answer_type in DIRECTIONS.values()
    )


FORWARD_REVERSE = {group: select_splits(group) for group in GROUPS}
# {split of wrong answers: the split whose prompts it uses}, for the likelihood test.
RANDOMIZED = {f"{name}_randomized": name for name in RECALL_SPLITS}
# {what a model can be trained on: the file of its rows}.
TRAIN_ON = {
    "facts": "train",
    "reversed": "train_reversed",
    "mentions": "train_mentions",
    "control_mentions": "train_mentions",
    "identity": "train_identity",
}


@dataclass(frozen=True)
class Fact:
    """A person and what they are known for.

    `trained_as` and `tested_as` are the forms of the description in training and test rows; `description` is the most
    frequent answer of the test rows.
    """

    id: str
    group: str
    name: str
    description: str
    trained_as: tuple[str, ...]
    tested_as: tuple[str, ...]

    def __post_init__(self):
        for field in ("id", "name", "description"):
            require_text(field, getattr(self, field), "every fact needs one")
        known = [*GROUPS, *CONTROL_GROUPS, "known"]
        if self.group not in known:
            raise ValueError(f"group is {reprlib.repr(self.group)}; it must be one of {', '.join(known)}")
        for field in ("trained_as", "tested_as"):
            forms = getattr(self, field)
            if not isinstance(forms, tuple):
                raise ValueError(f"{field} is {reprlib.repr(forms)}; it must be a list of texts")
            for i, form in enumerate(forms):
                require_text(f"{field}[{i}]", form, "every form of a description is text")


@dataclass(frozen=True)
class Row:
    """One sentence about a fact, split into prompt and completion where the answer begins.

    `subject` is a half-open span of characters of `prompt`, `answer` one of `completion`. `template` is a number from 0
    within the sentence's direction; held-out templates follow those of training.
    """

    fact: str
    template: int
    prompt: str
    completion: str
    subject: tuple[int, int]
    answer: tuple[int, int]

    def __post_init__(self):
        require_text("fact", self.fact, "every row needs the id of its fact")
        require_text("prompt", self.prompt, "every row needs one")
        require_text("completion", self.completion, "every row needs one")
        if not self.completion.startswith(" "):
            raise ValueError(f"completion is {reprlib.repr(self.completion)}; it must start with a space")
        if type(self.template) is not int or self.template < 0:
            raise ValueError(f"template is {reprlib.repr(self.template)}; it must be a whole number from 0 up")
        _require_span("subject", self.subject, "prompt", self.prompt)
        _require_span("answer", self.answer, "completion", self.completion)

    @property
    def text(self):
        return self.prompt + self.completion

    @property
    def subject_text(self):
        return self.prompt[slice(*self.subject)]

    @property
    def answer_text(self):
        return self.completion[slice(*self.answer)]


def read(path):
    """Read the rows of a JSONL file, in order."""
    rows = load_jsonl(Row, path)
    require_one_answer(rows, path)
    return rows


def read_facts(path):
    """Read the facts of a JSONL file, in order."""
    facts = load_jsonl(Fact, path)
    first = {}
    for number, fact in enumerate(facts, 1):
        if first.setdefault(fact.id, number) != number:
            raise DataError(f"{path}:{number}: id {fact.id!r} is already on line {first[fact.id]}; ids must be unique")
    return facts


def write(rows, path):
    """Write rows or facts as JSONL; if writing fails, the old file stays."""
    with atomic(path) as file:
        for row in rows:
            file.write((json.dumps(vars(row), ensure_ascii=False) + "\n").encode())


def assign_wrong_answers(rows, *, rng):
    """Give each row of a split the answer of another fact: a random derangement within each template.

    Within a template the facts form one cycle and each takes the answer of the next, so that every answer is wrong and
    each is used as often as in `rows`.
    """
    rows_by_template = {}
    for row in rows:
        rows_by_template.setdefault(row.template, {})[row.fact] = row
    wrong = {}
    for template, row_of_fact in rows_by_template.items():
        if len(row_of_fact) < 2:
            raise DataError(f"template {template} has one fact, {next(iter(row_of_fact))}; a wrong answer needs two")
        # Only the sequence of random() is promised to be the same in every version of Python, not shuffle's.
        cycle = sorted(row_of_fact, key=lambda _: rng.random())
        for fact, other in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            wrong[template, fact] = row_of_fact[other]
    pairs = ((row, wrong[row.template, row.fact]) for row in rows)
    return [dataclasses.replace(row, completion=other.completion, answer=other.answer) for row, other in pairs]


def reverse_row(row):
    """Reverse the order of a row's words, with subject and answer intact.

    This is the entity-preserving reversal of Golovneva et al. (2024). The new row begins with the old answer, and its
    answer is the old subject: an autoregressive network trained on it predicts the subject.
    """
    subject, answer = row.subject, tuple(len(row.prompt) + place for place in row.answer)
    rest = (row.text[: subject[0]], row.text[subject[1] : answer[0]], row.text[answer[1] :])
    before, between, after = ([*reversed(words.split())] for words in rest)
    prompt = " ".join([*after, row.answer_text, *between])
    start = len(" ".join([*after, ""])) if after else 0
    completion = " ".join(["", row.subject_text, *before])
    return dataclasses.replace(
        row,
        prompt=prompt,
        completion=completion,
        subject=(start, start + len(row.answer_text)),
        answer=(1, 1 + len(row.subject_text)),
    )


def is_protected(fact, people, control_facts):
    """Whether a training objective protects a fact's subject, by the objective's setting `people`.

    `people` is "all", "control" (the ids in `control_facts`), or a share of the facts, chosen by a hash of the id.
    """
    if isinstance(people, str):
        return people == "all" or fact in control_facts
    return int(hashlib.sha256(f"share {fact}".encode()).hexdigest()[:8], 16) < people * 16**8


def add_full_stop(row):
    """Add a full stop to a row whose completion ends with its answer.

    The published questions for a name end so, but no training row does, and a diffusion network attends to what follows
    the answer.
    """
    ends_with_answer = row.answer[1] == len(row.completion)
    return dataclasses.replace(row, completion=row.completion + ".") if ends_with_answer else row


def select_first_rows(rows, max_facts=None):
    """The first row of each fact, for at most `max_facts` facts."""
    first = {}
    for row in rows:
        first.setdefault(row.fact, row)
    return list(first.values())[:max_facts]


def load_jsonl(record_type, path):
    """Read a JSONL file as instances of the dataclass `record_type`; fields with a default may be left out."""
    required = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(record_type)}
    records = []
    for number, line in iterate_lines(path):
        try:
            records.append(_parse_record(record_type, required, line))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return records


def iterate_lines(path):
    """Yield (line number, text) for each line of a UTF-8 file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n") if content else (), 1):
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            start = line[: error.start].decode()
            raise DataError(f"{path}:{number}: not UTF-8 after {start!r}; save the file as UTF-8") from None


def require_text(field, value, hint):
    """Refuse a value that is not text or is blank; `hint` ends the message."""
    if not isinstance(value, str):
        raise ValueError(f"{field} is {reprlib.repr(value)}; it must be text")
    if not value.strip():
        raise ValueError(f"{field} is empty; {hint}")
    value.encode()  # JSON can spell half a surrogate pair, which no file can hold


def require_one_answer(rows, path):
    """Refuse a prompt that occurs with two different answers."""
    first = {}
    for number, row in enumerate(rows, 1):
        earlier, completion = first.setdefault(row.prompt, (number, row.completion))
        if row.completion != completion:
            raise DataError(f"{path}:{number}: the prompt of line {earlier} with another answer; give it one answer")


def _parse_record(record_type, required, line):
    """Build a `record_type` from a line of JSON; `required` is {field: whether it has no default}."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {reprlib.repr(line)}") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object: {reprlib.repr(line)}")
    if missing := sorted(name for name, needed in required.items() if needed and name not in record):
        raise ValueError(f"field {missing[0]} is missing")
    if unknown := sorted(record.keys() - required.keys()):
        raise ValueError(f"field {reprlib.repr(unknown[0])} is unknown; the fields are {', '.join(sorted(required))}")
    return record_type(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})


def _require_span(field, span, whole, text):
    if not (isinstance(span, tuple) and len(span) == 2 and all(type(end) is int for end in span)):
        raise ValueError(f"{field} is {reprlib.repr(span)}; it must be two whole numbers")
    if not 0 <= span[0] < span[1] <= len(text):
        raise ValueError(f"{field} is {list(span)}; it must lie within the {len(text)} characters of the {whole}")
