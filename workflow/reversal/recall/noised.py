"""Uniform and Gaussian diffusion: every step predicts the whole canvas again, so that tokens can change.

Prompts, canvases, steps and trajectories are as in `masked`; a token counts as remasked when another one replaces it.
"""

import itertools

import torch

from ..common import batches
from ..common.errors import UserError
from ..models import network
from ..models.vocabulary import log_snr
from ..study.configuration import MASK_ONLY_SAMPLING
from .sampling import (
    FIXED,
    MASKED,
    build_canvases,
    check_likelihood,
    check_sampling,
    draw_seeds,
    stack_rows,
    timesteps,
)

NO_TOKEN = -1


@torch.no_grad()
def denoise_each(net, prompts, sampling, steps, *, generator=None):
    """{n: the `Denoised` canvases after n steps} for each n of the list `steps`; like `masked.denoise_each`.

    Each row starts from its own noise, seeded from `generator` (None: always the same).
    """
    for name, allowed in MASK_ONLY_SAMPLING.items():
        value = getattr(sampling, name)
        if value != allowed:
            raise UserError(f"{name} is {value!r}; allowed for {network.noise(net)} noise: {allowed!r}")
    for number in steps:
        check_sampling(prompts, sampling, number)
    generator = generator or torch.Generator().manual_seed(0)
    device = net.get_input_embeddings().weight.device
    start, fixed = build_canvases(prompts, sampling.canvas, network.mask_id(net))
    results = {}
    for number in steps:
        seeds = draw_seeds(len(prompts), generator)

        def fill(indices, number=number, seeds=seeds):
            generators = [torch.Generator().manual_seed(seeds[i]) for i in indices]
            make_process = PROCESSES[network.noise(net)]
            process = make_process(net, start[indices].to(device), fixed[indices].to(device), generators)
            return _run_process(process, sampling, number)

        with batches.autocast(device, sampling.precision):
            rows = batches.run_by_length(fill, [number] * len(prompts), device)
        results[number] = stack_rows(rows, start, network.mask_id(net))
    return results


def _run_process(process, sampling, steps):
    """Take a batch through its steps: a list of (canvas, step, confidence, remasked) per row."""
    tokens, confidences = [], []
    for t, s in itertools.pairwise(timesteps(sampling.schedule, steps).tolist()):
        logits = process.logits(t)
        if sampling.guidance:
            logits = torch.lerp(process.logits(t, guided=False), logits, 1 + sampling.guidance)
        confidence, token = logits.double().softmax(-1).max(-1)
        visible = process.advance(logits, token, confidence, t, s if len(tokens) < steps - 1 else 0)
        tokens.append(torch.where(visible, token, NO_TOKEN))
        confidences.append(confidence)
    parts = (process.canvas, process.fixed, torch.stack(tokens, 2), torch.stack(confidences, 2))
    return [_summarize_trajectory(*row) for row in zip(*(part.cpu() for part in parts), strict=True)]


def _summarize_trajectory(canvas, fixed, tokens, confidences):
    """One row as (canvas, step, confidence, remasked), from the token (L, steps) at each position after each step."""
    canvas, step, confidence, remasked = canvas.clone(), torch.where(fixed, FIXED, MASKED), fixed.double(), []
    for position in (~fixed).nonzero()[:, 0].tolist():
        runs = [
            (token, list(run))
            for token, run in itertools.groupby(range(tokens.shape[1]), tokens[position].tolist().__getitem__)
        ]
        *earlier, (token, last) = runs
        canvas[position], step[position], confidence[position] = token, last[0], confidences[position, last[0]]
        remasked += [(position, token, run[0], run[-1] + 1) for token, run in earlier if token != NO_TOKEN]
    return canvas, step, confidence, remasked


class Uniform:
    """Uniform noise: some tokens are random. A step keeps the most confident predictions and redraws the others."""

    def __init__(self, net, canvas, fixed, generators):
        self.net, self.fixed, self.generators = net, fixed, generators
        self.canvas = torch.where(fixed, canvas, self._draw_tokens(canvas))

    def _draw_tokens(self, like):
        rows = [
            torch.randint(network.vocab(self.net), like.shape[1:], generator=generator) for generator in self.generators
        ]
        return torch.stack(rows).to(like.device)

    def logits(self, t, guided=True):
        """Logits (B, L, V) at time `t`; unguided, with random tokens in place of the fixed ones."""
        canvas = self.canvas if guided else torch.where(self.fixed, self._draw_tokens(self.canvas), self.canvas)
        is_noised = (~self.fixed).float() if guided else torch.ones_like(canvas, dtype=torch.float)
        times = t * is_noised.mean(1, keepdim=True).expand(canvas.shape)  # the share of random tokens on the canvas
        return network.logits(self.net, network.hidden(self.net, canvas, times=times)).float()

    def advance(self, logits, token, confidence, t, s):
        """Go from time `t` to `s`; returns which predicted tokens (B, L) are on the canvas."""
        counts = ((~self.fixed).sum(1, keepdim=True) * (1 - s)).int()
        rank = confidence.masked_fill(self.fixed, -1).argsort(dim=1, descending=True, stable=True).argsort(1)
        chosen = (rank < counts) & ~self.fixed
        self.canvas = torch.where(self.fixed, self.canvas, torch.where(chosen, token, self._draw_tokens(token)))
        return chosen


class Gaussian:
    """Gaussian noise on embeddings, reduced at each step towards the mean prediction without new noise (DDIM)."""

    def __init__(self, net, canvas, fixed, generators):
        self.net, self.fixed, self.canvas = net, fixed, canvas
        self.clean = network.normalised_embeddings(net, canvas)
        shape = self.clean.shape[1:]
        self.state = torch.stack([torch.randn(shape, generator=generator) for generator in generators])
        self.state = self.state.to(canvas.device)

    def logits(self, t, guided=True):
        """Logits (B, L, V) at time `t`; unguided, with noise in place of the fixed tokens."""
        visible = self.fixed if guided else torch.zeros_like(self.fixed)
        embedded = torch.where(visible[..., None], self.clean, self.state)
        levels = torch.where(visible, torch.inf, log_snr(t))
        return network.logits(self.net, network.hidden_from_embeddings(self.net, embedded, levels)).float()

    def advance(self, logits, token, confidence, t, s):
        """Go from time `t` to `s`; returns which predicted tokens (B, L) are on the canvas: all."""
        vocabulary = torch.arange(network.vocab(self.net), device=token.device)
        mean = logits.softmax(-1) @ network.normalised_embeddings(self.net, vocabulary)
        levels = torch.tensor([log_snr(t), log_snr(s)], device=token.device)
        signal = levels[0].sigmoid()
        noise = (self.state - signal.sqrt() * mean) / (1 - signal).sqrt()
        self.state = network.add_gaussian_noise(mean, levels[1], noise)
        return ~self.fixed


PROCESSES = {"uniform": Uniform, "gaussian": Gaussian}


@torch.no_grad()
def log_likelihood(net, prompts, completions, *, samples, canvas, eos, precision="float32", generator=None):
    """A bound on log p(completion | prompt) (N,), float64, for each pair of lists of ids, sampled in one step.

    From noise z in place of the completion, one step draws each token independently: log p ≥ E_z Σ log p(token | z).
    The mean is over `samples` draws of z. As with masks, the network sees where the completion ends.
    """
    check_likelihood(prompts, completions, samples, canvas)
    device = net.get_input_embeddings().weight.device
    rows = torch.full((len(prompts), canvas), eos)
    fixed = torch.ones_like(rows, dtype=torch.bool)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        rows[i, : len(prompt) + len(completion)] = torch.tensor([*prompt, *completion])
        fixed[i, len(prompt) : len(prompt) + len(completion)] = False
    seeds = draw_seeds(samples * len(rows), generator)

    def score(indices):
        row = [index // samples for index in indices]
        ids, in_context = rows[row].to(device), fixed[row].to(device)
        generators = [torch.Generator().manual_seed(seeds[index]) for index in indices]
        logits = PROCESSES[network.noise(net)](net, ids, in_context, generators).logits(1.0)
        log_probs = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
        return log_probs.masked_fill(in_context, 0).double().sum(1).tolist()

    with batches.autocast(device, precision):
        values = batches.run_by_length(score, [canvas] * len(seeds), device)
    return torch.tensor(values, dtype=torch.float64).view(len(rows), samples).mean(1)
