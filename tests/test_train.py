import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from reversal.common.jobs import Job
from reversal.data import facts
from reversal.models import network, tokens
from reversal.training import adapters, loop

RECIPE = {"epochs": 4, "batch": 8, "learning_rate": 0.01, "warmup_steps": 3}
ROWS = [[3 + (i * j) % 40 for j in range(1, 5 + i % 4)] for i in range(60)]
TEXTS = [f"Row {i} tells that number {i % 7} is number {(3 * i) % 11}." for i in range(161)]


def recipe(**changes):
    return loop.Recipe(**{**RECIPE, **changes})


def fresh(causal, **shape):
    sizes = {"vocab": 50, "width": 16, "layers": 2, "heads": 2, "mlp": 32, **shape}
    return network.new(causal=causal, eos=0, seed=1, **sizes)


def weights(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def assert_same(first, second):
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("causal", [True, False])
def test_training_lowers_the_loss_and_two_runs_give_the_same_weights(causal):
    nets = [fresh(causal) for _ in range(2)]
    histories = [loop.fit(net, ROWS, recipe(epochs=80, batch=60)) for net in nets]
    assert histories[0].loss.tail(20).mean() < 0.85 * histories[0].loss.head(3).mean()
    assert_same(*map(weights, nets))
    columns = ["step", "epoch", "loss", "learning_rate"]
    pd.testing.assert_frame_equal(histories[0][columns], histories[1][columns])


def test_the_mask_row_of_the_head_is_never_trained():
    net = fresh(False)
    with torch.no_grad():
        net.lm_head.weight[-1] = 0
    loop.fit(net, ROWS, recipe(epochs=2))
    assert net.lm_head.weight[-1].eq(0).all()


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=200), batch=st.integers(1, 20), seed=st.integers(0, 99)
)
def test_an_epoch_uses_every_row_once(lengths, batch, seed):
    batches = loop.epoch_batches(lengths, batch, seed=seed, epoch=0)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    assert max(map(len, batches)) <= batch


def test_batches_waste_little_padding_and_differ_between_epochs():
    lengths = [5 + i % 20 for i in range(2000)]
    batches = loop.epoch_batches(lengths, 32, seed=0, epoch=0)
    padded = sum(len(rows) * max(lengths[i] for i in rows) for rows in batches)
    assert padded < 1.08 * sum(lengths)
    assert batches != loop.epoch_batches(lengths, 32, seed=0, epoch=1)


@pytest.mark.parametrize("positions", [None, [[0]] * len(ROWS)])
def test_tokens_are_split_only_at_the_context_positions_and_differently_in_each_epoch(monkeypatch, positions):
    padded, pad = [], loop.pad
    monkeypatch.setattr(loop, "pad", lambda rows, *rest: (padded.append(sorted(rows)), pad(rows, *rest))[1])

    class SubwordDropout:
        @staticmethod
        def split(row, rng, positions):
            positions = range(len(row)) if positions is None else positions
            return [(49 if i in positions and rng.random() < 0.5 else token, i) for i, token in enumerate(row)]

    nets = [fresh(True) for _ in range(2)]
    for net in nets:
        loop.fit(net, ROWS, recipe(batch=60), subword_dropout=SubwordDropout, context_positions=positions)
    assert padded[:4] == padded[4:] and len({str(rows) for rows in padded}) == 4
    assert any(49 in row[1:] for row in padded[0]) == (positions is None) and any(row[0] == 49 for row in padded[0])
    assert_same(*map(weights, nets))


def test_the_learning_rate_warms_up_and_falls_to_its_final_fraction():
    plan = recipe(learning_rate=1.0, warmup_steps=10)
    rates = [loop.learning_rate(step, 100, plan) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
    assert all(later <= earlier for earlier, later in zip(rates[10:], rates[11:], strict=False))


def test_padding_is_end_tokens_of_which_one_is_real():
    ids, real = loop.pad([[7, 8, 9], [5]], eos=0, width=6)
    assert ids.tolist() == [[7, 8, 9, 0, 0, 0], [5, 0, 0, 0, 0, 0]]
    assert real.sum(1).tolist() == [4, 2]


def test_a_width_is_a_number_or_drawn_from_a_range_mostly_the_smallest():
    assert {loop.draw_width(22, seed=1, step=step) for step in range(20)} == {22}
    drawn = [loop.draw_width((20, 40), seed=1, step=step) for step in range(4000)]
    shares = [drawn.count(width) / len(drawn) for width in sorted(set(drawn))]
    assert sorted(set(drawn)) == [20, 24, 28, 32, 36, 40]
    assert shares == pytest.approx([0.8, *[0.04] * 5], abs=0.02)
    assert drawn[:50] == [loop.draw_width((20, 40), seed=1, step=step) for step in range(50)]
    assert drawn[:50] != [loop.draw_width((20, 40), seed=2, step=step) for step in range(50)]


def test_batches_of_a_range_are_as_wide_as_drawn_and_no_row_is_truncated(monkeypatch):
    widths, targets = [], loop.diffusion_targets
    spy = lambda ids, *rest, **more: (widths.append(ids.shape[1]), targets(ids, *rest, **more))[1]  # noqa: E731
    monkeypatch.setattr(loop, "diffusion_targets", spy)
    loop.fit(fresh(False), ROWS, recipe(width=[6, 16]))
    longest = [
        max(len(ROWS[i]) for i in rows)
        for e in range(4)
        for rows in loop.epoch_batches([len(r) for r in ROWS], 8, seed=0, epoch=e)
    ]
    drawn = [loop.draw_width([6, 16], seed=0, step=step) for step in range(len(widths))]
    assert widths == [max(width, most + 1) for width, most in zip(drawn, longest, strict=True)]
    assert len(set(widths)) > 3


class Interrupted(Exception):
    pass


def interrupted_run(net, folder, monkeypatch, after, **changes):
    """Train until `after` snapshots were saved, then raise `Interrupted`."""
    save = loop.Checkpoints.save
    count = iter(range(1000))

    def save_and_interrupt(self, *args):
        save(self, *args)
        if next(count) + 1 == after:
            raise Interrupted

    monkeypatch.setattr(loop.Checkpoints, "save", save_and_interrupt)
    with pytest.raises(Interrupted):
        loop.fit(net, ROWS, recipe(**changes), checkpoints=folder, seconds_between=0)
    monkeypatch.setattr(loop.Checkpoints, "save", save)


@pytest.mark.parametrize(("causal", "width"), [(True, 0), (False, 0), (False, (10, 20))])
def test_an_interrupted_run_ends_in_the_same_weights(causal, width, tmp_path, monkeypatch):
    whole, broken = fresh(causal), fresh(causal)
    expected = loop.fit(whole, ROWS, recipe(width=width))
    interrupted_run(broken, tmp_path, monkeypatch, after=9, width=width)
    resumed = fresh(causal)
    history = loop.fit(resumed, ROWS, recipe(width=width), checkpoints=tmp_path, seconds_between=999)
    assert_same(weights(whole), weights(resumed))
    assert history.loss.tolist() == expected.loss.tolist()


@pytest.mark.parametrize("causal", [True, False])
def test_an_adapter_is_trained_alone_resumed_and_merged_into_an_ordinary_network(causal, tmp_path, monkeypatch):
    nets = {name: fresh(causal) for name in ("whole", "broken", "resumed")}
    adapter = {"rank": 2, "alpha": 4}
    adapted = {name: adapters.attach(net, **adapter, seed=3) for name, net in nets.items()}
    before = weights(fresh(causal))
    ids = torch.tensor([[3, 4, 5, 6]])
    torch.testing.assert_close(network.hidden(nets["whole"], ids), network.hidden(fresh(causal), ids), rtol=0, atol=0)
    expected = loop.fit(nets["whole"], ROWS, recipe(adapter=adapter))
    interrupted_run(nets["broken"], tmp_path, monkeypatch, after=9, adapter=adapter)
    saved = load_file(max(tmp_path.iterdir()) / "net.safetensors")
    assert saved and all(".lora_" in name for name in saved)
    history = loop.fit(nets["resumed"], ROWS, recipe(adapter=adapter), checkpoints=tmp_path, seconds_between=999)
    assert history.loss.tolist() == expected.loss.tolist()
    trained = network.hidden(nets["whole"], ids)
    for name in ("whole", "resumed"):
        adapters.merge(adapted[name])
    torch.testing.assert_close(network.hidden(nets["whole"], ids), trained, atol=1e-5, rtol=1e-4)
    assert_same(weights(nets["whole"]), weights(nets["resumed"]))
    after = weights(nets["whole"])
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith("model.layers") and "norm" not in name}


@pytest.mark.parametrize("file", ["net.safetensors", "optimizer.safetensors", "state.json"])
def test_an_incomplete_checkpoint_is_detected_and_the_one_before_it_used(file, tmp_path, monkeypatch):
    whole, broken, resumed = fresh(False), fresh(False), fresh(False)
    loop.fit(whole, ROWS, recipe())
    interrupted_run(broken, tmp_path, monkeypatch, after=9)
    newest = max(tmp_path.iterdir())
    content = (newest / file).read_bytes()
    (newest / file).write_bytes(content[: len(content) // 2])
    lines = []
    job = Job()
    monkeypatch.setattr(job, "log_line", lines.append)
    loop.fit(resumed, ROWS, recipe(), checkpoints=tmp_path, seconds_between=999, job=job)
    assert "resumed after step 8" in lines
    assert_same(weights(whole), weights(resumed))


def test_the_draft_of_a_process_killed_while_saving_is_removed(tmp_path, monkeypatch):
    interrupted_run(fresh(False), tmp_path, monkeypatch, after=3)
    (tmp_path / ".draft-x").mkdir()
    (tmp_path / ".draft-x/net.safetensors").write_bytes(b"half")
    loop.fit(fresh(False), ROWS, recipe(), checkpoints=tmp_path, seconds_between=999)
    assert not list(tmp_path.glob(".draft-*")) and list(tmp_path.glob("step_*"))


def test_a_checkpoint_of_another_run_is_not_used(tmp_path, monkeypatch):
    interrupted_run(fresh(False), tmp_path, monkeypatch, after=3)
    whole, other = fresh(False), fresh(False)
    loop.fit(whole, ROWS, recipe(seed=5))
    loop.fit(other, ROWS, recipe(seed=5), checkpoints=tmp_path, seconds_between=999)
    assert_same(weights(whole), weights(other))


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    net = fresh(True)
    compute_loss = loop.compute_loss
    count = iter(range(1000))
    monkeypatch.setattr(loop, "compute_loss", lambda *a: compute_loss(*a) * (math.nan if next(count) == 13 else 1.0))
    with pytest.raises(loop.TrainingError, match=r"loss is nan at step 13 \(epoch 1, rows \[") as caught:
        loop.fit(net, ROWS, recipe(), checkpoints=tmp_path, seconds_between=0)
    assert "\n" not in str(caught.value)
    newest = max(tmp_path.iterdir())
    history = json.loads((newest / "state.json").read_text())["history"]
    assert len(history) <= 13 and all(math.isfinite(line["loss"]) for line in history)


def task(base, folder, **recipe_changes):
    return {
        "base": str(base),
        "rows": {"facts": str(base.parent / "train.jsonl")},
        "facts": None,
        "objective": {},
        "recipe": {**RECIPE, **recipe_changes},
        "output": str(folder / "model"),
        "history": str(folder / "training.csv"),
        "checkpoints": str(folder / "checkpoints"),
        "checkpoint_seconds": 0.2,
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "net"
    halves = [text.rsplit(" ", 1) for text in TEXTS]
    rows = [facts.Row(f"p2d-{i}", 0, prompt, f" {rest}", (0, 5), (1, 2)) for i, (prompt, rest) in enumerate(halves)]
    facts.write(rows, folder.parent / "train.jsonl")
    tokenizer = tokens.train_tokenizer(TEXTS, 300)
    network.save(fresh(False, vocab=len(tokenizer), width=32, mlp=64), tokenizer, folder)
    return folder


WORKER = (
    "import json, sys; import torch; from reversal.common import jobs; from reversal.training import loop; "
    "torch.set_num_threads(1); "
    "loop.run(json.load(open(sys.argv[1])), job=jobs.Job())"
)


def test_a_killed_process_resumes_and_ends_in_the_same_weights(base, tmp_path, root):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    loop.run(task(base, tmp_path / "whole", epochs=8, subword_dropout=0.1))
    file = tmp_path / "task.json"
    file.write_text(json.dumps(task(base, tmp_path / "killed", epochs=8, subword_dropout=0.1)))
    command = [sys.executable, "-c", WORKER, str(file)]
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL)
    checkpoints = tmp_path / "killed/checkpoints"
    end = time.monotonic() + 120
    while not list(checkpoints.glob("step_*")) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    assert process.poll() is None, "it finished before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert list(checkpoints.glob("step_*")) and not (tmp_path / "killed/model").exists()
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert "error" not in done.stderr and "resumed after step" in done.stderr
    first, second = (network.load(tmp_path / name / "model", device="cpu")[0] for name in ("whole", "killed"))
    assert_same(weights(first), weights(second))
    assert not checkpoints.exists()


def test_a_model_fine_tuned_with_an_adapter_is_an_ordinary_model_folder(base, tmp_path):
    loop.run(task(base, tmp_path, epochs=1, adapter={"rank": 4, "alpha": 8}))
    tuned, before = network.load(tmp_path / "model", device="cpu")[0], network.load(base, device="cpu")[0]
    assert {file.name for file in (tmp_path / "model").iterdir()} == {file.name for file in base.iterdir()}
    shapes = [net.config.to_dict() | {"_name_or_path": None} for net in (tuned, before)]
    assert shapes[0] == shapes[1]
    assert not torch.equal(tuned.model.layers[0].mlp.up_proj.weight, before.model.layers[0].mlp.up_proj.weight)


@pytest.mark.parametrize("objective", [{}, {"block": 4}], ids=["whole", "blocks"])
def test_two_processes_follow_the_loss_curve_of_one(objective, base, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        chosen = task(base, tmp_path / name, subword_dropout=0.1) | {"objective": objective}
        loop.run(chosen, processes={"one": 1, "two": 2}[name])
    one, two = (pd.read_csv(tmp_path / name / "training.csv") for name in ("one", "two"))
    assert len(one) == len(two)
    assert (one.loss - two.loss).abs().max() < 2e-3 * one.loss.max()


@pytest.mark.parametrize("causal", [True, False])
def test_a_batch_too_large_for_memory_is_split_with_the_same_result(causal, monkeypatch):
    whole, split = fresh(causal), fresh(causal)
    loop.fit(whole, ROWS, recipe())
    compute_loss, sizes = loop.compute_loss, []

    def limit_memory(net, batch):
        if len(batch.inputs) > 3:
            raise torch.OutOfMemoryError("out of memory")
        sizes.append(len(batch.inputs))
        return compute_loss(net, batch)

    monkeypatch.setattr(loop, "compute_loss", limit_memory)
    loop.fit(split, ROWS, recipe())
    assert max(sizes) == 2  # of 8 rows, halved twice
    for name, value in weights(whole).items():
        assert torch.allclose(value, dict(split.named_parameters())[name], atol=1e-4), name


@pytest.mark.parametrize("causal", [True, False])
def test_one_compiled_program_serves_all_blocks_and_lengths_and_is_removed_afterwards(causal, monkeypatch):
    plain, fused = fresh(causal, layers=10), fresh(causal, layers=10)
    programs = []

    def backend(graph, inputs):
        programs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    expected = loop.fit(plain, ROWS, recipe(epochs=2))
    found = loop.fit(fused, ROWS, recipe(epochs=2, compile=True))
    assert len(programs) == 1
    assert found.loss.to_list() == pytest.approx(expected.loss.to_list(), rel=1e-4)
    assert all("forward" not in vars(block) for block in network.layers(fused))
