"""Causal tracing: corrupt the subject, restore one hidden state at a time, and measure how much of the answer returns.

The conventions are ROME's. The *state* of layer l is the output of its block; `mlp` and `attn` restore the outputs of
these modules over a window of layers around l, `head` the output of one attention head in layer l. `answer` maps a
position to the token whose probability is measured *there*: an autoregressive network predicts, at a position, the
token after it; a masked diffusion network predicts the masked token itself.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ..common.batches import Budget
from ..common.errors import UserError
from ..models import hooks, network
from . import llama

KINDS = ("state", "mlp", "attn", "head")
DRAWS, SCALE = 10, 3.0  # of the noise, as in ROME; the scale is in standard deviations of the embeddings
BYTES = {"cpu": 64 * 2**20, "cuda": 4 * 2**30}


class Problem(NamedTuple):
    """A sequence to trace, as embeddings."""

    clean: torch.Tensor  # (T, D)
    corrupted: torch.Tensor  # (draws, T, D)
    answer: Mapping | list  # {position: token predicted there}, or such pairs where a position has several tokens
    groups: list | None = None  # tuples of positions to restore together; None: each position alone

    def position_groups(self):
        """The tuples of positions to restore together."""
        return [(position,) for position in range(len(self.clean))] if self.groups is None else self.groups

    def answer_pairs(self):
        """The (position, token) pairs of the answer."""
        return list(self.answer.items()) if isinstance(self.answer, Mapping) else self.answer


class Runs(NamedTuple):
    """Log-probabilities of the A answer tokens, in the order of `answer`, in ROME's three kinds of runs."""

    clean: torch.Tensor  # (A,)
    corrupted: torch.Tensor  # (draws, A)
    restored: torch.Tensor  # (draws, positions, layers, A); for single heads (draws, positions · heads, layers, A)


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


def trace(
    net: torch.nn.Module,
    input_ids: torch.Tensor,
    *,
    subject: tuple[int, int],
    answer: Mapping[int, int],
    noise: torch.Tensor | None = None,
    replacement: Sequence[int] | None = None,
    kind: str = "state",
    window: int = 1,
    severed: str | None = None,
    precision: str = "float32",
) -> Trace:
    """Trace one sequence `input_ids` (T,): corrupt its `subject`, a half-open range of positions, and restore the rest.

    The subject is corrupted by `noise` (draws, subject, D) on its embeddings, or by a `replacement`, as many tokens in
    its place: masks, or another subject. Without either, every call uses the same DRAWS of noise. The other arguments
    are those of `restore`. Heads are restored at all positions at once: their scores are (heads, layers).
    """
    corrupted = corrupt_subject(net, input_ids, subject, noise, replacement)
    groups = [tuple(range(len(input_ids)))] if kind == "head" else None
    problem = Problem(embed(net, input_ids), corrupted, answer, groups)
    [runs] = restore(net, [problem], kind=kind, window=window, severed=severed, precision=precision)
    return score_runs(runs)


def score_runs(runs):
    """The joint `Trace` of the answer in `Runs`."""
    clean, corrupted, restored = (logs.double().sum(-1) for logs in runs)
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


def corrupt_subject(net, input_ids, subject, noise=None, replacement=None):
    """Embeddings (draws, T, D) with a corrupted subject, by DRAWS of noise unless `noise` or `replacement` is given."""
    if noise is not None and replacement is not None:
        raise UserError("both noise and replacement are given; a subject is corrupted in one way")
    if replacement is not None:
        return replace_subject(net, input_ids, subject, replacement)
    _check_subject(subject, len(input_ids))
    return add_noise(net, input_ids, subject, draw_noise(net, subject, DRAWS) if noise is None else noise)


def add_noise(net, input_ids, subject, noise):
    """Embeddings (draws, T, D) with `noise` (draws, subject, D) added to those of the subject."""
    first, end = _check_subject(subject, len(input_ids))
    clean = embed(net, input_ids)
    if noise.dim() != 3 or noise.shape[1:] != (end - first, clean.shape[1]):
        raise UserError(f"noise has shape {tuple(noise.shape)}; it needs (draws, {end - first}, {clean.shape[1]})")
    corrupted = clean.repeat(len(noise), 1, 1)
    corrupted[:, first:end] += noise.to(clean)
    return corrupted


def replace_subject(net, input_ids, subject, tokens):
    """Embeddings (1, T, D) with the subject replaced by as many `tokens`: masks, or another person's name."""
    first, end = _check_subject(subject, len(input_ids))
    if len(tokens) != end - first:
        raise UserError(f"{len(tokens)} tokens cannot replace a subject of {end - first}")
    ids = [*input_ids[:first], *tokens, *input_ids[end:]]
    return embed(net, [int(token) for token in ids])[None]


def draw_noise(
    net: torch.nn.Module,
    subject: int | tuple[int, int],
    draws: int,
    *,
    generator: torch.Generator | None = None,
    scale: float = SCALE,
) -> torch.Tensor:
    """Gaussian noise (draws, tokens, D) of `scale` times the standard deviation of the real tokens' embeddings.

    `subject` is the number of tokens to corrupt, or the range of their positions. Without a `generator`, every call
    draws the same noise.
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    weight = net.get_input_embeddings().weight[: network.vocab(net)].detach()
    tokens = subject if isinstance(subject, int) else subject[1] - subject[0]
    if tokens < 1 or draws < 1:
        raise UserError(f"subject is {subject} and draws {draws}; allowed: one token and one draw at least")
    shape = (draws, tokens, weight.shape[1])
    return scale * weight.float().std().item() * torch.randn(shape, generator=generator)


def plan_windows(kind, window, severed, layers):
    """For each layer, the half-open range of layers at which a run is patched.

    With a severed module these are all layers from the restored state up.
    """
    if kind == "state":
        return [(layer, layer + 1 if severed is None else layers) for layer in range(layers)]
    return [(max(0, layer - window // 2), min(layers, layer - (-window // 2))) for layer in range(layers)]


@torch.no_grad()
def restore(net, problems, *, kind="state", window=1, severed=None, precision="float32"):
    """The `Runs` of each problem: by the fast engine for Llama-like networks, by hooks for any other.

    kind: what is restored: "state", the output of "mlp" or "attn" over `window` layers, or each "head" of attention.
    severed: "mlp" or "attn", with kind "state": in the layers above the restored state, at its position, these modules
        keep their corrupted outputs, so that no effect passes through them.
    precision: of the restored runs' matrix products: "float32", "tf32", "float16" or "bfloat16".
    """
    _check_arguments(net, problems, kind, window, severed, precision)
    plan = plan_windows(kind, window, severed, net.config.num_hidden_layers)
    device = net.get_input_embeddings().weight.device
    budget = Budget(BYTES.get(device.type, BYTES["cuda"]))
    if kind == "head":
        results = [_restore_heads(net, problem, budget) for problem in problems]
    elif llama.is_supported(net):
        results = llama.restore(
            net, problems, kind=kind, plan=plan, severed=severed, precision=precision, budget=budget
        )
    else:
        results = [_restore_by_hooks(net, problem, kind, plan, severed, budget) for problem in problems]
    if not all(restored.isfinite().all() for _, _, restored in results):
        raise UserError(f"precision is {precision}, and a restored run overflows in it; set bfloat16 or float32")
    return [Runs(*logs) for logs in results]


def _restore_by_hooks(net, problem, kind, plan, severed, budget):
    """(clean (A,), corrupted (draws, A), restored (draws, groups, layers, A)), one layer after the other."""
    embedded = torch.cat([problem.clean[None], problem.corrupted])
    answer_position, token = torch.tensor(problem.answer_pairs(), device=embedded.device).T
    patched_kinds = {kind, severed} - {None}
    modules = {(name, layer): find_module(net, name, layer) for name in patched_kinds for layer in range(len(plan))}
    with hooks.record_outputs(modules) as outputs:
        base = log_probabilities(net, embedded, answer_position, token)
    draws = len(problem.corrupted)
    groups = problem.position_groups()
    pairs = [(draw, group) for draw in range(draws) for group in groups]
    restored = base.new_empty(len(pairs), len(plan), len(token))
    for layer, (first, end) in enumerate(plan):

        def run(batch, layer=layer, first=first, end=end):
            corrupted = torch.tensor([1 + draw for draw, _ in pairs[batch]], device=embedded.device)  # rows of the base
            clean = torch.zeros_like(corrupted)
            patched = [(i, position) for i, (_, group) in enumerate(pairs[batch]) for position in group]
            row, position = torch.tensor(patched, device=embedded.device).view(-1, 2).long().T
            above = clean if severed is None else corrupted
            sources = [((kind, first), clean)] + [((severed or kind, i), above) for i in range(first + 1, end)]
            patches = [
                (modules[site], hooks.overwrite(row, position, outputs[site][source[row], position]))
                for site, source in sources
            ]
            with hooks.attach(patches):
                restored[batch, layer] = log_probabilities(net, embedded[corrupted], answer_position, token)

        budget.run_batches([_estimate_run_bytes(net, embedded, token)] * len(pairs), run)
    return base[0].cpu(), base[1:].cpu(), restored.unflatten(0, (draws, len(groups))).cpu()


def _restore_heads(net, problem, budget):
    """Like `_restore_by_hooks` for single heads, which are concatenated before the attention's output matrix."""
    embedded = torch.cat([problem.clean[None], problem.corrupted])
    answer_position, token = torch.tensor(problem.answer_pairs(), device=embedded.device).T
    projections = dict(enumerate(map(network.attention_projection, network.layers(net))))
    with hooks.record_inputs(projections) as inputs:
        base = log_probabilities(net, embedded, answer_position, token)
    shape = (len(problem.corrupted), len(problem.position_groups()), net.config.num_attention_heads, len(projections))
    runs = list(itertools.product(*map(range, shape)))
    restored = base.new_empty(len(runs), len(token))

    def make_hook(layer, batch):
        patched = [(row, group, head) for row, (_, group, head, at) in enumerate(runs[batch]) if at == layer]

        def restore_heads(module, arguments):
            changed, clean = (x.clone().unflatten(-1, (shape[2], -1)) for x in (arguments[0], inputs[layer][0]))
            for row, group, head in patched:
                positions = list(problem.position_groups()[group])
                changed[row, positions, head] = clean[positions, head]
            return (changed.flatten(-2), *arguments[1:])

        return restore_heads

    def run(batch):
        corrupted = problem.corrupted[[draw for draw, *_ in runs[batch]]]
        patches = [(projection, make_hook(layer, batch)) for layer, projection in projections.items()]
        with hooks.attach(patches, before=True):
            restored[batch] = log_probabilities(net, corrupted, answer_position, token)

    budget.run_batches([_estimate_run_bytes(net, embedded, token)] * len(runs), run)
    restored = restored.unflatten(0, shape).flatten(1, 2)
    return base[0].cpu(), base[1:].cpu(), restored.cpu()


def _estimate_run_bytes(net, embedded, token):
    return 4 * (20 * embedded[0].numel() + 2 * len(token) * network.vocab(net))


def find_module(net, kind, layer):
    """The module whose output is the "state" of a layer, or its "mlp" or "attn" output."""
    block = network.layers(net)[layer]
    return {"state": lambda b: b, "mlp": network.mlp, "attn": network.attention}[kind](block)


def log_probabilities(net, embedded, position, token):
    """Log-probabilities (n, A) of `token` (A,) at `position` (A,), for embedded sequences (n, T, D)."""
    states = net.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state[:, position]
    logs = network.logits(net, states).float().log_softmax(-1)
    return logs.gather(-1, token.expand(len(logs), -1)[..., None])[..., 0]


def _check_subject(subject, length):
    first, end = subject
    if not 0 <= first < end <= length:
        raise UserError(
            f"subject is {first}–{end}; it needs to be a range of tokens within the {length} of the sequence"
        )
    return first, end


def _check_arguments(net, problems, kind, window, severed, precision):
    if net.training:
        raise UserError("the network is in training mode; call net.eval() before tracing")
    if network.has_store(net):
        raise UserError("the network has a store, which finds a subject by its tokens; only embeddings are traced")
    if kind not in KINDS:
        raise UserError(f"kind is {kind!r}; allowed: {', '.join(KINDS)}")
    if window < 1 or window != int(window):
        raise UserError(f"window is {window}; allowed: a whole number of layers from 1 up")
    if severed is not None and (severed not in ("mlp", "attn") or kind != "state"):
        raise UserError(f"severed is {severed!r} with kind {kind!r}; allowed: mlp or attn, with kind state")
    if precision not in llama.DTYPES:
        raise UserError(f"precision is {precision!r}; allowed: {', '.join(llama.DTYPES)}")
    if precision != "float32" and (kind == "head" or not llama.is_supported(net)):
        traced = "single heads" if kind == "head" else f"a {type(net).__name__}"
        raise UserError(f"precision is {precision!r}; allowed: float32 for {traced}")
    for problem in problems:
        if not problem.answer:
            raise UserError("answer is empty; it needs at least one token")
        for position, token in problem.answer_pairs():
            if not 0 <= position < len(problem.clean):
                raise UserError(f"answer has position {position}; the sequence has {len(problem.clean)} tokens")
            if not 0 <= token < network.vocab(net):
                raise UserError(f"answer has token {token}; real tokens are 0–{network.vocab(net) - 1}")
