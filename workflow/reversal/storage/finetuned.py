"""Rewriting by gradient: teach a network a new answer to one question, and ask it the question's reverse.

One memory that is read from either side changes for both; of two memories only the taught one does. A fact is taught by
a few steps of Adam on some templates and asked with others, as whole answers in nats. Three lessons:

    rewrite   the fact's question gets the answer of another fact, its donor
    forget    the fact's answer is made unlikely, and nothing put in its place
    teach     a name (or description) that nobody has gets the donor's answer

Each is asked what it was taught, with the templates of the lesson ("taught") and with others ("same"); the reverse of
that ("other"); and both of other facts, which tells what such a lesson does to anything. A null means little without a
network that would have shown something. So the reverse is also derived from the forward answers ("inverted"): by Bayes'
rule, with the names at hand as candidates, p(name | description) is p(description | name) over its sum. Read like this,
the very same network has one memory by construction, and the test must find it.
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
from .rank_one import answered_as, choose_donors
from .scoring import answer_loss, collate, question, score_answers
from .vocabulary import mainly_trained

FORGOTTEN = 3.0  # nats a token: less probable than 5%
COLUMNS = ("fact", "steps", "reached", "asked", "about", "answer", "before", "after", "recall_before", "recall_after")


@dataclass(frozen=True)
class Rewriting:
    """How facts are rewritten: the names and meanings of `rewriting` in the configuration."""

    groups: tuple  # whose facts
    lessons: tuple  # of LESSONS
    weights: tuple  # all, mlp, attention, layers (one after the other), adapter
    adapter: dict  # its rank and alpha
    max_facts: int | None  # a group; 0: none
    others: int  # facts asked beside the one that is taught
    rehearsed: int  # further facts, whose own answers are taught with it
    templates: int  # to teach with; the rest asks
    learning_rate: float
    steps: tuple  # of Adam, after which the network is asked
    bar: float  # nats a token of the new answer below which a lesson is learnt
    seed: int

    @property
    def compared(self):
        """Whose gradients are compared: an adapter's where its lessons are those that tell."""
        return "adapter" if mainly_trained(self.weights) == "adapter" else "all"


class Lesson(NamedTuple):
    """What is taught of one fact: a `subject`, the fact's own or one that nobody has, gets the donor's answer."""

    fact: str
    subject: str
    donor: str
    others: list  # facts that have nothing to do with it
    names: list  # subjects that have nothing to do with it: the others', or ones that nobody has
    rehearsed: list  # further facts, whose own answers are taught again, so that the lesson is about its subject alone


def plan(tokenizer, rows, *, kind, settings, rng):
    """The `Lesson`s of a `kind` about the facts of `rows`, whose question is taught."""
    facts = sorted({row.fact for row in rows})
    if len(facts) < 4:
        raise UserError(f"{len(facts)} facts; rewriting compares a fact and its donor with two others at least")
    short = [row.subject_text for row in rows if len(row.subject_text.split()) < 2]
    if short and kind == "teach":
        raise UserError(
            f"{short[0]!r} is one word; a subject nobody has is made of two halves: leave out rewriting's teach"
        )
    donors = choose_donors(tokenizer, rows, rng=rng)
    new = unowned if kind == "teach" else str
    lessons = []
    for fact in facts[: settings.max_facts]:
        free = [other for other in facts if other not in (fact, donors[fact])]
        free = sorted(free, key=lambda _: rng.random())
        others, rehearsed = free[: settings.others], free[settings.others :][: settings.rehearsed]
        lessons.append(Lesson(fact, new(fact), donors[fact], others, [new(other) for other in others], rehearsed))
    return lessons


def unowned(fact):
    """The id under which `Questions` keep a subject that nobody has."""
    return f"{fact}, unowned"


class Questions:
    """One direction's rows by fact and template; for each fact also with a subject and an answer that no fact has.

    Those are the first half of the fact's own and the second half of the next one's.
    """

    def __init__(self, rows):
        self.rows = {(row.fact, row.template): row for row in rows}
        self.templates = sorted({row.template for row in rows})
        facts = sorted({row.fact for row in rows})
        for fact, following in zip(facts, facts[1:] + facts[:1], strict=True):
            for template in self.templates:
                row, other = self.rows[fact, template], self.rows[following, template]
                self.rows[unowned(fact), template] = _mixed(row, other)

    def ask(self, template, about, answered):
        """The question about one fact with the answer of another, or its own."""
        return answered_as(self.rows[about, template], self.rows[answered, template])


def _mixed(row, other):
    """A row whose subject and answer are half another's."""
    subject = _halves(row.subject_text, other.subject_text)
    answer = _halves(row.answer_text, other.answer_text)
    (start, end), (first, last) = row.subject, row.answer
    return dataclasses.replace(
        row,
        prompt=row.prompt[:start] + subject + row.prompt[end:],
        subject=(start, start + len(subject)),
        completion=row.completion[:first] + answer + row.completion[last:],
        answer=(first, first + len(answer)),
    )


def _halves(one, other):
    mine, theirs = one.split(), other.split()
    return " ".join(mine[: (len(mine) + 1) // 2] + theirs[(len(theirs) + 1) // 2 :])


class Evaluation:
    """All that is asked of a network about a `Lesson`, and what the answers tell."""

    def __init__(self, lm, lesson, ahead, back, *, kind, taught):
        """`ahead` and `back`: the `Questions` that are taught, with the first `taught` templates, and their reverse."""
        own = [("old", lesson.fact, lesson.fact)] * (kind != "teach")
        own += [("new", lesson.subject, lesson.donor)] * (kind != "forget")
        null = [("old", other, other) for other in lesson.others]
        null += [("new", name, lesson.donor) for name in lesson.names] * (kind != "forget")
        self.read = {"fact": own, "others": null}
        everybody = dict.fromkeys([lesson.fact, lesson.subject, lesson.donor, *lesson.others, *lesson.names])
        asked = {(x, y) for _, x, y in own + null}
        # The inversion of an answer needs everybody's probability of it: of those read, and of one other's.
        asked |= {(x, y) for x in everybody for y in (lesson.fact, lesson.donor, lesson.others[0])}
        rows = {("taught", t, x, y): ahead.ask(t, x, y) for t in ahead.templates[:taught] for _, x, y in own}
        rows |= {("same", t, x, y): ahead.ask(t, x, y) for t in ahead.templates[taught:] for x, y in sorted(asked)}
        held_out = back.templates[taught - len(ahead.templates) :]
        rows |= {("other", t, x, y): back.ask(t, y, x) for t in held_out for _, x, y in own + null}
        self.keys, self.net = list(rows), lm.net
        self.sequences = [question(lm, row) for row in rows.values()]

    def sit(self):
        """{(asked, about, answer): (log-probability, share right)}: means over templates and facts."""
        logs, right = (part.double().tolist() for part in score_answers(self.net, self.sequences))
        scores = dict(zip(self.keys, zip(logs, right, strict=True), strict=True))
        scores |= _inverted({key: log for key, (log, _) in scores.items() if key[0] == "same"})
        found = {}
        for (asked, _, *who), score in scores.items():
            for about, some in self.read.items():
                for answer, *whom in some:
                    if who == whom:
                        found.setdefault((asked, about, answer), []).append(score)
        return {key: tuple(sum(part) / len(part) for part in zip(*some, strict=True)) for key, some in found.items()}


def _inverted(scores):
    """The reverse by Bayes' rule: log p(x | y) = log p(y | x) − log Σ p(y | x′), and whether x is the likeliest."""
    columns = {}
    for (_, template, x, y), log in scores.items():
        columns.setdefault((template, y), {})[x] = log
    found = {}
    for (template, y), column in columns.items():
        if len(column) < max(map(len, columns.values())):
            continue  # not all were asked for this answer
        whole = torch.tensor(list(column.values()), dtype=torch.float64).logsumexp(0).item()
        for x, log in column.items():
            found["inverted", template, x, y] = (log - whole, float(log == max(column.values())))
    return found


def rewrite_all(lm, ahead, back, settings, *, job=None):
    """Every lesson: `rewrite`'s tables, with columns lesson and weights.

    The first lesson is given to each of the settings' weights, the others to the first of these.
    """
    tables = [pd.DataFrame(columns=[*COLUMNS, "lesson", "weights"])] if settings.max_facts == 0 else []
    layers = [f"layer {i}" for i in range(len(network.layers(lm.net)))]
    for kind in settings.lessons if settings.max_facts != 0 else ():
        for name in settings.weights if kind == settings.lessons[0] else settings.weights[:1]:
            for weights in layers if name == "layers" else [name]:
                how = {"kind": kind, "weights": weights, "rng": random.Random(settings.seed)}
                table = rewrite(lm, ahead, back, settings=settings, job=job, **how)
                tables.append(table.assign(lesson=kind, weights=weights))
    return pd.concat(tables)


def rewrite(lm, ahead, back, *, kind, weights, settings, rng, job=None):
    """Give the network one lesson after another, each undone before the next: a table with `COLUMNS`.

    `ahead` are the rows of the questions that are taught, `back` those of their reverse, about the same facts;
    `weights` names what is trained, as in `trained`. A lesson is `reached` where it has been learnt, by `settings.bar`
    on its own templates, or where the answer is forgotten.
    """
    lessons = plan(lm.tokenizer, ahead, kind=kind, settings=settings, rng=rng)
    ahead, back = Questions(ahead), Questions(back)
    taught = min(settings.templates, len(ahead.templates) - 1)
    if not taught:
        raise UserError("one template; rewriting teaches with some and asks with others: two at least")
    records = []
    with job.progress(len(lessons), f"{kind}, {weights}", "facts") if job else nullcontext() as progress:
        for lesson in lessons:
            exam = Evaluation(lm, lesson, ahead, back, kind=kind, taught=taught)
            rows = lesson_rows(lesson, ahead, kind=kind, taught=taught)
            before = exam.sit()
            with being_taught(lm, *rows, weights, settings, forget=kind == "forget") as learn:
                for steps, more in zip(settings.steps, np.diff(settings.steps, prepend=0), strict=True):
                    loss = learn(more)
                    reached = loss >= FORGOTTEN if kind == "forget" else loss <= settings.bar
                    for key, (log, right) in exam.sit().items():
                        records.append((lesson.fact, steps, reached, *key, before[key][0], log, before[key][1], right))
            if progress:
                progress.advance()
    return pd.DataFrame(records, columns=COLUMNS)


def lesson_rows(lesson, ahead, *, kind, taught):
    """The rows that a `Lesson` teaches (or makes unlikely), and those that it rehearses: one of each fact."""
    templates = ahead.templates[:taught]
    answered = lesson.fact if kind == "forget" else lesson.donor
    rehearsed = [ahead.ask(templates[i % taught], fact, fact) for i, fact in enumerate(lesson.rehearsed)]
    return [ahead.ask(template, lesson.subject, answered) for template in templates], rehearsed


@contextmanager
def being_taught(lm, rows, rehearsed, weights, settings, *, forget=False):
    """While it lasts, the network can be taught `rows`; then all is undone.

    Yields a function that takes a number of steps of Adam and gives the loss after them, in nats a token of the rows'
    answers. What is `rehearsed` counts as much as the lesson.
    """
    net = lm.net
    lesson, rehearsal = (collate(net, [question(lm, row) for row in some]) for some in (rows, rehearsed))
    with trainable(net, weights, settings.adapter) as parameters:
        optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate)

        def learn(steps):
            for _ in range(steps):
                optimizer.zero_grad()
                (answer_loss(net, rehearsal) + (-1 if forget else 1) * answer_loss(net, lesson)).backward()
                optimizer.step()
            with torch.no_grad():
                return answer_loss(net, lesson).item()

        yield learn


@contextmanager
def trainable(net, weights, adapter):
    """While it lasts, what `weights` names has gradients, and nothing else; then the network is what it was.

    Yields the parameters: those of `trained`, or, for "adapter", those of low-rank matrices put beside the network's,
    which need little memory: `adapter` has their rank and alpha.
    """
    given = [(parameter, parameter.requires_grad) for parameter in net.parameters()]
    adapted = adapters.attach(net, **adapter, seed=0) if weights == "adapter" else None
    parameters = list(adapters.trained(net).values()) if adapted else trained(net, weights)
    kept = None if adapted else [parameter.detach().clone() for parameter in parameters]
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
                for parameter, old in zip(parameters, kept, strict=True):
                    parameter.copy_(old)
        for parameter, was in given:
            parameter.requires_grad_(was)
            parameter.grad = None


def trained(net, weights):
    """The parameters that `weights` names: all, mlp, attention (of every layer), or "layer 3" (all of that one)."""
    blocks = network.layers(net)
    if weights == "all":
        return list(net.parameters())
    if weights.startswith("layer "):
        return list(blocks[int(weights.removeprefix("layer "))].parameters())
    part = {"mlp": network.mlp, "attention": network.attention}[weights]
    return [parameter for block in blocks for parameter in part(block).parameters()]
