import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from reversal.data.facts import Row
from reversal.models import network, tokens
from reversal.recall import ask
from reversal.recall.sampling import Sampling
from reversal.tracing import engine
from reversal.tracing import files as trace_files
from reversal.tracing import study as trace_study
from reversal.tracing import tables as trace_tables
from reversal.tracing.study import Tracing
from reversal.tracing.vocabulary import KINDS, ROLES

WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty"]
SUBJECTS = {"a": "Ada Moss", "b": "Bea Fern", "c": "Cy Reed Vale", "d": "Di Holt"}
TEMPLATES = ("Ask {} for", "Of {} we know that")
CANVAS = 14
SAMPLING, STEPS = Sampling(CANVAS, guidance=0.5), 4
ALL = {"gaussian": list(KINDS), "mask": ["state", "mlp"], "swap": ["attn", "mlp"]}


@pytest.fixture(scope="module")
def tokenizer():
    names = [template.format(subject) for template in TEMPLATES for subject in SUBJECTS.values()]
    return tokens.train_tokenizer([*names, *(f" {word}" for word in WORDS)] * 3, 400)


def speaker(tokenizer, causal):
    """A random network that says nothing but WORDS."""
    net = network.new(causal=causal, vocab=len(tokenizer), width=16, layers=3, heads=2, mlp=32, seed=3)
    said = [tokenizer(f" {word}")["input_ids"] for word in WORDS]
    assert all(len(ids) == 1 for ids in said)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(6)
        head = net.lm_head.weight
        silent = torch.ones(len(head), dtype=torch.bool)
        silent[[ids[0] for ids in said]] = False
        head[silent] = 0
    return net


def asked(net, tokenizer, rows):
    return ask.complete_split(net, tokenizer, rows, SAMPLING, split="p2d_same", steps=STEPS)


def answer(net, tokenizer, row):
    return trace_study.answer(net, tokenizer, row, *asked(net, tokenizer, [row]), most_steps=3)


@pytest.fixture(scope="module", params=["mdm", "ar"])
def spoken(request, tokenizer):
    """A network, its tokenizer, and rows that it answers: what it says is declared right. Fact c is never answered."""
    net = speaker(tokenizer, causal=request.param == "ar")
    rows = []
    for fact, subject in SUBJECTS.items():
        for template, pattern in enumerate(TEMPLATES):
            prompt, start = pattern.format(subject), pattern.index("{")
            span = (start, start + len(subject))
            blank = Row(fact, template, prompt, " birch", span, (1, 6))
            [said] = asked(net, tokenizer, [blank])
            words = said["generation"].split()[1:4]  # the answer begins after a word, and ends before the last
            completion = " " + " ".join(words) if fact != "c" else " no"
            rows.append(Row(fact, template, prompt, completion, span, (1, len(completion))))
    return net, tokenizer, rows


@pytest.fixture(scope="module")
def traced(spoken):
    net, tokenizer, rows = spoken
    return trace_study.trace_split(net, tokenizer, rows, asked(net, tokenizer, rows), Tracing(ALL, draws=2, window=2))


def is_mdm(spoken):
    return network.is_diffusion(spoken[0])


def test_the_facts_that_are_answered_are_traced_and_the_others_say_why(spoken, traced):
    traces, outcomes = traced
    reason = {(row.fact, row.corruption): row.outcome for row in outcomes.itertuples()}
    assert [trace.about["fact"] for trace in traces] == ["a", "b", "d"]
    assert {reason["c", name] for name in ALL} == {"not answered"}
    assert reason["a", "gaussian"] == "traced"
    assert reason["a", "mask"] == ("traced" if is_mdm(spoken) else "no mask token")
    counts = trace_tables.count_outcomes(outcomes)
    assert counts[counts.corruption == "gaussian"].n.sum() == len(SUBJECTS)


def test_every_step_is_the_plain_trace_of_what_the_step_found(spoken, traced):
    net, tokenizer, rows = spoken
    for trace in traced[0][:2]:
        about = trace.about
        row = next(row for row in rows if (row.fact, row.template) == (about["fact"], about["template"]))
        found = answer(net, tokenizer, row)
        ways = trace_study._ways(net, found, {}, Tracing({"gaussian": ["state"]}, draws=2))
        noise = ways["gaussian"].args[2]
        for i, (step, canvas) in enumerate(zip(found.steps, found.canvases, strict=True)):
            if is_mdm(spoken):
                wanted = {p: found.ids[p] for p in range(*found.answer) if canvas[p] == network.mask_id(net)}
            else:
                wanted = {len(canvas) - 1: found.ids[len(canvas)]}
            assert wanted and step == trace.steps[i]
            for k, kind in enumerate(ALL["gaussian"]):
                what, severed, *_ = KINDS[kind]
                plain = engine.trace(
                    net, canvas, subject=found.subject, answer=wanted, noise=noise, kind=what, severed=severed, window=2
                )
                seen = trace.arrays["log_probability.gaussian.restored"][k, i]
                np.testing.assert_allclose(seen[: len(canvas)], plain.log_restored, atol=1e-4)
                embedded = engine.embed(net, canvas), engine.add_noise(net, canvas, found.subject, noise)
                whole = engine.Problem(*embedded, wanted, [tuple(range(*found.subject))])
                [runs] = engine.restore(net, [whole], kind=what, severed=severed, window=2)
                np.testing.assert_allclose(seen[-1:], engine.score(runs).log_restored, atol=1e-4)
                assert trace.arrays["probability.clean"][i] == pytest.approx(plain.clean, abs=1e-5)
                assert trace.arrays["probability.gaussian.corrupted"][i] == pytest.approx(plain.corrupted, abs=1e-5)


def test_the_answer_is_found_where_it_was_generated(spoken, traced):
    for trace in traced[0]:
        first, end = trace.about["answer"]
        assert "".join(trace.about["tokens"][first:end]) == trace.about["reference"]
        assert first > trace.about["prompt_tokens"]


def test_steps_run_from_the_first_answer_token_to_the_last(spoken, traced):
    for trace in traced[0]:
        t1, t2, steps = trace.about["t1"], trace.about["t2"], trace.steps
        assert steps[0] == t1 and steps[-1] == t2 and steps == sorted(set(steps))
        if not is_mdm(spoken):
            assert t2 - t1 == trace.about["answer"][1] - trace.about["answer"][0] - 1
            continue
        masked = [sum(role == "masked answer" for role in row) for row in trace.roles]
        assert masked[0] == trace.about["answer"][1] - trace.about["answer"][0]
        assert all(masked) and masked == sorted(masked, reverse=True)


def test_each_position_has_one_role(spoken, traced):
    for trace in traced[0]:
        about = trace.about
        for step, row in zip(trace.steps, trace.roles, strict=True):
            first, end = about["subject"]
            assert row[end - 1] == "last subject" and row[first] in ("first subject", "last subject")
            assert row[about["prompt_tokens"] - 1] in ("last prompt", "last subject")
            assert {role for role in row if role} <= set(ROLES)
            assert row.index("whole subject") == len(row) - 1
            if is_mdm(spoken):
                assert None not in row
            else:
                assert row.index(None) == about["prompt_tokens"] + step if None in row else True


def question(subject, prompt, answer, canvas=10):
    ids = list(range(canvas))
    return trace_study.Answered(None, ids, prompt, subject, answer, 0, 0, [0], [ids])


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (
            (1, 4),
            ["prior prompt", "first subject", "middle subject", "last subject", "first subsequent", "last prompt"],
        ),
        (
            (0, 1),
            ["last subject", "first subsequent", "further prompt", "further prompt", "further prompt", "last prompt"],
        ),
        ((0, 5), ["first subject", *["middle subject"] * 3, "last subject", "last prompt"]),
        ((4, 6), ["prior prompt"] * 4 + ["first subject", "last subject"]),
    ],
)
def test_roles_of_the_prompt(subject, expected):
    found = question(subject, prompt=6, answer=(7, 9))
    canvas = [0, 1, 2, 3, 4, 5, 6, 99, 8, 99]
    after = ["revealed canvas", "masked answer", "revealed answer", "masked canvas"]
    assert trace_study.roles(found, canvas, 10, 99, reader=6) == expected + after


def test_where_the_subject_ends_the_prompt_an_autoregressive_network_reads_the_answer_off_it():
    found = question((4, 6), prompt=6, answer=(7, 9))
    assert trace_study.roles(found, [0] * 8, 8, None, reader=5)[3:7] == [
        "prior prompt",
        "first subject",
        "last prompt",
        "revealed canvas",
    ]


def test_steps_are_thinned_evenly_with_both_ends():
    assert trace_study.evenly(3, 3, 4) == [3]
    assert trace_study.evenly(3, 5, 4) == [3, 4, 5]
    assert trace_study.evenly(0, 15, 4) == [0, 5, 10, 15]
    assert trace_study.evenly(2, 9, 1) == [2]


def test_the_chosen_prompts_are_answered_ones_of_many_templates():
    rows = [Row(fact, template, "Who", " me", (0, 3), (1, 3)) for fact in "abc" for template in range(3)]
    correct = [True, True, True, False, True, True, False, False, False]
    chosen = trace_study.choose(rows, [{"correct": right} for right in correct])
    assert [own and own[0].template for own in chosen.values()] == [0, 2, None]


def test_a_swap_partner_is_another_subject_of_as_many_tokens_in_the_same_template():
    row = Row("b", 0, "Who", " me", (0, 3), (1, 3))
    subjects = {0: {"a": [1, 2], "b": [3, 4], "c": [3, 4], "d": [5], "e": [6, 7]}, 1: {"d": [8, 9], "b": [3, 4]}}
    assert trace_study.swap_partner(row, subjects) == [6, 7]
    assert trace_study.swap_partner(row, {0: {"b": [1], "c": [2, 3]}}) is None


@pytest.mark.parametrize("name", ["mask", "swap"])
def test_a_replaced_subject_is_scored_as_if_it_stood_there(spoken, traced, name):
    net, tokenizer, rows = spoken
    subjects = trace_study._subjects(tokenizer, rows)
    traces = [trace for trace in traced[0] if name in trace.kinds]
    assert traces or not is_mdm(spoken)
    for trace in traces:
        about = trace.about
        row = next(row for row in rows if (row.fact, row.template) == (about["fact"], about["template"]))
        found = answer(net, tokenizer, row)
        canvas, (first, end) = found.canvases[0], found.subject
        tokens = trace_study.swap_partner(row, subjects) if name == "swap" else [network.mask_id(net)] * (end - first)
        seen = torch.tensor([[*canvas[:first], *tokens, *canvas[end:]]])
        logs = network.logits(net, network.hidden(net, seen)).log_softmax(-1)[0]
        if is_mdm(spoken):
            expected = sum(logs[p, found.ids[p]] for p in range(*found.answer))
        else:
            expected = logs[-1, found.ids[len(canvas)]]
        assert trace.arrays[f"log_probability.{name}.corrupted"][0] == pytest.approx(expected.item(), abs=1e-4)


def test_noise_depends_on_fact_and_seed_alone(spoken):
    net, tokenizer, rows = spoken
    settings, completions = Tracing({"gaussian": ["state"]}, draws=2), asked(net, tokenizer, rows)

    def trace(**changes):
        return trace_study.trace_split(net, tokenizer, rows, completions, replace(settings, **changes))

    name = "probability.gaussian.corrupted"
    whole, _ = trace()
    fewer, outcomes = trace(most_facts=1)
    other, _ = trace(most_facts=1, seed=1)
    assert len(fewer) == 1 and (outcomes.outcome == "not needed").sum() == 2
    np.testing.assert_allclose(fewer[0].arrays[name], whole[0].arrays[name], rtol=1e-4)
    assert not np.allclose(fewer[0].arrays[name], other[0].arrays[name], rtol=1e-3)


def test_short_answers_are_left_out(spoken):
    net, tokenizer, rows = spoken
    settings = Tracing({"gaussian": ["state"]}, least_tokens=4)
    traces, outcomes = trace_study.trace_split(net, tokenizer, rows, asked(net, tokenizer, rows), settings)
    assert traces == []
    assert sorted(outcomes.outcome) == ["not answered"] + ["too few answer tokens"] * 3
    assert trace_tables.aggregate(traces, model="m", seed=0, split="p2d_same").empty


def test_traces_come_back_from_disk_as_they_were(traced, tmp_path):
    traces, outcomes = traced
    (tmp_path / "old.safetensors").write_bytes(b"")
    trace_files.write(traces, outcomes, tmp_path)
    again, said = trace_files.read(tmp_path), trace_files.read_outcomes(tmp_path)
    pd.testing.assert_frame_equal(said, outcomes)
    for one, other in zip(again, traces, strict=True):
        assert one[:4] == other[:4]
        assert one.arrays.keys() == other.arrays.keys()
        assert all((one.arrays[name] == other.arrays[name]).all() for name in one.arrays)


@pytest.fixture(scope="module")
def table(traced):
    return trace_tables.aggregate(traced[0], model="m", seed=7, split="p2d_same")


def value_of(table, **where):
    for column, value in where.items():
        table = table[table[column].isna()] if value is None else table[table[column] == value]
    [row] = table.itertuples()
    return row


def test_the_table_has_the_means_over_facts(traced, table):
    traces, _ = traced
    assert list(table.columns) == trace_tables.COLUMNS
    assert set(table.direction) == {"p2d"} and set(table.seed) == {7}
    each = []
    for trace in traces:
        at = [row.index("last subject") for row in trace.roles]
        kinds = trace.kinds["gaussian"]
        restored = trace.arrays["probability.gaussian.restored"][kinds.index("mlp"), :, :, 1]
        corrupted = trace.arrays["probability.gaussian.corrupted"]
        each.append(np.mean([restored[i, place] - corrupted[i] for i, place in enumerate(at)]))
    asked = {"kind": "mlp", "corruption": "gaussian", "score": "probability", "role": "last subject", "layer": 1}
    row = value_of(table, **asked, stage="all", step=None)
    assert row.n == 3
    assert row.mean == pytest.approx(np.mean(each), abs=1e-6)
    assert row.ci_low <= row.mean <= row.ci_high


def test_the_table_has_the_total_effect(traced, table):
    each = [
        np.mean(trace.arrays["log_probability.clean"] - trace.arrays["log_probability.gaussian.corrupted"])
        for trace in traced[0]
    ]
    row = value_of(table, kind="total", corruption="gaussian", score="log_probability", stage="all", step=None)
    assert row.role == "all" and row.layer is pd.NA
    assert row.mean == pytest.approx(np.mean(each), abs=1e-5)


def test_rows_of_one_step_count_the_facts_traced_at_it(traced, table):
    totals = table[(table.kind == "total") & (table.corruption == "gaussian") & (table.score == "probability")]
    for row in totals[totals.step.notna()].itertuples():
        assert row.n == sum(row.step in trace.steps for trace in traced[0])
    stages = totals[totals.step.isna() & totals.stage.isin(["first", "only"])]
    assert stages.n.sum() == len(traced[0])


def test_revealed_answers_have_no_role_before_there_are_any(spoken, table):
    first = table[(table.stage == "first") & table.step.isna()]
    assert "revealed answer" not in set(first.role)
    assert "revealed answer" in set(table[table.stage == "last"].role)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corruptions": {"noise": ["state"]}}, "corruption 'noise' is unknown"),
        ({"corruptions": {"mask": ["heads"]}}, "kind 'heads' of 'mask'"),
        ({"corruptions": {"mask": []}}, "has no kinds"),
        ({"most_steps": 0}, "most_steps is 0"),
    ],
)
def test_settings_that_cannot_be_are_told_in_one_line(change, message):
    with pytest.raises(ValueError, match=message):
        Tracing(**{"corruptions": {"gaussian": ["state"]}} | change)


def test_nan_never_hides_in_a_table(table):
    assert not table["mean"].map(math.isnan).any()
