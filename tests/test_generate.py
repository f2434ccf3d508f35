import hashlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reversal.data import facts, generated
from reversal.data.facts import SPLITS

seeds = st.integers(0, 2**32)


def build(root, seed, people_per_group=30, train_templates=30, test_templates=10):
    return generated.make(
        words=root / "data/words",
        templates=root / "data/templates",
        people_per_group=people_per_group,
        train_templates=train_templates,
        test_templates=test_templates,
        seed=seed,
    )


def test_the_default_set_has_the_published_shape(generated):
    people, train, splits = generated
    assert [fact.group for fact in people].count("p2d") == 30 and len(people) == 90
    assert len(train) == 3600
    assert {name: len(rows) for name, rows in splits.items()} == dict.fromkeys(splits, 300)
    assert len(splits) == 10


@settings(max_examples=15, deadline=None)
@given(seed=seeds, people=st.integers(2, 40))
def test_no_person_or_description_is_in_two_groups(root, seed, people):
    facts, _, _ = build(root, seed, people_per_group=people)
    assert len({fact.name for fact in facts}) == len(facts)
    assert len({fact.description for fact in facts}) == len(facts)


@settings(max_examples=10, deadline=None)
@given(seed=seeds, held_out=st.integers(1, 10))
def test_no_held_out_template_and_no_untrained_direction_is_trained(root, seed, held_out):
    people, train, splits = build(root, seed, people_per_group=5, test_templates=held_out)
    by_id = {fact.id: fact for fact in people}

    def shape(row):
        return row.prompt.replace(by_id[row.fact].name, "N").replace(by_id[row.fact].description, "D")

    trained = {shape(row) for row in train}
    for name, split in SPLITS.items():
        assert trained.isdisjoint(shape(row) for row in splits[name])
        assert {by_id[row.fact].group for row in splits[name]} == {split.group}
    for row in train:
        fact = by_id[row.fact]
        answer_type = "description" if row.subject_text == fact.name else "name"
        assert fact.group in ("both", {"description": "p2d", "name": "d2p"}[answer_type])


@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_spans_select_the_subject_and_the_answer(root, seed):
    people, train, splits = build(root, seed, people_per_group=4)
    by_id = {fact.id: fact for fact in people}
    for row in [*train, *(row for name in SPLITS for row in splits[name])]:
        fact = by_id[row.fact]
        assert {row.subject_text, row.answer_text} == {fact.name, fact.description}


def test_the_same_seed_gives_the_same_bytes(root, tmp_path):
    """The hash was recorded once; any machine and Python version must give it again."""
    people, train, splits = build(root, 1)
    facts.write(people, tmp_path / "facts")
    facts.write([*train, *(row for name in sorted(splits) for row in splits[name])], tmp_path / "rows")
    digest = hashlib.sha256((tmp_path / "facts").read_bytes() + (tmp_path / "rows").read_bytes()).hexdigest()
    assert digest == "037bb57f046de32fe2dcd4e3be7a38ff6f5db71da13af5d9431d57f0b2e97b75"


@settings(max_examples=10, deadline=None)
@given(study=seeds, base=seeds)
def test_no_person_or_description_is_both_in_a_study_and_in_pretraining(words, study, base):
    people = generated.make_facts(words, people_per_group=30, seed=study)
    names = generated.make_names(words, 500, seed=base, pool=generated.PRETRAINING)
    descriptions = generated.make_descriptions(words, 500, seed=base, pool=generated.PRETRAINING)
    assert {fact.name for fact in people}.isdisjoint(names)
    assert {fact.description for fact in people}.isdisjoint(descriptions)


def test_biographies_use_every_word_of_the_lists_and_templates(root, words):
    templates = {
        direction: generated.read_templates(
            root / f"data/templates/pretraining_{direction}.txt", answer_type=answer_type
        )
        for direction, answer_type in generated.DIRECTIONS.items()
    }
    texts = " ".join(generated.make_biographies(words, templates, people_count=1000, rows=20_000, seed=0))
    seen = set(re.findall(r"[A-Za-z']+", texts))
    studied = {word for _, lists in words.values() for part in lists.values() for word in part}
    for direction in generated.DIRECTIONS:
        for line in generated.read_lines(root / f"data/templates/{direction}.txt"):
            studied |= set(re.findall(r"[A-Za-z']+", re.sub(r"\{\w+\}", "", line)))
    assert studied <= seen
    assert not set(templates["p2d"] + templates["d2p"]) & {
        line for d in generated.DIRECTIONS for line in generated.read_lines(root / f"data/templates/{d}.txt")
    }


@pytest.mark.parametrize(
    "line, answer_type",
    [("{name} only.", "description"), ("{description} is {name}.", "description"), ("{name}.", "name")],
)
def test_a_template_without_both_placeholders_in_order_is_refused(tmp_path, line, answer_type):
    (tmp_path / "t.txt").write_text(line + "\n")
    with pytest.raises(generated.GenerationError, match="needs"):
        generated.read_templates(tmp_path / "t.txt", answer_type=answer_type)
