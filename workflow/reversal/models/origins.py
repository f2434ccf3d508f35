"""Where a model comes from, as far as that is known: by the hash of what ships, or by a pinned repository."""

import json
from pathlib import Path

from ..common.files import CHECKSUMS, sha256
from .folders import read_json

SMDM = "nieshen/SMDM"  # the repository of its authors


def ships(base, shipped):
    """Whether the model in the folder `base` is one of those that ship, by its weights' hash; `shipped` is a file."""
    sums = read_json(Path(base) / CHECKSUMS)
    return sums.get("model.safetensors") in json.loads(Path(shipped).read_text())["models"].values()


def read_in_pretraining(base, lists, shipped):
    """Whether the model in the folder `base` ships and was pretrained on what these `lists` (files) give."""
    told = json.loads(Path(shipped).read_text())["lists"]
    return ships(base, shipped) and {Path(file).name: sha256(file) for file in lists} == told


def told(model, base, shipped):
    """What to say of where a `model` of the configuration starts, whose base is in the folder `base`."""
    match model["base"]:
        case "folder" if ships(base, shipped):
            return "a tiny base that ships with the project, pretrained on generated biographies of people in no study"
        case "folder":
            return f"a model of your own, from {model['folder']}"
        case "pretrain":
            return "a base pretrained here on generated biographies of people who are in no study"
        case "scratch":
            return "random weights"
        case "hub" | "llada" | "dream" as kind:
            source = model[kind]
            if "folder" in source:
                name = {"llada": "LLaDA", "dream": "Dream"}[kind]
                return f"a {name} checkpoint in a local folder, {source['folder']}"
            return f"the public checkpoint {source['repo']}, commit {source['revision'][:12]}"
    weights = model["lit_gpt"]["weights"]
    if "path" in weights:
        return f"a checkpoint of your own, from {weights['path']}"
    if weights["repo"] == SMDM:
        return "a checkpoint that SMDM's authors published"
    return f"the public checkpoint {weights['repo']}/{weights['file']}, commit {weights['revision'][:12]}"
