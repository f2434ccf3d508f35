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
    MASK_ONLY_SAMPLING,
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
    return next((f"{_find_source(path, files, _get(config, path))}: {line}" for path, line in problems), None)


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
    """What a schema cannot express: values that do not fit together, as (path, line)."""
    network = config["network"]
    if network["width"] % (2 * network["heads"]):
        allowed = f"a multiple of twice network.heads ({network['heads']})"
        yield ["network", "width"], f"network.width is {network['width']}; allowed: {allowed}"
    for name, model in resolve_models(config).items():
        yield from _find_missing_folder(name, model)
        yield from _find_size_conflicts(config, name, model)
        yield from _find_objective_conflicts(config, name, model)
        yield from find_missing_layers(config, name, read_depth(_read_shape(model)))
    yield from _find_recipe_conflicts(config)
    sampling = config["sampling"]
    if sampling["remasking"] != "none" and sampling["order"] == "random":
        yield ["sampling", "remasking"], "sampling.remasking is 'low_confidence'; allowed: none, when order is random"
    steps, traced = sampling["steps"], config["tracing"]["sampling_steps"]
    if traced not in steps and any(map(is_diffusion, config["models"].values())):
        allowed = f"one of sampling.steps ({', '.join(map(str, steps))}), whose completions are traced"
        yield ["tracing", "sampling_steps"], f"tracing.sampling_steps is {traced}; allowed: {allowed}"
    disabled = find_disabled_stages(config)
    for stage in ("keyvalue", "rank_one_edits"):
        if "tracing" in disabled and stage not in disabled:
            line = f"tracing.max_facts is 0; allowed: with {stage}.max_facts 0 too, since {stage} uses the traced peaks"
            yield ["tracing", "max_facts"], line
    has_control = config["data"]["source"] == "generated" and config["data"]["generated"]["control_people"]
    for i, group in enumerate(config["finetuned_edits"]["groups"]):
        if group.endswith("_control") and not has_control:
            place = ["finetuned_edits", "groups", i]
            allowed = "only with data.source generated and control_people above 0"
            yield place, f"{format_path(place)} is {group!r}; allowed: {allowed}"
    for path in _find_infinite_numbers(config):
        yield path, f"{format_path(path)} is no number; allowed: a finite one"


def _find_missing_files(config, *, is_module):
    """Words, templates and rows that do not exist, or patterns that cannot be read."""
    data, models, source = config["data"], resolve_models(config).values(), config["data"]["source"]
    place = ["data", "generated", "words"]
    try:
        needed = {(*place,): generated.list_word_files(data["generated"]["words"])}
    except UserError as error:
        yield place, f"{format_path(place)}: {error}"
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
    needed["probe", "file"] = [config["probe"]["file"]]
    for place, paths in needed.items():
        for path in filter(None, paths):
            if not Path(path).is_file():
                yield place, f"{format_path(place)}: {path}: no such file; add it, or change {format_path(place)}"


def _find_recipe_conflicts(config):
    """Training where there is nothing to train on, or none where it is needed; adapters where they cannot be."""
    pairs, untrained = config["data"]["source"] == "pairs", config["training"] == "none"
    if pairs and not untrained:
        yield ["training"], "training is a recipe; allowed: none, when data.source is pairs: the bases are tested"
    if untrained and not pairs:
        yield ["training"], "training is 'none'; allowed: a recipe, unless data.source is pairs"
    recipes = [(["pretraining", "recipe"], config["pretraining"]["recipe"], "null; a base is trained whole")]
    if not untrained and config["training"].get("compile"):
        recipes.append((["training"], config["training"], "null, when compile is true"))
    for place, recipe, allowed in recipes:
        if recipe.get("adapter"):
            line = f"{format_path([*place, 'adapter'])} is {recipe['adapter']}; allowed: {allowed}"
            yield [*place, "adapter"], line


def find_missing_layers(config, name, depth):
    """Layers named in the configuration that the model `name`, with `depth` layers, does not have: (path, line)."""
    for section, key in LAYER_SETTINGS:
        layers = config[section][key]
        for i, layer in enumerate(layers if isinstance(layers, list) else ()):
            if layer >= depth:
                place = [section, key, i]
                yield place, f"{format_path(place)} is {layer}; allowed: up to {depth - 1}, the last layer of {name}"


def find_wide_canvases(config, name, positions, described):
    """Canvases that are wider than the `positions` of the model `name`, which errors call `described`: (path, line)."""
    place = ["models", name, "canvas"] if "canvas" in config["models"][name] else ["sampling", "canvas"]
    canvas = config["models"][name].get("canvas", config["sampling"]["canvas"])
    ablated = enumerate(
        config["ablations"]["factors"].get("canvas", ()) if is_diffusion(config["models"][name]) else ()
    )
    for path, value in ((place, canvas), *((["ablations", "factors", "canvas", i], value) for i, value in ablated)):
        if value > positions:
            yield path, f"{format_path(path)} is {value}; allowed: up to {described}"


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


def _find_missing_folder(name, model):
    """A model's folder that does not exist, unless another study makes it."""
    place = ["models", name, *([] if model["base"] == "folder" else [model["base"]]), "folder"]
    folder = model["source"].get("folder")
    if folder and not Path(folder).is_dir() and Path(folder).parts[0] != "results":
        yield place, f"{format_path(place)} is {folder!r}; allowed: a folder that exists"


def _find_size_conflicts(config, name, model):
    """A canvas or a training width that the model's context rules out, or on which it could recall nothing."""
    model_config, canvas = config["models"][name], model["canvas"]
    canvas_at = ["models", name, "canvas"] if "canvas" in model_config else ["sampling", "canvas"]
    width_at = (
        ["models", name, "training", "width"] if "width" in model_config.get("training", {}) else ["training", "width"]
    )
    context = read_positions(_read_shape(model))
    described = f"network.context {context}" if is_built_by_workflow(model) else f"{context}, the positions of {name}"
    yield from find_wide_canvases(config, name, context, described)
    if not is_diffusion(model):  # its padding is not trained on
        return
    for i, length in enumerate(config["keyvalue"]["prefixes"]["lengths"]):
        if length > canvas:
            place = ["keyvalue", "prefixes", "lengths", i]
            yield place, f"{format_path(place)} is {length}; allowed: up to the canvas of {name} ({canvas})"
    width = (model["training"] or {}).get("width", 0)
    least, most = width if isinstance(width, list) else (width, width)
    if least > most or most > context:
        allowed = "the smaller number before the larger" if least > most else f"up to {described}"
        yield width_at, f"{format_path(width_at)} is {width}; allowed: {allowed}"
    if 0 < most < canvas:
        allowed = f"up to {format_path(width_at)} ({most}), since a canvas wider than in training wrecks recall"
        yield canvas_at, f"{format_path(canvas_at)} is {canvas}; allowed: {allowed}"


def _find_objective_conflicts(config, name, model):
    """Parts of an objective that mean nothing together, or not for the model's family, base or data."""
    objective, defaults, allowed = model["objective"], asdict(Objective()), {}
    if not is_diffusion(model):
        message = "for diffusion models only: an autoregressive model has no noise"
        allowed |= dict.fromkeys(("noise", "rate", "time_conditioning", "whole_entities"), message)
        if objective["protect"] == "subject_given_object":
            allowed["protect"] = "none, subject or prompt for an autoregressive model, which sees no object first"
        if objective["masked_context"]:
            allowed["protect"] = "none with a masked context, whose rows are rebuilt whole"
    else:
        allowed["masked_context"] = "0 for a diffusion model, which sees masks anyway"
    noise = objective["noise"]
    if noise == "gaussian" and objective["time_conditioning"] == "none":
        allowed["noise"] = "gaussian only with time_conditioning: embedded, since the network must know the noise level"
    if noise != "mask" and not is_built_by_workflow(model):
        allowed["noise"] = f"mask for a base from {model['base']}: other noise needs a base pretrained with it"
    if objective["protect"] == "none":
        allowed |= dict.fromkeys(("people", "exposure"), "only where something is protected")
    if noise != "mask" or not is_diffusion(model):
        allowed["block"] = "null: block diffusion is for diffusion models with masks"
    for key in ("guidance", "block") if objective["block"] and "block" not in allowed else ():
        if config["sampling"][key]:
            shown = "0" if key == "guidance" else "null"
            line = f"allowed: {shown}, since {name} is trained with blocks of its own (objective.block)"
            yield ["sampling", key], f"sampling.{key} is {config['sampling'][key]}; {line}"
    for key, value in MASK_ONLY_SAMPLING.items() if noise != "mask" else ():
        if config["sampling"][key] != value:
            shown = "null" if value is None else value
            line = f"sampling.{key} is {config['sampling'][key]!r}; allowed: {shown}, since {name} has {noise} noise"
            yield ["sampling", key], line
    for key, message in allowed.items():
        if objective[key] != defaults[key]:
            place = ["models", name, "objective", key]
            yield place, f"{format_path(place)} is {objective[key]!r}; allowed: {message}"
    place = ["models", name, "train_on"]
    for kind in model["train_on"]:
        if kind not in ("facts", "reversed") and config["data"]["source"] != "generated":
            allowed = "with data.source generated, which has their templates"
            yield place, f"{format_path(place)} has {kind}; allowed: {allowed}"
        elif kind == "control_mentions" and objective["people"] != "control":
            yield place, f"{format_path(place)} has {kind}; allowed: with objective.people control"
    if is_built_by_workflow(model) and model["network"]["positions"] != "rotary" and not is_diffusion(model):
        place = ["models", name, "network", "positions"]
        yield (
            place,
            f"{format_path(place)} is {model['network']['positions']!r}; allowed: rotary for {name}, "
            "which is autoregressive",
        )
    if "network" in config["models"][name] and not is_built_by_workflow(model):
        yield ["models", name, "network"], f"models.{name}.network is given; allowed: with base pretrain or scratch"


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
