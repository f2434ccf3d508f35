"""Completions on disk: one JSON object a line. No network is needed."""

import json

import pandas as pd

from ..common.files import atomic

COLUMNS = ("fact", "split", "steps", "prompt", "reference", "generation", "correct", "revealed")


def write(completions, path):
    """Write completions as JSONL, all or nothing."""
    with atomic(path) as file:
        for completion in completions:
            file.write((json.dumps(completion, ensure_ascii=False) + "\n").encode())


def read(path, **columns):
    """The completions of a JSONL file as a table, with `columns` (model=…, seed=…) before theirs."""
    with open(path, encoding="utf-8") as file:
        table = pd.DataFrame([json.loads(line) for line in file])
    if table.empty:
        table = pd.DataFrame(columns=list(COLUMNS))
    for place, (name, value) in enumerate(columns.items()):
        table.insert(place, name, value)
    return table


def answered(completions, *, split, steps):
    """Which rows of a split one model answered rightly in `steps` steps; None where its `completions` do not say.

    An autoregressive model's completions have no steps and are taken whatever `steps` is.
    """
    rows = completions[(completions.split == split) & (completions.steps.isna() | (completions.steps == steps))]
    return rows.correct.tolist() if len(rows) else None
