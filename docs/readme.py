"""`python -m docs.readme` puts what studies found and cost into README.md, between its marks."""

import json
import os
import platform
from pathlib import Path

import pandas as pd

from workflow.reversal import corruptions

from . import keep

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "results/default/tables"
KEPT = {  # {folder: what its results were made with}
    file.parent: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((ROOT / "paper/reference").glob("*/provenance.json"))
}
DATA = {True: "Generated data", False: "The data of Berglund et al. (2023)"}
MORE = " (more than was lost: the rest of the run stays as the noise left it)"
SPLITS = ("d2p_same", "p2d_reverse", "p2d_same", "d2p_reverse")


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


def pathways(effects):
    """Where the diffusion model's answer comes from, in one sentence of measured effects."""
    rows = effects[
        effects.step.isna()
        & (effects.stage == "all")
        & (effects.score == "probability")
        & (effects.corruption == corruptions.main(effects.corruption))
        & effects.kind.isin(("state", "total"))
    ]
    sentences = []
    for split, asked in (("p2d_reverse", "the name"), ("d2p_reverse", "the description")):
        mine = rows[(rows.model == "mdm") & (rows.split == split)]
        if mine.empty:
            continue
        cost = mine[mine.kind == "total"].iloc[0]
        if not cost.ci_low > 0:
            sentences.append(
                f"Asked in reverse for {asked}, hiding the subject makes no clear difference ({cost['mean']:.2f} "
                f"[{cost.ci_low:.2f}, {cost.ci_high:.2f}] of the answer's probability, {cost.n} facts)."
            )
            continue
        subject = mine[(mine.role == "whole subject") & (mine.layer == 0)]["mean"].iloc[0]
        last = mine.layer.max()
        masks = mine[(mine.role == "masked answer") & (mine.layer == last)]["mean"].iloc[0]
        revealed = mine[mine.role == "revealed answer"]["mean"].max()
        sentences.append(
            f"Asked in reverse for {asked}, hiding the subject costs {cost['mean']:.2f} of the answer's probability. "
            f"Restoring its states at the first layer brings back {subject:.2f}"
            f"{MORE if subject > cost['mean'] else ''}, that of each still masked answer token at the last layer "
            f"{masks:.2f}, and that of an already revealed one "
            f"{f'at most {revealed:.3f}' if revealed >= 0.0005 else 'nothing'} at any layer."
        )
    return " ".join(sentences)


def symmetry(table):
    """Which comparisons of forward and reverse memories survive correction, where MLPs peak and layer by layer."""
    table = table[(table.statistic == "debiased_cka") & table.p_adjusted.notna()]
    lines = []
    for (model, stage), rows in table.groupby(["model", "stage"], sort=False):
        peak, layers = rows[rows.layer == "peak"], rows[rows.layer != "peak"]
        found = peak[peak.p_adjusted < 0.05]
        named = "; ".join(f"{row.comparison} {row.value:.2f}" for row in found.itertuples())
        label = f"{model} before fine-tuning" if stage == "base" else model
        line = f"- {label}: {len(found)} of {len(peak)}{f' ({named})' if named else ''}"
        others = (layers.p_adjusted < 0.05).groupby(layers.layer.astype(int)).agg(["sum", "size"])
        others = others[others["sum"] > 0]
        if len(others):
            by_layer = (f"{row['sum']} of {row['size']} in layer {layer}" for layer, row in others.iterrows())
            line += f"; of all layers: {', '.join(by_layer)}"
        lines.append(line)
    return "\n".join(lines)


def edits(table):
    """What a rank-one edit does forward and in reverse."""
    rows = table[table.peak & (table.statistic == "preferred")]
    lines = [
        "| model, trained | edited question | paraphrases | neighbours' own answer | reverse: edited person | edits |",
        "|---|---|---|---|---|---|",
    ]
    for (model, group), mine in rows.groupby(["model", "group"], sort=False):
        shares = mine.set_index(["measure", "when"]).value * 100
        measures = ("efficacy", "paraphrase", "specificity", "reverse_new")
        cells = [
            f"{shares[name, 'before']:.0f} → {shares[name, 'after']:.0f}" if (name, "after") in shares else "–"
            for name in measures
        ]
        cells.append(f"{mine.n.iloc[0]}")
        trained = {"both": "both ways", "p2d": "person → description"}.get(group, group)
        lines.append(f"| {model}, {trained} | {' | '.join(cells)} |")
    return "\n".join(lines)


def costs(measured):
    """Seconds and memory of each long job, a column a model; on a GPU its memory too."""
    measured = (
        measured.fillna({"model": ""})
        .groupby(["stage", "model"])
        .agg(seconds=("seconds", "sum"), memory_mb=("memory_mb", "max"), gpu_gib=("gpu_gib", "max"))
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
    return f"{job.seconds:.0f} s, {job.memory_mb / 1000:.1f} GB{gpu}"


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
SECTIONS = {
    "step_scaling": (recall, "Percent of the prompts answered exactly, with the 95% interval over facts:\n\n{}"),
    "causal_trace": (pathways, "**Pathways.** {}"),
    "symmetry": (
        symmetry,
        "**Symmetry.** Comparisons of forward and reverse keys and values that differ from chance (debiased CKA, "
        "Holm-corrected\npermutation test), at the layers where MLPs matter most:\n\n{}",
    ),
    "edits": (
        edits,
        "**Edits.** In how many percent of questions the wanted answer is likelier than its rival, before and after "
        "ROME's\nrank-one edit:\n\n{}",
    ),
}


def sections(folder, names):
    """What is told of each of these tables that is there."""
    told = []
    for name in names:
        tell, frame = SECTIONS[name]
        file = folder / f"{name}.csv"
        if file.is_file():
            told.append(frame.format(tell(pd.read_csv(file, low_memory=False))))
    return told


def findings():
    """The block between the marks: a section for each table that is there."""
    told = sections(TABLES, SECTIONS)
    again = ROOT / "results/replication/tables/step_scaling.csv"
    if again.is_file():
        told.insert(1, replicated(pd.read_csv(again)))
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
    """The block about the runs kept with the paper: what they find, beside the published recall."""
    published = pd.read_csv(ROOT / "paper/table3.csv").set_index("steps")
    told = []
    for folder, made in KEPT.items():
        if not (folder / "numbers.json").is_file():
            continue
        study = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))["study"]
        seeds = "one seed" if len(study["seeds"]) == 1 else f"{len(study['seeds'])} seeds"
        told.append(
            f"## What `{made['study']}` finds\n\n{DATA[study['generated']]}, networks of {study['largest']:,} "
            f"parameters, {seeds}; {made['hardware']}, {made['date']}, commit {made['commit']}. "
            f"{made.get('caveat', '')}\n\nRecall in percent, of SMDM-1028M as published / of ours with 95% intervals:"
        )
        told.append(beside(pd.read_csv(folder / "step_scaling.csv"), published))
        told += sections(folder, ("causal_trace", "symmetry", "edits"))
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
