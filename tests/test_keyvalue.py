import dataclasses
import random

import pytest
import storage_fixtures
import torch

from reversal.common.errors import UserError
from reversal.models import network
from reversal.storage import files as storage_files
from reversal.storage import keyvalue as extraction
from reversal.storage import scoring, similarity
from reversal.storage.compute_v import Search
from reversal.storage.scoring import LanguageModel

CANVAS = storage_fixtures.CANVAS
PREFIXES = ("", "People say.", "Here comes the late farmer.")
FAMILIES = ("mdm", "ar")


@pytest.fixture(scope="module")
def words():
    return storage_fixtures.tokenizer()


@pytest.fixture(scope="module")
def networks(words):
    """Both families before they learned anything, both after, and a network of another make."""
    return {
        "mdm": storage_fixtures.network(words, causal=False),
        "ar": storage_fixtures.network(words, causal=True),
        "trained mdm": storage_fixtures.network(words, causal=False, steps=80),
        "trained ar": storage_fixtures.network(words, causal=True, steps=40),
        "gpt2": storage_fixtures.another_make(words),
    }


@pytest.fixture
def one_each():
    """One question about each of the eight."""
    return [row for row in storage_fixtures.rows() if row.template == 1]


@pytest.fixture
def wrong(one_each):
    """The same questions with each other's answers."""
    others = one_each[1:] + one_each[:1]
    return [
        dataclasses.replace(row, completion=other.completion, answer=other.answer)
        for row, other in zip(one_each, others, strict=True)
    ]


def extract_all(net, words, rows, *, layers, canvas=CANVAS, prefixes=("",), role=scoring.LAST, unmasked=0, **settings):
    lm, search = LanguageModel(net, words, canvas), Search(**settings)
    how = {"prefixes": prefixes, "search": search, "role": role, "unmasked": unmasked}
    return extraction.extract(lm, rows, layers=layers, **how)


def extract(net, words, rows, **options):
    """The keys and values at one layer, the first one."""
    [found] = extract_all(net, words, rows, **({"layers": [0], "steps": 12} | options))
    return found


# The search does what it says


@pytest.mark.parametrize(
    ("name", "enough"), [("mdm", 0), ("ar", 0), ("gpt2", 0), ("trained mdm", 0.5), ("trained ar", 0.5)]
)
def test_with_its_value_in_place_an_answer_is_more_probable(name, enough, networks, words, wrong):
    outcomes = extract(networks[name], words, wrong).outcomes
    assert (outcomes.p_after > outcomes.p_before).all()
    assert outcomes.p_after.mean() > enough > outcomes.p_before.mean() or not enough
    assert (outcomes.norm_value > 0).all()
    assert storage_fixtures.untouched(networks[name])


@pytest.mark.parametrize("name", ["trained mdm", "trained ar"])
def test_a_network_that_knows_the_answer_keeps_its_own_value(name, networks, words, one_each):
    known = extract(networks[name], words, one_each, stop=0.3, kl_weight=0.0)
    assert torch.equal(known.value, known.original)
    assert known.outcomes.converged.all()
    assert (known.outcomes.steps == 0).all()


@pytest.mark.parametrize("name", ["trained mdm", "trained ar"])
def test_the_essence_moves_less_with_the_kl_term_than_without(name, networks, words, wrong):
    free, held = (extract(networks[name], words, wrong, kl_weight=weight).outcomes for weight in (0.0, 100.0))
    assert held.kl.mean() < 0.7 * free.kl.mean()


def test_decay_keeps_values_near_what_the_network_says_itself(networks, words, wrong):
    free, held = (extract(networks["trained ar"], words, wrong, decay=decay).outcomes for decay in (0.0, 1.0))
    assert held.change.mean() < 0.7 * free.change.mean()


def test_no_value_goes_further_than_the_clamp(networks, words, wrong):
    found = extract(networks["trained ar"], words, wrong, clamp=0.5, decay=0.0)
    distance = (found.value - found.original).norm(dim=1)
    assert (distance <= 0.5 * found.original.norm(dim=1) * 1.0001).all()
    assert torch.allclose(
        distance.square() / found.original.norm(dim=1).square(), torch.tensor(found.outcomes.change).float(), rtol=1e-3
    )


def naive_search(net, words, row, layer, steps, learning_rate, weights):
    """One fact, one context at a time, the whole network run for each."""
    lm = LanguageModel(net, words, CANVAS)
    contexts = [scoring.question(lm, row, prefix) for prefix in PREFIXES]
    essence = scoring.phrase(lm, row.subject_text, " is a")
    bare = scoring.question(lm, row)
    mlp = network.mlp(network.layers(net)[layer])

    def logs(sequence, value=None):
        def hook(module, inputs, output):
            if value is None:
                seen.append(output[0, sequence.place])
            return (
                None
                if value is None
                else torch.cat([output[:, : sequence.place], value[None, None], output[:, sequence.place + 1 :]], 1)
            )

        handle = mlp.register_forward_hook(hook)
        states = network.hidden(net, torch.tensor([sequence.ids]))[0]
        handle.remove()
        return network.logits(net, states).log_softmax(-1)

    seen = []
    with torch.no_grad():
        logs(bare)
        original = seen[0]
        [position] = essence.answer
        usual = logs(essence)[position]
    scale = original.square().mean().sqrt()
    shift = torch.zeros_like(original, requires_grad=True)
    optimizer = torch.optim.Adam([shift], lr=learning_rate)
    history = []
    for _ in range(steps + 1):
        value = original + scale * shift
        nll = -sum(sum(logs(c, value)[at, token] for at, token in c.answer.items()) for c in contexts) / len(contexts)
        new = logs(essence, value)[position]
        kl = (new.exp() * (new - usual)).sum()
        loss = (
            weights[0] * nll
            + weights[1] * kl
            + weights[2] * (value - original).square().sum() / original.square().sum()
        )
        history.append((loss.item(), value.detach().clone(), nll.item(), kl.item()))
        optimizer.zero_grad()
        loss.backward()
        net.zero_grad()
        optimizer.step()
    return min(history, key=lambda entry: entry[0])


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_batched_search_equals_a_naive_one(name, layer, networks, words, wrong):
    found = extract(networks[name], words, wrong, prefixes=PREFIXES, layers=[layer], steps=2, learning_rate=0.1)
    loss, value, nll, kl = naive_search(networks[name], words, wrong[5], layer, 2, 0.1, (1.0, 0.0625, 0.02))
    assert torch.allclose(found.value[5], value, rtol=1e-3, atol=1e-4)
    assert found.outcomes.loc[5, ["loss", "nll", "kl"]].tolist() == pytest.approx([loss, nll, kl], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["trained mdm", "trained ar"])
def test_many_facts_at_once_equal_one_at_a_time(name, networks, words, wrong, one_each, monkeypatch):
    rows = [*one_each[:2], *wrong[2:4]]
    settings = {"steps": 3, "kl_weight": 0.01, "learning_rate": 0.1, "stop": 1.0}
    with monkeypatch.context() as patched:
        patched.setitem(scoring.ROWS, "cpu", 3)
        together = extract(networks[name], words, rows, **settings)
    alone = [extract(networks[name], words, [row], **settings) for row in rows]
    assert together.outcomes.steps.nunique() > 1, "the test needs facts that end at different steps"
    assert together.outcomes.steps.tolist() == [found.outcomes.steps[0] for found in alone]
    for part in ("key", "value", "original"):
        each = torch.cat([getattr(found, part) for found in alone])
        assert torch.allclose(getattr(together, part), each, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["trained mdm", "trained ar"])
def test_batches_too_large_for_the_gpu_are_halved_for_good(name, networks, words, wrong, short_of_memory):
    settings = {"steps": 3, "kl_weight": 0.01, "learning_rate": 0.1, "prefixes": PREFIXES[:2], "layers": [1]}
    expected = extract(networks[name], words, wrong, **settings)
    tried = short_of_memory(3)
    found = extract(networks[name], words, wrong, **settings)
    assert max(tried) > 3 and sum(size > 3 for size in tried) < 30  # not again at every step
    for part in ("key", "value", "original"):
        assert torch.allclose(getattr(found, part), getattr(expected, part), rtol=1e-3, atol=1e-4)
    assert storage_fixtures.untouched(networks[name])
    short_of_memory(0)
    with pytest.raises(torch.OutOfMemoryError):
        extract(networks[name], words, wrong, **settings)


def test_several_layers_at_once_equal_one_at_a_time(networks, words, one_each):
    settings = {"prefixes": PREFIXES[:2], "steps": 2}
    swept = extract_all(networks["mdm"], words, one_each, layers=[2, 0], **settings)
    for found in swept:
        [single] = extract_all(networks["mdm"], words, one_each, layers=[found.layer], **settings)
        assert torch.equal(found.key, single.key)
        assert torch.allclose(found.value, single.value, atol=1e-5)


def test_rows_of_one_fact_share_a_value(networks, words, one_each):
    rows = storage_fixtures.rows()
    found = extract(networks["ar"], words, rows, steps=1)
    assert found.facts == [row.fact for row in one_each]
    assert len(found.value) == len(found.key) == len(found.outcomes) == len(one_each)


def test_a_search_that_fails_is_told(networks, words, wrong):
    outcomes = extract(networks["trained ar"], words, wrong, steps=1, learning_rate=1e-4).outcomes
    assert not outcomes.converged.any()
    assert (outcomes.p_after < 0.5).all()
    assert (outcomes.loss >= outcomes.nll).all()


def test_convergence_is_the_stated_rule(networks, words, wrong):
    outcomes = extract(networks["trained ar"], words, wrong, steps=3, threshold=0.2).outcomes
    assert outcomes.converged.tolist() == (outcomes.p_after >= 0.2).tolist()
    assert set(outcomes.converged) == {True, False}


def test_a_search_without_slope_ends_at_once(networks, words, wrong):
    """What the last MLP says at the subject reaches no other position."""
    found = extract(networks["trained mdm"], words, wrong, layers=[2])
    assert torch.equal(found.value, found.original)
    assert (found.outcomes.steps == 0).all()


# Nothing is left behind


def test_weights_and_their_gradients_stay_as_they_were(networks, words, wrong):
    net = networks["ar"]
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    extract(net, words, wrong, steps=2)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
        assert parameter.requires_grad


# Keys and contexts


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_a_key_is_what_the_down_projection_is_given(name, networks, words, one_each):
    net = networks[name]
    found = extract(net, words, one_each[:1], layers=[1], prefixes=PREFIXES, steps=1)
    keys = []
    module = network.down_projection(network.layers(net)[1])
    for prefix in PREFIXES:
        asked = scoring.question(LanguageModel(net, words, CANVAS), one_each[0], prefix)
        handle = module.register_forward_pre_hook(lambda _, inputs: keys.append(inputs[0][0]))
        with torch.no_grad():
            network.hidden(net, torch.tensor([asked.ids]))
        handle.remove()
        keys[-1] = keys[-1][asked.place]
    assert torch.allclose(found.key[0], torch.stack(keys).mean(0), atol=1e-5)


def test_a_key_gives_the_value_it_had_where_question_and_prefix_are_bare(networks, words, one_each):
    for name in ("ar", "gpt2"):
        net = networks[name]
        found = extract(net, words, one_each, layers=[1], steps=1)
        bias = network.down_projection(network.layers(net)[1]).bias
        said = found.key @ extraction.down_weight(net, 1).detach().T + (0 if bias is None else bias.detach())
        assert torch.allclose(said, found.original, atol=1e-4)


def test_the_best_templates_are_those_with_the_likeliest_answers(networks, words):
    rows = storage_fixtures.rows()
    net = networks["ar"]
    best = extraction.best_templates(LanguageModel(net, words), rows)
    asked = [[scoring.question(LanguageModel(net, words), row) for row in rows if row.template == t] for t in range(3)]
    mean = [scoring.score_answers(net, some)[0].mean() for some in asked]
    assert [mean[template] for template in best] == sorted(mean, reverse=True)


def test_all_splits_of_a_question_share_the_templates_that_are_best_over_all_of_them(networks, words):
    lm = LanguageModel(networks["ar"], words)
    ahead, back = storage_fixtures.rows(), storage_fixtures.rows("name")
    some = {"both_p2d": ahead[:9], "p2d_same": ahead[9:], "both_d2p": back[:9], "p2d_reverse": back[9:]}
    found = extraction.templates_by_question(lm, some)
    best = [extraction.best_templates(lm, rows) for rows in (ahead, back)]
    assert found == {"both_p2d": best[0], "p2d_same": best[0], "both_d2p": best[1], "p2d_reverse": best[1]}


# What goes to disk and on to the comparison


@pytest.fixture(scope="module")
def held(networks, words, tmp_path_factory):
    """What a network holds of both questions, on disk and as it was."""
    net, folder, found = networks["trained mdm"], tmp_path_factory.mktemp("held"), {}
    for split, answer_type in (("ahead", "description"), ("back", "name")):
        rows = storage_fixtures.rows(answer_type)
        facts, readings = extraction.read(LanguageModel(net, words, CANVAS), rows, layers=[0, 2])
        asked = [[row for row in rows if row.template == template] for template in (0, 1)]
        some = [extract_all(net, words, own, layers=[2], steps=1) for own in asked]
        some[0][0].outcomes["converged"] = True
        some[1][0].outcomes["converged"] = [(split, fact) != ("back", "p-4") for fact in facts]
        storage_files.write(facts, readings, some, folder / f"{split}.safetensors")
        found[split] = (facts, readings, some, storage_files.Stored(folder / f"{split}.safetensors"))
    return found


def test_what_was_read_and_found_comes_back_from_disk_as_it_was(held):
    facts, readings, searches, stored = held["ahead"]
    assert list(stored) == [0, 2]
    for layer in stored:
        memory = stored[layer]
        assert memory.facts == facts and ("value" in memory.arrays) == (layer == 2)
        for name, array in readings[layer].items():
            assert (memory.arrays[name] == array).all() and array.shape[:2] == (3, 8)  # as many parts as templates
    values = stored[2].arrays["value"]
    assert all((values[half] == some[0].value.numpy()).all() for half, some in enumerate(searches))
    assert stored[2].converged == facts
    assert stored[0].converged == []


def test_pairs_hold_the_facts_that_converged_in_both_runs_in_one_order(held):
    forward, reverse = (held[split][3][2] for split in ("ahead", "back"))
    arrays, facts = storage_files.pair(forward, reverse)
    assert facts == [fact for fact in forward.facts if fact != "p-4"]
    for i, fact in enumerate(facts):
        at = reverse.facts.index(fact)
        assert (arrays["value, reverse"][:, i] == reverse.arrays["value"][:, at]).all()
        states = forward.arrays["state at answer"][:, forward.facts.index(fact)]
        assert (arrays["state at answer, forward"][:, i] == states).all()
    everyone, all_facts = storage_files.pair(forward, reverse, converged=False)
    assert all_facts == forward.facts and "value, forward" not in everyone
    assert similarity.spectra(arrays).n.eq(len(facts)).all()


# What is read without a search


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_what_is_read_is_what_hooks_see_one_question_at_a_time(name, networks, words):
    net = networks[name]
    lm, rows = LanguageModel(net, words, CANVAS), storage_fixtures.rows()
    facts, read = extraction.read(lm, rows, layers=[1])
    own = [row for row in rows if row.fact == facts[3]]
    block = network.layers(net)[1]
    for part, row in enumerate(own):
        asked, seen = scoring.question(lm, row), {}
        handles = [
            network.down_projection(block).register_forward_pre_hook(
                lambda _, given, seen=seen: seen.update(key=given[0][0])
            ),
            network.mlp(block).register_forward_hook(lambda _, given, said, seen=seen: seen.update(output=said[0])),
            block.register_forward_hook(
                lambda _, given, said, seen=seen: seen.update(state=(said[0] if isinstance(said, tuple) else said)[0])
            ),
        ]
        with torch.no_grad():
            network.hidden(net, torch.tensor([asked.ids]))
        for handle in handles:
            handle.remove()
        unseen = list(asked.answer) if network.is_diffusion(net) else [min(asked.answer)]
        for kind, states in seen.items():
            states = states if states.dim() == 2 else states[0]
            for place, expected in (("subject", states[asked.place]), ("answer", states[unseen].mean(0))):
                assert read[1][f"{kind} at {place}"][part, 3] == pytest.approx(expected.numpy(), abs=1e-4), (
                    kind,
                    place,
                )


def test_a_causal_network_is_read_where_nothing_of_the_answer_is_in_sight(networks, words):
    """Another answer to the same question changes nothing that is read."""
    lm, rows = LanguageModel(networks["ar"], words), storage_fixtures.rows()
    turned = rows[3:] + rows[:3]  # three templates a fact
    others = [
        dataclasses.replace(row, completion=other.completion, answer=other.answer)
        for row, other in zip(rows, turned, strict=True)
    ]
    (_, read), (_, again) = (extraction.read(lm, some, layers=[2]) for some in (rows, others))
    assert all(read[2][name] == pytest.approx(again[2][name], abs=1e-5) for name in read[2])


def test_parts_are_means_over_every_other_template(networks, words, monkeypatch):
    lm, rows = LanguageModel(networks["ar"], words), storage_fixtures.rows()
    _, three = extraction.read(lm, rows, layers=[0])
    monkeypatch.setattr(extraction, "PARTS", 2)
    _, two = extraction.read(lm, rows, layers=[0])
    for name, array in two[0].items():
        assert array[0] == pytest.approx(three[0][name][[0, 2]].mean(0), abs=1e-5)
        assert array[1] == pytest.approx(three[0][name][1], abs=1e-5)


# Other places, and canvases that show a part of the answer


def test_a_value_can_be_sought_at_any_token_of_the_prompt(networks, words, wrong):
    net = networks["trained mdm"]
    for role in ("first subsequent", scoring.LAST):
        found = extract(net, words, wrong, role=role)
        assert found.outcomes.p_after.mean() > found.outcomes.p_before.mean(), role
        assert (found.outcomes.kl.sum() > 0) == ("subject" in role)


def test_roles_are_places_of_the_prompt_in_their_order():
    assert scoring.places_of((2, 5), 9) == {
        "prior prompt": 1, "first subject": 2, "middle subject": 3, "last subject": 4,
        "first subsequent": 5, "further prompt": 7, "last prompt": 8,
    }  # fmt: skip
    assert scoring.places_of((0, 1), 1) == {"last subject": 0}
    assert "prior prompt" not in scoring.places_of((1, 3), 6, start=1)  # what stands before is a prefix


def test_a_partly_unmasked_canvas_shows_some_of_the_answer_and_asks_for_the_rest(networks, words, one_each):
    net, rng = networks["mdm"], random.Random(0)
    whole = scoring.question(LanguageModel(net, words, CANVAS), one_each[0])
    for _ in range(5):
        part = scoring.partly_unmasked(whole, rng)
        shown = whole.answer.keys() - part.answer.keys()
        assert shown and part.answer and part.answer.items() <= whole.answer.items()
        assert all(part.ids[at] == (whole.answer[at] if at in shown else whole.ids[at]) for at in range(len(whole.ids)))


def test_values_sought_over_partly_unmasked_canvases_are_other_ones_for_an_mdm_and_the_same_for_an_ar(
    networks, words, wrong
):
    for name, same in (("trained mdm", False), ("ar", True)):
        plain, more = (extract(networks[name], words, wrong, unmasked=count) for count in (0, 2))
        assert torch.equal(plain.value, more.value) == same


# Mistakes


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"layers": [3]}, "layers 0–2"),
        ({"steps": 0}, "steps is 0"),
        ({"prefixes": []}, "prefixes is empty"),
        ({"canvas": None}, "canvas"),
        ({"canvas": 5}, "the canvas holds 5"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(options, told, networks, words, one_each):
    with pytest.raises(UserError, match=told):
        extract(networks["mdm"], words, one_each, **options)


def test_no_rows_and_training_mode_are_refused(networks, words, one_each):
    with pytest.raises(UserError, match="no rows"):
        extract(networks["mdm"], words, [])
    net = storage_fixtures.network(words, causal=True).train()
    with pytest.raises(ValueError, match="training mode"):
        extract(net, words, one_each)
