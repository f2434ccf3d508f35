"""Rows of one's own: two files, with or without templates, give facts, rows and splits."""

import json
import random
from dataclasses import replace

import pytest

from reversal.data import facts, rows
from reversal.data.facts import DataError


def statement(row, people):
    """A row as a line that says itself what it is about."""
    about = {"name": people[row.fact].name, "description": people[row.fact].description}
    return {"prompt": row.prompt, "completion": row.completion, **about}


def save(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def files(generated, tmp_path):
    """The generated set as two files, of lines that `line(row, people)` makes."""

    def write(line=statement, order=lambda lines: lines):
        people = {fact.id: fact for fact in generated[0]}
        asked = [row for name in facts.SPLITS for row in generated[2][name]]
        named = {"train.jsonl": generated[1], "tests.jsonl": asked}
        made = [save(tmp_path / name, order([line(row, people) for row in own])) for name, own in named.items()]
        return dict(zip(("train", "tests"), made, strict=True))

    return write


def test_rows_that_say_what_they_are_about_give_the_whole_set_back(files, generated):
    assert rows.read(**files(), templates=None, seed=1) == generated


def test_spans_do_instead_of_the_description(files, generated):
    def spans(row, people):
        own = {"name": people[row.fact].name, "subject": row.subject, "answer": row.answer}
        return {"prompt": row.prompt, "completion": row.completion, **own}

    assert rows.read(**files(spans), templates=None, seed=1) == generated


def test_templates_find_what_bare_rows_are_about(files, generated, root):
    made = files(lambda row, _: {"prompt": row.prompt, "completion": row.completion})
    assert rows.read(**made, templates=root / "data/templates", seed=1) == generated


def test_the_order_of_the_lines_decides_no_more_than_numbers(files, generated):
    shuffled = files(order=lambda lines: random.Random(0).sample(lines, len(lines)))
    people, _, splits = rows.read(**shuffled, templates=None, seed=1)
    assert {(fact.group, fact.name, fact.description) for fact in people} == {
        (fact.group, fact.name, fact.description) for fact in generated[0]
    }
    for name in facts.SPLITS:
        assert {row.prompt for row in splits[name]} == {row.prompt for row in generated[2][name]}
        assert len({row.template for row in splits[name]}) == 10


def test_questions_in_words_of_their_own_are_numbered_person_by_person(files, generated):
    count = iter(range(10**6))

    def reworded(row, people):
        return statement(replace(row, prompt=f"{row.prompt} {next(count)}"), people)

    _, train, splits = rows.read(**files(reworded), templates=None, seed=1)
    first = max(row.template for row in train if row.fact.startswith("p2d")) + 1
    for name in facts.RECALL_SPLITS:
        own = [row for row in splits[name] if row.fact == splits[name][0].fact]
        assert [row.template - own[0].template for row in own] == list(range(10))
        wrong = splits[f"{name}_randomized"]
        assert all(a.answer_text != b.answer_text for a, b in zip(splits[name], wrong, strict=True))
    assert min(row.template for row in splits["p2d_same"]) >= first


def test_a_wrong_answer_that_is_given_is_taken_and_the_others_are_drawn(files, generated):
    other = generated[2]["p2d_same"][-1]
    first = generated[2]["p2d_same"][0]

    def first_wrong(row, people):
        return statement(row, people) | ({"wrong": other.completion} if row == first else {})

    _, _, splits = rows.read(**files(first_wrong), templates=None, seed=1)
    found, drawn = splits["p2d_same_randomized"], generated[2]["p2d_same_randomized"]
    assert found[0].answer_text == other.answer_text and found[1:] == drawn[1:]


def test_everyone_of_a_split_is_asked_as_often(files, generated):
    made = files()
    lines = made["tests"].read_text().splitlines()
    name = generated[0][1].name
    made["tests"].write_text("\n".join(line for line in lines if f'"name": "{name}"' not in line) + "\n")
    with pytest.raises(DataError, match=f"{name!r} is in no question for the"):
        rows.read(**made, templates=None, seed=1)
    made["tests"].write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(DataError, match=r"has other questions than the rest: 1?[0-9] for the name of people taught"):
        rows.read(**made, templates=None, seed=1)
