"""What is traced: which facts, at which steps, under which corruptions.

A fact is traced when the model answers a question about it. The clean trajectory tells at which step each token of the
answer appeared: a diffusion network is traced at t1, the step that shows the first of them, at t2, which shows the
last, and half way. The canvas is what the step found, and the score the joint one of the answer tokens still masked
there: at t1, of the whole answer. Guidance may shape the trajectory; what is traced is one conditional run of the
network. An autoregressive network is given its own answer, each token of it is a step, and the score is the joint one
of the tokens from there on, each given those before it: at t1, too, of the whole answer.

At t1 every kind is traced; later the hidden states alone, under the leading corruption.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ..common.errors import UserError
from ..models import network, spelling, tokens
from ..recall.files import entering
from . import engine
from .files import FactTrace, array_name
from .vocabulary import (
    AT_ONCE,
    CORRUPTIONS,
    KINDS,
    NO_MASK,
    NO_PARTNER,
    NOT_ANSWERED,
    NOT_NEEDED,
    REVEALED,
    RIVAL,
    STAGES,
    TOGETHER,
    TOO_SHORT,
    TRACED,
    UNEQUAL,
    WHOLE,
    WINDOWED,
    leading,
)


@dataclass(frozen=True)
class Tracing:
    """What is traced of a split: the names and meanings of `tracing` in the configuration."""

    # {corruption: [kind]}: what is restored after Gaussian noise on the subject ("gaussian"), with masks in its place
    # ("mask"), or with another fact's subject of as many tokens ("swap")
    corruptions: Mapping
    max_facts: int | None = None  # of those the model answers; None: all
    min_answer_tokens: int = 2  # answers of fewer tokens are not traced
    draws: int = 2  # of the noise: each fact has its own, the same for all its steps
    scale: float = 3.0  # of the noise, in standard deviations of the embeddings
    seed: int = 0  # of the noise
    # layers restored together for mlp and attn; the first leads, the others are traced at subject and answer alone
    windows: tuple = (1,)
    precision: str = "float32"  # as in `engine.restore`

    def __post_init__(self):
        for name, kinds in self.corruptions.items():
            if name not in CORRUPTIONS:
                raise UserError(f"corruption {name!r} is unknown; the corruptions are {', '.join(CORRUPTIONS)}")
            if not kinds:
                raise UserError(f"corruption {name!r} has no kinds; it needs some of {', '.join(KINDS)}")
            for kind in kinds:
                if kind not in KINDS:
                    raise UserError(f"kind {kind!r} of {name!r} is unknown; the kinds are {', '.join(KINDS)}")
        if self.draws < 1:
            raise UserError(f"draws is {self.draws}; it is a whole number from 1 up")
        if not self.windows:
            raise UserError("windows is empty; it needs a number of layers")


class Partner(NamedTuple):
    """Who takes a subject's place: the tokens of the other's subject, and of what is true of them."""

    subject: list
    answer: list


class Answered(NamedTuple):
    """A question that the model answered, and how the answer came about."""

    row: object  # a facts.Row
    completion: dict  # as `recall.ask` gives it
    prompt: int  # tokens of the prompt
    subject: tuple  # range of tokens
    answer: tuple  # range of tokens
    moments: list  # the steps that reveal tokens of the answer
    partner: Partner | None = None

    @property
    def ids(self):
        """The prompt and what was generated."""
        return self.completion["ids"]

    @property
    def t1(self):
        """The step that reveals the answer's first token."""
        return self.moments[0]

    @property
    def t2(self):
        """The step that reveals its last."""
        return self.moments[-1]

    @property
    def steps(self):
        """The steps that are traced: t1, half way and t2, as far as they differ."""
        return evenly(self.t1, self.t2, len(STAGES))

    @property
    def rival(self):
        """The partner's answer, where it has as many tokens and is another; or None."""
        own, rival = self.ids[slice(*self.answer)], self.partner and self.partner.answer
        return rival if rival and len(rival) == len(own) and rival != own else None

    def stage(self, step):
        """The stage of a step; one that reveals the whole answer is t1."""
        return {self.t2: "t2", self.t1: "t1"}.get(step, "between")

    def entering(self, net, step):
        """What the network sees at a step, ids (P,), and the places of the answer's tokens that are still to come.

        A diffusion network sees its canvas; an autoregressive one is given all of its answer but the last token.
        """
        first, end = self.answer
        if network.is_diffusion(net):
            canvas = entering(self.completion, step, network.mask_id(net))
            return canvas, [place for place in range(first, end) if canvas[place] == network.mask_id(net)]
        return self.ids[: end - 1], list(range(max(first, self.prompt + step), end))

    def asked(self, net, places, answer=None):
        """The (position, token) pairs to read for the answer's tokens at some places, or for another answer's."""
        answer = self.ids[slice(*self.answer)] if answer is None else answer
        return [(network.read_at(net, place), answer[place - self.answer[0]]) for place in places]


def trace_split(net, tokenizer, rows, completions, settings, *, split="", job=None):
    """Trace the facts that the `rows` of one split ask for: their `Answered`, `FactTrace`s, and every fact's outcome.

    `completions` are the model's answers to these rows, in their order, as `recall.ask` gives them; their trajectories
    are what is traced, as the `Tracing` settings say. The outcomes are a table with columns fact, corruption, outcome.
    """
    found, outcome = find(tokenizer, rows, completions, settings)
    progress = job.progress(len(found), f"tracing {split}", "facts") if job else None
    traces, records = [], [(fact, name, why) for fact, why in outcome.items() for name in settings.corruptions]
    for one in found:
        ways = _ways(net, one, settings)
        corrupt = {name: way for name, way in ways.items() if callable(way)}
        if corrupt:
            traces.append(trace_fact(net, tokenizer, one, corrupt, settings))
        records += [(one.row.fact, name, TRACED if callable(way) else way) for name, way in ways.items()]
        records += [(one.row.fact, beside, why) for beside, why in _beside(one).items()]
        if progress:
            progress.advance()
    return found, traces, pd.DataFrame(records, columns=["fact", "corruption", "outcome"])


def find(tokenizer, rows, completions, settings):
    """The questions to trace, a list of `Answered`, and of every other fact why it is not: {fact: outcome}."""
    partners = _partners(tokenizer, rows)
    found, outcome = [], {}
    for fact, own in choose(rows, completions).items():
        one = answer(tokenizer, *own) if own else None
        outcome[fact] = _outcome(one, settings.min_answer_tokens)
        if outcome[fact] == TRACED:
            found.append(one._replace(partner=swap_partner(one, partners)))
    most = len(found) if settings.max_facts is None else settings.max_facts
    outcome |= {one.row.fact: NOT_NEEDED for one in found[most:]}
    return found[:most], {fact: why for fact, why in outcome.items() if why != TRACED}


def _beside(found):
    """What becomes of the readings beside the traces: {reading: outcome}."""
    rival = NO_PARTNER if found.partner is None else UNEQUAL if found.rival is None else TRACED
    return {REVEALED: AT_ONCE if found.t1 == found.t2 else TRACED, RIVAL: rival}


def choose(rows, completions):
    """One of each fact's answered rows with its completion, another template from fact to fact; None without any."""
    answered = {}
    for row, completion in zip(rows, completions, strict=True):
        answered.setdefault(row.fact, []).extend([(row, completion)] if completion["correct"] else [])
    return {fact: own[i % len(own)] if own else None for i, (fact, own) in enumerate(answered.items())}


def answer(tokenizer, row, completion):
    """Where in a completion the answer is, and when it came about: an `Answered`; None where it is not found."""
    ids, prompt = completion["ids"], completion["prompt_tokens"]
    span = locate(tokenizer, ids[prompt:], row)
    if span is None:
        return None
    place = (prompt + span[0], prompt + span[1])
    shown = {step for position, _, step, _ in completion["revealed"] if position in range(*place)}
    return Answered(row, completion, prompt, tokens.encode(tokenizer, row).subject, place, sorted(shown))


def locate(tokenizer, generated, row):
    """The range of `generated` ids that hold the row's answer; None where its completion is not among their text."""
    if tokenizer.eos_token_id in generated:
        generated = generated[: generated.index(tokenizer.eos_token_id)]
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    whole, reference = decode(generated), row.completion.strip()
    start = whole.lower().find(reference.lower())
    if start < 0:
        return None
    ends = [0, *(len(decode(generated[: i + 1])) for i in range(len(generated)))]
    start -= len(row.completion) - len(row.completion.lstrip())
    span = (start + row.answer[0], start + row.answer[1])
    return spelling.token_range(whole, list(zip(ends, ends[1:], strict=False)), span)


def evenly(first, last, most):
    """At most `most` whole numbers from `first` to `last`, evenly spread, both ends among them."""
    count = min(most, last - first + 1)
    return sorted({round(value) for value in np.linspace(first, last, count).tolist()})


class Asked(NamedTuple):
    """What the network is asked about one fact: problems, and at each step which of their answers are the score.

    A score is the sum over some answers of one problem, (problem, slice); that of the rival answer may be None.
    """

    canvases: list
    answers: list  # of each problem, (position, token) pairs
    own: list  # (problem, slice) for each step
    rival: list

    def first(self):
        """The same of t1 alone."""
        needed = 1 + max(place for place, _ in filter(None, (self.own[0], self.rival[0])))
        return Asked(self.canvases[:needed], self.answers[:needed], self.own[:1], self.rival[:1])


def trace_fact(net, tokenizer, found, corrupt, settings):
    """The `FactTrace` of one answered question.

    `corrupt` has, by corruption, a function from ids (P,) to corrupted embeddings (draws, P, D).
    """
    kinds = {name: list(settings.corruptions[name]) for name in corrupt}
    asked, plain = _ask(net, found, found.rival), _ask(net, found)
    length = len(asked.canvases[0])
    mask = network.mask_id(net) if network.is_diffusion(net) else None
    reader = network.read_at(net, found.prompt)
    everywhere = list(range(length + len(TOGETHER)))
    here = [found.subject[1] - 1, *everywhere[length:]]
    arrays = {}
    for kind, window in [(k, w) for k in KINDS for w in (settings.windows if k in WINDOWED else settings.windows[:1])]:
        parts = []
        for name, reading, always, whole in _readings(kind, window, corrupt, settings):
            own = asked if kind == "state" and reading == "restored" else plain
            own = own if always else own.first()
            some = everywhere if whole else here
            problems = _problems(net, found, own, corrupt[name], some)
            problems = [problem.turned() for problem in problems] if reading == "necessary" else problems
            parts.append((name, reading, own, some, problems))
        what, severed, *_ = KINDS[kind]
        how = {"kind": what, "severed": severed, "window": window, "precision": settings.precision}
        together = [problem for part in parts for problem in part[-1]]
        runs = iter(engine.restore(net, together, **how) if together else ())
        for name, reading, own, some, problems in parts:
            ran = [next(runs) for _ in problems]
            spread = len(everywhere), some
            for key, array in _scored(own, ran, name, (reading, kind, window), spread).items():
                if key not in arrays or len(array) > len(arrays[key]):
                    arrays[key] = array
    return FactTrace(
        about=_about(tokenizer, found),
        steps=found.steps,
        roles=[[*roles(found, found.entering(net, step)[0], mask, reader), *TOGETHER] for step in found.steps],
        kinds=kinds,
        windows=list(settings.windows),
        arrays={name: array.astype(np.float32) for name, array in arrays.items()},
    )


def _readings(kind, window, corrupt, settings):
    """What is run of one kind: (corruption, reading, whether at every step or t1 alone, whether at every place).

    What is not read elsewhere is put back at the last subject token, the whole subject and the whole answer alone.
    """
    lead, main = window == settings.windows[0], leading(settings.corruptions)
    for name in corrupt:
        if kind in settings.corruptions[name] and (lead or name == main):
            yield name, "restored", name == main and kind == "state", lead and kind in WHOLE
            if name == main and lead and kind in WHOLE and name != "gaussian":  # one draw can be exchanged
                yield name, "necessary", False, kind == "state"


def _ask(net, found, rival=None):
    """What a network is asked about a fact, and of a `rival` answer of as many tokens."""
    asked = Asked([], [], [], [])
    if network.is_diffusion(net):
        for i, step in enumerate(found.steps):
            canvas, places = found.entering(net, step)
            asked.canvases.append(canvas)
            asked.answers.append(found.asked(net, places) + (found.asked(net, places, rival) if rival else []))
            asked.own.append((i, slice(len(places))))
            asked.rival.append((i, slice(len(places), None)) if rival else None)
        return asked
    canvas, places = found.entering(net, found.t1)
    for answer in (None, rival) if rival else (None,):
        asked.canvases.append(canvas if answer is None else found.ids[: found.answer[0]] + answer[:-1])
        asked.answers.append(found.asked(net, places, answer))
    for i, step in enumerate(found.steps):
        asked.own.append((0, slice(step - found.t1, None)))
        asked.rival.append((1, slice(None)) if rival and i == 0 else None)
    return asked


def _problems(net, found, asked, corrupt, some):
    """An `engine.Problem` for each canvas; of its places, the whole subject and the whole answer last, `some` are put
    back."""
    problems = []
    for canvas, answer in zip(asked.canvases, asked.answers, strict=True):
        problem = engine.Problem(engine.embed(net, canvas), corrupt(canvas), answer)
        read = tuple(sorted({place for place, _ in answer}))
        places = [*((place,) for place in range(len(canvas))), tuple(range(*found.subject)), read]
        problems.append(problem._replace(groups=[places[place] for place in some]))
    return problems


def _scored(asked, runs, corruption, site, spread):
    """The arrays of `runs` with something put at a `site`, (reading, kind, window).

    `spread` says how many places there are, and which of them ran.
    """
    arrays, (length, some) = {}, spread

    def scores(which, part):
        number, tokens = which
        return getattr(runs[number], part)[..., tokens].double().sum(-1)  # (draws, …), of the clean run ()

    def keep(score, clean, corrupted, restored):
        whole = np.full((length, restored.shape[-1]), np.nan)
        whole[some] = restored
        arrays.setdefault(array_name(score, corruption, *site), []).append(whole)
        if site[0] == "restored":  # the other way round, clean and corrupted are exchanged
            arrays.setdefault(f"{score}.{corruption}.corrupted", []).append(corrupted)
            arrays.setdefault(f"{score}.clean", []).append(clean)

    for own, rival in zip(asked.own, asked.rival, strict=True):
        logs = [scores(own, part) for part in engine.Runs._fields]
        keep("log_probability", logs[0].item(), *(log.mean(0).numpy() for log in logs[1:]))
        keep("probability", logs[0].exp().item(), *(log.exp().mean(0).numpy() for log in logs[1:]))
        if rival:
            logs = [log - scores(rival, part) for log, part in zip(logs, engine.Runs._fields, strict=True)]
            keep("contrast", logs[0].item(), *(log.mean(0).numpy() for log in logs[1:]))
    return {key: np.array(values) for key, values in arrays.items()}


def _about(tokenizer, found):
    row = found.row
    return {
        "fact": row.fact,
        "template": row.template,
        "prompt": row.prompt,
        "reference": row.completion,
        "tokens": [tokenizer.decode([token]) for token in found.ids],
        "prompt_tokens": found.prompt,
        "subject": list(found.subject),
        "answer": list(found.answer),
        "t1": found.t1,
        "t2": found.t2,
    }


def roles(found, canvas, mask, reader):
    """The role of each position when the network sees `canvas`.

    `mask` is None for an autoregressive network, which is given all of the answer but its last token. `reader` is where
    the first token after the prompt is read: if that is the last prompt token, then this is its role, also where the
    subject ends the prompt.
    """
    return [_role(found, place, token, mask, reader) for place, token in enumerate(canvas)]


def _role(found, place, token, mask, reader):
    first, end = found.subject
    if place >= found.prompt:
        part = "answer" if found.answer[0] <= place < found.answer[1] else "canvas"
        return f"masked {part}" if token == mask else f"revealed {part}"
    if place == reader:
        return "last prompt"
    if first <= place < end:
        return "last subject" if place == end - 1 else "first subject" if place == first else "middle subject"
    if place < first:
        return "prior prompt"
    if place == found.prompt - 1:
        return "last prompt"
    return "first subsequent" if place == end else "further prompt"


def _ways(net, found, settings):
    """For each corruption a function from ids to corrupted embeddings, or why there is none."""
    ways = {}
    for name in settings.corruptions:
        if name == "gaussian":
            digest = hashlib.sha256(f"{settings.seed}/{found.row.fact}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            noise = engine.draw_noise(net, found.subject, settings.draws, generator=generator, scale=settings.scale)
            ways[name] = partial(_with_noise, net, found.subject, noise)
            continue
        if name == "mask":
            width = found.subject[1] - found.subject[0]
            put, reason = [network.mask_id(net)] * width if network.is_diffusion(net) else None, NO_MASK
        else:
            put, reason = found.partner and found.partner.subject, NO_PARTNER
        ways[name] = partial(_with_tokens, net, found.subject, put) if put else reason
    return ways


def _with_noise(net, subject, noise, ids):
    return engine.add_noise(net, ids, subject, noise)


def _with_tokens(net, subject, put, ids):
    return engine.replace_subject(net, ids, subject, put)


def swap_partner(found, partners):
    """The `Partner` in the next fact's row of the same template whose subject has as many tokens, but others; or None.

    One whose answer has as many tokens is preferred. `partners` has everybody by template and fact.
    """
    of_fact = partners[found.row.template]
    facts = list(of_fact)
    start, own = facts.index(found.row.fact), of_fact[found.row.fact]
    others = [of_fact[other] for other in facts[start + 1 :] + facts[:start]]
    equal = [one for one in others if len(one.subject) == len(own.subject) and one.subject != own.subject]
    alike = [one for one in equal if len(one.answer) == found.answer[1] - found.answer[0]]
    return next(iter(alike or equal), None)


def _partners(tokenizer, rows):
    partners = {}
    for row in rows:
        example = tokens.encode(tokenizer, row)
        both = (example.ids[slice(*part)] for part in (example.subject, example.answer))
        partners.setdefault(row.template, {})[row.fact] = Partner(*both)
    return partners


def _outcome(found, min_answer_tokens):
    if found is None:
        return NOT_ANSWERED
    return TOO_SHORT if found.answer[1] - found.answer[0] < min_answer_tokens else TRACED
