"""A generated set of fictitious people, of the same shape as the published one, from word lists and templates.

Items are ordered by the SHA-256 of a seed and the item rather than by a random number generator, so that a seed gives
the same bytes in every version of Python on every machine. The same hash divides all possible names and descriptions
into two disjoint pools: one for studies, one for the biographies on which a base is pretrained.
"""

import hashlib
import math
import random
import re
from pathlib import Path

from ..common.errors import UserError
from .facts import (
    CONTROL_GROUPS,
    CONTROL_SPLITS,
    DIRECTIONS,
    GROUPS,
    RANDOMIZED,
    SPLITS,
    Fact,
    Row,
    assign_wrong_answers,
    iterate_lines,
)

PATTERNS = ("name", "description")  # the lines of patterns.txt
STUDY, PRETRAINING = "study", "pretraining"
COUNT_SETTINGS = {STUDY: "3 × data.generated.people_per_group + 2 × control_people", PRETRAINING: "pretraining.people"}


class GenerationError(UserError):
    """Word lists, templates or sizes that cannot give the requested set; the message is one line."""


def read_lines(path):
    """Read the lines of a word list or template file, in order, without blank lines; a repeated line is an error."""
    lines = [line.strip() for _, line in iterate_lines(path) if line.strip()]
    if not lines:
        raise GenerationError(f"{path}: the file is empty; a list needs at least one line")
    repeated = next((line for i, line in enumerate(lines) if line in lines[:i]), None)
    if repeated:
        raise GenerationError(f"{path}: {repeated!r} occurs twice; remove one")
    return lines


def read_patterns(folder):
    """Read how names and descriptions are made of words: {"name": (pattern, word lists in it), "description": …}.

    A line of patterns.txt is "name: {first_names} {last_names}": a word of the list first_names.txt, and so on.
    """
    path = Path(folder) / "patterns.txt"
    parts = [line.partition(":") for line in read_lines(path)]
    patterns = {kind.strip(): pattern.strip() for kind, _, pattern in parts}
    if len(parts) != len(PATTERNS) or patterns.keys() != set(PATTERNS):
        raise GenerationError(f"{path}: it needs two lines, name: PATTERN and description: PATTERN")
    lists = {kind: re.findall(r"\{(\w+)\}", pattern) for kind, pattern in patterns.items()}
    for kind, names in lists.items():
        if not names or len({*names}) < len(names) or "{" in re.sub(r"\{\w+\}", "", patterns[kind]):
            example = "such as {roles}, each once"
            raise GenerationError(f"{path}: {patterns[kind]!r} needs names of word lists in braces, {example}")
    return {kind: (patterns[kind], lists[kind]) for kind in PATTERNS}


def list_word_files(folder):
    """The files of a folder of words: its patterns, and the word lists that they name."""
    lists = [name for _, names in read_patterns(folder).values() for name in names]
    return [f"{folder}/{name}.txt" for name in ("patterns", *dict.fromkeys(lists))]


def read_words(folder):
    """Read a folder of words: {"name": (pattern, {list: words}), "description": …}."""
    return {
        kind: (pattern, {name: read_lines(Path(folder) / f"{name}.txt") for name in names})
        for kind, (pattern, names) in read_patterns(folder).items()
    }


def read_templates(path, *, answer_type):
    """Read templates with one {name} and one {description}, of which the answer type comes last."""
    templates = read_lines(path)
    subject, answer = ("{name}", "{description}") if answer_type == "description" else ("{description}", "{name}")
    for template in templates:
        if template.count(answer) != 1 or subject not in template.split(answer)[0]:
            raise GenerationError(f"{path}: {template!r} needs {subject} and, after it, one {answer}")
    return templates


def read_directions(folder, *, prefix="", name_first=False):
    """Read the templates of both directions from a folder: {direction: templates}.

    With `name_first`, those that ask for the name are those that ask for the description with the two exchanged: the
    same words in the same places, so that nothing but the order of name and description is new in them.
    """
    templates = {
        direction: read_templates(Path(folder) / f"{prefix}{direction}.txt", answer_type=answer_type)
        for direction, answer_type in DIRECTIONS.items()
    }
    if name_first:
        swap = {"name": "{description}", "description": "{name}"}
        templates["d2p"] = [template.format(**swap) for template in templates["p2d"]]
    return templates


def digest(*parts):
    """A stable hash of `parts`, in hexadecimal."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()


def shuffle(items, *key):
    """`items` in an order that depends on `key` alone."""
    return sorted(items, key=lambda item: digest(*key, item))


def assign_pool(text):
    """The pool of a full name or description, study or pretraining; it does not depend on the seed."""
    return STUDY if int(digest("half", text)[:8], 16) % 2 == 0 else PRETRAINING


def make_names(words, count, *, seed, pool):
    """`count` distinct full names of one pool."""
    return _combine(*words["name"], count, seed=seed, pool=pool)


def make_descriptions(words, count, *, seed, pool):
    """`count` distinct descriptions of one pool."""
    return _combine(*words["description"], count, seed=seed, pool=pool)


def _combine(pattern, lists, count, *, seed, pool):
    """`count` distinct texts of one pool, each `pattern` filled with a word of each of the `lists`.

    Each round pairs the lists word by word in a new order, so that all words are used equally often and independently.
    """
    shortest = min(map(len, lists.values()))
    texts = {}
    rounds = 10 + 20 * count // shortest if count <= math.prod(map(len, lists.values())) else 0
    for number in range(rounds):
        for combination in zip(*(shuffle(lists[name], seed, pool, name, number) for name in lists), strict=False):
            text = pattern.format(**dict(zip(lists, combination, strict=True)))
            if assign_pool(text) == pool:
                texts[text] = None
            if len(texts) == count:
                return list(texts)
    raise GenerationError(
        f"{count} people are needed ({COUNT_SETTINGS[pool]}), but {', '.join(lists)} give fewer; "
        "lower the number, or add words"
    )


def make_facts(words, *, people_per_group, control_people=0, seed):
    """The facts of a study: `people_per_group` in each group, `control_people` in each control group.

    Control people come last, so that the others do not change with their number.
    """
    sizes = dict.fromkeys(GROUPS, people_per_group) | dict.fromkeys(CONTROL_GROUPS, control_people)
    ids = [(group, f"{group}-{number:02d}") for group, size in sizes.items() for number in range(size)]
    names = make_names(words, len(ids), seed=seed, pool=STUDY)
    descriptions = make_descriptions(words, len(ids), seed=seed, pool=STUDY)
    return [
        Fact(id=id, group=group, name=name, description=text, trained_as=(text,), tested_as=(text,))
        for (group, id), name, text in zip(ids, names, descriptions, strict=True)
    ]


def fill_template(template, number, fact, *, answer_type, tail=True):
    """The row of a fact in a template; without `tail`, the completion ends with the answer."""
    subject_type = "name" if answer_type == "description" else "description"
    opening, ending = template.split("{" + answer_type + "}")
    subject, answer = getattr(fact, subject_type), getattr(fact, answer_type)
    start = opening.index("{" + subject_type + "}")
    return Row(
        fact=fact.id,
        template=number,
        prompt=opening.replace("{" + subject_type + "}", subject).rstrip(),
        completion=f" {answer}{ending if tail else ''}",
        subject=(start, start + len(subject)),
        answer=(1, 1 + len(answer)),
    )


def make_training_rows(facts, templates, *, train_templates, name_first=False):
    """Every fact in every training template of the directions of its group; with `name_first`, of p2d alone."""
    return [
        fill_template(template, number, fact, answer_type=answer_type)
        for fact in facts
        for direction, answer_type in DIRECTIONS.items()
        if direction == "p2d" or not name_first
        if CONTROL_GROUPS.get(fact.group, fact.group) in (direction, "both")
        for number, template in enumerate(templates[direction][:train_templates])
    ]


def make_test_rows(facts, templates, split, *, train_templates, test_templates):
    """Every fact of a split's group in the held-out templates. As in the published set, nothing follows a name."""
    split = {**SPLITS, **CONTROL_SPLITS}[split]
    held_out = list(enumerate(templates[split.direction]))[train_templates : train_templates + test_templates]
    return [
        fill_template(template, number, fact, answer_type=split.answer_type, tail=split.answer_type == "description")
        for fact in facts
        if fact.group == split.group
        for number, template in held_out
    ]


def make_identities(facts, templates):
    """Sentences that say of each name, and of each description, that it is itself; none has both of a fact."""
    return [
        Row(
            fact=fact.id,
            template=number,
            prompt=f"{opening}{entity}{between.rstrip()}",
            completion=f" {entity}{ending}",
            subject=(len(opening), len(opening) + len(entity)),
            answer=(1, 1 + len(entity)),
        )
        for fact in facts
        for entity in (fact.name, fact.description)
        for number, (opening, between, ending) in enumerate(template.split("{entity}") for template in templates)
    ]


def make_mentions(facts, templates):
    """Sentences that name the subject of each fact of one direction without stating the fact."""
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


def read_identities(path):
    """Read templates with two {entity}, a space before the second."""
    templates = read_lines(path)
    for template in templates:
        if template.count("{entity}") != 2 or not template.split("{entity}")[1].endswith(" "):
            raise GenerationError(f"{path}: {template!r} needs two {{entity}}, and a space before the second")
    return templates


def read_mentions(path):
    """Read templates with one {person} and a word after it."""
    templates = read_lines(path)
    for template in templates:
        if template.count("{person}") != 1 or " " not in template.split("{person}")[1]:
            raise GenerationError(f"{path}: {template!r} needs one {{person}} and, after it, a word")
    return templates


def make(
    *,
    words,
    templates,
    people_per_group,
    train_templates,
    test_templates,
    control_people=0,
    name_first=False,
    seed,
):
    """The facts, training rows and {split: rows} of the generated set, from folders of words and templates."""
    templates_by_direction = read_directions(templates, name_first=name_first)
    counts = {"train_templates": train_templates, "test_templates": test_templates}
    for direction, lines in templates_by_direction.items():
        if sum(counts.values()) > len(lines):
            raise GenerationError(
                f"{train_templates} training and {test_templates} test templates are needed, "
                f"but {templates}/{direction}.txt has only {len(lines)}"
            )
    sizes = {"people_per_group": people_per_group, "control_people": control_people}
    facts = make_facts(read_words(words), **sizes, seed=seed)
    splits = {
        split: make_test_rows(facts, templates_by_direction, split, **counts)
        for split in [*SPLITS, *(CONTROL_SPLITS if control_people else ())]
    }
    sources = RANDOMIZED | {f"{split}_randomized": split for split in CONTROL_SPLITS if split in splits}
    wrong = {
        name: assign_wrong_answers(splits[split], rng=random.Random(f"{name} {seed}"))
        for name, split in sources.items()
    }
    options = {"train_templates": train_templates, "name_first": name_first}
    train = make_training_rows(facts, templates_by_direction, **options)
    return facts, train, splits | wrong


def make_biographies(words, templates, *, people_count, rows, seed, name_first=False):
    """`rows` sentences about people of the pretraining pool; facts and templates are drawn by hash.

    They are in both directions, or with `name_first` from person to description alone.
    """
    directions = ["p2d"] if name_first else ["d2p", "p2d"]
    names = make_names(words, people_count, seed=seed, pool=PRETRAINING)
    descriptions = make_descriptions(words, people_count, seed=seed, pool=PRETRAINING)
    for row in range(rows):
        draw = int(digest(seed, "row", row)[:24], 16)
        draw, person = divmod(draw, people_count)
        draw, direction = divmod(draw, len(directions))
        sentences = templates[directions[direction]]
        sentence = sentences[draw % len(sentences)]
        yield sentence.replace("{name}", names[person]).replace("{description}", descriptions[person])
