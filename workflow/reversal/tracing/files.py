"""Traces on disk, a file per fact. No network is needed."""

import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import safetensors
import safetensors.numpy

from ..common.files import atomic, write_table

OUTCOMES = "outcomes.csv"


class FactTrace(NamedTuple):
    """The trace of one fact at S steps, P places and L layers.

    For each score s and corruption c, `arrays` holds `s.clean` (S,), `s.c.corrupted` (S,) and `s.c.restored`
    (K, S, P, L), the K kinds being `kinds[c]`. Places are the positions, one by one, and last the whole subject.
    """

    about: dict  # fact, template, prompt, reference, tokens, subject, answer, t1, t2
    steps: list
    roles: list  # (S, P); None where an autoregressive step has not come to yet
    kinds: dict
    arrays: dict


def write(traces, outcomes, folder):
    """Write a file per fact and the table of outcomes into `folder`; traces of earlier runs are removed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    for trace in traces:
        described = {name: getattr(trace, name) for name in ("about", "steps", "roles", "kinds")}
        with atomic(folder / f"{trace.about['fact']}.safetensors") as file:
            file.write(safetensors.numpy.save(trace.arrays, {"trace": json.dumps(described, ensure_ascii=False)}))
    write_table(outcomes, folder / OUTCOMES)


def read(folder):
    """The traces of a folder that `write` left, facts in the order of their ids."""
    return [_read(file) for file in sorted(Path(folder).glob("*.safetensors"))]


def read_outcomes(folder):
    """The table of outcomes that `write` left."""
    return pd.read_csv(Path(folder) / OUTCOMES)


def _read(path):
    with safetensors.safe_open(path, framework="numpy") as file:
        described = json.loads(file.metadata()["trace"])
        return FactTrace(**described, arrays={name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
