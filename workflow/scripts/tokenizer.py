"""Make the tokenizer of a base that is yet to be pretrained."""

from reversal.common import jobs
from reversal.training.pretraining import Biographies, make_tokenizer

with jobs.job(snakemake):
    rows, params = snakemake.input.rows or None, snakemake.params
    text = Biographies(params.words, params.templates, params.people, params.rows, params.seed, params.name_first)
    make_tokenizer(snakemake.output[0], text, size=params.network["vocabulary"], vocabulary_of=rows)
