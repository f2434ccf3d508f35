"""At which steps the subject is needed: only a model that writes its answer in several steps can tell.

Two measurements on the traced questions. The total effect on the answer tokens still to come of corrupting the subject,
the answer tokens already revealed, or both. And a diffusion network's recall of the finished answer, with the subject
corrupted from some step on or until some step, or one module's output at its tokens corrupted at all steps.

The subject is corrupted as in `swap`, by another person's subject of as many tokens.
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ..common import batches
from ..common.errors import UserError
from ..models import hooks, network
from ..recall import evaluation, logits, masked
from . import engine
from .study import AnsweredQuestion, space_evenly
from .vocabulary import WINDOWED_KINDS

COLUMNS = ["fact", "reading", "corrupted", "kind", "layer", "stage", "step", "revealed", "remaining", "value"]


@dataclass(frozen=True)
class Timing:
    """The settings of `tracing.time` in the configuration, under the same names."""

    starts: int = 9  # steps from which, and until which, the subject is corrupted: evenly spaced, both ends included
    module_facts: int | None = None  # facts whose modules are corrupted; None: all traced ones

    def __post_init__(self):
        if self.starts < 2:
            raise UserError(f"starts is {self.starts}; allowed: a whole number from 2 up")


class SubjectCorruption(NamedTuple):
    """A question, the steps at which its subject is corrupted, and there the module whose output alone is."""

    question: AnsweredQuestion
    steps: range
    site: tuple | None = None  # (kind, layer) of the module; None: the network sees the other subject


def make_predictor(net, corruptions):
    """The `predict_states` of `masked.denoise_each` that corrupts each prompt as its `SubjectCorruption` says."""

    def predict(canvas, prompts, steps):
        swapped, seen, patched, unpatched = canvas.clone(), canvas.clone(), [], []
        for i, (prompt, step) in enumerate(zip(prompts, steps, strict=True)):
            question, corrupted_steps, site = corruptions[prompt]
            swapped[i, slice(*question.subject)] = torch.tensor(question.partner.subject, device=canvas.device)
            if step in corrupted_steps and not site:
                seen[i] = swapped[i]
            (patched if step in corrupted_steps and site else unpatched).append(i)
        # Many corruptions agree at most of the steps, so equal canvases are run once.
        plain, plain_row = torch.cat([seen[unpatched], swapped[patched]]).unique(dim=0, return_inverse=True)
        sites = {}  # {(kind, layer): [(row, position, row that sees the other subject)]}
        for row, (i, source) in enumerate(zip(patched, plain_row[len(unpatched) :].tolist(), strict=True), len(plain)):
            question, _, site = corruptions[prompts[i]]
            sites.setdefault(site, []).extend((row, position, source) for position in range(*question.subject))
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
    return hooks.change_output(lambda states: states.index_put((row, position), states[source, position]))


def measure_timing(net, tokenizer, questions, sampling, steps, timing):
    """All measurements of `questions` (`study.AnsweredQuestion`s): a table with `COLUMNS`, a row per value.

    `sampling` and `steps` are those of the completions.
    """
    questions = [question for question in questions if question.partner is not None]
    table = measure_total_effects(net, questions)
    if questions and network.is_diffusion(net):
        table = pd.concat([table, measure_recall(net, tokenizer, questions, sampling, steps, timing)])
    return table.reindex(columns=COLUMNS)


def measure_total_effects(net, questions):
    """Log-probabilities of the answer tokens still to come, with the subject, the revealed tokens or both corrupted.

    At each step that reveals an answer token. Each token to come is scored given those before it, by which the families
    compare; the `reading` is "sequential". `corrupted` is "neither", "subject", "revealed" or "both"; `kind` is what
    replaces a revealed token: "mask", where the network has one, or the token of the partner's answer ("swap"), where
    that has as many tokens.
    """
    rows, requests, owners = [], [], []
    for question in questions:
        for step in question.answer_steps:
            remaining = question.step_input(net, step)[1]
            revealed = [position for position in range(*question.answer) if position not in remaining]
            replacements = {"mask": [network.mask_id(net)] * len(revealed)} if network.is_diffusion(net) else {}
            if question.contrast_answer:
                other = question.contrast_answer
                replacements["swap"] = [other[position - question.answer[0]] for position in revealed]
            labels = {"fact": question.row.fact, "reading": "sequential", "step": step, "stage": question.stage(step)}
            labels |= {"revealed": len(revealed), "remaining": len(remaining)}
            runs = [("neither", None, []), ("subject", None, [])]
            for kind, tokens in replacements.items() if revealed else ():
                runs += [("revealed", kind, tokens), ("both", kind, tokens)]
            canvases = question.conditionals(net, step)
            for corrupted, kind, tokens in runs:
                for ids, positions in canvases:
                    ids = replace_tokens(ids, revealed if tokens else [], tokens)
                    ids = _swap_subject(question, ids) if corrupted in ("subject", "both") else ids
                    owners.append(len(rows))
                    requests.append((ids, question.answer_pairs(net, positions)))
                rows.append(labels | {"corrupted": corrupted, "kind": kind})
    value = np.bincount(owners, score_answers(net, requests), len(rows)) if rows else []
    return pd.DataFrame(rows, columns=COLUMNS).assign(value=value)


def replace_tokens(ids, positions, tokens):
    """`ids` with `tokens` at `positions`."""
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


def generate(net, corruptions, sampling, steps):
    """The finished canvases (n, T) of questions corrupted by `SubjectCorruption`s."""
    prompts = [question.ids[: question.prompt] for question, *_ in corruptions]
    predict = make_predictor(net, corruptions)
    return masked.denoise_each(net, prompts, sampling, [steps], predict_states=predict)[steps].canvas.tolist()


def measure_recall(net, tokenizer, questions, sampling, steps, timing):
    """Whether the finished answer is right, 1 or 0, with the subject or a module's output there corrupted.

    `step` is the first at which it is corrupted (`corrupted` is "from") or no longer corrupted ("until"). Modules are
    corrupted at all steps.
    """
    rows, corruptions = [], []
    starts = space_evenly(0, steps, timing.starts)
    for question, schedule, step in itertools.product(questions, ("from", "until"), starts):
        rows.append({"fact": question.row.fact, "corrupted": schedule, "kind": "subject", "step": step})
        corruptions.append(SubjectCorruption(question, range(step, steps) if schedule == "from" else range(step)))
    sites = itertools.product(WINDOWED_KINDS, range(net.config.num_hidden_layers))
    for question, (kind, layer) in itertools.product(questions[: timing.module_facts], sites):
        rows.append({"fact": question.row.fact, "corrupted": "from", "kind": kind, "layer": layer, "step": 0})
        corruptions.append(SubjectCorruption(question, range(steps), (kind, layer)))
    table = pd.DataFrame(rows, columns=COLUMNS).assign(reading="recall")
    values = []
    for (question, *_), ids in zip(corruptions, generate(net, corruptions, sampling, steps), strict=True):
        generation = evaluation.decode(tokenizer, ids[question.prompt :])
        values.append(float(evaluation.is_correct(question.row.completion, generation)))
    return table.assign(value=values)
