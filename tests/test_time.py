"""When a subject is needed: hidden for some of the steps, against what is revealed, and put back at one step alone."""

import numpy as np
import pandas as pd
import pytest
import torch
from test_trace_study import SAMPLING, STEPS, answered_rows, asked, speaker, tokenizer  # noqa: F401
from trace_fixtures import time as made_time

from reversal.models import network
from reversal.recall import evaluation, masked
from reversal.tracing import time as when
from reversal.tracing import time_tables
from reversal.tracing.study import Tracing, trace_split
from reversal.tracing.time import StepView, Timing


@pytest.fixture(scope="module")
def both(tokenizer):  # noqa: F811
    """For either family a network, what is traced of it, and the traces."""
    made = {}
    for causal in (False, True):
        net = speaker(tokenizer, causal)
        rows = answered_rows(net, tokenizer)
        found, traces, _ = trace_split(
            net, tokenizer, rows, asked(net, tokenizer, rows), Tracing({"swap": ["state", "mlp"]})
        )
        made["ar" if causal else "mdm"] = net, found, traces
    return made


def swapped_prompt(one):
    return when.put(one.ids[: one.prompt], range(*one.subject), one.partner.subject)


def generated(net, found, at):
    return when._generate(net, [(one, at) for one in found], SAMPLING, STEPS).canvas.tolist()


def plainly(net, prompts):
    return masked.denoise_each(net, prompts, SAMPLING, [STEPS])[STEPS].canvas.tolist()


def test_hidden_from_the_first_step_is_the_corrupted_prompt_and_after_the_last_nothing_changes(both):
    net, found, _ = both["mdm"]
    hidden = generated(net, found, when.since(0))
    corrupted = plainly(net, [swapped_prompt(one) for one in found])
    for one, ids, other in zip(found, hidden, corrupted, strict=True):
        assert ids[one.prompt :] == other[one.prompt :]
    assert generated(net, found, when.until(STEPS)) == hidden
    clean = [one.ids for one in found]
    for late in (when.since(STEPS), when.until(0), when.since(STEPS, ("mlp", 0))):
        assert generated(net, found, late) == clean


def test_hiding_after_t2_leaves_the_answer_and_until_k_is_what_from_k_is_not(both):
    net, found, _ = both["mdm"]
    for one in found:
        [ids] = generated(net, [one], when.since(one.t2 + 1))
        assert ids[slice(*one.answer)] == one.ids[slice(*one.answer)]
    for k in range(STEPS + 1):
        for step in range(STEPS):
            assert when.since(k)(step).hidden != when.until(k)(step).hidden


def test_a_module_hidden_everywhere_at_the_subject_is_the_module_of_the_other_prompt(both):
    """One forward pass by hooks, against hooks of one's own."""
    net, found, _ = both["mdm"]
    one = found[0]
    canvas, _ = one.entering(net, one.t1)
    other = when.put(canvas, range(*one.subject), one.partner.subject)
    for kind, layer in (("mlp", 1), ("attn", 0), ("state", 1)):
        hiding = when.SubjectCorruption(
            range(*one.subject), one.partner.subject, lambda step, site=(kind, layer): StepView(False, site)
        )
        seen = when.looking(net, [hiding])(torch.tensor([canvas, canvas]), [0, 0], [0, 0])
        module = when.engine.site(net, kind, layer)
        kept = {}

        def read(module, given, output, kept=kept):
            kept["other"] = (output[0] if isinstance(output, tuple) else output).clone()

        def put(module, given, output, kept=kept):
            states = (output[0] if isinstance(output, tuple) else output).clone()
            states[:, range(*one.subject)] = kept["other"][:, range(*one.subject)]
            return (states, *output[1:]) if isinstance(output, tuple) else states

        with torch.no_grad():
            handle = module.register_forward_hook(read)
            network.hidden(net, torch.tensor([other]))
            handle.remove()
            handle = module.register_forward_hook(put)
            expected = network.hidden(net, torch.tensor([canvas]))
            handle.remove()
        torch.testing.assert_close(seen, expected.expand(2, -1, -1), atol=1e-4, rtol=1e-4)
        assert not torch.allclose(seen[0], network.hidden(net, torch.tensor([canvas]))[0], atol=1e-3)


def test_every_layer_hidden_at_the_first_is_the_subject_hidden(both):
    """The state of the first layer at the subject is all that later layers see of it, but through attention below."""
    net, found, _ = both["mdm"]
    one = found[0]
    canvas, _ = one.entering(net, one.t1)
    hiding = when.SubjectCorruption(range(*one.subject), one.partner.subject, lambda step: StepView(True, ("state", 0)))
    back = when.looking(net, [hiding])(torch.tensor([canvas]), [0], [0])
    trace = both["mdm"][2][0]
    whole = trace.roles[0].index("whole subject")
    wanted = one.asked(net, one.entering(net, one.t1)[1])
    logs = network.logits(net, back[0]).log_softmax(-1)
    expected = trace.runs("swap", "state")[0, whole, 0]
    assert sum(logs[place, token] for place, token in wanted).item() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("family", ["mdm", "ar"])
def test_what_rests_on_what_is_scored_as_if_it_stood_there(both, family):
    net, found, traces = both[family]
    table = when.rests(net, found)
    for one, trace in zip(found, traces, strict=True):
        own = table[table.fact == one.row.fact]
        assert set(own.step) == set(one.moments)
        for stage, hidden, name in (("t1", "neither", "clean"), ("t1", "subject", "swap.corrupted")):
            [value] = own[(own.stage == stage) & (own.hidden == hidden)].value
            assert value == pytest.approx(trace.arrays[f"log_probability.{name}"][0], abs=1e-3)
        later = own[own.hidden == "revealed"]
        assert set(later.kind) <= {"mask", "swap"} and (family == "mdm") == ("mask" in set(later.kind))
        assert "t1" not in set(later.stage)
        for row in later[later.kind == "mask"].itertuples():
            canvas, places = one.entering(net, row.step)
            hidden = [place for place in range(*one.answer) if place not in places]
            logs = network.logits(
                net,
                network.hidden(net, torch.tensor([when.put(canvas, hidden, [net.config.mask_token_id] * len(hidden))])),
            )
            expected = sum(logs.log_softmax(-1)[0, place, token] for place, token in one.asked(net, places))
            assert row.value == pytest.approx(expected.item(), abs=1e-3)


def test_recall_is_counted_for_the_subject_and_for_every_module(both, tokenizer):  # noqa: F811
    net, found, _ = both["mdm"]
    table = when.recalled(net, tokenizer, found, SAMPLING, STEPS, Timing(3, 2, 1))
    whole = table[table.kind == "subject"]
    assert len(whole) == 2 * 3 * len(found) and set(whole.step) == {0, 2, 4}
    unhidden = whole[
        ((whole.hidden == "from") & (whole.step == STEPS)) | ((whole.hidden == "until") & (whole.step == 0))
    ]
    assert (unhidden.value == 1).all()
    modules = table[table.kind != "subject"]
    assert len(modules) == 2 * net.config.num_hidden_layers * 2
    assert set(modules.fact) == {found[0].row.fact}


def test_an_autoregressive_answer_goes_on_from_what_was_said_before_the_subject_was_hidden(both, tokenizer):  # noqa: F811
    net, found, _ = both["ar"]
    table = when.completed(net, tokenizer, found, SAMPLING.canvas, Timing(3))
    last = table.step.max()
    assert (table[(table.hidden == "until") & (table.step == 0)].value == 1).all()
    assert (table[(table.hidden == "from") & (table.step == last)].value == 1).all()
    for one in found:
        hidden = when.autoregressive.complete(
            net, [swapped_prompt(one)], new_tokens=SAMPLING.canvas - one.prompt, eos=tokenizer.eos_token_id
        ).tokens[0]
        right = evaluation.correct(one.row.completion, evaluation.decode(tokenizer, hidden))
        [value] = table[(table.fact == one.row.fact) & (table.hidden == "from") & (table.step == 0)].value
        assert value == right


def test_what_is_put_back_at_t1_is_read_on_the_canvas_that_it_wrote(both, tokenizer):  # noqa: F811
    net, found, traces = both["mdm"]
    sites = when.peaks(traces)
    assert [kind for kind, _ in sites] == ["state", "mlp"]
    table = when.carried(net, tokenizer, found, sites, SAMPLING, STEPS)
    ends = table[table.stage == "end"]
    assert len(ends) == len(found) * (1 + len(sites))
    for one in found:
        for step in one.steps[1:]:
            own = table[(table.fact == one.row.fact) & (table.step == step)]
            canvas, places = one.entering(net, step)
            seen = torch.tensor([when.put(canvas, range(*one.subject), one.partner.subject)])
            logs = network.logits(net, network.hidden(net, seen)).log_softmax(-1)[0]
            expected = sum(logs[place, token] for place, token in one.asked(net, places)).item()
            assert own[own.hidden == "neither"].value.item() == pytest.approx(expected, abs=1e-3)


def test_with_the_first_layers_every_state_back_the_step_writes_what_the_clean_one_does(both):
    net, found, _ = both["mdm"]
    one = found[0]
    depth = net.config.num_hidden_layers
    clean, hidden = (generated(net, [one], at)[0] for at in (when.until(0), when.since(0)))
    last = generated(net, [one], when.back_at(one.t1, ("state", depth - 1)))[0]
    assert last == hidden  # the last layer's state at the subject reaches no other place
    assert clean == one.ids


def test_the_table_of_time_has_costs_shares_and_what_is_carried():
    found = made_time("abcd", layers=1)
    table = time_tables.aggregate(found, model="m", seed=1, split="p2d_same")
    assert list(table.columns) == time_tables.COLUMNS
    rests = table[(table.reading == "rests") & (table.stage == "t1") & (table.hidden == "subject")]
    assert rests["mean"].item() == pytest.approx(np.mean([20 + i for i in range(4)])) and rests.n.item() == 4
    each = table[table.reading == "each"].set_index("stage")["mean"]  # of three tokens, then of one
    assert each["t1"] == pytest.approx(21.5 / 3) and each["t2"] == pytest.approx(3.5)
    assert each["change"] == pytest.approx(3.5 - 21.5 / 3)
    whole = table[(table.reading == "recalled") & (table.kind == "subject") & (table.step == 0)].set_index("hidden")
    assert whole["mean"]["from"] == 0 and whole["mean"]["until"] == 1
    assert 0 < whole.ci_high["from"] < 1  # of four people
    carried = table[(table.reading == "carried") & (table.stage == "between")]
    assert carried["mean"].item() == pytest.approx(10 / 18)
    assert table[(table.reading == "carried") & (table.stage == "end") & (table.kind == "state")]["mean"].item() == 0.5


def test_nothing_traced_gives_an_empty_table():
    empty = pd.DataFrame(columns=when.COLUMNS)
    assert time_tables.aggregate(empty, model="m", seed=1, split="p2d_same").empty


def test_settings_that_cannot_be_are_told_in_one_line():
    with pytest.raises(ValueError, match="starts is 1"):
        Timing(starts=1)
