"""Causal tracing: corrupt the subject, put one hidden state back, see how much of the answer returns.

The conventions are ROME's. The *state* of layer l is what its block puts out; `mlp` and `attn` restore what these
modules put out over a window of layers around l. `answer` maps a position to the token whose probability is read
*there*: in an autoregressive network the prediction made at a position is about the token after it, in a masked
diffusion network about the masked token itself.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from ..common.batches import Budget
from ..common.errors import UserError
from ..models import hooks, network
from . import llama

KINDS = ("state", "mlp", "attn")
SEVERABLE = ("mlp", "attn")
BYTES = {"cpu": 64 * 2**20, "cuda": 4 * 2**30}


class Problem(NamedTuple):
    """A sequence to trace, as embeddings."""

    clean: torch.Tensor  # (T, D)
    corrupted: torch.Tensor  # (draws, T, D)
    answer: Mapping | list  # {position: token predicted there}, or such pairs where one position is read twice
    groups: list | None = None  # tuples of positions restored together; None: every position by itself

    def restored(self):
        """The tuples of positions that are restored together."""
        return [(place,) for place in range(len(self.clean))] if self.groups is None else self.groups

    def asked(self):
        """The (position, token) pairs of the answer."""
        return list(self.answer.items()) if isinstance(self.answer, Mapping) else self.answer

    def turned(self):
        """The same with clean and corrupted exchanged, of one draw: what is put back is then what is taken away."""
        [corrupted] = self.corrupted
        return self._replace(clean=corrupted, corrupted=self.clean[None])


class Runs(NamedTuple):
    """Log-probabilities of the A answer tokens, in the order `answer` has them."""

    clean: torch.Tensor  # (A,)
    corrupted: torch.Tensor  # (draws, A)
    restored: torch.Tensor  # (draws, positions, layers, A)


class Trace(NamedTuple):
    """Joint scores of the answer, averaged over draws: as probabilities, and as log-probabilities.

    `clean`, `corrupted` and `restored` are means over draws of the joint probability Π p (for one token: ROME's score);
    `log_…` are means over draws of Σ log p, which is not the logarithm of the former.
    """

    restored: torch.Tensor  # (positions, layers)
    clean: float
    corrupted: float
    log_restored: torch.Tensor  # (positions, layers)
    log_clean: float
    log_corrupted: float


def trace(net, input_ids, *, subject, answer, noise=None, kind="state", window=1, severed=None, **how):
    """The `Trace` of one sequence `input_ids` (T,) with `noise` (draws, subject, D) on its subject's embeddings.

    `subject` is a half-open range of positions; without `noise` some is drawn, the same at every call. The rest is as
    in `restore`.
    """
    if noise is None:
        noise = draw_noise(net, subject, generator=torch.Generator().manual_seed(0))
    problem = Problem(embed(net, input_ids), add_noise(net, input_ids, subject, noise), answer)
    [runs] = restore(net, [problem], kind=kind, window=window, severed=severed, **how)
    return score(runs)


def score(runs, tokens=slice(None)):
    """The joint `Trace` of the answer's `tokens` (a slice or a list of indices)."""
    clean, corrupted, restored = (logs[..., tokens].double().sum(-1) for logs in runs)
    return Trace(
        restored=restored.exp().mean(0),
        clean=clean.exp().item(),
        corrupted=corrupted.exp().mean().item(),
        log_restored=restored.mean(0),
        log_clean=clean.item(),
        log_corrupted=corrupted.mean().item(),
    )


def embed(net, input_ids):
    """The embeddings (T, D) of one sequence."""
    table = net.get_input_embeddings()
    with torch.no_grad():
        return table(torch.as_tensor(input_ids, device=table.weight.device))


def add_noise(net, input_ids, subject, noise):
    """Embeddings (draws, T, D) with `noise` (draws, subject, D) on the subject."""
    first, end = _within(subject, len(input_ids))
    clean = embed(net, input_ids)
    if noise.dim() != 3 or noise.shape[1:] != (end - first, clean.shape[1]):
        raise UserError(f"noise has shape {tuple(noise.shape)}; it is (draws, {end - first}, {clean.shape[1]})")
    corrupted = clean.repeat(len(noise), 1, 1)
    corrupted[:, first:end] += noise.to(clean)
    return corrupted


def replace_subject(net, input_ids, subject, tokens):
    """Embeddings (1, T, D) with other `tokens`, as many, in the subject's place: masks, or another's name."""
    first, end = _within(subject, len(input_ids))
    if len(tokens) != end - first:
        raise UserError(f"{len(tokens)} tokens cannot replace a subject of {end - first}")
    ids = [*input_ids[:first], *tokens, *input_ids[end:]]
    return embed(net, [int(token) for token in ids])[None]


def draw_noise(net, subject, draws=10, *, generator=None, scale=3.0):
    """Gaussian noise (draws, tokens, D) of `scale` times the standard deviation of the real tokens' embeddings.

    `subject` is how many tokens there are to hide, or the range of their positions.
    """
    weight = net.get_input_embeddings().weight[: network.vocab(net)].detach()
    tokens = subject if isinstance(subject, int) else subject[1] - subject[0]
    shape = (draws, tokens, weight.shape[1])
    return scale * weight.float().std().item() * torch.randn(shape, generator=generator)


def windows(kind, window, severed, layers):
    """For each layer, the layers (first, past the last) from which something is put back.

    With a severed module these are all layers from the restored state up.
    """
    if kind == "state":
        return [(layer, layer + 1 if severed is None else layers) for layer in range(layers)]
    return [(max(0, layer - window // 2), min(layers, layer - (-window // 2))) for layer in range(layers)]


@torch.no_grad()
def restore(net, problems, *, kind="state", window=1, severed=None, precision="float32"):
    """The `Runs` of each problem: Llama networks by an engine of their own, any other by hooks.

    kind: what is put back: "state", or the output of "mlp" or "attn" over `window` layers.
    severed: "mlp" or "attn", with kind "state": in the layers above the restored state, at its position, these modules
        stay at their corrupted values, so that what returns did not come through them.
    precision: of the restored runs' matrix products: "float32", "tf32", "float16" or "bfloat16".
    """
    _check(net, problems, kind, window, severed, precision)
    plan = windows(kind, window, severed, net.config.num_hidden_layers)
    device = net.get_input_embeddings().weight.device
    budget = Budget(BYTES.get(device.type, BYTES["cuda"]))
    if llama.supports(net):
        found = llama.restore(net, problems, kind=kind, plan=plan, severed=severed, precision=precision, budget=budget)
    else:
        found = [_restore_by_hooks(net, problem, kind, plan, severed, budget) for problem in problems]
    if not all(runs[2].isfinite().all() for runs in found):
        raise UserError(f"precision is {precision}; a restored run overflows in it: bfloat16 and float32 have room")
    return [Runs(*runs) for runs in found]


def _restore_by_hooks(net, problem, kind, plan, severed, budget):
    embedded = torch.cat([problem.clean[None], problem.corrupted])
    position, token = torch.tensor(problem.asked(), device=embedded.device).T
    with hooks.outputs({key: site(net, *key) for key in _sites(kind, severed, len(plan))}) as seen:
        base = _log_probabilities(net, embedded, position, token)
    draws = len(problem.corrupted)
    groups = problem.restored()
    pairs = [(draw, group) for draw in range(draws) for group in groups]
    restored = base.new_empty(len(pairs), len(plan), len(token))
    for layer, (first, end) in enumerate(plan):

        def run(some, layer=layer, first=first, end=end):
            rows = torch.tensor([1 + draw for draw, _ in pairs[some]], device=embedded.device)
            hit = [(i, place) for i, (_, group) in enumerate(pairs[some]) for place in group]
            run, place = torch.tensor(hit, device=embedded.device).view(-1, 2).long().T
            clean, kept = torch.zeros_like(rows), torch.zeros_like(rows) if severed is None else rows
            put = [((kind, first), clean)] + [((severed or kind, above), kept) for above in range(first + 1, end)]
            patches = [
                (site(net, *key), hooks.overwrite(run, place, seen[key][source[run], place])) for key, source in put
            ]
            with hooks.attached(patches):
                restored[some, layer] = _log_probabilities(net, embedded[rows], position, token)

        budget.spend([4 * (20 * embedded[0].numel() + 2 * len(token) * network.vocab(net))] * len(pairs), run)
    return base[0].cpu(), base[1:].cpu(), restored.unflatten(0, (draws, len(groups))).cpu()


def _sites(kind, severed, layers):
    return [(name, layer) for name in {kind, severed} - {None} for layer in range(layers)]


def site(net, name, layer):
    """The module whose output is the "state" of a layer, or what its "mlp" or "attn" adds."""
    block = network.layers(net)[layer]
    return {"state": lambda b: b, "mlp": network.mlp, "attn": network.attention}[name](block)


def _log_probabilities(net, embedded, position, token):
    """Log-probabilities (n, A) of `token` (A,) at `position` (A,), for embedded sequences (n, T, D)."""
    states = net.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state[:, position]
    logs = network.logits(net, states).float().log_softmax(-1)
    return logs.gather(-1, token.expand(len(logs), -1)[..., None])[..., 0]


def _within(subject, length):
    first, end = subject
    if not 0 <= first < end <= length:
        raise UserError(f"subject is {first}–{end}; it is a range of tokens within the {length} of the sequence")
    return first, end


def _check(net, problems, kind, window, severed, precision):
    if net.training:
        raise UserError("the network is in training mode; tracing needs it as net.eval() leaves it")
    if kind not in KINDS:
        raise UserError(f"kind is {kind!r}; it is one of {', '.join(KINDS)}")
    if window < 1 or window != int(window):
        raise UserError(f"window is {window}; it is a whole number of layers from 1 up")
    if severed is not None and (severed not in SEVERABLE or kind != "state"):
        raise UserError(f"severed is {severed!r} with kind {kind!r}; it is mlp or attn, with kind state")
    if precision not in llama.DTYPES:
        raise UserError(f"precision is {precision!r}; it is one of {', '.join(llama.DTYPES)}")
    if precision != "float32" and not llama.supports(net):
        raise UserError(f"precision is {precision!r}; a {type(net).__name__} is traced in float32 only")
    for problem in problems:
        if not problem.answer:
            raise UserError("an answer has at least one token")
        for position, token in problem.asked():
            if not 0 <= position < len(problem.clean):
                raise UserError(f"answer has position {position}; the sequence has {len(problem.clean)} tokens")
            if not 0 <= token < network.vocab(net):
                raise UserError(f"answer has token {token}; real tokens are 0–{network.vocab(net) - 1}")
