"""Facts that a base knows: pairs of children and parents, in both directions, without any training on them."""

import csv
import os

import pandas as pd
import pytest
import study_fixtures
import torch
import yaml

from reversal.data import pairs
from reversal.data.facts import KNOWN
from reversal.models import network, tokens
from reversal.training import loop, objective

CANVAS = 16


def write(path, lines):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("child", "parent", "parent_type", "note"), *lines])
    return path


def families(words, count):
    """Generated families: children with a mother and a father, every name a first name and one of a few last names."""
    _, lists = words["name"]
    first, last = lists["first_names"], lists["last_names"][:4]
    names = [f"{name} {last[i % len(last)]}" for i, name in enumerate(first[: 3 * count])]
    return [
        (names[3 * i], names[3 * i + 1 + parent], kind, "")
        for i in range(count)
        for parent, kind in enumerate(pairs.KINDS)
    ]


@pytest.fixture(scope="module")
def made(root, words, tmp_path_factory):
    """A file of families, and their facts, statements and splits."""
    file = write(tmp_path_factory.mktemp("families") / "pairs.csv", families(words, 3))
    return file, pairs.make(pairs.read(file), templates=root / "data/templates", max_pairs=None, seed=1)


def test_a_pair_has_a_question_with_one_answer_in_each_direction(made):
    _, (people, stated, splits) = made
    assert len(people) == 6 and {fact.group for fact in people} == {"known"}
    forward, reverse = (splits[name] for name in KNOWN)
    assert len(forward) == len(reverse) == 6 * 4 and len(stated) == 48
    for row, fact in zip(forward, [fact for fact in people for _ in range(4)], strict=True):
        assert (row.subject_text, row.answer_text) == (fact.name, fact.description)
    for row, fact in zip(reverse, [fact for fact in people for _ in range(4)], strict=True):
        assert (row.subject_text, row.answer_text) == (fact.description, fact.name)


def test_a_wrong_answer_is_another_name_of_the_same_kind(made):
    file, (people, _, splits) = made
    kinds = {pair.parent: pair.parent_type for pair in pairs.read(file)}
    parents = {fact.id: fact.description for fact in people}
    for name in KNOWN:
        for row, wrong in zip(splits[name], splits[f"{name}_randomized"], strict=True):
            assert row.prompt == wrong.prompt and row.completion != wrong.completion
            if name == "known_p2d":
                assert kinds[wrong.answer_text] == kinds[parents[row.fact]]


def test_names_are_read_as_spreadsheets_save_them(tmp_path):
    """With a byte-order mark, Windows line ends, quotes, and stray spaces."""
    text = (
        '\ufeffchild, parent ,parent_type\r\n"Ann ""Al"" Lee" ,"Lee,  Zoë ", mother\r\n"Bo\nLee",Cy\u2028Lee,father\r\n'
    )
    (tmp_path / "pairs.csv").write_bytes(text.encode())
    assert pairs.read(tmp_path / "pairs.csv") == [
        ('Ann "Al" Lee', "Lee, Zoë", "mother"),
        ("Bo Lee", "Cy Lee", "father"),
    ]


def test_questions_with_several_answers_are_left_out():
    unambiguous = pairs.Pair("Ada", "Bo", "mother")
    two_children = [pairs.Pair("Dov", "Cleo", "mother"), pairs.Pair("Edda", "CLEO", "mother")]
    two_fathers = [pairs.Pair("Finn", parent, "father") for parent in ("Gil", "Hugo")]
    assert pairs.select_unambiguous([unambiguous, *two_children, *two_fathers]) == [unambiguous]


def test_the_published_pairs_are_read_and_a_seed_chooses_among_them(root, shared):
    published = pairs.read(shared / f"data/celebrity_relations/{pairs.FILE}", repeated=True)
    assert len(published) == 1511 and len(pairs.select_unambiguous(published)) > 1400
    some, others = (
        pairs.make(published, templates=root / "data/templates", max_pairs=20, seed=seed)[0] for seed in (1, 2)
    )
    assert len(some) == 20 and {fact.name for fact in some} != {fact.name for fact in others}


def train_on(net, reader, rows):
    """The network after a few training steps on the completions of rows."""
    ids, real = loop.pad([reader(row.text)["input_ids"] for row in rows], net.config.eos_token_id, CANVAS)
    prompt = torch.arange(CANVAS) < torch.tensor([tokens.encode(reader, row).prompt for row in rows])[:, None]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for matrix in (parameter for parameter in net.parameters() if parameter.dim() == 2):
            matrix *= 4  # the usual small weights would need many more steps
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    for step in range(100):
        if network.is_diffusion(net):
            share = torch.rand(len(ids), 1, generator=generator).clamp(min=0.3) if step % 2 else 1.0
            hit = ~prompt & (torch.rand(ids.shape, generator=generator) < share)
            batch = objective.Targets(ids.masked_fill(hit, network.mask_id(net)), ids, hit / hit.sum())
        else:
            batch = objective.autoregressive_targets(ids, real)
        objective.compute_loss(net, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net


@pytest.fixture(scope="module")
def study(root, made, tmp_path_factory):
    """A copy of the project with bases trained on the families, and a study of these bases."""
    file, (_, stated, _) = made
    folder = study_fixtures.copy_project(root, tmp_path_factory.mktemp("known") / "project")
    reader = tokens.train_tokenizer([row.text for row in stated], 500)
    for name, causal in (("mdm", False), ("ar", True)):
        net = network.new(causal=causal, vocab=len(reader), width=48, layers=2, heads=4, mlp=96, eos=0, seed=1)
        # The autoregressive base sees only the direction from child to parent, so it should show the curse.
        rows = stated[: len(stated) // 2] if causal else stated
        network.save(train_on(net, reader, rows), reader, folder / f"bases/{name}")
    config = {
        "study": "families",
        "data": {"source": "pairs", "pairs": {"file": str(file)}},
        "models": {name: {"base": "folder", "folder": f"bases/{name}"} for name in ("mdm", "ar")},
        "training": "none",
        "sampling": {"canvas": CANVAS, "steps": [8], "guidance": 0},
        "likelihood": {"samples": 4},
        "tracing": {"max_facts": 2, "sampling_steps": 8, "draws": 2, "windows": [1]},
        "keyvalue": {
            "layers": "peak",
            "max_facts": 5,
            "prefixes": {"count": 1, "lengths": [3]},
            "optimization": {"steps": 4},
        },
        "symmetry": {"permutations": 100, "components": 3},
        "rank_one_edits": {
            "layers": "peak",
            "max_facts": 2,
            "random_sites": 1,
            "partly_unmasked": 1,
            "second_moment_rows": 100,
        },
        "finetuned_edits": {"weights": ["adapter"], "max_facts": 2, "replay": 2, "steps": [2]},
    }
    (folder / "families.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_the_bases_are_evaluated_in_both_directions_and_what_they_know_is_traced(study):
    done = study_fixtures.snakemake(study, study="families.yaml")
    assert done.returncode == 0, (done.stderr + done.stdout)[-3000:]
    results = study / "results/families"
    assert not list(results.glob("models/*/*.training.csv"))
    weights = [results / f"models/mdm/{stage}/model.safetensors" for stage in ("base", "seed_1")]
    assert os.path.samefile(*weights)
    recall = pd.read_csv(results / "tables/step_scaling.csv").set_index(["model", "split"]).accuracy
    assert recall["mdm", "known_p2d"] > 0.5 and recall["mdm", "known_d2p"] > 0.5
    assert recall["ar", "known_p2d"] > 0.5 and recall["ar", "known_d2p"] < 0.3
    reversal = pd.read_csv(results / "tables/recall_differences.csv").query("contrast == 'people'").set_index("model")
    assert reversal.difference["ar"] > 0.3
    likelihood = pd.read_csv(results / "tables/likelihood.csv").set_index(["model", "split"]).difference
    assert likelihood["mdm", "known_p2d"] > 0 and likelihood["mdm", "known_d2p"] > 0
    traced = pd.read_csv(results / "tables/traced_facts.csv").query("outcome == 'traced'")
    assert set(traced.split) == set(KNOWN) and set(traced.model) == {"mdm", "ar"}
    assert {"base_knowledge", "rank_one_edits", "finetuned_edits"} <= {
        file.stem for file in results.glob("figures/*.svg")
    }
    edits = pd.read_csv(results / "tables/finetuned_edits.csv")
    assert set(edits.weights) == {"adapter"} and set(edits.edited) == {"p2d", "d2p"}
