import dataclasses
import random
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import storage_fixtures
import torch
from torch import nn

from reversal.data.facts import Row
from reversal.models import network, tokens
from reversal.storage import finetuned, gradients, transfer
from reversal.storage.scoring import LanguageModel, answer_loss, collate, encode_question
from reversal.storage.vocabulary import CONVERGED

NAMES = [f"N{letter}" for letter in "abcdefgh"]
DEEDS = [f"d{letter}" for letter in "abcdefgh"]
FORWARD_TEMPLATES = ("Then {} is", "So {} is", "Now {} is", "Here {} is")
REVERSE_TEMPLATES = ("Then {} was", "So {} was", "Now {} was", "Here {} was")
SETTINGS = finetuned.EditSettings(
    groups=("both",),
    kinds=("replace",),
    weights=("all",),
    adapter={"rank": 4, "alpha": 8},
    max_facts=6,
    neighbours=3,
    replay=2,
    edit_templates=2,
    learning_rate=0.3,
    steps=(4, 24),
    converged_below=0.3,
    knock_out=(0.01, 0.05),
    seed=1,
)


def make_rows(templates, subjects, answers):
    return [
        Row(f"p-{n}", i, text.format(subject), f" {answer}.", (text.index("{"), text.index("{") + 2), (1, 3))
        for n, (subject, answer) in enumerate(zip(subjects, answers, strict=True))
        for i, text in enumerate(templates)
    ]


FORWARD_ROWS, REVERSE_ROWS = make_rows(FORWARD_TEMPLATES, NAMES, DEEDS), make_rows(REVERSE_TEMPLATES, DEEDS, NAMES)


class Associations(nn.Module):
    """A network that answers with the partner of the visible words: by one matrix for both directions, or one for each.

    The state at every position is a score for every token. Shared storage is by construction: the score of token `i`
    next to token `j` is S[i, j] + S[j, i] in both directions. Only names and deeds count, not other words.
    """

    def __init__(self, words, *, shared, strength=10.0):
        super().__init__()
        self.shared, self.reverse = shared, words(" was")["input_ids"][-1]
        size = len(words) + 1
        self.config = SimpleNamespace(
            vocab_size=size, mask_token_id=size - 1, eos_token_id=0, num_hidden_layers=1, hidden_size=size
        )
        block = nn.Module()
        block.mlp, block.attn = nn.ParameterList([torch.zeros(size, size) for _ in range(2)]), nn.Identity()
        self.layers, self.base_model = nn.ModuleList([block]), SimpleNamespace()
        self.embedding = SimpleNamespace(weight=torch.eye(size), bias=None)
        self.known = torch.zeros(size)
        for name, deed in zip(NAMES, DEEDS, strict=True):
            first, second = (words(f" {word}")["input_ids"][-1] for word in (name, deed))
            self.known[[first, second]] = 1
            with torch.no_grad():
                for matrix in block.mlp:
                    matrix[first, second] = matrix[second, first] = strength / (2 if shared else 1)

    def read(self, input_ids, **_):
        bags = nn.functional.one_hot(input_ids, self.config.vocab_size).float().sum(1) * self.known  # (B, V)
        first, second = self.layers[0].mlp
        scores = bags @ (first + first.T) if self.shared else bags @ first.T
        if not self.shared:
            scores = torch.where((input_ids == self.reverse).any(1)[:, None], bags @ second.T, scores)
        return SimpleNamespace(last_hidden_state=scores[:, None].expand(-1, input_ids.shape[1], -1))

    def get_input_embeddings(self):
        return self.embedding

    get_output_embeddings = get_input_embeddings


class Read:
    """Stand-in for the base model, from which `network` reads states and modules."""

    def __init__(self, net):
        self.net = net

    def __call__(self, **inputs):
        return self.net.read(**inputs)

    def modules(self):
        return self.net.modules()


def make_associations(**options):
    words = tokens.train_tokenizer([row.text for row in FORWARD_ROWS + REVERSE_ROWS] * 5, 400)
    net = Associations(words, **options)
    net.base_model = Read(net)
    return LanguageModel(net, words, 8)


def measure_transfer(lm, *, kind="replace"):
    options = {"kind": kind, "weights": "all", "settings": SETTINGS, "rng": random.Random(1)}
    table = finetuned.make_edits(lm, FORWARD_ROWS, REVERSE_ROWS, **options)
    run = {"model": "m", "seed": 1, "stage": "seed_1", "group": "both", "edited": "p2d", "weights": "all"}
    summary = transfer.summarize_edits(table.assign(**run, kind=kind))
    return summary[(summary.steps == CONVERGED) & (summary.about == "difference")].set_index(["question", "answer"])


@pytest.mark.parametrize("kind", ["replace", "replay_both", "forget", "knock_out", "erase"])
def test_edits_transfer_with_shared_storage_and_not_with_separate_storage(kind):
    shared, separate = (measure_transfer(make_associations(shared=shared), kind=kind) for shared in (True, False))
    for answer in shared.loc["reverse"].index:
        assert shared.loc["reverse", answer].transfer_low > 0.1
        assert separate.loc["reverse", answer].transfer == pytest.approx(0, abs=0.01)


def test_an_edit_transfers_to_held_out_templates():
    summary = measure_transfer(make_associations(shared=False))
    assert summary.converged.eq(1).all()
    assert summary.loc["paraphrase"].transfer.between(0.7, 1.1).all()


@pytest.mark.parametrize(("causal", "weights"), [(False, "all"), (True, "all"), (False, "adapter")])
def test_edits_are_undone_and_the_same_seed_gives_the_same_table(causal, weights):
    lm = storage_fixtures.language_model(causal=causal, steps=20)
    net = lm.net
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    settings = dataclasses.replace(SETTINGS, weights=(weights,), max_facts=2, steps=(2,), learning_rate=1e-3)
    tables = [
        finetuned.make_all_edits(lm, storage_fixtures.rows(), storage_fixtures.rows("name"), settings).round(12)
        for _ in range(2)
    ]
    pd.testing.assert_frame_equal(*tables)
    assert {name: parameter.requires_grad for name, parameter in net.named_parameters()} == dict.fromkeys(before, True)
    assert all((parameter == before[name]).all() for name, parameter in net.named_parameters())
    assert (tables[0].groupby(["question", "about", "answer"]).size() == 2).all()


@pytest.mark.parametrize("weights", ["mlp", "attention", "layer 1", "adapter"])
def test_an_edit_changes_only_the_named_weights(weights):
    lm = storage_fixtures.language_model()
    net = lm.net
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    part = {"mlp": ".mlp.", "attention": ".self_attn.", "layer 1": "layers.1.", "adapter": ".lora_"}[weights]
    with finetuned.fine_tune(lm, storage_fixtures.rows()[:2], [], weights, SETTINGS) as train:
        train(2)
        after = {name.replace(".base_layer", ""): parameter for name, parameter in net.named_parameters()}
        changed = {name for name, parameter in after.items() if name not in before or (parameter != before[name]).any()}
    assert changed
    assert all(part in name for name in changed)


def test_tracing_finds_a_part_that_brings_the_answer_to_the_masks():
    lm = storage_fixtures.language_model(steps=60)
    options = {"kind": "replace", "settings": SETTINGS, "rng": random.Random(1)}
    edits = finetuned.plan_edits(lm.tokenizer, storage_fixtures.rows(), **options)
    found = finetuned.find_traced_part(lm, edits, finetuned.Prompts(storage_fixtures.rows()))
    # The first block does not attend, so its parts know the subject at the subject alone.
    assert found in set(network.parts(lm.net)) - {"attention 0", "mlp 0"}


def test_a_fact_is_relearned_from_a_network_that_has_forgotten_it():
    options = {"kind": "relearn", "weights": "all", "settings": SETTINGS, "rng": random.Random(1)}
    table = finetuned.make_edits(make_associations(shared=False, strength=4.0), FORWARD_ROWS, REVERSE_ROWS, **options)
    scores = table.groupby(["question", "about"])[["before", "after"]].mean()
    assert table.converged.all()
    assert (scores.loc[[("edited", "fact"), ("reverse", "fact")], "before"] < -2.5).all()
    assert scores.loc[("paraphrase", "fact"), "after"] > -0.5
    # With storage of its own, the other direction does not return.
    assert scores.loc[("reverse", "fact"), "after"] == pytest.approx(scores.loc[("reverse", "fact"), "before"], abs=0.1)


def test_an_invented_subject_is_half_of_two_others():
    prompts = finetuned.Prompts(storage_fixtures.rows("name"))
    assert prompts.rows[finetuned.invented_id("p-0"), 0].prompt == "The name of a red singer is"


@pytest.mark.parametrize("weights", ["all", "adapter"])
def test_an_inserted_person_gets_the_answer_of_the_target(weights):
    lm = storage_fixtures.language_model(steps=20)
    options = {"weights": weights, "settings": dataclasses.replace(SETTINGS, max_facts=2, learning_rate=1e-2)}
    table = finetuned.make_edits(
        lm, storage_fixtures.rows("name"), storage_fixtures.rows(), kind="insert", rng=random.Random(1), **options
    )
    edited = table[(table.question == "edited") & (table.steps == 24)]
    assert set(edited.answer) == {"new"}
    assert (edited.after > edited.before + 1).all()


def test_gradients_of_shared_storage_are_similar_and_of_separate_storage_orthogonal():
    def compare(shared):
        lm = make_associations(shared=shared, strength=2.0)
        facts = sorted({row.fact for row in FORWARD_ROWS})
        forward, reverse = (
            gradients.compute_gradients(lm, rows, facts)["mlp 0"] for rows in (FORWARD_ROWS, REVERSE_ROWS)
        )
        own, others = gradients._split_diagonal((forward @ reverse.T).numpy())
        return own - others

    assert (compare(True) > 0).all()
    assert np.allclose(compare(False), 0)


def test_an_adapter_s_gradients_are_random_projections_of_the_network_s_own():
    lm = storage_fixtures.language_model()
    rows = storage_fixtures.rows()[:2]
    batches = collate(lm.net, [encode_question(lm, row) for row in rows])
    matrix = network.layers(lm.net)[1].mlp.up_proj
    [gradient] = torch.autograd.grad(answer_loss(lm.net, batches), matrix.weight)
    with finetuned.trainable(lm.net, "adapter", {"rank": 4, "alpha": 8}):
        computed = gradients.compute_gradients(lm, rows, [rows[0].fact])
        assert set(computed) == {f"{part} {layer}" for part in ("attention", "mlp") for layer in range(3)}
        answer_loss(lm.net, batches).backward()
        adapter = network.layers(lm.net)[1].mlp.up_proj
        first, second = (side["default"].weight for side in (adapter.lora_A, adapter.lora_B))
        torch.testing.assert_close(second.grad, 8 / 4 * gradient @ first.T)
        assert not first.grad.any()


def test_gradients_become_a_table_with_a_ceiling():
    lm = storage_fixtures.language_model(causal=True, steps=20)
    table = gradients.compare(lm, storage_fixtures.rows(), storage_fixtures.rows("name"))
    run = {"model": "m", "seed": 1, "stage": "seed_1", "group": "both", "edited": "p2d"}
    summary = transfer.summarize_gradients(table.assign(**run))
    assert set(summary.measure) == {"gradient", "attribution"}
    summary = summary[summary.measure == "gradient"].set_index(["part", "against"])
    assert summary.loc[("all", "forward"), "value"] > summary.loc[("all", "reverse"), "value"]
    assert summary.loc[("all", "reverse"), "n"] == len(storage_fixtures.NAMES)
    assert summary.ci_low.le(summary.value).all()


def test_with_no_facts_to_edit_the_tables_are_empty_with_all_columns():
    lm = make_associations(shared=True)
    edits = finetuned.make_all_edits(lm, FORWARD_ROWS, REVERSE_ROWS, dataclasses.replace(SETTINGS, max_facts=0))
    compared = gradients.compare(lm, FORWARD_ROWS, REVERSE_ROWS, max_facts=0)
    run = {"model": "m", "seed": 1, "stage": "seed_1", "group": "both", "edited": "p2d"}
    for summarize, table in ((transfer.summarize_edits, edits), (transfer.summarize_gradients, compared)):
        summary = summarize(table.assign(**run))
        assert summary.empty
        assert "transfer" in summary


@pytest.mark.parametrize(
    ("weights", "erased"), [(["all"], ["traced"]), (["all", "traced", "mlp"], ["traced", "mlp"]), (["adapter"], [])]
)
def test_a_fact_is_erased_from_parts_of_the_network_alone(weights, erased):
    assert finetuned.choose_weights("erase", weights) == erased
