"""Extract the keys and values of facts, and read activations, where an MLP looks a subject up.

Following ROME, with a fact's own object where ROME has a new one. The key k* is the input of the MLP's down-projection
at the last subject token of "x_j prompt", averaged over prefixes x_j. The value v* is the output of that MLP that
makes the network give the answer: see `compute_v`. `read_activations` covers more sites, without any optimisation.
"""

import random
from collections import ChainMap
from collections.abc import Collection
from contextlib import contextmanager, nullcontext
from functools import partial

import pandas as pd
import torch
from transformers.pytorch_utils import Conv1D

from ..common import batches
from ..data.facts import ANY_SPLIT
from ..models import hooks, network
from .compute_v import ValueOptimization, compute_v, prepare_batches
from .files import Extraction
from .scoring import (
    LAST_SUBJECT,
    LanguageModel,
    collate,
    encode_kl_prompt,
    encode_question,
    mean_by_owner,
    score_answers,
    unmask_part,
)

PARTS = 4  # sets of templates that activations are averaged over: two for each half


def extract_keyvalues(
    lm: LanguageModel,
    rows: list,
    *,
    layers: Collection[int],
    optimization: ValueOptimization,
    prefixes: Collection[str] = ("",),
    role: str = LAST_SUBJECT,
    partly_unmasked: int = 0,
    job=None,
) -> list[Extraction]:
    """The keys and values of the facts in `rows`, one row each, as an `Extraction` for each of `layers`.

    `prefixes` are texts as from `sample_prefixes`. Keys are read, and values put, at the token with the `role`, of
    `scoring.locate_roles`. A masked diffusion network's values are optimised over `partly_unmasked` further canvases
    per row that show a part of the answer, as the network sees when it answers in several steps.

    `outcomes` has one row per fact: its template; p_before and p_after, the probability of the answer without a prefix,
    with the MLP's own output and with v*; steps, the number of updates that led to v*; and converged, whether p_after
    is at least min_probability.
    """
    net = lm.net
    bare = [encode_question(lm, row, owner=i, role=role) for i, row in enumerate(rows)]
    prefixed = [
        encode_question(lm, row, prefix, owner=i, role=role) for i, row in enumerate(rows) for prefix in prefixes
    ]
    # The KL prompt protects what the network says about the subject, so it needs a value at a subject token.
    kl_prompts = (
        [encode_kl_prompt(lm, row.subject_text, owner=i, role=role) for i, row in enumerate(rows)]
        if "subject" in role
        else []
    )
    questions = list(prefixed)
    if network.is_diffusion(net):
        rng = random.Random(0)
        divisible = [sequence for sequence in bare if len(sequence.answer) > 1]
        questions += [unmask_part(sequence, rng) for sequence in divisible for _ in range(partly_unmasked)]

    blocks = network.layers(net)
    down_projections = {layer: network.down_projection(blocks[layer]) for layer in layers}
    mlps = {layer: network.mlp(blocks[layer]) for layer in layers}
    k_star = read_at_lookup(net, prefixed, hooks.record_inputs, down_projections)
    originals = read_at_lookup(net, bare, hooks.record_outputs, mlps)
    before, _ = score_answers(net, bare)
    prepared = [prepare_batches(net, sequences, layers) for sequences in (questions, kl_prompts)]
    facts, extractions = [row.fact for row in rows], []
    for layer in layers:
        label = f"values at layer {layer}"
        with job.progress(optimization.steps, label, "steps") if job else nullcontext() as progress:
            fit = compute_v(net, originals[layer], *prepared, layer=layer, optimization=optimization, progress=progress)
        after, _ = score_answers(net, bare, layer=layer, values=fit.v_star)
        outcomes = pd.DataFrame(
            {
                "fact": facts,
                "layer": layer,
                "template": [row.template for row in rows],
                "p_before": before.exp().tolist(),
                "p_after": after.exp().tolist(),
                "steps": fit.steps.tolist(),
                "converged": (after.exp() >= optimization.min_probability).tolist(),
            }
        )
        arrays = (k_star[layer], fit.v_star, originals[layer])
        extractions.append(Extraction(layer, facts, *(array.float().cpu() for array in arrays), outcomes))
    return extractions


def rank_templates(lm, rows):
    """The templates of `rows`, from the highest to the lowest mean log-probability of their answers."""
    log_p, _ = score_answers(lm.net, [encode_question(lm, row) for row in rows])
    mean = pd.Series(log_p).groupby([row.template for row in rows]).mean()
    return [int(template) for template in mean.sort_values(ascending=False, kind="stable").index]


def rank_templates_by_split(lm, splits):
    """{split: ranked templates} of {split: rows}, ranked over all splits of the same direction together.

    Otherwise groups of people could differ in their templates as well.
    """
    ranked = {}
    for direction in dict.fromkeys(ANY_SPLIT[split].direction for split in splits):
        pooled = [split for split in splits if ANY_SPLIT[split].direction == direction]
        ranked |= dict.fromkeys(pooled, rank_templates(lm, [row for split in pooled for row in splits[split]]))
    return ranked


def read_activations(lm, rows, *, layers):
    """The n facts of `rows`, and {layer: {"key at subject": (P, n, mlp), "state at answer": (P, n, width), …}}.

    The names combine KINDS and POSITIONS of the vocabulary. Each of the P parts is a mean over every P-th row of a
    fact; P is PARTS, or the lowest number of rows of any fact if that is less.
    """
    net, blocks = lm.net, network.layers(lm.net)
    facts = list(dict.fromkeys(row.fact for row in rows))
    rows_of = {fact: [row for row in rows if row.fact == fact] for fact in facts}
    parts = min(PARTS, *map(len, rows_of.values()))
    sequences = [
        _restrict_to_hidden_answer(net, encode_question(lm, row, owner=parts * i + number % parts))
        for i, fact_rows in enumerate(rows_of.values())
        for number, row in enumerate(fact_rows)
    ]
    input_modules = {("key", layer): network.down_projection(blocks[layer]) for layer in layers}
    output_modules = {("output", layer): network.mlp(blocks[layer]) for layer in layers}
    output_modules |= {("state", layer): blocks[layer] for layer in layers}

    @contextmanager
    def record():
        with hooks.record_inputs(input_modules) as inputs, hooks.record_outputs(output_modules) as outputs:
            yield ChainMap(inputs, outputs)

    selectors = {"subject": _select_lookup, "answer": _average_over_answer}
    arrays = {}
    for ((kind, layer), position), vectors in _record_means(net, sequences, record, selectors).items():
        split_in_parts = vectors.view(len(facts), parts, -1).transpose(0, 1)
        arrays.setdefault(layer, {})[f"{kind} at {position}"] = split_in_parts.float().cpu().numpy()
    return facts, arrays


def _restrict_to_hidden_answer(net, sequence):
    """Keep only the predictions that are made while no answer token is visible."""
    if network.is_diffusion(net):
        return sequence
    first = min(sequence.answer)
    return sequence._replace(answer={first: sequence.answer[first]})


def _select_lookup(batch, states):
    """`states` (B, T, d) at the lookup positions: (B, d)."""
    return states[torch.arange(len(batch), device=states.device), batch.lookup_position]


def _average_over_answer(batch, states):
    """The mean of `states` (B, T, d) over the positions of each sequence's predictions: (B, d)."""
    total = states.new_zeros(len(batch), states.shape[-1]).index_add(0, batch.row, states[batch.row, batch.position])
    return total / torch.bincount(batch.row, minlength=len(batch))[:, None]


def read_at_lookup(net, sequences, record, modules):
    """{name: (n, d)}: inputs or outputs of `modules` at the lookup positions, a mean over the sequences of each owner.

    `record` is `hooks.record_inputs` or `hooks.record_outputs`.
    """
    means = _record_means(net, sequences, partial(record, modules), {"lookup": _select_lookup})
    return {name: vectors for (name, _), vectors in means.items()}


def down_weight(net, layer):
    """The weight (width, mlp) of a layer's down-projection, not a copy: adding to it in place changes the network."""
    projection = network.down_projection(network.layers(net)[layer])
    return projection.weight.T if isinstance(projection, Conv1D) else projection.weight


@torch.no_grad()
def _record_means(net, sequences, record, selectors):
    """{(module, selector): (n, d)}: vectors that `selectors` take from recorded states, a mean over each owner's.

    `record()` is a context that yields {module: states (B, T, d)}; `selectors` are {name: function of batch, states}.
    """
    vectors = {}

    def run(batch):
        with record() as recorded:
            network.hidden(net, batch.ids)
        selected = {
            (module, name): select(batch, states).float()
            for module, states in recorded.items()
            for name, select in selectors.items()
        }
        return batch.number.tolist(), selected

    for numbers, selected in batches.run_pieces(run, collate(net, sequences)):
        for name, rows in selected.items():
            vectors.setdefault(name, {}).update(zip(numbers, rows, strict=True))
    return {
        name: mean_by_owner(torch.stack([by_number[i] for i in range(len(sequences))]), sequences)
        for name, by_number in vectors.items()
    }
