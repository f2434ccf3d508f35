"""Keep a study's results with the paper: its tables and numbers, what its jobs cost, and what it was run with.

    python -m docs.keep studies/published.yaml
    python -m docs.keep FOLDER/study.yaml --costs-of "random weights of SMDM-1028M's shape"

The post and the README show what lies under paper/reference/. Numbers are rounded to four digits. Of the traces only
effects at t1 in nats are kept, of edits their averages, of rewriting where a lesson is learnt; of a run whose answers
mean nothing, only what it cost.
"""

import argparse
import importlib.metadata
import json
import platform
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import yaml
from snakemake.utils import update_config

from reversal.common.files import write_table
from reversal.paper import numbers, provenance
from reversal.storage.vocabulary import LEARNT
from reversal.tracing import vocabulary

ROOT = Path(__file__).resolve().parent.parent
TABLES = ("step_scaling", "recall_differences", "likelihood", "traced_facts", "causal_trace", "trace_maps", "time")
TABLES += ("symmetry", "edits", "rewriting", "gradients", "evidence")
READINGS = ("whole", "recovered", "necessary", "handed")  # of traces
# What the post tells of another run.
NUMBERS = ("study", "networks", "training", "sampling", "recall", "likelihood")
NUMBERS += ("tracing", "keyvalue", "symmetry", "edits", "rewriting", "evidence")
PACKAGES = ("torch", "transformers", "snakemake")


def configuration(*files):
    """The first file's configuration with the changes of the others."""
    config = {}
    for file in files:
        update_config(config, yaml.safe_load(file.read_text(encoding="utf-8")))
    return config


def averages(traces):
    """The rows of a table of traces that are about t1, in nats, under the leading corruption, in the readings told."""
    leading = traces.corruption == vocabulary.leading(traces.corruption)
    first = traces.window.isna() | (traces.window == traces.window[traces.kind == "mlp"].min())
    chosen = leading & first & traces.reading.isin(READINGS) & (traces.stage == vocabulary.STAGES[0])
    return traces[chosen & (traces.score == "log_probability")]


SHORTER = {  # tables of which a part is kept
    "causal_trace": averages,
    "edits": lambda table: table[table.fact.isna()],
    "rewriting": lambda table: table[table.steps == LEARNT],
}


def _rounded(value):
    """Four digits of a number."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def told(file):
    """The numbers of a post, nested, without the study's example, which is a piece of its data."""
    found = numbers.nested(json.loads(file.read_text(encoding="utf-8")))
    del found["study"]["example"]
    return {section: found[section] for section in NUMBERS}


def hardware():
    """The GPU, or where there is none the processor."""
    import torch  # takes seconds, and the README needs none of it

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return f"{platform.machine()}, no GPU"


def keep(results, folder, *, config, commit, costs_of=None, taught=False, made=None, remark=None, caveat=None):
    """Put what is kept of a folder of results in the place of `folder`; costs alone where `costs_of` names them.

    `taught`: the table of objectives alone. `made` tells the "hardware" and the "versions" of a run made elsewhere;
    `remark` what else the costs depend on, `caveat` what a reader of the results must know.
    """
    kept = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    if taught:
        shutil.copy(results / "tables/objectives.csv", kept)
    elif not costs_of:
        for name in TABLES:
            table = pd.read_csv(results / f"tables/{name}.csv", low_memory=False)
            write_table(SHORTER.get(name, lambda whole: whole)(table).map(_rounded), kept / f"{name}.csv")
        _write(told(results / "paper/numbers.json"), kept / "numbers.json")
    if not taught:
        shutil.copy(results / "tables/costs.csv", kept)
    made = made or {
        "hardware": hardware(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    told_of = {
        "study": costs_of or f"studies/{config['study']}.yaml",
        "hardware": made["hardware"],
        **({"remark": remark} if remark else {}),
        **({"caveat": caveat} if caveat else {}),
        "versions": made["versions"],
        "commit": commit,
        "configuration": provenance.fingerprint(config),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    _write(told_of, kept / "provenance.json")
    shutil.rmtree(folder, ignore_errors=True)
    kept.rename(folder)


def _write(value, file):
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="+", help="the files given to --configfile")
    parser.add_argument("--commit", default=None, help="where the results were made outside a repository")
    parser.add_argument("--costs-of", default=None, help="keep costs alone, and name them so")
    parser.add_argument("--taught", action="store_true", help="keep the table of objectives alone")
    parser.add_argument("--hardware", default=None, help="where the results were made elsewhere; then also --versions")
    parser.add_argument("--versions", default=None, help="with which packages there, as in 'python 3.12, torch 2.11.0'")
    parser.add_argument("--remark", default=None, help="what else the costs depend on, such as jobs that shared a GPU")
    parser.add_argument("--caveat", default=None, help="what a reader of the results must know, a sentence")
    options = parser.parse_args()
    if bool(options.hardware) != bool(options.versions):
        parser.error("--hardware and --versions belong together: this machine's versions are not those of another")
    elsewhere = options.hardware and {
        "hardware": options.hardware,
        "versions": dict(part.split() for part in options.versions.split(",")),
    }
    config = configuration(ROOT / "config.yaml", *options.study)
    commit = options.commit or provenance.commit(ROOT)
    keep(
        ROOT / "results" / config["study"],
        ROOT / "paper/reference" / config["study"],
        config=config,
        commit=commit,
        costs_of=options.costs_of,
        taught=options.taught,
        made=elsewhere or None,
        remark=options.remark,
        caveat=options.caveat,
    )


if __name__ == "__main__":
    main()
