import dataclasses

import pytest
import storage_fixtures
import torch

from reversal.common.errors import UserError
from reversal.data.facts import Row, closed
from reversal.models import hooks, network, tokens
from reversal.storage import compute_v, keyvalue, prefixes, scoring
from reversal.storage.scoring import LanguageModel

CANVAS = storage_fixtures.CANVAS
PREFIXES = ("", "People say.")
FAMILIES = ("mdm", "ar")


@pytest.fixture(scope="module")
def words():
    return storage_fixtures.tokenizer()


@pytest.fixture(scope="module")
def askers(words):
    """Both families and a network of another make, none of which learned anything."""
    networks = {
        "mdm": storage_fixtures.network(words, causal=False),
        "ar": storage_fixtures.network(words, causal=True),
        "gpt2": storage_fixtures.another_make(words),
    }
    return {name: LanguageModel(net, words, CANVAS) for name, net in networks.items()}


@pytest.fixture
def one_each():
    """One question about each of the eight."""
    return [row for row in storage_fixtures.rows() if row.template == 1]


# What the network sees


def test_a_diffusion_question_masks_the_answer_and_nothing_else(askers, words, one_each):
    lm, net = askers["mdm"], askers["mdm"].net
    example = tokens.encode(words, one_each[0])
    sequence = scoring.question(lm, one_each[0])
    first, end = example.answer
    row = example.ids + [words.eos_token_id] * (CANVAS - len(example.ids))
    assert sequence.ids == row[:first] + [network.mask_id(net)] * (end - first) + row[end:]
    assert sequence.answer == {place: example.ids[place] for place in range(first, end)}


def test_an_autoregressive_question_ends_before_the_answer_does(askers, words, one_each):
    example = tokens.encode(words, one_each[0])
    sequence = scoring.question(askers["ar"], one_each[0])
    assert sequence.ids == example.ids[: example.answer[1] - 1]
    assert sequence.answer == {place - 1: example.ids[place] for place in range(*example.answer)}


def test_a_prefix_lengthens_the_canvas_and_changes_nothing_else(askers, words, one_each):
    mask = network.mask_id(askers["mdm"].net)
    bare, prefixed = (scoring.question(askers["mdm"], one_each[0], prefix) for prefix in PREFIXES[:2])
    assert prefixed.ids[-CANVAS + 1 :] == bare.ids[1:]
    assert prefixed.ids.count(mask) == bare.ids.count(mask)
    assert len(prefixed.ids) > CANVAS
    assert words.decode([prefixed.ids[prefixed.place]]) == words.decode([bare.ids[bare.place]])
    assert list(prefixed.answer.values()) == list(bare.answer.values())


def test_only_a_row_that_ends_with_its_answer_is_closed(one_each):
    bare = dataclasses.replace(one_each[0], completion=" a red baker")
    assert closed(bare) == one_each[0]
    assert closed(one_each[0]) == one_each[0]


def test_a_subject_without_room_after_it_is_told(askers, words):
    row = Row("p-0", 0, "Ada Ada Ada Ada Ada Ada is", " Bo.", (0, 23), (1, 3))
    length = len(words("Ada Ada Ada Ada Ada Ada is a")["input_ids"])
    with pytest.raises(UserError, match="no room"):
        scoring.phrase(askers["mdm"]._replace(canvas=length), row.subject_text, " is a")


# Scores, and values put in place


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_scores_of_answers_equal_one_sequence_at_a_time(name, askers, monkeypatch):
    monkeypatch.setitem(scoring.ROWS, "cpu", 7)
    lm, net = askers[name], askers[name].net
    asked = [scoring.question(lm, row) for row in storage_fixtures.everything()]
    joint, exact = scoring.score_answers(net, asked)
    for i in (0, 11, 30, 47):
        with torch.no_grad():
            logs = network.logits(net, network.hidden(net, torch.tensor([asked[i].ids])))[0].log_softmax(-1)
        each = [logs[place, token].item() for place, token in asked[i].answer.items()]
        assert joint[i].item() == pytest.approx(sum(each), abs=1e-3)
        assert exact[i].item() == all(logs[place].argmax() == token for place, token in asked[i].answer.items())


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_putting_back_what_the_mlp_says_anyway_changes_nothing(name, askers):
    lm, net = askers[name], askers[name].net
    asked = [scoring.question(lm, row, owner=i) for i, row in enumerate(storage_fixtures.everything())]
    plain, _ = scoring.score_answers(net, asked)
    mlps = dict(enumerate(map(network.mlp, network.layers(net)[:2])))
    for layer, outputs in keyvalue.read_at_place(net, asked, hooks.outputs, mlps).items():
        put, _ = scoring.score_answers(net, asked, layer=layer, values=outputs)
        assert torch.allclose(put, plain, atol=1e-4)


def test_no_hook_outlives_a_failure(askers, words, one_each):
    lm, net = askers["mdm"], askers["mdm"].net
    asked = [scoring.question(lm, row, owner=i) for i, row in enumerate(one_each)]
    batches = compute_v.prepare(net, asked, [2])
    before, _ = scoring.score_answers(net, asked)
    with pytest.raises((RuntimeError, IndexError)):
        scoring.log_probabilities(net, batches[0], layer=2, values=torch.zeros(len(asked), 7))
    assert storage_fixtures.untouched(net)
    assert torch.equal(scoring.score_answers(net, asked)[0], before)


def test_slices_of_a_batch_are_batches_of_those_sequences(askers):
    """Of which halves are made where memory is short."""
    lm = askers["ar"]
    rows = [scoring.question(lm, row, owner=i) for i, row in enumerate(storage_fixtures.everything()[:9])]
    [whole] = compute_v.prepare(lm.net, rows, [1])
    for some in (slice(None, 4), slice(4, None)):
        half = whole[some]
        numbers = whole.number[some].tolist()
        assert len(half) == len(numbers) and half.number.tolist() == numbers
        assert [rows[i].owner for i in numbers] == half.owner.tolist()
        logs = scoring.joint(half, scoring.log_probabilities(lm.net, half))
        assert torch.allclose(logs, scoring.joint(whole, whole.reference)[some], atol=1e-4)
        assert torch.equal(half.below[1], whole.below[1][some])
        assert len(half.reference) == sum(len(rows[i].answer) for i in numbers)


# Prefixes


@pytest.mark.parametrize("name", FAMILIES)
def test_prefixes_are_seeded_and_begin_with_the_empty_one(name, askers, words):
    def sample(seed, **options):
        generator = torch.Generator().manual_seed(seed)
        settings = {"count": 4, "lengths": (2, 4), "generator": generator} | options
        return prefixes.sample_prefixes(askers[name], **settings)

    texts = sample(0)
    assert texts[0] == ""
    assert len(texts) == 4
    assert texts == sample(0) != sample(1)
    assert all(part and tokens.EOS not in part for part in texts[1:])
    people = words("People")["input_ids"]
    assert all(part.startswith("People") for part in sample(0, starts=people)[1:])
    with pytest.raises(UserError, match="only 2 texts"):
        sample(0, starts=people, lengths=(1,))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prefix_is_borne_if_it_costs_little_and_the_empty_one_always_is(name, askers):
    rows, texts = storage_fixtures.rows()[:6], ["", "People call", "Here comes"]
    lm = askers[name]

    def likely(prefix):
        return scoring.score_answers(lm.net, [scoring.question(lm, row, prefix) for row in rows])[0].mean()

    costs = {prefix: (likely("") - likely(prefix)).item() for prefix in texts}
    between = sum(sorted([costs["People call"], costs["Here comes"]])) / 2
    for cost in (0, max(between, 0), 1e6):
        assert prefixes.accepted_prefixes(lm, rows, texts, tolerance=cost) == [
            one for one in texts if costs[one] <= cost
        ]
    assert prefixes.accepted_prefixes(lm, rows, texts, tolerance=0)[0] == ""
