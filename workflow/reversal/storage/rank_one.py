"""ROME's rank-one edit: give a subject a new object by changing one MLP, and evaluate the edited network.

With k* the subject's key and v* a value that makes the network answer with the new object, the down-projection becomes

    W′ = W + (v* − W k* − b) (C⁻¹ k*)ᵀ / (k*ᵀ C⁻¹ k*)

W′ maps k* to v* and changes the output for typical keys as little as possible: C is the second moment of the keys over
training rows. The new object, ROME's target_new, is the object of another fact, the *target*. An edit is made at a
`Site`. The site that causal tracing points to is not always the one where editing works, so random sites are tried too.
"""

import dataclasses
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ..common import batches, contrasts
from ..data.facts import Row
from ..models import hooks, network, tokens
from ..training import objective
from .keyvalue import down_weight, extract_keyvalues, rank_templates_by_split
from .scoring import LAST_SUBJECT, Sequence, collate, encode_question, locate_roles, score_answers
from .vocabulary import RIDGE

COLUMNS = ["measure", "statistic", "when", "fact", "value", "ci_low", "ci_high", "n"]
COLUMNS += ["model", "seed", "group", "site", "layer", "role"]
CHUNK = 4096  # tokens whose keys are float64 at once


class Site(NamedTuple):
    """Where an edit is made, and how its values are optimised."""

    kind: str  # layer, traced, random, masked or both: `choose_sites`
    layer: int
    role: str = LAST_SUBJECT  # of the token at which the key is read


class EvaluationPrompt(NamedTuple):
    """A prompt for an edited network, with the answer that a perfect edit gives and one that speaks against it."""

    measure: str  # efficacy, paraphrase, …: `make_prompts`
    fact: str  # the edited one
    expected: Row
    alternative: Row  # the same prompt with another answer


class EditPlan(NamedTuple):
    """The edits of a group of facts, and the prompts that evaluate them."""

    requests: list  # of Row: prompts with the new objects, from which values are optimised
    reverse_requests: list  # of Row: prompts with the new objects as subjects, answered with the edited subjects
    prompts: list  # of EvaluationPrompt


def choose_targets(tokenizer, rows, *, rng, exclude=None):
    """{fact: target}: for each fact a random other fact with a different answer, of as many tokens where there is one.

    Answers' probabilities are compared, and that of a longer answer is a product of more factors. `exclude` is {fact:
    another fact that is not to be its target}.
    """
    exclude = exclude or {}
    first = {row.fact: row for row in reversed(rows)}
    spans = {fact: tokens.encode(tokenizer, row).answer for fact, row in first.items()}
    length = {fact: end - start for fact, (start, end) in spans.items()}
    targets = {}
    for fact, row in sorted(first.items()):
        others = sorted(
            other for other in first if first[other].answer_text != row.answer_text and other != exclude.get(fact)
        )
        candidates = [other for other in others if length[other] == length[fact]] or others
        targets[fact] = candidates[int(rng.random() * len(candidates))]
    return targets


def retarget(rows, targets):
    """Give each row its target's answer to the same template: the rows from which an edit's values are optimised."""
    by_key = {(row.fact, row.template): row for row in rows}
    return [replace_answer(row, by_key[targets[row.fact], row.template]) for row in rows]


def replace_answer(row, other):
    """The prompt of one row with the answer of another."""
    return dataclasses.replace(row, completion=other.completion, answer=other.answer)


def make_prompts(rows, reverse_rows, targets, unrelated, *, template, neighbours, rng):
    """The `EvaluationPrompt`s of each edit that `targets`, {fact: target}, names.

    efficacy     the edited prompt, with `template`: the target's object, not the fact's own
    paraphrase   the same with the other templates of `rows`
    specificity  the edited prompt about up to `neighbours` other facts: their own object, not the target's
    reverse_new  the reverse prompt about the new object (the target's, in `reverse_rows`): the edited subject
    reverse_old  the reverse prompt about the fact's own object: still the subject

    In reverse the alternative is the subject of an `unrelated` fact, {fact: another}. It cannot be the target's, whose
    own association the edit leaves alone, so that no edited subject would become more probable.
    """
    forward = {(row.fact, row.template): row for row in rows}
    reverse = {(row.fact, row.template): row for row in reverse_rows}
    facts = list(dict.fromkeys(row.fact for row in rows))
    prompts = []
    for fact, target in targets.items():
        others = [other for other in facts if other not in (fact, target)]
        neighbourhood = sorted(others, key=lambda _: rng.random())[:neighbours]
        for (about, number), row in forward.items():
            new = replace_answer(row, forward[target, number])
            if about == fact:
                measure = "efficacy" if number == template else "paraphrase"
                prompts.append(EvaluationPrompt(measure, fact, expected=new, alternative=row))
            elif about in neighbourhood and number == template:
                prompts.append(EvaluationPrompt("specificity", fact, expected=row, alternative=new))
        for (about, number), row in reverse.items():
            if about in (fact, target):
                measure = "reverse_old" if about == fact else "reverse_new"
                subject, other = (replace_answer(row, reverse[whose, number]) for whose in (fact, unrelated[fact]))
                prompts.append(EvaluationPrompt(measure, fact, expected=subject, alternative=other))
    return prompts


def plan_edits(lm, rows, reverse_rows, *, templates, max_facts, neighbours, rng):
    """The `EditPlan` of up to `max_facts` facts (None: all), edited with the two `templates`: forward and reverse."""
    targets = choose_targets(lm.tokenizer, rows, rng=rng)
    unrelated = choose_targets(lm.tokenizer, reverse_rows, rng=rng, exclude=targets)
    chosen = {fact: targets[fact] for fact in list(targets)[:max_facts]}
    requests = [row for row in retarget(rows, targets) if row.fact in chosen and row.template == templates[0]]
    reverse = {row.fact: row for row in reverse_rows if row.template == templates[1]}
    reverse_requests = [
        dataclasses.replace(replace_answer(reverse[target], reverse[fact]), fact=fact)
        for fact, target in chosen.items()
        if target in reverse and fact in reverse
    ]
    options = {"template": templates[0], "neighbours": neighbours, "rng": rng}
    return EditPlan(requests, reverse_requests, make_prompts(rows, reverse_rows, chosen, unrelated, **options))


def plan_groups(lm, splits, groups, **options):
    """{group: `EditPlan`}; `splits` holds the rows of each group's forward split, then of its reverse split."""
    best, names = rank_templates_by_split(lm, splits), list(splits)
    return {
        group: plan_edits(
            lm, splits[forward], splits[reverse], templates=(best[forward][0], best[reverse][0]), **options
        )
        for group, forward, reverse in zip(groups, names[::2], names[1::2], strict=True)
    }


def choose_sites(lm, requests, layer_sites, *, main_layer, traced, count, rng):
    """The `Site`s at which to edit `requests` besides `layer_sites`.

    traced  where tracing points: `traced` is {"layer", "role"}, or {} where it points nowhere
    random  `count` layers and tokens of the prompt that no other site has
    masked  in `main_layer`, with values optimised on fully masked canvases alone; only for a masked diffusion model
    both    in `main_layer`, with both directions edited at once

    Without `layer_sites` there is nothing to control, and only the traced site is left.
    """
    sites = [Site("traced", **traced)] if traced and Site("layer", **traced) not in layer_sites else []
    if not layer_sites:
        return sites
    used = {(site.layer, site.role) for site in layer_sites + sites}
    encoded = [tokens.encode(lm.tokenizer, row) for row in requests]
    roles = set.intersection(*(set(locate_roles(row.subject, row.answer[0])) for row in encoded))
    depth = len(network.layers(lm.net))
    free = sorted({(layer, role) for layer in range(depth) for role in roles} - used)
    sites += [Site("random", *place) for place in rng.sample(free, min(count, len(free)))]
    kinds = ("masked", "both") if network.is_diffusion(lm.net) else ("both",)
    return sites + [Site(kind, main_layer) for kind in kinds]


def edit_group(lm, plan, sites, moments, *, prefixes, optimization, partly_unmasked=0, reverse_layer=0, job=None):
    """Make every edit of the plan at each of `sites` alone; yield (site, `summarize_edits`' table).

    `moments` are `second_moments` of the sites' layers and of `reverse_layer`, where reverse prompts are edited;
    `prefixes`, `optimization` and `partly_unmasked` are as in `extract_keyvalues`.
    """
    for site in sites:
        options = {"prefixes": prefixes, "optimization": optimization, "job": job}
        options["partly_unmasked"] = 0 if site.kind == "masked" else partly_unmasked
        keyvalues = extract_keyvalues(lm, plan.requests, layers=[site.layer], role=site.role, **options)
        if site.kind == "both":
            keyvalues += extract_keyvalues(lm, plan.reverse_requests, layers=[reverse_layer], **options)
        scores = evaluate_edits(lm, plan.prompts, keyvalues, moments, job=job)
        yield site, summarize_edits(scores)


def training_second_moments(lm, rows, *, max_rows, layers, seed):
    """`second_moments` over about `max_rows` training `rows` (None: all), evenly spaced."""
    sample = rows[:: max(1, len(rows) // (max_rows or len(rows)))]
    ids = [lm.tokenizer(row.text)["input_ids"] for row in sample]
    generator = torch.Generator().manual_seed(seed)
    return second_moments(lm.net, ids, layers=layers, canvas=lm.canvas, generator=generator)


@torch.no_grad()
def second_moments(net, rows, *, layers, canvas=None, generator=None):
    """{layer: C (mlp, mlp)}, the second moment of the keys in float64, over all tokens of `rows` (lists of ids).

    A diffusion network sees the rows as in training: on a canvas filled up with end tokens, randomly masked. All of the
    canvas counts, because the edited matrix acts on every token.
    """
    modules = {layer: network.down_projection(network.layers(net)[layer]) for layer in layers}
    total, count = {}, 0
    if network.is_diffusion(net):
        rows = _mask_rows(net, rows, canvas, generator)
    sequences = [Sequence(row, 0, {}) for row in rows]

    def read_keys(batch):
        with hooks.record_inputs(modules) as inputs:
            network.hidden(net, batch.ids)
        lengths = torch.tensor([len(rows[i]) for i in batch.number.tolist()], device=batch.ids.device)
        is_token = torch.arange(batch.ids.shape[1], device=batch.ids.device) < lengths[:, None]
        return {layer: states[is_token] for layer, states in inputs.items()}

    for batch_keys in batches.run_pieces(read_keys, collate(net, sequences)):
        for layer, keys in batch_keys.items():
            if layer not in total:  # gigabytes a layer in a large network, so allocated once and added to in place
                total[layer] = torch.zeros(2 * keys.shape[1:], dtype=torch.float64, device=keys.device)
            for chunk in keys.split(CHUNK):
                chunk = chunk.double()
                total[layer].addmm_(chunk.T, chunk)
        count += len(keys)
    return {layer: moment.div_(count) for layer, moment in total.items()}


def _mask_rows(net, rows, canvas, generator):
    """`rows` on a canvas, masked at random as in training."""
    width = max(canvas, *map(len, rows))
    ids = torch.tensor([row + [net.config.eos_token_id] * (width - len(row)) for row in rows])
    t = objective.stratified_times(len(ids), generator=generator)
    return objective.corrupt(ids, t, network.mask_id(net), generator=generator)[0].tolist()


def compute_u(keys, second_moment):
    """The vectors u = C⁻¹k* / (k*ᵀC⁻¹k*) (n, mlp) of `keys` k* (n, mlp): u·k* is 1, and u·k small for typical keys k.

    RIDGE times the mean of the second moment's diagonal is added to that diagonal, so that an edit is not free to
    change directions that the training rows hardly use.
    """
    keys, ridged = keys.to(second_moment), second_moment.clone()
    ridged.diagonal().add_(RIDGE * second_moment.diagonal().mean())
    u = torch.linalg.solve(ridged, keys.T, left=True).T
    return u / (u * keys).sum(1, keepdim=True)


def compute_update(net, layer, k_star, v_star, u):
    """The change (width, mlp) of the down-projection, as it is now, that makes it map `k_star` to `v_star`."""
    k_star, v_star = k_star.to(u), v_star.to(u)
    bias = network.down_projection(network.layers(net)[layer]).bias
    output = down_weight(net, layer).detach().to(u) @ k_star + (0 if bias is None else bias.detach().to(u))
    return torch.outer(v_star - output, u)


@contextmanager
def apply_update(net, layer, update):
    """Add `update` (width, mlp) to the layer's down-projection; on exit, restore the weights bit for bit."""
    weight = down_weight(net, layer).detach()
    original = weight.clone()
    try:
        weight.copy_(original + update.to(original))
        yield
    finally:
        weight.copy_(original)


def evaluate_edits(lm, prompts, keyvalues, moments, *, job=None):
    """Make each edit by itself, score its prompts before and after, and undo it: a table with one row a prompt.

    `keyvalues` hold the keys, and the values for the new objects; each of several makes a change for every fact, one
    after the other. `moments` are `second_moments`. Columns: fact, measure, template; and, each _before and _after, the
    log-probability of the expected answer less that of the alternative (lead), and whether all tokens of the expected
    answer are the most probable ones (exact).
    """
    rows = [row for prompt in prompts for row in (prompt.expected, prompt.alternative)]
    net, sequences = lm.net, [encode_question(lm, row) for row in rows]
    before = score_answers(net, sequences)
    after = [torch.empty_like(score) for score in before]
    indices_of = {}
    for i, prompt in enumerate(prompts):
        indices_of.setdefault(prompt.fact, []).extend((2 * i, 2 * i + 1))
    directions = [compute_u(layer.k_star, moments[layer.layer]) for layer in keyvalues]
    progress = job.progress(len(keyvalues[0].facts), "edits", "edits") if job else None
    for fact in keyvalues[0].facts:
        with ExitStack() as updates:
            for layer, u in zip(keyvalues, directions, strict=True):
                i = layer.facts.index(fact)
                update = compute_update(net, layer.layer, layer.k_star[i], layer.v_star[i], u[i])
                updates.enter_context(apply_update(net, layer.layer, update))
            edited_scores = score_answers(net, [sequences[i] for i in indices_of[fact]])
        for score, edited_score in zip(after, edited_scores, strict=True):
            score[indices_of[fact]] = edited_score
        if progress:
            progress.advance()
    table = pd.DataFrame(
        {
            "fact": [prompt.fact for prompt in prompts],
            "measure": [prompt.measure for prompt in prompts],
            "template": [prompt.expected.template for prompt in prompts],
        }
    )
    for when, (log_p, exact) in (("before", before), ("after", after)):
        table[f"lead_{when}"] = (log_p[::2].double() - log_p[1::2].double()).numpy()
        table[f"exact_{when}"] = exact[::2].numpy()
    return table


def summarize_edits(scores):
    """Means over prompts, with intervals over edits and templates: measure, statistic, when, fact, value, ends, n.

    `scores` come from `evaluate_edits`. `when` is before, after, or change: after minus before, prompt by prompt.
    n counts edits. Rows with a `fact` are of that edit alone and have no interval.

    preferred  share of prompts whose expected answer is more probable than the alternative
    exact      share whose expected answer the network gives: greedily, or in one step of denoising
    lead       log-probability of the expected answer minus that of the alternative, in nats; of single edits alone
    """
    records = []
    for measure, rows in scores.groupby("measure", sort=False):
        outcomes = {
            "preferred": rows[["lead_before", "lead_after"]] > 0,
            "exact": rows[["exact_before", "exact_after"]],
        }
        for statistic, columns in outcomes.items():
            before, after = (contrasts.Sample(columns[name], rows.fact, rows.template) for name in columns)
            means = {
                "before": contrasts.mean(before, contrasts.SHARES),
                "after": contrasts.mean(after, contrasts.SHARES),
                "change": contrasts.difference(after, before, contrasts.CHANGES),
            }
            records += [(measure, statistic, when, None, *mean, rows.fact.nunique()) for when, mean in means.items()]
        change = (rows.lead_after - rows.lead_before).groupby(rows.fact).mean()
        records += [(measure, "lead", "change", fact, value, np.nan, np.nan, 1) for fact, value in change.items()]
    return pd.DataFrame(records, columns=COLUMNS[: COLUMNS.index("model")])
