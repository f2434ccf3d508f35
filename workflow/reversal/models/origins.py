"""Where a model comes from, as far as that is known: by the hashes of the bundled models, or by a pinned repository."""

import json
from pathlib import Path

from ..common.files import CHECKSUMS, sha256
from .folders import read_json

SMDM = "nieshen/SMDM"  # the repository of its authors


def is_bundled(base, shipped):
    """Whether the weights in the folder `base` have the hash of a bundled model; `shipped` is the file of hashes."""
    sums = read_json(Path(base) / CHECKSUMS)
    return sums.get("model.safetensors") in json.loads(Path(shipped).read_text())["models"].values()


def was_pretrained_on(base, lists, shipped):
    """Whether the model in the folder `base` is bundled and was pretrained on text made from these `lists` (files)."""
    hashes = json.loads(Path(shipped).read_text())["lists"]
    return is_bundled(base, shipped) and {Path(file).name: sha256(file) for file in lists} == hashes


def describe_origin(model, base, shipped):
    """Describe where a `model` of the configuration starts; its base is in the folder `base`."""
    match model["base"]:
        case "folder" if is_bundled(base, shipped):
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
