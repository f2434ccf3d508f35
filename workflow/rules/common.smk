"""What every section of the paper uses: the validated configuration, names, and the library's files. No rules."""

import copy
import json
import os
import sys
from pathlib import Path

import yaml
from snakemake.utils import update_config

ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
if not ROOT.is_dir():
    sys.exit("error: rules import the library beside them; clone the project, and name its Snakefile by a path")
# By another workflow, as a module; that one's folder is where everything runs.
IMPORTED = not workflow.modifier.is_main_snakefile()
LIBRARY = str(ROOT / "workflow")
sys.path.insert(0, LIBRARY)
# Scripts run from a copy elsewhere; this is how they find the library.
os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, [LIBRARY, os.getenv("PYTHONPATH")])))

# Of the library, rules import only what needs no network.
from reversal.common import closure, files
from reversal.data import facts
from reversal.data.facts import DIRECTIONS, TRAIN_ON, CONTROL_SPLITS


def validate_configuration():
    """Stop with one line if anything in the configuration is unknown, of the wrong type or impossible."""
    if not IMPORTED and not Path("config.yaml").is_file():
        sys.exit(
            "error: config.yaml is not in this folder; run snakemake in the project's, or name it with --directory"
        )
    from reversal.common import configuration  # here, since jobs, which also read this file, need not load a validator

    if IMPORTED:
        complaint = configuration.complaint(config, [])
        complaint = complaint and complaint.replace("--config", f"module {workflow.modifier.namespace}", 1)
    else:
        *given, default = map(os.path.relpath, workflow.configfiles)
        complaint = configuration.complaint(config, [*reversed(given), default])
    if complaint:
        sys.exit(f"error: {complaint}")


def ordered(given, like):
    """A configuration with its keys in the order of another: a study's own order is no change that reruns anything.

    Numbers that --config nests, as in sampling={guidance: 0.4}, come as texts and are read as what they are.
    """
    if isinstance(given, dict) and isinstance(like, dict):
        return {key: ordered(given[key], like.get(key)) for key in [*(k for k in like if k in given), *given]}
    if (
        isinstance(given, str)
        and isinstance(like, int | float)
        and isinstance(found := yaml.safe_load(given), int | float)
    ):
        return found
    return given


def from_here(default):
    """The default configuration, its folders that ship with the project as paths from the working directory."""
    found = copy.deepcopy(default)
    data = found["data"]
    for section in (data["generated"], data["pairs"], *found["models"].values()):
        for key in section.keys() & {"words", "templates", "folder"}:
            section[key] = os.path.relpath(ROOT / section[key])
    return found


def shipped(files):
    """The project's own file or files, wherever the workflow is run: inputs that are never looked for in a bucket."""
    return local(os.path.relpath(ROOT / files) if isinstance(files, str) else [*map(shipped, files)])


def lock_study():
    """Stop where another Snakemake runs the same study here; keep others out until this process ends."""
    if not files.hold(f".snakemake/studies/{config['study']}.held"):
        sys.exit(f"error: study {config['study']} is being run by another snakemake in this folder; wait for it to end")


def preflight():
    """Stop before the first job where the machine, or what is known of the models, rules out what is to be made."""
    from reversal.common import errors, machine  # here, since jobs, which also read this file, never start anything
    from reversal.paper import draft
    from reversal.training import needs

    planned = {(job.rule.name, job.wildcards.get("model")) for job in workflow.dag.needrun_jobs()}
    models = Path(rules.preflight.output[0]).parents[1]
    here = workflow.local_exec and not workflow.deployment_settings.deployment_method
    limit = workflow.global_resources.get("gpu").value
    try:
        if here and limit:
            machine.require_gpus(limit, config["training_processes"], machine.gpus())
        if not workflow.storage_settings.default_storage_provider:
            machine.require_room(config, models)
        if ("post", None) in planned or ("page", None) in planned:
            draft.require(os.path.relpath(ROOT / "paper"), [drawn.like or name for name, drawn in FIGURES.items()])
        for model in config["models"]:
            measured = models / model / "preflight.json"
            known = json.loads(measured.read_text()) if measured.is_file() and ("preflight", model) not in planned else {}
            if known.keys() == set(needs.FIELDS):  # or it is of another version
                base = models / model / "base"
                needs.require(known, config, model, base if base.is_dir() else None)
    except errors.UserError as error:
        sys.exit(f"error: {error}")


def library(script, *modules):
    """The library's files that a script's result rests on, and those of modules that it loads by name.

    Imports alone do not trigger a rerun. The paths are relative, so that a study can be moved with its folder.
    """
    found = closure.code_of(ROOT / f"workflow/scripts/{script}.py", *modules)
    return shipped([str(file) for file in found])


# Every job reads this file: libyaml's loader is twenty times as fast as the one in Python.
DEFAULT = yaml.load((ROOT / "config.yaml").read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
if IMPORTED:
    # A module's configuration is all that it gets: what is not said is as in config.yaml.
    whole = from_here(DEFAULT)
    update_config(whole, config)
    config.update(whole)
in_order = ordered(config, DEFAULT)
config.clear()
config.update(in_order)
if workflow.is_main_process:
    validate_configuration()
# What can be refused is made before anything is trained, so that mistakes are told in the first minutes.
FIRST_OF_ALL = 10
# None where a cluster has no such limit, and for reports.
CORES = workflow.resource_settings.cores or 1
# Jobs of one kind, one a model and seed, run side by side and share the cores.
SHARED_THREADS = max(1, CORES // (len(config["models"]) * len(config["seeds"])))


def pairs_of(groups):
    """The splits that ask about the same people forward and in reverse, for each group; or about those whom bases know."""
    return [facts.both_ways(group) for group in (["known"] if KNOWN else groups)]


FAMILIES = {name: model["family"] for name, model in config["models"].items()}
DIFFUSION = [name for name, family in FAMILIES.items() if family == "diffusion"]
# Models that are taught to undo other noise than masks, or are told the time: what of it is other.
OTHER_NOISE = {
    name: f"{key}: {value}"
    for name, model in config["models"].items()
    for key, value in model.get("objective", {}).items()
    if (key == "noise" and value != "mask") or (key == "time" and value != "none")
}
FIRST_SEED = config["seeds"][0]
TRAINED = expand("{model}/seed_{seed}", model=FAMILIES, seed=config["seeds"])
FIRST = expand("{model}/seed_{seed}", model=FAMILIES, seed=FIRST_SEED)
DATA = config["data"]
# Only on the very set that SMDM was measured on do its values stand beside ours.
BESIDE_SMDM = DATA["source"] == "berglund"
DOWNLOADED = "results/downloads/reversal_curse"
WORD_LISTS = ("first_names", "last_names", "roles", "deeds", "qualities", "things")
PRETRAINING = ("pretraining_p2d", "pretraining_d2p")  # templates
# The study's questions: about people who are taught, or about what the bases know already.
KNOWN = DATA["source"] == "pairs"
SPLITS = facts.KNOWN if KNOWN else facts.SPLITS
RECALL_SPLITS = tuple(SPLITS) if KNOWN else facts.RECALL_SPLITS
TRACED_SPLITS = list(SPLITS) if KNOWN else config["tracing"]["splits"]
# People whom an objective can protect are generated.
CONTROL_SPLITS = list(CONTROL_SPLITS) if DATA["source"] == "generated" and DATA["generated"]["control_people"] else []
COMPARED_SPLITS = [*RECALL_SPLITS, *CONTROL_SPLITS]  # by likelihood too
ANSWERED_SPLITS = list(dict.fromkeys([*COMPARED_SPLITS, *TRACED_SPLITS]))
ALL_SPLITS = [*SPLITS, *CONTROL_SPLITS, *(f"{split}_randomized" for split in COMPARED_SPLITS)]
PAIRED = pairs_of(config["keyvalue"]["groups"])
EDITED_GROUPS = ["known"] if KNOWN else ["both", "p2d"]
EDITED = pairs_of(EDITED_GROUPS)
REWRITTEN = pairs_of(config["finetuned_edits"]["groups"])
UNTRAINED = config["training"] == "none"
STAGED = TRAINED if UNTRAINED else [*TRAINED, *(f"{model}/base" for model in FAMILIES)]
READ = {kind for model in config["models"].values() for kind in model.get("train_on", ["facts"])}
REWRITTEN_MODELS = STAGED if config["finetuned_edits"]["bases"] else TRAINED


def is_causal(wildcards):
    """Whether a model is autoregressive."""
    return FAMILIES[wildcards.model] == "autoregressive"


def lists(templates):
    """The word lists and some files of templates, by their names."""
    made_from = DATA["generated"]
    words = [f"{made_from['words']}/{name}.txt" for name in WORD_LISTS]
    return local(words + [f"{made_from['templates']}/{name}.txt" for name in templates])


def files_in(*folders):
    """The files in folders that a user gives: each is an input, since a folder's own time does not change with them."""
    return local([str(file) for folder in folders for file in sorted(Path(folder).glob("*")) if file.is_file()])


def data_source(wildcards):
    """What a study's data are made from: word lists and templates, a user's files, or the download."""
    if DATA["source"] == "generated":
        return lists([*DIRECTIONS, "mentions"])
    if DATA["source"] == "pairs":
        own = DATA["pairs"]
        csv = local(own["file"]) if own["file"] else f"{DOWNLOADED}/parent_child_pairs.csv"
        return [csv, *local([f"{own['templates']}/known_{direction}.txt" for direction in DIRECTIONS])]
    if DATA["source"] == "rows":
        own = DATA["rows"]
        made = [f"{own['templates']}/{direction}.txt" for direction in DIRECTIONS] if own["templates"] else []
        return local([own["train"], own["tests"], *made])
    if given := DATA["berglund"]["folder"]:
        return files_in(given, f"{given}/templates", f"{given}/../templates")
    return f"{DOWNLOADED}/june_version_7921032488"


def own_files(wildcards):
    """The local files that an SMDM checkpoint is converted from."""
    sources = config["models"][wildcards.model]["lit_gpt"]
    return local([sources[part]["path"] for part in ("weights", "tokenizer") if "path" in sources[part]])


def checkpoint_files(wildcards):
    """The files of a published checkpoint that is in a folder here."""
    model = config["models"][wildcards.model]
    folder = model[model["base"]].get("folder")
    return files_in(folder) if folder else []


def models_from(base):
    """A pattern for the names of the models that start from this kind of base; matches nothing where there are none."""
    return "|".join(name for name, model in config["models"].items() if model["base"] == base) or "(?!)"


def tokenizer_and_base(wildcards):
    """A model's tokenizer, and its base, unless that is pretrained: which takes hours, and its tokenizer does not."""
    folder = f"<results>/models/{wildcards.model}"
    if config["models"][wildcards.model]["base"] == "pretrain":
        return {"tokenizer": f"{folder}/tokenizer"}
    return {"tokenizer": f"{folder}/base", "base": f"{folder}/base"}


def own_canvas(wildcards):
    """How many tokens a model has for prompt and answer: its own number, or the study's."""
    return config["models"][wildcards.model].get("canvas", config["sampling"]["canvas"])


def own_sampling(wildcards):
    """How a model's answers are drawn: an autoregressive one's greedily, whatever the sampler's other settings."""
    canvas = {"canvas": own_canvas(wildcards)}
    return canvas if is_causal(wildcards) else config["sampling"] | canvas


def own_recipe(wildcards):
    """How a model is fine-tuned: as the study says, but for what it has of its own."""
    model = config["models"][wildcards.model]
    return config["training"] | model.get("training", {})


def own_shape(wildcards):
    """The shape of a network made here: the study's, but for what it has of its own."""
    return config["network"] | config["models"][wildcards.model].get("network", {})


def own_objective(wildcards):
    """What a model learns to predict."""
    return config["models"][wildcards.model].get("objective", {})


def looked_into(wildcards):
    """The folder of a model to be traced, edited or rewritten: all of these put masks into a canvas.

    Stops before anything runs where a model knows other noise, or is told the time.
    """
    name = wildcards.model
    if name in OTHER_NOISE:
        sys.exit(
            f"error: models.{name}.objective has {OTHER_NOISE[name]}: only its recall can be asked for, by the target "
            "`objectives`; tracing, keys, edits and the post know masks, and no time"
        )
    return f"<results>/models/{name}/{wildcards.get('stage') or f'seed_{wildcards.seed}'}"


def own_rows(wildcards):
    """The files of rows that a model is taught, in the order of what it reads."""
    return [f"<results>/data/{TRAIN_ON[kind]}.jsonl" for kind in own_reading(wildcards)]


def own_reading(wildcards):
    """What kinds of rows a model is taught."""
    return config["models"][wildcards.model].get("train_on", ["facts"])


def taught(model):
    """What a model is taught and how: the first columns of the table of objectives."""
    told = config["models"][model]
    return {
        "family": told["family"],
        **{"noise": "mask", "rate": "uniform", "protect": "none", "people": "all", "exposure": 0, "time_conditioning": "none"},
        **told.get("objective", {}),
        "train_on": "+".join(told.get("train_on", ["facts"])),
        "epochs": 0 if UNTRAINED else (config["training"] | told.get("training", {}))["epochs"],
        "layers": (config["network"] | told.get("network", {}))["layers"],
        "width": (config["network"] | told.get("network", {}))["width"],
    }


def own_splits(splits):
    """A function of a model's wildcards: the files of splits, without control people where it protects nobody."""

    def files(wildcards):
        protects = own_objective(wildcards).get("protect", "none") != "none"
        asked = [split for split in splits if protects or split.removesuffix("_randomized") not in CONTROL_SPLITS]
        return expand("<results>/data/{split}.jsonl", split=asked)

    return files


def control_people(wildcards):
    """The file that tells whom a model's objective protects, where it protects some by name."""
    return "<results>/data/facts.jsonl" if own_objective(wildcards).get("people") == "protected" else []


def splits_of(pairs):
    """The files of the splits in pairs of splits."""
    return expand("<results>/data/{split}.jsonl", split=[split for pair in pairs for split in pair])


def peaks_of(model, stage):
    """Where tracing found a model's peaks; a base is looked at where its first fine-tuning has them."""
    return f"<results>/peaks/{model}/{f'seed_{FIRST_SEED}' if stage == 'base' else stage}.json"


def peaks_to_look_at(wildcards):
    """What tells where to read and to seek values, unless that is everywhere."""
    chosen = [config["keyvalue"]["layers"], value_layers_of(wildcards)]
    return [] if all(one in ("all", []) for one in chosen) else peaks_of(wildcards.model, wildcards.stage)


def value_layers_of(wildcards):
    """The layers to seek values at: as configured once fine-tuned; of a base, which does not know the facts, none."""
    return [] if wildcards.stage == "base" and not UNTRAINED else config["keyvalue"]["value_layers"]


def makers(wildcards, input):
    """What made each file of the results: the name in the workflow, and the script."""
    found = {}
    for file in input:
        for maker in workflow.rules:
            if maker.script and any(output.match(file) for output in maker.output):
                found[str(file)] = [maker.name, maker.script.replace("..", "workflow", 1)]
    return found


wildcard_constraints:
    stage=r"base|seed_\d+",
    model="|".join(FAMILIES),
    seed=r"\d+",
    split="|".join(SPLITS),
