"""What every section uses: the resolved configuration, the study's models and splits, and the library's files."""

import json
import os
import sys
from pathlib import Path

import yaml
from snakemake.utils import update_config

ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
if not ROOT.is_dir():
    sys.exit("error: rules import the library beside them; clone the project, and name its Snakefile by a path")
# Imported as a module, the workflow runs in the folder of the workflow that imports it.
IS_MODULE = not workflow.modifier.is_main_snakefile()
LIBRARY = str(ROOT / "workflow")
sys.path.insert(0, LIBRARY)
# Snakemake runs scripts from copies elsewhere; this is how they find the library.
os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, [LIBRARY, os.getenv("PYTHONPATH")])))

# Rules import of the library only what needs no network.
from reversal.common import closure, files
from reversal.data import facts
from reversal.data.facts import CONTROL_SPLITS, DIRECTIONS, TRAIN_ON
from reversal.study.resolve import find_unsupported_objective, is_diffusion, resolve_models, summarize_training
from reversal.study.resolve import merge_defaults, relocate_defaults


def validate_configuration():
    """Stop with one line if the configuration has an unknown key, a wrong type or values that do not fit together."""
    if not IS_MODULE and not Path("config.yaml").is_file():
        sys.exit("error: there is no config.yaml here; run snakemake in the project's folder, or use --directory")
    from reversal.study import configuration  # here, since jobs, which also read this file, need no validator

    config_files = [] if IS_MODULE else [*map(os.path.relpath, workflow.configfiles)][::-1]
    error = configuration.find_error(config, [*config_files[1:], *config_files[:1]])
    if error and IS_MODULE:
        error = error.replace("--config", f"module {workflow.modifier.namespace}", 1)
    if error:
        sys.exit(f"error: {error}")


def lock_study():
    """Stop if another Snakemake runs the same study here; keep others out until this process ends."""
    if not files.lock(f".snakemake/studies/{config['study']}.lock"):
        sys.exit(f"error: study {config['study']} is being run by another snakemake in this folder; wait for it to end")


def run_preflight():
    """Stop before the first job if the machine, or what is known of the models, rules out what is planned."""
    from reversal.common.errors import UserError  # here, since jobs, which also read this file, start nothing
    from reversal.paper import claims
    from reversal.study import machine, preflight

    planned = {(job.rule.name, job.wildcards.get("model")) for job in workflow.dag.needrun_jobs()}
    models = Path(rules.preflight.output[0]).parents[1]
    runs_here = workflow.local_exec and not workflow.deployment_settings.deployment_method
    gpu_limit = workflow.global_resources.get("gpu").value
    try:
        if ("evaluate_claims", None) in planned:
            claims.require_references(rules.evaluate_claims.input.claims, rules.evaluate_claims.input.reference)
        if runs_here and gpu_limit:
            machine.require_gpus(gpu_limit, config["training_processes"], machine.count_gpus())
        if not workflow.storage_settings.default_storage_provider:
            machine.require_disk_space(config, models)
        for model in MODELS:
            file, base = models / model / "preflight.json", models / model / "base"
            is_current = file.is_file() and ("preflight", model) not in planned
            measured = json.loads(file.read_text()) if is_current else {}
            if measured.keys() == set(preflight.FIELDS):  # or another version wrote it
                preflight.require_feasible(measured, config, model, base if base.is_dir() else None)
    except UserError as error:
        sys.exit(f"error: {error}")


def shipped(files):
    """The project's own file or files, wherever the workflow runs: inputs that are never looked for in a bucket."""
    return local(os.path.relpath(ROOT / files) if isinstance(files, str) else [*map(shipped, files)])


def library(script, *modules):
    """The library's files that a script imports, directly or not, and those of `modules` that it loads by name.

    Snakemake does not see imports, so rules list them as inputs. The paths are relative, so that a study can be moved.
    """
    return shipped([str(file) for file in closure.code_of(ROOT / f"workflow/scripts/{script}.py", *modules)])


def files_in(*folders):
    """The files in a user's folders, each an input: a folder's own time does not change with its files."""
    return local([str(file) for folder in folders for file in sorted(Path(folder).glob("*")) if file.is_file()])


# Every job reads this file: libyaml's loader is twenty times as fast as the one in Python.
DEFAULTS = yaml.load((ROOT / "config.yaml").read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
if IS_MODULE:  # a module gets no configuration but its own
    whole = relocate_defaults(DEFAULTS, ROOT)
    update_config(whole, config)
    config.update(whole)
merged = merge_defaults(config, DEFAULTS)
config.clear()
config.update(merged)
if workflow.is_main_process:
    validate_configuration()

FIRST_OF_ALL = 10  # priority of jobs that can find errors: they run before anything is trained
CORES = workflow.resource_settings.cores or 1  # None on a cluster without a limit, and for reports
MODELS = resolve_models(config)
FAMILIES = {name: model["family"] for name, model in MODELS.items()}
DIFFUSION = [name for name, model in MODELS.items() if is_diffusion(model)]
# Models with other noise, time conditioning or blocks are tested for their recall alone.
ONLY_MASKS = not any(map(find_unsupported_objective, MODELS.values()))
# Jobs of one kind, one per model and seed, run side by side and share the cores.
SHARED_THREADS = max(1, CORES // (len(MODELS) * len(config["seeds"])))
FIRST_SEED = config["seeds"][0]
TRAINED = expand("{model}/seed_{seed}", model=MODELS, seed=config["seeds"])
FIRST = expand("{model}/seed_{seed}", model=MODELS, seed=FIRST_SEED)
UNTRAINED = config["training"] == "none"  # the bases are tested on facts that they may know
STAGES = TRAINED if UNTRAINED else [*TRAINED, *(f"{model}/base" for model in MODELS)]

DATA = config["data"]
SPLITS = facts.KNOWN if UNTRAINED else facts.SPLITS
RECALL_SPLITS = tuple(SPLITS) if UNTRAINED else facts.RECALL_SPLITS
TRACED_SPLITS = list(SPLITS) if UNTRAINED else config["tracing"]["splits"]
HAS_CONTROL = DATA["source"] == "generated" and DATA["generated"]["control_people"] > 0
LIKELIHOOD_SPLITS = [*RECALL_SPLITS, *(CONTROL_SPLITS if HAS_CONTROL else [])]
COMPLETED_SPLITS = list(dict.fromkeys([*LIKELIHOOD_SPLITS, *TRACED_SPLITS]))
ALL_SPLITS = list(dict.fromkeys([*SPLITS, *LIKELIHOOD_SPLITS, *(f"{split}_randomized" for split in LIKELIHOOD_SPLITS)]))


def is_causal(wildcards):
    """Whether a job's model is autoregressive."""
    return FAMILIES[wildcards.model] == "autoregressive"


def setting(key):
    """A function of a job's wildcards: one setting of its model, as resolved."""
    return lambda wildcards: MODELS[wildcards.model][key]


def require_mask_model(wildcards):
    """The folder of a model to be traced or edited, which puts masks into a canvas; stop if it knows other noise."""
    name = wildcards.model
    if key := find_unsupported_objective(MODELS[name]):
        value = MODELS[name]["objective"][key]
        sys.exit(
            f"error: models.{name}.objective.{key} is {value}; only recall can be measured, by the target "
            "`objectives`: tracing, keys and values, edits and the post support masks on whole rows, without times"
        )
    return f"<results>/models/{name}/{wildcards.get('stage') or f'seed_{wildcards.seed}'}"


def split_pairs(groups):
    """For each group, the two splits about its people: asking for the description, and for the name."""
    return [facts.select_splits(group) for group in (["known"] if UNTRAINED else groups)]


def split_files(pairs):
    """The files of the splits in pairs of splits."""
    return expand("<results>/data/{split}.jsonl", split=[split for pair in pairs for split in pair])


def model_splits(splits):
    """A function of a job's wildcards: the files of `splits`, without control people if its model protects nobody."""

    def select(wildcards):
        protects = MODELS[wildcards.model]["objective"]["protect"] != "none"
        names = [split for split in splits if protects or split.removesuffix("_randomized") not in CONTROL_SPLITS]
        return expand("<results>/data/{split}.jsonl", split=names)

    return select


def word_and_template_files(templates):
    """The word lists, and the files of the named `templates`."""
    generated = DATA["generated"]
    words = [f"{generated['words']}/{name}.txt" for name in WORD_LISTS]
    return local(words + [f"{generated['templates']}/{name}.txt" for name in templates])


def data_source(wildcards):
    """What a study's data are made from: word lists and templates, a user's files, or the download."""
    if DATA["source"] == "generated":
        return word_and_template_files([*DIRECTIONS, "mentions"])
    if DATA["source"] == "pairs":
        pairs = DATA["pairs"]
        csv = local(pairs["file"]) if pairs["file"] else f"{DOWNLOADS}/parent_child_pairs.csv"
        return [csv, *local([f"{pairs['templates']}/known_{direction}.txt" for direction in DIRECTIONS])]
    if DATA["source"] == "rows":
        rows = DATA["rows"]
        templates = [f"{rows['templates']}/{direction}.txt" for direction in DIRECTIONS] if rows["templates"] else []
        return local([rows["train"], rows["tests"], *templates])
    if folder := DATA["berglund"]["folder"]:
        return files_in(folder, f"{folder}/templates", f"{folder}/../templates")
    return BERGLUND


def models_from(base):
    """A pattern for the names of the models that start from this kind of base; matches nothing if there are none."""
    return "|".join(name for name, model in MODELS.items() if model["base"] == base) or "(?!)"


def source_files(wildcards):
    """The local files that a model's base is made from."""
    source = MODELS[wildcards.model]["source"]
    paths = [source[part]["path"] for part in ("weights", "tokenizer") if "path" in source.get(part, {})]
    return files_in(source["folder"]) if source.get("folder") else local(paths)


def tokenizer_and_base(wildcards):
    """A model's tokenizer, and its base unless that is pretrained here, which takes hours."""
    folder = f"<results>/models/{wildcards.model}"
    if MODELS[wildcards.model]["base"] == "pretrain":
        return {"tokenizer": f"{folder}/tokenizer"}
    return {"tokenizer": f"{folder}/base", "base": f"{folder}/base"}


def training_files(wildcards):
    """The files of rows that a model is trained on, in the order of `train_on`."""
    return [f"<results>/data/{TRAIN_ON[kind]}.jsonl" for kind in MODELS[wildcards.model]["train_on"]]


def control_facts(wildcards):
    """The file that says who the control people are, if the model's objective protects them."""
    return "<results>/data/facts.jsonl" if MODELS[wildcards.model]["objective"]["people"] == "control" else []


def peaks_of(model, stage):
    """The file of a model's peaks in tracing; a base has those of its first fine-tuning."""
    return f"<results>/peaks/{model}/{f'seed_{FIRST_SEED}' if stage == 'base' else stage}.json"


def value_layers(wildcards):
    """The layers at which values are optimised: none for a base, which does not know the facts."""
    return [] if wildcards.stage == "base" and not UNTRAINED else config["keyvalue"]["value_layers"]


def peaks_if_needed(wildcards):
    """The file of peaks, if the layers of keys or values depend on it."""
    choices = [config["keyvalue"]["layers"], value_layers(wildcards)]
    return [] if all(choice in ("all", []) for choice in choices) else peaks_of(wildcards.model, wildcards.stage)


def provenance_of(wildcards, input):
    """{file: [rule, script]} of each input that a rule of this workflow makes."""
    makers = [rule for rule in workflow.rules if rule.script]
    return {
        str(file): [rule.name, rule.script.replace("..", "workflow", 1)]
        for file in input
        for rule in makers
        if any(output.match(file) for output in rule.output)
    }


wildcard_constraints:
    stage=r"base|seed_\d+",
    model="|".join(MODELS),
    seed=r"\d+",
    split="|".join(SPLITS),
