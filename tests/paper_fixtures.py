"""A study's results as files, from which the paper is rendered without any network: the tables of a reference run."""

import functools
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import trace_fixtures
import yaml

from reversal.data.facts import RECALL_SPLITS
from reversal.paper import write
from reversal.tracing import files as trace_files

ROOT = Path(__file__).resolve().parents[1]
PAPER = ROOT / "paper"
HOSTILE = ["<script>alert(1)</script>", "$x$ {{ liquid }} \\(y\\)", "O'Neil & Sons"]
RUNS = ("seeds", "published", "objectives", "rivals", "positions", "blocks", "published_blocks", "storage", "epochs")
AL_FOLIO = {
    "author": "A. Author",
    "affiliation": "An Institute",
    "url": "https://example.org/",
    "date": "2025-07-14",
    "slug": "a-post",
    "tags": ["diffusion"],
    "explorer_facts": 3,
}
STEPS = [1, 4]


def article_figures():
    """The names of the figures that the article and its appendices show."""
    texts = (PAPER / "article.md").read_text() + (PAPER / "appendices.md").read_text()
    return re.findall(r'\{\{ *figure\("(\w+)"', texts)


@functools.cache
def _tables():
    """The tables of one seed, as a run of the default study has them."""
    tables = {file.stem: pd.read_csv(file, low_memory=False) for file in PAPER.glob("reference/seeds/*.csv")}
    tables = {name: table[table.seed == 1] if "seed" in table else table for name, table in tables.items()}
    objectives = pd.read_csv(PAPER / "reference/objectives/objectives.csv")
    # What reference runs do not store.
    spectra = {"model": "mdm", "stage": "seed_1", "layer": 0, "space": "value, forward", "component": 1, "share": 0.2}
    tables["symmetry_spectra"] = pd.DataFrame([spectra | {"effective_rank": 30.0, "n": 48}])
    return tables | {"objectives": objectives[objectives.model.isin(["mdm", "ar"])]}


def make(folder, *, names=HOSTILE, source="generated", models=("mdm", "ar"), traced=True, change=None):
    """Write a study to `folder` and return what the rules of the paper are given.

    `change` is {table: a function of its rows}. A study of data other than generated people gets a report.
    """
    folder = Path(folder)
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    config |= {"study": "made-up", "paper": AL_FOLIO, "seeds": [1]}
    config["models"] = {name: config["models"][name] for name in models}
    config["data"]["source"] = source
    sources = [PAPER / "article.md", PAPER / "appendices.md"] if source == "generated" else []
    for name, table in _tables().items():
        if rows := (change or {}).get(name):
            table = rows(table.copy())
        _write(folder / f"tables/{name}.csv", table.to_csv(index=False))
    figures = article_figures() if sources else ["first_screen", "step_scaling", "trace_facts", "claims"]
    for name in figures:
        _write(folder / f"figures/{name}.svg", SVG.format(name))
        _write(folder / f"figures/{name}.txt", f'Shows "{name}" & <more>')
    _data(folder, names)
    for name in models:
        _completions(folder, name)
        _traces(folder, name, traced)
    return _given(folder, config, figures, sources)


def render(given, folder):
    """Run the rules of the paper one after the other; the outputs as paths."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    output = SimpleNamespace(
        post=out / "post.md",
        images=out / "assets/img/a-post",
        tables=out / "assets/csv/a-post",
        bibliography=out / "post.bib",
        page=out / "index.html",
    )
    write.claims_file(given, given.verdicts, config=given.params["config"])
    write.explorer_file(given, given.explorer, **given.explorer_params)
    write.post_files(given, output, root=ROOT, **given.params)
    write.page_file(given, output.page, root=ROOT, **given.params)
    return output


def _given(folder, config, figures, sources):
    names = list(config["models"])
    reference = [
        str(file) for run in RUNS for file in sorted(PAPER.glob(f"reference/{run}/*.*")) if file.stem != "costs"
    ]
    given = {
        "claims": str(PAPER / "claims.yaml"),
        "numbers": str(PAPER / "numbers.yaml"),
        "reference": reference,
        "sources": [str(file) for file in sources],
        "bibliography": str(PAPER / "references.bib"),
        "verdicts": str(folder / "tables/claims.csv"),
        "tables": [*sorted(map(str, folder.glob("tables/*.csv"))), str(folder / "tables/claims.csv")],
        "figures": [str(folder / f"figures/{name}.svg") for name in figures],
        "alternatives": [str(folder / f"figures/{name}.txt") for name in figures],
        "explorer": str(folder / "explorer.json"),
        "page": str(PAPER / "page.html.j2"),
        "style": str(PAPER / "page.css"),
        "lab": [],
        "scripts": [str(PAPER / f"{name}.js") for name in ("page", "drawing", "explorer", "lab_worker", "lab")],
        "tools": [str(PAPER / f"{name}.html") for name in ("explorer", "lab")],
        "completions": [str(folder / f"completions/{name}/seed_1.jsonl") for name in names],
        "facts": str(folder / "data/facts.jsonl"),
        "traces": [str(folder / f"traces/{name}/seed_1") for name in names],
    }
    makers = {path: ["some_rule", "workflow/scripts/some.py"] for path in [*given["tables"], *given["figures"]]}
    families = {name: model["family"] for name, model in config["models"].items()}
    return SimpleNamespace(
        **given,
        params={"config": config, "makers": makers},
        explorer_params={"models": families, "steps": STEPS[-1], "max_facts": 3},
    )


def _data(folder, names):
    facts, splits = [], {split: [] for split in RECALL_SPLITS}
    for group, (i, name) in itertools.product(("p2d", "d2p"), enumerate(names)):
        fact, description = f"{group}-{i:02}", f"the baker of {name}"
        facts.append({"id": fact, "group": group, "name": name, "description": description})
        ahead = {"fact": fact, "prompt": f"{name} is", "completion": f" {description}"}
        back = {"fact": fact, "prompt": f"Meet {description},", "completion": f" {name}"}
        same, reverse = (ahead, back) if group == "p2d" else (back, ahead)
        splits[f"{group}_same"].append(same)
        splits[f"{group}_reverse"].append(reverse)
    _write_lines(folder / "data/facts.jsonl", facts)
    for name, rows in splits.items():
        _write_lines(folder / f"data/{name}.jsonl", rows)


def _completions(folder, name):
    rows = []
    for split, steps in itertools.product(RECALL_SPLITS, STEPS if name == "mdm" else [None]):
        for row in _read_lines(folder / f"data/{split}.jsonl"):
            correct = name == "mdm" or split.endswith("same")
            said = row["completion"] if correct else " </script><b>"
            revealed = [[4, said, 0, 0.5], [5, "", min((steps or 2) - 1, 1), 0.25], [6, "<eos>", 0, 0.125]]
            answer = {"reference": row["completion"], "generation": said, "correct": correct, "revealed": revealed}
            rows.append({"fact": row["fact"], "split": split, "steps": steps, "prompt": row["prompt"]} | answer)
    _write_lines(folder / f"completions/{name}/seed_1.jsonl", rows)


def _traces(folder, name, traced):
    rng = np.random.default_rng(len(name))
    for split in RECALL_SPLITS:
        traces = []
        for row in _read_lines(folder / f"data/{split}.jsonl")[: 2 * traced]:
            tokens = ["Meet", row["prompt"], " </script>", ",", row["completion"], "", "<eos>"]
            metadata = {"prompt": row["prompt"], "tokens": tokens, "subject": [1, 3], "answer": [4, 6]}
            traces.append(trace_fixtures.make_trace(row["fact"], steps=2, rng=rng, metadata=metadata))
        trace_files.write(traces, {}, folder / f"traces/{name}/seed_1/{split}")


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="510pt" height="60pt" viewBox="0 0 510 60">'
    '<rect width="510" height="60" fill="#eee"/><text x="20" y="35">{}</text></svg>'
)


def _read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write_lines(path, rows):
    _write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
