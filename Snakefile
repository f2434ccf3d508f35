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


include: "workflow/rules/inputs.smk"
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
        # A study of networks of known storage has tests of storage and no page.
        rules.storage.input if STORES else WRITTEN,
