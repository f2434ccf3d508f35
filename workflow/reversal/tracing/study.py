"""What is traced: which facts, at which steps, under which corruptions.

A fact is traced when the model answers a question about it. The clean trajectory tells at which step each token of the
answer appeared: a diffusion network is traced from t1, the step that shows the first of them, to t2, which shows the
last. The canvas is what the step found, and the score the joint one of the answer tokens still masked there. Guidance
may shape the trajectory; what is traced is one conditional run of the network. An autoregressive network is given its
own answer, and each token of it is a step.
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
from ..models import network, tokens
from ..recall.files import entering
from . import engine
from .files import FactTrace
from .vocabulary import (
    CORRUPTIONS,
    KINDS,
    NO_MASK,
    NO_PARTNER,
    NOT_ANSWERED,
    NOT_NEEDED,
    SCORES,
    TOO_SHORT,
    TRACED,
)


@dataclass(frozen=True)
class Tracing:
    """What is traced of a split: the names and meanings of `tracing` in the configuration."""

    # {corruption: [kind]}: what is restored after Gaussian noise on the subject ("gaussian"), with masks in its place
    # ("mask"), or with another fact's subject of as many tokens ("swap")
    corruptions: Mapping
    most_facts: int | None = None  # of those the model answers; None: all
    least_tokens: int = 2  # answers of fewer tokens are not traced
    most_steps: int = 3  # of t1 … t2, evenly chosen, both ends included
    draws: int = 10  # of the noise: each fact has its own, the same for all its steps
    scale: float = 3.0  # of the noise, in standard deviations of the embeddings
    seed: int = 0  # of the noise
    window: int = 1  # layers restored together for mlp and attn
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
        for name in ("most_steps", "draws"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"{name} is {value}; it is a whole number from 1 up")


class Answered(NamedTuple):
    """A question that the model answered, and what its canvas held at the steps to trace."""

    row: object  # a facts.Row
    ids: list  # the prompt and what was generated
    prompt: int  # tokens of the prompt
    subject: tuple  # range of tokens
    answer: tuple  # range of tokens
    t1: int
    t2: int
    steps: list  # those of t1 … t2 to trace
    canvases: list  # the ids that each of them found


def trace_split(net, tokenizer, rows, completions, settings, *, split="", job=None):
    """Trace the facts that the `rows` of one split ask for: a list of `FactTrace`, and the outcome for every fact.

    `completions` are the model's answers to these rows, in their order, as `recall.ask` gives them; their trajectories
    are what is traced, as the `Tracing` settings say. The outcomes are a table with columns fact, corruption, outcome.
    """
    chosen = choose(rows, completions)
    answered = {
        fact: answer(net, tokenizer, *own, most_steps=settings.most_steps) if own else None
        for fact, own in chosen.items()
    }
    outcome = {fact: _outcome(found, settings.least_tokens) for fact, found in answered.items()}
    wanted = [fact for fact in chosen if outcome[fact] == TRACED]
    most = len(wanted) if settings.most_facts is None else settings.most_facts
    outcome |= dict.fromkeys(wanted[most:], NOT_NEEDED)
    subjects = _subjects(tokenizer, rows)
    progress = job.progress(len(wanted[:most]), f"tracing {split}", "facts") if job else None
    traces, records = [], []
    for fact in wanted[:most]:
        ways = _ways(net, answered[fact], subjects, settings)
        corrupt = {name: way for name, way in ways.items() if callable(way)}
        if corrupt:
            traces.append(trace_fact(net, tokenizer, answered[fact], corrupt, settings))
        records += [(fact, name, TRACED if callable(way) else way) for name, way in ways.items()]
        if progress:
            progress.advance()
    records += [
        (fact, name, outcome[fact]) for fact in chosen if outcome[fact] != TRACED for name in settings.corruptions
    ]
    return traces, pd.DataFrame(records, columns=["fact", "corruption", "outcome"])


def choose(rows, completions):
    """One of each fact's answered rows with its completion, another template from fact to fact; None without any."""
    answered = {}
    for row, completion in zip(rows, completions, strict=True):
        answered.setdefault(row.fact, []).extend([(row, completion)] if completion["correct"] else [])
    return {fact: own[i % len(own)] if own else None for i, (fact, own) in enumerate(answered.items())}


def answer(net, tokenizer, row, completion, *, most_steps):
    """What a completion's canvas held at the steps to trace: an `Answered`, or None where the answer is not found."""
    ids, prompt = completion["ids"], completion["prompt_tokens"]
    span = locate(tokenizer, ids[prompt:], row)
    if span is None:
        return None
    place = (prompt + span[0], prompt + span[1])
    shown = [step for position, _, step, _ in completion["revealed"] if position in range(*place)]
    steps = evenly(min(shown), max(shown), most_steps)
    if network.is_diffusion(net):
        canvases = [entering(completion, step, network.mask_id(net)) for step in steps]
    else:
        canvases = [ids[: prompt + step] for step in steps]
    subject = tokens.encode(tokenizer, row).subject
    return Answered(row, ids, prompt, subject, place, min(shown), max(shown), steps, canvases)


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
    return tokens.token_range(whole, list(zip(ends, ends[1:], strict=False)), span)


def evenly(first, last, most):
    """At most `most` whole numbers from `first` to `last`, evenly spread, both ends among them."""
    count = min(most, last - first + 1)
    return sorted({round(value) for value in np.linspace(first, last, count).tolist()})


def trace_fact(net, tokenizer, found, corrupt, settings):
    """The `FactTrace` of one answered question.

    `corrupt` has, by corruption, a function from ids (P,) to corrupted embeddings (draws, P, D).
    """
    kinds = {name: list(settings.corruptions[name]) for name in corrupt}
    how = {"window": settings.window, "precision": settings.precision}
    masked = network.is_diffusion(net)
    canvases = found.canvases if masked else found.canvases[-1:]
    answers = [_still_masked(net, found, canvas) for canvas in canvases] if masked else [_next(net, found)]
    length = len(canvases[-1])
    places = [*((place,) for place in range(length)), tuple(range(*found.subject))]
    problems = {
        name: [
            engine.Problem(engine.embed(net, canvas), make(canvas), wanted, places)
            for canvas, wanted in zip(canvases, answers, strict=True)
        ]
        for name, make in corrupt.items()
    }
    restored = {name: {} for name in corrupt}  # {corruption: {kind: [Trace at each step]}}
    for kind in KINDS:
        owners = [name for name in corrupt if kind in kinds[name]]
        what, severed, *_ = KINDS[kind]
        together = [problem for name in owners for problem in problems[name]]
        runs = iter(engine.restore(net, together, kind=what, severed=severed, **how) if together else ())
        for name in owners:
            own = [next(runs) for _ in problems[name]]
            # One run of an autoregressive network predicts the tokens of all steps.
            restored[name][kind] = (
                [engine.score(run) for run in own]
                if masked
                else [engine.score(own[0], [i]) for i in range(len(found.steps))]
            )
    mask, reader = network.mask_id(net) if masked else None, network.read_at(net, found.prompt)
    return FactTrace(
        about=_about(tokenizer, found),
        steps=list(found.steps),
        roles=[[*roles(found, canvas, length, mask, reader), "whole subject"] for canvas in found.canvases],
        kinds=kinds,
        arrays=_arrays(restored, kinds),
    )


def _still_masked(net, found, canvas):
    """The answer's tokens that `canvas` hides, by where they are read."""
    masked = [place for place in range(*found.answer) if canvas[place] == network.mask_id(net)]
    return {network.read_at(net, place): found.ids[place] for place in masked}


def _next(net, found):
    """Each step's token, by where it is read."""
    places = [found.prompt + step for step in found.steps]
    return {network.read_at(net, place): found.ids[place] for place in places}


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


def _arrays(restored, kinds):
    arrays = {}
    for name, by_kind in restored.items():
        some = by_kind[kinds[name][0]]
        for score, prefix in zip(SCORES, ("", "log_"), strict=True):
            field = partial(_field, prefix)
            arrays[f"{score}.clean"] = np.array([field(trace, "clean") for trace in some])
            arrays[f"{score}.{name}.corrupted"] = np.array([field(trace, "corrupted") for trace in some])
            arrays[f"{score}.{name}.restored"] = np.stack(
                [[field(trace, "restored").numpy() for trace in by_kind[kind]] for kind in kinds[name]]
            )
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def _field(prefix, trace, name):
    return getattr(trace, prefix + name)


def roles(found, canvas, length, mask, reader):
    """The role of each of `length` positions when the network sees `canvas`; None beyond it.

    `mask` is None for an autoregressive network. `reader` is where the first token after the prompt is read: if that is
    the last prompt token, then this is its role, also where the subject ends the prompt.
    """
    return [
        _role(found, place, canvas[place], mask, reader) if place < len(canvas) else None for place in range(length)
    ]


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


def _ways(net, found, subjects, settings):
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
            put, reason = swap_partner(found.row, subjects), NO_PARTNER
        ways[name] = partial(_with_tokens, net, found.subject, put) if put else reason
    return ways


def _with_noise(net, subject, noise, ids):
    return engine.add_noise(net, ids, subject, noise)


def _with_tokens(net, subject, put, ids):
    return engine.replace_subject(net, ids, subject, put)


def swap_partner(row, subjects):
    """The subject's tokens in the next fact's row of the same template that has as many, but others; or None.

    `subjects` has the tokens by template and fact.
    """
    of_fact = subjects[row.template]
    facts = list(of_fact)
    start = facts.index(row.fact)
    for other in facts[start + 1 :] + facts[:start]:
        if len(of_fact[other]) == len(of_fact[row.fact]) and of_fact[other] != of_fact[row.fact]:
            return of_fact[other]
    return None


def _subjects(tokenizer, rows):
    subjects = {}
    for row in rows:
        example = tokens.encode(tokenizer, row)
        subjects.setdefault(row.template, {})[row.fact] = example.ids[slice(*example.subject)]
    return subjects


def _outcome(found, least_tokens):
    if found is None:
        return NOT_ANSWERED
    return TOO_SHORT if found.answer[1] - found.answer[0] < least_tokens else TRACED
