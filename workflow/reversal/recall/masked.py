"""Masked diffusion: sampling by unmasking, likelihood bounds, and predictions of the first token.

Rows of a batch can be at different steps of their plans: the loop runs the network once for the next `UnmaskingStep` of
every row that has one left. Each row draws from a random generator of its own, so that batches do not change results.
"""

import itertools
import math

import torch
from transformers import PreTrainedModel

from ..common import batches
from ..common.errors import UserError
from ..models import network
from . import logits
from .sampling import (
    FIXED,
    MASKED,
    Denoised,
    Sampling,
    build_canvases,
    check_likelihood,
    check_sampling,
    draw_seeds,
    plan_unmasking,
    stack_rows,
)


def denoise(
    net: PreTrainedModel,
    prompts: list[list[int]],
    *,
    steps: int,
    generator: torch.Generator | None = None,
    keep_logits: bool = False,
    **sampling,
) -> Denoised:
    """Fill canvases that begin with `prompts` (lists of ids) in `steps` denoising steps.

    `sampling` has the fields of `Sampling`, of which `canvas`, the number of tokens of a row, is required.
    `keep_logits` adds the network's `logits`, without guidance, at every step, which takes a run of the network more
    for each.
    """
    if not network.is_diffusion(net):
        raise UserError("denoise needs a diffusion network; recall.answer completes with a network of either family")
    result = denoise_each(net, prompts, Sampling(**sampling), [steps], generator=generator)[steps]
    if not keep_logits:
        return result
    device = net.get_input_embeddings().weight.device
    with torch.no_grad():
        states = (network.prediction_states(net, result.canvas_before(step).to(device)) for step in range(steps))
        return result._replace(logits=torch.stack([network.logits(net, state).cpu() for state in states]))


@torch.no_grad()
def denoise_each(net, prompts, sampling, steps, *, generator=None, predict_states=None):
    """{n: the result of `denoise` in n steps} for each n of the list `steps`.

    `predict_states(canvas, prompt, step)` replaces `network.prediction_states`: from canvases (A, L), the numbers of
    their prompts and their steps (lists of A) to states (A, L, D). Guidance still contrasts with the network itself.

    Equal plans run once: with as many steps as masked tokens or more, every step reveals one token, so that a greater
    number of steps gives the same canvas.
    """
    for number in steps:
        check_sampling(prompts, sampling, number)
    device = net.get_input_embeddings().weight.device
    mask, blocks = network.mask_id(net), network.block_size(net)
    if blocks and (sampling.guidance or sampling.block):
        raise UserError("a block diffusion network is sampled without guidance and with its own blocks; set neither")
    start, fixed = build_canvases(prompts, sampling.canvas, mask)
    runs, results, known = [], {number: [] for number in steps}, {}
    for number in steps:
        order_seeds = draw_seeds(len(prompts), generator) if sampling.order == "random" else [None] * len(prompts)
        noise_seeds = draw_seeds(len(prompts), generator) if sampling.temperature else [None] * len(prompts)
        for i, prompt in enumerate(prompts):
            groups, plan = plan_unmasking(len(prompt), number, sampling, order_seeds[i], blocks)
            # Random numbers differ between numbers of steps, so that only greedy runs can be shared.
            key = (i, number if sampling.is_random else None, tuple(unmasking[1:] for unmasking in plan))
            run = known.setdefault(key, len(runs))
            if run == len(runs):
                runs.append((i, groups, plan, noise_seeds[i]))
            results[number].append((run, plan))

    budget = logits.budget(device)

    def unmask_runs(indices):
        """The unmasked rows of the `runs` at `indices`, as one batch."""
        rows, groups, plans, seeds = zip(*(runs[index] for index in indices), strict=True)
        generators = [torch.Generator(device).manual_seed(seed) for seed in seeds] if sampling.temperature else None

        def predict(canvas, fixed_positions, masked, active, step):
            states = predict_states and predict_states(canvas, [rows[i] for i in active], step.tolist())
            states = _gather_states(net, canvas, fixed_positions, masked, sampling.guidance, states)
            return _choose_tokens(net, sampling, budget, states, masked, generators and [generators[i] for i in active])

        return _unmask(
            start[list(rows)].to(device),
            fixed[list(rows)].to(device),
            torch.stack(groups).to(device),
            plans,
            predict,
            mask,
            sampling.remasking,
        )

    with batches.autocast(device, sampling.precision):
        filled = batches.run_by_length(unmask_runs, [len(plan) for _, _, plan, _ in runs], device)
    return {
        number: stack_rows([_renumber_steps(filled[run], runs[run][2], plan) for run, plan in shared], start, mask)
        for number, shared in results.items()
    }


def _renumber_steps(row, plan, wanted):
    """A filled row with the step numbers of its `plan` replaced by those of the `wanted` plan."""
    if plan == wanted:
        return row
    canvas, step, confidence, remasked = row
    numbers = torch.arange(max(unmasking.step for unmasking in plan) + 1)
    numbers[[unmasking.step for unmasking in plan]] = torch.tensor([unmasking.step for unmasking in wanted])
    return canvas, torch.where(step >= 0, numbers[step.clamp(min=0)], step), confidence, remasked


def _unmask(canvas, fixed, groups, plans, predict, mask, remasking):
    """Carry out the plan of every row of `canvas` (B, L): a list of (canvas, step, confidence, remasked) per row."""
    step = torch.where(fixed, FIXED, MASKED)
    confidence = fixed.double()
    remasked = [[] for _ in plans]
    for number in range(max(map(len, plans))):
        active = [i for i, plan in enumerate(plans) if len(plan) > number]
        unmasking = torch.tensor([plans[i][number] for i in active], device=canvas.device)
        now, group, count = unmasking[:, :, None].unbind(1)  # (A, 1) each
        in_group = groups[active] == group  # (A, L)
        masked = in_group & (step[active] == MASKED)
        token = torch.zeros_like(canvas[active])
        score = torch.full(in_group.shape, -1.0, device=in_group.device).double()
        token[masked], score[masked] = predict(canvas[active], fixed[active], masked, active, now[:, 0])
        if remasking == "low_confidence":
            visible = in_group & (step[active] >= 0)
            score = torch.where(visible, confidence[active], score)
            count = count + visible.sum(1, keepdim=True)
        rank = score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        chosen = rank < count
        if remasking == "low_confidence":
            for row, position in (visible & ~chosen).nonzero().tolist():
                i = active[row]
                revealed_at, masked_at = step[i, position].item(), now[row].item()
                remasked[i].append((position, canvas[i, position].item(), revealed_at, masked_at))
                canvas[i, position], step[i, position] = mask, MASKED
        revealed = masked & chosen
        canvas[active] = torch.where(revealed, token, canvas[active])
        step[active] = torch.where(revealed, now, step[active])
        confidence[active] = torch.where(revealed, score, confidence[active])
    return list(zip(canvas.cpu(), step.cpu(), confidence.cpu(), remasked, strict=True))


def _gather_states(net, canvas, fixed, masked, guidance, states=None):
    """The `states` (B, L, D) of `canvas` (B, L), or the network's own, at the `masked` positions (B, L): (1, P, D).

    With guidance (2, P, D): conditional, then unconditional, from canvases whose `fixed` tokens (B, L) are masked.
    """
    if not guidance:
        return (network.prediction_states(net, canvas) if states is None else states)[masked][None]
    # Rows that differ only in fixed tokens have one unconditional canvas: all rows, before the first reveal.
    unguided, same = canvas.masked_fill(fixed, network.mask_id(net)).unique(dim=0, return_inverse=True)
    if states is None:
        together = network.prediction_states(net, torch.cat([canvas, unguided]))
        states, unconditional = together.split([len(canvas), len(unguided)])
    else:
        unconditional = network.prediction_states(net, unguided)
    row, position = masked.nonzero().T
    return torch.stack([states[row, position], unconditional[same[row], position]])


def _choose_tokens(net, sampling, budget, states, masked, generators):
    """The chosen token (P,) and its confidence (P,) at each `masked` position (A, L), from `_gather_states`.

    The logits of as many rows are computed together as the `budget` allows. `generators` has one per row, or is None.
    """
    counts = masked.sum(1).tolist()
    ends = [0, *itertools.accumulate(counts)]
    token = torch.empty(ends[-1], dtype=torch.long, device=masked.device)
    confidence = torch.empty(ends[-1], dtype=torch.float64, device=masked.device)

    def choose(rows):
        positions = slice(ends[rows.start], ends[rows.stop])
        logits = network.logits(net, states[:, positions].flatten(0, 1)).float()
        if sampling.guidance:
            conditional, unconditional = logits.chunk(2)
            logits = torch.lerp(unconditional, conditional, 1 + sampling.guidance)
        best, chosen = logits.max(-1)
        if generators:
            noise = _draw_exponential(counts[rows], logits.shape[-1], generators[rows])
            chosen = (logits.double() - sampling.temperature * noise.log()).argmax(-1)
        token[positions] = chosen
        # Summed in float64: confidences near 1 differ by less than float32 resolves.
        total = (logits - best[:, None]).exp_().sum(-1, dtype=torch.float64)
        confidence[positions] = (logits.gather(-1, chosen[:, None])[:, 0] - best).double().exp() / total

    cost = (4 if generators else 1) * logits.LOGITS * network.vocab(net)  # noise is float64
    budget.run_batches([max([1, *counts]) * cost] * len(counts), choose)
    return token, confidence


def _draw_exponential(counts, vocab, generators):
    """Exponential noise (P, V), whose −log is Gumbel noise: `counts` rows from each of the generators."""
    draws = [
        torch.empty((count, vocab), dtype=torch.float64, device=generator.device).exponential_(generator=generator)
        for count, generator in zip(counts, generators, strict=True)
    ]
    return torch.cat(draws)


@torch.no_grad()
def log_likelihood(net, prompts, completions, *, samples, canvas=None, eos=None, precision="float32", generator=None):
    """The diffusion bound on log p(completion | prompt) (N,), float64, for each pair of lists of ids.

    Of a completion's n tokens, k random ones are masked, with k uniform over 1 … n; the bound is the mean over such
    masks of n/k · Σ log p(token | the rest), summed over the masked tokens. For n = 1 it is log p itself. It is
    estimated from `samples` masks, or computed exactly if there are fewer masks. With `canvas`, rows are filled with
    `eos` to that length, as in training; either way the network sees where the completion ends. Of a block diffusion
    network it is the sum of the bounds of the completion's blocks, each given those before it.
    """
    check_likelihood(prompts, completions, samples, canvas)
    options = {"samples": samples, "canvas": canvas, "eos": eos, "precision": precision, "generator": generator}
    if network.block_size(net):
        return _sum_over_blocks(net, prompts, completions, **options)
    return _bound_likelihood(net, prompts, completions, **options)


def _sum_over_blocks(net, prompts, completions, **options):
    """The bounds of each completion's blocks, given those before them, summed (N,)."""
    size, owners, contexts, parts = network.block_size(net), [], [], []
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        first, row = len(prompt), [*prompt, *completion]
        ends = [*range(first // size * size + size, len(row), size), len(row)]
        for start, end in itertools.pairwise([first, *ends]):
            owners.append(i)
            contexts.append(row[:start])
            parts.append(row[start:end])
    bounds = _bound_likelihood(net, contexts, parts, **options)
    total = torch.zeros(len(prompts), dtype=torch.float64)
    return total.index_add(0, torch.tensor(owners, dtype=torch.long), bounds)


def _bound_likelihood(net, prompts, completions, *, samples, canvas, eos, precision, generator):
    """The bound of `log_likelihood` where the whole completion is masked at once."""
    device = net.get_input_embeddings().weight.device
    mask = network.mask_id(net)
    rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    if canvas:
        rows = [row + [eos] * (canvas - len(row)) for row in rows]
    draws = [draw_masks(len(completion), samples, generator=generator) for completion in completions]
    runs = [(i, hidden) for i, (masks, _) in enumerate(draws) for hidden in masks]

    def score(indices):
        ids, real = batches.pad([rows[runs[index][0]] for index in indices], mask)
        masked = torch.zeros_like(real)
        for row, (i, hidden) in zip(masked, (runs[index] for index in indices), strict=True):
            row[len(prompts[i]) : len(prompts[i]) + len(hidden)] = hidden
        attention_mask = None if real.all() else real.to(device)
        noised = ids.masked_fill(masked, mask).to(device)
        states = network.prediction_states(net, noised, attention_mask)[masked.to(device)]
        log_probs = logits.token_log_probs(net, states, ids[masked].to(device))
        total = torch.zeros(len(ids), dtype=torch.float64)
        total.index_add_(0, masked.nonzero()[:, 0], log_probs.double().cpu())
        return (total / masked.sum(1)).tolist()

    with batches.autocast(device, precision):
        means = batches.run_by_length(score, [len(rows[i]) for i, _ in runs], device)
    values = torch.tensor(means, dtype=torch.float64).split([len(masks) for masks, _ in draws])
    bounds = [(value * masks.shape[1] * weight).sum() for value, (masks, weight) in zip(values, draws, strict=True)]
    return torch.stack(bounds) if bounds else torch.zeros(0, dtype=torch.float64)


def draw_masks(length, samples, *, generator):
    """Masks (S, length) of k tokens each, k uniform over 1 … length, and the weight (S,) of each.

    The k of the samples are spaced evenly (antithetic sampling), which lowers the variance. If fewer than `samples`
    masks exist, all of them are returned, with their probabilities as weights.
    """
    if 2**length - 1 < samples:
        masks = torch.arange(1, 2**length)[:, None] >> torch.arange(length) & 1 == 1
        counts = masks.sum(1)
        return masks, torch.tensor([1 / (length * math.comb(length, k)) for k in counts.tolist()], dtype=torch.float64)
    start = torch.rand((), dtype=torch.float64, generator=generator)
    even = (start + torch.arange(samples, dtype=torch.float64) / samples) % 1
    counts = (even * length).long().clamp(max=length - 1) + 1
    masks = torch.rand((samples, length), generator=generator).argsort(1).argsort(1) < counts[:, None]
    return masks, torch.full((samples,), 1 / samples, dtype=torch.float64)
