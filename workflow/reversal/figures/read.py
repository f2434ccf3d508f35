"""What figures are made from: tables and rows on disk, read without any network."""

import pandas as pd
import yaml

from ..common.errors import UserError


def table(path, **columns):
    """A CSV table, with `columns` (model=…, seed=…) before its own. Only an empty field is missing: "NA" is a text."""
    rows = pd.read_csv(path, keep_default_na=False, na_values=[""])
    for place, (name, value) in enumerate(columns.items()):
        rows.insert(place, name, value)
    return rows


def each(read, files, trained):
    """One table of the files of several trained models, named like "mdm/seed_1"."""
    parts = []
    for name, path in zip(trained, files, strict=True):
        model, seed = name.split("/seed_")
        parts.append(read(path, model=model, seed=int(seed)))
    return pd.concat(parts, ignore_index=True)


def last(table):
    """The answers in the most steps, and those that take none."""
    return table[table.steps.isna() | (table.steps == table.steps.max())]


def begins(token, answer):
    """Whether a token begins an answer, case aside; one of spaces alone begins none."""
    return bool(token.strip()) and answer.strip().lower().startswith(token.strip().lower())


def alt_text(path, name, says):
    """The alternative text of a figure: its entry in a YAML file, with what the drawing says of the data filled in."""
    if "nothing" in says:
        return says["nothing"]
    with open(path, encoding="utf-8") as file:
        texts = yaml.safe_load(file)
    if name not in texts:
        raise UserError(f"{path}: no text for {name}; every figure has one")
    try:
        return " ".join(texts[name].format_map(says).split())
    except KeyError as error:
        raise UserError(f"{path}: {name} has {{{error.args[0]}}}; known: {', '.join(sorted(says))}") from None
