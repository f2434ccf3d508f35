import random

import numpy as np
import pandas as pd
import pytest
import storage_fixtures
import torch

from reversal.models import network, tokens
from reversal.storage import keyvalue, rank_one, scoring
from reversal.storage.compute_v import Search
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
    gpt2 = storage_fixtures.another_make(words)
    torch.nn.init.normal_(network.down_projection(network.layers(gpt2)[LAYER]).bias)
    return {
        "mdm": storage_fixtures.network(words, causal=False, steps=80),
        "ar": storage_fixtures.network(words, causal=True, steps=40),
        "gpt2": gpt2,
    }


@pytest.fixture(scope="module")
def ids(words):
    return [tokens.encode(words, row).ids for row in storage_fixtures.everything()]


@pytest.fixture(scope="module")
def donors(words):
    return rank_one.choose_donors(words, storage_fixtures.rows(), rng=np.random.default_rng(0))


@pytest.fixture(scope="module")
def strangers(words, donors):
    return rank_one.choose_donors(words, storage_fixtures.rows("name"), rng=np.random.default_rng(1), apart=donors)


def test_a_stranger_is_neither_the_fact_nor_its_donor(donors, strangers):
    assert all(strangers[fact] not in (fact, donor) for fact, donor in donors.items())


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def moments(net, ids, generator):
    return rank_one.second_moments(net, ids, layers=[LAYER], canvas=CANVAS, generator=generator)[LAYER]


def pairs(net, generator):
    """Three keys and values at random, of the size that the network's own layer has."""
    width, mlp = keyvalue.down_weight(net, LAYER).shape
    return torch.randn(3, mlp, generator=generator), torch.randn(3, width, generator=generator)


def changes(net, keys, values, moment):
    """The edit of each key and value by itself."""
    every = zip(keys, values, rank_one.directions(keys, moment), strict=True)
    return [rank_one.update(net, LAYER, *one) for one in every]


def project(net, keys):
    return network.down_projection(network.layers(net)[LAYER])(keys)


# The update


@pytest.mark.parametrize("name", ["mdm", "ar", "gpt2"])
def test_the_edited_matrix_gives_the_value_for_the_key(name, networks, ids, generator):
    net = networks[name]
    keys, values = pairs(net, generator)
    for key, value, change in zip(keys, values, changes(net, keys, values, moments(net, ids, generator)), strict=True):
        with rank_one.edited(net, LAYER, change), torch.no_grad():
            assert torch.allclose(project(net, key), value, atol=1e-4)
        assert torch.linalg.matrix_rank(change) == 1


def test_a_second_edit_is_of_the_matrix_as_the_first_left_it(networks, ids, generator):
    net = networks["mdm"]
    keys, values = pairs(net, generator)
    ways = rank_one.directions(keys, moments(net, ids, generator))
    with rank_one.edited(net, LAYER, rank_one.update(net, LAYER, keys[0], values[0], ways[0])):
        second = rank_one.update(net, LAYER, keys[1], values[1], ways[1])
        with rank_one.edited(net, LAYER, second), torch.no_grad():
            assert torch.allclose(project(net, keys[1]), values[1], atol=1e-4)


@pytest.mark.parametrize("name", ["mdm", "gpt2"])
def test_keys_orthogonal_by_the_second_moment_are_left_alone(name, networks, ids, generator):
    net = networks[name]
    keys, values = pairs(net, generator)
    moment = moments(net, ids, generator)
    ridged = moment + rank_one.RIDGE * moment.diagonal().mean() * torch.eye(len(moment))
    direction = torch.linalg.solve(ridged, keys[0].double()).float()
    other = keys[1] - keys[0] * (keys[1] @ direction) / (keys[0] @ direction)
    before = project(net, other).detach()
    with rank_one.edited(net, LAYER, changes(net, keys, values, moment)[0]), torch.no_grad():
        assert torch.allclose(project(net, other), before, atol=1e-4)
        assert not torch.allclose(project(net, keys[1]), before, atol=1e-4)


def test_the_update_disturbs_usual_keys_less_than_one_that_does_not_know_them(networks, ids, generator, monkeypatch):
    monkeypatch.setattr(rank_one, "RIDGE", 1e-6)
    net = networks["ar"]
    keys, values = pairs(net, generator)
    moment = moments(net, ids, generator)
    blind = torch.eye(len(moment)).double()
    disturbance = [
        torch.trace(change @ moment @ change.T)
        for change in (changes(net, keys, values, some)[0] for some in (moment, blind))
    ]
    assert disturbance[0] < disturbance[1]


@pytest.mark.parametrize("name", ["mdm", "gpt2"])
def test_weights_come_back_bit_for_bit_whatever_happens(name, networks, generator):
    net = networks[name]
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    change = torch.randn(keyvalue.down_weight(net, LAYER).shape, generator=generator)
    with pytest.raises(KeyboardInterrupt), rank_one.edited(net, LAYER, change):
        assert not torch.equal(keyvalue.down_weight(net, LAYER), before_weight(before, net))
        raise KeyboardInterrupt
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())


def before_weight(state, net):
    """The down-projection as `state` has it."""
    name = "transformer.h.0.mlp.c_proj.weight"
    return state[name].T if name in state else state["model.layers.0.mlp.down_proj.weight"]


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
    every = torch.cat(keys).double()
    found = rank_one.second_moments(net, ids, layers=[LAYER])[LAYER]
    assert torch.allclose(found, every.T @ every / len(every), atol=1e-5)


def test_second_moments_are_the_same_where_memory_is_short(networks, ids, short_of_memory):
    expected = rank_one.second_moments(networks["ar"], ids, layers=[LAYER])[LAYER]
    tried = short_of_memory(2)
    assert torch.allclose(rank_one.second_moments(networks["ar"], ids, layers=[LAYER])[LAYER], expected)
    assert max(tried) > 2


def test_second_moments_of_a_diffusion_network_are_seeded_and_see_masks(networks, ids):
    net = networks["mdm"]
    first, again, other = (moments(net, ids, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, rtol=1e-2)
    assert torch.linalg.eigvalsh(first).min() > -1e-9


# Edits and what they do


def test_a_donor_has_another_answer_of_as_many_tokens(words, donors):
    rows = {row.fact: row for row in storage_fixtures.rows()}
    assert set(donors) == set(rows)
    lengths = {fact: np.diff(tokens.encode(words, row).answer)[0] for fact, row in rows.items()}
    for fact, donor in donors.items():
        assert rows[fact].answer_text != rows[donor].answer_text
        assert lengths[fact] == lengths[donor] or list(lengths.values()).count(lengths[fact]) == 1


def test_facts_with_one_answer_cannot_be_edited(words):
    one = [row for row in storage_fixtures.rows() if row.fact == "p-0"]
    with pytest.raises(ValueError, match="an edit needs another"):
        rank_one.choose_donors(words, one, rng=np.random.default_rng(0))


def test_probes_ask_forward_and_back_about_fact_donor_and_neighbours(donors, strangers):
    rows, back = storage_fixtures.rows(), storage_fixtures.rows("name")
    asked = rank_one.checks(
        rows, back, donors, strangers, template=TEMPLATE, neighbours=4, rng=np.random.default_rng(0)
    )
    mine = [probe for probe in asked if probe.fact == "p-0"]
    count = pd.Series([probe.measure for probe in mine]).value_counts().to_dict()
    assert count == {"efficacy": 1, "paraphrase": 2, "specificity": 4, "reverse_new": 3, "reverse_old": 3}
    old, new = (next(row for row in rows if row.fact == fact) for fact in ("p-0", donors["p-0"]))
    for probe in mine:
        assert probe.wanted.prompt == probe.rival.prompt
        match probe.measure:
            case "efficacy" | "paraphrase":
                assert old.subject_text in probe.wanted.prompt
                assert (probe.wanted.answer_text, probe.rival.answer_text) == (new.answer_text, old.answer_text)
                assert (probe.wanted.template == TEMPLATE) == (probe.measure == "efficacy")
            case "specificity":
                assert probe.wanted.fact not in (probe.fact, probe.donor)
                assert probe.wanted in rows
                assert probe.rival.answer_text == new.answer_text
            case "reverse_new" | "reverse_old":
                asked_with = new if probe.measure == "reverse_new" else old
                assert asked_with.answer_text in probe.wanted.prompt
                assert probe.wanted.answer_text == old.subject_text
                assert probe.rival.answer_text not in (old.subject_text, new.subject_text)


@pytest.fixture(scope="module")
def probed(networks, words, ids, donors, strangers):
    """What both trained networks say before and after each edit."""
    rows, back = storage_fixtures.rows(), storage_fixtures.rows("name")
    new = [row for row in rank_one.retarget(rows, donors) if row.template == TEMPLATE]
    asked = rank_one.checks(
        rows, back, donors, strangers, template=TEMPLATE, neighbours=3, rng=np.random.default_rng(0)
    )
    tables = {}
    for name in ("mdm", "ar"):
        net, generator = networks[name], torch.Generator().manual_seed(0)
        before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
        lm = LanguageModel(net, words, CANVAS)
        found = keyvalue.keyvalue(lm, new, layers=[LAYER], search=Search())
        tables[name] = rank_one.edit_all(lm, asked, found, {LAYER: moments(net, ids, generator)})
        assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())
    return tables


@pytest.mark.parametrize("name", ["mdm", "ar"])
def test_an_edited_network_gives_the_new_object(name, probed):
    table = (
        rank_one.edits_table(probed[name], [True], {})
        .query("fact.isna()")
        .set_index(["measure", "statistic", "when"])
        .value
    )
    assert table["efficacy", "preferred", "before"] == 0
    assert table["efficacy", "preferred", "after"] > 0.7
    assert table["efficacy", "log_p", "change"] > 3
    assert table["paraphrase", "preferred", "after"] > table["paraphrase", "preferred", "before"]
    assert table["specificity", "exact", "before"] == 1
    assert table["specificity", "preferred", "after"] > 0.5


def test_before_an_edit_probes_score_as_in_the_network_itself(networks, words, probed, donors):
    net, table = networks["ar"], probed["ar"]
    row = next(row for row in storage_fixtures.rows() if row.fact == "p-0" and row.template == TEMPLATE)
    log_p, exact = scoring.score_answers(net, [scoring.question(LanguageModel(net, words), row)])
    mine = table[(table.fact == "p-0") & (table.measure == "efficacy")].iloc[0]
    assert mine.log_p_rival_before == pytest.approx(log_p.item(), abs=1e-4)
    assert exact.item()
    assert mine.donor == donors["p-0"]
    assert not mine.exact_before


def test_a_plan_edits_the_first_facts_by_one_template(networks, words):
    lm = LanguageModel(networks["ar"], words)
    rows, back = storage_fixtures.rows(), storage_fixtures.rows("name")
    how = {"templates": (TEMPLATE, 0), "neighbours": 2}
    plan = rank_one.plan_edits(lm, rows, back, max_facts=3, rng=random.Random(0), **how)
    donors = rank_one.choose_donors(words, rows, rng=random.Random(0))
    facts = list(donors)[:3]
    template = TEMPLATE
    assert [row.fact for row in plan.targets] == facts
    assert {row.template for row in plan.targets} == {template}
    answers = {row.fact: row.answer_text for row in rows}
    assert [row.answer_text for row in plan.targets] == [answers[donors[fact]] for fact in facts]
    assert {probe.fact: probe.donor for probe in plan.asked} == {fact: donors[fact] for fact in facts}
    assert [probe.wanted.template for probe in plan.asked if probe.measure == "efficacy"] == [template] * 3
    for row in plan.reverse_targets:
        assert row.subject_text == answers[donors[row.fact]] and row.template == 0
        assert row.answer_text == next(own.subject_text for own in rows if own.fact == row.fact)
    everyone = rank_one.plan_edits(lm, rows, back, max_facts=None, rng=random.Random(0), **how)
    assert [row.fact for row in everyone.targets] == list(donors)


@pytest.fixture(scope="module")
def sites(networks, words):
    """Of the masked diffusion model, with tracing pointing to its last prompt token."""
    lm = LanguageModel(networks["mdm"], words, CANVAS)
    rows = [row for row in storage_fixtures.rows() if row.template == TEMPLATE]
    plain = [rank_one.Site("layer", 1), rank_one.Site("layer", 0)]
    how = {"lead": 0, "traced": {"layer": 2, "role": "last prompt"}, "count": 3, "rng": random.Random(0)}
    return plain, rank_one.other_sites(lm, rows, plain, **how)


def test_random_sites_are_others_than_those_that_were_chosen(sites):
    plain, more = sites
    assert [site.how for site in more] == ["traced", *["random"] * 3, "masked", "both"]
    places = [(site.layer, site.role) for site in plain + more[:4]]
    assert len(set(places)) == len(places) and all(layer in range(3) for layer, _ in places)
    assert [(site.layer, site.role) for site in more[4:]] == [(0, scoring.LAST)] * 2


def test_an_autoregressive_network_has_no_masked_canvases_and_a_traced_site_is_not_edited_twice(networks, words):
    rows = [row for row in storage_fixtures.rows() if row.template == TEMPLATE]
    how = {"lead": 1, "traced": {"layer": 1, "role": scoring.LAST}, "count": 0, "rng": random.Random(0)}
    found = rank_one.other_sites(LanguageModel(networks["ar"], words), rows, [rank_one.Site("layer", 1)], **how)
    assert found == [rank_one.Site("both", 1)]


def test_a_group_is_edited_at_each_site_as_at_that_site_alone(networks, words, ids, sites):
    net, search = networks["mdm"], Search(steps=3)
    lm = LanguageModel(net, words, CANVAS)
    rows, back = storage_fixtures.rows(), storage_fixtures.rows("name")
    how = {"templates": (TEMPLATE, 0), "max_facts": 2, "neighbours": 1, "rng": random.Random(0)}
    plan = rank_one.plan_edits(lm, rows, back, **how)
    every = rank_one.second_moments(
        net, ids, layers=[0, 1, 2], canvas=CANVAS, generator=torch.Generator().manual_seed(0)
    )
    how = {"prefixes": ("", "People say."), "search": search}
    found = dict(rank_one.edit_group(lm, plan, sum(sites, []), every, unmasked=2, turned=1, **how))
    assert len(found) == 8
    for site, table in found.items():
        more = {"role": site.role, "unmasked": 0 if site.how == "masked" else 2}
        alone = keyvalue.keyvalue(lm, plan.targets, layers=[site.layer], **how, **more)
        if site.how == "both":
            alone += keyvalue.keyvalue(lm, plan.reverse_targets, layers=[1], **how, unmasked=2)
        probed = rank_one.edit_all(lm, plan.asked, alone, every)
        lengths = {row.fact: np.diff(tokens.encode(words, row).answer)[0] for row in plan.targets}
        pd.testing.assert_frame_equal(table, rank_one.edits_table(probed, alone[0].outcomes.converged, lengths))


def test_with_both_directions_edited_the_reverse_question_gives_the_new_answer_too(networks, words, ids, probed):
    net, rows, back = networks["mdm"], storage_fixtures.rows(), storage_fixtures.rows("name")
    lm = LanguageModel(net, words, CANVAS)
    how = {"templates": (TEMPLATE, 0), "max_facts": None, "neighbours": 1, "rng": random.Random(0)}
    plan = rank_one.plan_edits(lm, rows, back, **how)
    every = {LAYER: moments(net, ids, torch.Generator().manual_seed(0))}
    how = {"prefixes": ("",), "search": Search()}
    tables = dict(rank_one.edit_group(lm, plan, [rank_one.Site("layer", 0), rank_one.Site("both", 0)], every, **how))
    shares = {
        site.how: table[table.fact.isna() & (table.statistic == "preferred") & (table.when == "after")]
        .set_index("measure")
        .value
        for site, table in tables.items()
    }
    assert shares["both"].efficacy > 0.6
    assert shares["both"].reverse_new > shares["layer"].reverse_new + 0.3


# What is told token by token


def test_an_answer_is_told_where_each_token_is_surest_given_those_before(networks, words):
    """A masked diffusion network, one token after the other, by hand."""
    net = networks["mdm"]
    lm = LanguageModel(net, words, CANVAS)
    donors = rank_one.choose_donors(words, storage_fixtures.rows(), rng=np.random.default_rng(0))
    rows = storage_fixtures.rows() + rank_one.retarget(storage_fixtures.rows(), donors)
    asked = [scoring.question(lm, row) for row in rows]
    found = scoring.told(net, asked).tolist()
    for sequence, right in zip(asked, found, strict=True):
        ids, said = list(sequence.ids), {}
        while len(said) < len(sequence.answer):
            with torch.no_grad():
                logits = network.logits(net, network.hidden(net, torch.tensor([ids])))[0].float().log_softmax(-1)
            free = [at for at in sequence.answer if at not in said]
            at = max(free, key=lambda place: logits[place].max().item())
            ids[at] = said[at] = logits[at].argmax().item()
        assert (said == dict(sequence.answer)) == right
    assert any(found) and not all(found)


def test_what_an_autoregressive_network_tells_is_what_it_gives_greedily(networks, words):
    asked = [scoring.question(LanguageModel(networks["ar"], words), row) for row in storage_fixtures.everything()]
    assert scoring.told(networks["ar"], asked).equal(scoring.score_answers(networks["ar"], asked)[1])


def test_moments_in_training_are_those_of_rows_evenly_chosen(networks, words, ids):
    net, rows = networks["mdm"], storage_fixtures.everything()
    some = rank_one.moments_in_training(LanguageModel(net, words, CANVAS), rows, most=12, layers=[LAYER], seed=0)[LAYER]
    every = rank_one.moments_in_training(LanguageModel(net, words, CANVAS), rows, most=None, layers=[LAYER], seed=0)[
        LAYER
    ]
    assert torch.equal(some, moments(net, ids[:: len(ids) // 12], torch.Generator().manual_seed(0)))
    assert torch.equal(every, moments(net, ids, torch.Generator().manual_seed(0)))


def test_the_table_has_each_measure_before_after_and_its_change():
    probed = pd.DataFrame(
        {
            "fact": ["a", "a", "b", "b"],
            "template": [1, 2, 1, 2],
            "measure": "paraphrase",
            "log_p_wanted_before": [-3.0, -3.0, -3.0, -5.0],
            "log_p_rival_before": -2.0,
            "exact_before": False,
            "log_p_wanted_after": [-1.0, -3.0, -1.0, -1.0],
            "log_p_rival_after": -2.0,
            "exact_after": [True, False, True, True],
            "told": np.nan,
        }
    )
    table = rank_one.edits_table(probed, [True, False], {"a": 3, "b": 5}).set_index(["measure", "statistic", "when"])
    each = table[table.fact.notna()]
    assert each.loc[("paraphrase", "lead", "change"), ["fact", "tokens", "value"]].to_numpy().tolist() == [
        ["a", 3, 1.0],
        ["b", 5, 3.0],
    ]
    table = table[table.fact.isna()]
    assert table.loc[("value", "found", "after"), ["value", "n"]].tolist() == [0.5, 2]
    table = table.drop("value")
    values = table.value["paraphrase"]
    assert (values["preferred", "before"], values["preferred", "after"]) == (0, 0.75)
    assert values["preferred", "change"] == values["exact", "change"] == 0.75
    assert values["log_p", "change"] == values["lead", "change"] == 2
    assert (table.n == 2).all() and (table.probes == 4).all()
    assert (table.ci_low <= table.value).all() and (table.value <= table.ci_high).all()
