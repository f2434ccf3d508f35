"""What the paper rests on: a study's tables, models and data, read from disk without any network."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import safetensors

from ..figures.read import table
from ..models import origins
from ..models.families import FAMILIES


class Sources(NamedTuple):
    """Everything that numbers are computed from."""

    config: dict
    tables: dict  # {name: DataFrame}
    networks: dict  # {model: shape}, see `network`
    histories: pd.DataFrame  # of training: model, seed, step, epoch, loss, …
    facts: list
    rows: dict  # {"train" or split: rows}
    published: pd.DataFrame  # the published recall
    origins: dict  # {model: where it starts, in words}
    kept: list  # of other runs, kept with the paper: their numbers, and how they were "made"
    taught: dict  # of such runs, {name: table of objectives}

    @property
    def families(self):
        """{model: family}."""
        return {name: model["family"] for name, model in self.config["models"].items()}

    @property
    def labels(self):
        """{model: what the text calls it}: its family where that is enough."""
        return labels(self.families)

    @property
    def theirs(self):
        """Whether the people are those of Berglund et al."""
        return self.config["data"]["source"] == "berglund"

    def first(self, family):
        """The first model of a family, or None."""
        return next((name for name, kind in self.families.items() if kind == family), None)


def labels(families):
    """{model: what the text calls it} for {model: family}."""
    kinds = list(families.values())
    return {name: FAMILIES[family].short if kinds.count(family) == 1 else name for name, family in families.items()}


def read(config, *, tables, models, bases, shipped, histories, data, published, kept=(), taught=()):
    """The `Sources` from files.

    `tables`, `models` and their `bases` (folders) and `data` are paths by name; `histories` by (model,
    seed); `kept` folders; `taught` tables in folders; `shipped` the file that tells the models that ship.
    """
    return Sources(
        config=config,
        tables={name: table(path) for name, path in tables.items()},
        networks={name: network(path) for name, path in models.items()},
        histories=_stacked({key: table(path) for key, path in histories.items()}),
        facts=lines(data["facts"]),
        rows={name: lines(path) for name, path in data.items() if name != "facts"},
        published=table(published),
        origins={name: origins.told(config["models"][name], folder, shipped) for name, folder in bases.items()},
        kept=[run(folder) for folder in kept],
        taught={Path(path).parent.name: table(path) for path in taught},
    )


def lines(path):
    """The objects of a JSONL file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def network(folder):
    """The shape of a saved model."""
    shape = json.loads((Path(folder) / "config.json").read_text())
    sizes = []
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safetensors.safe_open(file, framework="numpy") as tensors:
            sizes += [int(np.prod(tensors.get_slice(name).get_shape())) for name in tensors.keys()]  # noqa: SIM118
    bidirectional = shape.get("is_causal") is False
    return {
        "architecture": shape["model_type"],
        "layers": _one_of(shape, "num_hidden_layers", "n_layer"),
        "heads": _one_of(shape, "num_attention_heads", "n_head"),
        "width": _one_of(shape, "hidden_size", "n_embd"),
        "mlp": shape.get("intermediate_size") or shape.get("n_inner") or 4 * shape["n_embd"],
        # A diffusion network's embedding has a row for the mask, which is never predicted.
        "vocabulary": shape["vocab_size"] - (1 if bidirectional else 0),
        "context": _one_of(shape, "max_position_embeddings", "n_positions"),
        "attention": "bidirectional" if bidirectional else "causal",
        "shifted": shape.get("shifted", False),  # a diffusion network that reads a prediction at the place before
        "parameters": sum(sizes),
    }


def run(folder):
    """The numbers of a run kept with the paper, its `folder`, and how it was "made", as {name: text}."""
    numbers, made = (
        json.loads(Path(folder, file).read_text(encoding="utf-8")) for file in ("numbers.json", "provenance.json")
    )
    return numbers | {"folder": Path(folder).name, "made": dict(_told(made))}


def _told(made):
    for name, value in made.items():
        yield from _told(value) if isinstance(value, dict) else [(name, str(value))]


def _one_of(shape, *names):
    return next(shape[name] for name in names if name in shape)


def _stacked(parts):
    return pd.concat([part.assign(model=model, seed=seed) for (model, seed), part in parts.items()], ignore_index=True)
