"""How a masked diffusion model is sampled: the settings, the plan of what is revealed when, and what came of it."""

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..common.errors import UserError

LAST_TIME = 1e-5  # where sampling ends, as in SMDM
SCHEDULES = ("linear", "cosine", "geometric")
ORDERS = ("confidence", "random")
REMASKINGS = ("none", "low_confidence")
GIVEN, MASKED = -1, -2  # in place of a step: the token was there from the start, or is not revealed yet


@dataclass(frozen=True)
class Sampling:
    """How canvases are filled: the names and meanings of `sampling` in the configuration.

    At each step every masked token is predicted, and some predictions are revealed.
    """

    canvas: int  # tokens; a prompt stands at its beginning
    # w in logits = un + (1 + w)(cond − un), where `un` sees what was revealed but nothing that was given
    guidance: float = 0.0
    # "confidence" reveals, of n masked tokens, the ⌊n (1 − s/t)⌋ most confident, t and s being the times of this step
    # and the next; "random" reveals each with probability 1 − s/t, which at temperature 1 is ancestral sampling. The
    # last step reveals what is left.
    order: str = "confidence"
    # the scale of Gumbel noise on the logits; a token's confidence is its probability without the noise
    temperature: float = 0.0
    # how time falls from 1 to 0: "linear", "cosine" (few tokens first) or "geometric" (many first)
    schedule: str = "linear"
    # semi-autoregressive: blocks of so many tokens, filled from left to right, each with its share of the steps
    block: int | None = None
    # with "none" a revealed token stays. With "low_confidence" each step shows as many tokens, but those revealed
    # before compete with the new ones by the confidence they had; the least confident are masked again. (What LLaDA
    # calls low-confidence remasking never takes a token back: it is "none" in order of confidence.)
    remasking: str = "none"
    precision: str = "float32"  # of the network's matrix products, or "bfloat16"

    def __post_init__(self):
        for name in ("canvas", "block"):
            if (value := getattr(self, name)) is not None:
                require_whole(name, value)
        for name in ("guidance", "temperature"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UserError(f"{name} is {value}; it is a number from 0 up")
        for name, known in (("order", ORDERS), ("schedule", SCHEDULES), ("remasking", REMASKINGS)):
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"{name} is {value!r}; it is one of {', '.join(known)}")
        if self.order == "random" and self.remasking != "none":
            raise UserError(f"remasking is {self.remasking!r} and order 'random'; remasking goes by confidence")

    @property
    def random(self):
        """Whether chance has a part in it."""
        return self.order == "random" or self.temperature > 0


def require_whole(name, value):
    """Refuse what is no whole number from 1 up."""
    if value < 1 or value != int(value):
        raise UserError(f"{name} is {value}; it is a whole number from 1 up")


def require_room(prompts, canvas):
    """Refuse prompts that leave no room for an answer."""
    for i, prompt in enumerate(prompts):
        if len(prompt) > canvas:
            raise UserError(f"prompt {i} has {len(prompt)} tokens; the canvas holds {canvas}")
        if len(prompt) == canvas:
            raise UserError(f"prompt {i} fills all {canvas} tokens of the canvas; there is no room for an answer")


class Denoised(NamedTuple):
    """Finished canvases and how they came about; tensors on the CPU.

    `step` is the step (from 0) at which a token was revealed for good, −1 where it was given; `confidence` its
    probability then, 1 where given. `withdrawn` lists the tokens that remasking took back: row, position, token, the
    step that revealed it, the step that masked it again.
    """

    canvas: torch.Tensor  # (N, L)
    step: torch.Tensor  # (N, L)
    confidence: torch.Tensor  # (N, L) float64
    withdrawn: torch.Tensor  # (M, 5)
    mask_id: int

    def entering(self, step):
        """The canvases (N, L) as they were when `step` began."""
        canvas = self.canvas.masked_fill(self.step >= step, self.mask_id)
        revealed, masked_again = self.withdrawn[:, 3], self.withdrawn[:, 4]
        row, position, token = self.withdrawn[(revealed < step) & (step <= masked_again), :3].T
        canvas[row, position] = token
        return canvas


class Turn(NamedTuple):
    """One run of the network for a row: at `step`, reveal `count` positions of a `group`."""

    step: int
    group: int
    count: int


def times(schedule, steps):
    """The times t (steps + 1,) that bound the steps, from 1 down to almost 0."""
    if schedule == "linear":
        return torch.linspace(1, LAST_TIME, steps + 1)
    u = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    if schedule == "cosine":
        return LAST_TIME + (1 - LAST_TIME) * torch.cos(torch.pi / 2 * u)
    return LAST_TIME**u


def plan(prompt, fixed, steps, sampling, seed):
    """The group (L,) of each position of one canvas, −1 where fixed, and the row's turns, one group after another.

    Groups are blocks; in random order (`seed` not None) they are the positions that fall due at the same step.
    """
    block = sampling.block or len(fixed)
    blocks = (torch.arange(len(fixed)) - prompt) // block
    blocks[fixed] = -1
    number = -(-(len(fixed) - prompt) // block)
    if seed is not None:
        due = _due_steps(blocks, number, steps, sampling.schedule, seed)
        counts = torch.bincount(due[due >= 0], minlength=steps).tolist()
        return due, [Turn(step, step, count) for step, count in enumerate(counts) if count]
    sizes = tuple(torch.bincount(blocks[blocks >= 0], minlength=number).tolist())
    return blocks, _turns(sizes, steps, sampling.schedule, every_step=sampling.remasking != "none")


@functools.cache
def _turns(sizes, steps, schedule, every_step):
    """The turns of a row whose blocks have `sizes` masked tokens.

    Where nothing is revealed nothing changes, so such a step needs no turn, unless revealed tokens can be withdrawn.
    """
    turns = []
    for group, (masked, share) in enumerate(zip(sizes, _shares(steps, len(sizes)), strict=True)):
        t = times(schedule, len(share))
        for i, step in enumerate(share):
            last = i == len(share) - 1
            count = masked if last else int(masked * (1 - t[i + 1] / t[i]))
            if count or (every_step and masked):
                turns.append(Turn(step, group, count))
            masked -= count
    return turns


def _due_steps(blocks, number, steps, schedule, seed):
    """The step (L,) at which each position is revealed: that in which a uniform time falls, among its block's steps.

    Of the positions still masked at time t, each is then revealed before time s with probability 1 − s/t.
    """
    moment = torch.rand(len(blocks), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    due = torch.full_like(blocks, -1)
    for group, share in enumerate(_shares(steps, number)):
        later = moment[:, None] <= times(schedule, len(share))[1:-1]  # (L, steps of the block − 1)
        due = torch.where(blocks == group, share.start + later.sum(1), due)
    return due


def _shares(steps, blocks):
    """Split `steps` steps into consecutive ranges, one per block, as even as can be."""
    ends = [steps * i // blocks for i in range(blocks + 1)]
    return [range(*pair) for pair in itertools.pairwise(ends)]


def canvases(prompts, given, length, mask):
    """Canvases (N, L) that hold the prompts and the given tokens, and where these lie (N, L)."""
    canvas = torch.full((len(prompts), length), mask)
    fixed = torch.zeros_like(canvas, dtype=torch.bool)
    for i, prompt in enumerate(prompts):
        canvas[i, : len(prompt)] = torch.as_tensor(prompt, dtype=torch.long)
        fixed[i, : len(prompt)] = True
        for position, token in (given[i] if given else {}).items():
            canvas[i, position], fixed[i, position] = token, True
    return canvas, fixed


def denoised(rows, start, mask):
    """A `Denoised` of rows (canvas, step, confidence, withdrawn) that began as the canvases `start` (N, L)."""
    return Denoised(
        canvas=torch.stack([row[0] for row in rows]) if rows else start,
        step=torch.stack([row[1] for row in rows]) if rows else start,
        confidence=torch.stack([row[2] for row in rows]) if rows else start.double(),
        withdrawn=torch.tensor([(i, *taken) for i, row in enumerate(rows) for taken in row[3]]).view(-1, 5).long(),
        mask_id=mask,
    )


def seeds_of(number, generator):
    """As many seeds, one a row, from a generator."""
    return torch.randint(2**62, (number,), generator=generator).tolist()


def check(prompts, sampling, steps, given):
    """Refuse canvases that can not be filled so."""
    require_whole("steps", steps)
    if given is not None and len(given) != len(prompts):
        raise UserError(f"given has {len(given)} entries for {len(prompts)} prompts; each prompt has one")
    canvas, block = sampling.canvas, sampling.block
    require_room(prompts, canvas)
    for i, prompt in enumerate(prompts):
        number = -(-(canvas - len(prompt)) // (block or canvas))
        if steps < number:
            raise UserError(f"prompt {i} leaves {number} blocks of {block} tokens; {steps} steps are too few for them")
        for position in given[i] if given else ():
            if not len(prompt) <= position < canvas:
                raise UserError(f"given[{i}] has position {position}; it lies in {len(prompt)}–{canvas - 1}")


class LikelihoodBound(NamedTuple):
    """An estimate (N,) of a lower bound on log p, and its standard error (N,), 0 where it is exact; float64."""

    estimate: torch.Tensor
    error: torch.Tensor


def check_likelihood(prompts, completions, samples, canvas):
    """Refuse pairs and numbers of samples that give no likelihood."""
    if samples < 2:
        raise UserError(f"samples is {samples}; an estimate with an error needs 2 or more")
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        if not len(completion):
            raise UserError(f"completion {i} is empty; a likelihood needs a token")
        if canvas and len(prompt) + len(completion) > canvas:
            raise UserError(f"row {i} has {len(prompt) + len(completion)} tokens; the canvas holds {canvas}")
