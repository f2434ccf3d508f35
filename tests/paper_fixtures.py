"""A study's results as files, made up: what the paper is rendered from, without any network."""

import functools
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import safetensors.numpy
import trace_fixtures
import yaml

from reversal.common.files import sha256
from reversal.data.facts import RECALL_SPLITS, SPLITS
from reversal.paper import sources, write
from reversal.storage import evidence, vocabulary
from reversal.tracing import files as trace_files
from reversal.tracing import tables as trace_tables
from reversal.tracing import time_tables

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = ["<script>alert(1)</script>", "$x$ {{ liquid }} \\(y\\)", "O'Neil & Sons"]
FIGURES = [
    *("finding", "reversal_curse", "probe", "dataset", "denoising_step", "timeline", "training_curves", "step_scaling"),
    *("trace_facts", "trace_average", "trace_sides", "trace_windows", "edits", "one_memory", "memories"),
    *("trace_alike", "hand_over", "hidden_steps"),
    *("symmetry_layers", "symmetry"),
]
OF_DIFFUSION = ("denoising_step", "timeline", "trace_alike", "hand_over", "hidden_steps")
PAPER = {
    "title": "How are facts recalled?",
    "subtitle": "Tracing & more",
    "author": "A. Author",
    "affiliation": "An Institute",
    "url": "https://example.org/",
    "date": "2025-07-14",
    "slug": "a-post",
    "tags": ["diffusion"],
    "explorer_facts": 3,
    "kept": [],
    "taught": [],
}
STEPS = [1, 4]
TURNED = {"d2p_same": "p2d_reverse", "p2d_same": "d2p_reverse"}
LAYERS = 2


def make(
    folder,
    *,
    diffusion=0.9,
    autoregressive=0.0,
    answered=True,
    models=("mdm", "ar"),
    names=HOSTILE,
    source="generated",
    change=None,
    kept=(),
    taught=(),
):
    """Write a study to `folder` and return what the rules of the paper would be given.

    `diffusion` and `autoregressive` are the shares recalled in reverse. If not `answered`, nothing is right, and so
    nothing is traced, extracted, compared or edited. `change` is {table: a function of its rows}. `kept` and
    `taught` name runs under the repository's paper/reference.
    """
    folder = Path(folder)
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    config |= {"study": "made-up", "paper": PAPER | {"kept": list(kept), "taught": list(taught)}, "seeds": [1]}
    config["models"] = {name: config["models"][name] for name in models}
    config["data"]["source"] = source
    config["sampling"] = config["sampling"] | {"steps": STEPS}
    families = {name: model["family"] for name, model in config["models"].items()}
    shares = {"diffusion": diffusion, "autoregressive": autoregressive}
    reverse = {name: shares[family] if answered else 0.0 for name, family in families.items()}
    _data(folder, names)
    for name, family in families.items():
        _network(folder, name, family)
        _completions(folder, name, family, reverse[name], answered)
        if answered:
            _traces(folder, name)
        for split in RECALL_SPLITS:
            (folder / f"traces/{name}/seed_1/{split}").mkdir(parents=True, exist_ok=True)
    _tables(folder, families, reverse, answered)
    for name, changed in (change or {}).items():
        file = folder / f"tables/{name}.csv"
        changed(pd.read_csv(file)).to_csv(file, index=False)
    figures = [name for name in FIGURES if "mdm" in models or name not in OF_DIFFUSION]
    figures += [f"{run}_memories" for run in kept]
    figures += [
        f"{run}_{name}" for run in kept if run != "seeds" for name in ("step_scaling", "trace_average", "hand_over")
    ]
    figures += [f"kept_{run}" for run in taught]
    for name in figures:
        _write(folder / f"figures/{name}.svg", _svg(name))
        _write(folder / f"figures/{name}.txt", f'Shows "{name}" & <more>')
    return _given(folder, config, families, figures)


def write_post(given, folder):
    """Run the rules of the paper that the post is made by; the outputs as paths."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    output = SimpleNamespace(
        post=str(out / "post.md"),
        images=str(out / "assets/img/a-post"),
        tables=str(out / "assets/csv/a-post"),
        bibliography=str(out / "post.bib"),
    )
    write.numbers_file(given.sources, given.sources_output, **given.numbers_params)
    write.post_files(given.shown, output, root=ROOT, **given.shown_params)
    return SimpleNamespace(
        numbers=Path(given.sources_output),
        post=out / "post.md",
        images=Path(output.images),
        tables=Path(output.tables),
    )


def render(given, folder):
    """Run all rules of the paper one after the other; the outputs as paths."""
    made = write_post(given, folder)
    page = Path(folder) / "index.html"
    write.explorer_file(given.explorer, given.explorer_output, **given.explorer_params)
    write.page_file(given.shown, str(page), root=ROOT, **given.shown_params)
    return SimpleNamespace(page=page, **vars(made))


def _given(folder, config, families, figures):
    tables = sorted(map(str, folder.glob("tables/*.csv")))
    data = sorted(map(str, folder.glob("data/*.jsonl")))
    models = [str(folder / f"models/{name}/seed_1") for name in families]
    completions = [str(folder / f"completions/{name}/seed_1.jsonl") for name in families]
    trained = [f"{name}/seed_1" for name in families]
    numbers = str(folder / "paper/numbers.json")
    shown = {
        "tables": tables,
        "models": models,
        "data": data,
        "figures": [str(folder / f"figures/{name}.svg") for name in figures],
        "alternatives": [str(folder / f"figures/{name}.txt") for name in figures],
        "numbers": numbers,
        "explorer": str(folder / "paper/explorer.json"),
        "template": str(ROOT / "paper/post.md.j2"),
        "bibliography": str(ROOT / "paper/references.bib"),
        "page": str(ROOT / "paper/page.html.j2"),
        "style": str(ROOT / "paper/page.css"),
        "script": str(ROOT / "paper/explorer.js"),
    }
    made = [*tables, *data, *models, *shown["figures"], numbers]
    return SimpleNamespace(
        config=config,
        sources=SimpleNamespace(
            tables=tables,
            models=models,
            bases=[str(folder / f"models/{name}/base") for name in families],
            shipped=str(ROOT / "data/base/shipped.json"),
            data=data,
            histories=[str(folder / f"models/{name}.training.csv") for name in trained],
            published=str(ROOT / "paper/table3.csv"),
            kept=[
                str(ROOT / f"paper/reference/{run}/{file}.json")
                for run in config["paper"]["kept"]
                for file in ("numbers", "provenance")
            ],
            taught=[str(ROOT / f"paper/reference/{run}/objectives.csv") for run in config["paper"]["taught"]],
        ),
        sources_output=numbers,
        numbers_params={"config": config, "trained": trained},
        explorer=SimpleNamespace(
            completions=completions,
            facts=str(folder / "data/facts.jsonl"),
            traces=[str(folder / f"traces/{name}/seed_1") for name in families],
        ),
        explorer_output=shown["explorer"],
        explorer_params={"models": families, "steps": STEPS[-1], "max_facts": PAPER["explorer_facts"]},
        shown=SimpleNamespace(**shown),
        shown_params={"config": config, "makers": {path: ["some_rule", "workflow/scripts/some.py"] for path in made}},
    )


def _data(folder, names):
    facts, splits = [], {"train": []} | {split: [] for split in RECALL_SPLITS}
    for group, i in itertools.product(("p2d", "d2p", "both"), range(3)):
        name, description = names[i], f"the baker of {names[i]}"
        fact = f"{group}-{i:02}"
        facts.append({"id": fact, "group": group, "name": name, "description": description})
        ahead = {"fact": fact, "template": 0, "prompt": f"{name} is", "completion": f" {description}"}
        back = {"fact": fact, "template": 1, "prompt": f"Meet {description},", "completion": f" {name}"}
        ahead["subject"], back["subject"] = [0, len(name)], [5, 5 + len(description)]
        splits["train"] += [ahead] if group == "p2d" else [back] if group == "d2p" else [ahead, back]
        if group != "both":
            same, other = (ahead, back) if group == "p2d" else (back, ahead)
            splits[f"{group}_same"].append(same)
            splits[f"{group}_reverse"].append(other)
    _lines(folder / "data/facts.jsonl", facts)
    for name, rows in splits.items():
        _lines(folder / f"data/{name}.jsonl", rows)


def _network(folder, name, family):
    shape = {
        "model_type": "llama",
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "hidden_size": 8,
        "intermediate_size": 16,
        "vocab_size": 11 if family == "diffusion" else 10,
        "max_position_embeddings": 32,
        "is_causal": family != "diffusion",
    }
    place = folder / f"models/{name}/seed_1"
    _write(place / "config.json", json.dumps(shape))
    safetensors.numpy.save_file({"embedding": np.zeros((10, 8), np.float32)}, place / "model.safetensors")
    weights = ROOT / f"data/base/{name}/model.safetensors"
    _write(folder / f"models/{name}/base/checksums.json", json.dumps({"model.safetensors": sha256(weights)}))
    history = pd.DataFrame({"step": [0, 1], "epoch": [0, 1], "loss": [3.0, 1.0], "learning_rate": 0.1})
    history.to_csv(folder / f"models/{name}/seed_1.training.csv", index=False)


def _completions(folder, name, family, reverse, answered):
    rows = []
    for split in RECALL_SPLITS:
        share = reverse if split.endswith("reverse") else float(answered)
        questions = sources.lines(folder / f"data/{split}.jsonl")
        for i, row in enumerate(questions):
            for steps in STEPS if family == "diffusion" else [None]:
                correct = i < round(share * len(questions))
                said = row["completion"] if correct else " </script><b>"
                revealed = [[4, said, 0, 0.5], [5, "", min((steps or 2) - 1, 1), 0.25], [6, "<eos>", 0, 0.125]]
                about = {"fact": row["fact"], "split": split, "steps": steps, "prompt": row["prompt"]}
                answer = {"reference": row["completion"], "generation": said, "correct": correct, "revealed": revealed}
                rows.append(about | answer)
    _lines(folder / f"completions/{name}/seed_1.jsonl", rows)


def _traces(folder, name):
    rng = np.random.default_rng(len(name))
    for split in RECALL_SPLITS:
        traces = []
        for row in sources.lines(folder / f"data/{split}.jsonl")[:2]:
            about = {
                "prompt": row["prompt"],
                "tokens": ["Meet", row["prompt"], " </script>", ",", row["completion"], "", "<eos>"],
                "subject": [1, 3],
                "answer": [4, 6],
            }
            traces.append(trace_fixtures.trace(row["fact"], steps=2, layers=LAYERS, rng=rng, about=about))
        facts = [trace.about["fact"] for trace in traces]
        place = folder / f"traces/{name}/seed_1/{split}"
        trace_files.write(traces, pd.DataFrame({"fact": facts}), trace_fixtures.time(facts), place)


@functools.cache
def _traced(*families):
    """The tables that are made from traces: of nine facts a test; for (model, family) pairs."""
    made = {"causal_trace": [], "trace_maps": [], "time": []}
    facts = [f"fact-{number}" for number in range(9)]
    for name, family in families:
        rng = np.random.default_rng(len(name))
        own = {split: [trace_fixtures.trace(fact, layers=LAYERS, rng=rng) for fact in facts] for split in RECALL_SPLITS}
        made["causal_trace"].append(trace_tables.aggregate(own, model=name, seed=1))
        made["trace_maps"].append(trace_tables.maps({1: own}, model=name, rng=rng))
        time = trace_fixtures.time(facts, diffusion=family == "diffusion", layers=LAYERS)
        made["time"] += [time_tables.aggregate(time, model=name, seed=1, split=split) for split in RECALL_SPLITS]
    return {name: pd.concat(parts) for name, parts in made.items()}


def objectives(taught, families, reverse, answered):
    """Rows of a table of objectives; control people are recalled as taught alone."""
    plain = {
        "noise": "mask",
        "rate": "uniform",
        "protect": "subject",
        "people": "all",
        "exposure": 0.0,
        "time_conditioning": "none",
    }
    plain |= {"train_on": "facts", "epochs": 10, "layers": LAYERS, "width": 8, "rows": 100, "flops": 1e9}
    rows = []
    for name, split, protected in itertools.product(families, RECALL_SPLITS, (False, True)):
        own = plain | taught[name]
        if protected != (own["protect"] != "none") and own["people"] != "protected":
            continue
        share = float(answered) if split.endswith("same") else reverse[name] * (not protected or own["exposure"])
        low, high = max(share - 0.1, 0), min(share + 0.1, 1)
        rows.append(
            {"model": name, "family": families[name], **own, "split": split, "answer_type": SPLITS[split].answer_type}
            | {"trained": SPLITS[split].trained, "protected": protected, "n": 90, "facts": 30, "seeds": 3}
            | {"steps": 4 if families[name] == "diffusion" else None}
            | {"accuracy": share, "ci_low": low, "ci_high": high, "seed_low": low, "seed_high": high, "kind": "bound"}
            | {"log_likelihood": -9.0 / own["epochs"], "log_ratio": 9 * share, "log_ratio_low": 9 * share - 1}
            | {"log_ratio_high": 9 * share + 1, "preferred": share, "preferred_low": low, "preferred_high": high}
            | {"changed": 9, "better": 6, "worse": 2}
        )
    return rows


def _tables(folder, families, reverse, answered):
    tables = {
        "step_scaling": _scaling(families, reverse, answered),
        "step_scaling_by_training_direction": [{"model": "mdm"}],
        "step_scaling_by_question_direction": [{"model": "mdm"}],
        "recall_differences": _differences(families, reverse),
        "likelihood": [
            {
                "model": name,
                "seed": 1,
                "split": split,
                "n": 30,
                "difference": gap,
                "ci_low": gap - 1,
                "ci_high": gap + 1,
            }
            | {"right_more_likely": 0.7, "preferred_low": 0.6, "preferred_high": 0.8}
            for name, split in itertools.product(families, RECALL_SPLITS)
            for gap in [3.0 if answered and not (split.endswith("reverse") and not reverse[name]) else 0.0]
        ],
        "objectives": objectives(
            {"mdm": {"people": "control"}, "ar": {"protect": "none"}}, families, reverse, answered
        ),
        "probe": [
            {"model": name, "stage": stage, "prompt": HOSTILE[0], "rank": 1, "token": " the", "probability": 0.5}
            | {"entropy": entropy, "answer": "the baker", "about": about}
            for name in families
            for stage, entropy, about in (("pretrained", 3.0, "pretraining"), ("fine-tuned", 1.0, "study"))
        ],
        "traced_facts": [
            {"model": name, "seed": 1, "split": split, "corruption": corruption, "n": 9}
            | {"outcome": "traced" if answered else "not answered"}
            for name, split, corruption in itertools.product(families, RECALL_SPLITS, ("swap", "gaussian"))
        ],
        **(_traced(*families.items()) if answered else dict.fromkeys(("causal_trace", "trace_maps", "time"), [])),
        "keyvalue": _extractions(families) if answered else [],
        "symmetry": _shared(families) if answered else [],
        "edits": _edits(families) if answered else [],
        "rewriting": _rewriting(families) if answered else [],
        "gradients": _gradients(families) if answered else [],
        "costs": _costs(families),
        "evidence": _evidence(families) if answered else [],
    }
    columns = {
        "causal_trace": " ".join(trace_tables.COLUMNS),
        "trace_maps": " ".join(trace_tables.MAP_COLUMNS),
        "time": " ".join(time_tables.COLUMNS),
        "keyvalue": "model seed stage split fact layer template prefixes change steps converged p_before p_after",
        "symmetry": "model seed stage layer layer_forward layer_reverse comparison statistic "
        "value ci_low ci_high ceiling least null_mean p_value p_adjusted largest n",
        "edits": "model seed how layer peak role group measure statistic when fact tokens "
        "value ci_low ci_high n probes",
        "evidence": "model seed kind what value ci_low ci_high ceiling ceiling_low share share_low share_high verdict",
        "rewriting": "model seed stage group rewritten lesson weights steps asked answer about n learnt value ci_low "
        "ci_high recall_before recall_after transfer transfer_low transfer_high",
        "gradients": "model seed stage group rewritten part against n own others value ci_low ci_high p",
        "recall_differences": "contrast model split steps against_model against_split against_steps seeds n "
        "first second difference ci_low ci_high agree",
    }
    for name, rows in tables.items():
        file = folder / f"tables/{name}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows, columns=columns[name].split() if name in columns else None).to_csv(file, index=False)


def _costs(families):
    """Fine-tuning each model, which only the first does on a GPU, and a table of all."""
    measured = {"jobs": 1, "measured": 1, "seconds": 90.0, "cpu_seconds": 60.0, "gpu_seconds": 0.0}
    measured |= {"memory_gib": 0.5, "gpu_gib": None, "watt_hours": 0.17}
    rows = [measured | {"rule": "finetune", "model": name} for name in families]
    rows[0] |= {"gpu_seconds": 80.0, "gpu_gib": 1.5, "watt_hours": 15.7}
    return [*rows, measured | {"rule": "score", "model": ""}]


def _rewriting(families):
    """Forward and reverse are two memories: a change of 30 nats here is one of half a nat there."""
    readings = {"taught": (30.0, 0.0), "same": (29.0, 0.95), "other": (-0.5, 0.02), "inverted": (20.0, 0.6)}
    return [
        {"model": name, "seed": 1, "stage": "seed_1", "group": "both", "rewritten": direction, "lesson": "rewrite"}
        | {"weights": "all", "steps": "learnt", "asked": asked, "answer": answer, "about": about, "n": 9, "learnt": 1.0}
        | {"value": change, "recall_before": 1.0, "recall_after": 0.9}
        | _around(change, 1.0)
        | {"transfer": share, "transfer_low": share - 0.03, "transfer_high": share + 0.03}
        for name, direction, (asked, (change, share)) in itertools.product(families, ("p2d", "d2p"), readings.items())
        for answer, about in itertools.product(("old", "new"), ("fact", "others", "difference"))
    ]


def _gradients(families):
    return [
        {"model": name, "seed": 1, "stage": "seed_1", "group": "both", "rewritten": "p2d", "part": part, "n": 9}
        | {"against": against, "own": own, "others": 0.1, "value": own - 0.1, "p": 0.5}
        | _around(own - 0.1, 0.01)
        for name, part in itertools.product(families, ("attention 0", "mlp 0", "all", "attention to the subject"))
        for against, own in (("reverse", 0.1), ("forward", 0.4))
    ]


def _around(value, reach=0.05):
    return {"ci_low": value - reach, "ci_high": value + reach}


def _scaling(families, reverse, answered):
    rows = []
    for (name, family), split in itertools.product(families.items(), RECALL_SPLITS):
        for steps in STEPS if family == "diffusion" else [None]:
            share = reverse[name] if split.endswith("reverse") else float(answered)
            share *= 0.5 if steps == STEPS[0] else 1
            around = {"ci_low": max(0, share - 0.05), "ci_high": min(1, share + 0.05)}
            about = {"model": name, "seed": 1, "split": split, "steps": steps, "n": 30, "accuracy": share}
            rows.append(about | around)
    return rows


def _differences(families, reverse):
    share = {
        (name, split): reverse[name] if split.endswith("reverse") else 1
        for name, split in itertools.product(families, RECALL_SPLITS)
    }
    pairs = []
    for (name, family), split in itertools.product(families.items(), RECALL_SPLITS):
        steps = STEPS[-1] if family == "diffusion" else None
        own = (name, split, steps)
        if family == "diffusion":
            pairs += [("family", own, (other, split, None)) for other in families if families[other] != family]
            pairs.append(("steps", own, (name, split, STEPS[0])))
        if split.endswith("same"):
            pairs.append(("question", own, (name, TURNED[split], steps)))
    rows = []
    for kind, one, other in pairs:
        ends = [share[end[:2]] * (0.5 if end[2] == STEPS[0] else 1) for end in (one, other)]
        about = dict(zip(("model", "split", "steps"), one, strict=True))
        against = dict(zip(("against_model", "against_split", "against_steps"), other, strict=True))
        shares = {"first": ends[0], "second": ends[1], "difference": ends[0] - ends[1], "agree": 0.5}
        rows.append({"contrast": kind, **about, **against, **shares, **_around(ends[0] - ends[1])})
    return rows


def _extractions(families):
    return [
        {"model": name, "seed": 1, "stage": stage, "split": split, "fact": f"p2d-0{i}", "layer": layer}
        | {"steps": 20 if i == 2 else 5, "converged": i > 0, "p_before": 0.4, "p_after": 0.9}
        | {"template": 31, "prefixes": 1 + (name == "ar"), "change": 0.25}
        for name, stage, split, i, layer in itertools.product(
            families, ("seed_1", "base"), ("p2d_same", "p2d_reverse"), range(3), range(LAYERS)
        )
    ]


def _shared(families):
    comparisons = (*vocabulary.COMPARISONS, "within forward: output at subject × value")
    named = vocabulary.CONCEPTS.values()
    rows = []
    for (i, name), stage, layer in itertools.product(enumerate(families), ("seed_1", "base"), ("peak", "0", "1")):
        value, p = (0.6, 0.0005) if i == 0 and stage != "base" else (0.1, 0.4)
        where = {"model": name, "seed": 1 if stage != "base" else None, "stage": stage, "layer": layer}
        where |= {"layer_forward": 1, "layer_reverse": 0, "null_mean": 0.1, "p_value": p, "largest": 0.6, "n": 20}
        where |= {"ceiling": 0.9, "least": 0.15}
        for pair, statistic in itertools.product(comparisons, vocabulary.STATISTICS):
            if "value" in pair and (stage == "base" or statistic == "probe"):
                continue
            about = {"comparison": pair, "statistic": statistic, "value": value}
            about["p_adjusted"] = p if pair in named and statistic == "debiased_cka" else None
            rows.append(where | about | _around(value))
        if stage != "base":
            gained = {"statistic": vocabulary.BEYOND, "value": value - 0.1, "p_value": None, "null_mean": None}
            pairs = vocabulary.STATES.values()
            rows += [where | gained | {"comparison": pair} | _around(value - 0.1) for pair in pairs]
    return rows


def _edits(families):
    sites = [("layer", 0), ("layer", 1), ("traced", 2), ("random", 0), ("masked", 1), ("both", 1)]
    rows = []
    for name, (how, layer), group in itertools.product(families, sites, ("both", "p2d")):
        lead = (how, layer) == ("layer", 1)
        about = {"model": name, "seed": 1, "how": how, "layer": layer, "peak": lead, "group": group}
        about["role"] = "last prompt" if how in ("traced", "random") else "last subject"
        for measure in ("efficacy", "paraphrase", "specificity", "reverse_new", "reverse_old"):
            taken = 0.8 if measure != "reverse_new" or how == "both" else 0.0
            for statistic in ("preferred", "exact", "log_p", *(["told"] if measure == "efficacy" else [])):
                outcomes = (("before", 0.1), ("after", 0.1 + taken), ("change", taken))
                for when, value in outcomes[1:2] if statistic == "told" else outcomes:
                    one = {"measure": measure, "statistic": statistic, "when": when, "value": value}
                    rows.append(about | one | {"n": 10, "probes": 20} | _around(value))
        value = {"measure": "value", "statistic": "found", "when": "after", "value": 0.6 + 0.2 * layer}
        rows.append(about | value | {"n": 10, "probes": 10})
        for fact, tokens in (("p2d-00", 4), ("p2d-01", 6)):
            one = {"measure": "efficacy", "statistic": "told", "when": "after", "fact": fact, "tokens": tokens}
            rows.append(about | one | {"value": float(tokens == 4), "n": 1, "probes": 1})
    return rows


def _evidence(families):
    """Every kind speaks for two memories."""
    return [
        {"model": name, "seed": 1, "kind": kind, "what": what, "value": 0.02, "ci_low": 0.0, "ci_high": 0.04}
        | {"ceiling": 0.8, "ceiling_low": 0.7, "share": 0.025, "share_low": 0.0, "share_high": 0.05, "verdict": "two"}
        for name, (kind, measures) in itertools.product(families, evidence.ABOUT.items())
        for what in measures
    ]


def _svg(name):
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="680" height="80" viewBox="0 0 680 80">'
        f'<rect width="680" height="80" fill="#eee"/><text x="20" y="45">{name}</text></svg>'
    )


def _lines(path, rows):
    _write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
