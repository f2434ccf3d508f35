"""`python -m docs.readme` brings README.md and docs/costs.md up to date.

A number of the README stands before a comment that names it in paper/numbers.yaml, `97%<!-- mdm_names_reverse -->`, and
is of a reference run. The picture, of one person asked both ways, is of results/default.
"""

import json
import os
import platform
import re
import shutil
from pathlib import Path

import pandas as pd

from reversal.paper import numbers

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "paper/reference"
PICTURE = "first_screen"  # the figure of the README
STAGES = {
    "base": "the base",
    "finetune": "fine-tuning",
    "complete": "recall",
    "compare_likelihoods": "likelihoods",
    "trace": "tracing",
    "keyvalue": "keys and values, before and after fine-tuning",
    "symmetry": "symmetry",
    "rank_one_edits": "rank-one edits",
    "finetuned_edits": "fine-tuned edits",
}
SUMS = ["jobs", "seconds", "cpu_seconds", "gpu_seconds", "watt_hours"]


def fill_numbers(text):
    """A text with the number before each comment `<!-- name -->` as the reference runs have it."""
    quantities = numbers.read_numbers(ROOT / "paper/numbers.yaml")
    runs = numbers.group_runs(sorted(REFERENCE.glob("*/*.csv")))

    def show(match):
        if match[2] not in quantities:
            return match[0]
        quantity = quantities[match[2]]
        estimate = numbers.measure(quantity, runs[quantity.run], f"README.md: {match[2]}")
        return numbers.show(estimate.estimate, quantity).replace(" ", "\u00a0") + match[1]

    return re.sub(r"(?:[<>]\u00a0)?[^\s(>]+(<!-- (\w+) -->)", show, text)


def summarize_stages(costs):
    """Seconds and memory of each long stage, a column for each model; on a GPU its memory too."""
    costs = (
        costs[costs.memory_gib.notna()]
        .fillna({"model": ""})
        .assign(stage=costs.rule.str.replace("base_.*", "base", regex=True))
        .groupby(["stage", "model"])
        .agg(seconds=("seconds", "sum"), memory_gib=("memory_gib", "max"), gpu_gib=("gpu_gib", "max"))
    )
    lines = ["| stage | mdm | ar |", "|---|---|---|"]
    for stage, title in STAGES.items():
        if (stage, "") in costs.index:
            lines.append(f"| {title} | {_describe_cost(costs.loc[stage, ''])}, both models |  |")
        elif stage in costs.index:
            jobs = costs.loc[stage]
            cells = (
                _describe_cost(jobs.loc[model]) if model in jobs.index else "not measured" for model in ("mdm", "ar")
            )
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _describe_cost(job):
    gpu = f", {job.gpu_gib:.1f} GiB of the GPU" if pd.notna(job.gpu_gib) else ""
    return f"{job.seconds:.0f} s, {job.memory_gib:.1f} GiB{gpu}"


def show_duration(seconds):
    """A time roughly: 50 s, 14 minutes, 3.2 hours."""
    size, unit = (3600, "hours") if seconds >= 7200 else (60, "minutes") if seconds >= 120 else (1, "s")
    return f"{numbers.number(seconds / size, 1 if seconds / size < 10 else 0)} {unit}"


def summarize_costs(costs):
    """The costs of a study in a sentence."""
    return (
        f"The default study takes {show_duration(costs.cpu_seconds.sum())} of CPU time, at most "
        f"{costs.memory_gib.max():.1f} GiB of memory a job, and an estimated {costs.watt_hours.sum():.0f} Wh "
        "([docs/costs.md](docs/costs.md))."
    )


def tabulate_rules(costs):
    """Jobs, times, memory and energy of every rule of a study, and of all together."""
    by_rule = costs.groupby("rule", sort=False)
    rows = by_rule[SUMS].sum().join(by_rule[["memory_gib"]].max())
    rows.loc["all"] = [*rows[SUMS].sum(), rows.memory_gib.max()]
    lines = ["| rule | jobs | time | CPU time | GPU time | memory | energy |", "|---|---|---|---|---|---|---|"]
    for rule, row in rows.iterrows():
        times = [show_duration(row[column]) for column in ("seconds", "cpu_seconds", "gpu_seconds")]
        cells = [rule, f"{row.jobs:.0f}", *times, f"{row.memory_gib:.1f} GiB", f"{row.watt_hours:.1f} Wh"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_costs_page(costs):
    """The page about time and memory: of the default study, whose table is `costs`, and of the reference runs."""
    parts = [
        "# What it costs",
        f"Long jobs of the default study, on {os.cpu_count()} cores ({platform.machine()}) without a GPU:",
        summarize_stages(costs),
        "Every rule but those that write the post; times are those of jobs one after the other:",
        tabulate_rules(costs),
    ]
    for file in sorted(REFERENCE.glob("*/costs.csv")):
        made = json.loads((file.parent / "provenance.json").read_text(encoding="utf-8"))
        remark = f", {made['remark']}" if "remark" in made else ""
        parts += [f"{made['study']}, on {made['hardware']}{remark}:", summarize_stages(pd.read_csv(file))]
    return "\n\n".join([*parts, "`make readme` writes this page.\n"])


def replace_between(text, mark, content):
    """A text with `content` between its marks <!-- mark --> and <!-- /mark -->."""
    before, _, rest = text.partition(f"<!-- {mark} -->")
    return f"{before}<!-- {mark} -->\n{content}\n<!-- /{mark} -->{rest.partition(f'<!-- /{mark} -->')[2]}"


def main():
    file, figures = ROOT / "README.md", ROOT / "results/default/figures"
    costs = pd.read_csv(ROOT / "results/default/tables/costs.csv")
    shutil.copyfile(figures / f"{PICTURE}.png", ROOT / f"docs/{PICTURE}.png")
    words = (figures / f"{PICTURE}.txt").read_text(encoding="utf-8").strip()
    text = replace_between(fill_numbers(file.read_text(encoding="utf-8")), "picture", f"![{words}](docs/{PICTURE}.png)")
    file.write_text(replace_between(text, "costs", summarize_costs(costs)), encoding="utf-8")
    (ROOT / "docs/costs.md").write_text(write_costs_page(costs), encoding="utf-8")


if __name__ == "__main__":
    main()
