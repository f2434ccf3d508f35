"""Fetch the published data."""

from workflow.reversal import published, reporting

with reporting.job(snakemake):
    published.download(snakemake.params.folder)
