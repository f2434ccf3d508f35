"""Traces and answers about time, made up: what tables, figures and the post are made from, without a network."""

import itertools

import numpy as np
import pandas as pd

from reversal.tracing.files import FactTrace, array_name
from reversal.tracing.vocabulary import KINDS, ROLES, WINDOWED

SOME_ROLES = [
    *("prior prompt", "first subject", "last subject", "last prompt", "masked answer", "masked answer"),
    *("whole subject", "whole answer"),
]
CLEAN, CORRUPTED = -1.0, -21.0


def trace(fact="f", *, kinds=None, roles=SOME_ROLES, steps=3, layers=2, windows=(1, 3), rng=None, about=None):
    """A trace with random effects, from none to the whole of what hiding the subject costs, largest at its last token.

    `kinds` is {corruption: [kind]}; of the first, states have all steps, every other kind has one.
    """
    rng = rng or np.random.default_rng(0)
    kinds = kinds or {"swap": list(KINDS), "gaussian": ["state"]}
    arrays = {}
    for score in ("log_probability", "probability", "contrast"):
        scale = 0.02 if score == "probability" else 1.0
        for corruption, own in kinds.items():
            main = corruption == next(iter(kinds))
            arrays.setdefault(f"{score}.clean", scale * (np.full(steps, CLEAN) if main else np.full(1, CLEAN)))
            lost = (CLEAN - CORRUPTED) / np.arange(1, (steps if main else 1) + 1)
            arrays[f"{score}.{corruption}.corrupted"] = scale * (CLEAN - lost)
            for kind, window in [(k, w) for k in own for w in (windows if k in WINDOWED else windows[:1])]:
                there = lost if main and kind == "state" else lost[:1]
                share = rng.random((len(there), len(roles), layers)) * 0.4
                share[:, [role.endswith("subject") for role in roles]] += 0.4
                returned = share * there[:, None, None]
                put_back = CLEAN - there[:, None, None] + returned
                arrays[array_name(score, corruption, "restored", kind, window)] = scale * put_back
                if main and score == "log_probability":
                    arrays[array_name(score, corruption, "necessary", kind, window)] = (CLEAN - 0.5 * returned)[:1]
    arrays = {key: array.astype(np.float32) for key, array in arrays.items()}
    about = {"fact": fact, "t1": 0, "t2": steps - 1} | (about or {})
    return FactTrace(about, list(range(steps)), [list(roles)] * steps, kinds, list(windows), arrays)


def with_effects(effects, *, kind="mlp", role="last subject", kinds=("state", "mlp", "attn"), corruption="swap", **how):
    """A trace in which restoring `kind` at a `role` has these effects (L,) at t1 in nats, and nothing else has any."""
    made = trace(kinds={corruption: list(kinds)}, layers=len(effects), windows=(1,), **how)
    arrays = dict(made.arrays)
    for one in kinds:
        key = array_name("log_probability", corruption, "restored", one, 1)
        lost = arrays[f"log_probability.{corruption}.corrupted"][: len(arrays[key]), None, None]
        arrays[key] = np.broadcast_to(lost, arrays[key].shape).copy()
        if one == kind and role in made.roles[0]:
            arrays[key][:, made.roles[0].index(role)] += np.array(effects, np.float32)
    return made._replace(arrays=arrays)


def time(facts, *, diffusion=True, layers=2, steps=4):
    """What `time.when_needed` finds of some facts: the subject is needed at first, then what is revealed."""
    rows = []
    for number, fact in enumerate(facts):
        for revealed, stage in enumerate(("t1", "between", "t2")):
            about = {"fact": fact, "reading": "rests", "stage": stage, "step": revealed, "revealed": revealed}
            about |= {"remaining": 3 - revealed}
            rows += [about | {"hidden": "neither", "value": -1.0}]
            rows += [about | {"hidden": "subject", "value": -21.0 + 9 * revealed - number}]
            for kind in (("mask",) if diffusion else ()) + ("swap",) if revealed else ():
                rows += [about | {"hidden": "revealed", "kind": kind, "value": -2.0 - 5 * revealed - number}]
                rows += [about | {"hidden": "both", "kind": kind, "value": -22.0 - number}]
        sites = [("subject", np.nan), *itertools.product(WINDOWED if diffusion else (), range(layers))]
        for (kind, layer), step in itertools.product(sites, (0, steps // 2, steps)):
            about = {"fact": fact, "reading": "recalled", "kind": kind, "layer": layer, "step": step}
            rows += [about | {"hidden": "from", "value": float(step == steps)}]
            rows += [about | {"hidden": "until", "value": float(step < steps)}]
        if diffusion:
            about = {"fact": fact, "reading": "carried"}
            for kind, hidden, values in (
                ("subject", "subject", (-20.0, -20.0 - number, 0.0)),
                ("subject", "neither", (-2.0, -1.0, None)),
                ("state", "restored", (-10.0, -12.0, float(number % 2))),
            ):
                for stage, value in zip(("between", "t2", "end"), values, strict=True):
                    layer = 0 if kind == "state" else np.nan
                    if value is not None:
                        rows += [
                            about | {"kind": kind, "hidden": hidden, "layer": layer, "stage": stage, "value": value}
                        ]
    columns = ["fact", "reading", "hidden", "kind", "layer", "stage", "step", "revealed", "remaining", "value"]
    return pd.DataFrame(rows, columns=columns)


assert set(SOME_ROLES) <= set(ROLES)
