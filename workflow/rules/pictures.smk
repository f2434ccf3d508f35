"""What the figures' rules share: the names of the figures, and the files of each. No rules."""

import json

FAMILIES = {name: model["family"] for name, model in config["models"].items()}
EXAMPLES = expand("{model}/seed_{seed}", model=DIFFUSION[:1], seed=config["seeds"][:1])
DRAWING = ["facts"] + [f"figures/{part}" for part in ("__init__", "read", "sheet", "style")]

FIGURES_RECALL = ["reversal_curse", "probe", "dataset", "training_curves", "step_scaling"]
FIGURES_RECALL += ["canvas", "denoising_step", "timeline"] if DIFFUSION else []
FIGURES_TRACING = ["trace_facts", "trace_average", *(["trace_steps"] if DIFFUSION else [])]
FIGURES_SYMMETRY = ["symmetry_pca", "symmetry_spectra", "symmetry_layers", "symmetry_retrieval"]
FIGURES_EDITS = ["edits"]
FIGURES_KEPT = expand("{run}_{figure}", run=config["paper"]["kept"], figure=["step_scaling", "trace_average"])
FIGURES = FIGURES_RECALL + FIGURES_TRACING + FIGURES_SYMMETRY + FIGURES_EDITS + FIGURES_KEPT


def kept(run):
    """What a run kept with the paper tells of itself."""
    return json.loads((ROOT / f"paper/reference/{run}/numbers.json").read_text(encoding="utf-8"))["study"]


def kept_families(wildcards):
    """{model: family} of a run kept with the paper."""
    return {model["name"]: model["family"] for model in kept(wildcards.run)["models"]}


def picture(name, *, category, figure, like=None):
    """A figure's files: vectors and pixels, and what it shows in words; with the caption of one that it is `like`."""
    caption, labels = f"../../paper/captions/{like or name}.rst", {"figure": figure}
    return {
        "svg": report(f"<results>/figures/{name}.svg", category=category, caption=caption, labels=labels),
        "png": f"<results>/figures/{name}.png",
        "alt": f"<results>/figures/{name}.txt",
    }
