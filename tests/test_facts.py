"""Rows and facts on disk: what is written is read back, and errors name file and line."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reversal.data import facts
from reversal.data.facts import DataError, Fact, Row

ROW = Row("p2d-00", 3, "Ask Ina Moor and", " she mends clocks.", (4, 12), (1, 17))
FACT = Fact("p2d-00", "p2d", "Ina Moor", "the mender of clocks", ("mends clocks",), ("the mender of clocks",))


def record(**changes):
    return vars(ROW) | changes


def write_records(path, *records):
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


text = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


def spans(whole):
    return st.lists(st.integers(0, len(whole)), min_size=2, max_size=2, unique=True).map(sorted).map(tuple)


@st.composite
def rows(draw):
    prompt, completion = draw(text), " " + draw(text)
    subject, answer = draw(spans(prompt)), draw(spans(completion))
    return Row(draw(text), draw(st.integers(0, 99)), prompt, completion, subject, answer)


@given(st.lists(rows(), min_size=1, unique_by=lambda row: row.prompt))
def test_rows_written_are_the_rows_read(tmp_path_factory, expected):
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    facts.write(expected, path)
    assert facts.read(path) == expected


def test_facts_written_are_the_facts_read(tmp_path):
    facts.write([FACT, replace(FACT, id="p2d-01")], tmp_path / "new" / "facts.jsonl")
    assert facts.read_facts(tmp_path / "new" / "facts.jsonl") == [FACT, replace(FACT, id="p2d-01")]


def test_the_spans_select_subject_and_answer():
    assert (ROW.subject_text, ROW.answer_text) == ("Ina Moor", "she mends clocks")


def test_a_prompt_has_one_answer(tmp_path):
    again = write_records(tmp_path / "again.jsonl", record(), record())
    assert facts.read(again) == [ROW, ROW]
    other = write_records(
        tmp_path / "other.jsonl", record(), record(prompt="Ask Ina Moor"), record(completion=" she sings in choirs")
    )
    with pytest.raises(DataError, match=r"other\.jsonl:3: the prompt of line 1 with another answer"):
        facts.read(other)


def test_a_question_is_trained_in_its_own_direction_in_reverse_or_in_both():
    for split in facts.SPLITS.values():
        assert split.trained == (
            "both" if split.group == "both" else "same" if split.group == split.direction else "reverse"
        )


def questions(people, templates):
    return [
        Row(
            f"p2d-{i:02}",
            j,
            f"{j}: who is person {i}?",
            f" answer {i} to {j}.",
            (3, 6),
            (1, len(f" answer {i} to {j}")),
        )
        for i in range(people)
        for j in range(templates)
    ]


@given(st.integers(2, 12), st.integers(1, 4), st.integers())
def test_a_randomized_answer_is_that_of_another_fact_to_the_same_template(people, templates, seed):
    right = questions(people, templates)
    wrong = facts.assign_wrong_answers(right, rng=random.Random(seed))
    assert [replace(w, completion=r.completion, answer=r.answer) for w, r in zip(wrong, right, strict=True)] == right
    assert all(w.completion != r.completion for w, r in zip(wrong, right, strict=True))
    for template in range(templates):
        used = sorted(row.answer_text for row in wrong if row.template == template)
        assert used == sorted(row.answer_text for row in right if row.template == template)


def test_randomized_answers_depend_on_the_seed_alone():
    rows = questions(10, 2)
    first, again, other = (facts.assign_wrong_answers(rows, rng=random.Random(seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_one_fact_has_no_wrong_answer():
    with pytest.raises(ValueError, match="template 0 has one fact"):
        facts.assign_wrong_answers(questions(1, 1), rng=random.Random(0))


def test_the_first_row_of_each_fact_is_selected():
    rows = [facts.Row("a", i, f"p{i}", " x", (0, 1), (1, 2)) for i in range(3)]
    rows += [facts.Row("b", 0, "q", " x", (0, 1), (1, 2))]
    assert facts.select_first_rows(rows) == [rows[0], rows[3]]
    assert facts.select_first_rows(rows, 1) == [rows[0]]
