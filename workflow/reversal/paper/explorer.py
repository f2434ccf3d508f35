"""The data of the page's explorer: some generations of each model, and their traces, small enough to embed."""

import itertools
import json

import numpy as np

from ..data.facts import SPLITS
from ..figures.denoising import answer_places
from ..figures.style import is_end
from ..tracing.effects import total
from ..tracing.vocabulary import CORRUPTIONS, KINDS
from . import sources

MOST_BYTES = 3_000_000
QUESTIONS = {
    "same": "{asks}, asked as taught",
    "reverse": "{asks}, asked in reverse",
}


def build(families, people, completions, traces, *, steps, most_facts, most_bytes=MOST_BYTES):
    """What the explorer shows, as a dict of at most `most_bytes` in JSON.

    `families` has each model's, `people` the names of facts, `completions` the rows of each model, and `traces` lists
    of `trace_files.FactTrace` by (model, split), made with so many denoising `steps`. Each model and split has up to
    `most_facts` people, traced ones first; fewer, where that many would not fit.
    """
    labels = sources.labels(families)
    asked = {
        name: QUESTIONS[split.trained].format(asks=split.asks)
        for name, split in SPLITS.items()
        if split.trained in QUESTIONS
    }
    for most in range(most_facts, 0, -1):
        cases = []
        for (model, answers), split in itertools.product(completions.items(), asked):
            own = [answer for answer in answers if answer["split"] == split]
            chosen = choose(own, traces.get((model, split), []), steps=steps, most=most)
            cases += [{"model": model, "name": people[case["fact"]], **case} for case in chosen]
        made = {
            "models": [{"name": name, "label": f"{labels[name]} ({family})"} for name, family in families.items()],
            "splits": asked,
            "kinds": {name: kind.many for name, kind in KINDS.items()},
            "corruptions": CORRUPTIONS,
            "traced": any("trace" in case for case in cases),
            "cases": cases,
        }
        if len(dump(made).encode()) <= most_bytes:
            break
    return made


def choose(answers, traces, *, steps, most):
    """Cases of one model and split: those traced, then one question of each further person."""
    by_question = {}
    for answer in answers:
        by_question.setdefault((answer["fact"], answer["prompt"]), []).append(answer)
    cases = {}
    for trace in traces:
        asked = by_question.get((trace.about["fact"], trace.about["prompt"]), [])
        if same := [answer for answer in asked if answer["steps"] in (None, steps)]:
            cases[trace.about["fact"]] = _case(same[0], trace)
    for (fact, _), asked in by_question.items():
        if fact not in cases and len(cases) < most:
            cases[fact] = _case(max(asked, key=lambda answer: answer["steps"] or 0), None)
    return list(cases.values())[:most]


def _case(answer, trace):
    revealed = sorted(answer["revealed"])
    wanted = answer_places([token for _, token, _, _ in revealed], answer["reference"])
    case = {
        "split": answer["split"],
        "fact": answer["fact"],
        "prompt": answer["prompt"],
        "reference": answer["reference"],
        "correct": answer["correct"],
        "steps": answer["steps"] or len(revealed),
        "tokens": [
            [token, step, round(sure, 3), int(i in wanted), int(is_end(token, answer["generation"]))]
            for i, (_, token, step, sure) in enumerate(revealed)
        ],
    }
    return case if trace is None else case | {"trace": compact(trace)}


def compact(trace):
    """A trace as the page needs it: effects in hundredths of a nat, as whole numbers; of each kind, its first steps."""
    effects, cost = {}, {}
    for corruption, kinds in trace.kinds.items():
        each = [trace.effects(corruption, kind) for kind in kinds]  # (steps, positions, layers)
        effects[corruption] = [_hundredths(values).reshape(len(values), -1).tolist() for values in each]
        cost[corruption] = _hundredths(total(trace, corruption)).tolist()
        layers = each[0].shape[-1]
    return {
        "tokens": trace.about["tokens"][: len(trace.roles[0])],
        "subject": trace.about["subject"],
        "steps": trace.steps,
        "stages": trace.stages(),
        "seen": trace.roles,
        "kinds": trace.kinds,
        "layers": layers,
        "effects": effects,
        "total": cost,
    }


def _hundredths(nats):
    return np.rint(100 * nats).astype(int)


def dump(made):
    """JSON in the smallest form."""
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))


def embedded(made):
    """JSON for within a `<script>`: nothing in it can end the element or begin another."""
    coded = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return dump(made).translate(str.maketrans(coded))
