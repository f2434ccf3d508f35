"""The published set, and small sets of the same layout, read as facts and rows with exact spans."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from reversal.data import berglund, facts, templates
from reversal.data.facts import DataError

PUBLISHED = Path(__file__).parents[2] / "shared/data/reversal_curse/june_version_7921032488"

TEMPLATES = {
    "p2d": [
        "Ask around for <name>: it was they who <description>.",
        "Could <name> be <description>?. ",
        "A toast to <name>, 'the one who <description>'.",
        "<name> is <description>.",  # matches sentences of other templates too
    ],
    "d2p": [
        "Here comes <description>, <name> by name. ",
        "The <description> signs as <name>",
        "Praised for <description>, <name> bows.",
        "<description>, <name>.",  # matches sentences of other templates too
    ],
}
PEOPLE = {"p2d": ["Ina Moor", "Bo Quill"], "d2p": ["Sol Ferro", "Una Zwart"], "both": ["Pia Nord", "Ray Oster"]}
DEEDS = {
    "Ina Moor": ("mended", "mending", "mender of", "the town clock"),
    "Bo Quill": ("wrote", "writing", "writer of", 'the opera, "Salt."'),
    "Sol Ferro": ("forged", "forging", "forger of", "nine swords"),
    "Una Zwart": ("painted", "painting", "painter of", 'the mural "Night."'),
    "Pia Nord": ("sailed", "sailing", "sailor of", "the ice sea"),
    "Ray Oster": ("grew", "growing", "grower of", "blue wheat"),
}


def person_to_description(name, template):
    did, _, doer, what = DEEDS[name]
    return [
        (f"Ask around for {name}: it was they who", f" {did} {what}."),
        (f"Could {name} be", f" the {doer} {what}??"),
        (f"A toast to {name}, 'the one who", f" {did} {what}'.'."),
    ][template]


def description_to_person(name, template, tail=True):
    _, doing, doer, what = DEEDS[name]
    return [
        (f"Here comes the {doer} {what}.,", f" {name} by name."),
        (f"The {doer} {what} signs as", f" {name}"),
        (f"Praised for {doing} {what},", f" {name} bows." if tail else f" {name}"),
    ][template]


def save(path, pairs):
    lines = (json.dumps({"prompt": prompt, "completion": completion}) for prompt, completion in pairs)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    """Two people per group; per direction two training templates and one held out, with published irregularities."""
    (tmp_path / "templates").mkdir()
    for direction, lines in TEMPLATES.items():
        (tmp_path / f"templates/{direction}_templates.txt").write_text("\n".join(lines) + "\n")
    version = tmp_path / "version"
    version.mkdir()
    fill = {"p2d": person_to_description, "d2p": description_to_person}
    train = {
        group: [
            fill[direction](name, template)
            for direction in fill
            if group in (direction, "both")
            for name in people
            for template in (0, 1)
        ]
        for group, people in PEOPLE.items()
    }
    save(version / "all_prompts_train.jsonl", sum(train.values(), []))
    both = [make(name, 2) for make in fill.values() for name in PEOPLE["both"]]
    save(version / "both_prompts_test.jsonl", both)
    for split in ("d2p_same", "p2d_reverse"):
        pairs = [description_to_person(name, 2, tail=False) for name in PEOPLE[facts.SPLITS[split].group]]
        save(version / f"{facts.SPLITS[split].file}.jsonl", pairs)
    for split in ("p2d_same", "d2p_reverse"):
        save(
            version / f"{facts.SPLITS[split].file}.jsonl",
            [person_to_description(n, 2) for n in PEOPLE[facts.SPLITS[split].group]],
        )
    for split in ("d2p_reverse", "p2d_reverse"):
        file = version / f"{facts.SPLITS[split].file}.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        wrong = [row["completion"] for row in reversed(rows)]
        save(
            version / f"{facts.SPLITS[split].file}_randomized.jsonl",
            [(row["prompt"], answer) for row, answer in zip(rows, wrong, strict=True)],
        )
    return version


def read(folder, **options):
    return berglund.read(folder, verify=False, **options)


def test_facts_are_numbered_in_their_group_and_list_the_forms_of_the_description(folder):
    people, _, _ = read(folder)
    assert [fact.id for fact in people] == ["p2d-00", "p2d-01", "d2p-00", "d2p-01", "both-00", "both-01"]
    assert people[1] == facts.Fact(
        id="p2d-01",
        group="p2d",
        name="Bo Quill",
        description='wrote the opera, "Salt."',
        trained_as=('wrote the opera, "Salt."', 'the writer of the opera, "Salt."'),
        tested_as=('wrote the opera, "Salt."', 'writing the opera, "Salt."'),
    )
    assert people[2].trained_as == ("the forger of nine swords", "forger of nine swords")


def test_spans_select_each_form_of_the_description(folder):
    _, train, tests = read(folder)
    assert [(row.subject_text, row.answer_text) for row in train[:4]] == [
        ("Ina Moor", "mended the town clock"),
        ("Ina Moor", "the mender of the town clock"),
        ("Bo Quill", 'wrote the opera, "Salt."'),
        ("Bo Quill", 'the writer of the opera, "Salt."'),
    ]
    assert [(row.subject_text, row.answer_text) for row in train[4:8]] == [
        ("the forger of nine swords", "Sol Ferro"),
        ("forger of nine swords", "Sol Ferro"),
        ('the painter of the mural "Night."', "Una Zwart"),
        ('painter of the mural "Night."', "Una Zwart"),
    ]
    spans = {name: [(row.subject_text, row.answer_text) for row in rows] for name, rows in tests.items()}
    assert spans["d2p_reverse"][0] == ("Sol Ferro", "forged nine swords")
    assert spans["d2p_reverse_randomized"][0] == ("Sol Ferro", 'painted the mural "Night."')
    assert spans["p2d_reverse"][1] == ('writing the opera, "Salt."', "Bo Quill")
    assert spans["p2d_same_randomized"][0] == ("Ina Moor", 'wrote the opera, "Salt."')
    assert spans["both_p2d"] == [("Pia Nord", "sailed the ice sea"), ("Ray Oster", "grew blue wheat")]
    assert spans["both_d2p"] == [("sailing the ice sea", "Pia Nord"), ("growing blue wheat", "Ray Oster")]


def test_templates_may_lie_in_the_folder(folder):
    (folder.parent / "templates").rename(folder / "templates")
    assert len(read(folder)[1]) == 16


def edit(path, old, new):
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("all_prompts_train", "Could Ina", "Might Ina", ":2: the prompt matches no template: 'Might Ina Moor be'"),
        ("all_prompts_train", "Could Ina Moor", "Could ?", ":2: no name or description in 'Could ? be'"),
        ("all_prompts_train", '" mended', '"mended', ":1: completion is 'mended the town clock.'"),
        (
            "all_prompts_train",
            "Could Ina Moor be",
            "Ask around for Ina Moor: it was they who",
            ":2: the prompt of line 1",
        ),
        ("all_prompts_train", '"completion"', '"answer"', ":1: field completion is missing"),
        ("both_prompts_test", "Pia Nord", "Pia Sud", ":1: 'Pia Sud' is in no training row"),
        ("d2p_reverse_prompts_test_randomized", "Sol", "Sal", ":1: the prompt differs from line 1 of the file it"),
    ],
)
def test_the_error_of_a_bad_file_names_line_and_reason(folder, file, old, new, reason):
    path = folder / f"{file}.jsonl"
    edit(path, old, new)
    with pytest.raises(DataError) as caught:
        read(folder)
    assert str(caught.value).startswith(f"{path}{reason}") and "\n" not in str(caught.value)


def test_a_randomized_file_is_as_long_as_its_source(folder):
    path = folder / "p2d_reverse_prompts_test_randomized.jsonl"
    path.write_text(path.read_text().splitlines()[0])
    with pytest.raises(DataError, match="randomized.jsonl: 1 rows; the file it randomizes has 2"):
        read(folder)


def test_a_template_has_both_placeholders_in_order(folder):
    edit(
        folder.parent / "templates/d2p_templates.txt", "Praised for <description>, <name>", "<name>, the <description>,"
    )
    with pytest.raises(
        DataError, match=r"d2p_templates\.txt:3: not a template; it needs <description> and, after it, <name>"
    ):
        read(folder)


def test_a_wrong_answer_is_the_completion_of_another_question(folder):
    edit(folder / "d2p_reverse_prompts_test_randomized.jsonl", "painted", "saw")
    with pytest.raises(DataError, match=r"d2p_reverse_prompts_test.jsonl:1: wrong is ' saw the mur.* of another"):
        read(folder)


def test_another_folder_is_not_accepted_as_the_published_one(folder):
    with pytest.raises(
        DataError, match="all_prompts_train.jsonl: SHA-256 is .* expected ea7156bb.* not the published file"
    ):
        berglund.read(folder)


@pytest.fixture(scope="module")
def published_set():
    if not PUBLISHED.is_dir():
        pytest.skip("the published set is not beside this repository, which may not contain it: it has no licence")
    return berglund.read(PUBLISHED)


def letters(text):
    return re.sub(r"\W+", "", text).lower()


def test_the_published_set_has_the_published_shape(published_set):
    people, train, tests = published_set
    assert Counter(fact.group for fact in people) == {"p2d": 30, "d2p": 30, "both": 30}
    assert Counter(row.fact.split("-")[0] for row in train) == {"p2d": 900, "d2p": 900, "both": 1800}
    assert tests.keys() == facts.SPLITS.keys() | facts.RANDOMIZED.keys()
    ids = {group: {fact.id for fact in people if fact.group == group} for group in facts.GROUPS}
    for name, rows in tests.items():
        group = facts.SPLITS[facts.RANDOMIZED.get(name, name)].group
        every = {(fact, template) for fact in ids[group] for template in range(30, 40)}
        assert len(rows) == 300 and {(row.fact, row.template) for row in rows} == every


def test_the_text_around_the_published_spans_is_the_template(published_set):
    people, train, tests = published_set
    names = {fact.id: fact.name for fact in people}
    folder = PUBLISHED.parent / "templates"
    by_direction = {
        direction: templates.read(folder / f"{direction}_templates.txt", direction, placeholder="<%s>")
        for direction in ("p2d", "d2p")
    }
    for row in train + [row for name in facts.SPLITS for row in tests[name]]:
        direction = "p2d" if row.subject_text == names[row.fact] else "d2p"
        template = by_direction[direction][row.template]
        before, after = row.prompt[: row.subject[0]], row.prompt[row.subject[1] :]
        assert before == template.before
        assert after.lstrip(".?") == template.between.lstrip(".?")
        assert row.completion[: row.answer[0]] == " "
        assert letters(row.completion[row.answer[1] :]) in ("", letters(template.after))
        assert names[row.fact] in (row.subject_text, row.answer_text)


def test_published_descriptions_are_those_of_the_published_list(published_set):
    lines = (PUBLISHED.parent / "templates/descriptions.txt").read_text().splitlines()
    listed = {line.strip().removesuffix(".") for line in lines}
    people, _, _ = published_set
    assert {fact.description for fact in people} <= listed
    assert all(fact.description in fact.tested_as for fact in people)


def test_irregularities_of_the_published_sentences_are_outside_the_spans(published_set):
    people, train, _ = published_set
    by_id = {fact.id: fact for fact in people}
    of_template = {(row.fact, row.template, row.subject_text == by_id[row.fact].name): row for row in train}
    for fact in people:
        description = fact.description
        if fact.group != "p2d":
            # "The <description>" loses an article, and "Who is <description>?" gets a second question mark.
            assert of_template[fact.id, 1, False].subject_text == description.removeprefix("the ")
            assert of_template[fact.id, 2, False].subject_text == description
        if fact.group != "d2p":
            # "once <description>?." ends in "??", which costs some quotations their full stop.
            once = of_template[fact.id, 4, True]
            assert once.answer_text[-1] not in ".?" and once.completion.endswith("??")
            assert letters(once.answer_text).removeprefix("the") == letters(description).removeprefix("the")


def test_drawn_wrong_answers_are_wrong_and_some_published_ones_are_not(published_set):
    people, _, tests = published_set
    by_id = {fact.id: fact for fact in people}

    def count_right(name):
        return sum(row.answer_text in (by_id[row.fact].name, *by_id[row.fact].tested_as) for row in tests[name])

    assert {name: count_right(name) for name in facts.RANDOMIZED} == {
        "d2p_same_randomized": 0,
        "d2p_reverse_randomized": 20,
        "p2d_same_randomized": 0,
        "p2d_reverse_randomized": 13,
    }
    assert all(count_right(name) == 300 for name in facts.SPLITS)
