"""Tables and completions on disk, read without any network; and the alternative text of a figure."""

import re
from pathlib import Path

import pandas as pd

from ..common.errors import UserError


def read_table(path, **columns):
    """A CSV table, with `columns` (model=…, seed=…) before its own. Only an empty field is missing: "NA" is a text."""
    rows = pd.read_csv(path, keep_default_na=False, na_values=[""])
    for place, (name, value) in enumerate(columns.items()):
        rows.insert(place, name, value)
    return rows


def read_runs(read, files):
    """One table of the files of several trained models; paths like …/mdm/seed_1.jsonl tell the model and the seed."""
    parts = []
    for file in files:
        model, seed = re.search(r"([^/]+)/seed_(\d+)\.", Path(file).as_posix()).groups()
        parts.append(read(file, model=model, seed=int(seed)))
    return pd.concat(parts, ignore_index=True)


def select_most_steps(table):
    """The rows with the most denoising steps, and those of models that take none."""
    return table[table.steps.isna() | (table.steps == table.steps.max())]


def fill_alt_text(figure, alt, values):
    """The alternative text of a `figure`: its template `alt` with `values` of the data, or why nothing was drawn."""
    if "nothing" in values:
        return values["nothing"]
    try:
        return " ".join(alt.format_map(values).split())
    except KeyError as error:
        known = ", ".join(sorted(values))
        raise UserError(f"figures/registry.py: alt of {figure} has {{{error.args[0]}}}; known: {known}") from None
