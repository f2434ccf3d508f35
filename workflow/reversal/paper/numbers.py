"""Every number of the prose, and every choice between sentences, computed from the sources, with its files.

A finding is {estimate, low, high}; with a `verdict` it says whether its interval lies above zero ("more"), below it
("less") or around it ("unclear"). With several seeds the estimate is their mean and the interval spans all of theirs,
so that a verdict holds for every seed; differences of recall are of all seeds' prompts.
"""

import math

import numpy as np

from ..data.facts import RECALL_SPLITS, SPLITS
from ..figures.read import last
from ..storage.vocabulary import DONOR, RIDGE
from . import numbers_memory, numbers_objectives, numbers_tracing
from .costs import PEAKS, SUMS
from .findings import finding, judged, over_seeds


def compute(sources):
    """{dotted name: {"value", "source"}}, sorted as the sections are; a source is the files a number comes from."""
    found = {}
    for section, make in SECTIONS.items():
        for key, value in _leaves(make(sources)):
            name = f"{section}.{key}"
            found[name] = {"value": value, "source": source(name)}
    return found


def source(name):
    """The files that a number comes from: those of the longest prefix of its name that FILES knows."""
    while name not in FILES:
        name = name.rpartition(".")[0]
    return FILES[name]


def nested(numbers):
    """What `compute` found, as the template names it."""
    tree = {}
    for dotted, leaf in numbers.items():
        *path, last = dotted.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = leaf["value"]
    return tree


def _leaves(value, path=()):
    if isinstance(value, dict) and value:
        for key, part in value.items():
            if "." in str(key):
                raise ValueError(f"{key!r} has a dot; names of numbers are joined by dots")
            yield from _leaves(part, (*path, str(key)))
    else:
        yield ".".join(path), _plain(value)


def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def study(sources):
    """The study's own description of itself."""
    config, rows = sources.config, sources.rows
    splits = {name: rows[name] for name in RECALL_SPLITS}
    groups = [fact["group"] for fact in sources.facts]
    return {
        "generated": config["data"]["source"] == "generated",
        "theirs": sources.theirs,
        "rows_from": config["data"]["rows"]["train"],
        "people": len(sources.facts),
        "people_by_group": {group: groups.count(group) for group in ("p2d", "d2p", "both")},
        "train_rows": len(rows["train"]),
        "test_rows": {name: len(own) for name, own in splits.items()},
        "test_templates": len({row["template"] for row in rows["p2d_same"]}),
        "held_out": _frames(rows["train"]).isdisjoint(_frames(row for own in splits.values() for row in own)),
        "example": _example(sources),
        "models": [
            {
                "name": name,
                "label": label,
                "family": sources.families[name],
                "origin": sources.origins[name],
            }
            for name, label in sources.labels.items()
        ],
        "labels": sources.labels,
        "largest": max(network["parameters"] for network in sources.networks.values()),
        "same_shape": len({_shape(network) for network in sources.networks.values()}) == 1,
        "mdm": sources.first("diffusion"),
        "ar": sources.first("autoregressive"),
        "seeds": config["seeds"],
        "splits": {name: _split(split) for name, split in SPLITS.items()},
    }


def _frames(rows):
    """What is around the subjects of rows, in their prompts."""
    return {(row["prompt"][: row["subject"][0]], row["prompt"][row["subject"][1] :]) for row in rows}


def _shape(network):
    return tuple(network[part] for part in ("architecture", "layers", "heads", "width", "mlp"))


def _split(split):
    how = {"same": " asked as taught", "reverse": " asked in reverse", "both": " taught both ways"}[split.trained]
    return {"file": split.file, "answer_type": split.answer_type, "trained": split.trained, "phrase": f"{split.answer_type}s{how}"}


def _example(sources):
    """A sentence that teaches of a person in one direction, and a question in the other."""
    ahead, back = sources.rows["p2d_same"][0], sources.rows["p2d_reverse"][0]
    taught = next(row for row in sources.rows["train"] if row["fact"] == ahead["fact"])
    return {"taught": taught["prompt"] + taught["completion"], "reverse": back["prompt"]}


def networks(sources):
    """Shapes, read from the models themselves."""
    return sources.networks


def sampling(sources):
    """How answers are drawn."""
    own = {
        sources.labels[name]: model["canvas"] for name, model in sources.config["models"].items() if "canvas" in model
    }
    samples = sources.config["likelihood"]["samples"]
    return sources.config["sampling"] | {"own_canvas": own, "likelihood_samples": samples}


def training(sources):
    """The recipe, what of it the base had, and where each model's loss went: means over the first and last epoch."""
    config = sources.config
    here = any(model["base"] == "pretrain" for model in config["models"].values())
    found = {}
    for model, history in sources.histories.groupby("model"):
        ends = [history[history.epoch == epoch].loss.mean() for epoch in (history.epoch.min(), history.epoch.max())]
        found[model] = {"first_loss": ends[0], "last_loss": ends[1]}
    cut = config["pretraining"]["recipe"].get("subword_dropout", 0) if here else 0
    return {"recipe": config["training"], "pretraining_subword_dropout": cut, "models": found}


def recall(sources):
    """Recall: by steps, against the other family, and asked the other way round."""
    scaling = sources.tables["step_scaling"]
    mdm, ar = sources.first("diffusion"), sources.first("autoregressive")
    steps = sorted(int(step) for step in scaling.steps.dropna().unique())
    found = {"steps": steps, "fewest": min(steps, default=0), "most": max(steps, default=0), "at": {}, "curve": {}}
    for model in sources.families:
        own = scaling[scaling.model == model]
        found["curve"][model] = (
            {
                split: {step: _accuracy(own[(own.split == split) & (own.steps == step)]) for step in steps}
                for split in RECALL_SPLITS
            }
            if own.steps.notna().any()
            else {}
        )
        found["at"][model] = {split: _accuracy(last(own[own.split == split])) for split in RECALL_SPLITS}
    differences = sources.tables["recall_differences"]
    found["curse"] = {
        model: {
            row.split.split("_")[0]: _difference(row) for row in _contrast(differences, "people", model).itertuples()
        }
        for model in sources.families
    }
    gained = _contrast(differences, "steps", mdm)
    found["gain"] = _by_split(gained[gained.against_steps == gained.against_steps.min()])
    versus = _contrast(differences, "family", mdm)
    found["versus"] = _by_split(versus[(versus.against_model == ar) & (versus.steps == versus.steps.max())])
    # So many steps that more change nothing: they reveal the same tokens in the same order, later.
    settled = gained[gained.agree.groupby(gained.against_steps).transform("min") == 1]
    found["settled"] = None if settled.empty else int(settled.against_steps.min())
    return found


def _accuracy(rows):
    return over_seeds(rows.accuracy, rows.ci_low, rows.ci_high) | {"n": int(rows.n.sum())}


def _contrast(differences, kind, model):
    return differences[(differences.contrast == kind) & (differences.model == model)]


def _by_split(rows):
    return {row.split: _difference(row) for row in rows.itertuples()}


def _difference(row):
    found = judged(finding(row.difference, row.ci_low, row.ci_high))
    return found | {"first": row.first, "second": row.second}


def likelihood(sources):
    """Is the right answer more likely than a wrong one? Log-likelihood ratios in nats."""
    table = sources.tables["likelihood"]
    found = {}
    for model in sources.families:
        found[model] = {}
        for split in RECALL_SPLITS:
            rows = table[(table.model == model) & (table.split == split)]
            found[model][split] = judged(over_seeds(rows.difference, rows.ci_low, rows.ci_high)) | {
                "preferred": over_seeds(rows.right_more_likely, rows.preferred_low, rows.preferred_high),
                "n": int(rows.n.sum()),
            }
    return found


def probe(sources):
    """What each base was asked `about`."""
    table = sources.tables["probe"]
    before = table[table.stage == "pretrained"].groupby("model").about.first()
    return {name: {"about": before[name]} for name in sources.config["models"]}


SETTINGS = ("data", "training", "likelihood", "tracing", "keyvalue", "symmetry", "edits", "rewriting")


def settings(sources):
    """{section: {setting: value as text}} of what the numbers depend on, from the configuration and the tables."""
    config = sources.config | {"data": sources.config["data"].get(sources.config["data"]["source"], {})}
    found = {section: dict(_flat(config[section])) for section in SETTINGS}
    for name, model in config["models"].items():
        own = {key: model[key] for key in ("objective", "train_on", "training", "network", "canvas") if key in model}
        found[sources.labels[name]] = dict(_flat(own))
    extractions = sources.tables["keyvalue"]
    if len(extractions):
        templates = {
            answer_type: sorted(set(rows.template))
            for answer_type, rows in extractions.groupby(extractions.split.map(lambda split: SPLITS[split].answer_type))
        }
        found["keyvalue"] |= {f"template asking for the {answer_type}": _setting(own) for answer_type, own in templates.items()}
        accepted_prefixes = extractions.groupby("model", sort=False).prefixes.unique()
        found["keyvalue"]["prefixes used, the empty one included"] = ", ".join(
            f"{sources.labels[model]} {_setting(sorted(own))}" for model, own in accepted_prefixes.items()
        )
    found["edits"] |= {"ridge, of the second moment's mean diagonal": f"{RIDGE:g}", "donor": DONOR}
    return found


def _flat(values, path=()):
    """(name, text) of nested settings, names joined by commas."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, (*path, name))
        else:
            yield ", ".join((*path, name)).replace("_", " "), _setting(value)


def _setting(value):
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_setting, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def published(sources):
    """The published recall, and the numbers of runs kept with the paper."""
    table = sources.published.set_index("steps")
    recalled = {int(step): {split: table.loc[step, split] for split in RECALL_SPLITS} for step in table.index}
    return {"recall": recalled, "kept": sources.kept}


def costs(sources):
    """What the jobs cost, by rule and together."""
    table, energy = sources.tables["costs"], sources.config["energy"]
    peaks = table[PEAKS].max()
    by_rule = table.groupby("rule", sort=False)
    rules = by_rule[[*SUMS, "watt_hours"]].sum().join(by_rule[PEAKS].max()).reset_index()
    total = table[[*SUMS, "watt_hours"]].sum()
    return {"rules": rules.to_dict("records"), "total": {**total, **peaks}, **energy}


SECTIONS = {
    "study": study,
    "networks": networks,
    "sampling": sampling,
    "training": training,
    "recall": recall,
    "likelihood": likelihood,
    "objectives": numbers_objectives.objectives,
    "probe": probe,
    "tracing": numbers_tracing.tracing,
    "keyvalue": numbers_memory.keyvalue,
    "symmetry": numbers_memory.symmetry,
    "edits": numbers_memory.edits,
    "settings": settings,
    "rewriting": numbers_memory.rewriting,
    "evidence": numbers_memory.evidence,
    "costs": costs,
    "published": published,
}
FILES = {
    "study": ["config.yaml"],
    "study.people": ["data/facts.jsonl"],
    "study.people_by_group": ["data/facts.jsonl"],
    "study.train_rows": ["data/train.jsonl"],
    "study.test_rows": [f"data/{split}.jsonl" for split in RECALL_SPLITS],
    "study.test_templates": ["data/p2d_same.jsonl"],
    "study.example": ["data/train.jsonl", "data/p2d_same.jsonl", "data/p2d_reverse.jsonl"],
    "study.largest": ["models"],
    "study.same_shape": ["models"],
    "networks": ["models"],
    "sampling": ["config.yaml"],
    "training.recipe": ["config.yaml"],
    "training.pretraining_subword_dropout": ["config.yaml"],
    "training.models": ["models"],
    "recall": ["tables/step_scaling.csv"],
    **dict.fromkeys(
        ("recall.curse", "recall.gain", "recall.versus", "recall.settled"), ["tables/recall_differences.csv"]
    ),
    "likelihood": ["tables/likelihood.csv"],
    "objectives": ["tables/objectives.csv"],
    "objectives.kept": ["paper/reference"],
    "objectives.passes": ["paper/reference"],
    "probe": ["tables/probe.csv"],
    "tracing": [f"tables/{name}.csv" for name in ("causal_trace", "traced_facts", "trace_maps", "time")],
    "keyvalue": ["tables/keyvalue.csv", "tables/symmetry.csv"],
    "symmetry": ["tables/symmetry.csv"],
    "edits": ["tables/edits.csv"],
    "rewriting": ["tables/rewriting.csv", "tables/gradients.csv"],
    "evidence": ["tables/evidence.csv"],
    "settings": ["config.yaml", "tables/keyvalue.csv"],
    "costs": ["tables/costs.csv", "config.yaml"],
    "published.recall": ["paper/table3.csv"],
    "published.kept": ["paper/reference"],
}
