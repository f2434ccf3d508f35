"""Inputs that several tests change: the default configuration, and a checkpoint as it is published."""

import copy
import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from reversal.models import tokens

ROOT = Path(__file__).resolve().parent.parent


def change_key(config, keys, value):
    """A copy of `config` with the value at the path `keys` replaced."""
    config = copy.deepcopy(config)
    inner = config
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return config


def write_checkpoint(folder, name="llada", *, size=318, **changes):
    """Write a checkpoint as it is published: config.json, two shards with an index, a tokenizer of `size` tokens.

    `changes` are keys of config.json, left out where they are None.
    """
    golden = ROOT / "tests/golden" / name
    folder.mkdir(exist_ok=True)
    config = json.loads((golden / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    tensors = list(load_file(golden / "model.safetensors").items())
    weight_map = {}
    for number, part in enumerate((tensors[:9], tensors[9:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file(dict(part), folder / file)
        weight_map |= dict.fromkeys(dict(part), file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    tokenizer = tokens.train_tokenizer(["a few words"], 300)
    tokenizer.add_tokens([f"<|{i}|>" for i in range(len(tokenizer), size)], special_tokens=True)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder
