import random

import numpy as np
import pandas as pd
import pytest
import storage_fixtures
import torch

from reversal.models import network, tokens
from reversal.storage import keyvalue, rank_one, scoring
from reversal.storage.compute_v import ValueOptimization
from reversal.storage.scoring import LanguageModel

CANVAS = storage_fixtures.CANVAS
LAYER = 0
TEMPLATE = 1


@pytest.fixture(scope="module")
def words():
    return storage_fixtures.tokenizer()


@pytest.fixture(scope="module")
def networks(words):
    """Both families, and a network whose down-projection is transposed and has a bias."""
    gpt2 = storage_fixtures.gpt2_network(words)
    torch.nn.init.normal_(network.down_projection(network.layers(gpt2)[LAYER]).bias)
    return {
        "mdm": storage_fixtures.network(words, causal=False, steps=80),
        "ar": storage_fixtures.network(words, causal=True, steps=40),
        "gpt2": gpt2,
    }


@pytest.fixture(scope="module")
def ids(words):
    return [tokens.encode(words, row).ids for row in storage_fixtures.all_rows()]


@pytest.fixture(scope="module")
def targets(words):
    return rank_one.choose_targets(words, storage_fixtures.rows(), rng=np.random.default_rng(0))


@pytest.fixture(scope="module")
def unrelated(words, targets):
    return rank_one.choose_targets(words, storage_fixtures.rows("name"), rng=np.random.default_rng(1), exclude=targets)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def moments(net, ids, generator):
    return rank_one.second_moments(net, ids, layers=[LAYER], canvas=CANVAS, generator=generator)[LAYER]


def draw_keyvalues(net, generator):
    """Three random keys and values, of the widths of the network's layer."""
    width, mlp = keyvalue.down_weight(net, LAYER).shape
    return torch.randn(3, mlp, generator=generator), torch.randn(3, width, generator=generator)


def compute_updates(net, keys, values, moment):
    """The update of each key and value by itself."""
    edits = zip(keys, values, rank_one.compute_u(keys, moment), strict=True)
    return [rank_one.compute_update(net, LAYER, *edit) for edit in edits]


def project(net, keys):
    return network.down_projection(network.layers(net)[LAYER])(keys)


# The update


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_the_edited_matrix_gives_the_value_for_the_key(name, networks, ids, generator):
    net = networks[name]
    keys, values = draw_keyvalues(net, generator)
    updates = compute_updates(net, keys, values, moments(net, ids, generator))
    for key, value, update in zip(keys, values, updates, strict=True):
        with rank_one.apply_update(net, LAYER, update), torch.no_grad():
            assert torch.allclose(project(net, key), value, atol=1e-4)
        assert torch.linalg.matrix_rank(update) == 1


def test_a_second_update_starts_from_the_matrix_that_the_first_left(networks, ids, generator):
    net = networks["mdm"]
    keys, values = draw_keyvalues(net, generator)
    u = rank_one.compute_u(keys, moments(net, ids, generator))
    with rank_one.apply_update(net, LAYER, rank_one.compute_update(net, LAYER, keys[0], values[0], u[0])):
        second = rank_one.compute_update(net, LAYER, keys[1], values[1], u[1])
        with rank_one.apply_update(net, LAYER, second), torch.no_grad():
            assert torch.allclose(project(net, keys[1]), values[1], atol=1e-4)


@pytest.mark.parametrize("name", ["mdm", "gpt2"])
def test_keys_orthogonal_under_the_second_moment_keep_their_output(name, networks, ids, generator):
    net = networks[name]
    keys, values = draw_keyvalues(net, generator)
    moment = moments(net, ids, generator)
    ridged = moment + rank_one.RIDGE * moment.diagonal().mean() * torch.eye(len(moment))
    direction = torch.linalg.solve(ridged, keys[0].double()).float()
    other = keys[1] - keys[0] * (keys[1] @ direction) / (keys[0] @ direction)
    before = project(net, other).detach()
    with rank_one.apply_update(net, LAYER, compute_updates(net, keys, values, moment)[0]), torch.no_grad():
        assert torch.allclose(project(net, other), before, atol=1e-4)
        assert not torch.allclose(project(net, keys[1]), before, atol=1e-4)


def test_the_update_changes_typical_keys_less_than_one_without_the_second_moment(networks, ids, generator, monkeypatch):
    monkeypatch.setattr(rank_one, "RIDGE", 1e-6)
    net = networks["ar"]
    keys, values = draw_keyvalues(net, generator)
    moment = moments(net, ids, generator)
    identity = torch.eye(len(moment)).double()
    updates = [compute_updates(net, keys, values, assumed)[0] for assumed in (moment, identity)]
    disturbance = [torch.trace(update @ moment @ update.T) for update in updates]
    assert disturbance[0] < disturbance[1]


@pytest.mark.parametrize("name", ["mdm", "gpt2"])
def test_weights_are_restored_bit_for_bit_after_an_exception(name, networks, generator):
    net = networks[name]
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    update = torch.randn(keyvalue.down_weight(net, LAYER).shape, generator=generator)
    with pytest.raises(KeyboardInterrupt), rank_one.apply_update(net, LAYER, update):
        assert not all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())
        raise KeyboardInterrupt
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())


# The second moment


def test_second_moments_are_means_over_all_tokens_and_no_padding(networks, ids, monkeypatch):
    monkeypatch.setitem(scoring.ROWS, "cpu", 5)
    net, keys = networks["ar"], []
    handle = network.down_projection(network.layers(net)[LAYER]).register_forward_pre_hook(
        lambda _, inputs: keys.append(inputs[0][0])
    )
    with torch.no_grad():
        for row in ids:
            network.hidden(net, torch.tensor([row]))
    handle.remove()
    keys = torch.cat(keys).double()
    moment = rank_one.second_moments(net, ids, layers=[LAYER])[LAYER]
    assert torch.allclose(moment, keys.T @ keys / len(keys), atol=1e-5)


def test_second_moments_are_the_same_when_memory_runs_out(networks, ids, limit_memory):
    expected = rank_one.second_moments(networks["ar"], ids, layers=[LAYER])[LAYER]
    tried = limit_memory(2)
    assert torch.allclose(rank_one.second_moments(networks["ar"], ids, layers=[LAYER])[LAYER], expected, atol=1e-6)
    assert max(tried) > 2


def test_second_moments_of_a_diffusion_network_are_seeded_and_include_masks(networks, ids):
    net = networks["mdm"]
    first, again, other = (moments(net, ids, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, rtol=1e-2)
    assert torch.linalg.eigvalsh(first).min() > -1e-9


# Edits and their evaluation


def test_a_target_has_another_answer_of_as_many_tokens(words, targets, unrelated):
    assert all(unrelated[fact] not in (fact, target) for fact, target in targets.items())
    rows = {row.fact: row for row in storage_fixtures.rows()}
    assert set(targets) == set(rows)
    lengths = {fact: np.diff(tokens.encode(words, row).answer)[0] for fact, row in rows.items()}
    for fact, target in targets.items():
        assert rows[fact].answer_text != rows[target].answer_text
        assert lengths[fact] == lengths[target] or list(lengths.values()).count(lengths[fact]) == 1


def test_prompts_evaluate_both_directions_of_the_fact_its_target_and_neighbours(targets, unrelated):
    rows, reverse_rows = storage_fixtures.rows(), storage_fixtures.rows("name")
    options = {"template": TEMPLATE, "neighbours": 4, "rng": np.random.default_rng(0)}
    prompts = rank_one.make_prompts(rows, reverse_rows, targets, unrelated, **options)
    prompts = [prompt for prompt in prompts if prompt.fact == "p-0"]
    count = pd.Series([prompt.measure for prompt in prompts]).value_counts().to_dict()
    assert count == {"efficacy": 1, "paraphrase": 2, "specificity": 4, "reverse_new": 3, "reverse_old": 3}
    old, new = (next(row for row in rows if row.fact == fact) for fact in ("p-0", targets["p-0"]))
    for prompt in prompts:
        assert prompt.expected.prompt == prompt.alternative.prompt
        match prompt.measure:
            case "efficacy" | "paraphrase":
                assert old.subject_text in prompt.expected.prompt
                assert (prompt.expected.answer_text, prompt.alternative.answer_text) == (
                    new.answer_text,
                    old.answer_text,
                )
                assert (prompt.expected.template == TEMPLATE) == (prompt.measure == "efficacy")
            case "specificity":
                assert prompt.expected.fact not in ("p-0", targets["p-0"])
                assert prompt.expected in rows
                assert prompt.alternative.answer_text == new.answer_text
            case "reverse_new" | "reverse_old":
                given = new if prompt.measure == "reverse_new" else old
                assert given.answer_text in prompt.expected.prompt
                assert prompt.expected.answer_text == old.subject_text
                assert prompt.alternative.answer_text not in (old.subject_text, new.subject_text)


@pytest.fixture(scope="module")
def scores(networks, words, ids, targets, unrelated):
    """The scores of both trained networks before and after each edit."""
    rows, reverse_rows = storage_fixtures.rows(), storage_fixtures.rows("name")
    requests = [row for row in rank_one.retarget(rows, targets) if row.template == TEMPLATE]
    options = {"template": TEMPLATE, "neighbours": 3, "rng": np.random.default_rng(0)}
    prompts = rank_one.make_prompts(rows, reverse_rows, targets, unrelated, **options)
    tables = {}
    for name in ("mdm", "ar"):
        net, generator = networks[name], torch.Generator().manual_seed(0)
        before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
        lm = LanguageModel(net, words, CANVAS)
        keyvalues = keyvalue.extract_keyvalues(lm, requests, layers=[LAYER], optimization=ValueOptimization())
        tables[name] = rank_one.evaluate_edits(lm, prompts, keyvalues, {LAYER: moments(net, ids, generator)})
        assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())
    return tables


@pytest.mark.parametrize("name", ["mdm", "ar"])
def test_an_edited_network_gives_the_new_object(name, scores):
    table = rank_one.summarize_edits(scores[name])
    table = table[table.fact.isna()].set_index(["measure", "statistic", "when"]).value
    assert table["efficacy", "preferred", "before"] == 0
    assert table["efficacy", "preferred", "after"] > 0.7
    assert table["efficacy", "exact", "change"] > 0.3
    assert table["paraphrase", "preferred", "after"] > table["paraphrase", "preferred", "before"]
    assert table["specificity", "exact", "before"] == 1
    assert table["specificity", "preferred", "after"] > 0.5


def test_before_an_edit_prompts_score_as_in_the_network_itself(networks, words, scores, targets):
    lm = LanguageModel(networks["ar"], words)
    rows = [row for row in storage_fixtures.rows() if row.fact == "p-0"]
    questions = [
        scoring.encode_question(lm, row)
        for row in (rank_one.retarget(storage_fixtures.rows(), targets)[TEMPLATE], rows[TEMPLATE])
    ]
    log_p, exact = scoring.score_answers(lm.net, questions)
    edit = scores["ar"].query("fact == 'p-0' and measure == 'efficacy'").iloc[0]
    assert edit.lead_before == pytest.approx((log_p[0] - log_p[1]).item(), abs=1e-4)
    assert exact.tolist() == [edit.exact_before, True]


def test_a_plan_edits_the_first_facts_with_one_template(networks, words):
    lm = LanguageModel(networks["ar"], words)
    rows, reverse_rows = storage_fixtures.rows(), storage_fixtures.rows("name")
    options = {"templates": (TEMPLATE, 0), "neighbours": 2}
    plan = rank_one.plan_edits(lm, rows, reverse_rows, max_facts=3, rng=random.Random(0), **options)
    targets = rank_one.choose_targets(words, rows, rng=random.Random(0))
    facts = list(targets)[:3]
    assert [row.fact for row in plan.requests] == facts
    assert {row.template for row in plan.requests} == {TEMPLATE}
    answers = {row.fact: row.answer_text for row in rows}
    assert [row.answer_text for row in plan.requests] == [answers[targets[fact]] for fact in facts]
    assert {prompt.fact for prompt in plan.prompts} == set(facts)
    assert [prompt.expected.template for prompt in plan.prompts if prompt.measure == "efficacy"] == [TEMPLATE] * 3
    for row in plan.reverse_requests:
        assert row.subject_text == answers[targets[row.fact]] and row.template == 0
        assert row.answer_text == next(other.subject_text for other in rows if other.fact == row.fact)
    whole = rank_one.plan_edits(lm, rows, reverse_rows, max_facts=None, rng=random.Random(0), **options)
    assert [row.fact for row in whole.requests] == list(targets)


@pytest.fixture(scope="module")
def sites(networks, words):
    """The sites of the masked diffusion model, where tracing points to the last prompt token."""
    lm = LanguageModel(networks["mdm"], words, CANVAS)
    rows = [row for row in storage_fixtures.rows() if row.template == TEMPLATE]
    layer_sites = [rank_one.Site("layer", 1), rank_one.Site("layer", 0)]
    options = {"main_layer": 0, "traced": {"layer": 2, "role": "last prompt"}, "count": 3, "rng": random.Random(0)}
    return layer_sites, rank_one.choose_sites(lm, rows, layer_sites, **options)


def test_random_sites_differ_from_all_other_sites(sites):
    layer_sites, more = sites
    assert [site.kind for site in more] == ["traced", *["random"] * 3, "masked", "both"]
    places = [(site.layer, site.role) for site in layer_sites + more[:4]]
    assert len(set(places)) == len(places) and all(layer in range(3) for layer, _ in places)
    assert [(site.layer, site.role) for site in more[4:]] == [(0, scoring.LAST_SUBJECT)] * 2


def test_an_autoregressive_network_has_no_masked_canvases_and_a_traced_site_is_not_edited_twice(networks, words):
    rows = [row for row in storage_fixtures.rows() if row.template == TEMPLATE]
    options = {
        "main_layer": 1,
        "traced": {"layer": 1, "role": scoring.LAST_SUBJECT},
        "count": 0,
        "rng": random.Random(0),
    }
    sites = rank_one.choose_sites(LanguageModel(networks["ar"], words), rows, [rank_one.Site("layer", 1)], **options)
    assert sites == [rank_one.Site("both", 1)]
    alone = rank_one.choose_sites(LanguageModel(networks["ar"], words), rows, [], **options)
    assert alone == [rank_one.Site("traced", 1)], "where there is no other site, nothing is controlled"


def test_a_group_is_edited_at_each_site_as_at_that_site_alone(networks, words, ids, sites):
    net, optimization = networks["mdm"], ValueOptimization(steps=3)
    lm = LanguageModel(net, words, CANVAS)
    rows, reverse_rows = storage_fixtures.rows(), storage_fixtures.rows("name")
    options = {"templates": (TEMPLATE, 0), "max_facts": 2, "neighbours": 1, "rng": random.Random(0)}
    plan = rank_one.plan_edits(lm, rows, reverse_rows, **options)
    generator = torch.Generator().manual_seed(0)
    by_layer = rank_one.second_moments(net, ids, layers=[0, 1, 2], canvas=CANVAS, generator=generator)
    options = {"prefixes": ("", "People say."), "optimization": optimization}
    edited = rank_one.edit_group(lm, plan, sum(sites, []), by_layer, partly_unmasked=2, reverse_layer=1, **options)
    tables = dict(edited)
    assert len(tables) == 8
    for site, table in tables.items():
        more = {"role": site.role, "partly_unmasked": 0 if site.kind == "masked" else 2}
        alone = keyvalue.extract_keyvalues(lm, plan.requests, layers=[site.layer], **options, **more)
        if site.kind == "both":
            alone += keyvalue.extract_keyvalues(lm, plan.reverse_requests, layers=[1], **options, partly_unmasked=2)
        scores = rank_one.evaluate_edits(lm, plan.prompts, alone, by_layer)
        pd.testing.assert_frame_equal(table, rank_one.summarize_edits(scores))


def test_with_both_directions_edited_the_reverse_prompt_gives_the_new_answer_too(networks, words, ids, scores):
    net, rows, reverse_rows = networks["mdm"], storage_fixtures.rows(), storage_fixtures.rows("name")
    lm = LanguageModel(net, words, CANVAS)
    options = {"templates": (TEMPLATE, 0), "max_facts": None, "neighbours": 1, "rng": random.Random(0)}
    plan = rank_one.plan_edits(lm, rows, reverse_rows, **options)
    by_layer = {LAYER: moments(net, ids, torch.Generator().manual_seed(0))}
    options = {"prefixes": ("",), "optimization": ValueOptimization()}
    sites = [rank_one.Site("layer", 0), rank_one.Site("both", 0)]
    tables = dict(rank_one.edit_group(lm, plan, sites, by_layer, **options))
    shares = {
        site.kind: table[table.fact.isna() & (table.statistic == "preferred") & (table.when == "after")]
        .set_index("measure")
        .value
        for site, table in tables.items()
    }
    assert shares["both"].efficacy > 0.6
    assert shares["both"].reverse_new > shares["layer"].reverse_new + 0.3


# What is generated token by token


def test_an_answer_is_generated_by_revealing_the_most_confident_token_first(networks, words):
    """A masked diffusion network, one token after the other, by hand."""
    net = networks["mdm"]
    lm = LanguageModel(net, words, CANVAS)
    targets = rank_one.choose_targets(words, storage_fixtures.rows(), rng=np.random.default_rng(0))
    rows = storage_fixtures.rows() + rank_one.retarget(storage_fixtures.rows(), targets)
    sequences = [scoring.encode_question(lm, row) for row in rows]
    generated = scoring.generates_answer(net, sequences).tolist()
    for sequence, is_generated in zip(sequences, generated, strict=True):
        ids, revealed = list(sequence.ids), {}
        while len(revealed) < len(sequence.answer):
            with torch.no_grad():
                logits = network.logits(net, network.hidden(net, torch.tensor([ids])))[0].float().log_softmax(-1)
            masked = [position for position in sequence.answer if position not in revealed]
            position = max(masked, key=lambda position: logits[position].max().item())
            ids[position] = revealed[position] = logits[position].argmax().item()
        assert (revealed == dict(sequence.answer)) == is_generated
    assert any(generated) and not all(generated)


def test_training_second_moments_are_those_of_evenly_spaced_rows(networks, words, ids):
    net, rows = networks["mdm"], storage_fixtures.all_rows()
    lm = LanguageModel(net, words, CANVAS)
    sample, whole = (
        rank_one.training_second_moments(lm, rows, max_rows=max_rows, layers=[LAYER], seed=0)[LAYER]
        for max_rows in (12, None)
    )
    assert torch.equal(sample, moments(net, ids[:: len(ids) // 12], torch.Generator().manual_seed(0)))
    assert torch.equal(whole, moments(net, ids, torch.Generator().manual_seed(0)))


def test_the_table_has_each_measure_before_after_and_its_change():
    scores = pd.DataFrame(
        {
            "fact": ["a", "a", "b", "b"],
            "template": [1, 2, 1, 2],
            "measure": "paraphrase",
            "lead_before": [-1.0, -1.0, -1.0, -3.0],
            "exact_before": False,
            "lead_after": [1.0, -1.0, 1.0, 1.0],
            "exact_after": [True, False, True, True],
        }
    )
    table = rank_one.summarize_edits(scores)
    by_edit, table = table[table.fact.notna()], table[table.fact.isna()]
    assert by_edit[["statistic", "when", "fact", "value"]].to_numpy().tolist() == [
        ["lead", "change", "a", 1.0],
        ["lead", "change", "b", 3.0],
    ]
    values = table.set_index(["statistic", "when"]).value
    assert (values["preferred", "before"], values["preferred", "after"]) == (0, 0.75)
    assert values["preferred", "change"] == values["exact", "change"] == 0.75
    assert (table.n == 2).all() and table.value.between(table.ci_low, table.ci_high).all()
