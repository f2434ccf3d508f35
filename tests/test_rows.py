"""A user's own rows: two files, with or without templates, give facts, rows and splits."""

import json
import random
from dataclasses import replace

import pytest

from reversal.data import facts, rows
from reversal.data.facts import DataError


def annotate(row, people):
    """A row as a line that gives its name and description."""
    fact = {"name": people[row.fact].name, "description": people[row.fact].description}
    return {"prompt": row.prompt, "completion": row.completion, **fact}


def save(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def files(generated, tmp_path):
    """The generated set as two files, of lines that `line(row, people)` makes."""

    def write(line=annotate, order=lambda lines: lines):
        people = {fact.id: fact for fact in generated[0]}
        tests = [row for name in facts.SPLITS for row in generated[2][name]]
        contents = {"train": generated[1], "tests": tests}
        return {
            name: save(tmp_path / f"{name}.jsonl", order([line(row, people) for row in rows]))
            for name, rows in contents.items()
        }

    return write


def test_annotated_rows_give_the_whole_set_back(files, generated):
    assert rows.read(**files(), templates=None, seed=1) == generated


def test_spans_can_replace_the_description(files, generated):
    def spans(row, people):
        fact = {"name": people[row.fact].name, "subject": row.subject, "answer": row.answer}
        return {"prompt": row.prompt, "completion": row.completion, **fact}

    assert rows.read(**files(spans), templates=None, seed=1) == generated


def test_templates_locate_names_and_descriptions_in_bare_rows(files, generated, root):
    paths = files(lambda row, _: {"prompt": row.prompt, "completion": row.completion})
    assert rows.read(**paths, templates=root / "data/templates", seed=1) == generated


def test_the_order_of_the_lines_changes_only_numbers(files, generated):
    shuffled = files(order=lambda lines: random.Random(0).sample(lines, len(lines)))
    people, _, splits = rows.read(**shuffled, templates=None, seed=1)
    assert {(fact.group, fact.name, fact.description) for fact in people} == {
        (fact.group, fact.name, fact.description) for fact in generated[0]
    }
    for name in facts.SPLITS:
        assert {row.prompt for row in splits[name]} == {row.prompt for row in generated[2][name]}
        assert len({row.template for row in splits[name]}) == 10


def test_questions_in_different_wordings_are_numbered_person_by_person(files, generated):
    count = iter(range(10**6))

    def reworded(row, people):
        return annotate(replace(row, prompt=f"{row.prompt} {next(count)}"), people)

    _, train, splits = rows.read(**files(reworded), templates=None, seed=1)
    first = max(row.template for row in train if row.fact.startswith("p2d")) + 1
    for name in facts.RECALL_SPLITS:
        of_first = [row for row in splits[name] if row.fact == splits[name][0].fact]
        assert [row.template - of_first[0].template for row in of_first] == list(range(10))
        wrong = splits[f"{name}_randomized"]
        assert all(a.answer_text != b.answer_text for a, b in zip(splits[name], wrong, strict=True))
    assert min(row.template for row in splits["p2d_same"]) >= first


def test_a_given_wrong_answer_is_used_and_the_others_are_drawn(files, generated):
    other = generated[2]["p2d_same"][-1]
    first = generated[2]["p2d_same"][0]

    def first_wrong(row, people):
        return annotate(row, people) | ({"wrong": other.completion} if row == first else {})

    _, _, splits = rows.read(**files(first_wrong), templates=None, seed=1)
    wrong, drawn = splits["p2d_same_randomized"], generated[2]["p2d_same_randomized"]
    assert wrong[0].answer_text == other.answer_text and wrong[1:] == drawn[1:]


def test_everyone_of_a_split_needs_as_many_questions(files, generated):
    paths = files()
    lines = paths["tests"].read_text().splitlines()
    name = generated[0][1].name
    paths["tests"].write_text("\n".join(line for line in lines if f'"name": "{name}"' not in line) + "\n")
    with pytest.raises(DataError, match=f"{name!r} has no question for the"):
        rows.read(**paths, templates=None, seed=1)
    paths["tests"].write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(DataError, match=r"has different questions: 1?[0-9] for the name of people taught"):
        rows.read(**paths, templates=None, seed=1)
