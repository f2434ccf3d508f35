"""What single layers and heads hold of an answer."""

import numpy as np
import pytest
import torch
import trace_fixtures
from test_trace_study import complete, make_answered_rows, make_speaker, tokenizer  # noqa: F401

from reversal.models import hooks, network
from reversal.tracing import engine, readout_tables, readouts
from reversal.tracing.study import Tracing, trace_split


@pytest.fixture(scope="module", params=[False, True], ids=["mdm", "ar"])
def answered(request, tokenizer):  # noqa: F811
    """A network, its traced questions and their traces."""
    net = make_speaker(tokenizer, causal=request.param)
    rows = make_answered_rows(net, tokenizer)
    settings = Tracing({"swap": ["state", "attn"]})
    return net, *trace_split(net, tokenizer, rows, complete(net, tokenizer, rows), settings)[:2]


def predict(net, canvas, position):
    return network.logits(net, network.hidden(net, torch.tensor([canvas])))[0, position].softmax(-1)


def test_the_last_layer_reads_the_networks_own_prediction_at_every_step_until_a_token_is_revealed(answered):
    net, questions, _ = answered
    table = readouts.read_layers(net, questions)
    if not network.is_diffusion(net):
        assert table.empty
        return
    last = table[table.layer == table.layer.max()]
    for question in questions:
        order = sorted(
            (step, -confidence, position)
            for position, _, step, confidence in question.completion["revealed"]
            if position in range(*question.answer)
        )
        for token, (revealed, _, position) in enumerate(order):
            rows = last[(last.fact == question.row.fact) & (last.token == token)]
            assert list(rows.step) == list(range(revealed + 1)) and set(rows.revealed) == {revealed}
            for row in rows.itertuples():
                expected = predict(net, question.step_input(net, row.step)[0], position)[question.ids[position]]
                assert row.probability == pytest.approx(expected.item(), abs=1e-5)


def test_where_upper_layers_add_nothing_all_layers_read_the_same(tokenizer):  # noqa: F811
    net = make_speaker(tokenizer, causal=False)
    with torch.no_grad():
        for block in network.layers(net)[1:]:
            network.attention_projection(block).weight.zero_()
            network.down_projection(block).weight.zero_()
    rows = make_answered_rows(net, tokenizer)
    questions = trace_split(net, tokenizer, rows, complete(net, tokenizer, rows), Tracing({"swap": ["state"]}))[0]
    by_layer = readouts.read_layers(net, questions).groupby("layer").probability.apply(list)
    np.testing.assert_allclose(by_layer[0], by_layer[2], atol=1e-5)


def test_with_one_head_a_head_recovers_what_attention_does_at_the_answer_positions(answered, tokenizer):  # noqa: F811
    net = make_speaker(tokenizer, causal=not network.is_diffusion(answered[0]), heads=1)
    rows = make_answered_rows(net, tokenizer)
    questions, traces, _ = trace_split(
        net, tokenizer, rows, complete(net, tokenizer, rows), Tracing({"swap": ["state", "attn"]})
    )
    table = readouts.measure_heads(net, questions)
    for trace in traces:
        rows = table[table.fact == trace.metadata["fact"]]
        place = trace.roles[0].index("answer positions")
        np.testing.assert_allclose(rows.effect, trace.indirect_effects("swap", "attn")[0, place], atol=1e-3)
        assert rows.total.tolist() == pytest.approx([trace.total_effect("swap")[0]] * len(rows), abs=1e-3)


def test_attribution_is_the_slope_of_the_exact_effect(answered):
    """A small step towards the clean state changes the score by that part of the estimate."""
    net, questions, _ = answered
    problem, share = readouts._corrupt(net, questions[0], questions[0].t1), 1e-3
    estimate = readouts.attribute(net, problem)
    position, token = torch.tensor(problem.answer_pairs()).T
    net.double()
    embedded = torch.cat([problem.clean[None], problem.corrupted]).double()
    for layer, block in enumerate(network.layers(net)):
        for place in (questions[0].subject[0], int(position[0])):

            def step(module, inputs, output, place=place):
                states = (output[0] if isinstance(output, tuple) else output).clone()
                states[1, place] += share * (states[0, place] - states[1, place])
                return (states, *output[1:]) if isinstance(output, tuple) else states

            with torch.no_grad():
                before = engine.log_probabilities(net, embedded, position, token)[1].sum()
                with hooks.attach([(block, step)]):
                    after = engine.log_probabilities(net, embedded, position, token)[1].sum()
            slope = (after - before).item() / share
            assert slope == pytest.approx(estimate[place, layer].item(), rel=0.05, abs=0.02)
    net.float()


def test_attribution_agrees_with_itself_and_is_cheaper(answered):
    net, questions, traces = answered
    table = readouts.measure_attribution(net, questions, traces)
    assert len(table) == sum(len(trace.steps) for trace in traces)
    assert table.correlation.between(-1, 1).all() and table.missed.between(0, 1).all() and (table.cost > 0.5).all()


def test_tables_average_tokens_within_a_fact_and_then_facts():
    values = trace_fixtures.make_lens_values("ab")
    table = readout_tables.average_lens(values, model="m", seed=1, split="p2d_same")
    at = {
        reading: rows.set_index("token" if reading[0] == "r" else "layer")["mean"]
        for reading, rows in table[table.reading != "probability"].groupby("reading")
    }
    assert at["revealed"].tolist() == [3, 4] and at["readable"].tolist() == [1, 1]
    assert at["at_reveal"][2] == pytest.approx((0.4 + 0.6 * 0.6 + 0.4 + 0.6 * 0.8) / 2)
    assert set(table.n) == {2}
    heads = readout_tables.average_heads(
        trace_fixtures.make_head_values("ab"), model="m", seed=1, split="p2d_same"
    ).set_index(["layer", "head"])["mean"]
    assert heads[0, 0] == pytest.approx(10 / 21) and heads[2, 1] == 0
    for average, made in (
        (readout_tables.average_lens, values),
        (readout_tables.average_heads, trace_fixtures.make_head_values("a")),
    ):
        assert average(made.head(0), model="m", seed=1, split="p2d_same").empty
