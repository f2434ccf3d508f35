"""Keys and values of facts: what an MLP is given at the subject's last token, and what it should say there.

The recipe is ROME's, with a fact's own object where ROME has an edited one. The *key* k* is the input of the MLP's
down-projection at the subject's last token in "x_j question", a mean over prefixes x_j, as ROME's code has it. The
*value* v* is what `search` finds. `read` looks at more places, at everything that can be read without a search.
"""

import random
from collections import ChainMap
from contextlib import contextmanager, nullcontext
from functools import partial

import pandas as pd
import torch
from transformers.pytorch_utils import Conv1D

from ..common import batches
from ..common.errors import UserError
from ..data.facts import ANY_SPLIT
from ..models import hooks, network
from .compute_v import find_values, prepare
from .files import Extraction
from .scoring import LAST, collate, mean_by_owner, partly_unmasked, phrase, question, score_answers

ESSENCE = " is a"  # with the subject before it: a sentence that a value should leave as it was
PARTS = 4  # sets of templates: two for each half


def extract(lm, rows, *, layers, prefixes=("",), search, role=LAST, unmasked=0, job=None):
    """The keys and values of the facts that `rows` ask for, at each of `layers`: a list of `Extraction`.

    Rows with one `fact` share a key and a value; one row a fact is ROME's case. `prefixes` are texts as from
    `sample_prefixes`, and `search`, a `Search`, says how values are found. Both are of the token with the `role`, of
    `places_of`. A masked diffusion network's values are sought over as many more canvases as `unmasked` says, on which
    a part of the answer stands already: so it answers when it comes to it in steps.

    `outcomes` has for each fact the template and the number of prefixes by which its value was sought; the loss at v*
    and its parts without their weights: nll, kl, and change for the ratio that decay weighs; p_before and p_after, the
    probability of the answer without a prefix (mean over the fact's rows), without and with v*; norm_original and
    norm_value; steps, the updates that led to v*; and converged: whether p_after reached the threshold.
    """
    _check(lm, rows, layers, prefixes)
    net = lm.net
    facts = list(dict.fromkeys(row.fact for row in rows))
    owned = [(facts.index(row.fact), row) for row in rows]
    subjects = list(dict.fromkeys((owner, row.subject_text) for owner, row in owned))
    ask, say = partial(question, lm, role=role), partial(phrase, lm, role=role)
    asked = [ask(row, owner=owner) for owner, row in owned]
    prefixed = [ask(row, prefix, owner=owner) for owner, row in owned for prefix in prefixes]
    # A value that is put elsewhere than at the subject says nothing about what the subject is.
    essences = [say(subject, ESSENCE, owner=owner) for owner, subject in subjects] if "subject" in role else []
    sought = list(prefixed)
    if network.is_diffusion(net):
        rng = random.Random(0)
        long = [sequence for sequence in asked if len(sequence.answer) > 1]
        sought += [partly_unmasked(sequence, rng) for sequence in long for _ in range(unmasked)]

    blocks = network.layers(net)
    downs = {layer: network.down_projection(blocks[layer]) for layer in layers}
    keys = read_at_place(net, prefixed, hooks.inputs, downs)
    originals = read_at_place(net, asked, hooks.outputs, {layer: network.mlp(blocks[layer]) for layer in layers})
    before, _ = score_answers(net, asked)
    terms = [prepare(net, sequences, layers) for sequences in (sought, essences)]
    extractions = []
    for layer in layers:
        with job.progress(search.steps, f"values at layer {layer}", "steps") if job else nullcontext() as progress:
            found = find_values(net, originals[layer], *terms, layer=layer, search=search, progress=progress)
        after, _ = score_answers(net, asked, layer=layer, values=found.value)
        p_before, p_after = (mean_by_owner(logs.exp(), asked) for logs in (before, after))
        nll, kl, change = found.parts.tolist()
        outcomes = pd.DataFrame(
            {
                "fact": facts,
                "layer": layer,
                "template": [next(row.template for row in rows if row.fact == fact) for fact in facts],
                "prefixes": len(prefixes),
                "loss": found.loss.tolist(),
                "nll": nll,
                "kl": kl,
                "change": change,
                "p_before": p_before.tolist(),
                "p_after": p_after.tolist(),
                "norm_original": originals[layer].norm(dim=1).tolist(),
                "norm_value": found.value.norm(dim=1).tolist(),
                "steps": found.steps.tolist(),
                "converged": (p_after >= search.threshold).tolist(),
            }
        )
        arrays = (keys[layer], found.value, originals[layer])
        extractions.append(Extraction(layer, facts, *(array.float().cpu() for array in arrays), outcomes))
    return extractions


def best_templates(lm, rows):
    """The templates, those first whose answers are most probable, by the geometric mean over `rows`."""
    logs, _ = score_answers(lm.net, [question(lm, row) for row in rows])
    mean = pd.Series(logs).groupby([row.template for row in rows]).mean()
    return [int(template) for template in mean.sort_values(ascending=False, kind="stable").index]


def templates_by_question(lm, splits):
    """{split: templates}: for all splits of one question the templates, those first that are best over all their rows.

    With some of its own, each group of people would differ from the others in words as well.
    """
    chosen = {}
    for direction in dict.fromkeys(ANY_SPLIT[split].direction for split in splits):
        own = [split for split in splits if ANY_SPLIT[split].direction == direction]
        chosen |= dict.fromkeys(own, best_templates(lm, [row for split in own for row in splits[split]]))
    return chosen


def read(lm, rows, *, layers):
    """{layer: {"key at subject": (P, n, mlp), "state at answer": (P, n, width), …}} of the n facts that `rows` ask for.

    KINDS at PLACES, by the vocabulary; P parts, each a mean over every P-th of a fact's rows, are as many as PARTS or
    as the fact with the fewest rows has.
    """
    net, blocks = lm.net, network.layers(lm.net)
    facts = list(dict.fromkeys(row.fact for row in rows))
    own = {fact: [row for row in rows if row.fact == fact] for fact in facts}
    parts = min(PARTS, *map(len, own.values()))
    sequences = [
        _unseen(net, question(lm, row, owner=parts * i + number % parts))
        for i, some in enumerate(own.values())
        for number, row in enumerate(some)
    ]
    given = {("key", layer): network.down_projection(blocks[layer]) for layer in layers}
    said = {("output", layer): network.mlp(blocks[layer]) for layer in layers}
    said |= {("state", layer): blocks[layer] for layer in layers}

    @contextmanager
    def recording():
        with hooks.inputs(given) as keys, hooks.outputs(said) as others:
            yield ChainMap(keys, others)

    found = _read(net, sequences, recording, places={"subject": _at_place, "answer": _where_predicted})
    arrays = {}
    for ((kind, layer), place), vectors in found.items():
        split = vectors.view(len(facts), parts, -1).transpose(0, 1)
        arrays.setdefault(layer, {})[f"{kind} at {place}"] = split.float().cpu().numpy()
    return facts, arrays


def _unseen(net, sequence):
    """The sequence with those predictions alone that are made while nothing of the answer is in sight."""
    if network.is_diffusion(net):
        return sequence
    first = min(sequence.answer)
    return sequence._replace(answer={first: sequence.answer[first]})


def _at_place(batch, states):
    """`states` (B, T, d) at the last subject token: (B, d)."""
    return states[torch.arange(len(batch), device=states.device), batch.place]


def _where_predicted(batch, states):
    """The mean of `states` (B, T, d) over the positions of each sequence's predictions: (B, d)."""
    total = states.new_zeros(len(batch), states.shape[-1]).index_add(0, batch.row, states[batch.row, batch.position])
    return total / torch.bincount(batch.row, minlength=len(batch))[:, None]


def read_at_place(net, sequences, recording, modules):
    """{name: (n, d)}: what `recording`, of `hooks`, sees of `modules` at the place, a mean over owners' sequences."""
    found = _read(net, sequences, partial(recording, modules), {"place": _at_place})
    return {name: vectors for (name, _), vectors in found.items()}


def down_weight(net, layer):
    """The down-projection's matrix (width, mlp) itself: adding to it in place changes the network."""
    projection = network.down_projection(network.layers(net)[layer])
    return projection.weight.T if isinstance(projection, Conv1D) else projection.weight


@torch.no_grad()
def _read(net, sequences, recording, places):
    """{(name, what): (n, d)}: what `recording()` sees of each module, a mean over owners' sequences.

    `places` are {what: how to pick}.
    """
    read = {}

    def look(batch):
        with recording() as seen:
            network.hidden(net, batch.ids)
        picked = {
            (name, what): pick(batch, states).float() for name, states in seen.items() for what, pick in places.items()
        }
        return batch.number.tolist(), picked

    for numbers, vectors in batches.each(look, collate(net, sequences)):
        for name, there in vectors.items():
            read.setdefault(name, {}).update(zip(numbers, there, strict=True))
    return {
        name: mean_by_owner(torch.stack([vectors[i] for i in range(len(sequences))]), sequences)
        for name, vectors in read.items()
    }


def _check(lm, rows, layers, prefixes):
    if lm.net.training:
        raise ValueError("the network is in training mode; keys and values need it as net.eval() leaves it")
    depth = lm.net.config.num_hidden_layers
    for layer in layers:
        if layer not in range(depth):
            raise UserError(f"layer is {layer}; the network has layers 0–{depth - 1}")
    if not prefixes:
        raise UserError("prefixes is empty; a list of the empty text alone means no prefix")
    if not rows:
        raise UserError("no rows to extract keys and values from")
    if network.is_diffusion(lm.net) and not lm.canvas:
        raise UserError("canvas is missing; a diffusion network needs to know how long its canvas is")
