"""Causal tracing of Llama and Qwen2 networks that computes only what a restoration can change.

Both base runs, clean and corrupted, are kept layer by layer. A restored run starts from the corrupted one at the layer
where it first differs, and there it differs at the restored positions only: their queries, keys and values are swapped
in, the rest is reused. The last layer and the head run at the answer's positions alone. In a causal network positions
before the restored one keep their corrupted keys and values, and those before the subject have nothing to restore.
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM, Qwen2ForCausalLM

from ..models import network

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Matrix(NamedTuple):
    """A linear layer; a weight of another type than what it multiplies is converted for that product alone."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x):
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class Block(NamedTuple):
    """The weights of one decoder block."""

    before_attention: torch.Tensor
    query: Matrix
    key: Matrix
    value: Matrix
    out: Matrix
    before_mlp: torch.Tensor
    gate: Matrix
    up: Matrix
    down: Matrix


class Llama(NamedTuple):
    """A network's weights, and the precision of its products, for sequences of one length T."""

    blocks: list
    norm: torch.Tensor
    predict: Callable  # from normed states (..., D) to logits (..., V), both float32
    vocab: int
    eps: float
    causal: bool
    cosine: torch.Tensor  # (T, head size), of the type of all products
    sine: torch.Tensor


class Layer(NamedTuple):
    """What the base runs hold at one layer, for all N clean and corrupted sequences.

    Of the last layer, what is added is there at the answers only.
    """

    entering: torch.Tensor  # (N, T, D)
    query: torch.Tensor  # (N, T, heads, head size)
    key: torch.Tensor
    value: torch.Tensor
    attn: torch.Tensor  # (N, T, D), what the attention adds
    mlp: torch.Tensor  # (N, T, D), what the MLP adds


class Base(NamedTuple):
    """The base runs of several problems of one length, R corrupted sequences in all."""

    layers: list
    leaving: torch.Tensor  # (N, T, D), what the last layer puts out at the answers
    corrupted: torch.Tensor  # (R,) which of the N is the corrupted sequence
    clean: torch.Tensor  # (R,) and which the clean one it came from
    position: torch.Tensor  # (R, A) where the answer is read; short answers are filled up with their first
    token: torch.Tensor  # (R, A)
    logs: torch.Tensor  # (R, A) log-probabilities in the corrupted run
    clean_logs: torch.Tensor  # (R, A) and in the clean one


class Pairs(NamedTuple):
    """n restored runs: the corrupted sequence each starts from, and which of its positions are put back."""

    row: torch.Tensor  # (n,)
    chosen: torch.Tensor  # (n, T)
    first: torch.Tensor  # (n,) the first chosen position


class Kept(NamedTuple):
    """What is put back above the first restored layer: the output of a module, from these of the base runs."""

    site: str  # "mlp" or "attn"; "state" stands for nothing
    source: torch.Tensor  # (R,)


class Spots(NamedTuple):
    """Where a batch is computed: the run and the position of each spot, in any one shape S."""

    run: torch.Tensor  # S
    place: torch.Tensor  # S
    restored: tuple  # the indices, into S, of restored positions


class Batch(NamedTuple):
    """n restored runs that are computed together, each from its first restored position on."""

    origin: torch.Tensor  # (n,) the corrupted sequence, among the base runs
    source: torch.Tensor  # (n,) the sequence whose module outputs are put back
    site: str  # of the module
    start: int  # no run has an earlier spot
    spots: Spots  # (P,), run by run
    answer: Spots  # (n, A)
    asked: torch.Tensor  # (n, A), which of the P spots each answer is read at
    token: torch.Tensor  # (n, A)


def supports(net):
    """Whether `net` is a Llama or a Qwen2 with SiLU whose every layer attends to the whole sequence."""
    whole = set(getattr(net.config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    return isinstance(net, LlamaForCausalLM | Qwen2ForCausalLM) and whole and net.config.hidden_act == "silu"


def restore(net, problems, *, kind, plan, severed, precision, budget):
    """(clean, corrupted, restored) log-probabilities of each `tracing.Problem`, as in `tracing.Runs`.

    `plan` has each layer's window of restored layers (first, past the last); `budget` is a `batches.Budget`.
    """
    by_length = {}
    for i, problem in enumerate(problems):
        length = len(problem.clean) if network.is_diffusion(net) else max(place for place, _ in problem.asked()) + 1
        by_length.setdefault(length, []).append(i)
    results = [None] * len(problems)
    dtype = DTYPES[precision]
    fast_blocks = _blocks(net, dtype)
    # The base runs are exact, whatever the precision of the weights: no second copy of all of them is kept for that.
    exact_blocks = fast_blocks if dtype == torch.float32 else _blocks(net)
    predict = _prediction(net)
    with _float32_products(precision):
        for length, members in by_length.items():
            fast = _prepare(net, length, dtype, fast_blocks, predict)
            exact = _prepare(net, length, torch.float32, exact_blocks, predict)
            found = _restore_alike(exact, fast, [problems[i] for i in members], length, kind, plan, severed, budget)
            for i, result in zip(members, found, strict=True):
                results[i] = result
    return results


def _restore_alike(exact, fast, problems, length, kind, plan, severed, budget):
    """The results of problems of one length; they share a batch where one alone does not fill it."""
    answers = max(len(problem.answer) for problem in problems)
    runs = max(len(problem.corrupted) * len(problem.restored()) for problem in problems)
    results = []

    def run(some):
        with _float32_products("float32"):
            base = run_base(exact, fast, problems[some], length)
        logs = _restored_logs(fast, base, problems[some], kind, plan, severed, budget)
        results.extend(list(_by_problem(base, logs, problems[some])))

    sequences = 1 + max(len(problem.corrupted) for problem in problems)
    each = max(runs * _bytes(exact, length, length, answers), _bytes_kept(exact, sequences, length))
    budget.spend([each] * len(problems), run)
    return results


def _blocks(net, dtype=None):
    """The network's blocks, matrices as `dtype`, copied where they are not; None: as they are. Norms are float32."""

    def matrix(layer):
        return Matrix(*(part if part is None else part.to(dtype or part.dtype) for part in (layer.weight, layer.bias)))

    return [
        Block(
            before_attention=layer.input_layernorm.weight.float(),
            query=matrix(layer.self_attn.q_proj),
            key=matrix(layer.self_attn.k_proj),
            value=matrix(layer.self_attn.v_proj),
            out=matrix(layer.self_attn.o_proj),
            before_mlp=layer.post_attention_layernorm.weight.float(),
            gate=matrix(layer.mlp.gate_proj),
            up=matrix(layer.mlp.up_proj),
            down=matrix(layer.mlp.down_proj),
        )
        for layer in net.model.layers
    ]


def _prediction(net):
    """The head in float32, as a function from states (..., D) to logits (..., V)."""
    head = net.lm_head.weight[: network.vocab(net)].float()
    return lambda states: network.without_mask(net, functional.linear(states, head))


def _prepare(net, length, dtype, blocks, predict):
    place = torch.arange(length, device=net.model.norm.weight.device)[None]
    cosine, sine = net.model.rotary_emb(torch.empty(0, dtype=torch.float32, device=place.device), place)
    return Llama(
        blocks=blocks,
        norm=net.model.norm.weight.float(),
        predict=predict,
        vocab=network.vocab(net),
        eps=net.config.rms_norm_eps,
        causal=not network.is_diffusion(net),
        cosine=cosine[0].to(dtype),
        sine=sine[0].to(dtype),
    )


def run_base(exact, fast, problems, length):
    """Run every clean and corrupted sequence, in float32, and keep what restored runs reuse."""
    device = exact.norm.device
    draws = torch.tensor([len(problem.corrupted) for problem in problems])
    clean = torch.arange(len(problems)).repeat_interleave(draws).to(device)
    corrupted = len(problems) + torch.arange(len(clean), device=device)
    sequences = [problem.clean[None] for problem in problems] + [problem.corrupted for problem in problems]
    x = torch.cat([sequence[:, :length] for sequence in sequences]).to(device, torch.float32)
    asked, wanted = (field.to(device) for field in _answers(problems))  # (problems, A)
    everywhere, at_answers = torch.arange(length, device=device), torch.cat([asked, asked[clean]])
    layers = []
    for number, block in enumerate(exact.blocks):
        last = number == len(exact.blocks) - 1
        normed = _norm(exact, x, block.before_attention)
        query, key, value = _queries(exact, block, normed, everywhere), *_keys_values(exact, block, normed, everywhere)
        # Of the last layer nothing is read but where answers are.
        before, here, places = (
            (_at(x, at_answers), _at(query, at_answers), at_answers) if last else (x, query, everywhere)
        )
        attn = block.out(_mix(exact, here, key, value, places))
        mlp = _mlp(exact, block, before + attn)
        leaving = before + attn + mlp
        if last:
            attn, mlp = (_spread_out(field, at_answers, length) for field in (attn, mlp))
        layers.append(Layer(x, *(field.to(fast.cosine.dtype) for field in (query, key, value)), attn, mlp))
        x = leaving
    logs = _log_probabilities(exact, x, torch.cat([wanted, wanted[clean]]))
    return Base(
        layers=layers,
        leaving=_spread_out(x, at_answers, length),
        corrupted=corrupted,
        clean=clean,
        position=asked[clean],
        token=wanted[clean],
        logs=logs[corrupted],
        clean_logs=logs[clean],
    )


def _spread_out(x, position, length):
    """`x` (N, A, D) at its `position` (N, A) among `length`, nothing elsewhere."""
    whole = x.new_zeros(len(x), length, x.shape[-1])
    whole[torch.arange(len(x), device=x.device)[:, None], position] = x
    return whole


def _answers(problems):
    """Positions and tokens (problems, A) of the answers."""
    longest = max(len(problem.answer) for problem in problems)
    answers = [problem.asked() for problem in problems]
    return torch.tensor([answer + answer[:1] * (longest - len(answer)) for answer in answers]).unbind(-1)


def _restored_logs(llama, base, problems, kind, plan, severed, budget):
    """Log-probabilities (pairs, layers, A), the pairs running over problems, their groups, their draws."""
    pairs, changing = _pairs(base, problems, llama.causal)
    kept = Kept(kind, base.clean) if severed is None else Kept(severed, base.corrupted)
    logs = base.logs[pairs.row][:, None].repeat(1, len(plan), 1)
    pairs = Pairs(*(field[changing] for field in pairs))
    for start in sorted({first for first, _ in plan}):
        layers = {}  # whose windows start here, by where these end
        for layer, (first, end) in enumerate(plan):
            if first == start:
                layers.setdefault(end, []).append(layer)
        for end, found in _restore_from(llama, base, pairs, start, sorted(layers), kind, kept, budget).items():
            for layer in layers[end]:
                logs[changing, layer] = found
    return logs


def _pairs(base, problems, causal):
    """All runs, and the indices of those that can differ from their corrupted run, by first restored position."""
    rows, chosen, row = [], [], 0
    for problem in problems:
        groups, draws = problem.restored(), len(problem.corrupted)
        member = torch.zeros(len(groups), len(problem.clean), dtype=torch.bool)
        for i, group in enumerate(groups):
            member[i, list(group)] = True
        rows.append((row + torch.arange(draws)).repeat(len(groups)))
        chosen.append(member[:, : base.leaving.shape[1]].repeat_interleave(draws, 0))
        row += draws
    rows, chosen = (torch.cat(parts).to(base.clean.device) for parts in (rows, chosen))
    embedded = base.layers[0].entering
    corrupted = (embedded[base.corrupted] != embedded[base.clean]).any(-1)  # (R, T)
    # What a corrupted embedding can reach: in a causal network its own position and those after it.
    reached = corrupted.cumsum(1) > 0 if causal else corrupted.any(1, keepdim=True)
    changing = (chosen & reached[rows]).any(1).nonzero()[:, 0]
    first = chosen.int().argmax(1)
    return Pairs(rows, chosen, first), changing[first[changing].argsort(stable=True)]


def _restore_from(llama, base, pairs, start, ends, kind, kept, budget):
    """Log-probabilities (n, A) of restored runs whose windows begin at layer `start`, by the `ends` of these."""
    length, corrupted, position = len(llama.cosine), base.logs[pairs.row], base.position[pairs.row]
    if start == len(llama.blocks) - 1:
        alone = _restored_alone(llama, base, kind, start)
        logs = _log_probabilities(llama, _at(alone, base.position), base.token)
        return {end: torch.where(pairs.chosen.gather(1, position), logs[pairs.row], corrupted) for end in ends}
    swapped = _entering_alone(llama, base, kind, start + 1)
    results = {end: corrupted.clone() for end in ends}

    def run(some):
        own = Pairs(*(field[some] for field in pairs))
        batch = _batch(llama, base, own, kept)
        x, heads = _enter(base, batch, own.row, start + 1, swapped)
        # In a causal network nothing that is restored changes an earlier prediction.
        after = position[some] >= own.first[:, None] if llama.causal else True
        for end, logs in _follow(llama, base, batch, start + 1, x, heads, ends).items():
            results[end][some] = torch.where(after, logs, corrupted[some]) if llama.causal else logs

    tokens = (length - pairs.first).tolist() if llama.causal else [length] * len(pairs.row)
    budget.spend([_bytes(llama, number, length, position.shape[1]) for number in tokens], run)
    return results


def _restored_alone(llama, base, kind, layer):
    """What `layer` puts out (R, T, D) at each position if this position, no other, is restored there first."""
    here = base.layers[layer]
    if kind == "state":
        after = base.leaving if layer == len(base.layers) - 1 else base.layers[layer + 1].entering
        return after[base.clean]
    if kind == "mlp":
        return here.entering[base.corrupted] + here.attn[base.corrupted] + here.mlp[base.clean]
    middle = here.entering[base.corrupted] + here.attn[base.clean]
    return middle + _mlp(llama, llama.blocks[layer], middle)


def _entering_alone(llama, base, kind, layer):
    """The same states as they enter `layer`, and their queries, keys and values (R, T, ...)."""
    if kind == "state":
        now = base.layers[layer]
        return [field[base.clean] for field in (now.entering, now.query, now.key, now.value)]
    block, alone = llama.blocks[layer], _restored_alone(llama, base, kind, layer - 1)
    places = torch.arange(alone.shape[1], device=alone.device)
    normed = _norm(llama, alone, block.before_attention)
    return [alone, _queries(llama, block, normed, places), *_keys_values(llama, block, normed, places)]


def _batch(llama, base, pairs, kept):
    earliest = pairs.first if llama.causal else torch.zeros_like(pairs.first)
    reached = torch.arange(pairs.chosen.shape[1], device=earliest.device) >= earliest[:, None]  # (n, T)
    number = reached.flatten().cumsum(0).view_as(reached) - 1
    position = base.position[pairs.row]
    runs = torch.arange(len(position), device=position.device)[:, None].expand_as(position)
    return Batch(
        origin=base.corrupted[pairs.row],
        source=kept.source[pairs.row],
        site=kept.site,
        start=int(earliest.min()),
        spots=_spots(*reached.nonzero(as_tuple=True), pairs.chosen),
        answer=_spots(runs, position, pairs.chosen),
        asked=number.gather(1, position).clamp(min=0),
        token=base.token[pairs.row],
    )


def _spots(run, place, chosen):
    return Spots(run, place, chosen[run, place].nonzero(as_tuple=True))


def _enter(base, batch, row, layer, swapped):
    """States (P, D) entering `layer`, and queries, keys and values (n, T, ...): corrupted, but where restored.

    `swapped` are these four of all corrupted sequences (R, T, ...), as if every position were restored; `row` (n,)
    says which of the sequences is whose.
    """
    run, place = (field[batch.spots.restored] for field in batch.spots[:2])
    here = base.layers[layer]
    x = here.entering[batch.origin[batch.spots.run], batch.spots.place]
    x[batch.spots.restored] = swapped[0][row[run], place]
    heads = [field.index_select(0, batch.origin) for field in (here.query, here.key, here.value)]
    for field, restored in zip(heads, swapped[1:], strict=True):
        field[run, place] = restored[row[run], place]
    return x, heads


def _follow(llama, base, batch, layer, x, heads, ends):
    """Run states `x` (P, D) entering `layer` to the answer: log-probabilities (n, A), by the end of the window.

    Windows that begin alike share their layers until the first of them ends. `heads` are the queries, keys and values
    (n, T, ...) that go with `x`.
    """
    while True:
        over, running = ([end for end in ends if (end <= layer) == past] for past in (True, False))
        if over and running:
            return {
                **_follow(llama, base, batch, layer, x, heads, over),
                **_follow(llama, base, batch, layer, x, heads, running),
            }
        if layer == len(llama.blocks) - 1:
            return dict.fromkeys(ends, _finish(llama, base, batch, x, heads, restoring=bool(running)))
        x = _through(llama, base, batch, layer, x, heads, restoring=bool(running))
        layer, heads = layer + 1, None


def _through(llama, base, batch, layer, x, heads, *, restoring):
    """The states (P, D) that leave `layer` when `x` (P, D) enter it."""
    block, here, spots = llama.blocks[layer], base.layers[layer], batch.spots
    if heads is None:
        normed = _norm(llama, x, block.before_attention)
        heads = _queries(llama, block, normed, spots.place), *_keys_values(llama, block, normed, spots.place)
        heads = _spread(llama, batch, heads, (here.query, here.key, here.value))
    query, key, value = heads
    start = batch.start
    mixed = _mix(llama, query[:, start:], key, value, torch.arange(start, key.shape[1], device=x.device))
    mixed = mixed[spots.run, spots.place - start] if llama.causal else mixed.flatten(0, 1)
    return _add(llama, block, here, batch, spots, x, mixed, restoring=restoring)


def _finish(llama, base, batch, x, heads, *, restoring):
    """Log-probabilities (n, A) of the answers; the last layer runs where they are read."""
    block, here, answer = llama.blocks[-1], base.layers[-1], batch.answer
    if heads is None:
        normed = _norm(llama, x, block.before_attention)
        query = _queries(llama, block, normed[batch.asked], answer.place)
        heads = _keys_values(llama, block, normed, batch.spots.place)
        key, value = _spread(llama, batch, heads, (here.key, here.value))
    else:
        query, key, value = heads
        query = query[answer.run, answer.place]
    mixed = _mix(llama, query, key, value, answer.place)
    x = _add(llama, block, here, batch, answer, x[batch.asked], mixed, restoring=restoring)
    return _log_probabilities(llama, x, batch.token)


def _add(llama, block, here, batch, spots, x, mixed, *, restoring):
    """The states (S, D) after a block, from those before it and what its attention mixed (S, heads together)."""

    def plus(x, site, added):
        total = x + added
        if restoring and site == batch.site:
            run, place = (field[spots.restored] for field in spots[:2])
            total[spots.restored] = x[spots.restored] + getattr(here, site)[batch.source[run], place]
        return total

    x = plus(x, "attn", block.out(mixed))
    return plus(x, "mlp", _mlp(llama, block, x))


def _spread(llama, batch, heads, corrupted):
    """Heads (n, T, ...) of whole sequences, from those computed (P, ...) and the `corrupted` (N, T, ...)."""
    if not llama.causal:
        return [field.unflatten(0, (len(batch.origin), -1)) for field in heads]
    whole = [field.index_select(0, batch.origin) for field in corrupted]
    for field, computed in zip(whole, heads, strict=True):
        field[batch.spots.run, batch.spots.place] = computed
    return whole


def _norm(llama, x, weight):
    """States (..., D) normed, of the type that products have."""
    return functional.rms_norm(x, x.shape[-1:], weight, llama.eps).to(llama.cosine.dtype)


def _queries(llama, block, normed, place):
    """Queries (..., heads, size) of `normed` (..., D) at the positions `place` (...)."""
    return _rotated(llama, block.query(normed), place)


def _keys_values(llama, block, normed, place):
    """Keys and values (..., heads, size) of `normed` (..., D) at the positions `place` (...)."""
    return _rotated(llama, block.key(normed), place), block.value(normed).unflatten(-1, (-1, llama.cosine.shape[1]))


def _rotated(llama, x, place):
    """Heads (..., heads, size) of `x` (..., heads together), turned by their positions `place` (...)."""
    x = x.unflatten(-1, (-1, llama.cosine.shape[1]))
    half = x.shape[-1] // 2
    cosine, sine = llama.cosine[place].unsqueeze(-2), llama.sine[place].unsqueeze(-2)
    turned = x.new_empty(x.shape)
    for own, other, sign in ((slice(half), slice(half, None), -1), (slice(half, None), slice(half), 1)):
        torch.mul(x[..., own], cosine[..., own], out=turned[..., own])
        turned[..., own].addcmul_(x[..., other], sine[..., own], value=sign)
    return turned


def _mix(llama, query, key, value, place):
    """What the heads of attention read (n, t, heads together), for queries at `place` (t,) or (n, t)."""
    mask = None
    if llama.causal:
        mask = torch.arange(key.shape[1], device=key.device) <= place[..., None]
        mask = mask if mask.dim() == 2 else mask[:, None]
    mixed = functional.scaled_dot_product_attention(
        *(field.transpose(1, 2) for field in (query, key, value)),
        attn_mask=mask,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return mixed.transpose(1, 2).flatten(2)


def _mlp(llama, block, x):
    """What the MLP adds (..., D) to states `x` (..., D)."""
    normed = _norm(llama, x, block.before_mlp)
    return block.down(functional.silu(block.gate(normed), inplace=True).mul_(block.up(normed)))


def _log_probabilities(llama, x, token):
    """Log-probabilities (n, A) of `token` (n, A), from the states (n, A, D) that leave the last layer."""
    logits = llama.predict(functional.rms_norm(x, x.shape[-1:], llama.norm, llama.eps))
    return logits.gather(-1, token[..., None])[..., 0] - logits.logsumexp(-1)


def _at(x, position):
    """`x` (N, T, ...) at `position` (N, A)."""
    return x[torch.arange(len(x), device=x.device)[:, None], position]


def _by_problem(base, logs, problems):
    """Each problem's (clean (A,), corrupted (draws, A), restored (draws, groups, layers, A)), on the CPU."""
    row = pair = 0
    for problem in problems:
        draws, groups, answers = len(problem.corrupted), len(problem.restored()), len(problem.answer)
        own = logs[pair : pair + groups * draws, :, :answers].cpu().unflatten(0, (groups, draws))
        yield base.clean_logs[row, :answers].cpu(), base.logs[row : row + draws, :answers].cpu(), own.movedim(0, 1)
        row, pair = row + draws, pair + groups * draws


def _bytes(llama, tokens, length, answers):
    """Roughly what a run takes that changes `tokens` of `length` positions."""
    width, inner = llama.blocks[0].down.weight.shape
    return 4 * (tokens * (8 * width + 3 * inner) + 4 * length * width + 2 * answers * llama.vocab)


def _bytes_kept(llama, sequences, length):
    """At most what `run_base` keeps of so many sequences: every field of a `Layer` as wide as a state, in float32."""
    return 4 * sequences * length * len(llama.blocks) * len(Layer._fields) * len(llama.norm)


@contextmanager
def _float32_products(precision):
    """Let float32 matrix products on a GPU use TensorFloat-32, or not, for a while."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
