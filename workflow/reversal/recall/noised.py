"""Uniform and Gaussian diffusion: each step predicts the whole canvas anew, so that tokens can change.

Canvases, what is given, steps and trajectories are those of `masked`. A token is withdrawn when another one takes its
place.
"""

import itertools

import torch

from ..common import batches
from ..common.errors import UserError
from ..models import network, noises
from .sampling import (
    GIVEN,
    MASKED,
    LikelihoodBound,
    canvases,
    check,
    check_likelihood,
    denoised,
    seeds_of,
    times,
)

NO_TOKEN = -1
FIXED = {"order": "confidence", "temperature": 0, "block": None, "remasking": "none"}  # as MASKS_ALONE of configuration


@torch.no_grad()
def denoise_each(net, prompts, sampling, steps, *, given=None, generator=None):
    """{n: a `Denoised` in n steps} for each n of the list `steps`, for one `Sampling`; as `masked.denoise_each`.

    Each row begins with noise of its own, seeded from `generator` (None: always the same).
    """
    for name, only in FIXED.items():
        if getattr(sampling, name) != only:
            raise UserError(f"{name} is {getattr(sampling, name)!r}; allowed for {network.noise(net)} noise: {only!r}")
    for number in steps:
        check(prompts, sampling, number, given)
    generator = generator or torch.Generator().manual_seed(0)
    device = net.get_input_embeddings().weight.device
    start, fixed = canvases(prompts, given, sampling.canvas, network.mask_id(net))
    found = {}
    for number in steps:
        seeds = seeds_of(len(prompts), generator)

        def fill(indices, number=number, seeds=seeds):
            own = [torch.Generator().manual_seed(seeds[i]) for i in indices]
            process = PROCESSES[network.noise(net)](net, start[indices].to(device), fixed[indices].to(device), own)
            return _refine(process, sampling, number)

        with batches.autocast(device, sampling.precision):
            rows = batches.run(fill, [number] * len(prompts), device)
        found[number] = denoised(rows, start, network.mask_id(net))
    return found


def _refine(process, sampling, steps):
    """Take a batch through its steps; a list of (canvas, step, confidence, withdrawn) per row."""
    shown, sure = [], []
    for now, then in itertools.pairwise(times(sampling.schedule, steps).tolist()):
        logits = process.logits(now)
        if sampling.guidance:
            logits = torch.lerp(process.logits(now, guided=False), logits, 1 + sampling.guidance)
        confidence, token = logits.double().softmax(-1).max(-1)
        kept = process.advance(logits, token, confidence, now, then if len(shown) < steps - 1 else 0)
        shown.append(torch.where(kept, token, NO_TOKEN))
        sure.append(confidence)
    parts = (process.canvas, process.given, torch.stack(shown, 2), torch.stack(sure, 2))
    return [_trajectory(*row) for row in zip(*(part.cpu() for part in parts), strict=True)]


def _trajectory(canvas, given, shown, sure):
    """What came of one row: `shown` (L, steps) has the token at each place after each step."""
    canvas, step, confidence, withdrawn = canvas.clone(), torch.where(given, GIVEN, MASKED), given.double(), []
    for place in (~given).nonzero()[:, 0].tolist():
        runs = [
            (token, list(run))
            for token, run in itertools.groupby(range(shown.shape[1]), shown[place].tolist().__getitem__)
        ]
        *earlier, (token, last) = runs
        canvas[place], step[place], confidence[place] = token, last[0], sure[place, last[0]]
        withdrawn += [(place, token, run[0], run[-1] + 1) for token, run in earlier if token != NO_TOKEN]
    return canvas, step, confidence, withdrawn


class Uniform:
    """Tokens of which some are drawn at random. A step keeps the surest predictions and draws the rest anew."""

    def __init__(self, net, canvas, given, generators):
        self.net, self.given, self.generators = net, given, generators
        self.canvas = torch.where(given, canvas, self._drawn(canvas))

    def _drawn(self, like):
        rows = [torch.randint(network.vocab(self.net), like.shape[1:], generator=own) for own in self.generators]
        return torch.stack(rows).to(like.device)

    def logits(self, now, guided=True):
        """Logits (B, L, V) at a time; unguided, without what is given."""
        canvas = self.canvas if guided else torch.where(self.given, self._drawn(self.canvas), self.canvas)
        noised = (~self.given).float() if guided else torch.ones_like(canvas, dtype=torch.float)
        told = now * noised.mean(1, keepdim=True).expand(canvas.shape)  # the share of the canvas that is drawn
        return network.logits(self.net, network.hidden(self.net, canvas, times=told)).float()

    def advance(self, logits, token, confidence, now, then):
        """Go on to the time `then`; returns which tokens (B, L) are kept."""
        counts = ((~self.given).sum(1, keepdim=True) * (1 - then)).int()
        surest = confidence.masked_fill(self.given, -1).argsort(dim=1, descending=True, stable=True).argsort(1)
        kept = (surest < counts) & ~self.given
        self.canvas = torch.where(self.given, self.canvas, torch.where(kept, token, self._drawn(token)))
        return kept


class Gaussian:
    """Embeddings with noise, less at each step: towards the mean of what is predicted, without new noise (DDIM)."""

    def __init__(self, net, canvas, given, generators):
        self.net, self.given, self.canvas = net, given, canvas
        self.clean = network.normalised(net, canvas)
        shape = self.clean.shape[1:]
        self.state = torch.stack([torch.randn(shape, generator=own) for own in generators]).to(canvas.device)

    def logits(self, now, guided=True):
        """Logits (B, L, V) at a time; unguided, without what is given."""
        seen = self.given if guided else torch.zeros_like(self.given)
        embedded = torch.where(seen[..., None], self.clean, self.state)
        told = torch.where(seen, torch.inf, noises.log_snr(now))
        return network.logits(self.net, network.hidden_of(self.net, embedded, told)).float()

    def advance(self, logits, token, confidence, now, then):
        """Go on to the time `then`; every token (B, L) is shown."""
        vocabulary = torch.arange(network.vocab(self.net), device=token.device)
        guess = logits.softmax(-1) @ network.normalised(self.net, vocabulary)
        levels = torch.tensor([noises.log_snr(now), noises.log_snr(then)], device=token.device)
        signal = levels[0].sigmoid()
        noise = (self.state - signal.sqrt() * guess) / (1 - signal).sqrt()
        self.state = network.noised(guess, levels[1], noise)
        return ~self.given


PROCESSES = {"uniform": Uniform, "gaussian": Gaussian}


@torch.no_grad()
def log_likelihood(net, prompts, completions, *, samples, canvas, eos, precision="float32", generator=None):
    """A bound on log p(completion | prompt) for each pair of lists of ids, when it is drawn in one step.

    From noise z in the place of the completion, one step draws each token by itself: log p ≥ E_z Σ log p(token | z).
    The mean is over `samples` draws of z. As with masks, the network sees where the completion ends.
    """
    check_likelihood(prompts, completions, samples, canvas)
    device = net.get_input_embeddings().weight.device
    rows = torch.full((len(prompts), canvas), eos)
    given = torch.ones_like(rows, dtype=torch.bool)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        rows[i, : len(prompt) + len(completion)] = torch.tensor([*prompt, *completion])
        given[i, len(prompt) : len(prompt) + len(completion)] = False
    seeds = seeds_of(samples * len(rows), generator)

    def score(indices):
        which = [index // samples for index in indices]
        ids, fixed = rows[which].to(device), given[which].to(device)
        own = [torch.Generator().manual_seed(seeds[index]) for index in indices]
        logits = PROCESSES[network.noise(net)](net, ids, fixed, own).logits(1.0)
        each = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
        return each.masked_fill(fixed, 0).double().sum(1).tolist()

    with batches.autocast(device, precision):
        found = batches.run(score, [canvas] * len(seeds), device)
    values = torch.tensor(found, dtype=torch.float64).view(len(rows), samples)
    return LikelihoodBound(values.mean(1), values.std(1) / samples**0.5)
