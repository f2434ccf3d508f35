"""Masked diffusion: sampling by unmasking, and likelihood."""

import itertools
import math

import torch

from ..common import batches
from ..models import network
from . import logits
from .sampling import (
    GIVEN,
    MASKED,
    LikelihoodBound,
    Sampling,
    canvases,
    check,
    check_likelihood,
    denoised,
    plan,
    require_room,
    seeds_of,
)


def denoise(net, prompts, *, steps, given=None, generator=None, **sampling):
    """Fill canvases that begin with `prompts` (lists of ids), in `steps` steps: a `Denoised`.

    `sampling` are the fields of `Sampling`; the `canvas`, in tokens, has to be among them.
    given: infilling: for each prompt a dict {position: id} of further tokens that stay.

    Each row draws random numbers of its own, seeded from `generator`, so batches do not change results.
    """
    return denoise_each(net, prompts, Sampling(**sampling), [steps], given=given, generator=generator)[steps]


@torch.no_grad()
def denoise_each(net, prompts, sampling, steps, *, given=None, generator=None, look=None):
    """{n: what `denoise` gives in n steps} for each n of the list `steps`, for one `Sampling`.

    look: what the network makes of canvases, in the place of `network.predictions`: a function of canvases (A, L), the
        prompts (A,) whose they are and their steps (A,) to states (A, L, D). Guidance leads away from the plain one.

    No canvas is taken through the same turns twice: from as many steps as there are masked tokens on, one is revealed
    at a time, and further steps change nothing.
    """
    for number in steps:
        check(prompts, sampling, number, given)
    device = net.get_input_embeddings().weight.device
    mask = network.mask_id(net)
    start, fixed = canvases(prompts, given, sampling.canvas, mask)
    jobs, wanted, known = [], {number: [] for number in steps}, {}
    for number in steps:
        order_seeds = seeds_of(len(prompts), generator) if sampling.order == "random" else [None] * len(prompts)
        noise_seeds = seeds_of(len(prompts), generator) if sampling.temperature else [None] * len(prompts)
        for i, prompt in enumerate(prompts):
            groups, turns = plan(len(prompt), fixed[i], number, sampling, order_seeds[i])
            job = (i, groups, turns, noise_seeds[i])
            chance = number if sampling.random else None
            place = known.setdefault((i, chance, tuple(turn[1:] for turn in turns)), len(jobs))
            if place == len(jobs):
                jobs.append(job)
            wanted[number].append((place, turns))

    budget = logits.budget(device)

    def fill(indices):
        rows, groups, turns, seeds = zip(*(jobs[j] for j in indices), strict=True)
        noise = [torch.Generator(device).manual_seed(seed) for seed in seeds] if sampling.temperature else None

        def predict(canvas, given, where, active, now):
            seen = look and look(canvas, [rows[i] for i in active], now.tolist())
            states = _states(net, canvas, given, where, sampling.guidance, seen)
            return _choose(net, sampling, budget, states, where, noise and [noise[i] for i in active])

        return _fill(
            start[list(rows)].to(device),
            fixed[list(rows)].to(device),
            torch.stack(groups).to(device),
            turns,
            predict,
            mask,
            sampling.remasking,
        )

    with batches.autocast(device, sampling.precision):
        filled = batches.run(fill, [len(turns) for _, _, turns, _ in jobs], device)
    return {
        number: denoised([_renumbered(filled[place], jobs[place][2], turns) for place, turns in own], start, mask)
        for number, own in wanted.items()
    }


def _renumbered(row, turns, wanted):
    """A filled row with the steps of the `turns` it took called by those of the `wanted` ones."""
    if turns == wanted:
        return row
    canvas, step, confidence, withdrawn = row
    numbers = torch.arange(max(turn.step for turn in turns) + 1)
    numbers[[turn.step for turn in turns]] = torch.tensor([turn.step for turn in wanted])
    return canvas, torch.where(step >= 0, numbers[step.clamp(min=0)], step), confidence, withdrawn


def _fill(canvas, given, groups, turns, predict, mask, remasking):
    """Take every row of `canvas` (B, L) through its turns; a list of (canvas, step, confidence, withdrawn) per row."""
    step = torch.where(given, GIVEN, MASKED)
    confidence = given.double()
    withdrawn = [[] for _ in turns]
    for number in range(max(map(len, turns))):
        active = [i for i, own in enumerate(turns) if len(own) > number]
        now, group, count = torch.tensor([turns[i][number] for i in active], device=canvas.device)[:, :, None].unbind(1)
        here = groups[active] == group  # (A, L)
        masked = here & (step[active] == MASKED)
        token, score = torch.zeros_like(canvas[active]), torch.full(here.shape, -1.0, device=here.device).double()
        token[masked], score[masked] = predict(canvas[active], given[active], masked, active, now[:, 0])
        if remasking == "low_confidence":
            shown = here & (step[active] >= 0)
            score = torch.where(shown, confidence[active], score)
            count = count + shown.sum(1, keepdim=True)
        rank = score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        kept = rank < count
        if remasking == "low_confidence":
            for row, position in (shown & ~kept).nonzero().tolist():
                i = active[row]
                taken = (position, canvas[i, position].item(), step[i, position].item(), now[row].item())
                withdrawn[i].append(taken)
                canvas[i, position], step[i, position] = mask, MASKED
        revealed = masked & kept
        canvas[active] = torch.where(revealed, token, canvas[active])
        step[active] = torch.where(revealed, now, step[active])
        confidence[active] = torch.where(revealed, score, confidence[active])
    return list(zip(canvas.cpu(), step.cpu(), confidence.cpu(), withdrawn, strict=True))


def _states(net, canvas, given, where, guidance, seen=None):
    """States (1, P, D) at the positions `where` (B, L) of `canvas` (B, L), or of what is `seen` of it (B, L, D).

    With guidance (2, P, D): the others are those of the canvases without the `given` tokens (B, L).
    """
    if not guidance:
        return (network.predictions(net, canvas) if seen is None else seen)[where][None]
    # Rows that differ only in what was given are one canvas without it: before the first reveal, all of them.
    unguided, same = canvas.masked_fill(given, network.mask_id(net)).unique(dim=0, return_inverse=True)
    if seen is None:
        states = network.predictions(net, torch.cat([canvas, unguided]))
        seen, unconditional = states.split([len(canvas), len(unguided)])
    else:
        unconditional = network.predictions(net, unguided)
    row, position = where.nonzero().T
    return torch.stack([seen[row, position], unconditional[same[row], position]])


def _choose(net, sampling, budget, states, where, noise):
    """The predicted token and its confidence (P,) at each position `where` (A, L), from `_states` there.

    Rows share the head's run as far as the `budget` goes. `noise` has a generator for each of them.
    """
    counts = where.sum(1).tolist()
    ends = [0, *itertools.accumulate(counts)]
    token = torch.empty(ends[-1], dtype=torch.long, device=where.device)
    confidence = torch.empty(ends[-1], dtype=torch.float64, device=where.device)

    def choose(some):
        here = slice(ends[some.start], ends[some.stop])
        logits = _logits(net, states[:, here], sampling.guidance)
        best, chosen = logits.max(-1)
        if noise:
            drawn = _exponential(counts[some], logits.shape[-1], noise[some])
            chosen = (logits.double() - sampling.temperature * drawn.log()).argmax(-1)
        token[here] = chosen
        # Summed in float64: confidences near 1 differ by less than float32 can tell.
        total = (logits - best[:, None]).exp_().sum(-1, dtype=torch.float64)
        confidence[here] = (logits.gather(-1, chosen[:, None])[:, 0] - best).double().exp() / total

    each = (4 if noise else 1) * logits.LOGITS * network.vocab(net)  # noise is float64
    budget.spend([max([1, *counts]) * each] * len(counts), choose)
    return token, confidence


def _logits(net, states, guidance):
    """Logits (P, V) for `_states`; with guidance led away from those of the others."""
    logits = network.logits(net, states.flatten(0, 1)).float()
    if not guidance:
        return logits
    conditional, unconditional = logits.chunk(2)
    return torch.lerp(unconditional, conditional, 1 + guidance)


def _exponential(counts, vocab, generators):
    """Exponential noise (P, V), whose −log is Gumbel's, so many rows of it from each of the generators."""
    draws = [
        torch.empty((count, vocab), dtype=torch.float64, device=generator.device).exponential_(generator=generator)
        for count, generator in zip(counts, generators, strict=True)
    ]
    return torch.cat(draws)


@torch.no_grad()
def log_likelihood(net, prompts, completions, *, samples, canvas=None, eos=None, precision="float32", generator=None):
    """The diffusion bound on log p(completion | prompt) for each pair of lists of ids: a `LikelihoodBound`.

    Of a completion's n tokens k random ones are masked, k uniform over 1 … n; the bound is the mean over such masks of
    n/k · Σ log p(token | the rest), summed over the masked tokens. For n = 1 it is log p itself. It is estimated from
    `samples` masks; where no more exist, all are weighed. With `canvas`, rows are filled with `eos` up to that length,
    as in training. Either way the network sees where the completion ends.
    """
    check_likelihood(prompts, completions, samples, canvas)
    device = net.get_input_embeddings().weight.device
    mask = network.mask_id(net)
    rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    if canvas:
        rows = [row + [eos] * (canvas - len(row)) for row in rows]
    draws = [draw_masks(len(completion), samples, generator=generator) for completion in completions]
    jobs = [(i, hide) for i, (masks, _) in enumerate(draws) for hide in masks]

    def score(indices):
        ids, real = batches.pad([rows[jobs[j][0]] for j in indices], mask)
        where = torch.zeros_like(real)
        for place, (i, hide) in zip(where, (jobs[j] for j in indices), strict=True):
            place[len(prompts[i]) : len(prompts[i]) + len(hide)] = hide
        attended = None if real.all() else real.to(device)
        states = network.predictions(net, ids.masked_fill(where, mask).to(device), attended)[where.to(device)]
        each = logits.token_logs(net, states, ids[where].to(device))
        total = torch.zeros(len(ids), dtype=torch.float64)
        total.index_add_(0, where.nonzero()[:, 0], each.double().cpu())
        return (total / where.sum(1)).tolist()

    with batches.autocast(device, precision):
        means = batches.run(score, [len(rows[i]) for i, _ in jobs], device)
    values = torch.tensor(means, dtype=torch.float64).split([len(masks) for masks, _ in draws])
    estimates, errors = [], []
    for value, (masks, weight) in zip(values, draws, strict=True):
        value = value * masks.shape[1]
        sampled = len(masks) == samples  # or else all there are
        estimates.append((value * weight).sum())
        errors.append(value.std() / samples**0.5 if sampled else torch.zeros((), dtype=torch.float64))
    return LikelihoodBound(*(torch.stack(part) if rows else torch.zeros(0).double() for part in (estimates, errors)))


def draw_masks(length, samples, *, generator):
    """Masks (S, length) that hide k tokens each, k uniform over 1 … length, and the weight (S,) of each.

    The k of the samples are spread evenly (antithetic), which makes for less variance than independence. Fewer than
    `samples` masks are returned where fewer exist: then they are all of them, and the weights their probabilities.
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


@torch.no_grad()
def first_token(net, prompts, *, canvas=None, precision="float32"):
    """Log-probabilities (N, V) of the token after each prompt, when the canvas after it is masked (None: one mask)."""
    device = net.get_input_embeddings().weight.device
    mask = network.mask_id(net)
    if canvas:
        require_room(prompts, canvas)
    rows = [[*prompt, *[mask] * (canvas - len(prompt) if canvas else 1)] for prompt in prompts]

    def predict(indices):
        ids, real = batches.pad([rows[i] for i in indices], mask)
        first = torch.nn.functional.one_hot(torch.tensor([len(prompts[i]) for i in indices]), ids.shape[1]).bool()
        attended = None if real.all() else real.to(device)
        states = network.predictions(net, ids.to(device), attended)[first.to(device)]
        return network.logits(net, states).float().log_softmax(-1).cpu()

    with batches.autocast(device, precision):
        return torch.stack(batches.run(predict, [len(row) for row in rows], device))
