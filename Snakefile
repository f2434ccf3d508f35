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
include: "workflow/rules/storage.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/paper.smk"


onstart:
    lock_study()
    run_preflight()


rule all:
    """Everything the study makes."""
    input:
        expand("<results>/data/{table}.jsonl", table=["facts", "train", *SPLITS]),
        "<results>/tables/step_scaling.csv",
        "<results>/tables/recall_differences.csv",
        "<results>/tables/likelihood.csv",
        "<results>/tables/costs.csv",
        # Other noise than masks is asked for its recall alone.
        INSIDE if ONLY_MASKS else rules.objectives.input,
        # The post is about facts that were trained.
        WRITTEN if ONLY_MASKS and not UNTRAINED else [],
