"""Whether a model is one of the bundled ones, by its hash."""

import json
from pathlib import Path

from ..common.files import CHECKSUMS, sha256
from .folders import read_json


def was_pretrained_on(base, lists, shipped):
    """Whether the model in the folder `base` is bundled and was pretrained on text made from these `lists` (files).

    `shipped` is the file with the hashes of the bundled models and of their lists.
    """
    known = json.loads(Path(shipped).read_text())
    is_bundled = read_json(Path(base) / CHECKSUMS).get("model.safetensors") in known["models"].values()
    return is_bundled and {Path(file).name: sha256(file) for file in lists} == known["lists"]
