"""Complete every test prompt with one model."""

from pathlib import Path

from reversal.common import jobs
from reversal.data import facts
from reversal.models import network
from reversal.recall import evaluation
from reversal.recall import files as completion_files
from reversal.recall.sampling import Sampling

with jobs.job(snakemake) as job:
    net, tokenizer = network.load(snakemake.input.model)
    settings = dict(snakemake.params.sampling)
    steps = settings.pop("steps", None)
    sampling = Sampling(**settings, precision=snakemake.params.precision)
    splits = {Path(file).stem: facts.read(file) for file in snakemake.input.rows}
    completions = []
    with job.progress(sum(map(len, splits.values())), "completing", "prompts") as progress:
        for split, rows in splits.items():
            # Recall of the control people is reported for the most steps only.
            used = steps and steps[-1:] if split in facts.CONTROL_SPLITS else steps
            completions += evaluation.complete_split(net, tokenizer, rows, sampling, split=split, steps=used)
            progress.advance(len(rows), split=split)
    completion_files.write(completions, snakemake.output[0])
