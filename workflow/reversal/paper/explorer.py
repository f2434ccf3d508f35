"""The data of the page's explorer: some generations of each model, and their traces, small enough to embed."""

import itertools
import json
from collections import Counter

import numpy as np

from ..data.facts import SPLITS
from ..figures.denoising import answer_places
from ..figures.style import is_end
from ..tracing.effects import total
from ..tracing.vocabulary import CORRUPTIONS, KINDS
from . import sources

# What is hidden while an answer appears, and how: {(hidden, kind): what the page calls it}.
RESTS = {("subject", ""): "subject", ("revealed", "swap"): "revealed", ("both", "swap"): "both"}
QUESTIONS = {
    "same": "{asks}, asked as taught",
    "reverse": "{asks}, asked in reverse",
}


def build(families, people, completions, traces, times, *, steps, max_facts):
    """What the explorer shows, as a dict for JSON.

    `families` has each model's, `people` the names of facts, `completions` the rows of each model; `traces` are lists
    of `trace_files.FactTrace` by (model, split), made with so many denoising `steps`, and `times` tables of when their
    subjects are needed. Each model and split has up to `max_facts` people, traced ones first.
    """
    labels = sources.labels(families)
    asked = {
        name: QUESTIONS[split.trained].format(answer_type=split.answer_type)
        for name, split in SPLITS.items()
        if split.trained in QUESTIONS
    }
    cases = []
    for (model, answers), split in itertools.product(completions.items(), asked):
        own = [answer for answer in answers if answer["split"] == split]
        chosen = choose(own, traces.get((model, split), []), steps=steps, most=max_facts)
        found = dict(iter(times[model, split].groupby("fact"))) if (model, split) in times else {}
        for case in chosen:
            needed = {"time": course(found[case["fact"]])} if "trace" in case and case["fact"] in found else {}
            cases.append({"model": model, "name": people[case["fact"]], **case, **needed})
    return {
        "models": [{"name": name, "label": f"{labels[name]} ({family})"} for name, family in families.items()],
        "splits": asked,
        "kinds": {name: kind.many for name, kind in KINDS.items()},
        "corruptions": CORRUPTIONS,
        "traced": any("trace" in case for case in cases),
        "cases": cases,
    }


def within(made, most_bytes):
    """The same with fewer people for each model and split, one at least: as many as fit into `most_bytes`."""
    ranks, seen = [], Counter()
    for case in made["cases"]:
        ranks.append(seen[case["model"], case["split"]])
        seen[case["model"], case["split"]] += 1
    for most in range(max(seen.values(), default=1), 0, -1):
        fewer = made | {"cases": [case for case, rank in zip(made["cases"], ranks, strict=True) if rank < most]}
        if len(embedded(fewer).encode()) <= most_bytes:
            break
    return fewer


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
    """A trace as the page needs it: hundredths of a nat, as whole numbers.

    Effects are of each kind's first steps; what is lost without a site alone (`needed`) of the first, where asked.
    """
    effects, cost, needed = {}, {}, {}
    for corruption, kinds in trace.kinds.items():
        each = [trace.effects(corruption, kind) for kind in kinds]  # (steps, positions, layers)
        effects[corruption] = [[_hundredths(at_step) for at_step in values] for values in each]
        cost[corruption] = _hundredths(total(trace, corruption))
        layers = each[0].shape[-1]
        lost = {kind: trace.runs(corruption, kind, reading="necessary") for kind in kinds}
        clean = trace.arrays["log_probability.clean"][0]
        needed[corruption] = {
            kind: _hundredths(clean - changed[0].astype(float)) for kind, changed in lost.items() if changed is not None
        }
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
        "needed": needed,
    }


def course(found):
    """When one fact's subject is needed, from its rows of the table of time.

    By what is hidden, [tokens of the answer revealed, hundredths of a nat lost of those to come]; and, hidden from or
    until a step, [step, whether the finished answer is right].
    """
    rests = found[found.reading == "rests"].fillna({"kind": ""})
    lost = {name: [] for name in RESTS.values()}
    for revealed, rows in rests.groupby("revealed"):
        steps = sorted(set(rows.step))
        values = rows[rows.step == steps[len(steps) // 2]].set_index(["hidden", "kind"]).value
        for key, name in RESTS.items():
            if key in values.index:
                lost[name].append([int(revealed), *_hundredths(values["neither", ""] - values[key])])
    whole = found[(found.reading == "recalled") & (found.kind == "subject")]
    recalled = {
        hidden: rows[["step", "value"]].astype(int).to_numpy().tolist() for hidden, rows in whole.groupby("hidden")
    }
    return {"rests": lost, "recalled": recalled}


def _hundredths(nats):
    """Values of any shape as a list of whole hundredths, None where a place was not asked about."""
    return [None if np.isnan(value) else round(100 * value) for value in np.ravel(nats).tolist()]


def dump(made):
    """JSON in the smallest form."""
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))


def embedded(made):
    """JSON for within a `<script>`: nothing in it can end the element or begin another."""
    coded = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return dump(made).translate(str.maketrans(coded))
