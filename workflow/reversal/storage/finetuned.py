"""Edits: change how a network answers one prompt, and evaluate it on the reverse prompt.

If both directions share their storage, a change of one may change both; if they have separate storage, it changes one.
An edit is learned from some templates and evaluated on others, by the log-probability of whole answers in nats. The
kinds of edit:

    replace      the fact's prompt gets the answer of another fact, the target (ROME's target_new)
    replay_both  the same, with replayed facts in both directions
    forget       the fact's answer is made unlikely, and nothing takes its place
    insert       an invented name (or description), which no fact has, gets the target's answer
    knock_out    the weights that matter most to this fact's answer, and least to others', are set to 0
    erase        matrices lose their response to this fact, and keep that to others
    relearn      the fact is forgotten in both directions and taught again in one; what returns in the other is compared
                 with what a new answer, taught in the same way, brings there

The questions that evaluate an edit are the edited prompt, with the templates of the edit ("edited") and with held-out
ones ("paraphrase"), and its reverse ("reverse"). The same questions about other facts show what such an edit does to
any fact. What an edit shows with shared and with separate storage is measured on networks of known storage (`known`).
"""

import dataclasses
import functools
import random
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ..models import hooks, network
from ..training import adapters
from .rank_one import choose_targets, compute_u, replace_answer
from .scoring import (
    LanguageModel,
    answer_log_odds,
    answer_loss,
    collate,
    device_of,
    encode_question,
    joint_log_probability,
    log_probabilities,
    score_answers,
)
from .vocabulary import main_weights

FORGOTTEN_ABOVE = 3.0  # nats a token: less probable than 5%
QUESTIONS = ("edited", "paraphrase", "reverse")
COLUMNS = ("fact", "steps", "converged", "question", "about", "answer", "before", "after")
COLUMNS += ("recall_before", "recall_after")


@dataclass(frozen=True)
class EditSettings:
    """How facts are edited: the names and meanings of `finetuned_edits` in the configuration."""

    groups: tuple  # whose facts
    kinds: tuple  # of EDIT_KINDS
    weights: tuple  # all, mlp, attention, traced (where tracing finds the fact), layers (one at a time), adapter
    adapter: dict  # its rank and alpha
    max_facts: int | None  # a group; 0: none
    neighbours: int  # other facts to evaluate after each edit
    replay: int  # further facts, trained on their own answers together with the edit
    edit_templates: int  # to edit with; the others evaluate
    learning_rate: float
    steps: tuple  # of Adam, after which the network is evaluated
    converged_below: float  # nats a token of the new answer below which an edit has converged
    knock_out: tuple  # shares of the weights that are set to 0, one after the other until the fact is forgotten
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
        self.facts = sorted({row.fact for row in rows})
        for fact, following in zip(self.facts, self.facts[1:] + self.facts[:1], strict=True):
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
        has_target = kind not in ("forget", "knock_out", "erase")
        edited = [("old", edit.fact, edit.fact)] * (kind != "insert")
        edited += [("new", edit.subject, edit.target)] * has_target
        neighbours = [("old", other, other) for other in edit.neighbours]
        neighbours += [("new", subject, edit.target) for subject in edit.neighbour_subjects] * has_target
        reported = {"fact": edited, "others": neighbours}
        editing, held_out = forward.templates[:edit_templates], forward.templates[edit_templates:]
        reverse_held_out = reverse.templates[edit_templates - len(forward.templates) :]
        rows = [
            (("edited", "fact", answer), forward.get(template, x, y)) for template in editing for answer, x, y in edited
        ]
        for about, pairs in reported.items():
            for answer, x, y in pairs:
                rows += [(("paraphrase", about, answer), forward.get(template, x, y)) for template in held_out]
                rows += [(("reverse", about, answer), reverse.get(template, y, x)) for template in reverse_held_out]
        self.keys, self.net = [key for key, _ in rows], lm.net
        self.sequences = [encode_question(lm, row) for _, row in rows]

    def score(self):
        """{(question, about, answer): (log-probability, share recalled)}: means over templates and facts."""
        logs, exact = (score.double().tolist() for score in score_answers(self.net, self.sequences))
        groups = {}
        for key, *score in zip(self.keys, logs, exact, strict=True):
            groups.setdefault(key, []).append(score)
        return {key: tuple(sum(part) / len(part) for part in zip(*group, strict=True)) for key, group in groups.items()}


def choose_weights(kind, weights):
    """Which of the settings' `weights` a kind of edit is made with.

    Replacing and knocking out: each. Erasing: each but adapters, and instead of all, where tracing points. Others: the
    first.
    """
    if kind == "erase":
        return list(dict.fromkeys("traced" if name == "all" else name for name in weights if name != "adapter"))
    return weights if kind in ("replace", "knock_out") else weights[:1]


def make_all_edits(lm, forward_rows, reverse_rows, settings, *, job=None):
    """Make the edits of every kind, of all its weights: `make_edits`' tables, with columns kind and weights."""
    tables = []
    layers = [f"layer {i}" for i in range(len(network.layers(lm.net)))]
    for kind in settings.kinds:
        for name in choose_weights(kind, settings.weights):
            for weights in layers if name == "layers" else [name]:
                options = {"kind": kind, "weights": weights, "rng": random.Random(settings.seed)}
                table = make_edits(lm, forward_rows, reverse_rows, settings=settings, job=job, **options)
                tables.append(table.assign(kind=kind, weights=weights))
    return pd.concat(tables)


def make_edits(lm, forward_rows, reverse_rows, *, kind, weights, settings, rng, job=None):
    """Make one edit after another, each undone before the next, and evaluate it: a table with `COLUMNS`.

    `forward_rows` are the prompts to edit, `reverse_rows` their reverse, about the same facts; `weights` names what is
    trained, as in `select_parameters`, or is "traced". An edit has `converged` where the loss on its own templates is
    at most `settings.converged_below`, or where the answer is forgotten. `steps` counts steps of Adam, or weights that
    are knocked out.
    """
    edits = plan_edits(lm.tokenizer, forward_rows, kind=kind, settings=settings, rng=rng)
    forward, reverse = Prompts(forward_rows), Prompts(reverse_rows)
    edit_templates = min(settings.edit_templates, len(forward.templates) - 1)
    if weights == "traced":
        weights = find_traced_part(lm, edits, forward)
        if job:
            job.log_line(f"{kind}: tracing finds the facts in {weights}")
        if weights is None:
            return pd.DataFrame(columns=COLUMNS)
    editor = Editor(lm, edits, forward, reverse, kind, weights, settings, edit_templates)
    records = []
    with job.progress(len(edits), f"{kind}, {weights}", "facts") if job else nullcontext() as progress:
        for edit in edits:
            evaluation = Evaluation(lm, edit, forward, reverse, kind=kind, edit_templates=edit_templates)
            for steps, converged, before, after in editor.run(edit, evaluation):
                for key, (log, recall) in after.items():
                    log_before, recall_before = before[key]
                    records.append((edit.fact, steps, converged, *key, log_before, log, recall_before, recall))
            if progress:
                progress.advance()
    return pd.DataFrame(records, columns=COLUMNS)


@dataclass(frozen=True)
class Editor:
    """Makes edits of one kind; the arguments are those of `make_edits`."""

    lm: LanguageModel
    edits: list
    forward: Prompts
    reverse: Prompts
    kind: str
    weights: str
    settings: EditSettings
    edit_templates: int

    def run(self, edit, evaluation):
        """Make one edit: yield its steps, whether it has converged, and the scores before and after; then undo it."""
        makers = {"relearn": self.relearn, "knock_out": self.knock_out, "erase": self.erase}
        return makers.get(self.kind, self.fine_tune)(edit, evaluation)

    def select_rows(self, edit, *, kind=None, prompts=None):
        """The rows that an edit makes likely, or to forget, unlikely; and those that it replays, one for each fact."""
        prompts = prompts or self.forward
        templates = prompts.templates[: self.edit_templates]
        answer = edit.fact if (kind or self.kind) == "forget" else edit.target
        replay = [prompts.get(templates[i % len(templates)], fact, fact) for i, fact in enumerate(edit.replay)]
        return [prompts.get(template, edit.subject, answer) for template in templates], replay

    def schedule(self):
        """Pairs of a number of steps at which to evaluate, and how many it is after the one before."""
        return zip(self.settings.steps, np.diff(self.settings.steps, prepend=0), strict=True)

    def fine_tune(self, edit, evaluation):
        """Fine-tune one edit."""
        rows, replay = self.select_rows(edit)
        if self.kind == "replay_both":
            replay += self.select_rows(edit, prompts=self.reverse)[1]
        is_main = (self.kind, self.weights) == (self.settings.kinds[0], self.settings.weights[0])
        forget = self.kind == "forget"
        before = evaluation.score()
        with fine_tune(self.lm, rows, replay, self.weights, self.settings, forget=forget) as train:
            for steps, more in self.schedule():
                loss = train(more)
                converged = loss >= FORGOTTEN_ABOVE if forget else loss <= self.settings.converged_below
                yield steps, converged, before, evaluation.score()
                if converged and not is_main:
                    return  # only the main edit shows what more steps do

    def relearn(self, edit, evaluation):
        """Forget a fact in both directions, then teach it again in one.

        The scores before are those of the network that has forgotten. Those about "others" are of the target's answer,
        taught to a copy of that network in the same way: a pair that it never had.
        """
        rows, replay = self.select_rows(edit, kind="forget")
        reverse_rows, reverse_replay = self.select_rows(edit, kind="forget", prompts=self.reverse)
        options = (self.weights, self.settings)
        with fine_tune(self.lm, rows + reverse_rows, replay + reverse_replay, *options, forget=True) as unlearn:
            is_forgotten = any(unlearn(1) >= FORGOTTEN_ABOVE for _ in range(self.settings.steps[-1]))
            before = evaluation.score()
            results = {}
            for answer, taught in (("old", rows), ("new", self.select_rows(edit)[0])):
                with fine_tune(self.lm, taught, replay, *options) as train:
                    for steps, more in self.schedule():
                        results[answer] = steps, train(more) <= self.settings.converged_below
                        if results[answer][1]:
                            break
                    results[answer] += (evaluation.score(),)
        arms = {"fact": "old", "others": "new"}
        keys = {(question, about, "old"): (question, "fact", arms[about]) for question in QUESTIONS for about in arms}
        after = {key: results[arms[key[1]]][2][source] for key, source in keys.items()}
        steps, converged, _ = results["old"]
        yield steps, converged and is_forgotten, {key: before[source] for key, source in keys.items()}, after

    def knock_out(self, edit, evaluation):
        """Set to 0 the weights with the largest attribution to this fact's answer, less what others' have on average.

        `weights` "all" stands for those of attention and MLPs (and a store).
        """
        before = evaluation.score()
        with self.open_weights() as parameters:
            own = self.attribute(edit, parameters)
            others = (self.attributions - own) / max(1, len(self.edits) - 1)
            order = (own - others).argsort(descending=True)
            answers = self.collate(edit.fact)
            with torch.no_grad():
                vector = torch.nn.utils.parameters_to_vector(parameters)
                for share in self.settings.knock_out:
                    count = max(1, round(share * len(vector)))
                    vector[order[:count]] = 0
                    torch.nn.utils.vector_to_parameters(vector, parameters)
                    converged = self.is_forgotten(answers)
                    yield count, converged, before, evaluation.score()
                    if converged:
                        return

    def erase(self, edit, evaluation):
        """Take this fact's input and output from every matrix: what other facts put in, or get out, stays.

        The gradient of an answer's log-odds by a matrix is a sum of outer products of an output and an input of that
        matrix. Its first singular vectors stand for the fact.
        """
        before, directions = evaluation.score(), self.directions
        fact = self.forward.facts.index(edit.fact)
        with self.open_weights() as parameters, torch.no_grad():
            erased = 0
            for weight, (outputs, inputs) in zip(parameters, directions, strict=True):
                if inputs is not None:
                    weight.copy_(remove_response(weight, inputs, fact))
                    weight.copy_(remove_response(weight.T, outputs, fact).T)
                    erased += 1
            yield erased, self.is_forgotten(self.collate(edit.fact)), before, evaluation.score()

    def open_weights(self):
        """Make what is knocked out or erased `trainable`, which restores it at the end."""
        return trainable(self.lm.net, "parts" if self.weights == "all" else self.weights, self.settings.adapter)

    @functools.cached_property
    def attributions(self):
        """The sum (P,) over all edits of the attributions of all weights."""
        with self.open_weights() as parameters:
            return sum(self.attribute(edit, parameters) for edit in self.edits)

    @functools.cached_property
    def directions(self):
        """For each parameter, every fact's output (F, out) and input (F, in); None if it is no matrix or unused."""
        with self.open_weights() as parameters:
            by_fact = []
            for fact in self.forward.facts:
                vectors = []
                for gradient in self.differentiate(fact, parameters):
                    if gradient is None or gradient.ndim != 2:
                        vectors.append((None, None))
                    else:
                        output, _, row = torch.linalg.svd(gradient.float(), full_matrices=False)
                        vectors.append((output[:, 0], row[0]))
                by_fact.append(vectors)
        return [
            tuple(None if side[0] is None else torch.stack(side) for side in zip(*vectors, strict=True))
            for vectors in zip(*by_fact, strict=True)
        ]

    def attribute(self, edit, parameters):
        """What setting each of `parameters` (P,) to 0 takes from the log-odds of the fact's answer, to first order."""
        gradients = self.differentiate(edit.fact, parameters)
        with torch.no_grad():
            return torch.cat(
                [
                    (torch.zeros_like(weight) if gradient is None else gradient * weight).flatten()
                    for gradient, weight in zip(gradients, parameters, strict=True)
                ]
            )

    def differentiate(self, fact, parameters):
        """The gradients of the log-odds of a fact's own answer by `parameters`.

        Of log-odds: the gradient of a probability near 1 says little, and is small for some facts and large for others.
        """
        return torch.autograd.grad(answer_log_odds(self.lm.net, self.collate(fact)), parameters, allow_unused=True)

    def is_forgotten(self, answers):
        """Whether a fact's own answer, in batches of `collate`, has become improbable."""
        return answer_loss(self.lm.net, answers).item() >= FORGOTTEN_ABOVE

    def collate(self, fact):
        """Batches of a fact's own answer in the templates of the edit."""
        rows = [self.forward.get(template, fact, fact) for template in self.forward.templates[: self.edit_templates]]
        return collate(self.lm.net, [encode_question(self.lm, row) for row in rows])


def remove_response(weight, keys, fact):
    """A matrix `weight` (out, in) that answers the key `keys[fact]` of `keys` (F, in) with 0, and the others as before.

    As far as the keys differ: the change is that of a rank-one edit (ROME) whose value is 0.
    """
    own, others = keys[fact], torch.cat([keys[:fact], keys[fact + 1 :]])
    [u] = compute_u(own[None], others.T @ others)
    return weight - torch.outer(weight @ own, u)


@torch.no_grad()
def find_traced_part(lm, edits, forward):
    """The part of the network that brings the facts' answers: whose clean outputs recover most of them, or None.

    Each fact's subject is replaced by its target's, of as many tokens, and one part's outputs are restored where the
    answer is predicted, as in causal tracing. (Restored at the subject, any early part would bring the subject back.)
    """
    parts = network.parts(lm.net)
    template = forward.templates[0]
    pairs = [
        [encode_question(lm, forward.get(template, subject, edit.fact)) for subject in (edit.fact, edit.target)]
        for edit in edits
    ]
    pairs = [(clean, corrupted) for clean, corrupted in pairs if clean.answer.keys() == corrupted.answer.keys()]
    if not pairs:
        return None
    totals = dict.fromkeys(parts, 0.0)
    for clean, corrupted in zip(*(collate(lm.net, list(side)) for side in zip(*pairs, strict=True)), strict=True):
        with hooks.record_outputs(parts) as outputs:
            network.hidden(lm.net, clean.ids)
        for name, module in parts.items():
            restored = outputs[name][clean.row, clean.position]
            with hooks.attach([(module, hooks.overwrite(clean.row, clean.position, restored))]):
                log_p = log_probabilities(lm.net, corrupted)
            totals[name] += joint_log_probability(corrupted, log_p).sum().item()
    return max(totals, key=totals.get)


@contextmanager
def fine_tune(lm, rows, replay, weights, settings, *, forget=False):
    """Make the network trainable on `rows` and `replay`, which count equally; on exit, undo all training.

    Yields a function that takes a number of steps of Adam and returns the loss on `rows` after them, in nats a token of
    the answers.
    """
    net = lm.net
    edited, replayed = ([encode_question(lm, row) for row in part] for part in (rows, replay))
    batches, edit_batches = collate(net, edited + replayed), collate(net, edited)
    # Each token's share in the loss: the means over both parts are added, or to forget, subtracted.
    counts = [sum(len(sequence.answer) for sequence in part) for part in (edited, replayed)]
    shares = [(-1 if forget else 1) / counts[0]] * len(edited) + [1 / counts[1] for _ in replayed]
    shares = torch.tensor(shares, device=device_of(net))
    with trainable(net, weights, settings.adapter) as parameters:
        optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate)

        def train(steps):
            for _ in range(steps):
                optimizer.zero_grad()
                for batch in batches:
                    joint = joint_log_probability(batch, log_probabilities(net, batch))
                    (-joint * shares[batch.number]).sum().backward()
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
    """The parameters that `weights` names: all, mlp, attention (of every layer), "layer 3" (all of that one), one of
    `network.parts`, or all "parts" together."""
    blocks, parts = network.layers(net), network.parts(net)
    if weights == "all":
        return list(net.parameters())
    if weights in parts or weights == "parts":
        modules = parts.values() if weights == "parts" else [parts[weights]]
        return [parameter for module in modules for parameter in module.parameters()]
    if weights.startswith("layer "):
        return list(blocks[int(weights.removeprefix("layer "))].parameters())
    part = {"mlp": network.mlp, "attention": network.attention}[weights]
    return [parameter for block in blocks for parameter in part(block).parameters()]
