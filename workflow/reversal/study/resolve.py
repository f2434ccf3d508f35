"""A study, resolved once: every model complete, so that nothing has to be looked up in two places.

config.yaml has a value for every setting, a study file replaces some of them, and a model may replace the study's
canvas, training recipe, network shape and objective. `resolve_models` applies all of that. Rules, preflight checks and
tables read its result, never the parts. Needs neither torch nor a validator.
"""

import copy
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Objective:
    """Which tokens training noises and predicts: the names, meanings and defaults of `models.*.objective`.

    An autoregressive model has no noise; there a protected token is never predicted.
    """

    noise: str = "mask"  # "mask": [MASK] in its place; "uniform": a random token; "gaussian": noise on its embedding
    rate: float | str = "uniform"  # share of tokens that are noised: "uniform", drawn for each row, or a number
    # Tokens that are never noised: "none", the "subject", the "prompt", or "subject_given_object": the subject while
    # the object is visible.
    protect: str = "none"
    people: float | str = "all"  # whose tokens are protected: "all", a share of the people, or the "control" people
    exposure: float = 0.0  # share of presentations of a protected row in which nothing is protected
    time_conditioning: str = "none"  # "embedded": the network gets an embedding of the noise level
    # Block diffusion: tokens of a block, counted from the start of a row. A token attends to its own block and earlier
    # ones, and training noises one block at a time, given clean earlier blocks. None: the whole row.
    block: int | None = None
    whole_entities: bool = False  # mask all tokens of a subject or object together, or none of them (DiffER)
    masked_context: float = 0.0  # share of presentations in which an autoregressive model sees a masked copy first


def merge_defaults(config, defaults):
    """`config` with its keys in the order of `defaults`, so that the order in a study file triggers no rerun.

    Snakemake passes nested values of --config as text, as in seeds=[1, 2] or sampling={guidance: 0.4, block: null};
    those whose default is a number or null become numbers and null here.
    """
    if isinstance(config, dict) and isinstance(defaults, dict):
        keys = [*(key for key in defaults if key in config), *config]
        # A key without a default, such as a hash, stays as it is.
        return {key: merge_defaults(config[key], defaults.get(key, "")) for key in keys}
    if isinstance(config, list) and isinstance(defaults, list) and defaults:
        return [merge_defaults(item, defaults[0]) for item in config]
    if isinstance(config, str) and (defaults is None or isinstance(defaults, int | float)):
        value = yaml.safe_load(config)
        return value if value is None or isinstance(value, int | float) else config
    return config


def relocate_defaults(defaults, root):
    """The default configuration with the folders that ship under `root` as paths from the working directory."""
    config = copy.deepcopy(defaults)
    data = config["data"]
    for section in (data["generated"], data["pairs"], *config["models"].values()):
        for key in section.keys() & {"words", "templates", "folder"}:
            section[key] = os.path.relpath(Path(root) / section[key])
    return config


def resolve_models(config):
    """{name: settings} of a study's models, each with all that holds for it.

    family, base            as configured
    source                  the section of its base: {"folder": …}, {"repo": …, "revision": …}, …; {} if made here
    canvas, sampling        an autoregressive model decodes greedily, whatever the sampler's other settings
    training                the recipe; None with `training: none`
    network                 the shape of a network that is made here
    objective               every field of `Objective`
    train_on                which kinds of rows it is trained on
    store                   what a store of the study's facts shares: {"people", "part", "scale"}; or None
    """
    return {name: _resolve_model(model, config) for name, model in config["models"].items()}


def _resolve_model(model, config):
    base, canvas = model["base"], model.get("canvas", config["sampling"]["canvas"])
    recipe = {} if config["training"] == "none" else config["training"]
    return {
        "family": model["family"],
        "base": base,
        "source": {"folder": model.get("folder")} if base == "folder" else model.get(base, {}),
        "canvas": canvas,
        "sampling": config["sampling"] | {"canvas": canvas} if is_diffusion(model) else {"canvas": canvas},
        "training": recipe | model.get("training", {}) if recipe else None,
        "network": config["network"] | model.get("network", {}),
        "objective": asdict(Objective(**model.get("objective", {}))),
        "train_on": model.get("train_on", ["facts"]),
        "store": {"people": 1.0, "part": 1.0, "scale": 1.0} | model["store"] if model.get("store") else None,
    }


def is_diffusion(model):
    """Whether a model is a masked diffusion model, or else autoregressive."""
    return model["family"] == "diffusion"


def is_built_by_workflow(model):
    """Whether a model's network is made by this workflow, with the shape that `network` gives."""
    return model["base"] in ("pretrain", "scratch")


def find_unsupported_objective(model):
    """The setting of a model that tracing, edits and the post do not support, or None: only recall is measured.

    They put masks into a canvas that attends to itself as a whole, with rotary positions.
    """
    supported = {"noise": "mask", "time_conditioning": "none", "block": None}
    if model["store"]:
        return "store"
    if is_built_by_workflow(model) and model["network"]["positions"] != "rotary":
        return "network.positions"
    return next((f"objective.{key}" for key, value in supported.items() if model["objective"][key] != value), None)


# Stages after recall, and the key that leaves one out if it is 0.
STAGES = {
    "tracing": "max_facts",
    "keyvalue": "max_facts",
    "rank_one_edits": "max_facts",
    "finetuned_edits": "max_facts",
}


def find_disabled_stages(config):
    """The stages that a study leaves out, by its configuration or because a model's objective supports recall alone."""
    if any(map(find_unsupported_objective, resolve_models(config).values())):
        return {*STAGES}
    return {stage for stage, key in STAGES.items() if config[stage][key] == 0}


def summarize_training(model):
    """How a resolved model is trained: the first columns of tables/objectives.csv."""
    return {
        "family": model["family"],
        **model["objective"],
        "train_on": "+".join(model["train_on"]),
        "epochs": model["training"]["epochs"] if model["training"] else 0,
        "positions": model["network"]["positions"] if is_built_by_workflow(model) else "rotary",
        "layers": model["network"]["layers"],
        "width": model["network"]["width"],
    }
