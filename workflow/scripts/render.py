"""Write one part of the paper: claims, the data of the explorer or the lab, the post, the page, or tables to sort."""

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
        case "lab":
            write.lab_file(inputs, output[0], **params)
        case "post":
            write.post_files(inputs, output, root=root, **params)
        case "page":
            write.page_file(inputs, output[0], root=root, **params)
        case "sortable":
            write.sortable_files(inputs, output)
