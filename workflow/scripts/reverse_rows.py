"""Turn the training rows round."""

from reversal.common import jobs
from reversal.data import facts

with jobs.job(snakemake):
    rows = [facts.reverse_words(row) for row in facts.read(snakemake.input.rows)]
    facts.write(rows, snakemake.output[0])
