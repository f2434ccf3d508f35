"""Facts, the rows that state or ask for them, and the test splits: what the data stage leaves on disk."""

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
    "both": "people taught both ways",
}
# Further people, taught as those of a group are, but with a subject that an objective can protect.
CONTROL_GROUPS = {"p2d_control": "p2d", "d2p_control": "d2p"}


DIRECTIONS = {"p2d": "description", "d2p": "name"}  # of a sentence, and what comes last in it


class DataError(UserError):
    """Data that can not be used; the message is one line with file, line number and reason."""


@dataclass(frozen=True)
class Split:
    """The questions of one published test file.

    They ask for the "name" or the "description" of the people of `group`, who were `trained` in the "same" direction
    as the question, in the "reverse" one, or in "both".
    """

    file: str
    group: str
    answer_type: str
    trained: str

    @property
    def direction(self):
        """The question's direction: "p2d" from person to description, "d2p" from description to person."""
        return next(way for way, answer_type in DIRECTIONS.items() if answer_type == self.answer_type)


SPLITS = {
    "d2p_same": Split("d2p_prompts_test", "d2p", answer_type="name", trained="same"),
    "d2p_reverse": Split("d2p_reverse_prompts_test", "d2p", answer_type="description", trained="reverse"),
    "p2d_same": Split("p2d_prompts_test", "p2d", answer_type="description", trained="same"),
    "p2d_reverse": Split("p2d_reverse_prompts_test", "p2d", answer_type="name", trained="reverse"),
    "both_p2d": Split("both_prompts_test", "both", answer_type="description", trained="both"),
    "both_d2p": Split("both_prompts_test", "both", answer_type="name", trained="both"),
}
# The same questions as of the groups they are like.
CONTROL_SPLITS = {
    f"{protected}_{split.trained}": dataclasses.replace(split, file=f"{protected}_{split.trained}", group=protected)
    for protected, group in CONTROL_GROUPS.items()
    for split in SPLITS.values()
    if split.group == group
}
# Questions about people of whom nothing is taught: the base knows them, or not. Both are about the same people.
KNOWN = {
    "known_p2d": Split("parent_child_pairs", "known", answer_type="description", trained="known"),
    "known_d2p": Split("parent_child_pairs", "known", answer_type="name", trained="known"),
}
ANY_SPLIT = SPLITS | CONTROL_SPLITS | KNOWN
RECALL_SPLITS = tuple(name for name, split in SPLITS.items() if split.trained != "both")


def both_ways(group):
    """The two splits that ask about the people of a group: forward (for the description), in reverse (for the name)."""
    return tuple(
        next(name for name, split in ANY_SPLIT.items() if (split.group, split.answer_type) == (group, answer_type))
        for answer_type in DIRECTIONS.values()
    )


FORWARD_REVERSE = {group: both_ways(group) for group in GROUPS}
# The likelihood test's splits, each with the split whose prompts it pairs with wrong answers.
RANDOMIZED = {f"{name}_randomized": name for name in RECALL_SPLITS}
# What a model can be taught, and the file of rows of each.
TRAIN_ON = {"facts": "train", "reversed": "train_reversed", "mentions": "train_mentions"}


@dataclass(frozen=True)
class Fact:
    """A person and what they are known for.

    `description` is the form most often asked for; `trained_as` and `tested_as` are the forms it takes in the
    training and in the test rows.
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
            raise ValueError(f"group is {reprlib.repr(self.group)}; it is one of {', '.join(known)}")
        for field in ("trained_as", "tested_as"):
            forms = getattr(self, field)
            if not isinstance(forms, tuple):
                raise ValueError(f"{field} is {reprlib.repr(forms)}; it is a list of texts")
            for i, form in enumerate(forms):
                require_text(f"{field}[{i}]", form, "a form of the description is text")


@dataclass(frozen=True)
class Row:
    """One sentence about a fact, cut in two where its answer begins.

    `subject` is a half-open span of characters of `prompt`, `answer` one of `completion`. `template` counts from 0
    within the question's direction, held-out templates after those of training.
    """

    fact: str
    template: int
    prompt: str
    completion: str
    subject: tuple[int, int]
    answer: tuple[int, int]

    def __post_init__(self):
        require_text("fact", self.fact, "every row needs the id of its fact")
        require_text("prompt", self.prompt, "every row needs text to ask with")
        require_text("completion", self.completion, "every row needs an answer")
        if not self.completion.startswith(" "):
            raise ValueError(f"completion is {reprlib.repr(self.completion)}; it starts with a space")
        if type(self.template) is not int or self.template < 0:
            raise ValueError(f"template is {reprlib.repr(self.template)}; templates are whole numbers from 0 up")
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
    """The rows of a JSONL file, in order."""
    rows = load(Row, path)
    require_one_answer(rows, path)
    return rows


def read_facts(path):
    """The facts of a JSONL file, in order."""
    facts = load(Fact, path)
    first = {}
    for number, fact in enumerate(facts, 1):
        if first.setdefault(fact.id, number) != number:
            raise DataError(f"{path}:{number}: id {fact.id!r} is that of line {first[fact.id]}; ids are unique")
    return facts


def write(rows, path):
    """Write rows as JSONL, all or nothing."""
    with atomic(path) as file:
        for row in rows:
            file.write((json.dumps(vars(row), ensure_ascii=False) + "\n").encode())


def randomized(rows, *, rng):
    """The rows of one split with wrong answers: each takes that of another fact to the same template.

    Within a template the facts form one random cycle and each takes the answer of the next, so that no answer is
    right and each is used as often as in `rows`.
    """
    answers = {}
    for row in rows:
        answers.setdefault(row.template, {})[row.fact] = row
    wrong = {}
    for template, of_fact in answers.items():
        if len(of_fact) < 2:
            raise DataError(f"template {template} has one fact, {next(iter(of_fact))}; a wrong answer needs two")
        # Only the sequence of random() is promised to be the same in every version of Python, not shuffle's.
        cycle = sorted(of_fact, key=lambda _: rng.random())
        for fact, other in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            wrong[template, fact] = of_fact[other]
    takers = ((row, wrong[row.template, row.fact]) for row in rows)
    return [dataclasses.replace(row, completion=other.completion, answer=other.answer) for row, other in takers]


def reverse_words(row):
    """The row with its words in reverse order, subject and answer kept whole: what was the answer is now given first.

    Its answer is the row's subject, so that a network that reads from left to right has it to predict.
    """
    first, last = row.subject, tuple(len(row.prompt) + place for place in row.answer)
    around = (row.text[: first[0]], row.text[first[1] : last[0]], row.text[last[1] :])
    before, between, after = ([*reversed(words.split())] for words in around)
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


def among(fact, people, apart):
    """Whether the people that an objective names include a fact's: "all", "protected", or a share of them by a hash.

    `apart` are the ids of the facts of the protected groups.
    """
    if isinstance(people, str):
        return people == "all" or fact in apart
    return int(hashlib.sha256(f"share {fact}".encode()).hexdigest()[:8], 16) < people * 16**8


def closed(row, ending="."):
    """The row with an ending where its answer is the last thing it says.

    Published questions for a name end with it, but no sentence of the training rows does, and a diffusion network sees
    what comes after an answer.
    """
    bare = row.answer[1] == len(row.completion)
    return dataclasses.replace(row, completion=row.completion + ending) if bare else row


def one_per_fact(rows, most=None):
    """The first row of each fact, of at most `most` facts."""
    first = {}
    for row in rows:
        first.setdefault(row.fact, row)
    return list(first.values())[:most]


def load(kind, path):
    """Read a JSONL file of objects whose fields are those of the dataclass `kind`; those with a default may lack."""
    fields = dataclasses.fields(kind)
    names = {field.name: field.default is dataclasses.MISSING for field in fields}
    loaded = []
    for number, line in lines(path):
        try:
            loaded.append(_build(kind, names, line))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return loaded


def lines(path):
    """Yield (line number, text) for each line of a UTF-8 file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n") if content else (), 1):
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8 at byte {error.start} of the line") from None


def require_text(field, value, need):
    """Refuse a value that is not text, or is blank."""
    if not isinstance(value, str):
        raise ValueError(f"{field} is {reprlib.repr(value)}; it is text")
    if not value.strip():
        raise ValueError(f"{field} is empty; {need}")
    value.encode()  # JSON can spell half a surrogate pair, which no file can hold


def require_one_answer(rows, path):
    """Refuse a prompt that occurs twice with two answers."""
    first = {}
    for number, row in enumerate(rows, 1):
        earlier, completion = first.setdefault(row.prompt, (number, row.completion))
        if row.completion != completion:
            raise DataError(f"{path}:{number}: the prompt of line {earlier} with another answer; a prompt has one")


def _build(kind, names, line):
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {reprlib.repr(line)}") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object: {reprlib.repr(line)}")
    if missing := sorted(name for name, needed in names.items() if needed and name not in record):
        raise ValueError(f"field {missing[0]} is missing")
    if unknown := sorted(record.keys() - names.keys()):
        raise ValueError(f"field {reprlib.repr(unknown[0])} is unknown; the fields are {', '.join(sorted(names))}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})


def _require_span(field, span, whole, text):
    if not (isinstance(span, tuple) and len(span) == 2 and all(type(end) is int for end in span)):
        raise ValueError(f"{field} is {reprlib.repr(span)}; it is two whole numbers")
    if not 0 <= span[0] < span[1] <= len(text):
        raise ValueError(f"{field} is {list(span)}; it lies within the {len(text)} characters of the {whole}")
