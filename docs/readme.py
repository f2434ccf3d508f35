"""`python -m docs.readme` puts what studies found into README.md, its picture beside it, and costs into costs.md."""

import json
import os
import platform
import shutil
from pathlib import Path

import pandas as pd

from reversal.models.families import FAMILIES
from reversal.paper import numbers, phrases, tables

from . import keep

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
KEPT = {  # {folder: what its results were made with}
    file.parent: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((ROOT / "paper/reference").glob("*/provenance.json"))
}
DATA = {True: "generated people", False: "Berglund et al.'s people"}
SPLITS = tables.BY_QUESTION
HEAD = """| | name, as taught | **name, in reverse** | description, as taught | **description, in reverse** |
|---|---|---|---|---|"""


def costs(measured):
    """Seconds and memory of each long job, a column a model; on a GPU its memory too."""
    measured = (
        measured[measured.memory_gib.notna()]
        .fillna({"model": ""})
        .assign(stage=measured.rule.str.replace("base_.*", "base", regex=True))
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
    "compare_likelihoods": "likelihoods",
    "trace": "tracing",
    "keyvalue": "keys and values, before and after fine-tuning",
    "symmetry": "symmetry",
    "edit": "edits",
    "rewrite": "rewriting by gradient",
}


def rows(scaling, study, name):
    """Lines of the table: each model's recall in percent at the most steps, with its interval.

    Of several seeds the mean, and an interval that spans all of theirs.
    """
    lines = []
    for model in study["models"]:
        own = scaling[scaling.model == model["name"]]
        own = own[own.steps.isna() | (own.steps == own.steps.max())]
        how = "token by token" if own.steps.isna().all() else f"{own.steps.max():.0f} steps"
        over_seeds = own.groupby("split").agg({"accuracy": "mean", "ci_low": "min", "ci_high": "max"})
        cells = [percent(over_seeds.loc[split]) for split in SPLITS]
        who = f"{FAMILIES[model['family']].short}, {how}; {name}"
        lines.append(f"| {who} | {' | '.join(cells)} |")
    return lines


def percent(row):
    return f"{100 * row.accuracy:.0f} ({100 * row.ci_low:.0f}–{100 * row.ci_high:.0f})"


def smdm():
    """The line of SMDM's own values, as its authors published them."""
    known = pd.read_csv(ROOT / "paper/table3.csv").sort_values("steps").iloc[-1]
    cells = " | ".join(f"{known[split]:.0f}" for split in SPLITS)
    return f"| MDM, {known.steps:.0f} steps; SMDM-1028M as published, the same people | {cells} |"


def findings():
    """Recall in every run that is here or kept, as one table."""
    lines = []
    for folder in (RESULTS / name for name in ("default", "replication")):
        if (folder / "paper/numbers.json").is_file():
            study = keep.told(folder / "paper/numbers.json")["study"]
            name = "this study" if folder.name == "default" else "other people, another seed"
            lines += rows(pd.read_csv(folder / "tables/step_scaling.csv"), study, name)
    remarks = []
    for folder, made in KEPT.items():
        if (folder / "numbers.json").is_file():
            study = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))["study"]
            seeds = len(study["seeds"])
            told = f"{study['largest'] / 1e6:.0f} million parameters, {DATA[study['generated']]}"
            told += f", {seeds} seeds" if seeds > 1 else ""
            lines += rows(pd.read_csv(folder / "step_scaling.csv"), study, told)
            lines += [smdm()] if study["theirs"] else []
            remarks += [f"`{made['study']}`: {made['caveat']}"] if "caveat" in made else []
    about = "Percent of the questions whose answer contains the reference, with 95% intervals over people and wordings:"
    return "\n\n".join([about, "\n".join([HEAD, *lines]), *remarks, why()])


def why():
    """What lifts the curse, in a sentence, from the kept table of objectives."""
    table = pd.read_csv(ROOT / "paper/reference/objectives/objectives.csv")
    table = table[(table.trained == "reverse") & (table.steps.isna() | (table.steps == table.steps.max()))]

    def recalled(model, *, protected=False):
        rows = table[(table.model == model) & (table.protected == protected)].set_index("answer_type").accuracy
        return " and ".join(f"{100 * rows[answer_type]:.0f}%" for answer_type in ("name", "description"))

    return (
        "**Why:** a model answers in reverse where training made it predict the subject *from the object*. Of people "
        "whose name or description was never masked as the subject, the same diffusion network answers "
        f"{recalled('mdm', protected=True)} in reverse (names and descriptions), of the others {recalled('mdm')}. An "
        f"autoregressive network that also read its sentences backwards answers {recalled('ar-reversed')}. "
        f"{table.model.nunique()} ways of training with {table.seeds.max()} seeds stand in the post "
        "(`studies/objectives.yaml`)."
    )


def picture():
    """The figure of recall, with what it shows in words."""
    words = (RESULTS / "default/figures/finding.txt").read_text(encoding="utf-8").strip()
    return f"![{words}](docs/recall.png)"


def spent():
    """What the default study cost, from the numbers of its post."""
    return numbers.nested(json.loads((RESULTS / "default/paper/numbers.json").read_text(encoding="utf-8")))


def in_short():
    """The default study's cost in a sentence."""
    found = spent()["costs"]
    total = found["total"]
    return (
        f"The default study takes {phrases.duration(total['cpu_seconds'])} of CPU time, at most "
        f"{total['memory_gib']:.1f} GiB of memory a job, and, at {found['core_watts']:g} W a busy core, an estimated "
        f"{total['watt_hours']:.0f} Wh. [docs/costs.md](docs/costs.md) has every rule, and runs of up to eight billion "
        "parameters; `results/<study>/tables/costs.csv` has those of a run of yours."
    )


def by_rule():
    """What each rule of the default study cost, as its post has it."""
    found = tables.costs(spent())
    [head] = found.head
    rows = [[cell.text for cell in head], ["---"] * len(head), *found.body]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def expenses():
    """The page about time and memory: of the default study, and of the runs kept with the paper."""
    about = f"The default study's long jobs, on {os.cpu_count()} cores ({platform.machine()}) without a GPU:"
    told = ["# What it costs", about, costs(pd.read_csv(RESULTS / "default/tables/costs.csv"))]
    told += ["Every rule of it, but those that write the post; time is of jobs one after the other:", by_rule()]
    for folder, made in KEPT.items():
        if not (folder / "costs.csv").is_file():
            continue
        remark = f", {made['remark']}" if "remark" in made else ""
        told += [f"{made['study']}, on {made['hardware']}{remark}:", costs(pd.read_csv(folder / "costs.csv"))]
    return "\n\n".join([*told, "`make readme` writes this page.\n"])


def between(readme, name, content):
    """The README with what stands between its marks of a name replaced."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = readme.split(opening)
    return f"{before}{opening}\n{content}\n{closing}{rest.split(closing)[1]}"


if __name__ == "__main__":
    file = ROOT / "README.md"
    readme = file.read_text(encoding="utf-8")
    for name, tell in (("picture", picture), ("results", findings), ("costs", in_short)):
        readme = between(readme, name, tell())
    file.write_text(readme, encoding="utf-8")
    (ROOT / "docs/costs.md").write_text(expenses(), encoding="utf-8")
    shutil.copyfile(RESULTS / "default/figures/finding.png", ROOT / "docs/recall.png")
