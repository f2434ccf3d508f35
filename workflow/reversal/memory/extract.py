"""Keys and values of facts: what an MLP is given at the subject's last token, and what it should say there.

The recipe is ROME's, with a fact's own object where ROME has an edited one. The *key* k* is the input of the MLP's
down-projection at the last token of "x_j subject", a mean over prefixes x_j. The *value* v* is the vector z which, put
in place of the MLP's output at the subject's last token, minimises

    −1/N Σ log p(o | x_j + p)  +  kl_weight · KL(p_z(· | p′) ‖ p(· | p′))  +  decay · |z − z₀|² / |z₀|²

where p is the question, o its answer, p′ "{subject} is a", and z₀ what the MLP says of itself when asked p. ROME's last
term is |z − z₀| / |z₀|², which depends on the scale of the states; a ratio of squares does not. For the same reason the
optimiser, Adam, moves in units of the root mean square of z₀.

An autoregressive network is given the answer token by token. A masked diffusion network sees a whole canvas: the row
with its answer masked, end tokens after it, and p(o | p) is the product over the answer's tokens, predicted at once.
Were all after the question masked, the network could not know where an answer begins that it may well introduce with
words of its own, and the product would say little about what it knows. After a bare subject or p′ all is masked; in
the KL term the first mask stands for the next token. A prefix makes the canvas longer and changes nothing else.
"""

import dataclasses
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import pandas as pd
import torch
from transformers.pytorch_utils import Conv1D

from ..common.errors import UserError
from ..models import network, tokens
from .files import Extraction

ESSENCE = " is a"  # with the subject before it: a sentence that a value should leave as it was
KEY_CONTEXTS = ("subject", "question")
PATIENCE = 20  # samples of a prefix for each that is wanted
ROWS = {"cpu": 64, "cuda": 256}  # sequences at a time


class Sequence(NamedTuple):
    """Tokens to run, where the subject ends, and what is predicted."""

    ids: list
    place: int  # of the last subject token
    answer: Mapping  # {position: token predicted there}
    owner: int = 0  # the number of the fact that the sequence is about


def extract(
    net,
    tokenizer,
    rows,
    *,
    layers,
    prefixes=("",),
    steps=20,
    learning_rate=0.5,
    kl_weight=0.0625,
    decay=0.02,
    clamp=4.0,
    stop=0.05,
    threshold=0.5,
    canvas=None,
    key_context="subject",
    batch_size=None,
    job=None,
):
    """The keys and values of the facts that `rows` ask for, at each of `layers`: a list of `Extraction`.

    Rows with one `fact` share a key and a value; one row a fact is ROME's case. `canvas` is the length of a diffusion
    network's canvas, `prefixes` are texts as from `sample_prefixes`, and |z − z₀| stays within `clamp` · |z₀|.
    A fact is done when its loss is below `stop` or has no slope, all are after `steps` updates. Each keeps its best z.

    `outcomes` has for each fact the loss at v* and its parts without their weights: nll, kl, and change for the ratio
    that decay weighs; p_before and p_after, the probability of the answer without a prefix (mean over the fact's rows),
    without and with v*; norm_original and norm_value; steps, the updates that led to v*; and converged: whether p_after
    reached `threshold`.

    key_context: "subject" reads keys in "x_j subject", as ROME's paper says; "question" in x_j + p, as its code does.
        These agree only where a causal network's question begins with the subject.
    """
    _check(net, rows, layers, prefixes, steps, canvas, key_context)
    facts = list(dict.fromkeys(row.fact for row in rows))
    owned = [(facts.index(row.fact), row) for row in rows]
    subjects = list(dict.fromkeys((owner, row.subject_text) for owner, row in owned))
    ask = partial(question, net, tokenizer, canvas=canvas)
    say = partial(phrase, net, tokenizer, canvas=canvas)
    asked = [ask(row, owner=owner) for owner, row in owned]
    prefixed = [ask(row, prefix, owner=owner) for owner, row in owned for prefix in prefixes]
    essences = [say(subject, ESSENCE, owner=owner) for owner, subject in subjects]
    alone = [say(subject, "", prefix, owner=owner) for owner, subject in subjects for prefix in prefixes]

    keys = read_keys(net, alone if key_context == "subject" else prefixed, layers=layers, batch_size=batch_size)
    originals = read_outputs(net, asked, layers=layers, batch_size=batch_size)
    before, _ = score_answers(net, asked, batch_size=batch_size)
    terms = [prepare(net, sequences, layers, batch_size) for sequences in (prefixed, essences)]
    found = []
    for layer in layers:
        with job.progress(steps, f"values at layer {layer}", "steps") if job else nullcontext() as progress:
            search = find_values(
                net,
                originals[layer],
                *terms,
                layer=layer,
                steps=steps,
                learning_rate=learning_rate,
                weights=(1.0, kl_weight, decay),
                clamp=clamp,
                stop=stop,
                progress=progress,
            )
        after, _ = score_answers(net, asked, layer=layer, values=search.value, batch_size=batch_size)
        p_before, p_after = (_mean_by_owner(logs.exp(), asked) for logs in (before, after))
        nll, kl, change = search.parts.tolist()
        outcomes = pd.DataFrame(
            {
                "fact": facts,
                "layer": layer,
                "loss": search.loss.tolist(),
                "nll": nll,
                "kl": kl,
                "change": change,
                "p_before": p_before.tolist(),
                "p_after": p_after.tolist(),
                "norm_original": originals[layer].norm(dim=1).tolist(),
                "norm_value": search.value.norm(dim=1).tolist(),
                "steps": search.steps.tolist(),
                "converged": (p_after >= threshold).tolist(),
            }
        )
        arrays = (keys[layer], search.value, originals[layer], down_weight(net, layer).detach().clone())
        found.append(Extraction(layer, facts, *(array.cpu() for array in arrays), outcomes))
    return found


def best_template(net, tokenizer, rows, *, canvas=None, batch_size=None):
    """The template whose answers are most probable, by the geometric mean over `rows`."""
    logs, _ = score_answers(net, [question(net, tokenizer, row, canvas=canvas) for row in rows], batch_size=batch_size)
    return int(pd.Series(logs).groupby([row.template for row in rows]).mean().idxmax())


def prefixes_like(net, tokenizer, rows, *, count, lengths, seed, canvas=None):
    """`count` prefixes as from `sample_prefixes`, which begin as those `rows` do that do not begin with a subject."""
    starts = sorted({tokenizer(row.prompt)["input_ids"][0] for row in rows if row.subject[0]})
    generator = torch.Generator().manual_seed(seed)
    return sample_prefixes(
        net, tokenizer, count=count, lengths=lengths, generator=generator, starts=starts, canvas=canvas
    )


@torch.no_grad()
def sample_prefixes(net, tokenizer, *, count, lengths, generator, starts=(), canvas=None):
    """`count` distinct texts to put before a question: the empty one, and texts that the network samples.

    They have `lengths` tokens, taken in turn. The first is drawn from `starts` (ids); without them an autoregressive
    network goes on from the end token, and a diffusion network samples the first token too. It unmasks the beginning of
    its canvas in random order. A network that was trained on single sentences bears only a word or two before a
    question: look at nll before and after.
    """
    texts = [""]
    for i in range(PATIENCE * count):
        length = lengths[i % len(lengths)]
        first = [starts[torch.randint(len(starts), (), generator=generator)]] if len(starts) else []
        if network.is_diffusion(net):
            ids = _unmask(net, first, length, canvas, generator)
        else:
            ids = _continue(net, first, length, generator)
        texts = list(dict.fromkeys([*texts, tokenizer.decode(ids).strip()]))
        if len(texts) >= count:
            return texts[:count]
    raise UserError(f"prefixes: {PATIENCE * count} samples of {list(lengths)} tokens gave only {len(texts)} texts")


def _continue(net, first, length, generator):
    ids = [*first] or [net.config.eos_token_id]
    while len(ids) < length + (not first):
        ids.append(_draw(net, ids, len(ids) - 1, generator))
    return ids if first else ids[1:]


def _unmask(net, first, length, canvas, generator):
    ids = first + [network.mask_id(net)] * (canvas - len(first))
    for place in torch.randperm(length - len(first), generator=generator).tolist():
        ids[len(first) + place] = _draw(net, ids, len(first) + place, generator)
    return ids[:length]


def _draw(net, ids, position, generator):
    logits = network.logits(net, network.hidden(net, torch.tensor([ids], device=_device(net)))[0, position]).float()
    logits[net.config.eos_token_id] = -torch.inf
    return torch.multinomial(logits.softmax(-1).cpu(), 1, generator=generator).item()


def question(net, tokenizer, row, prefix="", *, canvas=None, owner=0):
    """The `Sequence` that asks for the answer of a `facts.Row`, after a prefix."""
    bare, whole = tokens.encode(tokenizer, row), tokens.encode(tokenizer, _prefixed(row, prefix))
    first, end = whole.answer
    place = whole.subject[1] - 1
    if not network.is_diffusion(net):
        return Sequence(whole.ids[: end - 1], place, {at - 1: whole.ids[at] for at in range(first, end)}, owner)
    if len(bare.ids) > canvas:
        raise UserError(f"{row.text!r} has {len(bare.ids)} tokens; the canvas holds {canvas}")
    filled = whole.ids + [net.config.eos_token_id] * (canvas - len(bare.ids))
    masked = filled[:first] + [network.mask_id(net)] * (end - first) + filled[end:]
    return Sequence(masked, place, {at: whole.ids[at] for at in range(first, end)}, owner)


def phrase(net, tokenizer, subject, ending="", prefix="", *, canvas=None, owner=0):
    """The `Sequence` of a subject between a prefix and an ending; what comes next is predicted, whatever it is."""
    before = f"{prefix} " if prefix else ""
    coded = tokenizer(before + subject + ending, return_offsets_mapping=True)
    ids, span = coded["input_ids"], (len(before), len(before) + len(subject))
    place = tokens.token_range(before + subject + ending, coded["offset_mapping"], span)[1] - 1
    if not network.is_diffusion(net):
        return Sequence(ids, place, {len(ids) - 1: 0}, owner)
    masks = canvas - len(tokenizer(subject + ending)["input_ids"])
    if masks < 1:
        raise UserError(f"{subject + ending!r} fills all {canvas} tokens of the canvas; there is no room after it")
    return Sequence(ids + [network.mask_id(net)] * masks, place, {len(ids): 0}, owner)


def close(row, ending="."):
    """The row with an ending where its answer is the last thing it says.

    Published questions for a name end with it, but no sentence of the training rows does, and a diffusion network sees
    what comes after an answer.
    """
    bare = row.answer[1] == len(row.completion)
    return dataclasses.replace(row, completion=row.completion + ending) if bare else row


def _prefixed(row, prefix):
    if not prefix:
        return row
    start, end = row.subject
    shift = len(prefix) + 1
    return dataclasses.replace(row, prompt=f"{prefix} {row.prompt}", subject=(start + shift, end + shift))


class Batch(NamedTuple):
    """Sequences side by side; causal networks' are padded on the right, where no earlier state sees it."""

    ids: torch.Tensor  # (B, T)
    number: torch.Tensor  # (B,) among the sequences
    owner: torch.Tensor  # (B,)
    place: torch.Tensor  # (B,)
    row: torch.Tensor  # (P,) of each prediction
    position: torch.Tensor  # (P,)
    token: torch.Tensor  # (P,)
    below: Mapping = {}  # {layer: what the block under it puts out}
    reference: torch.Tensor | None = None  # (P, V) log-probabilities when nothing is overwritten


def collate(net, sequences, batch_size=None):
    """`Batch`es of sequences alike in length: of one length for a diffusion network, which would see padding."""
    device = _device(net)
    size = batch_size or ROWS.get(device.type, ROWS["cuda"])
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].ids))
    groups = []
    for i in order:
        fits = groups and len(groups[-1]) < size
        if fits and (not network.is_diffusion(net) or len(sequences[groups[-1][0]].ids) == len(sequences[i].ids)):
            groups[-1].append(i)
        else:
            groups.append([i])
    batches = []
    for group in groups:
        some = [sequences[i] for i in group]
        longest = len(some[-1].ids)
        columns = (
            [sequence.ids + [0] * (longest - len(sequence.ids)) for sequence in some],
            group,
            [sequence.owner for sequence in some],
            [sequence.place for sequence in some],
            [row for row, sequence in enumerate(some) for _ in sequence.answer],
            [position for sequence in some for position in sequence.answer],
            [token for sequence in some for token in sequence.answer.values()],
        )
        batches.append(Batch(*(torch.tensor(column, dtype=torch.long, device=device) for column in columns)))
    return batches


def each(batches, run):
    """Yield `run(batch)` for the list's batches; one that memory can not hold gives way, in the list, to its halves."""
    place = 0
    while place < len(batches):
        batch = batches[place]
        try:
            result = run(batch)
        except torch.OutOfMemoryError:
            if len(batch.ids) == 1:
                raise
            result = None
        if result is None:  # out here, since the exception keeps the failed batch's tensors alive
            torch.cuda.empty_cache()
            first = torch.arange(len(batch.ids), device=batch.ids.device) < len(batch.ids) // 2
            batches[place : place + 1] = [_narrow(batch, first), _narrow(batch, ~first)]
            continue
        yield result
        place += 1


def log_probabilities(net, batch, *, layer=None, values=None):
    """Log-probabilities (P, V) at each prediction; with `values` (n, width), each sequence has its owner's in place."""
    with nullcontext() if values is None else _overwritten(net, layer, batch, values[batch.owner]):
        states = network.hidden(net, batch.ids)
    return network.logits(net, states[batch.row, batch.position]).float().log_softmax(-1)


@torch.no_grad()
def score_answers(net, sequences, *, layer=None, values=None, batch_size=None):
    """The joint log-probability (N,) of each answer, and whether all its tokens are the most probable ones (N,).

    With `values` (n, width), each sequence has its owner's in place of the MLP's output at `layer`. An answer whose
    tokens are all most probable is what greedy decoding, or sampling in one step, would give.
    """
    joint, exact = torch.zeros(len(sequences)), torch.zeros(len(sequences), dtype=torch.bool)

    def score(batch):
        logs = log_probabilities(net, batch, layer=layer, values=values)
        wrong = torch.zeros_like(batch.owner).index_add_(0, batch.row, (logs.argmax(-1) != batch.token).long())
        return batch.number.cpu(), _joint(batch, logs).cpu(), (wrong == 0).cpu()

    for number, log, right in each(collate(net, sequences, batch_size), score):
        joint[number], exact[number] = log, right
    return joint, exact


def read_keys(net, sequences, *, layers, batch_size=None):
    """{layer: keys (n, mlp)}: what the down-projection is given at the place, a mean over each owner's sequences."""
    modules = {layer: network.down_projection(network.layers(net)[layer]) for layer in layers}
    return _read(net, sequences, modules, 0, batch_size)


def read_outputs(net, sequences, *, layers, batch_size=None):
    """{layer: outputs (n, width)}: what the MLP puts out at the place, a mean over each owner's sequences."""
    modules = {layer: network.mlp(network.layers(net)[layer]) for layer in layers}
    return _read(net, sequences, modules, 1, batch_size)


def down_weight(net, layer):
    """The down-projection's matrix (width, mlp) itself: adding to it in place changes the network."""
    projection = network.down_projection(network.layers(net)[layer])
    return projection.weight.T if isinstance(projection, Conv1D) else projection.weight


class Search(NamedTuple):
    """The best values found, and how good they are; see `extract`."""

    value: torch.Tensor  # (n, width)
    loss: torch.Tensor  # (n,)
    parts: torch.Tensor  # (3, n): nll, kl, change
    steps: torch.Tensor  # (n,)


def find_values(
    net, original, questions, essences, *, layer, steps, learning_rate, weights, clamp, stop, progress=None
):
    """Search all facts' values at once, from `original` (n, width); batches as from `collate`, with their references.

    No fact's search depends on another's: losses are summed, Adam works on each number by itself, and a fact that is
    done takes no further part. `weights` are those of nll, kl and change.
    """
    n, width = original.shape
    scale = original.norm(dim=1, keepdim=True) / width**0.5
    shift = torch.zeros_like(original, requires_grad=True)  # z = original + scale · shift
    optimizer = torch.optim.Adam([shift], lr=learning_rate)
    counts = [torch.bincount(torch.cat([b.owner for b in some]), minlength=n) for some in (questions, essences)]
    searching = torch.ones(n, dtype=torch.bool, device=original.device)
    best = Search(
        original, torch.full_like(scale[:, 0], torch.inf), original.new_full((3, n), torch.nan), counts[0] * 0
    )

    def slope(term, measure, batch):
        batch = _narrow(batch, searching[batch.owner])
        if not len(batch.ids):
            return 0, batch.owner, original.new_zeros(0)
        logs = log_probabilities(net, batch, layer=layer, values=original + scale * shift)
        share = measure(batch, logs) / counts[term][batch.owner]
        return torch.autograd.grad(weights[term] * share.sum(), shift)[0], batch.owner, share.detach()

    for step in range(steps + 1):
        change = shift.square().mean(1)
        gradient = torch.autograd.grad(weights[2] * change.sum(), shift)[0]
        parts = torch.stack([torch.zeros_like(change), torch.zeros_like(change), change]).detach()
        for term, (some, measure) in enumerate(((questions, _surprise), (essences, _divergence))):
            for uphill, owner, share in each(some, partial(slope, term, measure)):
                gradient += uphill
                parts[term].index_add_(0, owner, share)
        loss = (parts * parts.new_tensor(weights)[:, None]).sum(0)
        found = Search((original + scale * shift).detach(), loss, parts, torch.full_like(best.steps, step))
        better = searching & (loss < best.loss)
        best = Search(
            torch.where(better[:, None], found.value, best.value),
            *(torch.where(better, new, old) for new, old in zip(found[1:], best[1:], strict=True)),
        )
        searching &= (loss >= stop) & gradient.any(1)
        if progress and step:
            progress.advance(searching=int(searching.sum()), nll=f"{best.parts[0].mean():.3f}")
        if step == steps or not searching.any():
            break
        shift.grad = gradient
        optimizer.step()
        with torch.no_grad():
            shift *= (clamp * width**0.5 / shift.norm(dim=1, keepdim=True)).clamp(max=1)
    return best


def _surprise(batch, logs):
    """−log p (B,) of each answer."""
    return -_joint(batch, logs)


def _divergence(batch, logs):
    """KL (B,) from the reference to the predicted distribution; one prediction a row."""
    return (logs.exp() * (logs - batch.reference)).sum(-1)


def _joint(batch, logs):
    each = logs.gather(1, batch.token[:, None])[:, 0]
    return torch.zeros(len(batch.ids), device=logs.device).index_add(0, batch.row, each)


@torch.no_grad()
def prepare(net, sequences, layers, batch_size):
    """Batches that know what lies below each of `layers`, and what the network predicts when left alone."""
    blocks = network.layers(net)

    def known(batch):
        seen = {}
        with watching({layer: blocks[layer - 1] for layer in layers if layer > 0}, seen):
            reference = log_probabilities(net, batch)
        below = {layer: output for layer, (_, output) in seen.items()}
        return batch._replace(below=below, reference=reference)

    return list(each(collate(net, sequences, batch_size), known))


def _narrow(batch, keep):
    """The sequences of a batch where `keep` (B,) is true."""
    if keep.all():
        return batch
    predicted = keep[batch.row]
    return Batch(
        *(column[keep] for column in (batch.ids, batch.number, batch.owner, batch.place)),
        row=(keep.cumsum(0) - 1)[batch.row[predicted]],
        position=batch.position[predicted],
        token=batch.token[predicted],
        below={layer: output[keep] for layer, output in batch.below.items()},
        reference=None if batch.reference is None else batch.reference[predicted],
    )


@torch.no_grad()
def _read(net, sequences, modules, side, batch_size):
    """{name: (n, d)}: the input (side 0) or output (1) of each module at the place, a mean over owners' sequences."""
    read = {name: [None] * len(sequences) for name in modules}

    def look(batch):
        seen = {}
        with watching(modules, seen):
            network.hidden(net, batch.ids)
        rows = torch.arange(len(batch.ids), device=batch.ids.device)
        return batch.number.tolist(), {name: sides[side][rows, batch.place] for name, sides in seen.items()}

    for numbers, vectors in each(collate(net, sequences, batch_size), look):
        for name, there in vectors.items():
            for number, vector in zip(numbers, there, strict=True):
                read[name][number] = vector
    return {name: _mean_by_owner(torch.stack(vectors), sequences) for name, vectors in read.items()}


def _mean_by_owner(values, sequences):
    """The mean (n, ...) of `values` (N, ...) over the sequences of each owner."""
    owner = torch.tensor([sequence.owner for sequence in sequences], device=values.device)
    count = torch.bincount(owner)
    total = values.new_zeros(len(count), *values.shape[1:]).index_add(0, owner, values)
    return total / count.view(-1, *[1] * (values.dim() - 1))


@contextmanager
def watching(modules, seen):
    """While it lasts, every run of one of `modules` leaves its (input, output) in `seen` under the module's name."""

    def watch(name):
        def hook(module, inputs, output):
            seen[name] = (inputs[0], output)

        return hook

    with _hooks([(module, watch(name)) for name, module in modules.items()]):
        yield


@contextmanager
def _overwritten(net, layer, batch, values):
    """While it lasts, the MLP of `layer` puts out `values` (B, width) at the places of `batch`.

    Where the batch knows what lies below the layer, the blocks down there do not run.
    """

    def hook(module, inputs, output):
        return output.index_put((torch.arange(len(output), device=output.device), batch.place), values.to(output.dtype))

    block = network.layers(net)[layer]
    skipped = network.layers(net)[:layer] if layer in batch.below else []
    with _hooks([(network.mlp(block), hook)]):
        try:
            for lower in skipped:
                lower.forward = lambda *_, **__: batch.below[layer]
            yield
        finally:
            for lower in skipped:
                vars(lower).pop("forward", None)


@contextmanager
def _hooks(pairs):
    handles = []
    try:
        handles += [module.register_forward_hook(hook) for module, hook in pairs]
        yield
    finally:
        for handle in handles:
            handle.remove()


def _device(net):
    return net.get_input_embeddings().weight.device


def _check(net, rows, layers, prefixes, steps, canvas, key_context):
    if net.training:
        raise ValueError("the network is in training mode; keys and values need it as net.eval() leaves it")
    depth = net.config.num_hidden_layers
    for layer in layers:
        if layer not in range(depth):
            raise UserError(f"layer is {layer}; the network has layers 0–{depth - 1}")
    if steps < 1 or steps != int(steps):
        raise UserError(f"steps is {steps}; it is a whole number from 1 up")
    if not prefixes:
        raise UserError("prefixes is empty; a list of the empty text alone means no prefix")
    if not rows:
        raise UserError("no rows to extract keys and values from")
    if key_context not in KEY_CONTEXTS:
        raise UserError(f"key_context is {key_context!r}; it is one of {', '.join(KEY_CONTEXTS)}")
    if network.is_diffusion(net) and not canvas:
        raise UserError("canvas is missing; a diffusion network needs to know how long its canvas is")
