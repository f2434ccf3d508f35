"""Check a configuration against the schema and tell what is wrong in one line: where, what it is, what is allowed."""

import difflib
import json
import math
from pathlib import Path

import yaml

try:  # twenty times as fast, where PyYAML has libyaml; every dry run reads the schema
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "workflow/schemas/config.schema.yaml"
KEPT = ROOT / "paper/reference"
LAYERED = (("keyvalue", "layers"), ("keyvalue", "value_layers"), ("edits", "layers"))  # settings that may name layers


def complaint(config, files):
    """What is wrong with `config`, or None. `files` set it, the decisive ones first; the line names the one to mend."""
    import jsonschema  # here, since jobs, which read what is above, may run where it is not

    schema = yaml.load(SCHEMA.read_text(encoding="utf-8"), SafeLoader)
    errors = jsonschema.Draft202012Validator(schema).iter_errors(config)
    first = min(errors, key=lambda error: list(map(str, error.absolute_path)), default=None)
    if first is not None:
        return _told(first, files)
    return next((f"{_source(path, files)}: {line}" for path, line in _impossible(config)), None)


def _told(error, files):
    path = list(error.absolute_path)
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        stray = next(key for key in error.instance if key not in known)
        close = difflib.get_close_matches(str(stray), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{_source([*path, stray], files)}: {_dotted([*path, stray])} is not a key; {hint}"
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        allowed = error.schema.get("properties", {}).get(missing, {}).get("description", "see config.yaml")
        place = _dotted(path) or "the configuration"
        return f"{_source(path, files)}: {place} has no {missing}; it needs one: {allowed}"
    allowed = error.schema.get("description", error.message)
    if "propertyNames" in error.absolute_schema_path:
        source = _source([*path, error.instance], files)
        return f"{source}: {_dotted(path)} has the key {error.instance!r}; allowed: {allowed}"
    place = _dotted(path) or "the configuration"
    return f"{_source(path, files, error.instance)}: {place} is {error.instance!r}; allowed: {allowed}"


def _impossible(config):
    """What a schema cannot say: values that do not fit together, as (path, line)."""
    network = config["network"]
    if network["width"] % (2 * network["heads"]):
        even = f"network.width is {network['width']}; allowed: a multiple of twice network.heads ({network['heads']})"
        yield ["network", "width"], even
    for name, model in config["models"].items():
        yield from _absent(name, model)
        yield from _too_wide(config, name, model)
        yield from _meaningless(config, name, model)
    known, untrained = config["data"]["source"] == "pairs", config["training"] == "none"
    if known and not untrained:
        yield ["training"], "training is a recipe; allowed: none, when data.source is pairs: the bases are asked"
    if untrained and not known:
        yield (
            ["training"],
            "training is 'none'; allowed: a recipe, unless data.source is pairs: the rest tells what was taught",
        )
    for place, recipe in (
        (["training"], {} if untrained else config["training"]),
        (["pretraining", "recipe"], config["pretraining"]["recipe"]),
    ):
        if recipe.get("adapter") and (recipe.get("compile") or place != ["training"]):
            allowed = "null, when compile is true" if place == ["training"] else "null; a base is trained whole"
            yield [*place, "adapter"], f"{_dotted([*place, 'adapter'])} is {recipe['adapter']}; allowed: {allowed}"
    if config["sampling"]["remasking"] != "none" and config["sampling"]["order"] == "random":
        yield ["sampling", "remasking"], "sampling.remasking is 'low_confidence'; allowed: none, when order is random"
    steps, traced = config["sampling"]["steps"], config["tracing"]["sampling_steps"]
    if traced not in steps and any(m["family"] == "diffusion" for m in config["models"].values()):
        allowed = f"one of sampling.steps ({', '.join(map(str, steps))}), whose completions are traced"
        yield ["tracing", "sampling_steps"], f"tracing.sampling_steps is {traced}; allowed: {allowed}"
    for section, name in LAYERED:
        yield from _too_deep(config, section, name)
    protected = config["data"]["source"] == "generated" and config["data"]["generated"]["control_people"]
    for i, group in enumerate(config["finetuned_edits"]["groups"]):
        if group.endswith("_spared") and not protected:
            allowed = "only with data.source generated and control_people, whose subject an objective can protect"
            yield ["rewriting", "groups", i], f"finetuned_edits.groups[{i}] is {group!r}; allowed: {allowed}"
    for path in _unbounded(config):
        yield path, f"{_dotted(path)} is no number; allowed: a finite one"
    kept = sorted(file.parent.name for file in KEPT.glob("*/numbers.json"))
    for i, name in enumerate(config["paper"]["kept"]):
        if name not in kept:
            allowed = f"runs kept with their numbers: {', '.join(kept)}"
            yield ["paper", "kept", i], f"paper.kept[{i}] is {name!r}; allowed: {allowed}"


def _too_deep(config, section, of):
    """Layers that a model lacks; how many it has is known of networks made here and of those in a folder here."""
    layers = config[section][of]
    for name, model in config["models"].items() if isinstance(layers, list) else ():
        made_here = model["base"] in ("pretrain", "scratch")
        depth = (config["network"] | model.get("network", {}))["layers"] if made_here else math.inf
        file = Path(model["folder"]) / "config.json" if model["base"] == "folder" else None
        if file and file.is_file():
            depth = json.loads(file.read_text(encoding="utf-8")).get("num_hidden_layers", math.inf)
        for i, layer in enumerate(layers):
            if layer >= depth:
                place = [section, of, i]
                yield place, f"{_dotted(place)} is {layer}; allowed: up to {depth - 1}, the last layer of {name}"


def _unbounded(value, path=()):
    """The places of numbers that are none, or without bound: YAML has them, and no comparison refuses them."""
    if isinstance(value, float) and not math.isfinite(value):
        yield list(path)
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from _unbounded(part, (*path, key))


def _absent(name, model):
    """A folder that is to be a model's, and is not there."""
    place = ["models", name, "folder"] if model["base"] == "folder" else ["models", name, model["base"], "folder"]
    folder = model.get("folder") if model["base"] == "folder" else model.get(model["base"], {}).get("folder")
    if folder and not Path(folder).is_dir():
        yield place, f"{_dotted(place)} is {folder!r}; allowed: a folder that is there"


def _too_wide(config, name, model):
    """A canvas or a width that a model cannot have, or on which it could recall nothing."""
    canvas_at = ["models", name, "canvas"] if "canvas" in model else ["sampling", "canvas"]
    own = model.get("training", {})
    width_at = ["models", name, "training", "width"] if "width" in own else ["training", "width"]
    canvas = model.get("canvas", config["sampling"]["canvas"])
    width = (({} if config["training"] == "none" else config["training"]) | own).get("width", 0)
    made_here = model["base"] in ("pretrain", "scratch")
    context = (config["network"] | model.get("network", {}))["context"] if made_here else math.inf
    least, most = width if isinstance(width, list) else (width, width)
    if canvas > context:
        yield canvas_at, f"{_dotted(canvas_at)} is {canvas}; allowed: up to network.context {context}"
    if model["family"] == "autoregressive":  # its padding teaches nothing
        return
    for i, length in enumerate(config["keyvalue"]["prefixes"]["lengths"]):
        if length > canvas:
            place = ["keyvalue", "prefixes", "lengths", i]
            yield place, f"{_dotted(place)} is {length}; allowed: up to the canvas of {name} ({canvas})"
    if least > most or most > context:
        allowed = "the least number of tokens before the most" if least > most else f"up to network.context {context}"
        yield width_at, f"{_dotted(width_at)} is {width}; allowed: {allowed}"
    if 0 < most < canvas:
        allowed = f"up to {_dotted(width_at)} ({most}), since a wider canvas than it was trained on wrecks recall"
        yield canvas_at, f"{_dotted(canvas_at)} is {canvas}; allowed: {allowed}"


def _meaningless(config, name, model):
    """Parts of an objective that mean nothing together, or for the model's family, base or data."""
    aim = model.get("objective", {})
    noise, protect = aim.get("noise", "mask"), aim.get("protect", "none")
    wanted = {}
    if model["family"] == "autoregressive":
        wanted |= dict.fromkeys(("noise", "rate", "time"), "for diffusion alone: an autoregressive model has no noise")
        if protect == "subject_given_object":
            wanted["protect"] = "none, subject or prompt for an autoregressive model, which never sees the object first"
    if noise == "gaussian" and aim.get("time_conditioning", "none") == "none":
        wanted["noise"] = (
            "gaussian only with time_conditioning: embedded, since noise of unknown size can not be taken away"
        )
    if noise != "mask" and model["base"] not in ("pretrain", "scratch"):
        wanted["noise"] = f"mask for a base from {model['base']}: other noise needs a base pretrained with it"
    if protect == "none":
        wanted |= dict.fromkeys(("people", "exposure"), "only where something is protected")
    for key, only in MASKS_ALONE.items() if noise != "mask" else ():
        if config["sampling"][key] != only:
            told = "null" if only is None else only
            line = f"sampling.{key} is {config['sampling'][key]!r}; allowed: {told}, since {name} has {noise} noise"
            yield ["sampling", key], line
    for key, allowed in wanted.items():
        if aim.get(key, _PLAIN[key]) != _PLAIN[key]:
            place = ["models", name, "objective", key]
            yield place, f"{_dotted(place)} is {aim[key]!r}; allowed: {allowed}"
    if "mentions" in model.get("train_on", ()) and config["data"]["source"] != "generated":
        place = ["models", name, "train_on"]
        yield place, f"{_dotted(place)} has mentions; allowed: with data.source generated, whose templates they need"
    if "network" in model and model["base"] not in ("pretrain", "scratch"):
        yield ["models", name, "network"], f"models.{name}.network is given; allowed: with base pretrain or scratch"


# Choices of the sampler that only masks leave, and what they are for other noise.
MASKS_ALONE = {"order": "confidence", "temperature": 0, "block": None, "remasking": "none"}
_PLAIN = {
    "noise": "mask",
    "rate": "uniform",
    "time_conditioning": "none",
    "protect": "none",
    "people": "all",
    "exposure": 0,
}


def _dotted(path):
    """A place in the configuration as one writes it: sampling.steps[2]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _source(path, files, value=None):
    """The decisive file that sets the key at `path` (to `value`, if one is given), or else the command line."""
    for file in files:
        found = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
        try:
            for part in path:
                found = found[part]
        except (KeyError, IndexError, TypeError):
            continue
        return file if value is None or found == value else "--config"
    return "--config"
