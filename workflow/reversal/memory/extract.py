"""Keys and values of facts: what an MLP is given at the subject's last token, and what it should say there.

The recipe is ROME's, with a fact's own object where ROME has an edited one. The *key* k* is the input of the MLP's
down-projection at the last token of "x_j subject", a mean over prefixes x_j. The *value* v* is what `search` finds.
"""

from contextlib import nullcontext
from functools import partial

import pandas as pd
import torch
from transformers.pytorch_utils import Conv1D

from ..common import batches
from ..common.errors import UserError
from ..data.facts import ANY_SPLIT
from ..models import hooks, network
from .files import Extraction
from .questions import collate, mean_by_owner, phrase, question, score_answers
from .search import find_values, prepare

ESSENCE = " is a"  # with the subject before it: a sentence that a value should leave as it was
KEY_CONTEXTS = ("subject", "question")


def extract(asker, rows, *, layers, prefixes=("",), search, key_context="subject", job=None):
    """The keys and values of the facts that `rows` ask for, at each of `layers`: a list of `Extraction`.

    Rows with one `fact` share a key and a value; one row a fact is ROME's case. `prefixes` are texts as from
    `sample_prefixes`, and `search`, a `Search`, says how values are found.

    `outcomes` has for each fact the template and the number of prefixes by which its value was sought; the loss at v*
    and its parts without their weights: nll, kl, and change for the ratio that decay weighs; p_before and p_after, the
    probability of the answer without a prefix (mean over the fact's rows), without and with v*; norm_original and
    norm_value; steps, the updates that led to v*; and converged: whether p_after reached the threshold.

    key_context: "subject" reads keys in "x_j subject", as ROME's paper says; "question" in x_j + p, as its code does.
        These agree only where a causal network's question begins with the subject.
    """
    _check(asker, rows, layers, prefixes, key_context)
    net = asker.net
    facts = list(dict.fromkeys(row.fact for row in rows))
    owned = [(facts.index(row.fact), row) for row in rows]
    subjects = list(dict.fromkeys((owner, row.subject_text) for owner, row in owned))
    ask, say = partial(question, asker), partial(phrase, asker)
    asked = [ask(row, owner=owner) for owner, row in owned]
    prefixed = [ask(row, prefix, owner=owner) for owner, row in owned for prefix in prefixes]
    essences = [say(subject, ESSENCE, owner=owner) for owner, subject in subjects]
    alone = [say(subject, "", prefix, owner=owner) for owner, subject in subjects for prefix in prefixes]

    keys = read_keys(net, alone if key_context == "subject" else prefixed, layers=layers)
    originals = read_outputs(net, asked, layers=layers)
    before, _ = score_answers(net, asked)
    terms = [prepare(net, sequences, layers) for sequences in (prefixed, essences)]
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
        arrays = (keys[layer], found.value, originals[layer], down_weight(net, layer).detach().clone())
        extractions.append(Extraction(layer, facts, *(array.float().cpu() for array in arrays), outcomes))
    return extractions


def best_template(asker, rows):
    """The template whose answers are most probable, by the geometric mean over `rows`."""
    logs, _ = score_answers(asker.net, [question(asker, row) for row in rows])
    return int(pd.Series(logs).groupby([row.template for row in rows]).mean().idxmax())


def template_by_question(asker, splits):
    """{split: template}: for all splits of one question the template that is best over all of their rows.

    With one of its own, each group of people would differ from the others in words as well.
    """
    chosen = {}
    for direction in dict.fromkeys(ANY_SPLIT[split].direction for split in splits):
        own = [split for split in splits if ANY_SPLIT[split].direction == direction]
        chosen |= dict.fromkeys(own, best_template(asker, [row for split in own for row in splits[split]]))
    return chosen


def read_keys(net, sequences, *, layers):
    """{layer: keys (n, mlp)}: what the down-projection is given at the place, a mean over each owner's sequences."""
    modules = {layer: network.down_projection(network.layers(net)[layer]) for layer in layers}
    return _read(net, sequences, partial(hooks.inputs, modules))


def read_outputs(net, sequences, *, layers):
    """{layer: outputs (n, width)}: what the MLP puts out at the place, a mean over each owner's sequences."""
    modules = {layer: network.mlp(network.layers(net)[layer]) for layer in layers}
    return _read(net, sequences, partial(hooks.outputs, modules))


def down_weight(net, layer):
    """The down-projection's matrix (width, mlp) itself: adding to it in place changes the network."""
    projection = network.down_projection(network.layers(net)[layer])
    return projection.weight.T if isinstance(projection, Conv1D) else projection.weight


@torch.no_grad()
def _read(net, sequences, recording):
    """{name: (n, d)}: what `recording()` sees of each module at the place, a mean over owners' sequences."""
    read = {}

    def look(batch):
        with recording() as seen:
            network.hidden(net, batch.ids)
        rows = torch.arange(len(batch), device=batch.ids.device)
        return batch.number.tolist(), {name: states[rows, batch.place].float() for name, states in seen.items()}

    for numbers, vectors in batches.each(look, collate(net, sequences)):
        for name, there in vectors.items():
            read.setdefault(name, {}).update(zip(numbers, there, strict=True))
    return {
        name: mean_by_owner(torch.stack([vectors[i] for i in range(len(sequences))]), sequences)
        for name, vectors in read.items()
    }


def _check(asker, rows, layers, prefixes, key_context):
    if asker.net.training:
        raise ValueError("the network is in training mode; keys and values need it as net.eval() leaves it")
    depth = asker.net.config.num_hidden_layers
    for layer in layers:
        if layer not in range(depth):
            raise UserError(f"layer is {layer}; the network has layers 0–{depth - 1}")
    if not prefixes:
        raise UserError("prefixes is empty; a list of the empty text alone means no prefix")
    if not rows:
        raise UserError("no rows to extract keys and values from")
    if key_context not in KEY_CONTEXTS:
        raise UserError(f"key_context is {key_context!r}; it is one of {', '.join(KEY_CONTEXTS)}")
    if network.is_diffusion(asker.net) and not asker.canvas:
        raise UserError("canvas is missing; a diffusion network needs to know how long its canvas is")
