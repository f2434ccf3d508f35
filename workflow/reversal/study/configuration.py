"""Check a configuration and say in one line what is wrong: which file, which key, its value, and what is allowed.

The schema (workflow/schemas/config.schema.yaml) checks single keys. Values that do not fit together are checked here.
"""

import difflib
import itertools
import json
import math
from dataclasses import asdict
from pathlib import Path

import yaml

from ..common.errors import UserError
from ..data import generated
from ..data.facts import DIRECTIONS
from .resolve import (
    Objective,
    find_disabled_stages,
    is_built_by_workflow,
    is_diffusion,
    resolve_models,
)

try:  # twenty times as fast, where PyYAML has libyaml; every dry run reads the schema
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "workflow/schemas/config.schema.yaml"
# What config.json calls the number of layers, and of positions, in different architectures.
DEPTH_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
# Settings of the sampler that only masks support, and their values for other noise.
MASK_ONLY_SAMPLING = {"order": "confidence", "temperature": 0, "block": None, "remasking": "none"}
LAYER_SETTINGS = (("keyvalue", "layers"), ("keyvalue", "value_layers"), ("rank_one_edits", "layers"))


def find_error(config, files):
    """What is wrong with `config`, in one line, or None. `files` set it, the last applied first."""
    import jsonschema  # here, since jobs, which use what is above, may run without it

    schema = yaml.load(SCHEMA.read_text(encoding="utf-8"), SafeLoader)
    errors = jsonschema.Draft202012Validator(schema).iter_errors(config)
    first = min(errors, key=lambda error: list(map(str, error.absolute_path)), default=None)
    if first is not None:
        return _describe_schema_error(first, files)
    problems = itertools.chain(_find_conflicts(config), _find_missing_files(config, is_module=not files))
    for path, allowed in problems:
        return f"{_find_source(path, files, _get(config, path))}: {describe_problem(config, path, allowed)}"
    return None


def _describe_schema_error(error, files):
    path = list(error.absolute_path)
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        stray = next(key for key in error.instance if key not in known)
        source, place = _find_source([*path, stray], files), format_path([*path, stray])
        close = difflib.get_close_matches(str(stray), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{source}: {place} is not a key; {hint}"
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        allowed = _list_allowed(error.schema["properties"].get(missing, {}).get("description", "see config.yaml"))
        place = format_path(path) or "the configuration"
        return f"{_find_source(path, files)}: {place} has no {missing}; it needs one: {allowed}"
    allowed = _list_allowed(error.schema.get("description", error.message))
    if "propertyNames" in error.absolute_schema_path:
        source = _find_source([*path, error.instance], files)
        return f"{source}: {format_path(path)} has the key {error.instance!r}; allowed: {allowed}"
    source, place = _find_source(path, files, error.instance), format_path(path) or "the configuration"
    if source == "--config" and isinstance(error.instance, str) and len(path) > 1:
        allowed += " (--config passes nested values as text: write this one into a file for --configfile)"
    return f"{source}: {place} is {error.instance!r}; allowed: {allowed}"


def _list_allowed(description):
    """The allowed values in a description of the schema: "what the key means: which values are allowed"."""
    return description.rpartition(": ")[2]


def _find_conflicts(config):
    """What a schema cannot express: values that do not fit together, as (path, what is allowed there)."""
    network, sampling, models = config["network"], config["sampling"], resolve_models(config)
    if network["width"] % (2 * network["heads"]):
        yield ["network", "width"], f"a multiple of twice network.heads ({network['heads']})"
    for name, model in models.items():
        yield from _find_base_conflicts(name, model, config["models"][name])
        yield from _find_size_conflicts(config, name, model)
        yield from _find_objective_conflicts(config, name, model)
        yield from find_missing_layers(config, name, read_depth(_read_shape(model)))
    yield from _find_recipe_conflicts(config)
    if sampling["remasking"] != "none" and sampling["order"] == "random":
        yield ["sampling", "remasking"], "none, when order is random"
    if config["tracing"]["sampling_steps"] not in sampling["steps"] and any(map(is_diffusion, models.values())):
        steps = ", ".join(map(str, sampling["steps"]))
        yield ["tracing", "sampling_steps"], f"one of sampling.steps ({steps}), whose completions are traced"
    disabled = find_disabled_stages(config)
    for stage in ("keyvalue", "rank_one_edits"):
        if "tracing" in disabled and stage not in disabled:
            yield ["tracing", "max_facts"], f"0 with {stage}.max_facts 0 alone, since {stage} uses the traced peaks"
    has_control = config["data"]["source"] == "generated" and config["data"]["generated"]["control_people"]
    for i, group in enumerate(config["finetuned_edits"]["groups"]):
        if group.endswith("_control") and not has_control:
            yield ["finetuned_edits", "groups", i], "only with data.source generated and control_people above 0"
    for path in _find_infinite_numbers(config):
        yield path, "a finite number"


def _find_missing_files(config, *, is_module):
    """Words, templates and rows that do not exist, or patterns that cannot be read, as (path, what is allowed)."""
    data, models, source = config["data"], resolve_models(config).values(), config["data"]["source"]
    try:
        needed = {("data", "generated", "words"): generated.list_word_files(data["generated"]["words"])}
    except UserError as error:
        yield ["data", "generated", "words"], f"a folder of word lists ({error})"
        return
    templates = list(DIRECTIONS) if source == "generated" else []
    templates += ["mentions"] if any("mentions" in model["train_on"] for model in models) else []
    if any(model["base"] == "pretrain" for model in models):
        templates += [f"pretraining_{direction}" for direction in DIRECTIONS]
    needed["data", "generated", "templates"] = [f"{data['generated']['templates']}/{name}.txt" for name in templates]
    prefixes = {"rows": "", "pairs": "known_"}
    if source in prefixes and (folder := data[source]["templates"]):
        needed["data", source, "templates"] = [f"{folder}/{prefixes[source]}{name}.txt" for name in DIRECTIONS]
    # The rules of a workflow that imports this one may make the other files.
    for key in () if is_module else {"rows": ("train", "tests"), "pairs": ("file",)}.get(source, ()):
        needed["data", source, key] = [data[source][key]]
    for path, files in needed.items():
        for file in filter(None, files):
            if not Path(file).is_file():
                yield path, f"what exists ({file}: no such file)"


def _find_recipe_conflicts(config):
    """Training where there is nothing to train on, or none where it is needed; adapters where they cannot be."""
    pairs, untrained = config["data"]["source"] == "pairs", config["training"] == "none"
    if pairs and not untrained:
        yield ["training"], "none, when data.source is pairs: the bases are tested"
    if untrained and not pairs:
        yield ["training"], "a recipe, unless data.source is pairs"
    if config["pretraining"]["recipe"].get("adapter"):
        yield ["pretraining", "recipe", "adapter"], "null; a base is trained whole"
    if not untrained and config["training"].get("compile") and config["training"].get("adapter"):
        yield ["training", "adapter"], "null, when compile is true"


def find_missing_layers(config, name, depth):
    """Layers named in the configuration that the model `name`, with `depth` layers, does not have."""
    for section, key in LAYER_SETTINGS:
        layers = config[section][key]
        for i, layer in enumerate(layers if isinstance(layers, list) else ()):
            if layer >= depth:
                yield [section, key, i], f"up to {depth - 1}, the last layer of {name}"


def find_wide_canvases(config, name, positions, described):
    """Canvases that are wider than the `positions` of the model `name`, which errors call `described`."""
    path = _path_of(config, name, "sampling", "canvas")
    if _get(config, path) > positions:
        yield path, f"up to {described}"


def _path_of(config, name, section, key):
    """Where a setting of the model `name` is set: for the model alone, or for all in a section."""
    own = ["models", name, *([] if key == "canvas" else [section]), key]
    return [section, key] if _get(config, own) is None else own


def _read_shape(model):
    """The config.json of a model, as far as it is known before its base is made."""
    if is_built_by_workflow(model):
        shape = model["network"]
        return {"num_hidden_layers": shape["layers"], "max_position_embeddings": shape["context"]}
    file = Path(model["source"].get("folder") or "no folder") / "config.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # reported when the base is made
        return {}


def read_depth(shape):
    """How many layers a config.json gives a network; infinity if it does not say."""
    return next((shape[key] for key in DEPTH_KEYS if shape.get(key)), math.inf)


def read_positions(shape):
    """How many positions a config.json gives a network; infinity if it does not say."""
    return next((shape[key] for key in POSITION_KEYS if shape.get(key)), math.inf)


def _find_infinite_numbers(value, path=()):
    """Paths of NaN and infinite numbers, which YAML can write and no comparison rejects."""
    if isinstance(value, float) and not math.isfinite(value):
        yield list(path)
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from _find_infinite_numbers(part, (*path, key))


def _find_base_conflicts(name, model, own):
    """A folder that does not exist, unless another study makes it, and a shape for a network that has its own."""
    folder = model["source"].get("folder")
    if folder and not Path(folder).is_dir() and Path(folder).parts[0] != "results":
        yield (
            ["models", name, *([] if model["base"] == "folder" else [model["base"]]), "folder"],
            "a folder that exists",
        )
    if "network" in own and not is_built_by_workflow(model):
        yield ["models", name, "network"], "with base pretrain or scratch"


def _find_size_conflicts(config, name, model):
    """A canvas or a training width that the model's context rules out, or on which it could recall nothing."""
    canvas, context = model["canvas"], read_positions(_read_shape(model))
    described = f"network.context {context}" if is_built_by_workflow(model) else f"{context}, the positions of {name}"
    yield from find_wide_canvases(config, name, context, described)
    if not is_diffusion(model):  # its padding is not trained on
        return
    for i, length in enumerate(config["keyvalue"]["prefixes"]["lengths"]):
        if length > canvas:
            yield ["keyvalue", "prefixes", "lengths", i], f"up to the canvas of {name} ({canvas})"
    width = (model["training"] or {}).get("width", 0)
    width_path = _path_of(config, name, "training", "width")
    least, most = width if isinstance(width, list) else (width, width)
    if least > most:
        yield width_path, "the smaller number before the larger"
    if most > context:
        yield width_path, f"up to {described}"
    if 0 < most < canvas:
        allowed = f"up to {format_path(width_path)} ({most}), since a canvas wider than in training wrecks recall"
        yield _path_of(config, name, "sampling", "canvas"), allowed


def _find_objective_conflicts(config, name, model):
    """Parts of an objective that mean nothing together, or not for the model's family, base or data."""
    objective, defaults, allowed = model["objective"], asdict(Objective()), {}
    noise, sampling = objective["noise"], config["sampling"]
    if is_diffusion(model):
        allowed["masked_context"] = "0 for a diffusion model, which sees masks anyway"
    else:
        message = "for diffusion models only: an autoregressive model has no noise"
        allowed |= dict.fromkeys(("noise", "rate", "time_conditioning", "whole_entities"), message)
        if objective["protect"] == "subject_given_object":
            allowed["protect"] = "none, subject or prompt for an autoregressive model, which sees no object first"
        if objective["masked_context"]:
            allowed["protect"] = "none with a masked context, whose rows are rebuilt whole"
        if is_built_by_workflow(model) and model["network"]["positions"] != "rotary":
            yield _path_of(config, name, "network", "positions"), f"rotary for {name}, which is autoregressive"
    if noise == "gaussian" and objective["time_conditioning"] == "none":
        allowed["noise"] = "gaussian only with time_conditioning: embedded, since the network must know the noise level"
    if noise != "mask" and not is_built_by_workflow(model):
        allowed["noise"] = f"mask for a base from {model['base']}: other noise needs a base pretrained with it"
    if objective["protect"] == "none":
        allowed |= dict.fromkeys(("people", "exposure"), "only where something is protected")
    if noise != "mask" or not is_diffusion(model):
        allowed["block"] = "null: block diffusion is for diffusion models with masks"
    elif objective["block"]:
        for key in ("guidance", "block"):
            if sampling[key]:
                yield ["sampling", key], f"0 or null, since {name} is trained with blocks of its own (objective.block)"
    for key, value in MASK_ONLY_SAMPLING.items() if noise != "mask" else ():
        if sampling[key] != value:
            yield ["sampling", key], f"{'null' if value is None else value}, since {name} has {noise} noise"
    for key, message in allowed.items():
        if objective[key] != defaults[key]:
            yield ["models", name, "objective", key], message
    for kind in model["train_on"]:
        if kind not in ("facts", "reversed") and config["data"]["source"] != "generated":
            yield ["models", name, "train_on"], f"{kind} with data.source generated, which has their templates"
        elif kind == "control_mentions" and objective["people"] != "control":
            yield ["models", name, "train_on"], f"{kind} with objective.people control"


def describe_problem(config, path, allowed):
    """One line: the key at `path`, its value, and what is allowed there."""
    value = _get(config, path)
    return f"{format_path(path)} is {'given' if isinstance(value, dict) else repr(value)}; allowed: {allowed}"


def format_path(path):
    """A path in the configuration as a user writes it: sampling.steps[2]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _get(config, path, default=None):
    """The value at `path`."""
    try:
        for key in path:
            config = config[key]
    except (KeyError, IndexError, TypeError):
        return default
    return config


def _find_source(path, files, value=None):
    """The file that sets the key at `path` (to `value`, if one is given), or else the command line."""
    for file in files:
        part = _get(yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}, path, files)
        if part is not files:  # a section may come from several files; NaN differs from itself
            is_same = value is None or isinstance(value, dict) or part == value or repr(part) == repr(value)
            return file if is_same else "--config"
    return "--config"
