"""What the figures' rules share: the names of the figures, and the files of each. No rules."""

FAMILIES = {name: model["family"] for name, model in config["models"].items()}
EXAMPLES = expand("{model}/seed_{seed}", model=DIFFUSION[:1], seed=config["seeds"][:1])
DRAWING = ["facts"] + [f"figures/{part}" for part in ("__init__", "read", "sheet", "style")]

FIGURES_RECALL = ["reversal_curse", "probe", "dataset", "training_curves", "step_scaling"]
FIGURES_RECALL += ["canvas", "denoising_step", "timeline"] if DIFFUSION else []
FIGURES_TRACING = ["trace_facts", "trace_average", *(["trace_steps"] if DIFFUSION else [])]
FIGURES_SYMMETRY = ["symmetry_pca", "symmetry_spectra", "symmetry_layers", "symmetry_retrieval"]
FIGURES_EDITS = ["edits"]
FIGURES = FIGURES_RECALL + FIGURES_TRACING + FIGURES_SYMMETRY + FIGURES_EDITS


def picture(name, *, category, figure):
    """A figure's files: vectors and pixels, and what it shows in words."""
    caption, labels = f"../../paper/captions/{name}.rst", {"figure": figure}
    return {
        "svg": report(f"<results>/figures/{name}.svg", category=category, caption=caption, labels=labels),
        "png": f"<results>/figures/{name}.png",
        "alt": f"<results>/figures/{name}.txt",
    }
