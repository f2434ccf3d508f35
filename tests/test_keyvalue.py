import dataclasses
import random

import pytest
import storage_fixtures
import torch

from reversal.common.errors import UserError
from reversal.models import network
from reversal.storage import files as storage_files
from reversal.storage import keyvalue, scoring, similarity
from reversal.storage.compute_v import ValueOptimization
from reversal.storage.scoring import LanguageModel

CANVAS = storage_fixtures.CANVAS
PREFIXES = ("", "People say.", "Here comes the late farmer.")
FAMILIES = ("mdm", "ar")


@pytest.fixture(scope="module")
def words():
    return storage_fixtures.tokenizer()


@pytest.fixture(scope="module")
def networks(words):
    """Both families before and after training, and a random GPT-2."""
    return {
        "mdm": storage_fixtures.network(words, causal=False),
        "ar": storage_fixtures.network(words, causal=True),
        "trained mdm": storage_fixtures.network(words, causal=False, steps=80),
        "trained ar": storage_fixtures.network(words, causal=True, steps=40),
        "gpt2": storage_fixtures.gpt2_network(words),
    }


@pytest.fixture
def one_row_each():
    """One question about each of the eight people."""
    return [row for row in storage_fixtures.rows() if row.template == 1]


@pytest.fixture
def swapped(one_row_each):
    """The same questions, each with the answer of the next person."""
    others = one_row_each[1:] + one_row_each[:1]
    return [
        dataclasses.replace(row, completion=other.completion, answer=other.answer)
        for row, other in zip(one_row_each, others, strict=True)
    ]


def extract_all(net, words, rows, *, layers, canvas=CANVAS, prefixes=("",), role=None, partly_unmasked=0, **settings):
    lm, optimization = LanguageModel(net, words, canvas), ValueOptimization(**settings)
    options = {"prefixes": prefixes, "role": role or scoring.LAST_SUBJECT, "partly_unmasked": partly_unmasked}
    return keyvalue.extract_keyvalues(lm, rows, layers=layers, optimization=optimization, **options)


def extract(net, words, rows, **options):
    """The keys and values at one layer, by default the first."""
    [extraction] = extract_all(net, words, rows, **({"layers": [0], "steps": 12} | options))
    return extraction


# The optimisation of values


@pytest.mark.parametrize(
    ("name", "threshold"), [("mdm", 0), ("ar", 0), ("gpt2", 0), ("trained mdm", 0.5), ("trained ar", 0.5)]
)
def test_a_value_makes_its_answer_more_probable(name, threshold, networks, words, swapped):
    outcomes = extract(networks[name], words, swapped).outcomes
    assert (outcomes.p_after > outcomes.p_before).all()
    assert outcomes.p_after.mean() > threshold > outcomes.p_before.mean() or not threshold
    assert storage_fixtures.has_no_hooks(networks[name])


@pytest.mark.parametrize("name", ["trained mdm", "trained ar"])
def test_a_network_that_knows_the_answer_keeps_its_own_output_as_the_value(name, networks, words, one_row_each):
    known = extract(networks[name], words, one_row_each, stop_below=0.3, kl_factor=0.0)
    assert torch.equal(known.v_star, known.original)
    assert known.outcomes.converged.all()
    assert (known.outcomes.steps == 0).all()


def test_the_prediction_after_the_kl_prompt_changes_less_with_the_kl_term(networks, words, swapped):
    for name in ("trained mdm", "trained ar"):
        lm = LanguageModel(networks[name], words, CANVAS)
        prompts = [scoring.encode_kl_prompt(lm, row.subject_text, owner=i) for i, row in enumerate(swapped)]
        [batch] = scoring.collate(lm.net, prompts)
        divergences = []
        for weight in (0.0, 100.0):
            value = extract(lm.net, words, swapped, kl_factor=weight).v_star
            with torch.no_grad():
                log_p = scoring.log_probabilities(lm.net, batch, layer=0, values=value)
                divergences.append((log_p.exp() * (log_p - scoring.log_probabilities(lm.net, batch))).sum(-1).mean())
        assert divergences[1] < 0.7 * divergences[0]


@pytest.mark.parametrize(("option", "weights"), [("weight_decay", (0.0, 1.0)), ("clamp_norm_factor", (4.0, 0.5))])
def test_weight_decay_and_the_clamp_keep_values_close_to_the_original_output(option, weights, networks, words, swapped):
    distances = []
    for weight in weights:
        extraction = extract(networks["trained ar"], words, swapped, **({"weight_decay": 0.0} | {option: weight}))
        distances.append((extraction.v_star - extraction.original).norm(dim=1) / extraction.original.norm(dim=1))
    assert distances[1].mean() < 0.85 * distances[0].mean()
    assert option == "weight_decay" or (distances[1] <= 0.5001).all()


def naive_compute_v(net, words, row, layer, steps, learning_rate, weights):
    """Optimise the value of one fact, with one run of the whole network for each context."""
    lm = LanguageModel(net, words, CANVAS)
    contexts = [scoring.encode_question(lm, row, prefix) for prefix in PREFIXES]
    kl_prompt = scoring.encode_kl_prompt(lm, row.subject_text)
    bare = scoring.encode_question(lm, row)
    mlp = network.mlp(network.layers(net)[layer])

    def log_probabilities(sequence, value=None):
        lookup = sequence.lookup_position

        def hook(module, inputs, output):
            if value is None:
                outputs.append(output[0, lookup])
                return None
            return torch.cat([output[:, :lookup], value[None, None], output[:, lookup + 1 :]], 1)

        handle = mlp.register_forward_hook(hook)
        states = network.hidden(net, torch.tensor([sequence.ids]))[0]
        handle.remove()
        return network.logits(net, states).log_softmax(-1)

    outputs = []
    with torch.no_grad():
        log_probabilities(bare)
        original = outputs[0]
        [position] = kl_prompt.answer
        reference = log_probabilities(kl_prompt)[position]
    scale = original.square().mean().sqrt()
    shift = torch.zeros_like(original, requires_grad=True)
    optimizer = torch.optim.Adam([shift], lr=learning_rate)
    history = []
    for _ in range(steps + 1):
        value = original + scale * shift
        answers = [(log_probabilities(context, value), context.answer) for context in contexts]
        nll = -sum(sum(log_p[at, token] for at, token in answer.items()) for log_p, answer in answers) / len(contexts)
        predicted = log_probabilities(kl_prompt, value)[position]
        kl = (predicted.exp() * (predicted - reference)).sum()
        change = (value - original).square().sum() / original.square().sum()
        loss = weights[0] * nll + weights[1] * kl + weights[2] * change
        history.append((loss.item(), value.detach().clone()))
        optimizer.zero_grad()
        loss.backward()
        net.zero_grad()
        optimizer.step()
    return min(history, key=lambda entry: entry[0])


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_batched_optimisation_equals_a_naive_one(name, layer, networks, words, swapped):
    extraction = extract(networks[name], words, swapped, prefixes=PREFIXES, layers=[layer], steps=2, learning_rate=0.1)
    _, value = naive_compute_v(networks[name], words, swapped[5], layer, 2, 0.1, (1.0, 0.0625, 0.02))
    assert torch.allclose(extraction.v_star[5], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["trained mdm", "trained ar"])
def test_many_facts_at_once_equal_one_at_a_time(name, networks, words, swapped, one_row_each, monkeypatch):
    rows = [*one_row_each[:2], *swapped[2:4]]
    settings = {"steps": 3, "kl_factor": 0.01, "learning_rate": 0.1, "stop_below": 1.0}
    with monkeypatch.context() as patched:
        patched.setitem(scoring.ROWS, "cpu", 3)
        together = extract(networks[name], words, rows, **settings)
    alone = [extract(networks[name], words, [row], **settings) for row in rows]
    assert together.outcomes.steps.nunique() > 1, "the test needs facts that stop at different steps"
    assert together.outcomes.steps.tolist() == [extraction.outcomes.steps[0] for extraction in alone]
    for part in ("k_star", "v_star", "original"):
        each = torch.cat([getattr(extraction, part) for extraction in alone])
        assert torch.allclose(getattr(together, part), each, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["trained mdm", "trained ar"])
def test_batches_too_large_for_the_gpu_are_halved_permanently(name, networks, words, swapped, limit_memory):
    settings = {"steps": 3, "kl_factor": 0.01, "learning_rate": 0.1, "prefixes": PREFIXES[:2], "layers": [1]}
    expected = extract(networks[name], words, swapped, **settings)
    tried = limit_memory(3)
    extraction = extract(networks[name], words, swapped, **settings)
    assert max(tried) > 3 and sum(size > 3 for size in tried) < 30  # not again at every step
    for part in ("k_star", "v_star", "original"):
        assert torch.allclose(getattr(extraction, part), getattr(expected, part), rtol=1e-3, atol=1e-4)
    assert storage_fixtures.has_no_hooks(networks[name])
    limit_memory(0)
    with pytest.raises(torch.OutOfMemoryError):
        extract(networks[name], words, swapped, **settings)


def test_several_layers_at_once_equal_one_at_a_time(networks, words, one_row_each):
    settings = {"prefixes": PREFIXES[:2], "steps": 2}
    extractions = extract_all(networks["mdm"], words, one_row_each, layers=[2, 0], **settings)
    for extraction in extractions:
        [single] = extract_all(networks["mdm"], words, one_row_each, layers=[extraction.layer], **settings)
        assert torch.equal(extraction.k_star, single.k_star)
        assert torch.allclose(extraction.v_star, single.v_star, atol=1e-5)


def test_a_value_converged_if_its_answer_reaches_the_minimum_probability(networks, words, swapped):
    outcomes = extract(networks["trained ar"], words, swapped, steps=3, min_probability=0.2).outcomes
    assert outcomes.converged.tolist() == (outcomes.p_after >= 0.2).tolist()
    assert set(outcomes.converged) == {True, False}


def test_an_optimisation_without_gradient_stops_at_once(networks, words, swapped):
    """The last MLP's output at the subject reaches no other position."""
    extraction = extract(networks["trained mdm"], words, swapped, layers=[2])
    assert torch.equal(extraction.v_star, extraction.original)
    assert (extraction.outcomes.steps == 0).all()


# The network stays unchanged


def test_weights_and_their_gradients_stay_unchanged(networks, words, swapped):
    net = networks["ar"]
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    extract(net, words, swapped, steps=2)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
        assert parameter.requires_grad


# Keys and templates


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_a_key_is_the_mean_input_of_the_down_projection_over_prefixes(name, networks, words, one_row_each):
    net = networks[name]
    extraction = extract(net, words, one_row_each[:1], layers=[1], prefixes=PREFIXES, steps=1)
    keys = []
    module = network.down_projection(network.layers(net)[1])
    for prefix in PREFIXES:
        question = scoring.encode_question(LanguageModel(net, words, CANVAS), one_row_each[0], prefix)
        handle = module.register_forward_pre_hook(lambda _, inputs: keys.append(inputs[0][0]))
        with torch.no_grad():
            network.hidden(net, torch.tensor([question.ids]))
        handle.remove()
        keys[-1] = keys[-1][question.lookup_position]
    assert torch.allclose(extraction.k_star[0], torch.stack(keys).mean(0), atol=1e-5)


def test_the_down_projection_maps_a_key_without_prefix_to_the_original_output(networks, words, one_row_each):
    for name in ("ar", "gpt2"):
        net = networks[name]
        extraction = extract(net, words, one_row_each, layers=[1], steps=1)
        bias = network.down_projection(network.layers(net)[1]).bias
        output = extraction.k_star @ keyvalue.down_weight(net, 1).detach().T + (0 if bias is None else bias.detach())
        assert torch.allclose(output, extraction.original, atol=1e-4)


def test_templates_are_ranked_by_the_log_probability_of_their_answers(networks, words):
    rows, lm = storage_fixtures.rows(), LanguageModel(networks["ar"], words)
    ranked = keyvalue.rank_templates(lm, rows)
    questions = [[scoring.encode_question(lm, row) for row in rows if row.template == number] for number in range(3)]
    mean = [scoring.score_answers(lm.net, sequences)[0].mean() for sequences in questions]
    assert [mean[template] for template in ranked] == sorted(mean, reverse=True)


def test_all_splits_of_a_direction_share_one_ranking_over_their_pooled_rows(networks, words):
    lm = LanguageModel(networks["ar"], words)
    forward, reverse = storage_fixtures.rows(), storage_fixtures.rows("name")
    splits = {"both_p2d": forward[:9], "p2d_same": forward[9:], "both_d2p": reverse[:9], "p2d_reverse": reverse[9:]}
    expected = [keyvalue.rank_templates(lm, rows) for rows in (forward, reverse)]
    assert keyvalue.rank_templates_by_split(lm, splits) == {
        "both_p2d": expected[0], "p2d_same": expected[0], "both_d2p": expected[1], "p2d_reverse": expected[1],
    }  # fmt: skip


# Files


@pytest.fixture(scope="module")
def written(networks, words, tmp_path_factory):
    """The vectors of both directions, {direction: (facts, activations, extractions, the same read from disk)}."""
    net, folder, written = networks["trained mdm"], tmp_path_factory.mktemp("written"), {}
    for direction, answer_type in (("forward", "description"), ("reverse", "name")):
        rows = storage_fixtures.rows(answer_type)
        facts, activations = keyvalue.read_activations(LanguageModel(net, words, CANVAS), rows, layers=[0, 2])
        by_template = [[row for row in rows if row.template == template] for template in (0, 1)]
        extractions = [extract_all(net, words, template_rows, layers=[2], steps=1) for template_rows in by_template]
        extractions[0][0].outcomes["converged"] = True
        for [extraction] in extractions:
            extraction.outcomes["steps"] = [0 if fact == "p-2" else 1 for fact in facts]
        extractions[1][0].outcomes["converged"] = [(direction, fact) != ("reverse", "p-4") for fact in facts]
        path = folder / f"{direction}.safetensors"
        storage_files.write_vectors(facts, activations, extractions, path)
        written[direction] = (facts, activations, extractions, storage_files.StoredVectors(path))
    return written


def test_vectors_are_the_same_after_writing_and_reading(written):
    facts, activations, extractions, stored = written["forward"]
    assert list(stored) == [0, 2]
    for layer in stored:
        vectors = stored[layer]
        assert vectors.facts == facts and ("value" in vectors.arrays) == (layer == 2)
        for name, array in activations[layer].items():
            assert (vectors.arrays[name] == array).all() and array.shape[:2] == (3, 8)  # as many parts as templates
    values = stored[2].arrays["value"]
    assert all((values[half] == of_layers[0].v_star.numpy()).all() for half, of_layers in enumerate(extractions))
    assert stored.find_searched(2)[0] == facts
    assert stored[2].searched == [fact for fact in facts if fact != "p-2"]
    assert stored.find_searched(0) == ([], [])


def test_pairs_hold_the_facts_whose_values_converged_after_a_search_in_both_directions_in_one_order(written):
    forward, reverse = (written[direction][3][2] for direction in ("forward", "reverse"))
    arrays, facts = storage_files.pair_directions(forward, reverse)
    assert facts == [fact for fact in forward.facts if fact not in ("p-2", "p-4")]
    for i, fact in enumerate(facts):
        row = reverse.facts.index(fact)
        assert (arrays["value, reverse"][:, i] == reverse.arrays["value"][:, row]).all()
        states = forward.arrays["state at answer"][:, forward.facts.index(fact)]
        assert (arrays["state at answer, forward"][:, i] == states).all()
    arrays_of_all, all_facts = storage_files.pair_directions(forward, reverse, values=())
    assert all_facts == forward.facts and "value, forward" not in arrays_of_all
    assert similarity.spectra(arrays).n.eq(len(facts)).all()


# Activations


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_activations_equal_those_of_one_question_at_a_time(name, networks, words):
    net = networks[name]
    lm, rows = LanguageModel(net, words, CANVAS), storage_fixtures.rows()
    facts, activations = keyvalue.read_activations(lm, rows, layers=[1])
    fact_rows = [row for row in rows if row.fact == facts[3]]
    block = network.layers(net)[1]
    for part, row in enumerate(fact_rows):
        question, recorded = scoring.encode_question(lm, row), {}

        def record(kind, states, recorded=recorded):
            states = states[0] if isinstance(states, tuple) else states
            recorded[kind] = states.squeeze(0)

        handles = [
            network.down_projection(block).register_forward_pre_hook(lambda _, inputs: record("key", inputs)),
            network.mlp(block).register_forward_hook(lambda _, inputs, output: record("output", output)),
            block.register_forward_hook(lambda _, inputs, output: record("state", output)),
        ]
        with torch.no_grad():
            network.hidden(net, torch.tensor([question.ids]))
        for handle in handles:
            handle.remove()
        hidden_answer = list(question.answer) if network.is_diffusion(net) else [min(question.answer)]
        for kind, states in recorded.items():
            expected = {"subject": states[question.lookup_position], "answer": states[hidden_answer].mean(0)}
            for position, vector in expected.items():
                actual = activations[1][f"{kind} at {position}"][part, 3]
                assert actual == pytest.approx(vector.numpy(), abs=1e-4), (kind, position)


def test_a_causal_network_is_read_where_no_answer_token_is_visible(networks, words):
    """Another answer to the same question does not change the activations."""
    lm, rows = LanguageModel(networks["ar"], words), storage_fixtures.rows()
    rotated = rows[3:] + rows[:3]  # three templates per fact
    swapped_rows = [
        dataclasses.replace(row, completion=other.completion, answer=other.answer)
        for row, other in zip(rows, rotated, strict=True)
    ]
    (_, original), (_, swapped) = (keyvalue.read_activations(lm, each, layers=[2]) for each in (rows, swapped_rows))
    assert all(original[2][name] == pytest.approx(swapped[2][name], abs=1e-5) for name in original[2])


def test_each_of_two_parts_is_a_mean_over_every_second_template(networks, words, monkeypatch):
    lm, rows = LanguageModel(networks["ar"], words), storage_fixtures.rows()
    _, three = keyvalue.read_activations(lm, rows, layers=[0])
    monkeypatch.setattr(keyvalue, "PARTS", 2)
    _, two = keyvalue.read_activations(lm, rows, layers=[0])
    for name, array in two[0].items():
        assert array[0] == pytest.approx(three[0][name][[0, 2]].mean(0), abs=1e-5)
        assert array[1] == pytest.approx(three[0][name][1], abs=1e-5)


# Other roles, and partly unmasked canvases


def test_a_value_can_be_optimised_at_any_token_of_the_prompt(networks, words, swapped):
    net = networks["trained mdm"]
    for role in ("first subsequent", scoring.LAST_SUBJECT):
        extraction = extract(net, words, swapped, role=role)
        assert extraction.outcomes.p_after.mean() > extraction.outcomes.p_before.mean(), role


def test_roles_are_positions_of_the_prompt_in_order():
    assert scoring.locate_roles((2, 5), 9) == {
        "prior prompt": 1, "first subject": 2, "middle subject": 3, "last subject": 4,
        "first subsequent": 5, "further prompt": 7, "last prompt": 8,
    }  # fmt: skip
    assert scoring.locate_roles((0, 1), 1) == {"last subject": 0}
    assert "prior prompt" not in scoring.locate_roles((1, 3), 6, start=1)  # token 0 is a prefix


def test_a_partly_unmasked_canvas_shows_some_answer_tokens_and_predicts_the_others(networks, words, one_row_each):
    net, rng = networks["mdm"], random.Random(0)
    whole = scoring.encode_question(LanguageModel(net, words, CANVAS), one_row_each[0])
    for _ in range(5):
        part = scoring.unmask_part(whole, rng)
        unmasked = whole.answer.keys() - part.answer.keys()
        assert unmasked and part.answer and part.answer.items() <= whole.answer.items()
        expected = [whole.answer[i] if i in unmasked else token for i, token in enumerate(whole.ids)]
        assert part.ids == expected


def test_partly_unmasked_canvases_change_the_values_of_an_mdm_only(networks, words, swapped):
    for name, is_same in (("trained mdm", False), ("ar", True)):
        masked, partly = (extract(networks[name], words, swapped, partly_unmasked=count) for count in (0, 2))
        assert torch.equal(masked.v_star, partly.v_star) == is_same


def test_a_canvas_that_is_too_small_is_rejected(networks, words, one_row_each):
    with pytest.raises(UserError, match="the canvas holds 5"):
        extract(networks["mdm"], words, one_row_each, canvas=5)
