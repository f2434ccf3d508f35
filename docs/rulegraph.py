"""Draw the workflow's rules as docs/rulegraph.svg, from the output of `snakemake --rulegraph`; needs no graphviz.

The rules of all figures are drawn as one. An edge is left out if a longer path connects the same rules.
"""

import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import networkx


def read_graph():
    """The rules and what depends on what, without the target `all`."""
    command = [sys.executable, "-m", "snakemake", "--rulegraph", "dot", "--forceall", "--cores", "1"]
    dot = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {key: re.sub("^figure_.*", "figures", name) for key, name in re.findall(r'(\d+)\[label = "([^"\\]+)', dot)}
    edges = [(names[before], names[after]) for before, after in re.findall(r"(\d+) -> (\d+)", dot)]
    graph = networkx.DiGraph((before, after) for before, after in edges if after not in ("all", before))
    return networkx.DiGraph(sorted(networkx.transitive_reduction(graph).edges))  # the order is that of the drawing


def draw(graph, path):
    """Draw the rules in columns, by the length of the longest path that leads to them, and near what they depend on."""
    columns, place = list(networkx.topological_generations(graph)), {}
    for x, column in enumerate(columns):
        parents = {rule: list(graph.predecessors(rule)) for rule in column}
        height = {rule: sum(place[parent][1] for parent in own) / max(1, len(own)) for rule, own in parents.items()}
        column = sorted(column, key=lambda rule: (-height[rule], rule))
        place |= {rule: (x, (len(column) - 1) / 2 - y) for y, rule in enumerate(column)}
    figure, axes = plt.subplots(figsize=(2.4 * len(columns), 0.7 * max(map(len, columns))))
    axes.set_axis_off()
    box = {"boxstyle": "round,pad=0.35", "fc": "#eef3f8", "ec": "#35506b"}
    colors = {"node_color": "none", "edge_color": "#7a8794"}
    networkx.draw_networkx(graph, place, ax=axes, font_size=9, node_size=4000, bbox=box, **colors)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    plt.rcParams["svg.hashsalt"] = "rulegraph"
    draw(read_graph(), Path(__file__).with_name("rulegraph.svg"))
