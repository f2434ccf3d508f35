import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import trace_fixtures

from reversal.common import contrasts
from reversal.data.facts import Row
from reversal.models import network, tokens
from reversal.recall import evaluation
from reversal.recall.sampling import Sampling
from reversal.tracing import effects, engine
from reversal.tracing import files as trace_files
from reversal.tracing import study as trace_study
from reversal.tracing import tables as trace_tables
from reversal.tracing.study import Tracing
from reversal.tracing.vocabulary import AT_ONCE, KINDS, REVEALED, RIVAL, ROLES, TOGETHER, UNEQUAL

WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty"]
SUBJECTS = {"a": "Ada Moss", "b": "Bea Fern", "c": "Cy Reed Vale", "d": "Di Holt"}
TEMPLATES = ("Ask {} for", "Of {} we know that")
CANVAS = 14
SAMPLING, STEPS = Sampling(CANVAS, guidance=0.5), 4
ALL = {"gaussian": ["state"], "mask": ["state", "mlp"], "swap": list(KINDS)}
WINDOWS = (2, 3)


@pytest.fixture(scope="module")
def tokenizer():
    names = [template.format(subject) for template in TEMPLATES for subject in SUBJECTS.values()]
    return tokens.train_tokenizer([*names, *(f" {word}" for word in WORDS)] * 3, 400)


def speaker(tokenizer, causal, layers=3):
    """A random network that says nothing but WORDS."""
    net = network.new(causal=causal, vocab=len(tokenizer), width=16, layers=layers, heads=2, mlp=32, seed=3)
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
    return evaluation.complete_split(net, tokenizer, rows, SAMPLING, split="p2d_same", steps=STEPS)


def answer(net, tokenizer, row):
    return trace_study.answer(tokenizer, row, *asked(net, tokenizer, [row]))


def answered_rows(net, tokenizer):
    """Rows that a network answers: what it says is declared right. Fact c is never answered."""
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
    return rows


@pytest.fixture(scope="module", params=["mdm", "ar"])
def spoken(request, tokenizer):
    """A network, its tokenizer, and rows that it answers, but for those of fact c."""
    net = speaker(tokenizer, causal=request.param == "ar")
    return net, tokenizer, answered_rows(net, tokenizer)


@pytest.fixture(scope="module")
def traced(spoken):
    net, tokenizer, rows = spoken
    completions = asked(net, tokenizer, rows)
    return trace_study.trace_split(net, tokenizer, rows, completions, Tracing(ALL, draws=2, windows=WINDOWS))


def is_mdm(spoken):
    return network.is_diffusion(spoken[0])


def test_the_facts_that_are_answered_are_traced_and_the_others_say_why(spoken, traced):
    _, traces, outcomes = traced
    reason = {(row.fact, row.corruption): row.outcome for row in outcomes.itertuples()}
    assert [trace.about["fact"] for trace in traces] == ["a", "b", "d"]
    assert {reason["c", name] for name in ALL} == {"not answered"}
    assert reason["a", "gaussian"] == "traced"
    assert reason["a", "mask"] == ("traced" if is_mdm(spoken) else "no mask token")
    counts = trace_tables.count_outcomes(outcomes)
    assert counts[counts.corruption == "gaussian"].n.sum() == len(SUBJECTS)
    # Where the whole answer comes at once, nothing rests on what is revealed of it.
    at_once = {trace.about["fact"] for trace in traces if trace.about["t1"] == trace.about["t2"]}
    told = {fact for fact, beside in reason if beside == REVEALED and reason[fact, beside] == AT_ONCE}
    assert told == at_once


def the_row(rows, trace):
    about = trace.about
    return next(row for row in rows if (row.fact, row.template) == (about["fact"], about["template"]))


def test_every_step_is_the_plain_trace_of_what_the_step_found(spoken, traced):
    net, tokenizer, rows = spoken
    for found, trace in list(zip(traced[0], traced[1], strict=True))[:2]:
        corrupt = trace_study._ways(net, found, Tracing(ALL, draws=2))["swap"]
        for i, step in enumerate(found.steps):
            canvas, places = found.entering(net, step)
            wanted = found.asked(net, places)
            assert wanted and step == trace.steps[i]
            embedded = engine.embed(net, canvas), corrupt(canvas)
            subject, read = tuple(range(*found.subject)), tuple(place for place, _ in wanted)
            groups = [*((place,) for place in range(len(canvas))), subject, read]
            for kind in KINDS if i == 0 else ["state"]:
                what, severed, *_ = KINDS[kind]
                [runs] = engine.restore(
                    net, [engine.Problem(*embedded, wanted, groups)], kind=what, severed=severed, window=WINDOWS[0]
                )
                plain, seen = engine.score(runs), trace.runs("swap", kind)
                assert len(seen) == (len(found.steps) if kind == "state" else 1)
                together = slice(None) if is_mdm(spoken) or i == 0 else slice(-1)  # the AR's answer is read as a whole
                if KINDS[kind].severed:
                    together = [found.subject[1] - 1, -2, -1]
                np.testing.assert_allclose(seen[i][together], plain.log_restored[together], atol=1e-4)
                likely = trace.runs("swap", kind, score="probability")[i][together]
                np.testing.assert_allclose(likely, plain.restored[together], atol=1e-5)
                assert trace.arrays["log_probability.clean"][i] == pytest.approx(plain.log_clean, abs=1e-4)
                assert trace.arrays["log_probability.swap.corrupted"][i] == pytest.approx(plain.log_corrupted, abs=1e-4)


def test_both_families_are_asked_for_the_whole_answer_at_t1(spoken, traced):
    net, tokenizer, rows = spoken
    for found, trace in zip(traced[0], traced[1], strict=True):
        first, end = found.answer
        if is_mdm(spoken):
            canvas = found.entering(net, found.t1)[0]
            assert all(canvas[place] == network.mask_id(net) for place in range(first, end))
            logs = network.logits(net, network.hidden(net, torch.tensor([canvas]))).log_softmax(-1)[0]
            expected = sum(logs[place, found.ids[place]] for place in range(first, end))
        else:
            logs = network.logits(net, network.hidden(net, torch.tensor([found.ids]))).log_softmax(-1)[0]
            expected = sum(logs[place - 1, found.ids[place]] for place in range(first, end))
        assert trace.arrays["log_probability.clean"][0] == pytest.approx(expected.item(), abs=1e-3)


def test_a_contrast_is_between_the_true_answer_and_the_partners(spoken, traced):
    net, tokenizer, rows = spoken
    for found, trace in zip(traced[0], traced[1], strict=True):
        if found.rival is None:
            assert "contrast.clean" not in trace.arrays
            continue
        ids = found.ids[: found.answer[0]] + found.rival
        if is_mdm(spoken):
            canvas, places = found.entering(net, found.t1)
            seen, read = canvas, found.asked(net, places, found.rival)
        else:
            seen, read = ids, [(place - 1, ids[place]) for place in range(*found.answer)]
        logs = network.logits(net, network.hidden(net, torch.tensor([seen]))).log_softmax(-1)[0]
        rival = sum(logs[place, token] for place, token in read).item()
        expected = trace.arrays["log_probability.clean"][0] - rival
        assert trace.arrays["contrast.clean"][0] == pytest.approx(expected, abs=1e-3)


def test_where_all_is_restored_the_share_is_one_and_where_nothing_is_it_is_none(spoken, traced):
    _, traces, _ = traced
    for trace in traces:
        total = effects.total(trace, "swap")[0]
        whole = trace.roles[0].index("whole answer")
        returned = trace.effects("swap", "state")[0]
        assert returned[whole, -1] == pytest.approx(total, abs=1e-3)  # the last layer's states are the prediction
        assert returned[0, -1] == pytest.approx(0, abs=1e-4)  # and no other place is read there
        lost = trace.arrays["log_probability.clean"][0] - trace.runs("swap", "state", reading="necessary")[0]
        assert lost[whole, -1] == pytest.approx(total, abs=1e-3)
        assert lost[0, -1] == pytest.approx(0, abs=1e-4)


def test_on_a_network_with_one_path_what_suffices_is_what_is_needed(tokenizer):
    """Attention in the last layer alone: below it the subject holds all that is known of it, and nothing else does."""
    net = speaker(tokenizer, causal=False, layers=2)
    with torch.no_grad():
        network.attention(network.layers(net)[0]).o_proj.weight.zero_()
    rows = answered_rows(net, tokenizer)
    settings = Tracing({"swap": ["state"]})
    _, traces, _ = trace_study.trace_split(net, tokenizer, rows, asked(net, tokenizer, rows), settings)
    assert traces
    for trace in traces:
        total = effects.total(trace, "swap")[0]
        assert abs(total) > 0.01
        lost = trace.arrays["log_probability.clean"][0] - trace.runs("swap", "state", reading="necessary")[0]
        for changed in (trace.effects("swap", "state")[0], lost):
            for role, shares in (("whole subject", [1, 0]), ("whole answer", [0, 1])):
                expected = np.multiply(shares, total)
                np.testing.assert_allclose(changed[trace.roles[0].index(role)], expected, atol=1e-3)


def test_wider_windows_are_traced_at_subject_and_answer_alone(traced):
    for trace in traced[1]:
        wide = trace.runs("swap", "mlp", window=WINDOWS[1])[0]
        there = [trace.roles[0].index(role) for role in TOGETHER] + [trace.about["subject"][1] - 1]
        assert np.isfinite(wide[there]).all() and np.isnan(np.delete(wide, there, 0)).all()
        assert trace.runs("gaussian", "mlp") is None


def test_the_answer_is_found_where_it_was_generated(spoken, traced):
    for trace in traced[1]:
        first, end = trace.about["answer"]
        assert "".join(trace.about["tokens"][first:end]) == trace.about["reference"]
        assert first > trace.about["prompt_tokens"]


def test_steps_run_from_the_first_answer_token_to_the_last(spoken, traced):
    for trace in traced[1]:
        t1, t2, steps = trace.about["t1"], trace.about["t2"], trace.steps
        assert steps[0] == t1 and steps[-1] == t2 and steps == sorted(set(steps))
        if not is_mdm(spoken):
            assert t2 - t1 == trace.about["answer"][1] - trace.about["answer"][0] - 1
            continue
        masked = [sum(role == "masked answer" for role in row) for row in trace.roles]
        assert masked[0] == trace.about["answer"][1] - trace.about["answer"][0]
        assert all(masked) and masked == sorted(masked, reverse=True)


def test_each_position_has_one_role(spoken, traced):
    for trace in traced[1]:
        about = trace.about
        for row in trace.roles:
            first, end = about["subject"]
            assert row[end - 1] == "last subject" and row[first] in ("first subject", "last subject")
            assert row[about["prompt_tokens"] - 1] in ("last prompt", "last subject")
            assert set(row) <= set(ROLES)
            assert tuple(row[-2:]) == TOGETHER
            # An autoregressive network is given all of its answer but the last token.
            assert is_mdm(spoken) or len(row) - 2 == about["answer"][1] - 1


def question(subject, prompt, answer):
    return trace_study.Answered(None, {"ids": list(range(10))}, prompt, subject, answer, [0])


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
    assert trace_study.roles(found, canvas, 99, reader=6) == expected + after


def test_where_the_subject_ends_the_prompt_an_autoregressive_network_reads_the_answer_off_it():
    found = question((4, 6), prompt=6, answer=(7, 9))
    assert trace_study.roles(found, [0] * 8, None, reader=5)[3:7] == [
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
    found = question((0, 2), 6, (7, 9))._replace(row=row)
    subjects = {"a": [1, 2], "b": [3, 4], "c": [3, 4], "d": [5], "e": [6, 7], "f": [8, 9]}
    answers = {"e": [1, 2, 3], "f": [1, 2]}
    people = {fact: trace_study.Partner(ids, answers.get(fact, [0])) for fact, ids in subjects.items()}
    # One whose answer has as many tokens comes first, the next one where there is none.
    assert trace_study.swap_partner(found, {0: people, 1: {}}) == people["f"]
    assert trace_study.swap_partner(found._replace(answer=(7, 8)), {0: people}) == people["a"]
    assert trace_study.swap_partner(found, {0: {"b": people["b"], "d": people["d"]}}) is None


@pytest.mark.parametrize("name", ["mask", "swap"])
def test_a_replaced_subject_is_scored_as_if_it_stood_there(spoken, traced, name):
    net, tokenizer, rows = spoken
    for found, trace in zip(traced[0], traced[1], strict=True):
        if name not in trace.kinds:
            assert not is_mdm(spoken)
            continue
        (canvas, places), (first, end) = found.entering(net, found.t1), found.subject
        tokens = found.partner.subject if name == "swap" else [network.mask_id(net)] * (end - first)
        seen = torch.tensor([[*canvas[:first], *tokens, *canvas[end:]]])
        logs = network.logits(net, network.hidden(net, seen)).log_softmax(-1)[0]
        expected = sum(logs[place, token] for place, token in found.asked(net, places))
        assert trace.arrays[f"log_probability.{name}.corrupted"][0] == pytest.approx(expected.item(), abs=1e-3)


def test_noise_depends_on_fact_and_seed_alone(spoken):
    net, tokenizer, rows = spoken
    settings, completions = Tracing({"gaussian": ["state"]}, draws=2), asked(net, tokenizer, rows)

    def trace(**changes):
        return trace_study.trace_split(net, tokenizer, rows, completions, replace(settings, **changes))[1:]

    name = "probability.gaussian.corrupted"
    whole, _ = trace()
    fewer, outcomes = trace(max_facts=1)
    other, _ = trace(max_facts=1, seed=1)
    assert len(fewer) == 1 and (outcomes.outcome == "not needed").sum() == 2
    np.testing.assert_allclose(fewer[0].arrays[name], whole[0].arrays[name], rtol=1e-4)
    assert not np.allclose(fewer[0].arrays[name], other[0].arrays[name], rtol=1e-3)


def test_what_cannot_be_traced_is_told_and_stops_nothing(spoken):
    net, tokenizer, rows = spoken
    completions = asked(net, tokenizer, rows)

    def outcomes(rows, completions, **changes):
        settings = Tracing(**{"corruptions": {"swap": ["state"]}} | changes)
        found, traces, told = trace_study.trace_split(net, tokenizer, rows, completions, settings)
        assert trace_tables.aggregate({"p2d_same": traces}, model="m", seed=0).empty == (not traces)
        return traces, {(row.fact, row.corruption): row.outcome for row in told.itertuples()}

    traces, short = outcomes(rows, completions, min_answer_tokens=4)
    assert traces == [] and sorted(short.values()) == ["not answered"] + ["too few answer tokens"] * 3
    traces, alone = outcomes(rows[:2], completions[:2], corruptions={"swap": ["state"], "gaussian": ["state"]})
    assert alone["a", "swap"] == alone["a", RIVAL] == "no swap partner" and alone["a", "gaussian"] == "traced"
    assert list(traces[0].kinds) == ["gaussian"]
    traces, empty = outcomes([], [])
    assert traces == [] and empty == {}


def test_a_rival_answer_of_another_length_is_told_as_such(spoken):
    net, tokenizer, rows = spoken
    longer = [
        replace(row, completion=" birch cedar delta ember", answer=(1, 24)) if row.fact != "a" else row for row in rows
    ]
    completions = [
        one | {"correct": row.fact == "a"} for row, one in zip(rows, asked(net, tokenizer, rows), strict=True)
    ]
    _, _, told = trace_study.trace_split(net, tokenizer, longer, completions, Tracing({"swap": ["state"]}))
    assert list(told[told.corruption == RIVAL].outcome) == [UNEQUAL]


def test_traces_come_back_from_disk_as_they_were(traced, tmp_path):
    _, traces, outcomes = traced
    (tmp_path / "old.safetensors").write_bytes(b"")
    needed = pd.DataFrame({"fact": ["a"], "value": [0.5]})
    trace_files.write(traces, outcomes, needed, tmp_path)
    again, said = trace_files.read(tmp_path), trace_files.read_outcomes(tmp_path)
    pd.testing.assert_frame_equal(said, outcomes)
    pd.testing.assert_frame_equal(trace_files.read_time(tmp_path), needed)
    for one, other in zip(again, traces, strict=True):
        assert one[:5] == other[:5]
        assert one.arrays.keys() == other.arrays.keys()
        assert all(np.array_equal(one.arrays[name], other.arrays[name], equal_nan=True) for name in one.arrays)


@pytest.fixture(scope="module")
def table(traced):
    return trace_tables.aggregate({"p2d_same": traced[1]}, model="m", seed=7)


def value_of(table, **where):
    for column, value in where.items():
        table = table[table[column].isna()] if value is None else table[table[column] == value]
    [row] = table.itertuples()
    return row


def test_the_table_has_means_over_facts_and_ratios_of_means(traced, table):
    _, traces, _ = traced
    assert list(table.columns) == trace_tables.COLUMNS
    assert set(table.direction) == {"p2d"} and set(table.seed) == {7}
    returned, lost, costs = [], [], []
    for trace in traces:
        place, low = trace.roles[0].index("last subject"), trace.arrays["log_probability.swap.corrupted"][0]
        returned.append(trace.runs("swap", "mlp")[0, place, 1] - low)
        clean = trace.arrays["log_probability.clean"][0]
        lost.append(clean - trace.runs("swap", "mlp", reading="necessary")[0, place, 1])
        costs.append(clean - low)
    site = {"kind": "mlp", "corruption": "swap", "score": "log_probability", "role": "last subject", "layer": 1}
    site |= {"stage": "t1", "window": WINDOWS[0]}
    row = value_of(table, **site, reading="indirect")
    assert row.n == 3 and row.mean == pytest.approx(np.mean(returned), abs=1e-4)
    assert row.ci_low <= row.mean <= row.ci_high
    whole = {"corruption": "swap", "score": "log_probability", "stage": "t1", "reading": "whole"}
    total = value_of(table, **whole, kind="total")
    assert total.role == "all" and total.layer is pd.NA
    assert total.mean == pytest.approx(np.mean(costs), abs=1e-4)
    if contrasts.verdict(total.ci_low, total.ci_high) != "unclear":  # a share of nothing is none
        share, needed = (value_of(table, **site, reading=reading).mean for reading in ("recovered", "necessary"))
        assert share == pytest.approx(np.sum(returned) / np.sum(costs), abs=1e-4)
        assert needed == pytest.approx(np.sum(lost) / np.sum(costs), abs=1e-4)


def test_the_same_people_asked_both_ways_are_compared_fact_by_fact():
    rng = np.random.default_rng(0)
    forward, reverse = ([trace_fixtures.trace(fact, rng=rng) for fact in facts] for facts in ("abcd", "bcde"))
    table = trace_tables.aggregate({"p2d_same": forward, "p2d_reverse": reverse}, model="m", seed=1)
    rows = table[(table.reading == "turned") & (table.kind == "state") & (table.role == "last subject")]
    place = trace_fixtures.SOME_ROLES.index("last subject")
    gaps = [
        forward[i + 1].effects("swap", "state")[0, place, 0] - reverse[i].effects("swap", "state")[0, place, 0]
        for i in range(3)
    ]
    row = value_of(rows, split="p2d_same", layer=0)
    assert row.n == 3 and row.mean == pytest.approx(np.mean(gaps), abs=1e-4)
    assert value_of(rows, split="p2d_reverse", layer=0).mean == pytest.approx(-row.mean)


def test_a_site_that_most_people_lack_is_not_compared_and_all_others_are_at_once():
    rng = np.random.default_rng(0)
    roles = ["first subsequent", *trace_fixtures.SOME_ROLES[1:]]
    traces = [
        [trace_fixtures.trace(f, rng=rng, roles=roles if f == "a" else trace_fixtures.SOME_ROLES) for f in "abcd"]
    ]
    traces += [[trace_fixtures.trace(fact, rng=rng, roles=roles) for fact in "abcd"]]
    table = trace_tables.aggregate(dict(zip(("p2d_same", "p2d_reverse"), traces, strict=True)), model="m", seed=1)
    rows = table[(table.reading == "turned") & (table.kind == "state") & (table.split == "p2d_same")]
    assert "first subsequent" not in set(rows.role) and not set(rows.role) & set(TOGETHER)
    first, other = ([trace.effects("swap", "state")[0, 2, 0] for trace in own] for own in traces)
    alone = contrasts.mean(contrasts.Sample(np.subtract(first, other), range(4)))
    row = value_of(rows, role="last subject", layer=0)
    assert row.ci_high - row.ci_low > alone.high - alone.low


def test_answer_and_subject_are_compared_fact_by_fact_and_severed_states_with_whole_ones():
    traces = [trace_fixtures.trace(fact, rng=np.random.default_rng(i)) for i, fact in enumerate("abcd")]
    table = trace_tables.aggregate({"p2d_same": traces}, model="m", seed=1)
    of = {"corruption": "swap", "layer": 1, "stage": "t1"}
    place = trace_fixtures.SOME_ROLES.index
    states, severed = (
        np.array([t.effects("swap", kind)[0, :, 1] for t in traces]) for kind in ("state", "severed_mlp")
    )
    handed = value_of(table, **of, reading="handed")
    assert handed.mean == pytest.approx(
        np.mean(states[:, place("whole answer")] - states[:, place("whole subject")]), abs=1e-4
    )
    kept = value_of(table, **of, reading="kept", kind="severed_mlp")
    last = place("last subject")
    assert kept.mean == pytest.approx(severed[:, last].sum() / states[:, last].sum(), abs=1e-4)


def test_maps_tell_how_sure_how_concentrated_and_how_alike_they_are():
    rng = np.random.default_rng(0)
    one_site = [
        trace_fixtures.with_effects([0.0, 9.0 + i / 9], kind="state", fact=fact) for i, fact in enumerate("abcdef")
    ]
    spread = [trace_fixtures.trace(fact, rng=rng) for fact in "ghijkl"]
    splits = {"p2d_same": one_site, "d2p_reverse": spread}
    found = trace_tables.maps({1: splits, 2: splits}, model="m", rng=rng)
    states = found[(found.kind == "state") & (found.seed == 1)]
    sites = states[states.statistic == "participation"].set_index("split").value
    assert sites["p2d_same"] == pytest.approx(1) and sites["d2p_reverse"] > 3
    peaks = states[states.statistic == "peak"].set_index("split")
    assert peaks.place["p2d_same"] == "here" and peaks.layer["p2d_same"] == 1
    alike = states[(states.split == "p2d_same") & (states.statistic == "correlation")].set_index("other").value
    assert alike["seed_2"] == pytest.approx(1, abs=1e-3) and alike["d2p_reverse"] < 0.9
    assert states[(states.split == "p2d_same") & (states.statistic == "split_half")].value.item() > 0.99
    ranks = states[(states.split == "p2d_same") & (states.statistic == "rank")].set_index("other")
    assert ranks.value["seed_2"] == pytest.approx(1) and ranks.value["d2p_reverse"] < 0.9


def test_the_subjects_plateau_ends_where_its_states_return_clearly_less():
    rng = np.random.default_rng(0)
    traces = [
        trace_fixtures.with_effects(
            np.array([9, 9, 9, 2, 0]) + rng.normal(0, 0.5, 5), kind="state", role="whole subject", fact=f
        )
        for f in "abcdefgh"
    ]
    found = trace_tables.maps({1: {"p2d_same": traces}}, model="m", rng=rng)
    assert list(found[(found.statistic == "plateau") & (found.kind == "state")].layer) == [0, 1, 2]


def test_revealed_answers_have_no_role_before_there_are_any(spoken, table):
    first, last = (set(table[table.stage == stage].role) for stage in ("t1", "t2"))
    assert ("revealed answer" in first) == (not is_mdm(spoken))  # an autoregressive network is given its answer
    assert "revealed answer" in last


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corruptions": {"noise": ["state"]}}, "corruption 'noise' is unknown"),
        ({"corruptions": {"mask": ["heads"]}}, "kind 'heads' of 'mask'"),
        ({"corruptions": {"mask": []}}, "has no kinds"),
        ({"draws": 0}, "draws is 0"),
        ({"windows": []}, "windows is empty"),
    ],
)
def test_settings_that_cannot_be_are_told_in_one_line(change, message):
    with pytest.raises(ValueError, match=message):
        Tracing(**{"corruptions": {"gaussian": ["state"]}} | change)


def test_nan_never_hides_in_a_table(table):
    assert not table["mean"].map(math.isnan).any()
