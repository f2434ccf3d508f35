"""Count the training sentences whose subject and object lie in one block, for every block size."""

import pandas as pd
from tokenizers import Tokenizer

from reversal.common import files, jobs
from reversal.data import facts
from reversal.models import tokens

with jobs.job(snakemake):
    tokenizer = Tokenizer.from_file(f"{snakemake.input.tokenizer}/tokenizer.json")
    spans = [tokens.measure_fact_span(tokenizer, row) for row in facts.read(snakemake.input.rows)]
    table = pd.DataFrame(
        {"block": size, "share": sum(first // size == last // size for first, last in spans) / len(spans)}
        for size in range(1, snakemake.params.canvas + 1)
    )
    files.write_table(table, snakemake.output[0])
