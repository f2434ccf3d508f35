"""The table of the figures: what each is called, what draws it, and from what. No rules."""

import json
from typing import NamedTuple

# The post alone shows other runs.
KEPT_RUNS = [] if KNOWN else config["paper"]["kept"]
TAUGHT_RUNS = [] if KNOWN else config["paper"]["taught"]


# The headings of the post, in its order, under which the report has the figures.
OF_THE_TAUGHT = ("The finding", "The reversal curse", "Dataset", "Fine-tuning", "Step scaling", "What lifts the curse")
SECTIONS = [
    *("The finding", "The reversal curse", "Dataset", "Tracing through denoising steps", "Fine-tuning", "Step scaling"),
    *("What lifts the curse", "Causal pathways", "Symmetry of keys and values", "Editing one direction"),
    *("Rewriting one direction", "One memory or two", "Other runs"),
]


class Figure(NamedTuple):
    """What a figure is called in the report and under which heading, what draws it, and from what."""

    title: str
    category: str
    drawn_by: str  # a module of the library's figures
    sources: dict  # its inputs
    params: dict = {"models": FAMILIES}
    like: str | None = None  # the figure whose drawing and caption it shares


def of_table(title, category, module, table):
    """A figure of one table of the study."""
    return Figure(title, category, module, {"table": f"<results>/tables/{table}.csv"})


def kept_study(run):
    """What a run kept with the paper tells of its data and models."""
    return json.loads((ROOT / f"paper/reference/{run}/numbers.json").read_text(encoding="utf-8"))["study"]


def of_kept(run, title, module, like, file):
    """A figure like one of the study's, of a run kept with the paper."""
    told = kept_study(run)
    return Figure(
        title=f"{run}: {title}",
        category="Other runs",
        drawn_by=module,
        sources={
            "table": shipped(f"paper/reference/{run}/{file}.csv"),
            "about": shipped(f"paper/reference/{run}/numbers.json"),
            "smdm": shipped("paper/table3.csv") if like == "step_scaling" and told["theirs"] else [],
        },
        params={"models": {model["name"]: model["family"] for model in told["models"]}},
        like=like,
    )


ANSWERS = {
    "completions": expand("<results>/completions/{trained}.jsonl", trained=TRAINED),
    "likelihood": "<results>/tables/likelihood.csv",
}
PEOPLE = {
    "facts": "<results>/data/facts.jsonl",
    "train": "<results>/data/train.jsonl",
    "splits": expand("<results>/data/{split}.jsonl", split=SPLITS),
}
# Whether every diffusion model protects the people whom one can protect.
PROTECTED = bool(DIFFUSION) and all(
    one["protect"] in ("subject", "prompt") and one["people"] in ("all", "protected") and not one["exposure"]
    for one in map(taught, DIFFUSION)
)
RECALL_BY_STEPS = {
    "table": "<results>/tables/step_scaling.csv",
    "smdm": shipped("paper/table3.csv") if BESIDE_SMDM else [],
}
KNOWLEDGE = {"tables": expand("<results>/tables/{name}.csv", name=["step_scaling", "likelihood"])}
HISTORIES = {"history": expand("<results>/models/{trained}.training.csv", trained=TRAINED)}
SHARING = {"tables": expand("<results>/tables/{name}.csv", name=["rewriting", "gradients"])}
TRACES = {"traces": expand("<results>/traces/{trained}", trained=FIRST)}
SEVERAL = {"models": FAMILIES, "trained": TRAINED}
FIGURES = {
    "finding": of_table("The finding", "The finding", "recall", "step_scaling"),
    "reversal_curse": Figure("The reversal curse", "The reversal curse", "curse", ANSWERS, SEVERAL),
    "probe": of_table("What comes first to mind", "Dataset", "recall", "probe"),
    "dataset": Figure("The dataset", "Dataset", "data", PEOPLE, {"protected": PROTECTED}),
    "training_curves": Figure("Training", "Fine-tuning", "recall", HISTORIES, SEVERAL),
    "step_scaling": Figure("Recall against denoising steps", "Step scaling", "recall", RECALL_BY_STEPS),
    "trace_facts": Figure("One fact traced", "Causal pathways", "tracing", TRACES),
    "trace_average": of_table("Average effects", "Causal pathways", "tracing", "causal_trace"),
    "trace_sides": of_table("What suffices and what is needed", "Causal pathways", "tracing", "causal_trace"),
    "trace_windows": of_table("Several layers together", "Causal pathways", "tracing", "causal_trace"),
    "symmetry_layers": of_table("Symmetry by layer", "Symmetry of keys and values", "symmetry", "symmetry"),
    "symmetry": of_table("What forward and reverse share", "Symmetry of keys and values", "symmetry", "symmetry"),
    "one_memory": Figure("Rewriting by gradient", "Rewriting one direction", "sharing", SHARING),
    "edits": of_table("Rank-one edits", "Editing one direction", "editing", "edits"),
    "memories": of_table("Four kinds of evidence", "One memory or two", "sharing", "evidence"),
}
if DIFFUSION:
    EXAMPLE = [f"{DIFFUSION[0]}/seed_{FIRST_SEED}"]
    STEPS = {
        "completions": expand("<results>/completions/{trained}.jsonl", trained=EXAMPLE),
        "rows": expand("<results>/data/{split}.jsonl", split=RECALL_SPLITS),
    }
    DRAWN_IN_ORDER = {"trained": EXAMPLE, "order": config["sampling"]["order"]}
    FIGURES |= {
        "denoising_step": Figure(
            "One step of denoising", "Tracing through denoising steps", "denoising", STEPS, DRAWN_IN_ORDER
        ),
        "timeline": Figure(
            "A generation step by step", "Tracing through denoising steps", "denoising", STEPS, DRAWN_IN_ORDER
        ),
        "trace_alike": of_table("Taught the one way and the other", "Causal pathways", "tracing", "causal_trace"),
        "hand_over": of_table("From the subject to the answer's own tokens", "Causal pathways", "tracing", "time"),
        "hidden_steps": of_table("When the subject is needed", "Causal pathways", "tracing", "time"),
    }
if KNOWN:
    FIGURES.pop("trace_alike", None)  # compares ways of teaching
    FIGURES = {
        "known": Figure("What the bases know", "The finding", "known", KNOWLEDGE),
        **{name: FIGURES[name] for name in FIGURES if FIGURES[name].category not in OF_THE_TAUGHT},
    }
OF_KEPT = [
    ("four kinds of evidence", "sharing", "memories", "evidence"),
    ("recall", "recall", "step_scaling", "step_scaling"),
    ("average effects", "tracing", "trace_average", "causal_trace"),
    ("from the subject to the answer's own tokens", "tracing", "hand_over", "time"),
]
for run in KEPT_RUNS:
    # Of the same networks with other seeds only what all of it comes to is drawn.
    for title, module, like, file in OF_KEPT[:1] if kept_study(run)["generated"] else OF_KEPT:
        if (ROOT / f"paper/reference/{run}/{file}.csv").is_file():
            FIGURES[f"{run}_{like}"] = of_kept(run, title, module, like, file)
for run in TAUGHT_RUNS:
    FIGURES[f"kept_{run}"] = Figure(
        title=f"{run}: what is taught, and what is recalled",
        category="What lifts the curse",
        drawn_by="objectives",
        sources={"table": shipped(f"paper/reference/{run}/objectives.csv")},
        like=run,
    )
ASIDE = {
    "ablations": of_table("Choices of the sampler", "Step scaling", "ablation", "ablations"),
    "objectives": of_table("What is taught, and what is recalled", "What lifts the curse", "objectives", "objectives"),
    "epochs": of_table("Recall against passes over the data", "What lifts the curse", "objectives", "objectives"),
}
