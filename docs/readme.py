"""`python -m docs.readme` puts what studies found and cost into README.md, between its marks."""

import html
import json
import os
import platform
import re
from pathlib import Path

import pandas as pd

from reversal.paper import post, tables

from . import keep

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "results/default/tables"
KEPT = {  # {folder: what its results were made with}
    file.parent: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((ROOT / "paper/reference").glob("*/provenance.json"))
}
DATA = {True: "Generated data", False: "The data of Berglund et al. (2023)"}
SPLITS = tables.BY_QUESTION


def percent(row):
    return f"{100 * row.accuracy:.0f} ({100 * row.cluster_low:.0f}–{100 * row.cluster_high:.0f})"


def by_steps(scaling, cell):
    """A table of recall by model and number of steps, a column a split: `cell(steps, split, its rows)`."""
    head = "| model, steps | name, trained | name, reversed | description, trained | description, reversed |"
    lines = [head, "|---|---|---|---|---|"]
    for (model, steps), rows in scaling.groupby(["model", "steps"], dropna=False, sort=False):
        cells = [cell(steps, split, rows[rows.split == split]) for split in SPLITS]
        label = f"{model}, {steps:.0f}" if pd.notna(steps) else f"{model}, token by token"
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def recall(scaling):
    """Recall in percent, with intervals."""
    return by_steps(scaling, lambda steps, split, rows: percent(rows.iloc[0]))


def replicated(scaling):
    """The same for a replication, at 16 steps."""
    table = recall(scaling[scaling.steps.isna() | (scaling.steps == 16)])
    return f"With other people and another seed of training (`studies/replication.yaml`):\n\n{table}"


def sentences(numbers):
    """What a run found besides recall, in the post's words."""
    told = post.environment(ROOT / "paper").get_template("findings.md.j2").render(numbers)
    lines = (line.strip() for line in html.unescape(told).replace("\xa0", " ").splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def costs(measured):
    """Seconds and memory of each long job, a column a model; on a GPU its memory too."""
    measured = (
        measured.fillna({"model": ""})
        .groupby(["stage", "model"])
        .agg(seconds=("seconds", "sum"), memory_gib=("memory_gib", "max"), gpu_gib=("gpu_gib", "max"))
    )
    lines = ["| stage | mdm | ar |", "|---|---|---|"]
    for stage, title in STAGES.items():
        if (stage, "") in measured.index:
            lines.append(f"| {title} | {_cost(measured.loc[stage, ''])}, both models |  |")
        elif stage in measured.index:
            jobs = measured.loc[stage]
            cells = (_cost(jobs.loc[model]) if model in jobs.index else "not measured" for model in ("mdm", "ar"))
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cost(job):
    gpu = f", {job.gpu_gib:.1f} GiB of the GPU" if pd.notna(job.gpu_gib) else ""
    return f"{job.seconds:.0f} s, {job.memory_gib:.1f} GiB{gpu}"


STAGES = {
    "base": "the base",
    "finetune": "fine-tuning",
    "complete": "recall",
    "likelihood": "likelihoods",
    "trace": "tracing",
    "keyvalue": "keys and values, before and after fine-tuning",
    "symmetry": "symmetry",
    "edit": "edits",
}


def findings():
    """The block about the default study."""
    table = recall(pd.read_csv(TABLES / "step_scaling.csv"))
    told = [f"Percent of the prompts answered exactly, with the 95% interval over facts:\n\n{table}"]
    again = ROOT / "results/replication/tables/step_scaling.csv"
    if again.is_file():
        told.append(replicated(pd.read_csv(again)))
    told.append(sentences(keep.told(TABLES.parent / "paper/numbers.json")))
    ending = "These are tiny networks and generated people. `make readme` writes this section from `results/default`."
    return "\n\n".join(["## What the default study finds", *told, ending])


def expenses():
    """The block about time and memory: of the default study, and of the runs kept with the paper."""
    about = f"The default study's long jobs, on {os.cpu_count()} cores ({platform.machine()}) without a GPU:"
    told = [about, costs(keep.costs(TABLES.parent))]
    for folder, made in KEPT.items():
        remark = f", {made['remark']}" if "remark" in made else ""
        told += [f"{made['study']}, on {made['hardware']}{remark}:", costs(pd.read_csv(folder / "costs.csv"))]
    return "\n\n".join(told)


def larger():
    """The block about the runs kept with the paper: what they find, recall beside the published where it can."""
    published = pd.read_csv(ROOT / "paper/table3.csv").set_index("steps")
    told = []
    for folder, made in KEPT.items():
        if not (folder / "numbers.json").is_file():
            continue
        numbers = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))
        study, scaling = numbers["study"], pd.read_csv(folder / "step_scaling.csv")
        seeds = "one seed" if len(study["seeds"]) == 1 else f"{len(study['seeds'])} seeds"
        known = "" if study["generated"] else " of SMDM-1028M as published /"
        told.append(
            f"## What `{made['study']}` finds\n\n{DATA[study['generated']]}, networks of {study['largest']:,} "
            f"parameters, {seeds}; {made['hardware']}, {made['date']}, commit {made['commit']}. "
            f"{made.get('caveat', '')}\n\nRecall in percent,{known} of ours with 95% intervals:"
        )
        told.append(recall(scaling) if study["generated"] else beside(scaling, published))
        told.append(sentences(numbers))
    return "\n\n".join(told)


def beside(scaling, published):
    """Recall in percent beside the published one."""

    def cell(steps, split, rows):
        known = f"{published.loc[steps, split]:.0f}" if steps in published.index else "–"
        return f"{known} / {percent(rows.iloc[0])}"

    return by_steps(scaling, cell)


def between(readme, name, content):
    """The README with what stands between its marks of a name replaced."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = readme.split(opening)
    return f"{before}{opening}\n{content}\n{closing}{rest.split(closing)[1]}"


if __name__ == "__main__":
    file = ROOT / "README.md"
    readme = file.read_text(encoding="utf-8")
    for name, tell in (("results", findings), ("larger", larger), ("costs", expenses)):
        readme = between(readme, name, tell())
    file.write_text(readme, encoding="utf-8")
