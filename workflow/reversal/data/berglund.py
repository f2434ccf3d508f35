"""The published Reversal Curse set (Berglund et al. 2023, experiment 1): download it, and read it as our rows.

It has no licence, so it is downloaded or taken from a local folder, never shipped. Its rows are a prompt and a
completion; what they are about, and where in them it stands, is found with the templates they were made from.
"""

import random
import reprlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from ..common.download import fetch
from ..common.files import sha256
from . import facts
from .facts import GROUPS, RANDOMIZED, SPLITS, DataError, Fact, Row

COMMIT = "6af5f418755d528304e406361e86477637d21c84"
BASE_URL = f"https://raw.githubusercontent.com/lukasberglund/reversal_curse/{COMMIT}/data/reverse_experiments"
VERSION = "june_version_7921032488"
_ROWS = {
    "all_prompts_train": "ea7156bb2f46e67ddadb485a7faff23551251b233011b2531ae36a3217f4fae2",
    "both_prompts_test": "6499aebaae627f7f26e6d237ef9b4cc7c8db227a29acc60332b05950ea89b004",
    "both_prompts_train": "a389f60360e5ec1862abba47f9530c916a59483d1f6cb55015bf45197e880db5",
    "d2p_prompts_test": "67705c9ebd77fc030998677acae33af9f22cf4b80bb7443d4ef7e5c9c1d727c4",
    "d2p_prompts_train": "2d66551577306f164e9b0fd372dd997af0e90bb62690d00a2cab818ae65e47a1",
    "d2p_reverse_prompts_test": "8c79da9791788ffbe77dc876ae2e34cc00f980e08c946bda188367ae1cd6ea61",
    "d2p_reverse_prompts_test_randomized": "d66943b0b26f1bc4d1c6f9edbecb6ce0e50747d5b4112a70c3cd4c51de2b3b44",
    "p2d_prompts_test": "269fe15363c3bd1cb59cfdf4e6464f35d548d4cb786e6f7b1db84f260788e8f8",
    "p2d_prompts_train": "8a20b9c259b67bc9c3a0f1823d132c844f98d84589d79b108a0ae0c5aa2a2391",
    "p2d_reverse_prompts_test": "963fa595ce19b330cdf07058313f3e8570b57545260256414bcb74a60c959553",
    "p2d_reverse_prompts_test_randomized": "a999f08ba5830b642c204969633a755de78180e6b85a580c7d099be1d6948b64",
}
_TEMPLATES = {
    "d2p": "75c7791407b796f0d127d947ed0d9921b89feab453d5265e7d16fecd5d7fe9d0",
    "p2d": "2eb663dcc2195cbdf4b088c08c302ad26fdae08e560258a8ea74a251ca552fce",
}
FILES = {f"{VERSION}/{name}.jsonl": digest for name, digest in _ROWS.items()} | {
    f"templates/{direction}_templates.txt": digest for direction, digest in _TEMPLATES.items()
}

_STRAY = " .,?!'"  # may follow a name or a description; a double quote that closes one is part of it


@dataclass(frozen=True)
class Sentence:
    """A line of the published files."""

    prompt: str
    completion: str

    def __post_init__(self):
        facts.require_text("prompt", self.prompt, "every row needs text to ask with")
        facts.require_text("completion", self.completion, "every row needs an answer")


@dataclass(frozen=True)
class Template:
    """A sentence with two gaps: `before` subject `between` is the prompt, answer `after` the completion."""

    direction: str
    number: int
    before: str
    between: str
    after: str

    def fits(self, prompt):
        gap = len(prompt) - len(self.before) - len(self.between)
        return gap > 0 and prompt.startswith(self.before) and prompt.endswith(self.between)

    def row(self, sentence):
        """The row of a sentence made from this template; its fact is the person's name for now."""
        prompt, completion = sentence.prompt, sentence.completion
        subject = _trim(prompt, len(self.before), len(prompt) - len(self.between))
        # Published tests of a name end with it: what the template has after it is left out.
        answer = _trim(completion, 0, len(completion.rstrip().removesuffix(self.after)))
        name = prompt[slice(*subject)] if self.direction == "p2d" else completion[slice(*answer)]
        return Row(name, self.number, prompt, completion, subject, answer)


def download(destination, *, base_url=BASE_URL, files=FILES):
    """Download `files`, {path: SHA-256}, from `base_url` to the same paths under `destination`."""
    for path, digest in files.items():
        fetch(f"{base_url}/{path}", Path(destination) / path, digest)


def read(folder, *, seed=0, verify=True, train_templates=30, test_templates=10):
    """The facts, the training rows and {split: rows} of a folder laid out like the published one.

    The template files are in its subfolder `templates` or in one beside it; in each, the held-out templates
    follow those of training. `verify=False` reads a set of one's own. Randomized answers are the published ones
    where there are any (drawn with replacement, so a few are right), elsewhere wrong ones drawn with `seed`.
    """
    folder = Path(folder)
    beside = folder / "templates" if (folder / "templates").is_dir() else folder.parent / "templates"
    if verify:
        _verify(folder, beside)
    made = [template for direction in ("p2d", "d2p") for template in _templates(beside, direction)]
    trained = [template for template in made if template.number < train_templates]
    held_out = [template for template in made if 0 <= template.number - train_templates < test_templates]

    train, tests = {}, {}
    for group in GROUPS:
        fitting = [template for template in trained if group in (template.direction, "both")]
        train[group] = _rows(folder / f"{group}_prompts_train.jsonl", fitting)
    _require_all(folder / "all_prompts_train.jsonl", train)
    for name, split in SPLITS.items():
        directions = ("p2d", "d2p") if split.group == "both" else (split.direction,)
        fitting = [template for template in held_out if template.direction in directions]
        rows = _rows(folder / f"{split.file}.jsonl", fitting, people={row.fact for row in train[split.group]})
        tests[name] = [row for row in rows if _asks(row) == split.asks]
    for name, source in RANDOMIZED.items():
        if SPLITS[source].trained == "reverse":
            tests[name] = _with_answers(tests[source], folder / f"{SPLITS[source].file}_randomized.jsonl")
        else:
            tests[name] = facts.randomized(tests[source], rng=random.Random(f"{name} {seed}"))

    people = _facts(train, tests)
    ids = {fact.name: fact.id for fact in people}
    return people, _named(sum(train.values(), []), ids), {name: _named(rows, ids) for name, rows in tests.items()}


def _verify(folder, beside):
    for name, digest in FILES.items():
        version, file = name.split("/")
        path = (folder if version == VERSION else beside) / file
        if not path.is_file():
            raise DataError(f"{path}: no such file; the published set has it")
        if (found := sha256(path)) != digest:
            raise DataError(f"{path}: SHA-256 is {found}, expected {digest}; it is not the published file")


def _templates(folder, direction):
    """The templates of one direction, in order; the first gap is the subject's, the second the answer's."""
    subject, answer = ("<name>", "<description>") if direction == "p2d" else ("<description>", "<name>")
    path = folder / f"{direction}_templates.txt"
    templates = []
    for number, line in facts.lines(path):
        before, _, rest = line.strip().partition(subject)
        between, found, after = rest.partition(answer)
        if not found:
            raise DataError(f"{path}:{number}: not a template; one has {subject} and after it {answer}")
        templates.append(Template(direction, number - 1, before, between.rstrip(), after))
    return templates


def _rows(path, templates, people=None):
    """The rows of one published file, each with the person's name for its fact; only `people` may occur."""
    rows = []
    sentences = facts.load(Sentence, path)
    facts.require_one_answer(sentences, path)
    for number, sentence in enumerate(sentences, 1):
        fitting = [template for template in templates if template.fits(sentence.prompt)]
        if not fitting:
            raise DataError(f"{path}:{number}: the prompt fits no template: {reprlib.repr(sentence.prompt)}")
        try:
            # Where a general template fits as well as a longer one, the longer one made the sentence.
            row = max(fitting, key=lambda template: len(template.before + template.between)).row(sentence)
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        if people is not None and row.fact not in people:
            raise DataError(f"{path}:{number}: {row.fact!r} is in no training row of the group")
        rows.append(row)
    return rows


def _trim(text, start, end):
    """The span of `text[start:end]` without the spaces and stray punctuation around it: whole words."""
    kept = text[start:end].rstrip(_STRAY)
    start, end = start + len(kept) - len(kept.lstrip()), start + len(kept)
    if start >= end:
        raise ValueError(f"no name or description in {reprlib.repr(text)}")
    for cut in (start, end):
        if text[cut - 1 : cut].isalnum() and text[cut : cut + 1].isalnum():
            raise ValueError(f"a word is cut in two at character {cut} of {reprlib.repr(text)}")
    return start, end


def _require_all(path, train):
    sentences = [Sentence(row.prompt, row.completion) for rows in train.values() for row in rows]
    if facts.load(Sentence, path) != sentences:
        raise DataError(f"{path}: its rows are not those of the files of {', '.join(train)}, in this order")


def _with_answers(rows, path):
    """`rows` with the completions that a randomized file gives to the same prompts, in the same order."""
    sentences = facts.load(Sentence, path)
    if len(sentences) != len(rows):
        raise DataError(f"{path}: {len(sentences)} rows; the file it randomizes has {len(rows)}")
    answers = {row.completion: row.answer for row in rows}
    randomized = []
    for number, (row, sentence) in enumerate(zip(rows, sentences, strict=True), 1):
        if sentence.prompt != row.prompt:
            raise DataError(f"{path}:{number}: not the prompt that the file it randomizes has there")
        if sentence.completion not in answers:
            raise DataError(f"{path}:{number}: an answer that the file it randomizes does not have")
        randomized.append(replace(row, completion=sentence.completion, answer=answers[sentence.completion]))
    return randomized


def _asks(row):
    return "description" if row.subject_text == row.fact else "name"


def _description(row):
    return row.answer_text if _asks(row) == "description" else row.subject_text


def _facts(train, tests):
    """The people of the training rows, numbered within their group in order of appearance."""
    found = {}
    for group, rows in train.items():
        asked = [row for name, split in SPLITS.items() if split.group == group for row in tests[name]]
        for number, name in enumerate(dict.fromkeys(row.fact for row in rows)):
            if name in found:
                raise DataError(f"{group}_prompts_train.jsonl: {name!r} is in group {found[name].group} as well")
            trained = [row for row in rows if row.fact == name]
            tested = [row for row in asked if row.fact == name]
            answers = Counter(row.answer_text for row in tested if _asks(row) == "description")
            if not answers:
                raise DataError(f"{group}_prompts_train.jsonl: {name!r} is in no test that asks for a description")
            found[name] = Fact(
                id=f"{group}-{number:02}",
                group=group,
                name=name,
                description=answers.most_common(1)[0][0],
                trained_as=tuple(dict.fromkeys(map(_description, trained))),
                tested_as=tuple(dict.fromkeys(map(_description, tested))),
            )
    return list(found.values())


def _named(rows, ids):
    return [replace(row, fact=ids[row.fact]) for row in rows]
