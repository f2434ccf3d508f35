"""Sampling from a diffusion model: the settings, the plan of which tokens are unmasked at which step, and the result.

A canvas is a row of tokens that begins with a prompt; the rest is masked. Sampling takes it from time 1 to time 0 in a
number of steps, each of which predicts the masked tokens and reveals some of them.
"""

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
FIXED, MASKED = -1, -2  # in place of the step of a token: on the canvas from the start, or not revealed yet


@dataclass(frozen=True)
class Sampling:
    """How canvases are filled: the settings of `sampling` in the configuration, under the same names."""

    canvas: int  # tokens of a row, the prompt included
    # w in logits = un + (1 + w)(cond − un), where `un` sees the revealed tokens but not the prompt
    guidance: float = 0.0
    # "confidence" reveals the ⌊n (1 − s/t)⌋ most confident of n masked tokens, where t and s are the times of this step
    # and the next; "random" reveals each with probability 1 − s/t, which at temperature 1 is ancestral sampling. The
    # last step reveals the rest.
    order: str = "confidence"
    # the scale of Gumbel noise on the logits; a token's confidence is its probability without the noise
    temperature: float = 0.0
    # of time from 1 to 0: "linear", "cosine" (few tokens first) or "geometric" (many first)
    schedule: str = "linear"
    # semi-autoregressive sampling of an ordinary network: tokens of a block, counted from the end of the prompt; blocks
    # are filled from left to right, each in its share of steps, and attend to the whole canvas. (The blocks of a block
    # diffusion network are its own, counted from the start of the canvas.)
    block: int | None = None
    # With "none" a revealed token stays. With "low_confidence" each step reveals as many tokens, but earlier ones
    # compete with the new ones by the confidence they had, and the least confident are masked again. (LLaDA's
    # low-confidence remasking never masks a revealed token again: here it is "none" with the order "confidence".)
    remasking: str = "none"
    precision: str = "float32"  # of the network's matrix products, or "bfloat16"

    def __post_init__(self):
        for name in ("canvas", "block"):
            if (value := getattr(self, name)) is not None:
                require_positive_integer(name, value)
        for name in ("guidance", "temperature"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UserError(f"{name} is {value}; it must be a number from 0 up")
        for name, known in (("order", ORDERS), ("schedule", SCHEDULES), ("remasking", REMASKINGS)):
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
        if self.order == "random" and self.remasking != "none":
            raise UserError(
                f"remasking is {self.remasking!r} and order 'random'; remasking needs the order 'confidence'"
            )

    @property
    def is_random(self) -> bool:
        """Whether samples depend on a random generator."""
        return self.order == "random" or self.temperature > 0


def require_positive_integer(name, value):
    """Refuse any value but a whole number from 1 up."""
    if value < 1 or value != int(value):
        raise UserError(f"{name} is {value}; it must be a whole number from 1 up")


def require_room(prompts, canvas):
    """Refuse prompts that leave no room for an answer on a canvas of `canvas` tokens."""
    for i, prompt in enumerate(prompts):
        if len(prompt) > canvas:
            raise UserError(f"prompt {i} has {len(prompt)} tokens; the canvas holds {canvas}")
        if len(prompt) == canvas:
            raise UserError(f"prompt {i} fills all {canvas} tokens of the canvas; there is no room for an answer")


class Denoised(NamedTuple):
    """Finished canvases and the trajectories to them; tensors on the CPU.

    `step` is the step (from 0) at which a token was revealed for the last time, −1 in the prompt; `confidence` is its
    probability then, 1 in the prompt. `remasked` lists the tokens that were masked again: row, position, token, the
    step that revealed it, the step that masked it.
    """

    canvas: torch.Tensor  # (N, L)
    step: torch.Tensor  # (N, L)
    confidence: torch.Tensor  # (N, L) float64
    remasked: torch.Tensor  # (M, 5)
    mask_id: int
    logits: torch.Tensor | None = None  # (steps, N, L, V), if they are kept

    def canvas_before(self, step: int) -> torch.Tensor:
        """The canvases (N, L) before `step`."""
        canvas = self.canvas.masked_fill(self.step >= step, self.mask_id)
        revealed_at, masked_at = self.remasked[:, 3], self.remasked[:, 4]
        row, position, token = self.remasked[(revealed_at < step) & (step <= masked_at), :3].T
        canvas[row, position] = token
        return canvas


class UnmaskingStep(NamedTuple):
    """One run of the network for a row: at `step`, reveal `count` positions of a `group`."""

    step: int
    group: int
    count: int


def timesteps(schedule, steps):
    """The times (steps + 1,) between which the steps lie, from 1 down to almost 0."""
    if schedule == "linear":
        return torch.linspace(1, LAST_TIME, steps + 1)
    u = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    if schedule == "cosine":
        return LAST_TIME + (1 - LAST_TIME) * torch.cos(torch.pi / 2 * u)
    return LAST_TIME**u


def plan_unmasking(prompt_length, steps, sampling, seed, network_block=None):
    """The group (L,) of each position of a canvas, −1 in the prompt, and the row's `UnmaskingStep`s in order.

    Groups are blocks: the sampler's, or those of a block diffusion network. In random order (`seed` not None) a group
    holds the positions that are revealed at one step.
    """
    positions = torch.arange(sampling.canvas)
    if network_block:
        blocks = positions // network_block - prompt_length // network_block
    else:
        blocks = (positions - prompt_length) // (sampling.block or sampling.canvas)
    block_count = int(blocks[-1]) + 1
    blocks[:prompt_length] = -1
    if seed is not None:
        reveal_step = _draw_reveal_steps(blocks, block_count, steps, sampling.schedule, seed)
        counts = torch.bincount(reveal_step[reveal_step >= 0], minlength=steps).tolist()
        return reveal_step, [UnmaskingStep(step, step, count) for step, count in enumerate(counts) if count]
    sizes = tuple(torch.bincount(blocks[blocks >= 0], minlength=block_count).tolist())
    return blocks, _plan_by_confidence(sizes, steps, sampling.schedule, every_step=sampling.remasking != "none")


@functools.cache
def _plan_by_confidence(sizes, steps, schedule, every_step):
    """The `UnmaskingStep`s of a row whose blocks have `sizes` masked tokens.

    A step that reveals nothing changes nothing and is left out, unless tokens can be remasked (`every_step`).
    """
    plan = []
    for block, (masked, block_steps) in enumerate(zip(sizes, _divide_steps(steps, len(sizes)), strict=True)):
        t = timesteps(schedule, len(block_steps))
        for i, step in enumerate(block_steps):
            last = i == len(block_steps) - 1
            count = masked if last else int(masked * (1 - t[i + 1] / t[i]))
            if count or (every_step and masked):
                plan.append(UnmaskingStep(step, block, count))
            masked -= count
    return plan


def _draw_reveal_steps(blocks, block_count, steps, schedule, seed):
    """The step (L,) at which each position is revealed in random order: the one that a uniform random time falls in.

    Each position still masked at time t is thus revealed before time s with probability 1 − s/t.
    """
    time = torch.rand(len(blocks), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    reveal_step = torch.full_like(blocks, -1)
    for block, block_steps in enumerate(_divide_steps(steps, block_count)):
        is_later = time[:, None] <= timesteps(schedule, len(block_steps))[1:-1]  # (L, steps of the block − 1)
        reveal_step = torch.where(blocks == block, block_steps.start + is_later.sum(1), reveal_step)
    return reveal_step


def _divide_steps(steps, blocks):
    """Divide `steps` steps into consecutive ranges, one per block, as evenly as possible."""
    ends = [steps * i // blocks for i in range(blocks + 1)]
    return [range(*pair) for pair in itertools.pairwise(ends)]


def build_canvases(prompts, length, mask):
    """Canvases (N, L) with the prompts, masked elsewhere, and where the prompts are (N, L)."""
    canvas = torch.full((len(prompts), length), mask)
    fixed = torch.zeros_like(canvas, dtype=torch.bool)
    for i, prompt in enumerate(prompts):
        canvas[i, : len(prompt)] = torch.as_tensor(prompt, dtype=torch.long)
        fixed[i, : len(prompt)] = True
    return canvas, fixed


def stack_rows(rows, start, mask):
    """The `Denoised` of rows (canvas, step, confidence, remasked) whose first canvases were `start` (N, L)."""
    return Denoised(
        canvas=torch.stack([row[0] for row in rows]) if rows else start,
        step=torch.stack([row[1] for row in rows]) if rows else start,
        confidence=torch.stack([row[2] for row in rows]) if rows else start.double(),
        remasked=torch.tensor([(i, *token) for i, row in enumerate(rows) for token in row[3]]).view(-1, 5).long(),
        mask_id=mask,
    )


def draw_seeds(count, generator):
    """`count` random seeds, one per row, so that a row's draws do not depend on its batch."""
    return torch.randint(2**62, (count,), generator=generator).tolist()


def check_sampling(prompts, sampling, steps):
    """Refuse prompts or steps that do not fit the canvas and its blocks."""
    require_positive_integer("steps", steps)
    canvas, block = sampling.canvas, sampling.block
    require_room(prompts, canvas)
    for i, prompt in enumerate(prompts):
        blocks = -(-(canvas - len(prompt)) // (block or canvas))
        if steps < blocks:
            raise UserError(f"prompt {i} leaves {blocks} blocks of {block} tokens; {steps} steps are too few for them")


def check_likelihood(prompts, completions, samples, canvas):
    """Refuse no samples, empty completions and rows that are longer than the canvas."""
    require_positive_integer("samples", samples)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        if not len(completion):
            raise UserError(f"completion {i} is empty; it needs at least one token")
        if canvas and len(prompt) + len(completion) > canvas:
            raise UserError(f"row {i} has {len(prompt) + len(completion)} tokens; the canvas holds {canvas}")
