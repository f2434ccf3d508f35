"""What every section uses: the resolved configuration, the study's models and splits, and the library's files."""

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from snakemake.utils import update_config


def find_project(rules):
    """The folder with the project's files, two above that of the `rules`.

    If a module takes the rules from a git repository, by github(…) or as snakedeploy writes it, the project's files of
    that commit are put into .snakemake/projects, once.
    """
    if hasattr(rules, "path_or_uri"):
        sys.exit(f"error: {rules}: give the workflow as github(…) with a tag, or by the path of a clone")
    if not hasattr(rules, "ref"):
        return Path(rules.get_path_or_uri(secret_free=True)).parents[1]
    repository = getattr(rules, "repo_path", None) or rules.hosted_repo.repo_clone
    git = ["git", "-C", str(repository)]
    commit = subprocess.check_output([*git, "rev-parse", f"{rules.ref}^{{commit}}"], text=True).strip()
    project = Path(".snakemake/projects", commit).resolve()
    if not project.is_dir():
        project.parent.mkdir(parents=True, exist_ok=True)
        draft = tempfile.mkdtemp(dir=project.parent)  # another process may do the same
        files = subprocess.check_output([*git, "archive", commit])
        subprocess.run(["tar", "-x", "-C", draft], input=files, check=True)
        try:
            os.rename(draft, project)
        except OSError:
            shutil.rmtree(draft)
    return project


ROOT = find_project(workflow.current_basedir)
# Imported as a module, the workflow runs in the folder of the workflow that imports it.
IS_MODULE = not workflow.modifier.is_main_snakefile()
LIBRARY = str(ROOT / "workflow")
sys.path.insert(0, LIBRARY)
# Snakemake runs scripts from copies elsewhere; this is how they find the library.
os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, [LIBRARY, os.getenv("PYTHONPATH")])))

# Rules import of the library only what needs no network.
from reversal.common import closure, files
from reversal.data import facts, generated
from reversal.data.facts import CONTROL_SPLITS, DIRECTIONS, TRAIN_ON
from reversal.study.resolve import find_disabled_stages, find_unsupported_objective, is_diffusion, resolve_models
from reversal.study.resolve import merge_defaults, relocate_defaults, summarize_training


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
    DEFAULTS = relocate_defaults(DEFAULTS, ROOT)
    whole = copy.deepcopy(DEFAULTS)
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
STORES = [name for name, model in MODELS.items() if model["store"]]  # networks of known storage
DIFFUSION = [name for name, model in MODELS.items() if is_diffusion(model)]
DISABLED_STAGES = find_disabled_stages(config)
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


wildcard_constraints:
    stage=r"base|seed_\d+",
    model="|".join(MODELS),
    seed=r"\d+",
    split="|".join(SPLITS),
