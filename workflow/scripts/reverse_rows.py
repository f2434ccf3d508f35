"""Reverse the word order of the training rows."""

from reversal.common import jobs
from reversal.data import facts

with jobs.job(snakemake):
    rows = [facts.reverse_row(row) for row in facts.read(snakemake.input.rows)]
    facts.write(rows, snakemake.output[0])
