"""Completions on disk, one JSON object per line; reading them needs no network."""

import json

import pandas as pd

from ..common.files import atomic

COLUMNS = (
    *("fact", "split", "steps", "prompt", "reference", "generation", "correct", "revealed"),
    *("prompt_tokens", "ids", "remasked", "template"),
)


def write(completions, path):
    """Write completions as JSONL; if writing fails, the old file stays."""
    with atomic(path) as file:
        for completion in completions:
            file.write((json.dumps(completion, ensure_ascii=False) + "\n").encode())


def read(path, **columns):
    """Read the completions of a JSONL file as a table, with `columns` (model=…, seed=…) in front."""
    with open(path, encoding="utf-8") as file:
        table = pd.DataFrame([json.loads(line) for line in file])
    if table.empty:
        table = pd.DataFrame(columns=list(COLUMNS))
    for place, (name, value) in enumerate(columns.items()):
        table.insert(place, name, value)
    return table


def select_completions(completions, *, split, steps):
    """One model's completions of a split after `steps` denoising steps, as dicts in the order of the split's rows.

    Completions of an autoregressive model have no steps and are always selected.
    """
    rows = completions[(completions.split == split) & (completions.steps.isna() | (completions.steps == steps))]
    return rows.to_dict("records")


def canvas_before(completion, step, mask):
    """The ids of a diffusion model's canvas before `step`; `mask` is the id of the mask token."""
    ids = list(completion["ids"])
    for position, _, revealed_at, _ in completion["revealed"]:
        if revealed_at >= step:
            ids[position] = mask
    for position, token, revealed_at, masked_at in completion["remasked"]:
        if revealed_at < step <= masked_at:
            ids[position] = token
    return ids
