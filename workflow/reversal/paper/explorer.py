"""The data of the page's explorer: some generations of each model and their causal traces, small enough to embed."""

import itertools
import json

import numpy as np

from ..data.facts import KNOWN, SPLITS
from ..figures.denoising import find_answer_tokens
from ..figures.style import is_end
from ..models.vocabulary import FAMILIES
from ..tracing.vocabulary import choose_corruption

DIRECTIONS = {"reverse": "reverse direction", "same": "same direction", "known": "known facts"}


def build(families, people, completions, traces, *, steps, max_facts):
    """What the explorer shows, as a dict for JSON; questions in the reverse direction come first.

    `families` has each model's family, `people` the name of each fact, `completions` each model's rows; `traces` are
    lists of `FactTrace` by (model, split), made with so many denoising `steps`. Each model and split has up to
    `max_facts` people, traced ones first.
    """
    present = {row["split"] for rows in completions.values() for row in rows}
    order = list(DIRECTIONS)
    splits = {name: split for name, split in (SPLITS | KNOWN).items() if name in present and split.trained in order}
    splits = dict(
        sorted(splits.items(), key=lambda item: (order.index(item[1].trained), item[1].answer_type != "name"))
    )
    cases = []
    for (model, rows), split in itertools.product(completions.items(), splits):
        own = [row for row in rows if row["split"] == split]
        for case in choose(own, traces.get((model, split), []), steps=steps, most=max_facts):
            cases.append({"model": model, "name": people[case["fact"]], **case})
    return {
        "models": [[name, f"{FAMILIES[family].name} ({name})"] for name, family in families.items()],
        "splits": {name: f"{split.answer_type}, {DIRECTIONS[split.trained]}" for name, split in splits.items()},
        "cases": cases,
    }


def choose(answers, traces, *, steps, most):
    """Cases of one model and split: those traced, then one question of each further person."""
    by_question = {}
    for answer in answers:
        by_question.setdefault((answer["fact"], answer["prompt"]), []).append(answer)
    cases = {}
    for trace in traces:
        rows = by_question.get((trace.metadata["fact"], trace.metadata["prompt"]), [])
        if same := [row for row in rows if row["steps"] in (None, steps)]:
            cases[trace.metadata["fact"]] = _case(same[0], trace)
    for (fact, _), rows in by_question.items():
        if fact not in cases and len(cases) < most:
            cases[fact] = _case(max(rows, key=lambda row: row["steps"] or 0), None)
    return list(cases.values())[:most]


def _case(answer, trace):
    revealed = sorted(answer["revealed"])
    wanted = find_answer_tokens([token for _, token, _, _ in revealed], answer["reference"])
    case = {key: answer[key] for key in ("split", "fact", "prompt", "reference", "correct")} | {
        "steps": answer["steps"] or len(revealed),
        "tokens": [
            [token, step, round(confidence, 3), int(i in wanted), int(is_end(token, answer["generation"]))]
            for i, (_, token, step, confidence) in enumerate(revealed)
        ],
    }
    return case if trace is None else case | {"trace": compact(trace)}


def compact(trace):
    """The indirect effects of hidden states under the leading corruption, in whole hundredths of a nat."""
    corruption = choose_corruption(trace.kinds)
    effects = trace.indirect_effects(corruption, "state")  # (steps, places, layers)
    return {
        "tokens": trace.metadata["tokens"][: len(trace.roles[0])],
        "steps": trace.steps[: len(effects)],
        "roles": trace.roles[: len(effects)],
        "layers": effects.shape[-1],
        "effects": [_hundredths(step) for step in effects],
        "total": _hundredths(trace.total_effect(corruption)[: len(effects)]),
    }


def _hundredths(nats):
    """Flatten to integers in 0.01 nat; None for NaN (site not restored)."""
    return [None if np.isnan(value) else round(100 * value) for value in np.ravel(nats).tolist()]


def embed(made):
    """JSON for within a `<script>`, in the smallest form: nothing in it can end the element or begin another."""
    coded = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")).translate(str.maketrans(coded))
