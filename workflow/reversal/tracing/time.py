"""At which steps the subject is needed: only a model that writes its answer in several steps can tell.

Three measurements on the traced questions. The total effect on the answer tokens still to come of corrupting the
subject, the answer tokens already revealed, or both. Recall of the finished answer with the subject, or one module's
output at its tokens, corrupted from some step on or until some step. And what remains at later steps of a state that is
restored at t1 alone, through the tokens that it wrote on the canvas.

The subject is corrupted as in `swap`, by another person's subject of as many tokens.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ..common import batches
from ..common.errors import UserError
from ..models import hooks, network
from ..recall import autoregressive, evaluation, logits, masked
from . import engine
from .files import collect_t1_effects
from .study import space_evenly
from .vocabulary import ROLES, UNSEVERED_KINDS, WINDOWED_KINDS, choose_corruption

COLUMNS = ["fact", "reading", "corrupted", "kind", "layer", "stage", "step", "revealed", "remaining", "value"]


@dataclass(frozen=True)
class Timing:
    """The settings of `tracing.time` in the configuration, under the same names."""

    starts: int = 9  # steps from which, and until which, the subject is corrupted: evenly spaced, both ends included
    module_starts: int = 3  # the same for single modules
    module_facts: int | None = None  # facts whose modules are corrupted; None: all traced ones

    def __post_init__(self):
        for name in ("starts", "module_starts"):
            if getattr(self, name) < 2:
                raise UserError(f"{name} is {getattr(self, name)}; allowed: a whole number from 2 up")


class StepView(NamedTuple):
    """What the network sees at one step: the subject or its replacement; and a site that sees the opposite."""

    corrupted: bool
    site: tuple | None = None  # (kind, layer)


class SubjectCorruption(NamedTuple):
    """The positions of a subject, the tokens that replace it, and what the network sees at each step."""

    positions: range
    tokens: list
    view: Callable  # from a step to a `StepView`


def make_predictor(net, corruptions):
    """The `predict_states` of `masked.denoise_each` that corrupts each prompt as its `SubjectCorruption` says."""

    def predict(canvas, prompts, steps):
        views = [corruptions[prompt].view(step) for prompt, step in zip(prompts, steps, strict=True)]
        replaced = canvas.clone()
        for row, prompt in zip(replaced, prompts, strict=True):
            row[list(corruptions[prompt].positions)] = torch.tensor(corruptions[prompt].tokens, device=row.device)
        is_corrupted = torch.tensor([view.corrupted for view in views], device=canvas.device)[:, None]
        seen, opposite = torch.where(is_corrupted, replaced, canvas), torch.where(is_corrupted, canvas, replaced)
        patched = [i for i, view in enumerate(views) if view.site]
        unpatched = [i for i, view in enumerate(views) if not view.site]
        # Many corruptions agree at most of the steps, so equal canvases are run once.
        plain, plain_row = torch.cat([seen[unpatched], opposite[patched]]).unique(dim=0, return_inverse=True)
        sites = {}  # {(kind, layer): [(row, position, row that sees the opposite)]}
        for row, (i, source) in enumerate(zip(patched, plain_row[len(unpatched) :].tolist(), strict=True), len(plain)):
            copies = [(row, position, source) for position in corruptions[prompts[i]].positions]
            sites.setdefault(views[i].site, []).extend(copies)
        patches = [
            (engine.find_module(net, *site), _make_row_copy_hook(copies, canvas.device))
            for site, copies in sites.items()
        ]
        with hooks.attach(patches):
            states = network.prediction_states(net, torch.cat([plain, seen[patched]]))
        rows = torch.empty(len(canvas), dtype=torch.long, device=canvas.device)
        rows[unpatched] = plain_row[: len(unpatched)]
        rows[patched] = torch.arange(len(plain), len(states), device=rows.device)
        return states[rows]

    return predict


def _make_row_copy_hook(copies, device):
    """A hook that copies a module's output between rows of a batch: `copies` are (to row, position, from row)."""
    row, position, source = torch.tensor(copies, device=device).T

    def hook(module, args, output):
        states = output[0] if isinstance(output, tuple) else output
        patched = states.index_put((row, position), states[source, position])
        return (patched, *output[1:]) if isinstance(output, tuple) else patched

    return hook


def corrupt_from(start, site=None):
    """Corrupt the subject, or a site at its tokens, from step `start` on."""
    return lambda step: _view_step(step >= start, site)


def corrupt_until(end, site=None):
    """Corrupt the subject, or a site at its tokens, before step `end`."""
    return lambda step: _view_step(step < end, site)


def restore_at(restored_step, site):
    """Corrupt the subject at all steps, and restore a site at `restored_step` alone."""
    return lambda step: StepView(True, site if step == restored_step else None)


def _view_step(corrupted, site):
    return StepView(corrupted and site is None, site if corrupted else None)


SCHEDULES = {"from": corrupt_from, "until": corrupt_until}


def measure_timing(net, tokenizer, questions, traces, sampling, steps, timing):
    """All measurements of `questions` (`study.AnsweredQuestion`s): a table with `COLUMNS`, a row per value.

    At t1 the sites with the largest indirect effects in `traces` are restored. `sampling` and `steps` are those of the
    completions; for an autoregressive network each token is a step.
    """
    questions = [question for question in questions if question.partner is not None]
    parts = [measure_total_effects(net, questions)]
    if questions and network.is_diffusion(net):
        parts += [measure_recall(net, tokenizer, questions, sampling, steps, timing)]
        parts += [measure_restored(net, tokenizer, questions, choose_sites(traces), sampling, steps)]
    elif questions:
        parts += [measure_autoregressive_recall(net, tokenizer, questions, sampling.canvas, timing)]
    return pd.concat([part for part in parts if len(part)] or parts[:1]).reindex(columns=COLUMNS)


def measure_total_effects(net, questions):
    """Log-probabilities of the answer tokens still to come, with the subject, the revealed tokens or both corrupted.

    At each step that reveals an answer token. By `reading`, the tokens to come are scored on the canvas of the step
    ("total_effect"), where a diffusion network sees none of them, or each given those before it ("sequential").
    `corrupted` is "neither", "subject", "revealed" or "both"; `kind` is what replaces a revealed token: "mask", where
    the network has one, or the token of the partner's answer ("swap"), where that has as many tokens.
    """
    rows, requests, owners = [], [], []
    for question in questions:
        for step in question.answer_steps:
            canvas, remaining = question.step_input(net, step)
            revealed = [position for position in range(*question.answer) if position not in remaining]
            replacements = {"mask": [network.mask_id(net)] * len(revealed)} if network.is_diffusion(net) else {}
            if question.contrast_answer:
                other = question.contrast_answer
                replacements["swap"] = [other[position - question.answer[0]] for position in revealed]
            labels = {"fact": question.row.fact, "step": step, "stage": question.stage(step)}
            labels |= {"revealed": len(revealed), "remaining": len(remaining)}
            runs = [("neither", None, []), ("subject", None, [])]
            for kind, tokens in replacements.items() if revealed else ():
                runs += [("revealed", kind, tokens), ("both", kind, tokens)]
            parts = {"total_effect": [(canvas, remaining)], "sequential": question.conditionals(net, step)}
            for (reading, canvases), (corrupted, kind, tokens) in itertools.product(parts.items(), runs):
                for ids, positions in canvases:
                    ids = replace_tokens(ids, revealed if tokens else [], tokens)
                    ids = _swap_subject(question, ids) if corrupted in ("subject", "both") else ids
                    owners.append(len(rows))
                    requests.append((ids, question.answer_pairs(net, positions)))
                rows.append(labels | {"reading": reading, "corrupted": corrupted, "kind": kind})
    value = np.bincount(owners, score_answers(net, requests), len(rows)) if rows else []
    return pd.DataFrame(rows, columns=COLUMNS).assign(value=value)


def replace_tokens(ids, positions, tokens):
    """`ids` with `tokens` at some `positions`."""
    replaced = list(ids)
    for position, token in zip(positions, tokens, strict=True):
        replaced[position] = token
    return replaced


def _swap_subject(question, ids):
    """`ids` with the subject of the question's partner."""
    return replace_tokens(ids, range(*question.subject), question.partner.subject)


@torch.no_grad()
def score_answers(net, requests):
    """The joint log-probability of the answer in each request: ids, and the (position, token) pairs to score."""
    device = net.get_input_embeddings().weight.device

    def score(indices):
        # Padding is harmless: either all ids have one length, or no earlier position sees it.
        ids, _ = batches.pad([requests[i][0] for i in indices], 0)
        states = network.hidden(net, ids.to(device))
        scored = [(row, *pair) for row, i in enumerate(indices) for pair in requests[i][1]]
        row, position, token = torch.tensor(scored, device=device).T
        logs = logits.token_log_probs(net, states[row, position], token)
        return torch.zeros(len(indices), dtype=torch.float64).index_add_(0, row.cpu(), logs.double().cpu()).tolist()

    return batches.run_by_length(score, [len(ids) for ids, _ in requests], device)


def _generate(net, cases, sampling, steps):
    """The `sampling.Denoised` of `cases`, (question, function from a step to a `StepView`) pairs."""
    corruptions = [
        SubjectCorruption(range(*question.subject), question.partner.subject, view) for question, view in cases
    ]
    prompts = [question.ids[: question.prompt] for question, _ in cases]
    return masked.denoise_each(net, prompts, sampling, [steps], predict_states=make_predictor(net, corruptions))[steps]


def _score_recall(tokenizer, question, ids):
    """1.0 if `ids`, a prompt and its completion, hold the right answer, else 0.0."""
    generation = evaluation.decode(tokenizer, ids[question.prompt :])
    return float(evaluation.is_correct(question.row.completion, generation))


def measure_recall(net, tokenizer, questions, sampling, steps, timing):
    """Whether the finished answer is right, 1 or 0, with the subject or a module's output there corrupted.

    `step` is the first at which it is corrupted (`corrupted` is "from") or no longer corrupted ("until").
    """
    depth = net.config.num_hidden_layers
    modules = [(kind, layer) for kind in WINDOWED_KINDS for layer in range(depth)]
    cases = [
        (question, schedule, None, step)
        for question in questions
        for schedule in SCHEDULES
        for step in space_evenly(0, steps, timing.starts)
    ]
    cases += [
        (question, schedule, site, step)
        for question in questions[: timing.module_facts]
        for site in modules
        for schedule in SCHEDULES
        for step in space_evenly(0, steps, timing.module_starts)
        if step != {"from": steps, "until": 0}[schedule]  # where nothing is corrupted
    ]
    views = [(question, SCHEDULES[schedule](step, site)) for question, schedule, site, step in cases]
    done = _generate(net, views, sampling, steps)
    rows = []
    for (question, schedule, site, step), ids in zip(cases, done.canvas.tolist(), strict=True):
        kind, layer = site or ("subject", None)
        labels = {"fact": question.row.fact, "reading": "recall", "corrupted": schedule}
        labels |= {"kind": kind, "layer": layer, "step": step}
        rows.append(labels | {"value": _score_recall(tokenizer, question, ids)})
    return pd.DataFrame(rows)


def measure_autoregressive_recall(net, tokenizer, questions, canvas, timing):
    """`measure_recall` of an autoregressive network, whose tokens are its steps; its modules are not corrupted."""

    def complete(prompts):
        new_tokens = max(canvas - len(prompt) for prompt in prompts)
        return autoregressive.complete(net, prompts, new_tokens=new_tokens, eos=tokenizer.eos_token_id).tokens

    swapped = [_swap_subject(question, question.ids[: question.prompt]) for question in questions]
    longest = max(question.answer[1] - question.prompt for question in questions)
    cases, prompts = [], []
    for question, other, corrupted in zip(questions, swapped, complete(swapped), strict=True):
        prompt, completion = question.ids[: question.prompt], question.ids[question.prompt :]
        for step in space_evenly(0, longest, timing.starts):
            cases += [(question, "from", step), (question, "until", step)]
            prompts += [other + completion[:step], prompt + corrupted[:step]]
    rows = []
    for (question, schedule, step), prompt, completion in zip(cases, prompts, complete(prompts), strict=True):
        labels = {"fact": question.row.fact, "reading": "recall", "corrupted": schedule}
        labels |= {"kind": "subject", "step": step}
        rows.append(labels | {"value": _score_recall(tokenizer, question, prompt + completion)})
    return pd.DataFrame(rows)


def measure_restored(net, tokenizer, questions, sites, sampling, steps):
    """What restoring one of `sites` at t1 alone leaves at later steps, through the tokens that it wrote.

    At later steps, with the subject corrupted: the log-probability of the tokens that the clean run has yet to reveal,
    on the canvas of the clean run (`corrupted` is "neither"), of the run with the subject corrupted throughout
    ("subject"), and of the run with the site restored ("restored"). At stage "end": whether the finished answer is
    right.
    """
    cases = [(question, None) for question in questions]
    cases += [(question, site) for question in questions for site in sites]
    views = [(question, restore_at(question.t1, site) if site else corrupt_from(0)) for question, site in cases]
    done = _generate(net, views, sampling, steps)
    mask, rows, requests = network.mask_id(net), [], []
    finished = {}
    for number, ((question, site), ids) in enumerate(zip(cases, done.canvas.tolist(), strict=True)):
        kind, layer = site or ("subject", None)
        labels = {"fact": question.row.fact, "reading": "restored", "corrupted": "restored" if site else "subject"}
        labels |= {"kind": kind, "layer": layer}
        rows.append(labels | {"stage": "end"})
        finished[len(rows) - 1] = _score_recall(tokenizer, question, ids)
        for step in question.steps[1:]:
            clean, remaining = question.step_input(net, step)
            pairs = question.answer_pairs(net, remaining)
            canvases = {labels["corrupted"]: done.canvas_before(step)[number].tolist()}
            if not site:
                canvases["neither"] = clean
            later = {"stage": question.stage(step), "step": step, "remaining": len(pairs)}
            for corrupted, canvas in canvases.items():
                rows.append(labels | {"corrupted": corrupted} | later)
                masked_canvas = replace_tokens(_swap_subject(question, canvas), remaining, [mask] * len(remaining))
                requests.append((masked_canvas, pairs))
    values = iter(score_answers(net, requests))
    return pd.DataFrame(
        [row | {"value": finished.get(i) if i in finished else next(values)} for i, row in enumerate(rows)]
    )


def choose_sites(traces):
    """The (kind, layer) with the largest mean effect at t1 of all subject tokens, for each unsevered kind."""
    corruption = choose_corruption(name for trace in traces for name in trace.kinds)
    effects = {kind: collect_t1_effects(traces, corruption, kind)[0] for kind in UNSEVERED_KINDS}
    role = ROLES.index("all subject tokens")
    return [(kind, int(values[:, role].mean(0).argmax())) for kind, values in effects.items() if len(values)]
