"""Artificial traces and timing values, from which tables, figures and the post are made without a network."""

import itertools

import numpy as np
import pandas as pd

from reversal.tracing.files import FactTrace, array_name
from reversal.tracing.vocabulary import JOINT_ROLES, KINDS, ROLES, SCORES, WINDOWED_KINDS

SOME_ROLES = [
    *("prior prompt", "first subject", "last subject", "last prompt", "masked answer", "masked answer"),
    *JOINT_ROLES,
]
CLEAN, CORRUPTED = -1.0, -21.0


def make_trace(fact="f", *, kinds=None, roles=SOME_ROLES, steps=3, layers=2, windows=(1, 3), rng=None, metadata=None):
    """A trace with random indirect effects between 0 and the total effect, largest at the subject tokens.

    `kinds` is {corruption: [kind]}; states have all steps under the first corruption, any other kind has one.
    """
    rng = rng or np.random.default_rng(0)
    kinds = kinds or {"swap": list(KINDS), "gaussian": ["state"]}
    arrays = {}
    for score in SCORES:
        scale = 0.02 if score == "probability" else 1.0
        for corruption, restored_kinds in kinds.items():
            main = corruption == next(iter(kinds))
            arrays.setdefault(f"{score}.clean", scale * (np.full(steps, CLEAN) if main else np.full(1, CLEAN)))
            totals = (CLEAN - CORRUPTED) / np.arange(1, (steps if main else 1) + 1)
            arrays[f"{score}.{corruption}.corrupted"] = scale * (CLEAN - totals)
            sites = [(k, w) for k in restored_kinds for w in (windows if k in WINDOWED_KINDS else windows[:1])]
            for kind, window in sites:
                total = totals if main and kind == "state" else totals[:1]
                share = rng.random((len(total), len(roles), layers)) * 0.4
                share[:, ["subject" in role for role in roles]] += 0.4
                effect = share * total[:, None, None]
                restored = CLEAN - total[:, None, None] + effect
                arrays[array_name(score, corruption, "restored", kind, window)] = scale * restored
                if main and score == "log_probability" and kind == "state":
                    arrays[array_name(score, corruption, "necessary", kind, window)] = (CLEAN - 0.5 * effect)[:1]
    arrays = {key: array.astype(np.float32) for key, array in arrays.items()}
    metadata = {"fact": fact, "t1": 0, "t2": steps - 1} | (metadata or {})
    return FactTrace(metadata, list(range(steps)), [list(roles)] * steps, kinds, list(windows), arrays)


def make_trace_with_effects(
    effects, *, kind="mlp", role="last subject", kinds=("state", "mlp", "attn"), corruption="swap", **options
):
    """A trace in which only `kind` at `role` has indirect effects: `effects` (L,) at t1, in nats."""
    trace = make_trace(kinds={corruption: list(kinds)}, layers=len(effects), windows=(1,), **options)
    arrays = dict(trace.arrays)
    for name in kinds:
        key = array_name("log_probability", corruption, "restored", name, 1)
        corrupted = arrays[f"log_probability.{corruption}.corrupted"][: len(arrays[key]), None, None]
        arrays[key] = np.broadcast_to(corrupted, arrays[key].shape).copy()
        if name == kind and role in trace.roles[0]:
            arrays[key][:, trace.roles[0].index(role)] += np.array(effects, np.float32)
    return trace._replace(arrays=arrays)


def make_time_values(facts, *, diffusion=True, layers=2, steps=4):
    """Values as `time.measure_timing` returns them: the subject is needed at first, then the revealed tokens."""
    rows = []
    for number, fact in enumerate(facts):
        for revealed, stage in enumerate(("t1", "between", "t2")):
            labels = {"fact": fact, "reading": "sequential", "stage": stage, "step": revealed, "revealed": revealed}
            labels |= {"remaining": 3 - revealed}
            rows += [labels | {"corrupted": "neither", "value": -1.0}]
            rows += [labels | {"corrupted": "subject", "value": -21.0 + 9 * revealed - number}]
            for kind in (("mask",) if diffusion else ()) + ("swap",) if revealed else ():
                rows += [labels | {"corrupted": "revealed", "kind": kind, "value": -2.0 - 5 * revealed - number}]
                rows += [labels | {"corrupted": "both", "kind": kind, "value": -22.0 - number}]
        recall = {"fact": fact, "reading": "recall"}
        for step in (0, steps // 2, steps) if diffusion else ():
            labels = recall | {"kind": "subject", "step": step}
            rows += [labels | {"corrupted": "from", "value": float(step == steps)}]
            rows += [labels | {"corrupted": "until", "value": float(step < steps)}]
        for kind, layer in itertools.product(WINDOWED_KINDS if diffusion else (), range(layers)):
            rows += [recall | {"kind": kind, "layer": layer, "step": 0, "corrupted": "from", "value": 0.0}]
    columns = ["fact", "reading", "corrupted", "kind", "layer", "stage", "step", "revealed", "remaining", "value"]
    return pd.DataFrame(rows, columns=columns)


def make_lens_values(facts, *, layers=3, steps=5):
    """Values as `readouts.read_layers` returns them: two tokens, revealed last, that only the last layer can read."""
    rows = [
        (fact, token, steps - 2 + token, step, layer, (layer + 1) / layers * (0.4 + 0.6 * step / steps))
        for fact, token, step, layer in itertools.product(facts, (0, 1), range(steps), range(layers))
        if step <= steps - 2 + token
    ]
    return pd.DataFrame(rows, columns=["fact", "token", "revealed", "step", "layer", "probability"])


def make_head_values(facts, *, layers=3, heads=2):
    """Values as `readouts.measure_heads` returns them: head 0 of layer 0 recovers half of the total effect."""
    rows = [
        (fact, layer, head, 5.0 if layer == head == 0 else 0.0, 10.0 + number)
        for (number, fact), layer, head in itertools.product(enumerate(facts), range(layers), range(heads))
    ]
    return pd.DataFrame(rows, columns=["fact", "layer", "head", "effect", "total"])


def make_attribution_values(facts):
    """Values as `readouts.measure_attribution` returns them: the estimate is worse at later steps."""
    rows = [
        (fact, stage, 0.9 - 0.2 * i - number / 50, 0.2 * (1 + i), 20.0)
        for (number, fact), (i, stage) in itertools.product(enumerate(facts), enumerate(("t1", "between", "t2")))
    ]
    return pd.DataFrame(rows, columns=["fact", "stage", "correlation", "missed", "cost"])


assert set(SOME_ROLES) <= set(ROLES)
