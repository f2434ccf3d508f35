"""The figures of reversal.figures.registry, each drawn from tables, rows and arrays already on disk."""

import json

from reversal.figures import registry

PROPERTIES = ["untrained" if UNTRAINED else "trained", *(["diffusion"] if DIFFUSION else [])]
# Only the article shows reference runs, and it is about facts that were trained.
REFERENCE_RUNS = [] if UNTRAINED else config["paper"]["reference_runs"]
OBJECTIVE_RUNS = [] if UNTRAINED else config["paper"]["objective_runs"]
EXAMPLE = [f"{model}/seed_{FIRST_SEED}" for model in DIFFUSION[:1]]
# The files of each kind of input that is not a table.
SOURCES = {
    "completions": expand("<results>/completions/{trained}.jsonl", trained=TRAINED),
    "example_completions": expand("<results>/completions/{trained}.jsonl", trained=EXAMPLE),
    "questions": expand("<results>/data/{split}.jsonl", split=RECALL_SPLITS),
    "histories": expand("<results>/models/{trained}.training.csv", trained=TRAINED),
    "traces": expand("<results>/traces/{trained}", trained=FIRST),
    "facts": "<results>/data/facts.jsonl",
    "training_rows": "<results>/data/train.jsonl",
    "splits": expand("<results>/data/{split}.jsonl", split=SPLITS),
    # SMDM's values, comparable only on the data that SMDM was tested on.
    "published": shipped("paper/table3.csv") if DATA["source"] == "berglund" else [],
}
OPTIONS = {
    "models": FAMILIES,
    "order": config["sampling"]["order"],
    # Whether every diffusion model protects the control people.
    "protected": bool(DIFFUSION)
    and all(
        objective["protect"] in ("subject", "prompt")
        and objective["people"] in ("all", "control")
        and not objective["exposure"]
        for objective in (MODELS[name]["objective"] for name in DIFFUSION)
    ),
}
SECTIONS, TABLES = registry.SECTIONS, registry.TABLES


def find_inputs(figure):
    """{input: its file or files} of a figure of this study."""
    return {kind: SOURCES.get(kind, f"<results>/tables/{kind}.csv") for kind in figure.inputs}


def find_reference_inputs(figure, run, published=()):
    """{input: its file} of a figure of a reference run."""
    tables = {kind: shipped(f"paper/reference/{run}/{kind}.csv") for kind in figure.inputs if kind != "published"}
    return tables | ({"published": published} if "published" in figure.inputs else {})


def find_reference_figures(run):
    """{name: (figure, inputs, options)} of a reference run."""
    folder = ROOT / "paper/reference" / run
    study = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))["study"]
    published = shipped("paper/table3.csv") if study["theirs"] else []
    options = {"models": {model["name"]: model["family"] for model in study["models"]}}
    names = registry.select_reference_figures(study["generated"], {file.stem for file in folder.glob("*.csv")})
    return {
        f"{run}_{name}": (
            registry.label_reference(name, run),
            find_reference_inputs(registry.FIGURES[name], run, published),
            options,
        )
        for name in names
    }


# {name: (figure, inputs, options)}
DRAWINGS = {
    name: (figure, find_inputs(figure), {option: OPTIONS[option] for option in figure.options})
    for name, figure in registry.select_figures(PROPERTIES).items()
}
for run in REFERENCE_RUNS:
    DRAWINGS |= find_reference_figures(run)
DRAWINGS |= {
    f"reference_{run}": (
        registry.label_reference(run, run),
        find_reference_inputs(registry.FIGURES[run], run),
        {"models": FAMILIES},
    )
    for run in OBJECTIVE_RUNS
}
FIGURES = [name for name, (figure, *_) in DRAWINGS.items() if figure.is_default]

for name, (figure, inputs, options) in DRAWINGS.items():

    rule:
        name:
            f"figure_{name}"
        input:
            **inputs,
            code=library("figure", f"figures/{figure.function.split('.')[0]}.py"),
        output:
            svg=report(
                f"<results>/figures/{name}.svg",
                category=f"{SECTIONS.index(figure.section) + 1:02} {figure.section}",  # the report sorts its menu
                caption="../../paper/report/figure.rst",
                labels={"figure": figure.title},
            ),
            png=f"<results>/figures/{name}.png",
            alt=f"<results>/figures/{name}.txt",
        log:
            f"<results>/logs/figures/{name}.log",
        benchmark:
            f"<results>/benchmarks/figures/{name}.tsv"
        localrule: True
        conda:
            "../../envs/reversal.yaml"
        params:
            figure=name,
            function=figure.function,
            inputs=figure.inputs,
            options=options,
            title=figure.title,
            caption=figure.caption,
            alt=lambda wildcards, alt=figure.alt: alt,  # a function, since Snakemake fills the {…} of texts
        script:
            "../scripts/figure.py"
