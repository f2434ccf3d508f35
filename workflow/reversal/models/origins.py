"""Whether a model is one of the bundled ones, by its hash."""

import json
from pathlib import Path

from ..common.files import CHECKSUMS, sha256
from .folders import read_json


def is_bundled(base, shipped):
    """Whether the weights in the folder `base` have the hash of a bundled model; `shipped` is the file of hashes."""
    sums = read_json(Path(base) / CHECKSUMS)
    return sums.get("model.safetensors") in json.loads(Path(shipped).read_text())["models"].values()


def was_pretrained_on(base, lists, shipped):
    """Whether the model in the folder `base` is bundled and was pretrained on text made from these `lists` (files)."""
    hashes = json.loads(Path(shipped).read_text())["lists"]
    return is_bundled(base, shipped) and {Path(file).name: sha256(file) for file in lists} == hashes
