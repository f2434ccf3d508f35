"""How do masked diffusion language models recall facts in both directions? The whole paper, from data to post."""

from snakemake.utils import min_version

min_version("9.27")


configfile: "config.yaml"


report: "paper/report/study.rst"


include: "workflow/rules/common.smk"


# Studies never overwrite each other: rules write to <results>/…
pathvars:
    results=f"results/{config['study']}",


# For --sdm apptainer; none unless the configuration names one.
container: config["container"]


include: "workflow/rules/data.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/recall.smk"
include: "workflow/rules/tracing.smk"
include: "workflow/rules/memory.smk"
include: "workflow/rules/pictures.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/paper.smk"


onstart:
    hold_study()


rule all:
    """Everything the study makes."""
    input:
        expand("<results>/data/{table}.jsonl", table=["facts", "train", *SPLITS]),
        "<results>/tables/step_scaling.csv",
        "<results>/tables/recall_differences.csv",
        "<results>/tables/likelihood.csv",
        "<results>/tables/causal_trace.csv",
        "<results>/tables/symmetry.csv",
        "<results>/tables/edits.csv",
        "<results>/tables/costs.csv",
        expand("<results>/figures/{figure}.svg", figure=FIGURES),
        # The post is about people who are taught.
        [] if KNOWN else expand("<results>/tables/{table}.csv", table=["objectives", "probe"]),
        [] if KNOWN else [f"<results>/paper/{POST}.md", "<results>/paper/index.html"],
        [] if KNOWN else expand("<results>/paper/tables/{table}.html", table=TABLES),
