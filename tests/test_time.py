"""At which steps a subject is needed: corrupted at some of them, with revealed tokens, or restored at one of them."""

import numpy as np
import pandas as pd
import pytest
import torch
from test_trace_study import SAMPLING, STEPS, complete, make_answered_rows, make_speaker, tokenizer  # noqa: F401
from trace_fixtures import make_time_values

from reversal.models import network
from reversal.recall import masked
from reversal.tracing import engine, time_tables
from reversal.tracing import time as timing
from reversal.tracing.study import Tracing, trace_split
from reversal.tracing.time import SubjectCorruption, Timing


@pytest.fixture(scope="module")
def families(tokenizer):  # noqa: F811
    """{family: (a network, its traced questions, their traces)}."""
    families = {}
    for causal in (False, True):
        net = make_speaker(tokenizer, causal)
        rows = make_answered_rows(net, tokenizer)
        settings = Tracing({"swap": ["state", "mlp"]})
        questions, traces, _ = trace_split(net, tokenizer, rows, complete(net, tokenizer, rows), settings)
        families["ar" if causal else "mdm"] = net, questions, traces
    return families


def generate(net, questions, steps, site=None):
    return timing.generate(net, [SubjectCorruption(question, steps, site) for question in questions], SAMPLING, STEPS)


def test_corruption_from_the_first_step_equals_a_corrupted_prompt_and_after_the_last_changes_nothing(families):
    net, questions, _ = families["mdm"]
    corrupted = generate(net, questions, range(STEPS))
    prompts = [timing._swap_subject(question, question.ids[: question.prompt]) for question in questions]
    expected = masked.denoise_each(net, prompts, SAMPLING, [STEPS])[STEPS].canvas.tolist()
    for question, ids, other in zip(questions, corrupted, expected, strict=True):
        assert ids[question.prompt :] == other[question.prompt :]
    for site in (None, ("mlp", 0)):
        assert generate(net, questions, range(0), site) == [question.ids for question in questions]


def test_corruption_after_t2_keeps_the_answer(families):
    net, questions, _ = families["mdm"]
    for question in questions:
        [ids] = generate(net, [question], range(question.t2 + 1, STEPS))
        assert ids[slice(*question.answer)] == question.ids[slice(*question.answer)]


def test_a_corrupted_module_has_its_output_for_the_other_prompt_at_the_subject(families):
    """The predictor against two plain forward passes with hooks."""
    net, questions, _ = families["mdm"]
    question = questions[0]
    canvas, _ = question.step_input(net, question.t1)
    other = timing._swap_subject(question, canvas)
    for kind, layer in (("mlp", 1), ("attn", 0), ("state", 1)):
        corruption = SubjectCorruption(question, range(STEPS), (kind, layer))
        states = timing.make_predictor(net, [corruption])(torch.tensor([canvas, canvas]), [0, 0], [0, 0])
        module = engine.find_module(net, kind, layer)
        recorded = {}

        def record(module, args, output, recorded=recorded):
            recorded["other"] = (output[0] if isinstance(output, tuple) else output).clone()

        def patch(module, args, output, recorded=recorded):
            patched = (output[0] if isinstance(output, tuple) else output).clone()
            patched[:, range(*question.subject)] = recorded["other"][:, range(*question.subject)]
            return (patched, *output[1:]) if isinstance(output, tuple) else patched

        with torch.no_grad():
            handle = module.register_forward_hook(record)
            network.hidden(net, torch.tensor([other]))
            handle.remove()
            handle = module.register_forward_hook(patch)
            expected = network.hidden(net, torch.tensor([canvas]))
            handle.remove()
        torch.testing.assert_close(states, expected.expand(2, -1, -1), atol=1e-4, rtol=1e-4)
        assert not torch.allclose(states[0], network.hidden(net, torch.tensor([canvas]))[0], atol=1e-3)


@pytest.mark.parametrize("family", ["mdm", "ar"])
def test_total_effects_are_those_of_canvases_with_replaced_tokens(families, family):
    net, questions, traces = families[family]
    table = timing.measure_total_effects(net, questions)
    for question, trace in zip(questions, traces, strict=True):
        rows = table[table.fact == question.row.fact]
        assert set(rows.step) == set(question.answer_steps)
        for corrupted, name in (("neither", "clean"), ("subject", "swap.corrupted")):
            scored = rows[rows.corrupted == corrupted].set_index("step").value
            for step, value in zip(trace.steps, trace.arrays[f"sequential.{name}"], strict=True):
                assert step not in scored or scored[step] == pytest.approx(value, abs=1e-3)
        later = rows[rows.corrupted == "revealed"]
        assert set(later.kind) <= {"mask", "swap"} and (family == "mdm") == ("mask" in set(later.kind))
        assert "t1" not in set(later.stage)
        for row in later[later.kind == "mask"].itertuples():
            _, remaining = question.step_input(net, row.step)
            revealed = [position for position in range(*question.answer) if position not in remaining]
            expected = 0.0
            for canvas, positions in question.conditionals(net, row.step):
                canvas = timing.replace_tokens(canvas, revealed, [network.mask_id(net)] * len(revealed))
                logs = network.logits(net, network.hidden(net, torch.tensor([canvas]))).log_softmax(-1)[0]
                expected += sum(logs[pair] for pair in question.answer_pairs(net, positions)).item()
            assert row.value == pytest.approx(expected, abs=1e-3)


def test_recall_is_measured_for_the_subject_and_for_every_module(families, tokenizer):  # noqa: F811
    net, questions, _ = families["mdm"]
    table = timing.measure_recall(net, tokenizer, questions, SAMPLING, STEPS, Timing(3, 1))
    subject = table[table.kind == "subject"]
    assert len(subject) == 2 * 3 * len(questions) and set(subject.step) == {0, 2, 4}
    clean = subject[
        ((subject.corrupted == "from") & (subject.step == STEPS))
        | ((subject.corrupted == "until") & (subject.step == 0))
    ]
    assert (clean.value == 1).all()
    modules = table[table.kind != "subject"]
    assert len(modules) == 2 * net.config.num_hidden_layers and set(modules.step) == {0}
    assert set(modules.fact) == {questions[0].row.fact}


def test_the_table_of_time_has_effects_and_recall():
    table = time_tables.aggregate(make_time_values("abcd", layers=1), model="m", seed=1, split="p2d_same")
    assert list(table.columns) == time_tables.COLUMNS
    effect = table[(table.reading == "sequential") & (table.stage == "t1") & (table.corrupted == "subject")]
    assert effect["mean"].item() == pytest.approx(np.mean([20 + i for i in range(4)])) and effect.n.item() == 4
    change = table[table.reading == "per_token"]["mean"].item()  # three tokens at t1, one at t2
    assert change == pytest.approx(3.5 - 21.5 / 3)
    recall = table[(table.reading == "recall") & (table.kind == "subject") & (table.step == 0)].set_index("corrupted")
    assert recall["mean"]["from"] == 0 and recall["mean"]["until"] == 1
    assert 0 < recall.ci_high["from"] < 1  # of four people


def test_nothing_traced_gives_an_empty_table():
    empty = pd.DataFrame(columns=timing.COLUMNS)
    assert time_tables.aggregate(empty, model="m", seed=1, split="p2d_same").empty


def test_invalid_settings_are_rejected_in_one_line():
    with pytest.raises(ValueError, match="starts is 1"):
        Timing(starts=1)
