"""A generated set of fictitious people, of the same shape as the published one.

Everything is ordered by SHA-256 of a seed and a word rather than by a random number generator, so the same seed gives
the same bytes with any version of Python on any machine. The same hash divides all possible people and all possible
descriptions into two halves that never meet: one for studies, one for the biographies a base is pretrained on.
"""

import hashlib
import math
import random
from pathlib import Path

from ..common.errors import UserError
from .facts import CONTROL_GROUPS, CONTROL_SPLITS, DIRECTIONS, GROUPS, RANDOMIZED, SPLITS, Fact, Row, randomized

WORD_LISTS = ("first_names", "last_names", "roles", "deeds", "qualities", "things")
STUDY, PRETRAINING = "study", "pretraining"
ASKED = {STUDY: "three times data.generated.people_per_group", PRETRAINING: "pretraining.people"}


class GenerationError(UserError):
    """Word lists, templates or sizes that cannot give the set asked for, told in one line."""


def read_lines(path):
    """The lines of a word list or template file, in the order of the file."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GenerationError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    if not lines:
        raise GenerationError(f"{path}: no line in it; a list has at least one")
    repeated = next((line for i, line in enumerate(lines) if line in lines[:i]), None)
    if repeated:
        raise GenerationError(f"{path}: {repeated!r} occurs twice; each line is there once")
    return lines


def read_words(folder):
    """The word lists: {name of list: words}."""
    return {name: read_lines(Path(folder) / f"{name}.txt") for name in WORD_LISTS}


def read_templates(path, *, answer_type):
    """Templates with one {name} and one {description}, of which the one asked for comes last."""
    templates = read_lines(path)
    given, asked = ("{name}", "{description}") if answer_type == "description" else ("{description}", "{name}")
    for template in templates:
        if template.count(asked) != 1 or given not in template.split(asked)[0]:
            raise GenerationError(f"{path}: {template!r} needs {given} and, after it, one {asked}")
    return templates


def digest(*parts):
    """A stable hash of some words, as hexadecimal."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()


def shuffled(items, *key):
    """`items` in an order that only `key` decides."""
    return sorted(items, key=lambda item: digest(*key, item))


def half(text):
    """Which half a full name or a description belongs to, whatever the seed: study or pretraining."""
    return STUDY if int(digest("half", text)[:8], 16) % 2 == 0 else PRETRAINING


def people(words, count, *, seed, of):
    """`count` distinct full names of one half."""
    return _combine(words, count, ("first_names", "last_names"), "{} {}", seed=seed, of=of)


def descriptions(words, count, *, seed, of):
    """`count` distinct descriptions of one half."""
    kinds = ("roles", "deeds", "qualities", "things")
    return _combine(words, count, kinds, "the {} who {} the {} {}", seed=seed, of=of)


def _combine(words, count, kinds, pattern, *, seed, of):
    """Match the lists word by word, in a new order each round, so that words are used evenly and tied to no other."""
    shortest = min(len(words[kind]) for kind in kinds)
    found = {}
    rounds = 10 + 20 * count // shortest if count <= math.prod(len(words[kind]) for kind in kinds) else 0
    for turn in range(rounds):
        for matched in zip(*(shuffled(words[kind], seed, of, kind, turn) for kind in kinds), strict=False):
            text = pattern.format(*matched)
            if half(text) == of:
                found[text] = None
            if len(found) == count:
                return list(found)
    raise GenerationError(
        f"{count} people are asked for ({ASKED[of]}), but {', '.join(kinds)} do not give so many; "
        "ask for fewer, or add words"
    )


def study_facts(words, *, people_per_group, control_people=0, seed):
    """The facts of a study: so many people in each of the groups and of the protected groups, each with a description.

    Control people come last, so that the others are the same without them.
    """
    sizes = dict.fromkeys(GROUPS, people_per_group) | dict.fromkeys(CONTROL_GROUPS, control_people)
    ids = [(group, f"{group}-{number:02d}") for group, size in sizes.items() for number in range(size)]
    names = people(words, len(ids), seed=seed, of=STUDY)
    told = descriptions(words, len(ids), seed=seed, of=STUDY)
    return [
        Fact(id=id, group=group, name=name, description=text, trained_as=(text,), tested_as=(text,))
        for (group, id), name, text in zip(ids, names, told, strict=True)
    ]


def fill(template, number, fact, *, answer_type, tail=True):
    """The row that asks for a fact's name or description with a template; without its `tail` an answer ends it."""
    given, asked = ("name", "description") if answer_type == "description" else ("description", "name")
    opening, ending = template.split("{" + asked + "}")
    prompt = opening.replace("{" + given + "}", getattr(fact, given)).rstrip()
    answer = getattr(fact, asked)
    start = opening.index("{" + given + "}")
    return Row(
        fact=fact.id,
        template=number,
        prompt=prompt,
        completion=f" {answer}{ending if tail else ''}",
        subject=(start, start + len(getattr(fact, given))),
        answer=(1, 1 + len(answer)),
    )


def training_rows(facts, templates, *, train_templates):
    """Every fact with every training template of the directions its group is trained in."""
    return [
        fill(template, number, fact, answer_type=answer_type)
        for fact in facts
        for direction, answer_type in DIRECTIONS.items()
        if CONTROL_GROUPS.get(fact.group, fact.group) in (direction, "both")
        for number, template in enumerate(templates[direction][:train_templates])
    ]


def test_rows(facts, templates, split, *, train_templates, test_templates):
    """Every fact of a split's group with the held-out templates. As in the published set, a name is asked for bare."""
    split = {**SPLITS, **CONTROL_SPLITS}[split]
    answer_type = split.answer_type
    direction = next(name for name, asked in DIRECTIONS.items() if asked == answer_type)
    held_out = list(enumerate(templates[direction]))[train_templates : train_templates + test_templates]
    return [
        fill(template, number, fact, answer_type=answer_type, tail=answer_type == "description")
        for fact in facts
        if fact.group == split.group
        for number, template in held_out
    ]


def mentions(facts, templates):
    """Sentences that name the subject of each fact taught in one direction, and say nothing else of it."""
    return [
        Row(
            fact=fact.id,
            template=number,
            prompt=f"{opening}{subject}{ending[: ending.rindex(' ')]}",
            completion=ending[ending.rindex(" ") :],
            subject=(len(opening), len(opening) + len(subject)),
            answer=(1, len(ending) - ending.rindex(" ")),
        )
        for fact in facts
        if fact.group != "both"
        for subject in [fact.name if CONTROL_GROUPS.get(fact.group, fact.group) == "p2d" else fact.description]
        for number, (opening, ending) in enumerate(template.split("{person}") for template in templates)
    ]


def read_mentions(path):
    """Templates with one {person}, and a word after it."""
    templates = read_lines(path)
    for template in templates:
        if template.count("{person}") != 1 or " " not in template.split("{person}")[1]:
            raise GenerationError(f"{path}: {template!r} needs one {{person}} and, after it, a word")
    return templates


def make(*, words, templates, people_per_group, train_templates, test_templates, control_people=0, seed):
    """The facts, the training rows and {split: rows} of the generated set, from folders of words and templates."""
    lines = {
        direction: read_templates(Path(templates) / f"{direction}.txt", answer_type=answer_type)
        for direction, answer_type in DIRECTIONS.items()
    }
    for direction, found in lines.items():
        if train_templates + test_templates > len(found):
            raise GenerationError(
                f"{train_templates} training and {test_templates} test templates asked for, "
                f"but {templates}/{direction}.txt has only {len(found)}"
            )
    sizes = {"people_per_group": people_per_group, "control_people": control_people}
    facts = study_facts(read_words(words), **sizes, seed=seed)
    splits = {
        split: test_rows(facts, lines, split, train_templates=train_templates, test_templates=test_templates)
        for split in [*SPLITS, *(CONTROL_SPLITS if control_people else ())]
    }
    asked = RANDOMIZED | {f"{split}_randomized": split for split in CONTROL_SPLITS if split in splits}
    wrong = {name: randomized(splits[of], rng=random.Random(f"{name} {seed}")) for name, of in asked.items()}
    return facts, training_rows(facts, lines, train_templates=train_templates), splits | wrong


def biographies(words, templates, *, people_count, rows, seed):
    """Sentences about people who are in no study: `rows` texts, both directions, facts and templates drawn by hash."""
    names = people(words, people_count, seed=seed, of=PRETRAINING)
    told = descriptions(words, people_count, seed=seed, of=PRETRAINING)
    for row in range(rows):
        draw = int(digest(seed, "row", row)[:24], 16)
        draw, person = divmod(draw, people_count)
        draw, side = divmod(draw, 2)
        sentences = templates["p2d" if side else "d2p"]
        sentence = sentences[draw % len(sentences)]
        yield sentence.replace("{name}", names[person]).replace("{description}", told[person])
