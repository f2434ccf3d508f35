"""Fine-tuned edits: train a network on a new answer to one prompt, and evaluate it on the reverse prompt.

If both directions share their storage, an edit of one changes both; if they have separate storage, only the edited one
changes. A fact is edited by a few steps of Adam on some templates and evaluated on others, by the log-probability of
whole answers in nats. There are three kinds of edit:

    replace  the fact's prompt gets the answer of another fact, the target (ROME's target_new)
    forget   the fact's answer is made unlikely, and nothing takes its place
    insert   an invented name (or description), which no fact has, gets the target's answer

The questions that evaluate an edit are the edited prompt, with the templates of the edit ("edited") and with held-out
ones ("paraphrase"), and its reverse ("reverse"). The same questions about other facts show what such an edit does to
any fact. A null result means little unless the test can detect shared storage. So a positive control derives the
reverse from the forward answers ("bayes_inverse"): by Bayes' rule, with the names at hand as candidates, p(name |
description) is p(description | name) over its sum. Read this way, the same network has shared storage by construction.
"""

import dataclasses
import random
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ..common.errors import UserError
from ..models import network
from ..training import adapters
from .rank_one import choose_targets, replace_answer
from .scoring import answer_loss, collate, encode_question, score_answers
from .vocabulary import main_weights

FORGOTTEN_ABOVE = 3.0  # nats a token: less probable than 5%
COLUMNS = ("fact", "steps", "converged", "question", "about", "answer", "before", "after")
COLUMNS += ("recall_before", "recall_after")


@dataclass(frozen=True)
class EditSettings:
    """How facts are edited: the names and meanings of `finetuned_edits` in the configuration."""

    groups: tuple  # whose facts
    kinds: tuple  # of EDIT_KINDS
    weights: tuple  # all, mlp, attention, layers (one at a time), adapter
    adapter: dict  # its rank and alpha
    max_facts: int | None  # a group; 0: none
    neighbours: int  # other facts to evaluate after each edit
    replay: int  # further facts, trained on their own answers together with the edit
    edit_templates: int  # to edit with; the others evaluate
    learning_rate: float
    steps: tuple  # of Adam, after which the network is evaluated
    converged_below: float  # nats a token of the new answer below which an edit has converged
    seed: int

    @property
    def gradient_weights(self):
        """Whose gradients are compared: an adapter's where its edits are the main ones, or all weights'."""
        return "adapter" if main_weights(self.weights) == "adapter" else "all"


class Edit(NamedTuple):
    """An edit of one fact: a `subject`, the fact's own or an invented one, gets the target's answer."""

    fact: str
    subject: str
    target: str
    neighbours: list  # unrelated facts, to evaluate
    neighbour_subjects: list  # their own subjects, or invented ones
    replay: list  # further facts, trained on their own answers, so that the edit concerns its subject alone


def plan_edits(tokenizer, rows, *, kind, settings, rng):
    """The `Edit`s of a `kind` of the facts of `rows`, the prompts to edit."""
    facts = sorted({row.fact for row in rows})
    if len(facts) < 4:
        raise UserError(f"{len(facts)} facts; a fine-tuned edit needs at least 4: the fact, its target and two others")
    short = [row.subject_text for row in rows if len(row.subject_text.split()) < 2]
    if short and kind == "insert":
        raise UserError(
            f"{short[0]!r} is one word; an invented subject is made of two halves: remove insert from "
            "finetuned_edits.kinds"
        )
    targets = choose_targets(tokenizer, rows, rng=rng)
    subject_of = invented_id if kind == "insert" else str
    edits = []
    for fact in facts[: settings.max_facts]:
        others = [other for other in facts if other not in (fact, targets[fact])]
        others = sorted(others, key=lambda _: rng.random())
        neighbours, replay = others[: settings.neighbours], others[settings.neighbours :][: settings.replay]
        subjects = [subject_of(other) for other in neighbours]
        edits.append(Edit(fact, subject_of(fact), targets[fact], neighbours, subjects, replay))
    return edits


def invented_id(fact):
    """The id under which `Prompts` holds an invented subject."""
    return f"{fact}, invented"


class Prompts:
    """One direction's rows by fact and template; for each fact also one with an invented subject and answer.

    Those are the first half of the fact's own and the second half of the next fact's.
    """

    def __init__(self, rows):
        self.rows = {(row.fact, row.template): row for row in rows}
        self.templates = sorted({row.template for row in rows})
        facts = sorted({row.fact for row in rows})
        for fact, following in zip(facts, facts[1:] + facts[:1], strict=True):
            for template in self.templates:
                row, other = self.rows[fact, template], self.rows[following, template]
                self.rows[invented_id(fact), template] = _mix_rows(row, other)

    def get(self, template, subject, answer):
        """The prompt about the fact `subject`, with the answer of the fact `answer`."""
        return replace_answer(self.rows[subject, template], self.rows[answer, template])


def _mix_rows(row, other):
    """`row` with half of its subject and half of its answer from `other`."""
    subject = _join_halves(row.subject_text, other.subject_text)
    answer = _join_halves(row.answer_text, other.answer_text)
    (start, end), (first, last) = row.subject, row.answer
    return dataclasses.replace(
        row,
        prompt=row.prompt[:start] + subject + row.prompt[end:],
        subject=(start, start + len(subject)),
        completion=row.completion[:first] + answer + row.completion[last:],
        answer=(first, first + len(answer)),
    )


def _join_halves(text, other):
    """The first half of the words of `text` and the second half of the other's."""
    words, other_words = text.split(), other.split()
    return " ".join(words[: (len(words) + 1) // 2] + other_words[(len(other_words) + 1) // 2 :])


class Evaluation:
    """All prompts that evaluate an `Edit`, and the scores of their answers."""

    def __init__(self, lm, edit, forward, reverse, *, kind, edit_templates):
        """`forward` and `reverse` are `Prompts`; the first `edit_templates` templates of `forward` are edited."""
        edited_pairs = [("old", edit.fact, edit.fact)] * (kind != "insert")
        edited_pairs += [("new", edit.subject, edit.target)] * (kind != "forget")
        neighbour_pairs = [("old", other, other) for other in edit.neighbours]
        neighbour_pairs += [("new", subject, edit.target) for subject in edit.neighbour_subjects] * (kind != "forget")
        self.reported = {"fact": edited_pairs, "others": neighbour_pairs}
        subjects = dict.fromkeys([edit.fact, edit.subject, edit.target, *edit.neighbours, *edit.neighbour_subjects])
        pairs = {(x, y) for _, x, y in edited_pairs + neighbour_pairs}
        # Bayes' rule needs every candidate's probability of an answer: of the reported ones, and of one neighbour's.
        pairs |= {(x, y) for x in subjects for y in (edit.fact, edit.target, edit.neighbours[0])}
        editing, held_out = forward.templates[:edit_templates], forward.templates[edit_templates:]
        rows = {("edited", t, x, y): forward.get(t, x, y) for t in editing for _, x, y in edited_pairs}
        rows |= {("paraphrase", t, x, y): forward.get(t, x, y) for t in held_out for x, y in sorted(pairs)}
        held_out = reverse.templates[edit_templates - len(forward.templates) :]
        rows |= {
            ("reverse", t, x, y): reverse.get(t, y, x) for t in held_out for _, x, y in edited_pairs + neighbour_pairs
        }
        self.keys, self.net = list(rows), lm.net
        self.sequences = [encode_question(lm, row) for row in rows.values()]

    def score(self):
        """{(question, about, answer): (log-probability, share recalled)}: means over templates and facts."""
        logs, exact = (score.double().tolist() for score in score_answers(self.net, self.sequences))
        scores = dict(zip(self.keys, zip(logs, exact, strict=True), strict=True))
        scores |= _invert_by_bayes({key: log for key, (log, _) in scores.items() if key[0] == "paraphrase"})
        groups = {}
        for (question, _, *pair), score in scores.items():
            for about, reported in self.reported.items():
                for answer, *reported_pair in reported:
                    if pair == reported_pair:
                        groups.setdefault((question, about, answer), []).append(score)
        return {key: tuple(sum(part) / len(part) for part in zip(*group, strict=True)) for key, group in groups.items()}


def _invert_by_bayes(scores):
    """The reverse by Bayes' rule: log p(x | y) = log p(y | x) − log Σ p(y | x′), and whether x is the most probable."""
    columns = {}
    for (_, template, x, y), log in scores.items():
        columns.setdefault((template, y), {})[x] = log
    inverse = {}
    for (template, y), column in columns.items():
        if len(column) < max(map(len, columns.values())):
            continue  # not scored for every candidate
        total = torch.tensor(list(column.values()), dtype=torch.float64).logsumexp(0).item()
        for x, log in column.items():
            inverse["bayes_inverse", template, x, y] = (log - total, float(log == max(column.values())))
    return inverse


def make_all_edits(lm, forward_rows, reverse_rows, settings, *, job=None):
    """Make the edits of every kind, of all weights: `make_edits`' tables, with columns kind and weights.

    The first kind of edit is made with each of the settings' weights, the other kinds with the first of these.
    """
    tables = [pd.DataFrame(columns=[*COLUMNS, "kind", "weights"])] if settings.max_facts == 0 else []
    layers = [f"layer {i}" for i in range(len(network.layers(lm.net)))]
    for kind in settings.kinds if settings.max_facts != 0 else ():
        for name in settings.weights if kind == settings.kinds[0] else settings.weights[:1]:
            for weights in layers if name == "layers" else [name]:
                options = {"kind": kind, "weights": weights, "rng": random.Random(settings.seed)}
                table = make_edits(lm, forward_rows, reverse_rows, settings=settings, job=job, **options)
                tables.append(table.assign(kind=kind, weights=weights))
    return pd.concat(tables)


def make_edits(lm, forward_rows, reverse_rows, *, kind, weights, settings, rng, job=None):
    """Make one edit after another, each undone before the next, and evaluate it: a table with `COLUMNS`.

    `forward_rows` are the prompts to edit, `reverse_rows` their reverse, about the same facts; `weights` names what is
    trained, as in `select_parameters`. An edit has `converged` where the loss on its own templates is at most
    `settings.converged_below`, or where the answer is forgotten.
    """
    edits = plan_edits(lm.tokenizer, forward_rows, kind=kind, settings=settings, rng=rng)
    forward, reverse = Prompts(forward_rows), Prompts(reverse_rows)
    edit_templates = min(settings.edit_templates, len(forward.templates) - 1)
    if not edit_templates:
        raise UserError("a fine-tuned edit needs at least 2 templates, to edit with and to evaluate with; there is 1")
    records = []
    with job.progress(len(edits), f"{kind}, {weights}", "facts") if job else nullcontext() as progress:
        for edit in edits:
            evaluation = Evaluation(lm, edit, forward, reverse, kind=kind, edit_templates=edit_templates)
            rows = select_training_rows(edit, forward, kind=kind, edit_templates=edit_templates)
            before = evaluation.score()
            with fine_tune(lm, *rows, weights, settings, forget=kind == "forget") as train:
                for steps, more in zip(settings.steps, np.diff(settings.steps, prepend=0), strict=True):
                    loss = train(more)
                    converged = loss >= FORGOTTEN_ABOVE if kind == "forget" else loss <= settings.converged_below
                    for key, (log, recall) in evaluation.score().items():
                        log_before, recall_before = before[key]
                        records.append((edit.fact, steps, converged, *key, log_before, log, recall_before, recall))
            if progress:
                progress.advance()
    return pd.DataFrame(records, columns=COLUMNS)


def select_training_rows(edit, forward, *, kind, edit_templates):
    """The rows that an `Edit` makes likely (or, to forget, unlikely), and those that it replays: one for each fact."""
    templates = forward.templates[:edit_templates]
    answer = edit.fact if kind == "forget" else edit.target
    replay = [forward.get(templates[i % edit_templates], fact, fact) for i, fact in enumerate(edit.replay)]
    return [forward.get(template, edit.subject, answer) for template in templates], replay


@contextmanager
def fine_tune(lm, rows, replay, weights, settings, *, forget=False):
    """Make the network trainable on `rows` and `replay`, which count equally; on exit, undo all training.

    Yields a function that takes a number of steps of Adam and returns the loss on `rows` after them, in nats a token of
    the answers.
    """
    net = lm.net
    edit_batches, replay_batches = (collate(net, [encode_question(lm, row) for row in part]) for part in (rows, replay))
    with trainable(net, weights, settings.adapter) as parameters:
        optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate)

        def train(steps):
            for _ in range(steps):
                optimizer.zero_grad()
                (answer_loss(net, replay_batches) + (-1 if forget else 1) * answer_loss(net, edit_batches)).backward()
                optimizer.step()
            with torch.no_grad():
                return answer_loss(net, edit_batches).item()

        yield train


@contextmanager
def trainable(net, weights, adapter):
    """Give gradients to what `weights` names, and to nothing else; on exit, restore the network as it was.

    Yields the parameters: those of `select_parameters`, or, for "adapter", those of low-rank matrices added to the
    network's, which need little memory; `adapter` has their rank and alpha.
    """
    had_gradients = [(parameter, parameter.requires_grad) for parameter in net.parameters()]
    adapted = adapters.attach(net, **adapter, seed=0) if weights == "adapter" else None
    parameters = list(adapters.trainable_parameters(net).values()) if adapted else select_parameters(net, weights)
    originals = None if adapted else [parameter.detach().clone() for parameter in parameters]
    net.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield parameters
    finally:
        if adapted:
            adapted.unload()
        else:
            with torch.no_grad():
                for parameter, original in zip(parameters, originals, strict=True):
                    parameter.copy_(original)
        for parameter, had_gradient in had_gradients:
            parameter.requires_grad_(had_gradient)
            parameter.grad = None


def select_parameters(net, weights):
    """The parameters that `weights` names: all, mlp, attention (of every layer), or "layer 3" (all of that one)."""
    blocks = network.layers(net)
    if weights == "all":
        return list(net.parameters())
    if weights.startswith("layer "):
        return list(blocks[int(weights.removeprefix("layer "))].parameters())
    part = {"mlp": network.mlp, "attention": network.attention}[weights]
    return [parameter for block in blocks for parameter in part(block).parameters()]
