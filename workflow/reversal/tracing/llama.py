"""Causal tracing of Llama and Qwen2 networks that computes only what a restoration can change.

The base runs, clean and corrupted, are cached layer by layer. A restored run starts from the corrupted one at the layer
where the two first differ, and there they differ at the restored positions only: the queries, keys and values of these
positions are exchanged, all others are reused. The last layer and the head run at the answer positions alone. In a
causal network the positions before the restored one keep their corrupted keys and values, and restoring a position
before the subject changes nothing.
"""

import copy
from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaForCausalLM, Qwen2ForCausalLM

from ..models import network

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Llama(NamedTuple):
    """A network's weights, and the precision of its products, for sequences of one length T."""

    blocks: list  # transformers' decoder layers; their matrices may have another dtype than the products
    norm: torch.Tensor
    predict: Callable  # from normed states (..., D) to logits (..., V), both float32
    vocab: int
    eps: float
    causal: bool
    cosine: torch.Tensor  # (T, head size), of the dtype of all products
    sine: torch.Tensor


class LayerCache(NamedTuple):
    """Activations of one layer in the base runs, for all N clean and corrupted sequences.

    In the last layer, `attn_out` and `mlp_out` are filled at the answer positions only.
    """

    resid_pre: torch.Tensor  # (N, T, D), the states that enter the layer
    query: torch.Tensor  # (N, T, heads, head size)
    key: torch.Tensor
    value: torch.Tensor
    attn_out: torch.Tensor  # (N, T, D)
    mlp_out: torch.Tensor  # (N, T, D)


class BaseRuns(NamedTuple):
    """The base runs of several problems of one length: N sequences, R of them corrupted."""

    layers: list  # a `LayerCache` each
    resid_final: torch.Tensor  # (N, T, D), the output of the last layer at the answer positions
    corrupted: torch.Tensor  # (R,) indices of the corrupted sequences among the N
    clean: torch.Tensor  # (R,) indices of the clean sequences they come from
    position: torch.Tensor  # (R, A) where the answer tokens are predicted; short answers repeat their first token
    token: torch.Tensor  # (R, A)
    log_probs: torch.Tensor  # (R, A) of the answer tokens in the corrupted run
    clean_log_probs: torch.Tensor  # (R, A) and in the clean one


class Positions(NamedTuple):
    """Positions at which a batch is computed, as index tensors of any one shape S."""

    run: torch.Tensor  # S, the run in the batch
    position: torch.Tensor  # S, the position in the sequence
    restored: tuple  # indices, into S, of restored positions


class Batch(NamedTuple):
    """n restored runs computed together, each from its first restored position on: P positions in all."""

    origin: torch.Tensor  # (n,) the corrupted sequence, among the N
    source: torch.Tensor  # (n,) the sequence that module outputs are patched from: clean, or corrupted if severed
    site: str  # the module patched above the first restored layer, "mlp" or "attn"; "state" patches nothing
    start: int  # the first position of any run
    computed: Positions  # (P,), run by run
    answer: Positions  # (n, A)
    answer_index: torch.Tensor  # (n, A), the answer positions among the P
    token: torch.Tensor  # (n, A)


def is_supported(net):
    """Whether `net` is a Llama or a Qwen2 with SiLU and full attention in every layer."""
    full = set(getattr(net.config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    return isinstance(net, LlamaForCausalLM | Qwen2ForCausalLM) and full and net.config.hidden_act == "silu"


def restore(net, problems, *, kind, plan, severed, precision, budget):
    """(clean, corrupted, restored) log-probabilities of each `engine.Problem`, as in `engine.Runs`.

    `plan` has for each layer the half-open range of patched layers; `budget` is a `batches.Budget`.
    """
    by_length = {}
    for i, problem in enumerate(problems):
        positions = [position for position, _ in problem.answer_pairs()]
        length = len(problem.clean) if network.is_diffusion(net) else max(positions) + 1
        by_length.setdefault(length, []).append(i)
    results = [None] * len(problems)
    dtype = DTYPES[precision]
    fast_blocks = _convert_blocks(net, dtype)
    predict = _make_head(net)
    with _set_matmul_precision(precision):
        for length, members in by_length.items():
            fast = _build_llama(net, length, dtype, fast_blocks, predict)
            # The base runs are exact, whatever the precision of the weights, without a second copy of all weights.
            exact = _build_llama(net, length, torch.float32, list(net.model.layers), predict)
            same_length = [problems[i] for i in members]
            restored = _restore_same_length(exact, fast, same_length, length, kind, plan, severed, budget)
            for i, result in zip(members, restored, strict=True):
                results[i] = result
    return results


def _restore_same_length(exact, fast, problems, length, kind, plan, severed, budget):
    """The results of problems of one length; they share a batch where one alone does not fill it."""
    answers = max(len(problem.answer) for problem in problems)
    runs = max(len(problem.corrupted) * len(problem.position_groups()) for problem in problems)
    results = []

    def run(batch):
        with _set_matmul_precision("float32"):
            base = run_base(exact, fast, problems[batch], length)
        log_probs = _run_restorations(fast, base, problems[batch], kind, plan, severed, budget)
        results.extend(list(_split_by_problem(base, log_probs, problems[batch])))

    sequences = 1 + max(len(problem.corrupted) for problem in problems)
    cost = max(
        runs * _estimate_run_bytes(exact, length, length, answers), _estimate_cache_bytes(exact, sequences, length)
    )
    budget.run_batches([cost] * len(problems), run)
    return results


def _convert_blocks(net, dtype):
    """The network's blocks with matrices as `dtype`: themselves, or copies if they have to be converted."""
    if net.dtype == dtype:
        return list(net.model.layers)
    blocks = []
    for block in net.model.layers:
        blocks.append(copy.deepcopy(block))
        for module in blocks[-1].modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)
    return blocks


def _make_head(net):
    """The head in float32, as a function from states (..., D) to logits (..., V)."""
    head = net.lm_head.weight[: network.vocab(net)].float()
    return lambda states: network.suppress_mask(net, functional.linear(states, head))


def _build_llama(net, length, dtype, blocks, predict):
    position = torch.arange(length, device=net.model.norm.weight.device)[None]
    cosine, sine = net.model.rotary_emb(torch.empty(0, dtype=torch.float32, device=position.device), position)
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
    """Run every clean and corrupted sequence in float32 and cache what restored runs reuse: `BaseRuns`."""
    device = exact.norm.device
    draws = torch.tensor([len(problem.corrupted) for problem in problems])
    clean = torch.arange(len(problems)).repeat_interleave(draws).to(device)
    corrupted = len(problems) + torch.arange(len(clean), device=device)
    sequences = [problem.clean[None] for problem in problems] + [problem.corrupted for problem in problems]
    x = torch.cat([sequence[:, :length] for sequence in sequences]).to(device, torch.float32)
    answer_position, token = (field.to(device) for field in _pad_answers(problems))  # (problems, A)
    everywhere, at_answers = torch.arange(length, device=device), torch.cat([answer_position, answer_position[clean]])
    layers = []
    for number, block in enumerate(exact.blocks):
        last = number == len(exact.blocks) - 1
        query, key, value = _project_heads(exact, block, x, everywhere)
        # The last layer is needed at the answer positions only.
        before, asking, position = (
            (_gather(x, at_answers), _gather(query, at_answers), at_answers) if last else (x, query, everywhere)
        )
        attn_out = _multiply(block.self_attn.o_proj, _attend(exact, asking, key, value, position))
        mlp_out = _run_mlp(exact, block, before + attn_out)
        after = before + attn_out + mlp_out
        if last:
            attn_out, mlp_out = (_scatter(field, at_answers, length) for field in (attn_out, mlp_out))
        cached = (field.to(fast.cosine.dtype) for field in (query, key, value))
        layers.append(LayerCache(x, *cached, attn_out, mlp_out))
        x = after
    log_probs = _compute_log_probs(exact, x, torch.cat([token, token[clean]]))
    return BaseRuns(
        layers=layers,
        resid_final=_scatter(x, at_answers, length),
        corrupted=corrupted,
        clean=clean,
        position=answer_position[clean],
        token=token[clean],
        log_probs=log_probs[corrupted],
        clean_log_probs=log_probs[clean],
    )


def _scatter(x, position, length):
    """`x` (N, A, D) put at its `position` (N, A) in sequences (N, length, D) of zeros."""
    sequences = x.new_zeros(len(x), length, x.shape[-1])
    sequences[torch.arange(len(x), device=x.device)[:, None], position] = x
    return sequences


def _gather(x, position):
    """`x` (N, T, ...) at `position` (N, A)."""
    return x[torch.arange(len(x), device=x.device)[:, None], position]


def _pad_answers(problems):
    """Positions and tokens (problems, A) of the answers; short answers repeat their first token."""
    longest = max(len(problem.answer) for problem in problems)
    answers = [problem.answer_pairs() for problem in problems]
    return torch.tensor([answer + answer[:1] * (longest - len(answer)) for answer in answers]).unbind(-1)


def _run_restorations(llama, base, problems, kind, plan, severed, budget):
    """Log-probabilities (runs, layers, A), the runs ordered by problem, position group and draw."""
    row, restored, changing = _list_restorations(base, problems, llama.causal)
    log_probs = base.log_probs[row][:, None].repeat(1, len(plan), 1)
    row, restored = row[changing], restored[changing]
    for start in sorted({first for first, _ in plan}):
        layers = {}  # {end of a window that starts here: layers with that window}
        for layer, (first, end) in enumerate(plan):
            if first == start:
                layers.setdefault(end, []).append(layer)
        results = _restore_from_layer(llama, base, row, restored, start, sorted(layers), kind, severed, budget)
        for end, changed in results.items():
            for layer in layers[end]:
                log_probs[changing, layer] = changed
    return log_probs


def _list_restorations(base, problems, causal):
    """The corrupted sequence (n,) that each of n runs starts from, among the R, and where it is restored (n, T).

    And the indices of the runs that can differ from their corrupted run, by first restored position.
    """
    rows, restored, row = [], [], 0
    for problem in problems:
        groups, draws = problem.position_groups(), len(problem.corrupted)
        member = torch.zeros(len(groups), len(problem.clean), dtype=torch.bool)
        for i, group in enumerate(groups):
            member[i, list(group)] = True
        rows.append((row + torch.arange(draws)).repeat(len(groups)))
        restored.append(member[:, : base.resid_final.shape[1]].repeat_interleave(draws, 0))
        row += draws
    rows, restored = (torch.cat(parts).to(base.clean.device) for parts in (rows, restored))
    embedded = base.layers[0].resid_pre
    corrupted = (embedded[base.corrupted] != embedded[base.clean]).any(-1)  # (R, T)
    # A corrupted embedding can reach its own position and, in a causal network, only those after it.
    reached = corrupted.cumsum(1) > 0 if causal else corrupted.any(1, keepdim=True)
    changing = (restored & reached[rows]).any(1).nonzero()[:, 0]
    return rows, restored, changing[restored[changing].int().argmax(1).argsort(stable=True)]


def _restore_from_layer(llama, base, row, restored, start, ends, kind, severed, budget):
    """{end: log-probabilities (n, A)} of runs whose windows begin at layer `start`, for each of `ends`."""
    length, corrupted, position = len(llama.cosine), base.log_probs[row], base.position[row]
    if start == len(llama.blocks) - 1:
        output = _compute_restored_output(llama, base, kind, start)
        log_probs = _compute_log_probs(llama, _gather(output, base.position), base.token)
        return {end: torch.where(restored.gather(1, position), log_probs[row], corrupted) for end in ends}
    restored_input = _compute_restored_input(llama, base, kind, start + 1)
    results = {end: corrupted.clone() for end in ends}
    first = restored.int().argmax(1) if llama.causal else torch.zeros_like(row)

    def run(chosen):
        batch = _make_batch(base, row[chosen], restored[chosen], first[chosen], kind, severed)
        x, heads = _enter_layer(base, batch, row[chosen], start + 1, restored_input)
        # In a causal network a restored position changes no earlier prediction.
        after = position[chosen] >= first[chosen, None]
        for end, log_probs in _run_to_answer(llama, base, batch, start + 1, x, heads, ends).items():
            results[end][chosen] = torch.where(after, log_probs, corrupted[chosen])

    tokens = (length - first).tolist()
    budget.run_batches([_estimate_run_bytes(llama, number, length, position.shape[1]) for number in tokens], run)
    return results


def _compute_restored_output(llama, base, kind, layer):
    """The output of `layer` (R, T, D) at each position if this position alone is restored, in this layer first."""
    cache = base.layers[layer]
    if kind == "state":
        after = base.resid_final if layer == len(base.layers) - 1 else base.layers[layer + 1].resid_pre
        return after[base.clean]
    if kind == "mlp":
        return cache.resid_pre[base.corrupted] + cache.attn_out[base.corrupted] + cache.mlp_out[base.clean]
    resid_mid = cache.resid_pre[base.corrupted] + cache.attn_out[base.clean]
    return resid_mid + _run_mlp(llama, llama.blocks[layer], resid_mid)


def _compute_restored_input(llama, base, kind, layer):
    """The same states as they enter `layer`, with their queries, keys and values (R, T, ...)."""
    if kind == "state":
        cache = base.layers[layer]
        return [field[base.clean] for field in (cache.resid_pre, cache.query, cache.key, cache.value)]
    x = _compute_restored_output(llama, base, kind, layer - 1)
    position = torch.arange(x.shape[1], device=x.device)
    return [x, *_project_heads(llama, llama.blocks[layer], x, position)]


def _make_batch(base, row, restored, first, kind, severed):
    """The `Batch` of runs from the corrupted sequences `row` (n,), each computed from its position `first` (n,) on."""
    reached = torch.arange(restored.shape[1], device=first.device) >= first[:, None]  # (n, T)
    number = reached.flatten().cumsum(0).view_as(reached) - 1
    position = base.position[row]
    run = torch.arange(len(position), device=position.device)[:, None].expand_as(position)
    return Batch(
        origin=base.corrupted[row],
        source=(base.clean if severed is None else base.corrupted)[row],
        site=severed or kind,
        start=int(first.min()),
        computed=_make_positions(*reached.nonzero(as_tuple=True), restored),
        answer=_make_positions(run, position, restored),
        answer_index=number.gather(1, position).clamp(min=0),
        token=base.token[row],
    )


def _make_positions(run, position, restored):
    return Positions(run, position, restored[run, position].nonzero(as_tuple=True))


def _enter_layer(base, batch, row, layer, restored_input):
    """States (P, D) entering `layer`, and queries, keys and values (n, T, ...): corrupted except where restored.

    `restored_input` has these four tensors for all corrupted sequences (R, T, ...), as if every position were restored;
    `row` (n,) is the corrupted sequence of each run.
    """
    run, position = (field[batch.computed.restored] for field in batch.computed[:2])
    cache = base.layers[layer]
    x = cache.resid_pre[batch.origin[batch.computed.run], batch.computed.position]
    x[batch.computed.restored] = restored_input[0][row[run], position]
    heads = [field.index_select(0, batch.origin) for field in (cache.query, cache.key, cache.value)]
    for field, restored in zip(heads, restored_input[1:], strict=True):
        field[run, position] = restored[row[run], position]
    return x, heads


def _run_to_answer(llama, base, batch, layer, x, heads, ends):
    """Run states `x` (P, D) from `layer` to the answer: {end: log-probabilities (n, A)} for the `ends` of windows.

    Windows with the same start share their layers until the first of them ends. `heads` are the queries, keys and
    values (n, T, ...) that belong to `x`.
    """
    while True:
        closed, open_ends = ([end for end in ends if (end <= layer) == past] for past in (True, False))
        if closed and open_ends:
            return {
                **_run_to_answer(llama, base, batch, layer, x, heads, closed),
                **_run_to_answer(llama, base, batch, layer, x, heads, open_ends),
            }
        if layer == len(llama.blocks) - 1:
            return dict.fromkeys(ends, _run_last_layer(llama, base, batch, x, heads, patching=bool(open_ends)))
        x = _run_layer(llama, base, batch, layer, x, heads, patching=bool(open_ends))
        layer, heads = layer + 1, None


def _run_layer(llama, base, batch, layer, x, heads, *, patching):
    """The output (P, D) of `layer` for the states `x` (P, D) that enter it."""
    block, cache, computed = llama.blocks[layer], base.layers[layer], batch.computed
    if heads is None:
        heads = _project_heads(llama, block, x, computed.position)
        heads = _fill_sequences(llama, batch, heads, (cache.query, cache.key, cache.value))
    query, key, value = heads
    start = batch.start
    mixed = _attend(llama, query[:, start:], key, value, torch.arange(start, key.shape[1], device=x.device))
    mixed = mixed[computed.run, computed.position - start] if llama.causal else mixed.flatten(0, 1)
    return _add_modules(llama, block, cache, batch, computed, x, mixed, patching=patching)


def _run_last_layer(llama, base, batch, x, heads, *, patching):
    """Log-probabilities (n, A) of the answers; the last layer runs at the answer positions only."""
    block, cache, answer = llama.blocks[-1], base.layers[-1], batch.answer
    if heads is None:
        normed = _apply_norm(llama, x, block.input_layernorm)
        query = _apply_rotary(llama, _multiply(block.self_attn.q_proj, normed[batch.answer_index]), answer.position)
        heads = _project_keys_values(llama, block, normed, batch.computed.position)
        key, value = _fill_sequences(llama, batch, heads, (cache.key, cache.value))
    else:
        query, key, value = heads
        query = query[answer.run, answer.position]
    mixed = _attend(llama, query, key, value, answer.position)
    x = _add_modules(llama, block, cache, batch, answer, x[batch.answer_index], mixed, patching=patching)
    return _compute_log_probs(llama, x, batch.token)


def _add_modules(llama, block, cache, batch, positions, x, mixed, *, patching):
    """The states (S, D) after a block, from the states before it and its attention's `mixed` values (S, all heads)."""

    def add_output(x, site, output):
        total = x + output
        if patching and site == batch.site:
            run, position = (field[positions.restored] for field in positions[:2])
            patched = getattr(cache, f"{site}_out")[batch.source[run], position]
            total[positions.restored] = x[positions.restored] + patched
        return total

    x = add_output(x, "attn", _multiply(block.self_attn.o_proj, mixed))
    return add_output(x, "mlp", _run_mlp(llama, block, x))


def _fill_sequences(llama, batch, heads, corrupted):
    """Heads (n, T, ...) of whole sequences: those computed (P, ...), elsewhere the `corrupted` ones (N, T, ...)."""
    if not llama.causal:
        return [field.unflatten(0, (len(batch.origin), -1)) for field in heads]
    sequences = [field.index_select(0, batch.origin) for field in corrupted]
    for field, computed in zip(sequences, heads, strict=True):
        field[batch.computed.run, batch.computed.position] = computed
    return sequences


def _multiply(linear, x):
    """A linear layer's output for `x`; a weight of another dtype is converted for this product alone."""
    bias = None if linear.bias is None else linear.bias.to(x.dtype)
    return functional.linear(x, linear.weight.to(x.dtype), bias)


def _apply_norm(llama, x, norm):
    """States (..., D) after RMS norm, in the dtype of the products."""
    return functional.rms_norm(x, x.shape[-1:], norm.weight.float(), llama.eps).to(llama.cosine.dtype)


def _project_heads(llama, block, x, position):
    """Queries, keys and values (..., heads, size) of states `x` (..., D) at `position` (...)."""
    normed = _apply_norm(llama, x, block.input_layernorm)
    query = _apply_rotary(llama, _multiply(block.self_attn.q_proj, normed), position)
    return query, *_project_keys_values(llama, block, normed, position)


def _project_keys_values(llama, block, normed, position):
    """Keys and values (..., heads, size) of `normed` (..., D) at `position` (...)."""
    key = _apply_rotary(llama, _multiply(block.self_attn.k_proj, normed), position)
    return key, _multiply(block.self_attn.v_proj, normed).unflatten(-1, (-1, llama.cosine.shape[1]))


def _apply_rotary(llama, x, position):
    """Heads (..., heads, size) of `x` (..., all heads) with rotary embeddings for `position` (...)."""
    x = x.unflatten(-1, (-1, llama.cosine.shape[1]))
    half = x.shape[-1] // 2
    cosine, sine = llama.cosine[position].unsqueeze(-2), llama.sine[position].unsqueeze(-2)
    rotated = x.new_empty(x.shape)
    for half_1, half_2, sign in ((slice(half), slice(half, None), -1), (slice(half, None), slice(half), 1)):
        torch.mul(x[..., half_1], cosine[..., half_1], out=rotated[..., half_1])
        rotated[..., half_1].addcmul_(x[..., half_2], sine[..., half_1], value=sign)
    return rotated


def _attend(llama, query, key, value, position):
    """Values mixed by attention (n, t, all heads), for queries at `position` (t,) or (n, t)."""
    mask = None
    if llama.causal:
        mask = torch.arange(key.shape[1], device=key.device) <= position[..., None]
        mask = mask if mask.dim() == 2 else mask[:, None]
    mixed = functional.scaled_dot_product_attention(
        *(field.transpose(1, 2) for field in (query, key, value)),
        attn_mask=mask,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return mixed.transpose(1, 2).flatten(2)


def _run_mlp(llama, block, x):
    """The output of the MLP (..., D) for states `x` (..., D)."""
    normed = _apply_norm(llama, x, block.post_attention_layernorm)
    gate = functional.silu(_multiply(block.mlp.gate_proj, normed), inplace=True)
    return _multiply(block.mlp.down_proj, gate.mul_(_multiply(block.mlp.up_proj, normed)))


def _compute_log_probs(llama, x, token):
    """Log-probabilities (n, A) of `token` (n, A), from the output (n, A, D) of the last layer."""
    logits = llama.predict(functional.rms_norm(x, x.shape[-1:], llama.norm, llama.eps))
    return logits.gather(-1, token[..., None])[..., 0] - logits.logsumexp(-1)


def _split_by_problem(base, log_probs, problems):
    """Each problem's (clean (A,), corrupted (draws, A), restored (draws, groups, layers, A)), on the CPU."""
    row = run = 0
    for problem in problems:
        draws, groups, answers = len(problem.corrupted), len(problem.position_groups()), len(problem.answer)
        clean, corrupted = base.clean_log_probs[row, :answers], base.log_probs[row : row + draws, :answers]
        restored = log_probs[run : run + groups * draws, :, :answers].cpu().unflatten(0, (groups, draws))
        yield clean.cpu(), corrupted.cpu(), restored.movedim(0, 1)
        row, run = row + draws, run + groups * draws


def _estimate_run_bytes(llama, tokens, length, answers):
    """Roughly the memory of a run that computes `tokens` of `length` positions."""
    width, inner = llama.blocks[0].mlp.down_proj.weight.shape
    return 4 * (tokens * (8 * width + 3 * inner) + 4 * length * width + 2 * answers * llama.vocab)


def _estimate_cache_bytes(llama, sequences, length):
    """An upper bound of what `run_base` caches: every `LayerCache` field as wide as a state, in float32."""
    return 4 * sequences * length * len(llama.blocks) * len(LayerCache._fields) * len(llama.norm)


@contextmanager
def _set_matmul_precision(precision):
    """Within the block, float32 matrix products on a GPU use TensorFloat-32 unless `precision` is "float32"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
