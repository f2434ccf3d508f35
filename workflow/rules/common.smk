"""What every section of the paper uses: the validated configuration, names, and the library's files. No rules."""

import importlib
import os
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
SPLITS = ["d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse", "both_p2d", "both_d2p"]
RECALL_SPLITS = SPLITS[:4]
RANDOMIZED = [f"{split}_randomized" for split in RECALL_SPLITS]

sys.path.insert(0, str(ROOT))
# Scripts run from a copy elsewhere; this is how they find the library.
os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")])))


def validate_configuration():
    """Stop with one line if anything in the configuration is unknown, of the wrong type or impossible."""
    *given, default = map(os.path.relpath, workflow.configfiles)
    # Not an import statement: it would put a package in the place of Snakemake's own name `workflow`.
    validation = importlib.import_module("workflow.schemas.validation")
    complaint = validation.complaint(config, [*reversed(given), default])
    if complaint:
        sys.exit(f"error: {complaint}")


def hold_study():
    """Stop where another Snakemake runs the same study here; keep others out until this process ends."""
    files = importlib.import_module("workflow.reversal.files")
    if not files.hold(f".snakemake/studies/{config['study']}.held"):
        sys.exit(f"error: study {config['study']} is being run by another snakemake in this folder; wait for it to end")


def library(*modules):
    """Files of the library that a rule's results depend on: imports alone do not trigger a rerun."""
    return local([str(ROOT / f"workflow/reversal/{module}.py") for module in modules])


def models_from(base):
    """A pattern for the names of the models that start from this kind of base; matches nothing where there are none."""
    return "|".join(name for name, model in config["models"].items() if model["base"] == base) or "(?!)"


validate_configuration()
# None where a cluster has no such limit, and for reports.
CORES = workflow.resource_settings.cores or 1
# Jobs of one kind, one a model and seed, run side by side and share the cores.
SHARED_THREADS = max(1, CORES // (len(config["models"]) * len(config["seeds"])))


DATA = config["data"]
DOWNLOADED = "results/downloads/reversal_curse"
STATISTICS = config["statistics"]
TRAINED = expand("{model}/seed_{seed}", model=config["models"], seed=config["seeds"])
DIFFUSION = [name for name, model in config["models"].items() if model["family"] == "diffusion"]
AUTOREGRESSIVE = [name for name, model in config["models"].items() if model["family"] == "autoregressive"]


def data_source(wildcards):
    """What a study's data are made from: word lists and templates, a user's folder, or the download."""
    if DATA["source"] == "generated":
        made_from = DATA["generated"]
        words = ("first_names", "last_names", "roles", "deeds", "qualities", "things")
        lists = [f"{made_from['words']}/{name}.txt" for name in words]
        return local(lists + [f"{made_from['templates']}/{direction}.txt" for direction in ("p2d", "d2p")])
    given = DATA["published"]["folder"]
    return local(given) if given else f"{DOWNLOADED}/june_version_7921032488"


def is_causal(wildcards):
    """Whether a model is autoregressive."""
    return config["models"][wildcards.model]["family"] == "autoregressive"


def own_cores(wildcards):
    """All cores for a diffusion model; one for an autoregressive one, whose jobs are short and run beside others."""
    return 1 if is_causal(wildcards) else CORES


# The splits that ask about the same facts forward (for the description) and in reverse (for the name).
FORWARD_REVERSE = {
    "both": ("both_p2d", "both_d2p"),
    "p2d": ("p2d_same", "p2d_reverse"),
    "d2p": ("d2p_reverse", "d2p_same"),
}
PAIRED = [FORWARD_REVERSE[group] for group in config["keyvalue"]["groups"]]
PAIRED_SPLITS = [split for pair in PAIRED for split in pair]
STAGED = [*TRAINED, *(f"{model}/base" for model in config["models"])]


wildcard_constraints:
    stage=r"base|seed_\d+",
    model="|".join(config["models"]),
    seed=r"\d+",
    split="|".join(SPLITS),
    run="|".join(config["paper"]["kept"]) or "(?!)",
