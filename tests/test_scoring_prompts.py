import dataclasses

import pytest
import storage_fixtures
import torch

from reversal.common.errors import UserError
from reversal.data.facts import Row, add_full_stop
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
def lms(words):
    """Both families and a GPT-2, all with random weights."""
    networks = {
        "mdm": storage_fixtures.network(words, causal=False),
        "ar": storage_fixtures.network(words, causal=True),
        "gpt2": storage_fixtures.gpt2_network(words),
    }
    return {name: LanguageModel(net, words, CANVAS) for name, net in networks.items()}


@pytest.fixture
def one_row_each():
    """One question about each of the eight people."""
    return [row for row in storage_fixtures.rows() if row.template == 1]


# Encoding


def test_a_diffusion_question_masks_the_answer_and_nothing_else(lms, words, one_row_each):
    lm, net = lms["mdm"], lms["mdm"].net
    example = tokens.encode(words, one_row_each[0])
    sequence = scoring.encode_question(lm, one_row_each[0])
    first, end = example.answer
    row = example.ids + [words.eos_token_id] * (CANVAS - len(example.ids))
    assert sequence.ids == row[:first] + [network.mask_id(net)] * (end - first) + row[end:]
    assert sequence.answer == {position: example.ids[position] for position in range(first, end)}


def test_an_autoregressive_question_ends_before_the_answer_does(lms, words, one_row_each):
    example = tokens.encode(words, one_row_each[0])
    sequence = scoring.encode_question(lms["ar"], one_row_each[0])
    assert sequence.ids == example.ids[: example.answer[1] - 1]
    assert sequence.answer == {position - 1: example.ids[position] for position in range(*example.answer)}


def test_a_prefix_lengthens_the_canvas_and_changes_nothing_else(lms, words, one_row_each):
    mask = network.mask_id(lms["mdm"].net)
    bare, prefixed = (scoring.encode_question(lms["mdm"], one_row_each[0], prefix) for prefix in PREFIXES[:2])
    assert prefixed.ids[-CANVAS + 1 :] == bare.ids[1:]
    assert prefixed.ids.count(mask) == bare.ids.count(mask)
    assert len(prefixed.ids) > CANVAS
    assert words.decode([prefixed.ids[prefixed.lookup_position]]) == words.decode([bare.ids[bare.lookup_position]])
    assert list(prefixed.answer.values()) == list(bare.answer.values())


def test_a_full_stop_is_added_only_to_a_row_that_ends_with_its_answer(one_row_each):
    bare = dataclasses.replace(one_row_each[0], completion=" a red baker")
    assert add_full_stop(bare) == one_row_each[0]
    assert add_full_stop(one_row_each[0]) == one_row_each[0]


def test_a_kl_prompt_without_room_for_the_next_token_is_rejected(lms, words):
    row = Row("p-0", 0, "Ada Ada Ada Ada Ada Ada is", " Bo.", (0, 23), (1, 3))
    length = len(words("Ada Ada Ada Ada Ada Ada is a")["input_ids"])
    with pytest.raises(UserError, match="no room"):
        scoring.encode_kl_prompt(lms["mdm"]._replace(canvas=length), row.subject_text)


# Scores, also with values in place of an MLP's output


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_scores_of_answers_equal_one_sequence_at_a_time(name, lms, monkeypatch):
    monkeypatch.setitem(scoring.ROWS, "cpu", 7)
    lm, net = lms[name], lms[name].net
    questions = [scoring.encode_question(lm, row) for row in storage_fixtures.all_rows()]
    joint, exact = scoring.score_answers(net, questions)
    for i in (0, 11, 30, 47):
        with torch.no_grad():
            log_p = network.logits(net, network.hidden(net, torch.tensor([questions[i].ids])))[0].log_softmax(-1)
        answer = questions[i].answer.items()
        assert joint[i].item() == pytest.approx(sum(log_p[at, token].item() for at, token in answer), abs=1e-3)
        assert exact[i].item() == all(log_p[at].argmax() == token for at, token in answer)


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_overwriting_an_mlps_output_with_itself_changes_nothing(name, lms):
    lm, net = lms[name], lms[name].net
    questions = [scoring.encode_question(lm, row, owner=i) for i, row in enumerate(storage_fixtures.all_rows())]
    expected, _ = scoring.score_answers(net, questions)
    mlps = dict(enumerate(map(network.mlp, network.layers(net)[:2])))
    for layer, outputs in keyvalue.read_at_lookup(net, questions, hooks.record_outputs, mlps).items():
        overwritten, _ = scoring.score_answers(net, questions, layer=layer, values=outputs)
        assert torch.allclose(overwritten, expected, atol=1e-4)


def test_no_hook_outlives_a_failure(lms, words, one_row_each):
    lm, net = lms["mdm"], lms["mdm"].net
    questions = [scoring.encode_question(lm, row, owner=i) for i, row in enumerate(one_row_each)]
    batches = compute_v.prepare_batches(net, questions, [2])
    before, _ = scoring.score_answers(net, questions)
    with pytest.raises((RuntimeError, IndexError)):
        scoring.log_probabilities(net, batches[0], layer=2, values=torch.zeros(len(questions), 7))
    assert storage_fixtures.has_no_hooks(net)
    assert torch.equal(scoring.score_answers(net, questions)[0], before)


def test_slices_of_a_batch_are_batches_of_those_sequences(lms):
    """Batches that do not fit in memory are halved."""
    lm = lms["ar"]
    sequences = [scoring.encode_question(lm, row, owner=i) for i, row in enumerate(storage_fixtures.all_rows()[:9])]
    [whole] = compute_v.prepare_batches(lm.net, sequences, [1])
    for index in (slice(None, 4), slice(4, None)):
        half = whole[index]
        numbers = whole.number[index].tolist()
        assert len(half) == len(numbers) and half.number.tolist() == numbers
        assert [sequences[i].owner for i in numbers] == half.owner.tolist()
        joint = scoring.joint_log_probability(half, scoring.log_probabilities(lm.net, half))
        assert torch.allclose(joint, scoring.joint_log_probability(whole, whole.reference)[index], atol=1e-4)
        assert torch.equal(half.layer_inputs[1], whole.layer_inputs[1][index])
        assert len(half.reference) == sum(len(sequences[i].answer) for i in numbers)


# Prefixes


@pytest.mark.parametrize("name", FAMILIES)
def test_prefixes_are_reproducible_and_the_first_is_empty(name, lms, words):
    def sample(seed, **options):
        generator = torch.Generator().manual_seed(seed)
        settings = {"count": 4, "lengths": (2, 4), "generator": generator} | options
        return prefixes.sample_prefixes(lms[name], **settings)

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
def test_a_prefix_is_accepted_if_it_costs_at_most_the_tolerance(name, lms):
    rows, texts = storage_fixtures.rows()[:6], ["", "People call", "Here comes"]
    lm = lms[name]

    def mean_log_probability(prefix):
        return scoring.score_answers(lm.net, [scoring.encode_question(lm, row, prefix) for row in rows])[0].mean()

    costs = {prefix: (mean_log_probability("") - mean_log_probability(prefix)).item() for prefix in texts}
    between = sum(sorted([costs["People call"], costs["Here comes"]])) / 2
    for tolerance in (0, max(between, 0), 1e6):
        expected = [prefix for prefix in texts if costs[prefix] <= tolerance]
        assert prefixes.accept_prefixes(lm, rows, texts, tolerance=tolerance) == expected
    assert prefixes.accept_prefixes(lm, rows, texts, tolerance=0)[0] == ""
