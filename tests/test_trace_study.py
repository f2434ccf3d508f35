from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import trace_fixtures

from benchmarks import naive_trace
from reversal.data.facts import Row
from reversal.models import network, tokens
from reversal.recall import evaluation
from reversal.recall.sampling import Sampling
from reversal.tracing import engine
from reversal.tracing import files as trace_files
from reversal.tracing import study as trace_study
from reversal.tracing import tables as trace_tables
from reversal.tracing.study import Tracing
from reversal.tracing.vocabulary import CONTRAST, JOINT_ROLES, KINDS, OTHER_LENGTH, REVEALED, SINGLE_STEP

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


def make_speaker(tokenizer, causal, layers=3, heads=2):
    """A random network that generates only WORDS."""
    net = network.new(causal=causal, vocab=len(tokenizer), width=16, layers=layers, heads=heads, mlp=32, seed=3)
    word_ids = [tokenizer(f" {word}")["input_ids"] for word in WORDS]
    assert all(len(ids) == 1 for ids in word_ids)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(6)
        head = net.lm_head.weight
        silent = torch.ones(len(head), dtype=torch.bool)
        silent[[ids[0] for ids in word_ids]] = False
        head[silent] = 0
    return net


def complete(net, tokenizer, rows):
    """The network's completions of rows."""
    return evaluation.complete_split(net, tokenizer, rows, SAMPLING, split="p2d_same", steps=STEPS)


def make_answered_rows(net, tokenizer):
    """Rows that a network answers, because its own generation is the answer; fact c is never answered."""
    rows = []
    for fact, subject in SUBJECTS.items():
        for template, pattern in enumerate(TEMPLATES):
            prompt, start = pattern.format(subject), pattern.index("{")
            span = (start, start + len(subject))
            blank = Row(fact, template, prompt, " birch", span, (1, 6))
            [completion] = complete(net, tokenizer, [blank])
            words = completion["generation"].split()[1:4]  # the answer has words before and after it
            answer = " " + " ".join(words) if fact != "c" else " no"
            rows.append(Row(fact, template, prompt, answer, span, (1, len(answer))))
    return rows


@pytest.fixture(scope="module", params=["mdm", "ar"])
def answering(request, tokenizer):
    """A network, its tokenizer, and rows that it answers, except those of fact c."""
    net = make_speaker(tokenizer, causal=request.param == "ar")
    return net, tokenizer, make_answered_rows(net, tokenizer)


@pytest.fixture(scope="module")
def traced(answering):
    net, tokenizer, rows = answering
    completions = complete(net, tokenizer, rows)
    return trace_study.trace_split(net, tokenizer, rows, completions, Tracing(ALL, draws=2, windows=WINDOWS))


def is_mdm(answering):
    return network.is_diffusion(answering[0])


def test_answered_facts_are_traced_and_the_others_have_a_reason(answering, traced):
    _, traces, outcomes = traced
    reason = {(row.fact, row.corruption): row.outcome for row in outcomes.itertuples()}
    assert [trace.metadata["fact"] for trace in traces] == ["a", "b", "d"]
    assert {reason["c", name] for name in ALL} == {"not answered"}
    assert reason["a", "gaussian"] == "traced"
    assert reason["a", "mask"] == ("traced" if is_mdm(answering) else "no mask token")
    counts = trace_tables.count_outcomes(outcomes)
    assert counts[counts.corruption == "gaussian"].n.sum() == len(SUBJECTS)
    # An answer revealed in one step has no revealed tokens to corrupt.
    one_step = {trace.metadata["fact"] for trace in traces if trace.metadata["t1"] == trace.metadata["t2"]}
    assert one_step == {fact for fact, name in reason if name == REVEALED and reason[fact, name] == SINGLE_STEP}


def test_every_step_is_the_plain_trace_of_its_canvas(answering, traced):
    net, tokenizer, rows = answering
    for question, trace in list(zip(traced[0], traced[1], strict=True))[:2]:
        corrupt = trace_study._make_corruptions(net, question, Tracing(ALL, draws=2))["swap"]
        for i, step in enumerate(question.steps):
            canvas, positions = question.step_input(net, step)
            pairs = question.answer_pairs(net, positions)
            assert pairs and step == trace.steps[i]
            embedded = engine.embed(net, canvas), corrupt(canvas)
            subject, answer = tuple(range(*question.subject)), tuple(position for position, _ in pairs)
            groups = [*((position,) for position in range(len(canvas))), subject, answer]
            for kind in KINDS if i == 0 else ["state"]:
                [runs] = engine.restore(net, [engine.Problem(*embedded, pairs, groups)], kind=kind, window=WINDOWS[0])
                plain, scores = engine.score_runs(runs), trace.scores("swap", kind)
                assert len(scores) == (len(question.steps) if kind == "state" else 1)
                # The autoregressive network's answer positions are those of the whole answer at every step.
                places = slice(None) if is_mdm(answering) or i == 0 else slice(-1)
                np.testing.assert_allclose(scores[i][places], plain.log_restored[places], atol=1e-4)
                probability = trace.scores("swap", kind, score="probability")[i][places]
                np.testing.assert_allclose(probability, plain.restored[places], atol=1e-5)
                assert trace.arrays["log_probability.clean"][i] == pytest.approx(plain.log_clean, abs=1e-4)
                assert trace.arrays["log_probability.swap.corrupted"][i] == pytest.approx(plain.log_corrupted, abs=1e-4)


def test_the_sequential_score_equals_a_naive_loop_over_tokens_states_and_layers(answering, traced):
    """Each token in a run of its own, given those before it: in the order of reading, or in that of revealing."""
    net, tokenizer, rows = answering
    for question, trace in list(zip(traced[0], traced[1], strict=True))[:2]:
        subject, table = list(range(*question.subject)), net.get_input_embeddings().weight.detach()
        swap = table[question.partner.subject] - table[[question.ids[position] for position in subject]]
        revealed = sorted(question.completion["revealed"], key=lambda token: (token[2], -token[3]))
        for i, step in enumerate(question.steps):
            clean, corrupted, restored = 0, 0, 0
            for number, (position, _, revealed_at, _) in enumerate(revealed):
                if not (position in range(*question.answer) and revealed_at >= step):
                    continue
                seen, place = question.ids[: question.answer[1] - 1], position - 1
                if is_mdm(answering):
                    masked = {later for later, *_ in revealed[number:]}
                    seen = [network.mask_id(net) if p in masked else t for p, t in enumerate(question.ids)]
                    place = position
                options = {"subject": question.subject, "answer": {place: question.ids[position]}, "noise": swap[None]}
                runs = naive_trace.trace(net, seen, **options)
                clean, corrupted, restored = clean + runs[0], corrupted + runs[1], restored + runs[2][..., 0]
            scores = trace.scores("swap", "state", score="sequential")[i]
            np.testing.assert_allclose(scores[:-2], restored, atol=2e-3)
            assert trace.arrays["sequential.clean"][i] == pytest.approx(clean.item(), abs=2e-3)
            assert trace.arrays["sequential.swap.corrupted"][i] == pytest.approx(corrupted.item(), abs=2e-3)


def test_the_two_scores_agree_on_a_last_token_and_in_an_autoregressive_network(answering, traced):
    for question, trace in zip(traced[0], traced[1], strict=True):
        last = sum(step == question.t2 for _, _, step, _ in question.completion["revealed"]) == 1
        for name in ("clean", "swap.corrupted", "swap.restored.state.1"):
            joint, sequential = (trace.arrays[f"{score}.{name}"] for score in ("log_probability", "sequential"))
            steps = slice(-1 if last else len(joint), None) if is_mdm(answering) else slice(None)
            np.testing.assert_allclose(sequential[steps], joint[steps], atol=1e-4)


def test_a_contrast_is_between_the_true_answer_and_the_partners(answering, traced):
    net, tokenizer, rows = answering
    for question, trace in zip(traced[0], traced[1], strict=True):
        if question.contrast_answer is None:
            assert "contrast.clean" not in trace.arrays
            continue
        ids = question.ids[: question.answer[0]] + question.contrast_answer
        if is_mdm(answering):
            canvas, positions = question.step_input(net, question.t1)
            shown, pairs = canvas, question.answer_pairs(net, positions, question.contrast_answer)
        else:
            shown, pairs = ids, [(position - 1, ids[position]) for position in range(*question.answer)]
        logs = network.logits(net, network.hidden(net, torch.tensor([shown]))).log_softmax(-1)[0]
        other = sum(logs[position, token] for position, token in pairs).item()
        expected = trace.arrays["log_probability.clean"][0] - other
        assert trace.arrays["contrast.clean"][0] == pytest.approx(expected, abs=1e-3)


def test_in_the_last_layer_the_answer_positions_have_the_total_effect_and_others_none(answering, traced):
    _, traces, _ = traced
    for trace in traces:
        total = trace.total_effect("swap")[0]
        answer = trace.roles[0].index("answer positions")
        effects = trace.indirect_effects("swap", "state")[0]
        assert effects[answer, -1] == pytest.approx(total, abs=1e-3)  # the last layer's states are the prediction
        assert effects[0, -1] == pytest.approx(0, abs=1e-4)  # nothing is predicted at other positions
        necessity = trace.necessity_effects("swap", "state")[0]
        assert necessity[answer, -1] == pytest.approx(total, abs=1e-3)
        assert necessity[0, -1] == pytest.approx(0, abs=1e-4)


def test_in_a_network_with_one_path_sufficiency_equals_necessity(tokenizer):
    """With attention in the last layer alone, only the states of the subject hold information about it below."""
    net = make_speaker(tokenizer, causal=False, layers=2)
    with torch.no_grad():
        network.attention(network.layers(net)[0]).o_proj.weight.zero_()
    rows = make_answered_rows(net, tokenizer)
    settings = Tracing({"swap": ["state"]})
    _, traces, _ = trace_study.trace_split(net, tokenizer, rows, complete(net, tokenizer, rows), settings)
    assert traces
    for trace in traces:
        total = trace.total_effect("swap")[0]
        assert abs(total) > 0.01
        for effects in (trace.indirect_effects("swap", "state")[0], trace.necessity_effects("swap", "state")[0]):
            for role, shares in (("all subject tokens", [1, 0]), ("answer positions", [0, 1])):
                expected = np.multiply(shares, total)
                np.testing.assert_allclose(effects[trace.roles[0].index(role)], expected, atol=1e-3)


def test_wider_windows_are_traced_at_subject_and_answer_alone(traced):
    for trace in traced[1]:
        wide = trace.scores("swap", "mlp", window=WINDOWS[1])[0]
        places = [trace.roles[0].index(role) for role in JOINT_ROLES] + [trace.metadata["subject"][1] - 1]
        assert np.isfinite(wide[places]).all() and np.isnan(np.delete(wide, places, 0)).all()
        assert trace.scores("gaussian", "mlp") is None


def test_the_answer_is_found_where_it_was_generated(answering, traced):
    for trace in traced[1]:
        first, end = trace.metadata["answer"]
        assert "".join(trace.metadata["tokens"][first:end]) == trace.metadata["reference"]
        assert first > trace.metadata["prompt_tokens"]


def test_steps_run_from_the_first_answer_token_to_the_last(answering, traced):
    for trace in traced[1]:
        t1, t2, steps = trace.metadata["t1"], trace.metadata["t2"], trace.steps
        assert steps[0] == t1 and steps[-1] == t2 and steps == sorted(set(steps))
        if not is_mdm(answering):
            assert t2 - t1 == trace.metadata["answer"][1] - trace.metadata["answer"][0] - 1
            continue
        masked = [sum(role == "masked answer" for role in row) for row in trace.roles]
        assert masked[0] == trace.metadata["answer"][1] - trace.metadata["answer"][0]
        assert all(masked) and masked == sorted(masked, reverse=True)


def make_question(subject, prompt, answer):
    return trace_study.AnsweredQuestion(None, {"ids": list(range(10))}, prompt, subject, answer, [0])


def make_network(causal):
    return network.new(causal=causal, vocab=20, width=8, layers=1, heads=1, mlp=8, seed=0)


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
    question = make_question(subject, prompt=6, answer=(7, 9))
    net = make_network(causal=False)
    canvas = [0, 1, 2, 3, 4, 5, 6, network.mask_id(net), 8, network.mask_id(net)]
    after = ["revealed canvas", "masked answer", "revealed answer", "masked canvas"]
    assert trace_study.assign_roles(net, question, canvas) == expected + after


def test_a_last_subject_token_that_predicts_the_answer_has_the_role_last_prompt():
    question = make_question((4, 6), prompt=6, answer=(7, 9))
    expected = ["prior prompt", "first subject", "last prompt", "revealed canvas"]
    assert trace_study.assign_roles(make_network(causal=True), question, [0] * 8)[3:7] == expected


def test_steps_are_evenly_spaced_with_both_ends():
    assert trace_study.space_evenly(3, 3, 4) == [3]
    assert trace_study.space_evenly(3, 5, 4) == [3, 4, 5]
    assert trace_study.space_evenly(0, 15, 4) == [0, 5, 10, 15]
    assert trace_study.space_evenly(2, 9, 1) == [2]


def test_the_chosen_prompts_are_answered_and_take_templates_in_turn():
    rows = [Row(fact, template, "Who", " me", (0, 3), (1, 3)) for fact in "abc" for template in range(3)]
    correct = [True, True, True, False, True, True, False, False, False]
    chosen = trace_study.choose_prompts(rows, [{"correct": right} for right in correct])
    assert [pair and pair[0].template for pair in chosen.values()] == [0, 2, None]


def test_a_swap_partner_is_another_subject_of_as_many_tokens_in_the_same_template():
    row = Row("b", 0, "Who", " me", (0, 3), (1, 3))
    question = make_question((0, 2), 6, (7, 9))._replace(row=row)
    subjects = {"a": [1, 2], "b": [3, 4], "c": [3, 4], "d": [5], "e": [6, 7], "f": [8, 9]}
    answers = {"e": [1, 2, 3], "f": [1, 2]}
    people = {fact: trace_study.Partner(ids, answers.get(fact, [0])) for fact, ids in subjects.items()}
    # A partner whose answer has as many tokens is preferred; without any, the next fact is taken.
    assert trace_study.choose_partner(question, {0: people, 1: {}}) == people["f"]
    assert trace_study.choose_partner(question._replace(answer=(7, 8)), {0: people}) == people["a"]
    assert trace_study.choose_partner(question, {0: {"b": people["b"], "d": people["d"]}}) is None


@pytest.mark.parametrize("name", ["mask", "swap"])
def test_a_replaced_subject_has_the_score_of_its_prompt(answering, traced, name):
    net, tokenizer, rows = answering
    for question, trace in zip(traced[0], traced[1], strict=True):
        if name not in trace.kinds:
            assert not is_mdm(answering)
            continue
        (canvas, positions), (first, end) = question.step_input(net, question.t1), question.subject
        tokens = question.partner.subject if name == "swap" else [network.mask_id(net)] * (end - first)
        ids = torch.tensor([[*canvas[:first], *tokens, *canvas[end:]]])
        logs = network.logits(net, network.hidden(net, ids)).log_softmax(-1)[0]
        expected = sum(logs[position, token] for position, token in question.answer_pairs(net, positions))
        assert trace.arrays[f"log_probability.{name}.corrupted"][0] == pytest.approx(expected.item(), abs=1e-3)


def test_noise_depends_on_fact_and_seed_alone(answering):
    net, tokenizer, rows = answering
    settings, completions = Tracing({"gaussian": ["state"]}, draws=2), complete(net, tokenizer, rows)

    def trace(**changes):
        return trace_study.trace_split(net, tokenizer, rows, completions, replace(settings, **changes))[1:]

    name = "probability.gaussian.corrupted"
    every, _ = trace()
    fewer, outcomes = trace(max_facts=1)
    other, _ = trace(max_facts=1, seed=1)
    assert len(fewer) == 1 and (outcomes.outcome == "not needed").sum() == 2
    np.testing.assert_allclose(fewer[0].arrays[name], every[0].arrays[name], rtol=1e-4)
    assert not np.allclose(fewer[0].arrays[name], other[0].arrays[name], rtol=1e-3)


def test_untraceable_facts_have_a_reason_and_are_no_error(answering):
    net, tokenizer, rows = answering
    completions = complete(net, tokenizer, rows)

    def trace(rows, completions, **changes):
        settings = Tracing(**{"corruptions": {"swap": ["state"]}} | changes)
        _, traces, table = trace_study.trace_split(net, tokenizer, rows, completions, settings)
        assert trace_tables.aggregate({"p2d_same": traces}, model="m", seed=0).empty == (not traces)
        return traces, {(row.fact, row.corruption): row.outcome for row in table.itertuples()}

    traces, short = trace(rows, completions, min_answer_tokens=4)
    assert traces == [] and sorted(short.values()) == ["not answered"] + ["too few answer tokens"] * 3
    traces, alone = trace(rows[:2], completions[:2], corruptions={"swap": ["state"], "gaussian": ["state"]})
    assert alone["a", "swap"] == alone["a", CONTRAST] == "no swap partner" and alone["a", "gaussian"] == "traced"
    assert list(traces[0].kinds) == ["gaussian"]
    traces, empty = trace([], [])
    assert traces == [] and empty == {}


def test_a_partners_answer_of_another_length_is_an_outcome_of_its_own(answering):
    net, tokenizer, rows = answering
    longer = [
        replace(row, completion=" birch cedar delta ember", answer=(1, 24)) if row.fact != "a" else row for row in rows
    ]
    completions = [
        completion | {"correct": row.fact == "a"}
        for row, completion in zip(rows, complete(net, tokenizer, rows), strict=True)
    ]
    _, _, outcomes = trace_study.trace_split(net, tokenizer, longer, completions, Tracing({"swap": ["state"]}))
    assert list(outcomes[outcomes.corruption == CONTRAST].outcome) == [OTHER_LENGTH]


def test_traces_on_disk_are_read_unchanged(traced, tmp_path):
    _, traces, outcomes = traced
    (tmp_path / "old.safetensors").write_bytes(b"")
    values = pd.DataFrame({"fact": ["a"], "value": [0.5]})
    trace_files.write(traces, {"outcomes": outcomes, "time": values}, tmp_path)
    pd.testing.assert_frame_equal(trace_files.read_table(tmp_path, "outcomes"), outcomes)
    pd.testing.assert_frame_equal(trace_files.read_table(tmp_path, "time"), values)
    for read, written in zip(trace_files.read(tmp_path), traces, strict=True):
        assert read[:5] == written[:5]
        assert read.arrays.keys() == written.arrays.keys()
        assert all(np.array_equal(read.arrays[name], written.arrays[name], equal_nan=True) for name in read.arrays)


@pytest.fixture(scope="module")
def table(traced):
    return trace_tables.aggregate({"p2d_same": traced[1]}, model="m", seed=7)


def find_row(table, **values):
    for column, value in values.items():
        table = table[table[column].isna()] if value is None else table[table[column] == value]
    [row] = table.itertuples()
    return row


def test_the_table_has_means_over_facts_and_ratios_of_means(traced, table):
    _, traces, _ = traced
    assert list(table.columns) == trace_tables.COLUMNS
    assert set(table.direction) == {"p2d"} and set(table.seed) == {7}
    effects, states, losses, totals = [], [], [], []
    for trace in traces:
        position, corrupted = trace.roles[0].index("last subject"), trace.arrays["log_probability.swap.corrupted"][0]
        effects.append(trace.scores("swap", "mlp")[0, position, 1] - corrupted)
        states.append(trace.scores("swap", "state")[0, position, 1] - corrupted)
        clean = trace.arrays["log_probability.clean"][0]
        losses.append(clean - trace.scores("swap", "state", reading="necessary")[0, position, 1])
        totals.append(clean - corrupted)
    site = {"kind": "mlp", "corruption": "swap", "score": "log_probability", "role": "last subject", "layer": 1}
    site |= {"stage": "t1", "window": WINDOWS[0]}
    row = find_row(table, **site, reading="indirect")
    assert row.n == 3 and row.mean == pytest.approx(np.mean(effects), abs=1e-4)
    assert row.ci_low <= row.mean <= row.ci_high
    scores = {"corruption": "swap", "score": "log_probability", "stage": "t1", "reading": "scores"}
    total = find_row(table, **scores, kind="total")
    assert total.role == "all" and total.layer is pd.NA
    assert total.mean == pytest.approx(np.mean(totals), abs=1e-4)
    if total.ci_low > 0 or total.ci_high < 0:  # no shares of a total effect that may be 0
        site |= {"kind": "state", "window": 1}
        for reading, parts in (("recovered", states), ("necessary", losses)):
            share = find_row(table, **site, reading=reading).mean
            assert share == pytest.approx(np.sum(parts) / np.sum(totals), abs=1e-4)


def test_maps_have_their_reliability_and_similarity():
    rng = np.random.default_rng(0)
    one_site = [
        trace_fixtures.make_trace_with_effects([0.0, 9.0 + i / 9], kind="state", fact=fact)
        for i, fact in enumerate("abcdef")
    ]
    spread = [trace_fixtures.make_trace(fact, rng=rng) for fact in "ghijkl"]
    splits = {"p2d_same": one_site, "d2p_reverse": spread}
    table = trace_tables.tabulate_maps({1: splits, 2: splits}, model="m", rng=rng)
    states = table[(table.kind == "state") & (table.seed == 1)]
    peaks = states[states.statistic == "peak"].set_index("split")
    assert peaks.place["p2d_same"] == "here" and peaks.layer["p2d_same"] == 1
    correlations = states[(states.split == "p2d_same") & (states.statistic == "correlation")].set_index("other").value
    assert correlations["seed_2"] == pytest.approx(1, abs=1e-3) and correlations["d2p_reverse"] < 0.9
    assert states[(states.split == "p2d_same") & (states.statistic == "split_half")].value.item() > 0.99
    raw = states[(states.split == "p2d_same") & (states.statistic == "raw")].set_index("other")
    assert raw.value["seed_2"] == pytest.approx(1) and raw.value["d2p_reverse"] < 0.9
    assert "route" not in set(table.statistic)  # which needs all four splits


@pytest.mark.parametrize(("by_question", "sign"), [(True, 1), (False, -1)])
def test_the_route_follows_what_the_maps_were_made_from(by_question, sign):
    levels = [[9.0, 1.0, 0.0, 4.0], [0.0, 5.0, 9.0, 1.0]]
    splits = {
        split: [
            trace_fixtures.make_trace_with_effects(
                levels[(answers if by_question else people)] + rng.normal(0, 0.3, 4), kind="state", fact=f"{people}{i}"
            )
            for i in range(6)
        ]
        for rng in [np.random.default_rng(0)]
        for split, people, answers in [
            *(("p2d_same", 0, 0), ("p2d_reverse", 0, 1)),
            *(("d2p_same", 1, 1), ("d2p_reverse", 1, 0)),
        ]
    }
    table = trace_tables.tabulate_maps({1: splits}, model="m", rng=np.random.default_rng(0))
    route = table[(table.statistic == "route") & (table.kind == "state")].iloc[0]
    assert sign * route.value > 1 and (sign * route[["ci_low", "ci_high"]] > 0).all() and route.n == 12


def test_the_plateau_of_the_subject_ends_where_its_effect_is_significantly_smaller():
    rng = np.random.default_rng(0)
    traces = [
        trace_fixtures.make_trace_with_effects(
            np.array([9, 9, 9, 2, 0]) + rng.normal(0, 0.5, 5), kind="state", role="all subject tokens", fact=f
        )
        for f in "abcdefgh"
    ]
    table = trace_tables.tabulate_maps({1: {"p2d_same": traces}}, model="m", rng=rng)
    assert list(table[(table.statistic == "plateau") & (table.kind == "state")].layer) == [0, 1, 2]


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
def test_invalid_settings_are_rejected_in_one_line(change, message):
    with pytest.raises(ValueError, match=message):
        Tracing(**{"corruptions": {"gaussian": ["state"]}} | change)
