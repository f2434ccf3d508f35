"""One training loop for both families: deterministic, resumable, on one process or several.

All that is random in a step follows from the seed and the step's number, so a run that was interrupted ends in the same
weights as one that was not, and several processes that share a batch draw the same noise as one that has it whole.
"""

import dataclasses
import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.fx.experimental import _config as symbolic_shapes

from ..common.batches import attempt
from ..common.errors import UserError
from ..common.files import sha256, write_table
from ..common.jobs import Job, Progress
from ..data import facts
from ..models import folders, network, tokens
from . import adapters, dataset, objective
from .cuda_graphs import Recorder, unmasked

POOL = 16  # batches shuffled together before their rows are sorted by length
WIDTHS = 6  # a range of widths is drawn from so many, evenly spaced: few, since a GPU records a step for each shape
NARROW = 0.8  # the share of batches that have the least width


class TrainingError(UserError):
    """A training run that cannot go on."""


@dataclass(frozen=True)
class Recipe:
    """How to train: the names and meanings of `training` in the configuration."""

    epochs: int
    batch: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float = 0.1
    betas: tuple = (0.9, 0.95)
    clip: float = 1.0
    final_fraction: float = 0.1
    width: int | tuple[int, int] = 0  # pad a diffusion model's rows: see `drawn_width`
    subword_dropout: float = 0.0  # share of the tokens that are spelt in smaller ones, others in each epoch
    compile: bool = False  # fuse the kernels of the network's blocks
    cuda_graphs: bool = False  # on a GPU, record whole steps and replay them
    adapter: dict | None = None  # train one of such `rank` and `alpha`, not the weights themselves
    seed: int = 0


def pad(rows, eos, width=0):
    """Rows of tokens as `ids` (B, T), filled up with end tokens, and `real` (B, T): each row with one end token."""
    width = max(width, max(map(len, rows)) + 1)
    ids = torch.full((len(rows), width), eos)
    real = torch.zeros(ids.shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        real[i, : len(row) + 1] = True
    return ids, real


def drawn_width(width, *, seed, step):
    """How many tokens to pad the batch of a step to: `width` itself, or one of WIDTHS from its least to its most.

    NARROW of the batches have the least, since padding costs time and most questions fit there; the rest share the
    wider ones. A network that saw one width alone recalls little on a wider canvas. 0, and whatever is too narrow,
    stands for the longest row of the batch.
    """
    if isinstance(width, int):
        return width
    least, most = width
    draw = random.Random(_mix(seed, "width", step)).random()
    rung = 0 if draw < NARROW else 1 + int((draw - NARROW) / (1 - NARROW) * (WIDTHS - 1))
    return least + round((most - least) * rung / (WIDTHS - 1))


def epoch_batches(lengths, batch, *, seed, epoch):
    """Row numbers of each batch of an epoch: shuffled, with rows of like length together so that little is padding."""
    generator = torch.Generator().manual_seed(_mix(seed, "epoch", epoch))
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), POOL * batch):
        pool = sorted(order[start : start + POOL * batch], key=lambda row: lengths[row])
        batches += [pool[i : i + batch] for i in range(0, len(pool), batch)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def learning_rate(step, steps, recipe):
    """Linear warm-up, then a cosine down to `final_fraction` of the peak."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, steps - recipe.warmup_steps)
    low = recipe.final_fraction
    return recipe.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def fit(
    net,
    rows,
    recipe,
    *,
    aim=objective.EVERYWHERE,
    marks=None,
    cutter=None,
    free=None,
    checkpoints=None,
    identity="",
    seconds_between=30.0,
    job=None,
):
    """Train `net` in place on `rows` (lists of tokens without their end); returns the history, one line a step.

    `aim` is the `Objective`; where it protects tokens, `marks` has those of each row. A `text.SubwordDropout` cuts tokens of each
    batch, at the positions `free` of each row (everywhere, if None). With `checkpoints`, a folder, the run saves itself
    there and goes on from there; `identity` is what else, besides rows and recipe, the weights depend on.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = net.get_input_embeddings().weight.device
    mask_id = network.mask_id(net) if network.is_diffusion(net) else None
    # Of a token, forward and back: two for each weight it is multiplied with, and four.
    operations = 6 * (network.parameter_count(net) - net.get_input_embeddings().weight.numel())
    lengths = [len(row) for row in rows]
    plan = [
        (epoch, batch)
        for epoch in range(recipe.epochs)
        for batch in epoch_batches(lengths, recipe.batch, seed=recipe.seed, epoch=epoch)
    ]
    recorded = recipe.cuda_graphs and device.type == "cuda" and world == 1 and net.config._attn_implementation == "sdpa"
    optimizer = torch.optim.AdamW(
        adapters.trained(net).values(),
        lr=0.0,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        fused=True,
        capturable=recorded,
    )
    store = (
        Checkpoints(checkpoints, fingerprint(net, [rows, free, marks, vars(aim)], recipe, identity))
        if checkpoints
        else None
    )
    history = store.resume(net, optimizer) if store else []
    if history and job:
        job.say(f"resumed after step {len(history)}")
    recorder = Recorder(net, optimizer, recipe.clip) if recorded else None
    net.train()
    pending = []  # losses still on the device
    parts = 1  # in which a batch goes through the network; more where memory is short
    saved = time.monotonic()
    label = "autoregressive training" if mask_id is None else "diffusion training"
    with (
        _compiled(net, recipe.compile),
        unmasked(net, recorded),
        Progress(job or Job(), len(plan), label, "steps", len(history)) as progress,
    ):
        began, trained = time.monotonic(), 0
        for step in range(len(history), len(plan)):
            epoch, numbers = plan[step]
            shown, marked = [rows[i] for i in numbers], [marks[i] for i in numbers] if marks else None
            if cutter:
                rng = random.Random(_mix(recipe.seed, "cut", step))
                spelt = [cutter.spell(rows[i], rng, None if free is None else free[i]) for i in numbers]
                shown = [[token for token, _ in row] for row in spelt]
                marked = marks and [[marks[i][at] for _, at in row] for i, row in zip(numbers, spelt, strict=True)]
            # An autoregressive row's padding teaches nothing.
            width = 0 if mask_id is None else drawn_width(recipe.width, seed=recipe.seed, step=step)
            ids, real = pad(shown, net.config.eos_token_id, width)
            generator = torch.Generator().manual_seed(_mix(recipe.seed, "step", step))
            noise = {"marked": marked and pad(marked, 0, ids.shape[1])[0], "generator": generator}
            if mask_id is None:
                batch = objective.autoregressive_targets(ids, real, aim, **noise)
            else:
                batch = objective.diffusion_targets(ids, net, aim, **noise)
            share = batch.each(lambda field: field[rank::world])
            rate = learning_rate(step, len(plan), recipe)
            loss = recorder.step(share, rate) if recorder else None
            if loss is None:
                recorder = None
                loss, parts = _gradients(net, share, device, parts)
                loss = _step(net, optimizer, loss, rate, recipe.clip, world)
            trained += len(numbers)
            line = {"step": step, "epoch": epoch, "loss": loss, "learning_rate": rate}
            line |= {"rows": len(numbers), "flops": operations * ids.numel()}
            pending.append(line | {"rows_per_second": round(trained / (time.monotonic() - began), 1)})
            last = step + 1 == len(plan)
            due = store and time.monotonic() - saved >= seconds_between
            if last or due or len(pending) == 10:
                history += _read(pending, plan)
                progress.advance(
                    len(pending), loss=f"{history[-1]['loss']:.3f}", rows_per_s=f"{history[-1]['rows_per_second']:.0f}"
                )
                pending = []
            if due and not last:
                if rank == 0:
                    store.save(net, optimizer, history)
                saved = time.monotonic()
    net.eval()
    return pd.DataFrame(history)


@contextmanager
def _compiled(net, wanted):
    """Within it, where `wanted`, one compiled program serves all of the network's blocks, and rows of any length."""
    if wanted and not any(map(shutil.which, filter(None, [os.getenv("CC"), "cc", "gcc", "clang"]))):
        raise TrainingError("training.compile is true, but there is no C compiler (cc, gcc, clang, or what CC names)")
    blocks = network.layers(net) if wanted else []
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=True)
    try:
        # Otherwise sizes that happen to be equal, such as 64 rows and heads of 64 numbers, are taken for one.
        with symbolic_shapes.patch(use_duck_shape=False):
            yield
    finally:
        for block in blocks:
            del block.forward


def _gradients(net, batch, device, parts):
    """Leave the batch's gradients in the network; returns the loss, still on the device, and in how many parts it went.

    The weights of a batch's positions sum over its parts, so parts change the result by no more than rounding.
    """
    undo = partial(net.zero_grad, set_to_none=True)
    while True:
        last = parts >= len(batch.inputs)
        loss, fits = attempt(partial(_in_parts, net, batch, device, parts), last=last, undo=undo)
        if fits:
            return loss, parts
        parts *= 2


def _in_parts(net, batch, device, parts):
    total = torch.zeros((), device=device)
    for part in range(min(parts, len(batch.inputs))):
        piece = batch.each(lambda field: field[part::parts])  # noqa: B023  (called at once)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = objective.loss(net, piece)
        loss.backward()
        total = total + loss.detach()
    return total


def _step(net, optimizer, loss, rate, clip, world):
    """One update with the gradients that are there; returns the loss summed over processes."""
    parameters = list(adapters.trained(net).values())
    for group in optimizer.param_groups:
        group["lr"] = rate
    if world > 1:
        for parameter in parameters:
            if parameter.grad is None:  # the batch had no row for this process
                parameter.grad = torch.zeros_like(parameter)
        for tensor in [loss, *(p.grad for p in parameters)]:
            dist.all_reduce(tensor)
    torch.nn.utils.clip_grad_norm_(parameters, clip, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def _read(pending, plan):
    """History lines of the steps since the last call; a loss that is not a number ends the run here."""
    losses = torch.stack([line["loss"] for line in pending]).tolist()
    for line, loss in zip(pending, losses, strict=True):
        if not math.isfinite(loss):
            raise TrainingError(
                f"loss is {loss} at step {line['step']} (epoch {line['epoch']}, rows {plan[line['step']][1]}); "
                "lower training.learning_rate or look at those rows. The last checkpoint before it is kept"
            )
    return [{**line, "loss": loss} for line, loss in zip(pending, losses, strict=True)]


def fingerprint(net, rows, recipe, identity):
    """A hash of all that a run's weights follow from."""
    told = json.dumps([net.config.to_diff_dict(), dataclasses.asdict(recipe), identity, rows], default=str)
    return hashlib.sha256(told.encode()).hexdigest()


class Checkpoints:
    """Snapshots of a run in a folder: the newest two are kept, each with hashes, so that a torn one is noticed."""

    def __init__(self, folder, owner):
        self.folder, self.owner = Path(folder), owner

    def save(self, net, optimizer, history):
        """Add a snapshot, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=self.folder))
        try:
            weights = {name: p.detach().contiguous() for name, p in adapters.trained(net).items()}
            save_file(weights, draft / "net.safetensors")
            save_file(_moments(net, optimizer), draft / "optimizer.safetensors")
            files = {file.name: sha256(file) for file in draft.iterdir()}
            (draft / "state.json").write_text(json.dumps({"owner": self.owner, "files": files, "history": history}))
            os.replace(draft, self.folder / f"step_{len(history):08d}")
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        for old in self.snapshots()[2:]:
            shutil.rmtree(old)

    def snapshots(self):
        """Snapshot folders, newest first."""
        return sorted(self.folder.glob("step_*"), reverse=True)

    def resume(self, net, optimizer):
        """Load the newest whole snapshot of this very run; returns its history ([] where there is none)."""
        for draft in self.folder.glob(".draft-*"):  # of a process that was killed while it saved
            shutil.rmtree(draft, ignore_errors=True)
        for snapshot in self.snapshots():
            state = self._whole(snapshot)
            if state is None:
                shutil.rmtree(snapshot, ignore_errors=True)  # another process may be at it
                continue
            device = net.get_input_embeddings().weight.device
            weights = load_file(snapshot / "net.safetensors")
            moments = load_file(snapshot / "optimizer.safetensors")
            with torch.no_grad():
                for name, parameter in adapters.trained(net).items():
                    parameter.copy_(weights[name])
                    optimizer.state[parameter] = {
                        kind: moments[f"{kind}/{name}"].to("cpu" if kind == "step" and device.type == "cpu" else device)
                        for kind in ("step", "exp_avg", "exp_avg_sq")
                    }
            return state["history"]
        return []

    def _whole(self, snapshot):
        try:
            state = json.loads((snapshot / "state.json").read_text())
            whole = all(sha256(snapshot / name) == expected for name, expected in state["files"].items())
            return state if whole and state["owner"] == self.owner else None
        except (OSError, ValueError, KeyError, SafetensorError):
            return None


def _moments(net, optimizer):
    return {
        f"{kind}/{name}": optimizer.state[parameter][kind].contiguous()
        for name, parameter in adapters.trained(net).items()
        for kind in ("step", "exp_avg", "exp_avg_sq")
    }


def _mix(*parts):
    """A 60-bit seed from words and numbers."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:15], 16)


def run(task, *, processes=1, job=None):
    """Fine-tune on `processes` processes.

    A `task` holds the model folder `base`, files of `rows` by their kind, the file of `facts`, the `recipe`, the
    `objective`, where to leave the model (`output`) and the CSV file `history`, and a folder for `checkpoints`, saved
    every `checkpoint_seconds`. It can be written as JSON.
    """
    if processes == 1:
        _work(task, job)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.json"
        file.write_text(json.dumps(task))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run([*launcher, "-m", __spec__.name, str(file)], check=False)
        if done.returncode:
            raise TrainingError(f"training on {processes} processes failed; its messages stand above")


def _work(task, job):
    device = network.default_device()
    if dist.is_initialized() and device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    recipe, aim = Recipe(**task["recipe"]), objective.Objective(**task["objective"])
    # Updates of whole networks are too small for weights in 16 bits.
    net, tokenizer = network.load(task["base"], device=device, dtype=None if recipe.adapter else torch.float32)
    net = ready(net, aim, seed=recipe.seed)
    adapted = adapters.attach(net, **recipe.adapter, seed=recipe.seed) if recipe.adapter else None
    people = facts.read_facts(task["facts"]) if aim.people == "protected" else []
    apart = {fact.id for fact in people if fact.group in facts.CONTROL_GROUPS}
    read = dataset.read(tokenizer, task["rows"], aim, apart)
    history = fit(
        net,
        read.rows,
        recipe,
        aim=aim,
        marks=read.marks,
        cutter=tokens.SubwordDropout(tokenizer, recipe.subword_dropout) if recipe.subword_dropout else None,
        free=read.free,
        checkpoints=task["checkpoints"],
        identity=folders.checksums(task["base"]),
        seconds_between=task["checkpoint_seconds"],
        job=job,
    )
    if adapted:
        adapters.merge(adapted)
    if not dist.is_initialized() or dist.get_rank() == 0:
        network.save(net, tokenizer, task["output"])
        write_table(history, task["history"])
        shutil.rmtree(task["checkpoints"], ignore_errors=True)


def ready(net, aim, *, seed):
    """The network, with a clock where the objective `aim` wants one; refused where it was noised otherwise, or where
    it could not be looked into later."""
    for part in (network.attention, network.mlp):
        part(network.layers(net)[0])
    if network.noise(net) != aim.noise:
        raise folders.ModelError(
            f"the base was pretrained with the noise {network.noise(net)!r}, the objective's is {aim.noise!r}; "
            "they have to be the same (base: pretrain makes one)"
        )
    if aim.time_conditioning == "embedded" and not network.is_time_conditioned(net):
        return network.add_time_embedding(net, seed=seed)
    return net


def main():
    """Entry of each process that `torch.distributed.run` starts."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        _work(json.loads(Path(sys.argv[1]).read_text()), None)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
