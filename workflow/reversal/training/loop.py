"""One training loop for both families: deterministic, resumable, on one process or several.

Everything random in a step follows from the seed and the step's number. So an interrupted run ends in the same weights
as an uninterrupted one, and several processes that share a batch draw the same noise as one process with the whole
batch.
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

from ..common import batches
from ..common.errors import UserError
from ..common.files import sha256, write_table
from ..common.jobs import Job, Progress
from ..data import facts
from ..models import folders, network, tokens
from . import adapters, dataset
from .cuda_graphs import Recorder, disable_attention_mask
from .objective import EVERYWHERE, Objective, autoregressive_targets, compute_loss, diffusion_targets

POOL = 16  # batches shuffled together before their rows are sorted by length
WIDTHS = 6  # evenly spaced widths of a range: few, since each shape needs a CUDA graph of its own
NARROW = 0.8  # the share of batches with the smallest width
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW


class TrainingError(UserError):
    """A training run that cannot continue."""


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
    width: int | tuple[int, int] = 0  # pad a diffusion model's rows: see `draw_width`
    subword_dropout: float = 0.0  # the share of tokens that are split into smaller ones, drawn anew in each epoch
    compile: bool = False  # fuse the kernels of the network's blocks
    cuda_graphs: bool = False  # on a GPU, record whole steps and replay them
    adapter: dict | None = None  # train a LoRA adapter with this `rank` and `alpha` instead of the weights
    seed: int = 0


def pad(rows, eos, width=0):
    """Pad rows of tokens with end tokens: `ids` (B, T), and `real` (B, T), which covers each row and one end token."""
    return batches.pad([[*row, eos] for row in rows], eos, width=width)


def draw_width(width, *, seed, step):
    """The number of tokens to pad a step's batch to: `width`, or one of WIDTHS drawn from a range of (least, most).

    A share NARROW of the batches get the smallest, since padding costs time and most prompts fit in it; the wider ones
    are equally likely. A network trained at a single width recalls little on a wider canvas. `pad` widens a batch whose
    longest row needs more; 0 always means the longest row.
    """
    if isinstance(width, int):
        return width
    least, most = width
    draw = random.Random(_derive_seed(seed, "width", step)).random()
    number = 0 if draw < NARROW else 1 + int((draw - NARROW) / (1 - NARROW) * (WIDTHS - 1))
    return least + round((most - least) * number / (WIDTHS - 1))


def epoch_batches(lengths, batch, *, seed, epoch):
    """The row numbers of each batch of an epoch: shuffled, with rows of similar length together to limit padding."""
    generator = torch.Generator().manual_seed(_derive_seed(seed, "epoch", epoch))
    order = torch.randperm(len(lengths), generator=generator).tolist()
    plan = []
    for start in range(0, len(order), POOL * batch):
        pool = sorted(order[start : start + POOL * batch], key=lambda row: lengths[row])
        plan += [pool[i : i + batch] for i in range(0, len(pool), batch)]
    return [plan[i] for i in torch.randperm(len(plan), generator=generator).tolist()]


def learning_rate(step, steps, recipe):
    """The rate of a step: linear warm-up, then a cosine down to `final_fraction` of the peak."""
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
    objective=EVERYWHERE,
    marks=None,
    subword_dropout=None,
    context_positions=None,
    checkpoints=None,
    identity="",
    seconds_between=30.0,
    job=None,
):
    """Train `net` in place on `rows` (lists of tokens without their end); returns the history, one line per step.

    If the `objective` protects tokens, `marks` are those of each row's tokens. A `tokens.SubwordDropout` splits tokens
    of each batch, at the `context_positions` of each row (everywhere, if None). With `checkpoints`, a folder, the run
    saves itself there and resumes from there; `identity` is whatever the weights depend on besides rows and recipe.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = net.get_input_embeddings().weight.device
    mask_id = network.mask_id(net) if network.is_diffusion(net) else None
    # Per token: 2 for each weight it is multiplied with in the forward pass, and 4 in the backward pass.
    flops_per_token = 6 * (network.parameter_count(net) - net.get_input_embeddings().weight.numel())
    lengths = [len(row) for row in rows]
    plan = [
        (epoch, batch)
        for epoch in range(recipe.epochs)
        for batch in epoch_batches(lengths, recipe.batch, seed=recipe.seed, epoch=epoch)
    ]
    graphed = recipe.cuda_graphs and device.type == "cuda" and world == 1 and net.config._attn_implementation == "sdpa"
    graphed = graphed and network.block_size(net) is None  # recorded steps attend without a mask
    optimizer = torch.optim.AdamW(
        adapters.trainable_parameters(net).values(),
        lr=0.0,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        fused=True,
        capturable=graphed,
    )
    store = (
        Checkpoints(checkpoints, fingerprint(net, [rows, context_positions, marks, vars(objective)], recipe, identity))
        if checkpoints
        else None
    )
    history = store.resume(net, optimizer) if store else []
    if history and job:
        job.log_line(f"resumed after step {len(history)}")
    recorder = Recorder(net, optimizer, recipe.clip) if graphed else None
    net.train()
    pending = []  # history lines whose losses are still on the device
    parts = 1  # into which a batch is split; more where memory is short
    saved = time.monotonic()
    label = "autoregressive training" if mask_id is None else "diffusion training"
    with (
        _compile_blocks(net, recipe.compile),
        disable_attention_mask(net, graphed),
        Progress(job or Job(), len(plan), label, "steps", len(history)) as progress,
    ):
        began, trained = time.monotonic(), 0
        for step in range(len(history), len(plan)):
            epoch, numbers = plan[step]
            batch_rows, batch_marks = [rows[i] for i in numbers], [marks[i] for i in numbers] if marks else None
            if subword_dropout:
                rng = random.Random(_derive_seed(recipe.seed, "cut", step))
                split = [
                    subword_dropout.split(rows[i], rng, None if context_positions is None else context_positions[i])
                    for i in numbers
                ]
                batch_rows = [[token for token, _ in row] for row in split]
                batch_marks = marks and [
                    [marks[i][position] for _, position in row] for i, row in zip(numbers, split, strict=True)
                ]
            # Padding is no target of an autoregressive network, so its batches are as narrow as possible.
            width = 0 if mask_id is None else draw_width(recipe.width, seed=recipe.seed, step=step)
            ids, real = pad(batch_rows, net.config.eos_token_id, width)
            generator = torch.Generator().manual_seed(_derive_seed(recipe.seed, "step", step))
            padded_marks = batch_marks and batches.pad(batch_marks, 0, width=ids.shape[1])[0]
            noise = {"marks": padded_marks, "generator": generator}
            if mask_id is None:
                batch = autoregressive_targets(ids, real, objective, **noise)
            else:
                batch = diffusion_targets(ids, net, objective, **noise)
            share = batch.map(lambda field: field[rank::world])
            rate = learning_rate(step, len(plan), recipe)
            loss = recorder.step(share, rate) if recorder else None
            if loss is None:
                recorder = None
                loss, parts = _compute_gradients(net, share, device, parts)
                loss = _update_weights(net, optimizer, loss, rate, recipe.clip, world)
            trained += len(numbers)
            line = {"step": step, "epoch": epoch, "loss": loss, "learning_rate": rate}
            line |= {"rows": len(numbers), "flops": flops_per_token * ids.numel()}
            pending.append(line | {"rows_per_second": round(trained / (time.monotonic() - began), 1)})
            last = step + 1 == len(plan)
            due = store and time.monotonic() - saved >= seconds_between
            if last or due or len(pending) == 10:
                history += _read_losses(pending, plan)
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
def _compile_blocks(net, enabled):
    """If `enabled`, compile the network's blocks: one program for all of them and for rows of any length."""
    if enabled and not any(map(shutil.which, filter(None, [os.getenv("CC"), "cc", "gcc", "clang"]))):
        raise TrainingError("training.compile is true, but there is no C compiler (cc, gcc, clang, or what CC names)")
    blocks = network.layers(net) if enabled else []
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=True)
    try:
        # Otherwise sizes that happen to be equal, such as 64 rows and heads of 64 numbers, are assumed to be the same.
        with symbolic_shapes.patch(use_duck_shape=False):
            yield
    finally:
        for block in blocks:
            del block.forward


def _compute_gradients(net, batch, device, parts):
    """Compute the batch's gradients in as many `parts` as memory needs; returns the loss, on the device, and `parts`.

    The loss of a batch is the sum over its parts, so parts change the result by no more than rounding.
    """
    undo = partial(net.zero_grad, set_to_none=True)
    while True:
        last = parts >= len(batch.inputs)
        loss, fits = batches.attempt(partial(_accumulate_gradients, net, batch, device, parts), last=last, undo=undo)
        if fits:
            return loss, parts
        parts *= 2


def _accumulate_gradients(net, batch, device, parts):
    total = torch.zeros((), device=device)
    for part in range(min(parts, len(batch.inputs))):
        piece = batch.map(lambda field: field[part::parts])  # noqa: B023  (called at once)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = compute_loss(net, piece)
        loss.backward()
        total = total + loss.detach()
    return total


def _update_weights(net, optimizer, loss, rate, clip, world):
    """Do one update with the present gradients; returns the loss summed over processes."""
    parameters = list(adapters.trainable_parameters(net).values())
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


def _read_losses(pending, plan):
    """The `pending` history lines with their losses as numbers; a loss that is not finite ends the run."""
    losses = torch.stack([line["loss"] for line in pending]).tolist()
    for line, loss in zip(pending, losses, strict=True):
        if not math.isfinite(loss):
            raise TrainingError(
                f"loss is {loss} at step {line['step']} (epoch {line['epoch']}, rows {plan[line['step']][1]}); "
                "lower training.learning_rate or look at those rows. The last checkpoint before it is kept"
            )
    return [{**line, "loss": loss} for line, loss in zip(pending, losses, strict=True)]


def fingerprint(net, rows, recipe, identity):
    """A hash of everything that a run's weights depend on."""
    text = json.dumps([net.config.to_diff_dict(), dataclasses.asdict(recipe), identity, rows], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Checkpoints:
    """The newest two snapshots of a run, in a folder, with hashes that reveal an incomplete one.

    `fingerprint` identifies the run: the snapshots of another are not used.
    """

    def __init__(self, folder, fingerprint):
        self.folder, self.fingerprint = Path(folder), fingerprint

    def save(self, net, optimizer, history):
        """Add a snapshot atomically and delete all but the newest two."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=self.folder))
        try:
            weights = {name: p.detach().contiguous() for name, p in adapters.trainable_parameters(net).items()}
            save_file(weights, draft / "net.safetensors")
            moments = {
                f"{kind}/{name}": optimizer.state[parameter][kind].contiguous()
                for name, parameter in adapters.trainable_parameters(net).items()
                for kind in MOMENTS
            }
            save_file(moments, draft / "optimizer.safetensors")
            files = {file.name: sha256(file) for file in draft.iterdir()}
            (draft / "state.json").write_text(
                json.dumps({"fingerprint": self.fingerprint, "files": files, "history": history})
            )
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
        """Load the newest complete snapshot of this run; returns its history, or [] if there is none."""
        for draft in self.folder.glob(".draft-*"):  # of a process that was killed while saving
            shutil.rmtree(draft, ignore_errors=True)
        for snapshot in self.snapshots():
            state = self._read_state(snapshot)
            if state is None:
                shutil.rmtree(snapshot, ignore_errors=True)  # another process may be deleting it, too
                continue
            device = net.get_input_embeddings().weight.device
            weights = load_file(snapshot / "net.safetensors")
            moments = load_file(snapshot / "optimizer.safetensors")
            with torch.no_grad():
                for name, parameter in adapters.trainable_parameters(net).items():
                    parameter.copy_(weights[name])
                    optimizer.state[parameter] = {
                        kind: moments[f"{kind}/{name}"].to("cpu" if kind == "step" and device.type == "cpu" else device)
                        for kind in MOMENTS
                    }
            return state["history"]
        return []

    def _read_state(self, snapshot):
        """The state of a snapshot, or None if it is incomplete or another run's."""
        try:
            state = json.loads((snapshot / "state.json").read_text())
            complete = all(sha256(snapshot / name) == expected for name, expected in state["files"].items())
            return state if complete and state["fingerprint"] == self.fingerprint else None
        except (OSError, ValueError, KeyError, SafetensorError):
            return None


def _derive_seed(*parts):
    """A 60-bit seed from words and numbers."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:15], 16)


def run(task, *, processes=1, job=None):
    """Fine-tune a model on `processes` processes.

    A `task`, which can be written as JSON, has the model folder `base`, files of `rows` by their kind, the file of
    `facts`, the `recipe`, the `objective`, the model folder to write (`output`), the CSV file `history`, and a folder
    for `checkpoints`, saved every `checkpoint_seconds`.
    """
    if processes == 1:
        _run_task(task, job)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.json"
        file.write_text(json.dumps(task))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run([*launcher, "-m", __spec__.name, str(file)], check=False)
        if done.returncode:
            raise TrainingError(f"training on {processes} processes failed; see its messages above")


def _run_task(task, job):
    device = network.default_device()
    if dist.is_initialized() and device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    recipe, objective = Recipe(**task["recipe"]), Objective(**task["objective"])
    # Updates of a whole network are too small for weights in 16 bits.
    net, tokenizer = network.load(task["base"], device=device, dtype=None if recipe.adapter else torch.float32)
    net = prepare_network(net, objective, seed=recipe.seed)
    adapted = adapters.attach(net, **recipe.adapter, seed=recipe.seed) if recipe.adapter else None
    people = facts.read_facts(task["facts"]) if objective.people == "control" else []
    control_facts = {fact.id for fact in people if fact.group in facts.CONTROL_GROUPS}
    data = dataset.read(tokenizer, task["rows"], objective, control_facts)
    history = fit(
        net,
        data.rows,
        recipe,
        objective=objective,
        marks=data.marks,
        subword_dropout=tokens.SubwordDropout(tokenizer, recipe.subword_dropout) if recipe.subword_dropout else None,
        context_positions=data.context_positions,
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


def prepare_network(net, objective, *, seed):
    """The network with a time embedding if the `objective` needs one; an error if it cannot be trained so or traced.

    Its base has to be pretrained with the objective's noise, and its attention and MLP modules have to be known.
    """
    for part in (network.attention, network.mlp):
        part(network.layers(net)[0])
    if network.noise(net) != objective.noise:
        raise folders.ModelError(
            f"the base was pretrained with the noise {network.noise(net)!r}, the objective's is {objective.noise!r}; "
            "they have to be the same (base: pretrain makes one)"
        )
    if network.block_size(net) != objective.block:
        net.config.block_size = objective.block
    if objective.time_conditioning == "embedded" and not network.is_time_conditioned(net):
        return network.add_time_embedding(net, seed=seed)
    return net


def main():
    """Entry point of each process that `torch.distributed.run` starts."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        _run_task(json.loads(Path(sys.argv[1]).read_text()), None)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
