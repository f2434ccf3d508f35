"""The figures of reversal.figures.registry, each drawn from tables, rows and arrays already on disk."""

import json
import re

from reversal.figures import registry

PROPERTIES = ["untrained" if UNTRAINED else "trained", *(["diffusion"] if DIFFUSION else [])]
ARTICLE = ["paper/article.md", "paper/appendices.md"]
# The article is about generated people and both families; a study of anything else gets a report.
HAS_ARTICLE = (
    DATA["source"] == "generated"
    and all(DATA["generated"][key] == DEFAULTS["data"]["generated"][key] for key in ("words", "templates"))
    and len(set(FAMILIES.values())) == 2
    and not DISABLED_STAGES
)
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
    "claim_list": shipped("paper/claims.yaml"),
    "block_spans": "<results>/tables/block_spans.csv",
    "storage_tests": "<results>/tables/storage_tests.csv",
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
STAGE_TABLES = {
    "tracing": ["causal_trace", "traced_facts", "trace_maps", "time", "logit_lens", "attention_heads", "attribution"],
    "keyvalue": ["keyvalue", "symmetry", "symmetry_pca", "symmetry_spectra"],
    "rank_one_edits": ["rank_one_edits"],
    "finetuned_edits": ["finetuned_edits", "gradients"],
}
MISSING_TABLES = {table for stage in DISABLED_STAGES for table in STAGE_TABLES[stage]}
if UNTRAINED:  # bases are trained on nothing
    MISSING_TABLES |= {"objectives"}
STUDY_TABLES = [name for name in TABLES if name not in MISSING_TABLES]
REFERENCE = {}  # {run: [its tables]}; of some runs only costs are kept
for file in sorted((ROOT / "paper/reference").glob("*/*.csv")):
    if file.stem != "costs":
        REFERENCE.setdefault(file.parent.name, []).append(file.stem)


for name, figure in registry.FIGURES.items():
    if unknown := {*figure.inputs} - {*TABLES, *SOURCES}:
        sys.exit(
            f"error: figures/registry.py: {name} is drawn from {', '.join(unknown)}, which is neither a table of the "
            "registry nor among the SOURCES of figures.smk"
        )


def can_draw(figure):
    """Whether this study has all that a figure is drawn from."""
    traced = {"traces", "example_completions"} if "tracing" in DISABLED_STAGES else set()
    return all(kind in STUDY_TABLES or kind in SOURCES and kind not in traced for kind in figure.inputs)


def find_reference_figure(name):
    """A figure, its inputs and its options, drawn of a reference run; its name is <run>_<figure>."""
    run, _, like = name.partition("_")
    if run not in REFERENCE or like not in registry.FIGURES:
        reason = "which this study cannot draw" if name in registry.FIGURES else "which is not in figures/registry.py"
        sys.exit(f"error: {' or '.join(ARTICLE)} shows a figure {name}, {reason}")
    provenance = json.loads((ROOT / f"paper/reference/{run}/provenance.json").read_text(encoding="utf-8"))
    figure = registry.label_reference(like, run)
    inputs = {kind: shipped(f"paper/reference/{run}/{kind}.csv") for kind in figure.inputs}
    if "published" in inputs:
        inputs["published"] = shipped("paper/table3.csv") if provenance["data"] == "berglund" else []
    return figure, inputs, {option: (OPTIONS | {"models": provenance["models"]})[option] for option in figure.options}


def read_article_figures():
    """The names of the figures that the article and its appendices show."""
    texts = [(ROOT / file).read_text(encoding="utf-8") for file in ARTICLE]
    return re.findall(r'\{\{ *figure\("(\w+)"', "".join(texts))


# {name: (figure, {input: its file or files}, options)}
DRAWINGS = {
    name: (
        figure,
        {kind: SOURCES.get(kind, f"<results>/tables/{kind}.csv") for kind in figure.inputs},
        {option: OPTIONS[option] for option in figure.options},
    )
    for name, figure in registry.select_figures(PROPERTIES).items()
    if can_draw(figure)
}
if HAS_ARTICLE:
    FIGURES = read_article_figures()
    DRAWINGS |= {name: find_reference_figure(name) for name in FIGURES if name not in DRAWINGS}
else:
    FIGURES = [
        name
        for name, (figure, *_) in DRAWINGS.items()
        if figure.is_default or (name == "objectives" and "tracing" in DISABLED_STAGES)
    ]

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
