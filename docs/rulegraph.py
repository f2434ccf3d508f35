"""Draw the workflow's rules as docs/rulegraph.svg, from what `snakemake --rulegraph` says; needs no graphviz.

The rules of single figures are drawn as one, and a line that only repeats a longer way is left out.
"""

import re
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

WIDTH, HEIGHT = 2.1, 0.62  # inches between neighbours
HALF = 0.72  # of a box


def rules():
    """{rule: the rules it needs}, the target `all` left out."""
    command = [sys.executable, "-m", "snakemake", "--rulegraph", "dot", "--forceall", "--cores", "1"]
    dot = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {
        number: re.sub("^figure_.*", "figures", name) for number, name in re.findall(r'(\d+)\[label = "([^"\\]+)', dot)
    }
    needs = {name: set() for name in names.values() if name != "all"}
    for before, after in re.findall(r"(\d+) -> (\d+)", dot):
        if names[after] not in ("all", names[before]):
            needs[names[after]].add(names[before])
    return {rule: others - set().union(*(behind(needs, other) for other in others)) for rule, others in needs.items()}


def behind(needs, rule):
    """All rules that a rule needs, directly or not."""
    return needs[rule].union(*(behind(needs, other) for other in needs[rule]))


def columns(needs):
    """Rules by the longest way that leads to them."""
    depth = {}

    def deep(rule):
        if rule not in depth:
            depth[rule] = 1 + max((deep(other) for other in needs[rule]), default=-1)
        return depth[rule]

    found = {}
    for rule in needs:
        found.setdefault(deep(rule), []).append(rule)
    return [found[level] for level in sorted(found)]


def order(stacks, needs):
    """Each column sorted by where the rules it needs stand, so that few lines cross."""
    place = {rule: float(i) for i, rule in enumerate(stacks[0])}
    for stack in stacks[1:]:
        stack.sort(key=lambda rule: sum(place[other] for other in needs[rule]) / max(1, len(needs[rule])))
        place |= {rule: i * len(stacks[0]) / len(stack) for i, rule in enumerate(stack)}
    return stacks


def draw(needs, path):
    """Columns from left to right, a box a rule."""
    stacks = order(columns(needs), needs)
    tallest = max(map(len, stacks))
    figure, axes = plt.subplots(figsize=(WIDTH * len(stacks), HEIGHT * tallest))
    axes.set_axis_off()
    place = {
        rule: (x * WIDTH, -HEIGHT * (y + (tallest - len(stack)) / 2))
        for x, stack in enumerate(stacks)
        for y, rule in enumerate(stack)
    }
    for rule, others in needs.items():
        for other in sorted(others):
            (x0, y0), (x1, y1) = place[other], place[rule]
            line = {"arrowstyle": "-|>", "color": "#7a8794", "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (x1 - HALF, y1), (x0 + HALF, y0), arrowprops=line)
    for rule, (x, y) in place.items():
        box = {"boxstyle": "round,pad=0.35", "fc": "#eef3f8", "ec": "#35506b"}
        axes.text(x, y, rule, ha="center", va="center", fontsize=9, bbox=box)
    axes.set_xlim(-1, WIDTH * (len(stacks) - 1) + 1)
    axes.set_ylim(-HEIGHT * (tallest - 0.4), HEIGHT * 0.6)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "rulegraph"
    draw(rules(), Path(__file__).with_name("rulegraph.svg"))
