"""Make the tokenizer of a base that is still to be pretrained."""

from reversal.common import jobs
from reversal.training.pretraining import Biographies, tokenizer

with jobs.job(snakemake):
    given, params = snakemake.input, snakemake.params
    read = Biographies(params.words, params.templates, params.people, params.rows, params.seed)
    tokenizer(snakemake.output[0], read, size=params.network["vocabulary"], vocabulary_of=given.rows or None)
