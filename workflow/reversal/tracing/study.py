"""Which facts are traced, at which steps, under which corruptions.

A fact is traced when the model answers a question about it. The clean completion tells at which step each token of the
answer was revealed: a diffusion network is traced at t1, the step that reveals the first of them, at t2, which reveals
the last, and half way. The network sees the canvas as it was before the step, and the score is the joint one of the
answer tokens still masked there: at t1, of the whole answer. Guidance may shape the completion; what is traced is one
conditional run of the network. An autoregressive network is given its own answer, each token of which is a step, and
the score is the joint one of the tokens from there on, each given those before it: at t1, again of the whole answer.

These two scores do not compare: masked tokens are scored as if they knew nothing of each other, so who is meant counts
once for each. The score "sequential" compares: each token given those before it in both families, for a diffusion
network in the order in which the clean completion revealed them, on the canvases of that completion.

At t1 every kind is traced; at later steps only the hidden states, under the leading corruption.
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
from ..recall.files import canvas_before
from . import engine
from .files import FactTrace, array_name
from .vocabulary import (
    CONTRAST,
    CORRUPTIONS,
    JOINT_ROLES,
    KINDS,
    NO_MASK,
    NO_PARTNER,
    NOT_ANSWERED,
    NOT_NEEDED,
    OTHER_LENGTH,
    REVEALED,
    SINGLE_STEP,
    STAGES,
    TOO_SHORT,
    TRACED,
    WINDOWED_KINDS,
    choose_corruption,
)


@dataclass(frozen=True)
class Tracing:
    """The settings of `tracing` in the configuration, under the same names."""

    # {corruption: [kind]}: what is restored after Gaussian noise on the subject ("gaussian"), with masks in its place
    # ("mask"), or with another fact's subject of as many tokens ("swap")
    corruptions: Mapping
    max_facts: int | None = None  # of those the model answers; None: all
    min_answer_tokens: int = 2  # shorter answers are not traced
    draws: int = engine.DRAWS  # of the noise: each fact has its own, the same for all its steps
    scale: float = engine.SCALE  # of the noise, in standard deviations of the embeddings
    seed: int = 0  # of the noise
    # layers restored together for mlp and attn; the first is the leading window, the others are traced only at the last
    # subject token, at all subject tokens together and at the answer positions
    windows: tuple = (1,)
    precision: str = "float32"  # as in `engine.restore`

    def __post_init__(self):
        for name, kinds in self.corruptions.items():
            if name not in CORRUPTIONS:
                raise UserError(f"corruption {name!r} is unknown; allowed: {', '.join(CORRUPTIONS)}")
            if not kinds:
                raise UserError(f"corruption {name!r} has no kinds; it needs some of {', '.join(KINDS)}")
            for kind in kinds:
                if kind not in KINDS:
                    raise UserError(f"kind {kind!r} of {name!r} is unknown; allowed: {', '.join(KINDS)}")
        if self.draws < 1:
            raise UserError(f"draws is {self.draws}; allowed: a whole number from 1 up")
        if not self.windows:
            raise UserError("windows is empty; it needs a number of layers")


class Partner(NamedTuple):
    """The person whose subject replaces the fact's: the tokens of their subject, and of the answer about them."""

    subject: list
    answer: list


class AnsweredQuestion(NamedTuple):
    """A question that the model answered, and when it revealed the tokens of the answer."""

    row: object  # a facts.Row
    completion: dict  # as `evaluation.complete_split` returns it
    prompt: int  # number of prompt tokens
    subject: tuple  # half-open range of tokens
    answer: tuple  # half-open range of tokens
    answer_steps: list  # the steps that reveal tokens of the answer
    partner: Partner | None = None

    @property
    def ids(self):
        """The tokens of the prompt and of the completion."""
        return self.completion["ids"]

    @property
    def t1(self):
        """The step that reveals the answer's first token."""
        return self.answer_steps[0]

    @property
    def t2(self):
        """The step that reveals the answer's last token."""
        return self.answer_steps[-1]

    @property
    def steps(self):
        """The traced steps: t1, half way and t2, without duplicates."""
        return space_evenly(self.t1, self.t2, len(STAGES))

    @property
    def contrast_answer(self):
        """The partner's answer if it has as many tokens as the true one and differs from it; or None."""
        answer, other = self.ids[slice(*self.answer)], self.partner and self.partner.answer
        return other if other and len(other) == len(answer) and other != answer else None

    def stage(self, step):
        """The stage of a step; a step that reveals the whole answer is t1."""
        return {self.t2: "t2", self.t1: "t1"}.get(step, "between")

    def step_input(self, net, step):
        """The ids (P,) that the network sees at a step, and the positions of answer tokens still to come.

        A diffusion network sees its canvas; an autoregressive one is given all of its answer but the last token.
        """
        first, end = self.answer
        if network.is_diffusion(net):
            canvas = canvas_before(self.completion, step, network.mask_id(net))
            return canvas, [position for position in range(first, end) if canvas[position] == network.mask_id(net)]
        return self.ids[: end - 1], list(range(max(first, self.prompt + step), end))

    def conditionals(self, net, start):
        """(ids, positions) pairs for the answer tokens revealed from step `start` on, each given those before it.

        For an autoregressive network one pair has them all. For a diffusion network each pair has one token, with the
        canvas that the clean completion had when it revealed it; tokens of one step go by their confidence.
        """
        if not network.is_diffusion(net):
            return [self.step_input(net, start)]
        in_order = sorted(self.completion["revealed"], key=lambda token: (token[2], -token[3], token[0]))
        pairs = []
        for number, (position, _, step, _) in enumerate(in_order):
            if step >= start and position in range(*self.answer):
                canvas = canvas_before(self.completion, step, network.mask_id(net))
                for other, _, other_step, _ in in_order[:number]:
                    if other_step == step:
                        canvas[other] = self.ids[other]
                pairs.append((canvas, [position]))
        return pairs

    def answer_pairs(self, net, positions, answer=None):
        """The (position of the prediction, token) pairs of the answer, or of another one, at some `positions`."""
        answer = self.ids[slice(*self.answer)] if answer is None else answer
        return [
            (network.prediction_position(net, position), answer[position - self.answer[0]]) for position in positions
        ]


def trace_split(net, tokenizer, rows, completions, settings, *, split="", job=None):
    """Trace the facts of one split: the `AnsweredQuestion`s, their `FactTrace`s, and the outcome of every fact.

    `completions` are the model's answers to `rows`, in the same order, as `evaluation.complete_split` returns them.
    `settings` is a `Tracing`. The outcomes are a table with columns fact, corruption, outcome.
    """
    questions, reasons = find_answered(tokenizer, rows, completions, settings)
    progress = job.progress(len(questions), f"tracing {split}", "facts") if job else None
    traces, outcomes = [], [(fact, name, reason) for fact, reason in reasons.items() for name in settings.corruptions]
    for question in questions:
        corruptions = _make_corruptions(net, question, settings)
        possible = {name: corrupt for name, corrupt in corruptions.items() if callable(corrupt)}
        if possible:
            traces.append(trace_fact(net, tokenizer, question, possible, settings))
        fact = question.row.fact
        outcomes += [(fact, name, TRACED if name in possible else reason) for name, reason in corruptions.items()]
        outcomes += [(fact, measure, outcome) for measure, outcome in _check_measures(question).items()]
        if progress:
            progress.advance()
    return questions, traces, pd.DataFrame(outcomes, columns=["fact", "corruption", "outcome"])


def find_answered(tokenizer, rows, completions, settings):
    """The questions to trace, a list of `AnsweredQuestion`, and {fact: reason} for facts that are not traced."""
    partners = _collect_partners(tokenizer, rows)
    questions, reasons = [], {}
    for fact, chosen in choose_prompts(rows, completions).items():
        question = find_answer(tokenizer, *chosen) if chosen else None
        if question is None:
            reasons[fact] = NOT_ANSWERED
        elif question.answer[1] - question.answer[0] < settings.min_answer_tokens:
            reasons[fact] = TOO_SHORT
        elif len(questions) == settings.max_facts:
            reasons[fact] = NOT_NEEDED
        else:
            questions.append(question._replace(partner=choose_partner(question, partners)))
    return questions, reasons


def _check_measures(question):
    """{measure: outcome} of the measures that only some questions allow."""
    contrast = TRACED if question.contrast_answer else OTHER_LENGTH if question.partner else NO_PARTNER
    return {REVEALED: SINGLE_STEP if question.t1 == question.t2 else TRACED, CONTRAST: contrast}


def choose_prompts(rows, completions):
    """{fact: (row, completion)}: one correctly answered row of each fact, templates in turn; None if there is none."""
    answered = {}
    for row, completion in zip(rows, completions, strict=True):
        answered.setdefault(row.fact, []).extend([(row, completion)] if completion["correct"] else [])
    return {fact: pairs[i % len(pairs)] if pairs else None for i, (fact, pairs) in enumerate(answered.items())}


def find_answer(tokenizer, row, completion):
    """The `AnsweredQuestion` of a completion; None if the completion does not contain the answer."""
    ids, prompt = completion["ids"], completion["prompt_tokens"]
    span = locate_answer(tokenizer, ids[prompt:], row)
    if span is None:
        return None
    answer = (prompt + span[0], prompt + span[1])
    steps = {step for position, _, step, _ in completion["revealed"] if position in range(*answer)}
    subject = tokens.encode(tokenizer, row).subject
    return AnsweredQuestion(row, completion, prompt, subject, answer, sorted(steps))


def locate_answer(tokenizer, generated, row):
    """The range of `generated` ids that hold the row's answer; None if their text does not contain its completion."""
    if tokenizer.eos_token_id in generated:
        generated = generated[: generated.index(tokenizer.eos_token_id)]
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    text, reference = decode(generated), row.completion.strip()
    start = text.lower().find(reference.lower())
    if start < 0:
        return None
    ends = [0, *(len(decode(generated[: i + 1])) for i in range(len(generated)))]
    start -= len(row.completion) - len(row.completion.lstrip())
    span = (start + row.answer[0], start + row.answer[1])
    return tokens.token_range(text, list(zip(ends, ends[1:], strict=False)), span)


def space_evenly(first, last, most):
    """At most `most` whole numbers from `first` to `last`, evenly spaced, both ends included."""
    count = min(most, last - first + 1)
    return sorted({round(value) for value in np.linspace(first, last, count).tolist()})


class ScorePlan(NamedTuple):
    """The problems to run for one fact, and at each step which of their answer tokens make up each score.

    `scores` has for "log_probability" and, where they are measured, for "contrast" (the partner's answer) and
    "sequential", a list with an entry for each step: (problem, slice of its answer tokens) pairs to be summed.
    """

    canvases: list
    answers: list  # for each problem, (position, token) pairs
    positions: list  # for each problem, where the answer tokens still to come are predicted
    scores: dict

    def add_problem(self, net, question, ids, pairs):
        """Add a problem and return its number."""
        is_masked = network.is_diffusion(net)
        to_come = [p for p in range(*question.answer) if not is_masked or ids[p] == network.mask_id(net)]
        self.canvases.append(ids)
        self.answers.append(pairs)
        self.positions.append(tuple(network.prediction_position(net, position) for position in to_come))
        return len(self.canvases) - 1

    def select_t1(self):
        """The plan of t1 alone, without the sequential score."""
        scores = {name: steps[:1] for name, steps in self.scores.items() if name != "sequential"}
        needed = 1 + max(problem for [parts] in scores.values() for problem, _ in parts)
        return ScorePlan(self.canvases[:needed], self.answers[:needed], self.positions[:needed], scores)


class PlannedRuns(NamedTuple):
    """One reading of one corruption: its score plan, and its problems."""

    corruption: str
    reading: str
    plan: ScorePlan
    problems: list


def trace_fact(net, tokenizer, question, corrupt, settings):
    """The `FactTrace` of one answered question.

    `corrupt` has, by corruption, a function from ids (P,) to corrupted embeddings (draws, P, D).
    """
    main = choose_corruption(settings.corruptions)
    plain_plan = _plan_scores(net, question)
    every_score = _plan_scores(net, question, question.contrast_answer, sequential=True)
    length = len(plain_plan.canvases[0])
    all_places = list(range(length + len(JOINT_ROLES)))
    few_places = [question.subject[1] - 1, *all_places[length:]]
    arrays = {}
    sites = [(k, w) for k in KINDS for w in (settings.windows if k in WINDOWED_KINDS else settings.windows[:1])]
    for kind, window in sites:
        leads = window == settings.windows[0]
        places = all_places if leads else few_places
        planned = []
        for name in corrupt:
            if kind in settings.corruptions[name] and (leads or name == main):
                plan = every_score if kind == "state" else plain_plan
                plan = plan if name == main and kind == "state" else plan.select_t1()
                problems = _build_problems(net, question, plan, corrupt[name], places)
                planned.append(PlannedRuns(name, "restored", plan, problems))
                if name == main and kind == "state" and name != "gaussian":  # only one draw can be exchanged
                    plan = plain_plan.select_t1()
                    problems = _build_problems(net, question, plan, corrupt[name], places)
                    exchanged = [p._replace(clean=p.corrupted[0], corrupted=p.clean[None]) for p in problems]
                    planned.append(PlannedRuns(name, "necessary", plan, exchanged))
        problems = [problem for part in planned for problem in part.problems]
        options = {"kind": kind, "window": window, "precision": settings.precision}
        results = iter(engine.restore(net, problems, **options) if problems else ())
        for part in planned:
            runs = [next(results) for _ in part.problems]
            for key, array in _score_runs(part, runs, kind, window, places, len(all_places)).items():
                if key not in arrays or len(array) > len(arrays[key]):
                    arrays[key] = array
    return FactTrace(
        metadata=_describe_question(tokenizer, question),
        steps=question.steps,
        roles=[[*assign_roles(net, question, question.step_input(net, s)[0]), *JOINT_ROLES] for s in question.steps],
        kinds={name: list(settings.corruptions[name]) for name in corrupt},
        windows=list(settings.windows),
        arrays={name: array.astype(np.float32) for name, array in arrays.items()},
    )


def _plan_scores(net, question, contrast=None, *, sequential=False):
    """The `ScorePlan` of a question, with that of a `contrast` answer of as many tokens and the sequential score."""
    plan = ScorePlan([], [], [], {"log_probability": []})
    if network.is_diffusion(net):
        for step in question.steps:
            canvas, positions = question.step_input(net, step)
            others = question.answer_pairs(net, positions, contrast) if contrast else []
            problem = plan.add_problem(net, question, canvas, question.answer_pairs(net, positions) + others)
            plan.scores["log_probability"].append([(problem, slice(len(positions)))])
            if contrast:
                plan.scores.setdefault("contrast", []).append([(problem, slice(len(positions), None))])
        if sequential:
            parts = []
            for canvas, positions in question.conditionals(net, question.t1):
                [pair] = question.answer_pairs(net, positions)
                is_new = canvas not in plan.canvases  # t1, t2 and often the step between are there
                problem = plan.add_problem(net, question, canvas, [pair]) if is_new else plan.canvases.index(canvas)
                place = plan.answers[problem].index(pair)
                parts.append((problem, slice(place, place + 1)))
            count = [len(question.conditionals(net, step)) for step in question.steps]
            plan.scores["sequential"] = [parts[len(parts) - number :] for number in count]
        return plan
    canvas, positions = question.step_input(net, question.t1)
    problem = plan.add_problem(net, question, canvas, question.answer_pairs(net, positions))
    plan.scores["log_probability"] = [[(problem, slice(step - question.t1, None))] for step in question.steps]
    if sequential:
        plan.scores["sequential"] = plan.scores["log_probability"]
    if contrast:
        ids = question.ids[: question.answer[0]] + contrast[:-1]
        problem = plan.add_problem(net, question, ids, question.answer_pairs(net, positions, contrast))
        plan.scores["contrast"] = [[(problem, slice(None))]]
    return plan


def _build_problems(net, question, plan, corrupt, places):
    """An `engine.Problem` for each canvas, which restores those `places` whose indices are given.

    All places are the single positions, then all subject tokens together, then the answer positions together.
    """
    problems = []
    for canvas, answer, positions in zip(plan.canvases, plan.answers, plan.positions, strict=True):
        problem = engine.Problem(engine.embed(net, canvas), corrupt(canvas), answer)
        single = [(position,) for position in range(len(canvas))]
        groups = [*single, tuple(range(*question.subject)), positions]
        problems.append(problem._replace(groups=[groups[place] for place in places]))
    return problems


def _score_runs(planned, runs, kind, window, places, number_of_places):
    """The arrays of a `FactTrace` from the `runs` of one corruption, reading, kind and window, at some `places`."""
    arrays = {}

    def sum_logs(score, step):
        """The log-probabilities of a score in each kind of run: (), (draws,), (draws, places, layers)."""
        parts = planned.plan.scores[score][step]
        return [
            sum(getattr(runs[problem], name)[..., answer_tokens].double().sum(-1) for problem, answer_tokens in parts)
            for name in engine.Runs._fields
        ]

    def append(score, clean, corrupted, restored):
        values = np.full((number_of_places, restored.shape[-1]), np.nan)
        values[places] = restored
        arrays.setdefault(array_name(score, planned.corruption, planned.reading, kind, window), []).append(values)
        if planned.reading == "restored":  # for "necessary", clean and corrupted are exchanged
            arrays.setdefault(f"{score}.{planned.corruption}.corrupted", []).append(corrupted)
            arrays.setdefault(f"{score}.clean", []).append(clean)

    for score, steps in planned.plan.scores.items():
        for step in range(len(steps)):
            logs = sum_logs(score, step)
            if score == "contrast":
                logs = [log - other for log, other in zip(sum_logs("log_probability", step), logs, strict=True)]
            append(score, logs[0].item(), *(log.mean(0).numpy() for log in logs[1:]))
            if score == "log_probability":
                append("probability", logs[0].exp().item(), *(log.exp().mean(0).numpy() for log in logs[1:]))
    return {key: np.array(values) for key, values in arrays.items()}


def _describe_question(tokenizer, question):
    row = question.row
    return {
        "fact": row.fact,
        "template": row.template,
        "prompt": row.prompt,
        "reference": row.completion,
        "tokens": [tokenizer.decode([token]) for token in question.ids],
        "prompt_tokens": question.prompt,
        "subject": list(question.subject),
        "answer": list(question.answer),
        "t1": question.t1,
        "t2": question.t2,
    }


def assign_roles(net, question, canvas):
    """The role of each position when the network sees `canvas`."""
    (first, end), prompt = question.subject, question.prompt
    # An autoregressive network predicts the answer at the last prompt token, even where the subject ends the prompt.
    first_prediction = network.prediction_position(net, prompt)
    roles = []
    for position, token in enumerate(canvas):
        if position >= prompt:
            part = "answer" if position in range(*question.answer) else "canvas"
            is_masked = network.is_diffusion(net) and token == network.mask_id(net)
            roles.append(f"{'masked' if is_masked else 'revealed'} {part}")
        elif position == first_prediction:
            roles.append("last prompt")
        elif first <= position < end:
            order = "last" if position == end - 1 else "first" if position == first else "middle"
            roles.append(f"{order} subject")
        elif position < first:
            roles.append("prior prompt")
        elif position == prompt - 1:
            roles.append("last prompt")
        else:
            roles.append("first subsequent" if position == end else "further prompt")
    return roles


def _make_corruptions(net, question, settings):
    """{corruption: function from ids to corrupted embeddings, or the reason why there is none}."""
    corruptions = {}
    for name in settings.corruptions:
        if name == "gaussian":
            digest = hashlib.sha256(f"{settings.seed}/{question.row.fact}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            noise = engine.draw_noise(net, question.subject, settings.draws, generator=generator, scale=settings.scale)
            corruptions[name] = partial(engine.add_noise, net, subject=question.subject, noise=noise)
            continue
        if name == "mask":
            width = question.subject[1] - question.subject[0]
            replacement, reason = [network.mask_id(net)] * width if network.is_diffusion(net) else None, NO_MASK
        else:
            replacement, reason = question.partner and question.partner.subject, NO_PARTNER
        replace = partial(engine.replace_subject, net, subject=question.subject, tokens=replacement)
        corruptions[name] = replace if replacement else reason
    return corruptions


def choose_partner(question, partners):
    """The next fact's `Partner` in the same template whose subject has as many, but other tokens; None without any.

    One whose answer has as many tokens is preferred. `partners` is {template: {fact: Partner}} of all facts.
    """
    of_fact = partners[question.row.template]
    facts = list(of_fact)
    start, subject = facts.index(question.row.fact), of_fact[question.row.fact].subject
    others = [of_fact[fact] for fact in facts[start + 1 :] + facts[:start]]
    candidates = [other for other in others if len(other.subject) == len(subject) and other.subject != subject]
    preferred = [other for other in candidates if len(other.answer) == question.answer[1] - question.answer[0]]
    return next(iter(preferred or candidates), None)


def _collect_partners(tokenizer, rows):
    partners = {}
    for row in rows:
        example = tokens.encode(tokenizer, row)
        subject, answer = (example.ids[slice(*span)] for span in (example.subject, example.answer))
        partners.setdefault(row.template, {})[row.fact] = Partner(subject, answer)
    return partners
