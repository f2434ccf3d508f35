"""At which steps a subject is needed: corrupted at some of them, with revealed tokens, or restored at one of them."""

import numpy as np
import pandas as pd
import pytest
import torch
from test_trace_study import SAMPLING, STEPS, complete, make_answered_rows, make_speaker, tokenizer  # noqa: F401
from trace_fixtures import make_time_values

from reversal.models import network
from reversal.recall import autoregressive, evaluation, masked
from reversal.tracing import engine, time_tables
from reversal.tracing import time as timing
from reversal.tracing.study import Tracing, trace_split
from reversal.tracing.time import StepView, Timing


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


def swap_prompt(question):
    return timing._swap_subject(question, question.ids[: question.prompt])


def generate(net, questions, view):
    return timing._generate(net, [(question, view) for question in questions], SAMPLING, STEPS).canvas.tolist()


def denoise(net, prompts):
    return masked.denoise_each(net, prompts, SAMPLING, [STEPS])[STEPS].canvas.tolist()


def test_corruption_from_the_first_step_equals_a_corrupted_prompt_and_after_the_last_changes_nothing(families):
    net, questions, _ = families["mdm"]
    corrupted = generate(net, questions, timing.corrupt_from(0))
    expected = denoise(net, [swap_prompt(question) for question in questions])
    for question, ids, other in zip(questions, corrupted, expected, strict=True):
        assert ids[question.prompt :] == other[question.prompt :]
    assert generate(net, questions, timing.corrupt_until(STEPS)) == corrupted
    clean = [question.ids for question in questions]
    for view in (timing.corrupt_from(STEPS), timing.corrupt_until(0), timing.corrupt_from(STEPS, ("mlp", 0))):
        assert generate(net, questions, view) == clean


def test_corruption_after_t2_keeps_the_answer_and_until_is_the_complement_of_from(families):
    net, questions, _ = families["mdm"]
    for question in questions:
        [ids] = generate(net, [question], timing.corrupt_from(question.t2 + 1))
        assert ids[slice(*question.answer)] == question.ids[slice(*question.answer)]
    for k in range(STEPS + 1):
        for step in range(STEPS):
            assert timing.corrupt_from(k)(step).corrupted != timing.corrupt_until(k)(step).corrupted


def test_a_corrupted_module_has_its_output_for_the_other_prompt_at_the_subject(families):
    """The predictor against two plain forward passes with hooks."""
    net, questions, _ = families["mdm"]
    question = questions[0]
    canvas, _ = question.step_input(net, question.t1)
    other = timing._swap_subject(question, canvas)
    for kind, layer in (("mlp", 1), ("attn", 0), ("state", 1)):
        corruption = timing.SubjectCorruption(
            range(*question.subject), question.partner.subject, lambda step, site=(kind, layer): StepView(False, site)
        )
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


def test_restoring_a_site_at_one_step_equals_the_restored_run_of_the_trace(families):
    net, questions, traces = families["mdm"]
    question, trace = questions[0], traces[0]
    canvas, positions = question.step_input(net, question.t1)
    view = timing.restore_at(question.t1, ("state", 0))
    corruption = timing.SubjectCorruption(range(*question.subject), question.partner.subject, view)
    states = timing.make_predictor(net, [corruption])(torch.tensor([canvas]), [0], [question.t1])
    logs = network.logits(net, states[0]).log_softmax(-1)
    score = sum(logs[position, token] for position, token in question.answer_pairs(net, positions)).item()
    expected = trace.scores("swap", "state")[0, trace.roles[0].index("all subject tokens"), 0]
    assert score == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("family", ["mdm", "ar"])
def test_total_effects_are_those_of_canvases_with_replaced_tokens(families, family):
    net, questions, traces = families[family]
    table = timing.measure_total_effects(net, questions)
    for question, trace in zip(questions, traces, strict=True):
        rows = table[table.fact == question.row.fact]
        assert set(rows.step) == set(question.answer_steps)
        for reading, score in (("total_effect", "log_probability"), ("sequential", "sequential")):
            for corrupted, name in (("neither", "clean"), ("subject", "swap.corrupted")):
                scored = rows[(rows.reading == reading) & (rows.corrupted == corrupted)].set_index("step").value
                for step, value in zip(trace.steps, trace.arrays[f"{score}.{name}"], strict=True):
                    assert step not in scored or scored[step] == pytest.approx(value, abs=1e-3)
        later = rows[rows.corrupted == "revealed"]
        assert set(later.kind) <= {"mask", "swap"} and (family == "mdm") == ("mask" in set(later.kind))
        assert "t1" not in set(later.stage)
        for row in later[(later.kind == "mask") & (later.reading == "total_effect")].itertuples():
            canvas, remaining = question.step_input(net, row.step)
            revealed = [position for position in range(*question.answer) if position not in remaining]
            canvas = timing.replace_tokens(canvas, revealed, [network.mask_id(net)] * len(revealed))
            logs = network.logits(net, network.hidden(net, torch.tensor([canvas]))).log_softmax(-1)[0]
            expected = sum(logs[position, token] for position, token in question.answer_pairs(net, remaining))
            assert row.value == pytest.approx(expected.item(), abs=1e-3)


def test_recall_is_measured_for_the_subject_and_for_every_module(families, tokenizer):  # noqa: F811
    net, questions, _ = families["mdm"]
    table = timing.measure_recall(net, tokenizer, questions, SAMPLING, STEPS, Timing(3, 2, 1))
    subject = table[table.kind == "subject"]
    assert len(subject) == 2 * 3 * len(questions) and set(subject.step) == {0, 2, 4}
    clean = subject[
        ((subject.corrupted == "from") & (subject.step == STEPS))
        | ((subject.corrupted == "until") & (subject.step == 0))
    ]
    assert (clean.value == 1).all()
    modules = table[table.kind != "subject"]
    assert len(modules) == 2 * net.config.num_hidden_layers * 2
    assert set(modules.fact) == {questions[0].row.fact}


def test_an_autoregressive_answer_continues_from_its_tokens_before_the_corruption(families, tokenizer):  # noqa: F811
    net, questions, _ = families["ar"]
    table = timing.measure_autoregressive_recall(net, tokenizer, questions, SAMPLING.canvas, Timing(3))
    last = table.step.max()
    assert (table[(table.corrupted == "until") & (table.step == 0)].value == 1).all()
    assert (table[(table.corrupted == "from") & (table.step == last)].value == 1).all()
    for question in questions:
        completion = autoregressive.complete(
            net, [swap_prompt(question)], new_tokens=SAMPLING.canvas - question.prompt, eos=tokenizer.eos_token_id
        ).tokens[0]
        correct = evaluation.is_correct(question.row.completion, evaluation.decode(tokenizer, completion))
        [value] = table[(table.fact == question.row.fact) & (table.corrupted == "from") & (table.step == 0)].value
        assert value == correct


def test_a_site_restored_at_t1_is_scored_on_the_canvas_that_it_wrote(families, tokenizer):  # noqa: F811
    net, questions, traces = families["mdm"]
    sites = timing.choose_sites(traces)
    assert [kind for kind, _ in sites] == ["state", "mlp"]
    table = timing.measure_restored(net, tokenizer, questions, sites, SAMPLING, STEPS)
    ends = table[table.stage == "end"]
    assert len(ends) == len(questions) * (1 + len(sites))
    for question in questions:
        for step in question.steps[1:]:
            rows = table[(table.fact == question.row.fact) & (table.step == step)]
            canvas, positions = question.step_input(net, step)
            ids = torch.tensor([timing._swap_subject(question, canvas)])
            logs = network.logits(net, network.hidden(net, ids)).log_softmax(-1)[0]
            expected = sum(logs[position, token] for position, token in question.answer_pairs(net, positions)).item()
            assert rows[rows.corrupted == "neither"].value.item() == pytest.approx(expected, abs=1e-3)


def test_restoring_the_subject_in_the_last_layer_changes_nothing(families):
    net, questions, _ = families["mdm"]
    question = questions[0]
    depth = net.config.num_hidden_layers
    views = timing.corrupt_until(0), timing.corrupt_from(0), timing.restore_at(question.t1, ("state", depth - 1))
    clean, corrupted, restored = (generate(net, [question], view)[0] for view in views)
    assert restored == corrupted  # the state reaches no other position
    assert clean == question.ids


def test_the_table_of_time_has_effects_recall_and_restored_shares():
    table = time_tables.aggregate(make_time_values("abcd", layers=1), model="m", seed=1, split="p2d_same")
    assert list(table.columns) == time_tables.COLUMNS
    effect = table[(table.reading == "total_effect") & (table.stage == "t1") & (table.corrupted == "subject")]
    assert effect["mean"].item() == pytest.approx(np.mean([20 + i for i in range(4)])) and effect.n.item() == 4
    per_token = table[table.reading == "per_token"].set_index("stage")["mean"]  # three tokens at t1, one at t2
    assert per_token["t1"] == pytest.approx(21.5 / 3) and per_token["t2"] == pytest.approx(3.5)
    assert per_token["change"] == pytest.approx(3.5 - 21.5 / 3)
    recall = table[(table.reading == "recall") & (table.kind == "subject") & (table.step == 0)].set_index("corrupted")
    assert recall["mean"]["from"] == 0 and recall["mean"]["until"] == 1
    assert 0 < recall.ci_high["from"] < 1  # of four people
    restored = table[table.reading == "restored"]
    assert restored[restored.stage == "between"]["mean"].item() == pytest.approx(10 / 18)
    assert restored[(restored.stage == "end") & (restored.kind == "state")]["mean"].item() == 0.5


def test_nothing_traced_gives_an_empty_table():
    empty = pd.DataFrame(columns=timing.COLUMNS)
    assert time_tables.aggregate(empty, model="m", seed=1, split="p2d_same").empty


def test_invalid_settings_are_rejected_in_one_line():
    with pytest.raises(ValueError, match="starts is 1"):
        Timing(starts=1)
