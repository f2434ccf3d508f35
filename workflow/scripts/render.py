"""Write one part of the paper: its claims, the explorer's data, the post, the page, or tables for the report."""

from pathlib import Path

from reversal.common import jobs
from reversal.paper import write

with jobs.job(snakemake):
    root = Path(write.__file__).parents[3]
    inputs, params, output = snakemake.input, dict(snakemake.params), snakemake.output
    match snakemake.rule.rpartition("_")[-1]:  # a workflow that imports this one may put a name before
        case "claims":
            write.claims_file(inputs, output[0], **params)
        case "explorer":
            write.explorer_file(inputs, output[0], **params)
        case "post":
            write.post_files(inputs, output, root=root, **params)
        case "page":
            write.page_file(inputs, output[0], root=root, **params)
        case "sortable":
            write.sortable_files(inputs, output)
