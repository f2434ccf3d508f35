"""Draw the workflow's rules as docs/rulegraph.svg, from the output of `snakemake --rulegraph`; needs no graphviz.

The rules of all figures are drawn as one. An edge is left out if a longer path connects the same rules.
"""

import re
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

WIDTH, HEIGHT = 2.1, 0.62  # inches between boxes
HALF = 0.72  # width of a box


def read_graph():
    """{rule: the rules it depends on}, without the target `all`."""
    command = [sys.executable, "-m", "snakemake", "--rulegraph", "dot", "--forceall", "--cores", "1"]
    dot = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {
        number: re.sub("^figure_.*", "figures", name) for number, name in re.findall(r'(\d+)\[label = "([^"\\]+)', dot)
    }
    parents = {name: set() for name in names.values() if name != "all"}
    for before, after in re.findall(r"(\d+) -> (\d+)", dot):
        if names[after] not in ("all", names[before]):
            parents[names[after]].add(names[before])
    return {rule: direct - set().union(*(ancestors(parents, p) for p in direct)) for rule, direct in parents.items()}


def ancestors(parents, rule):
    """All rules that a rule depends on, directly or not."""
    return parents[rule].union(*(ancestors(parents, parent) for parent in parents[rule]))


def make_columns(parents):
    """The rules in columns, by the length of the longest path that leads to them."""
    depths = {}

    def depth(rule):
        if rule not in depths:
            depths[rule] = 1 + max((depth(parent) for parent in parents[rule]), default=-1)
        return depths[rule]

    columns = {}
    for rule in parents:
        columns.setdefault(depth(rule), []).append(rule)
    return [columns[level] for level in sorted(columns)]


def sort_columns(columns, parents):
    """Sort each column by the mean height of the rules it depends on, so that few edges cross."""
    height = {rule: float(i) for i, rule in enumerate(columns[0])}
    for column in columns[1:]:
        column.sort(key=lambda rule: sum(height[parent] for parent in parents[rule]) / max(1, len(parents[rule])))
        height |= {rule: i * len(columns[0]) / len(column) for i, rule in enumerate(column)}
    return columns


def draw(parents, path):
    """Draw the columns from left to right, with a box for each rule."""
    columns = sort_columns(make_columns(parents), parents)
    tallest = max(map(len, columns))
    figure, axes = plt.subplots(figsize=(WIDTH * len(columns), HEIGHT * tallest))
    axes.set_axis_off()
    position = {
        rule: (x * WIDTH, -HEIGHT * (y + (tallest - len(column)) / 2))
        for x, column in enumerate(columns)
        for y, rule in enumerate(column)
    }
    for rule, direct in parents.items():
        for parent in sorted(direct):
            (x0, y0), (x1, y1) = position[parent], position[rule]
            line = {"arrowstyle": "-|>", "color": "#7a8794", "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (x1 - HALF, y1), (x0 + HALF, y0), arrowprops=line)
    for rule, (x, y) in position.items():
        box = {"boxstyle": "round,pad=0.35", "fc": "#eef3f8", "ec": "#35506b"}
        axes.text(x, y, rule, ha="center", va="center", fontsize=9, bbox=box)
    axes.set_xlim(-1, WIDTH * (len(columns) - 1) + 1)
    axes.set_ylim(-HEIGHT * (tallest - 0.4), HEIGHT * 0.6)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "rulegraph"
    draw(read_graph(), Path(__file__).with_name("rulegraph.svg"))
