"""Store a study's results with the paper, as a reference run: its tables, its costs, and how it was run.

    python -m docs.reference studies/published.yaml
    python -m docs.reference FOLDER/study.yaml --costs-of "random weights of SMDM-1028M's shape"

The article's numbers and claims are read from paper/reference. Numbers are rounded to four digits. Of traces only
effects at t1 in nats are stored, of rank-one edits the averages, of fine-tuned edits those that converged; of a run
whose answers mean nothing, only the costs.
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
from reversal.paper import provenance
from reversal.storage.vocabulary import CONVERGED
from reversal.tracing import vocabulary

ROOT = Path(__file__).resolve().parent.parent
TABLES = ("costs", "step_scaling", "recall_differences", "likelihood", "traced_facts", "causal_trace", "trace_maps")
TABLES += ("time", "logit_lens", "attention_heads", "attribution", "symmetry", "rank_one_edits", "finetuned_edits")
TABLES += ("gradients",)
OBJECTIVE_TABLES = ("objectives", "block_spans", "storage_tests", "store_checks")
READINGS = ("scores", "recovered", "necessary")  # of traces
PACKAGES = ("torch", "transformers", "snakemake")


def load_configuration(*files):
    """The configuration of the first file with the changes of the others."""
    config = {}
    for file in files:
        update_config(config, yaml.safe_load(file.read_text(encoding="utf-8")))
    return config


def select_traces(table):
    """The rows of a table of traces at t1, in nats, under the leading corruption and the smallest window.

    Of the score that compares families, only total effects.
    """
    leading = table.corruption == vocabulary.choose_corruption(table.corruption)
    first = table.window.isna() | (table.window == table.window[table.kind == "mlp"].min())
    chosen = leading & first & table.reading.isin(READINGS) & (table.stage == vocabulary.STAGES[0])
    comparing = (table.score == "sequential") & (table.kind == "total")
    return table[chosen & ((table.score == "log_probability") | comparing)]


SELECTIONS = {  # tables of which some rows are stored
    "causal_trace": select_traces,
    "rank_one_edits": lambda table: table[table.fact.isna()],
    "finetuned_edits": lambda table: table[table.steps == CONVERGED],
}


def _round(value):
    """Four digits of a number."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def describe_hardware():
    """The GPU, or the processor where there is none."""
    import torch  # takes seconds, and the README needs none of it

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return f"{platform.machine()}, no GPU"


def store(results, folder, *, config, tables=TABLES, **about):
    """Replace `folder` by the reference run made from a folder of `results`: those of the `tables` that are there.

    `about` has what the provenance says beside the configuration's part of it: its "commit", and in the place of this
    machine's the "hardware" and "versions" of a run made elsewhere.
    """
    draft = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    for name in tables:
        if (results / f"tables/{name}.csv").is_file():  # stages may be left out
            table = pd.read_csv(results / f"tables/{name}.csv", low_memory=False)
            write_table(SELECTIONS.get(name, lambda whole: whole)(table).map(_round), draft / f"{name}.csv")
    described = {
        "study": f"studies/{config['study']}.yaml",
        "data": config["data"]["source"],
        "models": {name: model["family"] for name, model in config["models"].items()},
        "hardware": describe_hardware(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "configuration": provenance.fingerprint(config),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    text = json.dumps(described | about, indent=1, ensure_ascii=False) + "\n"
    (draft / "provenance.json").write_text(text, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="+", help="the files given to --configfile")
    parser.add_argument("--commit", default=None, help="where the results were made outside a repository")
    parser.add_argument("--costs-of", default=None, help="store only costs, under this name")
    parser.add_argument("--objectives", action="store_true", help="store only what is about objectives")
    parser.add_argument("--hardware", default=None, help="where the results were made elsewhere; then also --versions")
    parser.add_argument("--versions", default=None, help="with which packages there, as in 'python 3.12, torch 2.11.0'")
    parser.add_argument("--remark", default=None, help="what else the costs depend on, such as jobs that shared a GPU")
    parser.add_argument("--caveat", default=None, help="what a reader of the results must know")
    options = parser.parse_args()
    if bool(options.hardware) != bool(options.versions):
        parser.error("--hardware and --versions belong together: this machine's versions are not those of another")
    config = load_configuration(ROOT / "config.yaml", *options.study)
    about = {
        "study": options.costs_of,
        "hardware": options.hardware,
        "versions": options.versions and dict(part.split() for part in options.versions.split(",")),
        "commit": options.commit or provenance.commit(ROOT),
        "remark": options.remark,
        "caveat": options.caveat,
    }
    store(
        ROOT / "results" / config["study"],
        ROOT / "paper/reference" / config["study"],
        config=config,
        tables=OBJECTIVE_TABLES if options.objectives else ("costs",) if options.costs_of else TABLES,
        **{key: value for key, value in about.items() if value},
    )


if __name__ == "__main__":
    main()
