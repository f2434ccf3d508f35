import dataclasses
import random
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import storage_fixtures
import torch
from torch import nn

from reversal.common.errors import UserError
from reversal.data.facts import Row
from reversal.models import network, tokens
from reversal.storage import finetuned, gradients, transfer
from reversal.storage.scoring import LanguageModel, answer_loss, collate, question
from reversal.storage.vocabulary import LEARNT

NAMES = [f"N{letter}" for letter in "abcdefgh"]
DEEDS = [f"d{letter}" for letter in "abcdefgh"]
FORWARD = ("Then {} is", "So {} is", "Now {} is", "Here {} is")
REVERSE = ("Then {} was", "So {} was", "Now {} was", "Here {} was")
SETTINGS = finetuned.Rewriting(
    groups=("both",),
    lessons=("rewrite",),
    weights=("all",),
    adapter={"rank": 4, "alpha": 8},
    max_facts=6,
    others=3,
    rehearsed=2,
    templates=2,
    learning_rate=0.3,
    steps=(4, 24),
    bar=0.3,
    seed=1,
)


def rows(templates, subjects, answers):
    return [
        Row(f"p-{n}", i, text.format(subject), f" {answer}.", (text.index("{"), text.index("{") + 2), (1, 3))
        for n, (subject, answer) in enumerate(zip(subjects, answers, strict=True))
        for i, text in enumerate(templates)
    ]


AHEAD, BACK = rows(FORWARD, NAMES, DEEDS), rows(REVERSE, DEEDS, NAMES)


class Associations(nn.Module):
    """A network that answers with what goes with the words in sight: by one matrix both ways, or by one for each way.

    The state at every position is a score for every token. What shares is made so by construction: the score of token
    `i` beside token `j` is S[i, j] + S[j, i], whichever is asked for. Names and deeds count, other words do not.
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
    """`network` asks a network's base model for states and modules."""

    def __init__(self, net):
        self.net = net

    def __call__(self, **given):
        return self.net.read(**given)

    def modules(self):
        return self.net.modules()


def associations(**how):
    words = tokens.train_tokenizer([row.text for row in AHEAD + BACK] * 5, 400)
    net = Associations(words, **how)
    net.base_model = Read(net)
    return LanguageModel(net, words, 8)


def carried(lm, *, lesson="rewrite"):
    table = finetuned.finetuned(lm, AHEAD, BACK, kind=lesson, weights="all", settings=SETTINGS, rng=random.Random(1))
    run = {"model": "m", "seed": 1, "stage": "seed_1", "group": "both", "rewritten": "p2d", "weights": "all"}
    found = transfer.rewriting(table.assign(**run, lesson=lesson))
    return found[(found.steps == LEARNT) & (found.about == "difference")].set_index(["asked", "answer"])


@pytest.mark.parametrize("lesson", ["rewrite", "forget"])
def test_a_memory_that_both_directions_share_is_found_and_two_memories_are_not(lesson):
    shared, apart = (carried(associations(shared=shared), lesson=lesson) for shared in (True, False))
    for answer in shared.loc["other"].index:
        assert shared.loc["other", answer].transfer_low > 0.1
        assert apart.loc["other", answer].transfer == pytest.approx(0, abs=0.01)


def test_other_templates_of_what_was_taught_follow_it():
    found = carried(associations(shared=False))
    assert found.learnt.eq(1).all()
    assert found.loc["same"].transfer.between(0.7, 1.1).all()


def test_a_reverse_read_from_forward_answers_is_one_memory_by_construction():
    found = carried(associations(shared=False))
    assert found.loc["inverted", "new"].transfer_low > 0.3


def test_the_inversion_is_bayes_rule_over_those_at_hand():
    scores = {("same", 0, x, "y"): float(np.log(p)) for x, p in (("a", 0.1), ("b", 0.3))}
    found = finetuned._inverted(scores)
    assert np.exp(found["inverted", 0, "a", "y"][0]) == pytest.approx(0.25)
    assert found["inverted", 0, "b", "y"][1] == 1


@pytest.mark.parametrize(("causal", "weights"), [(False, "all"), (True, "all"), (False, "adapter")])
def test_lessons_are_undone_and_the_same_seed_gives_the_same_table(causal, weights):
    words = storage_fixtures.tokenizer()
    net = storage_fixtures.network(words, causal=causal, steps=20)
    lm = LanguageModel(net, words, storage_fixtures.CANVAS)
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    settings = dataclasses.replace(SETTINGS, weights=(weights,), max_facts=2, steps=(2,), learning_rate=1e-3)
    tables = [
        finetuned.rewrite_all(lm, storage_fixtures.rows(), storage_fixtures.rows("name"), settings).round(12)
        for _ in range(2)
    ]
    pd.testing.assert_frame_equal(*tables)
    assert {name: parameter.requires_grad for name, parameter in net.named_parameters()} == dict.fromkeys(before, True)
    assert all((parameter == before[name]).all() for name, parameter in net.named_parameters())
    assert (tables[0].groupby(["asked", "about", "answer"]).size() == 2).all()


@pytest.mark.parametrize("weights", ["mlp", "attention", "layer 1", "adapter"])
def test_a_lesson_moves_only_the_weights_that_are_named(weights):
    words = storage_fixtures.tokenizer()
    net = storage_fixtures.network(words, causal=False)
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    part = {"mlp": ".mlp.", "attention": ".self_attn.", "layer 1": "layers.1.", "adapter": ".lora_"}[weights]
    lm = LanguageModel(net, words, storage_fixtures.CANVAS)
    with finetuned.being_taught(lm, storage_fixtures.rows()[:2], [], weights, SETTINGS) as learn:
        learn(2)
        own = {name.replace(".base_layer", ""): parameter for name, parameter in net.named_parameters()}
        moved = {name for name, parameter in own.items() if name not in before or (parameter != before[name]).any()}
    assert moved
    assert all(part in name for name in moved)


def test_a_subject_nobody_has_is_half_of_two_others_and_needs_two_words():
    asked = finetuned.Questions(storage_fixtures.rows("name"))
    assert asked.rows[finetuned.unowned("p-0"), 0].prompt == "The name of a red singer is"
    with pytest.raises(UserError, match="'Ada' is one word"):
        finetuned.plan(
            storage_fixtures.tokenizer(), storage_fixtures.rows(), kind="teach", settings=SETTINGS, rng=random.Random(1)
        )


@pytest.mark.parametrize("weights", ["all", "adapter"])
def test_a_new_person_is_taught_what_the_donor_is_known_for(weights):
    words = storage_fixtures.tokenizer()
    lm = LanguageModel(storage_fixtures.network(words, causal=False, steps=20), words, storage_fixtures.CANVAS)
    how = {"weights": weights, "settings": dataclasses.replace(SETTINGS, max_facts=2, learning_rate=1e-2)}
    table = finetuned.finetuned(
        lm, storage_fixtures.rows("name"), storage_fixtures.rows(), kind="teach", rng=random.Random(1), **how
    )
    taught = table[(table.asked == "taught") & (table.steps == 24)]
    assert set(taught.answer) == {"new"}
    assert (taught.after > taught.before + 1).all()


def test_gradients_of_a_shared_memory_point_the_same_way_and_of_two_do_not():
    def compared(shared):
        lm = associations(shared=shared, strength=2.0)
        names = sorted({row.fact for row in AHEAD})
        forward, reverse = (gradients.gradients(lm, some, names)["mlp 0"] for some in (AHEAD, BACK))
        own, others = gradients._own_and_others((forward @ reverse.T).numpy())
        return own - others, gradients.paired_by_chance((forward @ reverse.T).numpy(), np.random.default_rng(0))

    together, p = compared(True)
    assert (together > 0).all()
    assert p < 0.001
    assert np.allclose(compared(False)[0], 0)


def test_an_adapter_s_gradients_are_random_projections_of_the_network_s_own():
    words = storage_fixtures.tokenizer()
    lm = LanguageModel(storage_fixtures.network(words, causal=False), words, storage_fixtures.CANVAS)
    asked = storage_fixtures.rows()[:2]
    batches = collate(lm.net, [question(lm, row) for row in asked])
    matrix = network.layers(lm.net)[1].mlp.up_proj
    [whole] = torch.autograd.grad(answer_loss(lm.net, batches), matrix.weight)
    with finetuned.trainable(lm.net, "adapter", {"rank": 4, "alpha": 8}):
        found = gradients.gradients(lm, asked, [asked[0].fact])
        assert set(found) == {f"{part} {layer}" for part in ("attention", "mlp") for layer in range(3)}
        answer_loss(lm.net, batches).backward()
        adapter = network.layers(lm.net)[1].mlp.up_proj
        first, second = (side["default"].weight for side in (adapter.lora_A, adapter.lora_B))
        torch.testing.assert_close(second.grad, 8 / 4 * whole @ first.T)
        assert not first.grad.any()


def test_a_question_looks_where_it_looks_itself():
    words = storage_fixtures.tokenizer()
    lm = LanguageModel(storage_fixtures.network(words, causal=False, steps=20), words, storage_fixtures.CANVAS)
    asked = storage_fixtures.rows()
    names = sorted({row.fact for row in asked})
    found = gradients.compare_attention(lm, asked, asked, names, rng=np.random.default_rng(0))
    assert np.allclose(found.cosine, 1)
    assert found.p.iloc[0] < 0.01
    looked = gradients.attention_to_subject(lm, asked, names)
    assert ((looked > 0) & (looked < 1)).any()
    assert lm.net.config._attn_implementation == "sdpa"


def test_gradients_become_a_table_with_a_ceiling():
    words = storage_fixtures.tokenizer()
    lm = LanguageModel(storage_fixtures.network(words, causal=True, steps=20), words)
    table = gradients.compare(lm, storage_fixtures.rows(), storage_fixtures.rows("name"), rng=np.random.default_rng(0))
    run = {"model": "m", "seed": 1, "stage": "seed_1", "group": "both", "rewritten": "p2d"}
    found = transfer.gradients(table.assign(**run)).set_index(["part", "against"])
    assert found.loc[("all", "forward"), "value"] > found.loc[("all", "reverse"), "value"]
    assert found.loc[("attention to the subject", "reverse"), "n"] == len(storage_fixtures.NAMES)
    assert found.ci_low.le(found.value).all()


def test_with_no_facts_to_rewrite_the_tables_are_empty_and_whole():
    lm = associations(shared=True)
    lessons = finetuned.rewrite_all(lm, AHEAD, BACK, dataclasses.replace(SETTINGS, max_facts=0))
    compared = gradients.compare(lm, AHEAD, BACK, rng=np.random.default_rng(0), max_facts=0)
    run = {"model": "m", "seed": 1, "stage": "seed_1", "group": "both", "rewritten": "p2d"}
    for make, table, column in ((transfer.rewriting, lessons, "transfer"), (transfer.gradients, compared, "p")):
        made = make(table.assign(**run))
        assert made.empty
        assert column in made
