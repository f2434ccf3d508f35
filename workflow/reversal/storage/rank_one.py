"""ROME's rank-one edit: give one MLP a new object for a subject, and see what else the network then says.

With k* the subject's key and v* a value that makes the network answer with the new object, the down-projection becomes

    W′ = W + (v* − W k* − b) (C⁻¹ k*)ᵀ / (k*ᵀ C⁻¹ k*)

It then puts out v* for k* and changes as little as can be for keys as they usually come: C is their second moment over
training rows. The new object is that of another fact, the *donor*. An edit has a `Site`: where tracing points is not
always where editing works, so that random ones are tried beside it.
"""

import dataclasses
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ..common import batches, contrasts
from ..common.errors import UserError
from ..data.facts import Row
from ..models import hooks, network, tokens
from ..training import objective
from .keyvalue import down_weight, extract, templates_by_question
from .scoring import LAST, Sequence, collate, places_of, question, score_answers, told
from .vocabulary import RIDGE

STATISTICS = {"preferred": contrasts.SHARES, "exact": contrasts.SHARES, "lead": None, "log_p": None}
EACH = "lead"  # the statistic whose change is told for each edit
TOKENS = 4096  # whose keys are float64 at once


class Site(NamedTuple):
    """Where and how an edit is made."""

    how: str  # layer, traced, random, masked or both
    layer: int
    role: str = LAST  # of the token whose key the edit answers to


class Check(NamedTuple):
    """A question to an edited network: the answer that a perfect edit gives, and one that speaks against it."""

    measure: str
    fact: str  # the edited one
    donor: str
    wanted: Row
    rival: Row  # the same prompt with another answer


def choose_donors(tokenizer, rows, *, rng, apart=None):
    """{fact: donor}: for each fact another with a different answer, of as many tokens where there is one.

    The answers' probabilities are compared, and that of a longer answer is a product of more factors. `apart`, {fact:
    another}, is whom not to choose.
    """
    apart = apart or {}
    first = {row.fact: row for row in reversed(rows)}
    length = {fact: _answer_tokens(tokenizer, row) for fact, row in first.items()}
    donors = {}
    for fact, row in sorted(first.items()):
        others = sorted(
            other for other in first if first[other].answer_text != row.answer_text and other != apart.get(fact)
        )
        if not others:
            raise UserError(f"{fact}: all facts have its answer {row.answer_text!r}; an edit needs another")
        alike = [other for other in others if length[other] == length[fact]] or others
        donors[fact] = alike[int(rng.random() * len(alike))]
    return donors


def retarget(rows, donors):
    """The rows with their donors' answers to the same templates: what to `extract` the values of an edit from."""
    at = {(row.fact, row.template): row for row in rows}
    return [answered_as(row, at[donors[row.fact], row.template]) for row in rows]


def answered_as(row, other):
    """The question of one row with the answer of another."""
    return dataclasses.replace(row, completion=other.completion, answer=other.answer)


def checks(rows, reverse_rows, donors, strangers, *, template, neighbours, rng):
    """What to ask about each edit that `donors` names, as `Check`s.

    efficacy     the question with `template`, by which the fact is edited: the donor's object, not its own
    paraphrase   the same with the other templates of `rows`
    specificity  the edited question about up to `neighbours` other facts: their own object, not the donor's
    reverse_new  with the new object in the question (the donor's, in `reverse_rows`): the subject, not a stranger's
    reverse_old  with the fact's own object in the question: still the subject, not a stranger's

    The `strangers`, {fact: another}, have nothing to do with the edit: against the donor, whose own memory stays as it
    was, no subject could win.
    """
    ahead = {(row.fact, row.template): row for row in rows}
    back = {(row.fact, row.template): row for row in reverse_rows}
    facts = list(dict.fromkeys(row.fact for row in rows))
    asked = []
    for fact, donor in donors.items():
        others = [other for other in facts if other not in (fact, donor)]
        chosen = sorted(others, key=lambda _: rng.random())[:neighbours]
        for (about, number), row in ahead.items():
            new = answered_as(row, ahead[donor, number])
            if about == fact:
                measure = "efficacy" if number == template else "paraphrase"
                asked.append(Check(measure, fact, donor, wanted=new, rival=row))
            elif about in chosen and number == template:
                asked.append(Check("specificity", fact, donor, wanted=row, rival=new))
        for (about, number), row in back.items():
            if about in (fact, donor):
                measure = "reverse_old" if about == fact else "reverse_new"
                subject, other = (answered_as(row, back[whose, number]) for whose in (fact, strangers[fact]))
                asked.append(Check(measure, fact, donor, wanted=subject, rival=other))
    return asked


class Plan(NamedTuple):
    """Edits of some facts: the questions with the new objects, by which they are made, and what is asked about them."""

    targets: list  # of Row
    reverse_targets: list  # of Row: the new objects' questions, answered with the subjects
    asked: list  # of Check


def plan_edits(lm, rows, reverse_rows, *, templates, max_facts, neighbours, rng):
    """The `Plan` to edit up to `max_facts` facts (None: all), by one of `templates` forward and one in reverse."""
    donors = choose_donors(lm.tokenizer, rows, rng=rng)
    strangers = choose_donors(lm.tokenizer, reverse_rows, rng=rng, apart=donors)
    chosen = {fact: donors[fact] for fact in list(donors)[:max_facts]}
    targets = [row for row in retarget(rows, donors) if row.fact in chosen and row.template == templates[0]]
    back = {row.fact: row for row in reverse_rows if row.template == templates[1]}
    turned = [
        dataclasses.replace(answered_as(back[donor], back[fact]), fact=fact)
        for fact, donor in chosen.items()
        if donor in back and fact in back
    ]
    how = {"template": templates[0], "neighbours": neighbours, "rng": rng}
    return Plan(targets, turned, checks(rows, reverse_rows, chosen, strangers, **how))


def plan_groups(lm, splits, groups, **how):
    """{group: `Plan`}: `splits` has for each of `groups` the rows that ask forward, then those that ask in reverse."""
    best, names = templates_by_question(lm, splits), list(splits)
    return {
        group: plan_edits(lm, splits[ahead], splits[back], templates=(best[ahead][0], best[back][0]), **how)
        for group, ahead, back in zip(groups, names[::2], names[1::2], strict=True)
    }


def other_sites(lm, targets, plain, *, lead, traced, count, rng):
    """Further `Site`s to edit `targets` at, beside `plain` ones: where tracing points, and `count` random others.

    `traced` is {"layer", "role"}, or {} where tracing points nowhere. A random site is a layer and a token of the
    prompt that no other site has. In the layer `lead` there are two more ways: with values sought on whole masked
    canvases alone, where the network is a masked diffusion model's, and in both directions at once.
    """
    found = [Site("traced", **traced)] if traced and Site("layer", **traced) not in plain else []
    taken = {(site.layer, site.role) for site in plain + found}
    coded = [tokens.encode(lm.tokenizer, row) for row in targets]
    roles = set.intersection(*(set(places_of(one.subject, one.answer[0])) for one in coded))
    depth = len(network.layers(lm.net))
    free = sorted({(layer, role) for layer in range(depth) for role in roles} - taken)
    found += [Site("random", *place) for place in rng.sample(free, min(count, len(free)))]
    ways = ("masked", "both") if network.is_diffusion(lm.net) else ("both",)
    return found + [Site(how, lead) for how in ways]


def edit_group(lm, plan, sites, moments, *, prefixes, search, unmasked=0, turned=0, job=None):
    """Yield (site, `edits_table`), with every edit of the plan made at that site alone.

    `moments` come from `second_moments`, for the sites' layers and for `turned`, the layer where reverse questions are
    edited; `prefixes`, `search` and `unmasked` are as in `extract`.
    """
    lengths = {row.fact: _answer_tokens(lm.tokenizer, row) for row in plan.targets}
    for site in sites:
        how = {"prefixes": prefixes, "search": search, "job": job}
        more = 0 if site.how == "masked" else unmasked
        found = extract(lm, plan.targets, layers=[site.layer], role=site.role, unmasked=more, **how)
        if site.how == "both":
            found += extract(lm, plan.reverse_targets, layers=[turned], unmasked=more, **how)
        probed = edit_all(lm, plan.asked, found, moments, job=job)
        yield site, edits_table(probed, found[0].outcomes.converged, lengths)


def moments_in_training(lm, rows, *, most, layers, seed):
    """`second_moments` over about `most` training `rows` (None: all), evenly chosen."""
    some = rows[:: max(1, len(rows) // (most or len(rows)))]
    ids = [lm.tokenizer(row.text)["input_ids"] for row in some]
    generator = torch.Generator().manual_seed(seed)
    return second_moments(lm.net, ids, layers=layers, canvas=lm.canvas, generator=generator)


@torch.no_grad()
def second_moments(net, rows, *, layers, canvas=None, generator=None):
    """{layer: C (mlp, mlp)} in float64, over all tokens of `rows` (lists of ids).

    A diffusion network sees them as in training: on a canvas that ends in end tokens, masked at random; all of it
    counts, because the edited matrix is at work everywhere.
    """
    modules = {layer: network.down_projection(network.layers(net)[layer]) for layer in layers}
    total, count = {}, 0
    if network.is_diffusion(net):
        rows = _noised(net, rows, canvas, generator)
    sequences = [Sequence(row, 0, {}) for row in rows]

    def read(batch):
        with hooks.inputs(modules) as seen:
            network.hidden(net, batch.ids)
        lengths = torch.tensor([len(rows[i]) for i in batch.number.tolist()], device=batch.ids.device)
        real = torch.arange(batch.ids.shape[1], device=batch.ids.device) < lengths[:, None]
        return {layer: given[real] for layer, given in seen.items()}

    for keys in batches.each(read, collate(net, sequences)):
        for layer, some in keys.items():
            if layer not in total:  # gigabytes a layer in a large network, so made once and added to in place
                total[layer] = torch.zeros(2 * some.shape[1:], dtype=torch.float64, device=some.device)
            for part in some.split(TOKENS):
                part = part.double()
                total[layer].addmm_(part.T, part)
        count += len(some)
    return {layer: moment.div_(count) for layer, moment in total.items()}


def _noised(net, rows, canvas, generator):
    width = max(canvas, *map(len, rows))
    ids = torch.tensor([row + [net.config.eos_token_id] * (width - len(row)) for row in rows])
    t = objective.stratified_times(len(ids), generator=generator)
    return objective.corrupt(ids, t, network.mask_id(net), generator=generator)[0].tolist()


def directions(keys, second_moment):
    """What each edit answers to (n, mlp): the parts of `keys` (n, mlp) that other keys hardly have.

    RIDGE times the mean of the second moment's diagonal is added to that diagonal: directions that the training rows
    hardly use are not free to change either.
    """
    keys, ridged = keys.to(second_moment), second_moment.clone()
    ridged.diagonal().add_(RIDGE * second_moment.diagonal().mean())
    found = torch.linalg.solve(ridged, keys.T, left=True).T
    return found / (found * keys).sum(1, keepdim=True)


def update(net, layer, key, value, direction):
    """The change of the down-projection (width, mlp), as it is now, that makes it put out a `value` for a `key`."""
    key, value = key.to(direction), value.to(direction)
    bias = network.down_projection(network.layers(net)[layer]).bias
    said = down_weight(net, layer).detach().to(direction) @ key + (0 if bias is None else bias.detach().to(direction))
    return torch.outer(value - said, direction)


@contextmanager
def edited(net, layer, change):
    """While it lasts, `change` (width, mlp) is added to the layer's down-projection; then all is as it was."""
    weight = down_weight(net, layer).detach()
    kept = weight.clone()
    try:
        weight.copy_(kept + change.to(kept))
        yield
    finally:
        weight.copy_(kept)


def edit_all(lm, asked, extractions, moments, *, job=None):
    """Make each edit by itself, ask its checks before and after, and undo it: one row for each check.

    `extractions` hold the keys, and the values for the new objects; where there are several, of one fact each makes a
    change, one after the other. `moments` are `second_moments`. Columns: fact, donor, measure, about (the fact that the
    question is about), template; and, each _before and _after, log_p_wanted, log_p_rival and exact: whether the wanted
    answer's tokens are all the most probable ones; told: whether the edited question gets it token by token.
    """
    rows = [row for check in asked for row in (check.wanted, check.rival)]
    net, sequences = lm.net, [question(lm, row) for row in rows]
    scored = {"before": score_answers(net, sequences)}
    after = [torch.empty_like(part) for part in scored["before"]]
    spoken = torch.full((len(asked),), torch.nan)
    places = {}
    for i, check in enumerate(asked):
        places.setdefault(check.fact, []).append(i)
    ways = [(found, directions(found.key, moments[found.layer])) for found in extractions]
    progress = job.progress(len(extractions[0].facts), "edits", "edits") if job else None
    for fact in extractions[0].facts:
        mine = places.get(fact, [])
        both = [2 * i + side for i in mine for side in (0, 1)]
        edited_question = [i for i in mine if asked[i].measure == "efficacy"]
        with ExitStack() as changes:
            for found, direction in ways:
                i = found.facts.index(fact)
                change = update(net, found.layer, found.key[i], found.value[i], direction[i])
                changes.enter_context(edited(net, found.layer, change))
            scores = score_answers(net, [sequences[i] for i in both])
            spoken[edited_question] = told(net, [sequences[2 * i] for i in edited_question]).float()
        for part, score in zip(after, scores, strict=True):
            part[both] = score
        if progress:
            progress.advance()
    scored["after"] = after
    table = pd.DataFrame(
        {
            "fact": [check.fact for check in asked],
            "donor": [check.donor for check in asked],
            "measure": [check.measure for check in asked],
            "about": [check.wanted.fact for check in asked],
            "template": [check.wanted.template for check in asked],
            "told": spoken.double().numpy(),
        }
    )
    for when, (log_p, exact) in scored.items():
        table[f"log_p_wanted_{when}"] = log_p[::2].double().numpy()
        table[f"log_p_rival_{when}"] = log_p[1::2].double().numpy()
        table[f"exact_{when}"] = exact[::2].numpy()
    return table


def edits_table(probed, found, lengths):
    """Means over checks, with intervals over edits and templates: measure, statistic, when, fact, tokens, value, …

    `when` is before, after, or change, which is after less before, check by check. `found`, a bool for each edit, tells
    whether the search for its value found one that says the new object: the measure "value", of which the share is the
    only statistic. n counts edits, probes checks. Rows with a `fact` are of that edit alone, and have no interval; its
    new object has as many `tokens` as `lengths` says.

    preferred  share of checks where the wanted answer is more probable than its rival
    exact      share where it is what the network answers: greedily, or in one step of denoising
    told       share of edited questions where it is what the network says token by token
    log_p      its log-probability in nats
    lead       by how much that exceeds the rival's
    """
    records = []
    for measure, rows in probed.groupby("measure", sort=False):
        ends = [_outcomes(rows, when) for when in ("before", "after")]
        for statistic, limits in STATISTICS.items():
            before, after = (contrasts.Sample(end[statistic], rows.fact, rows.template) for end in ends)
            within = contrasts.CHANGES if limits else None
            means = {"before": contrasts.mean(before, limits), "after": contrasts.mean(after, limits)}
            means["change"] = contrasts.difference(after, before, within)
            for when, mean in means.items():
                records.append((measure, statistic, when, None, None, *mean, rows.fact.nunique(), len(rows)))
        each = {EACH: ("change", ends[1][EACH] - ends[0][EACH])}
        if measure == "efficacy":
            mean = contrasts.mean(contrasts.Sample(rows.told, rows.fact), contrasts.SHARES)
            records.append((measure, "told", "after", None, None, *mean, rows.fact.nunique(), len(rows)))
            each |= {"told": ("after", rows.told), "exact": ("after", ends[1]["exact"].astype(float))}
        for statistic, (when, values) in each.items():
            for fact, own in values.groupby(rows.fact):
                one = (own.mean(), np.nan, np.nan, 1, len(own))
                records.append((measure, statistic, when, fact, lengths.get(fact), *one))
    share = contrasts.mean(contrasts.Sample(found, range(len(found))), contrasts.SHARES)
    records.append(("value", "found", "after", None, None, *share, len(found), len(found)))
    columns = ["measure", "statistic", "when", "fact", "tokens", "value", "ci_low", "ci_high", "n", "probes"]
    return pd.DataFrame(records, columns=columns)


def _outcomes(rows, when):
    wanted, rival = rows[f"log_p_wanted_{when}"], rows[f"log_p_rival_{when}"]
    return {"preferred": wanted > rival, "exact": rows[f"exact_{when}"], "lead": wanted - rival, "log_p": wanted}


def _answer_tokens(tokenizer, row):
    first, end = tokens.encode(tokenizer, row).answer
    return end - first
