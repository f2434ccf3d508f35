"""Numbers about keys and values, what those of two directions share, and what an edit of one fact does."""

import math

from ..data.facts import SPLITS
from ..memory.vocabulary import BASE, CONCEPTS, PEAK
from .findings import difference, judged, over_seeds

SIGNIFICANT = 0.05
MEASURES = ("efficacy", "paraphrase", "specificity", "reverse_new", "reverse_old")


def keyvalue(sources):
    """How the search for values went after fine-tuning, where MLPs matter most: by model and question."""
    table, peaks = (sources.tables[name] for name in ("keyvalue", "symmetry"))
    table, peaks = table[table.stage != BASE], peaks[(peaks.stage != BASE) & (peaks.layer == PEAK)]
    asks = table.split.map(lambda split: SPLITS[split].asks)
    most = sources.config["keyvalue"]["search"]["steps"]
    found = {}
    for model, run in peaks.groupby("model", sort=False):
        for what, layer in (("description", run.layer_forward.iloc[0]), ("name", run.layer_reverse.iloc[0])):
            rows = table[(table.model == model) & (asks == what) & (table.layer == layer)]
            if len(rows):
                found.setdefault(model, {})[what] = {
                    "layer": int(layer),
                    "searches": len(rows),
                    "converged": rows.converged.mean(),
                    "p_before": rows.p_before.median(),
                    "p_after": rows.p_after.median(),
                    "improving": (rows.steps == most).mean(),  # when the search ended
                }
    return {"models": found, "any": bool(found), "steps": most}


def _who(model, base):
    """A trained model, or the base it began from."""
    return f"{model} base" if base else model


def symmetry(sources):
    """What the forward and the reverse memory of the same facts share, where MLPs matter most in either direction.

    `pairing` counts the tests that ask whether the same facts correspond, `directions` those that ask only whether both
    runs use the same directions of their space. `by_layer` has the pairing tests of every layer. `tests` is how many
    are corrected together, and `least_p` what so many leave of the smallest p that the permutations can give.
    """
    table = sources.tables["symmetry"]
    table = table[table.value.notna()]
    layers = table[table.layer != PEAK]
    table = table[table.layer == PEAK]
    found = {"models": {}, "labels": {}}
    for (model, base), rows in table.groupby(["model", table.stage == BASE], sort=False):
        who = _who(model, base)
        tests = {
            comparison: {statistic: _test(some) for statistic, some in part.groupby("statistic", sort=False)}
            for comparison, part in rows.groupby("comparison", sort=False)
        }
        corrected = {kind: [] for kind in ("pairing", "directions")}
        for own in tests.values():
            for statistic, test in own.items():
                if not math.isnan(test["p_value"]):
                    corrected["directions" if statistic == "subspace_overlap" else "pairing"].append(
                        test["significant"]
                    )
        found["labels"][who] = sources.labels[model] + (" before fine-tuning" if base else "")
        found["models"][who] = {
            "base": bool(base),
            **{kind: {"tests": len(each), "significant": sum(each)} for kind, each in corrected.items()},
            "comparisons": tests,
            "by_layer": _by_layer(layers[(layers.model == model) & ((layers.stage == BASE) == base)]),
        }
        if set(CONCEPTS.values()) <= set(tests):
            found["models"][who] |= {what: tests[pair]["debiased_cka"] for what, pair in CONCEPTS.items()}
    found["any"] = any(own["pairing"]["tests"] for own in found["models"].values())
    found["permutations"] = sources.config["symmetry"]["permutations"]
    found["tests"] = max(
        (own["pairing"]["tests"] + own["directions"]["tests"] for own in found["models"].values()), default=0
    )
    found["least_p"] = found["tests"] / (1 + found["permutations"])
    found["beyond_base"] = {
        model: {
            concept: difference(found["models"][model][concept], found["models"][f"{model} base"][concept])
            for concept in CONCEPTS
        }
        for model in sources.families
        if all("name" in found["models"].get(who, {}) for who in (model, f"{model} base"))
    }
    return found


def _by_layer(rows):
    """For each layer how many tests ask whether the same facts correspond, and how many find it in every seed."""
    tests = rows[(rows.statistic != "subspace_overlap") & rows.p_adjusted.notna()]
    found = tests.p_adjusted.groupby([tests.layer.astype(int), tests.comparison, tests.statistic]).max() < SIGNIFICANT
    return [
        {"layer": int(layer), "tests": len(each), "significant": int(each.sum())}
        for layer, each in found.groupby(level=0)
    ]


def _test(rows):
    p = rows.p_adjusted.max() if rows.p_adjusted.notna().all() else math.nan
    return over_seeds(rows.value, rows.ci_low, rows.ci_high) | {
        "n": int(rows.n.min()),
        "chance": rows.null_mean.mean(),
        "p_value": p,
        "significant": bool(p < SIGNIFICANT),
    }


def edits(sources):
    """What rank-one edits did, by the edited people's training, measure and statistic, before and after.

    `groups` has the edits in one `layer`: the one to which tracing `points`, or else the first. `best` has
    the share of edits that take in the layer where most do, the groups' mean; and the largest share that holds in
    reverse, of any layer and group. `search` has the share of edits whose search found a value there that gives the new
    object a probability of at least `threshold`, and whether most searches `failed` in every layer.
    """
    table, peaks = sources.tables["edits"], sources.tables["symmetry"]
    pointed = set(peaks[peaks.layer == PEAK].model)
    found = {"models": {}, "any": bool(len(table))}
    asked = table[table.peak.astype(bool) & table.measure.isin(MEASURES)]
    for (model, group), rows in asked.groupby(["model", "group"], sort=False):
        measures = {}
        for (measure, statistic), part in rows.groupby(["measure", "statistic"], sort=False):
            before, after = (_outcome(part[part.when == when]) for when in ("before", "after"))
            measures.setdefault(measure, {})[statistic] = {
                "before": before,
                "after": after,
                "change": difference(after, before),
            }
        measures = {measure: measures[measure] for measure in MEASURES if measure in measures}
        where = {"layer": int(rows.layer.iloc[0]), "points": model in pointed}
        own = found["models"].setdefault(model, where | {"groups": {}})
        own["groups"][group] = measures
    for model, own in found["models"].items():
        own["best"] = _best_layer(table[table.model == model])
        values = table[(table.model == model) & (table.measure == "value")].groupby("layer").value.mean()
        threshold = sources.config["keyvalue"]["search"]["threshold"]
        failed = bool(values.max() < 0.5)
        own["search"] = {"there": values[own["layer"]], "threshold": threshold, "failed": failed}
    return found


def _best_layer(rows):
    after = rows[(rows.when == "after") & (rows.statistic == "preferred")]
    shares = after.groupby(["measure", "layer", "group"]).value.mean()
    efficacy = shares["efficacy"].groupby("layer").mean()
    most = {"efficacy": efficacy.max(), "reverse_anywhere": shares["reverse_new"].max()}
    return most | {"layers": len(efficacy)}


def _outcome(rows):
    return over_seeds(rows.value, rows.ci_low, rows.ci_high) | {"n": int(rows.n.sum())}


def rewriting(sources):
    """What reaches the reverse question when a fact is rewritten in one direction, by model and direction taught.

    Changes are in nats, `carry` are shares of the change of what was taught. `one_memory` is the control: the reverse
    derived from forward answers, where both share one memory by construction. `most` is the largest share that an
    interval of the reverse question allows; `gradients` are cosines of the two questions' gradients.
    """
    table, compared = sources.tables["rewriting"], sources.tables["gradients"]
    table = table[(table.stage != BASE) & (table.lesson == "rewrite") & (table.steps == "learnt")]
    table = (
        table[(table.weights == table.weights.iloc[0]) & (table.group == table.group.iloc[0])] if len(table) else table
    )
    found = {"models": {}, "any": bool(len(table)), "group": table.group.iloc[0] if len(table) else None}
    for (model, direction), rows in table.groupby(["model", "rewritten"], sort=False):
        one = {
            "n": int(rows.n.min()),
            "learnt": rows.learnt.mean(),
            "changes": {
                f"{asked}_{answer}_{about}": over_seeds(part.value, part.ci_low, part.ci_high)
                for (asked, answer, about), part in rows.groupby(["asked", "answer", "about"], sort=False)
            },
        }
        shares = rows[rows.about == "difference"]
        carried = {
            (asked, answer): judged(over_seeds(part.carry_over, part.carry_low, part.carry_high))
            for (asked, answer), part in shares.groupby(["asked", "answer"], sort=False)
        }
        one["carry"] = {answer: carried["other", answer] for answer in ("old", "new")}
        one["same"], one["one_memory"] = carried["same", "old"], carried["inverted", "new"]
        one["most"] = max(one["carry"][answer]["high"] for answer in one["carry"])
        found["models"].setdefault(model, {"directions": {}})["directions"][direction] = one
    for model, own in found["models"].items():
        rows = compared[(compared.model == model) & (compared.stage != BASE) & (compared.group == found["group"])]
        whole = rows[rows.part == "all"]
        own["gradients"] = {
            against: judged(over_seeds(part.value, part.ci_low, part.ci_high)) | {"p": part.p.max()}
            for against, part in whole.groupby("against", sort=False)
        }
        looks = rows[rows.part == "attention to the subject"]
        own["attention"] = judged(over_seeds(looks.value, looks.ci_low, looks.ci_high)) | {"p": looks.p.max()}
        own["most"] = max(one["most"] for one in own["directions"].values())
        own["verdict"] = memories(own)
    return found


def memories(own):
    """What a model's carry-over says: "two" memories, "one", "partly" shared, or "unclear".

    Two, where the control shows that sharing would have been seen and no interval of the reverse question allows a
    tenth of it; one, where all are above a half.
    """
    shares = [share for one in own["directions"].values() for share in one["carry"].values()]
    if any(math.isnan(share["low"]) for share in shares):
        return "unclear"
    if own["most"] < 0.1 and all(one["one_memory"]["low"] > 0.1 for one in own["directions"].values()):
        return "two"
    if all(share["low"] > 0.5 for share in shares):
        return "one"
    return "partly" if any(share["low"] > 0 for share in shares) else "unclear"
