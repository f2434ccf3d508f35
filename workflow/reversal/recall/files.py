"""Completions on disk: one JSON object a line. No network is needed."""

import json

import pandas as pd

from ..common.files import atomic

COLUMNS = (
    *("fact", "split", "steps", "prompt", "reference", "generation", "correct", "revealed"),
    *("prompt_tokens", "ids", "withdrawn", "template", "corrected"),
)


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


def of(completions, *, split, steps):
    """One model's completions of a split in `steps` steps, as dicts in the order of the split's rows.

    An autoregressive model's completions have no steps and are taken whatever `steps` is.
    """
    rows = completions[(completions.split == split) & (completions.steps.isna() | (completions.steps == steps))]
    return rows.to_dict("records")


def entering(completion, step, mask):
    """The ids of a diffusion model's canvas as it was when `step` began; `mask` is what hides a token."""
    ids = list(completion["ids"])
    for position, _, shown, _ in completion["revealed"]:
        if shown >= step:
            ids[position] = mask
    for position, token, shown, masked_again in completion["withdrawn"]:
        if shown < step <= masked_again:
            ids[position] = token
    return ids
