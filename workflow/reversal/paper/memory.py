"""Numbers about where a fact is recalled from, what its keys and values share, and what an edit of one does."""

import math

import pandas as pd

from ..data.facts import RECALL_SPLITS, SPLITS
from ..tracing import vocabulary
from .findings import difference, judged, over_seeds

SUBJECT = ("first subject", "middle subject", "last subject")
TOGETHER = "whole subject"
KINDS = ("state", "mlp", "attn")
SEVERED = ("severed_mlp", "severed_attn")
# The same question about people who were taught the other way round.
PAIRS = {"name": ("d2p_same", "p2d_reverse"), "description": ("p2d_same", "d2p_reverse")}
QUESTIONS = ("p2d_same", "d2p_same")
SIGNIFICANT = 0.05
FEWEST_FACTS = 5  # below this, averages over facts are not compared in words
PEAK = "peak"  # in the tables of symmetry, in place of a layer
BASE = "base"  # the stage before fine-tuning
# The post's question: is a concept the same as a key and as a value?
HEADLINES = {
    "name": "name: projected key forward × value reverse",
    "description": "description: value forward × projected key reverse",
}

MEASURES = ("efficacy", "paraphrase", "specificity", "reverse_new", "reverse_old")


def tracing(evidence):
    """Causal traces: what hiding the subject costs, and which states bring the answer back."""
    table, outcomes = evidence.tables["causal_trace"], evidence.tables["traced_facts"]
    table = table[table.step.isna() & (table.score == "probability")]
    present = list(outcomes.corruption.unique())
    main = vocabulary.leading(present)
    found = {"corruption": main, "corruptions": present, "models": {}}
    for model in evidence.families:
        asked = outcomes[(outcomes.model == model) & (outcomes.corruption == main)]
        effects = table[table.model == model]
        own = effects[effects.corruption == main]
        facts = {split: _outcomes(asked[asked.split == split]) for split in RECALL_SPLITS}
        traced = [split for split in RECALL_SPLITS if facts[split]["traced"]]
        by_split = {split: own[own.split == split] for split in traced}
        peaks = {split: _peaks(rows) for split, rows in by_split.items()}
        totals = {split: _totals(rows) for split, rows in by_split.items()}
        enough = {split: peak for split, peak in peaks.items() if facts[split]["traced"] >= FEWEST_FACTS} or peaks
        clear = {split for split, total in totals.items() if total["total"]["verdict"] == "more"}
        found["models"][model] = {
            "facts": facts,
            "traced": sum(count["traced"] for count in facts.values()),
            "asked": sum(count["asked"] for count in facts.values()),
            "untraced": [outcome for outcome in asked[asked.n > 0].outcome.unique() if outcome != "traced"],
            "compared": list(enough),
            "total": totals,
            "total_range": _ends([totals[split]["total"]["estimate"] for split in enough]),
            "peak": peaks,
            "range": {kind: _range(enough, kind) for kind in KINDS if any(kind in peak for peak in enough.values())},
            "stages": _known({split: _stages(rows) for split, rows in by_split.items()}),
            "severed": _all_severed(effects, traced),
            "alike": _known({name: _alike_splits(own, pair, traced, clear) for name, pair in PAIRS.items()}),
            "questions": _alike_splits(own, QUESTIONS, traced, clear),
            "robust": {
                other: _alike(effects, "corruption", (main, other))
                for other in effects.corruption.unique()
                if other != main
            },
        }
        found["models"][model]["moving"] = _counted(found["models"][model]["stages"])
    found["any"] = any(own["traced"] for own in found["models"].values())
    return found


def _known(findings):
    return {name: one for name, one in findings.items() if one is not None}


def _counted(stages):
    """How many splits need the subject more, less, or not clearly otherwise when the answer is nearly there."""
    verdicts = [one["change"]["verdict"] for one in stages.values()]
    revealed = [one["revealed"]["estimate"] for one in stages.values() if one["revealed"]]
    counts = {kind: verdicts.count(kind) for kind in ("more", "less", "unclear")}
    return counts | {"revealed": _ends(revealed)}


def _ends(values):
    return {"least": min(values), "most": max(values)} if values else None


def _range(peaks, kind):
    """Over the splits: where the best cells at the subject and elsewhere are, and how great their effects."""
    found = {}
    for place in ("subject", "together", "elsewhere"):
        cells = [peak[kind][place] for peak in peaks.values() if peak.get(kind, {}).get(place)]
        if cells:
            found[place] = _ends([cell["estimate"] for cell in cells]) | {
                "clear": sum(cell["verdict"] == "more" for cell in cells),
                "splits": len(cells),
                "layers": sorted({cell["layer"] for cell in cells}),
                "roles": list(dict.fromkeys(cell["role"] for cell in cells)),
            }
    pairs = [(peak[kind]["subject"], peak[kind]["elsewhere"]) for peak in peaks.values() if kind in peak]
    ahead = [one["estimate"] > other["estimate"] for one, other in pairs if one and other]
    return found | {"subject_ahead": sum(ahead), "splits": len(ahead)}


def _outcomes(rows):
    traced = rows.n[rows.outcome == "traced"].sum()
    return {"asked": int(rows.n.sum()), "traced": int(traced)}


def _totals(rows):
    rows = rows[rows.stage == "all"]
    return {kind: _cell(rows[rows.kind == kind]) for kind in ("clean", "corrupted", "total")}


def _cell(rows):
    return judged(over_seeds(rows["mean"], rows.ci_low, rows.ci_high)) | {"n": int(rows.n.sum())}


def _best(rows):
    """The cell with the greatest mean effect over seeds: its layer and role, and the finding there."""
    if rows.empty:
        return None
    layer, role = rows.groupby(["layer", "role"])["mean"].mean().idxmax()
    return _cell(rows[(rows.layer == layer) & (rows.role == role)]) | {"layer": int(layer), "role": role}


def _peaks(rows):
    """For each kind of state the best cell at the subject and the best elsewhere."""
    rows = rows[rows.stage == "all"]
    peaks = {}
    for kind in KINDS:
        own = rows[rows.kind == kind]
        at_subject = own.role.isin(SUBJECT)
        if len(own):
            peaks[kind] = {
                "subject": _best(own[at_subject]),
                "together": _best(own[own.role == TOGETHER]),
                "elsewhere": _best(own[~at_subject & (own.role != TOGETHER)]),
            }
    return peaks


def _stages(rows):
    """Hiding the subject when the first answer token is about to appear, and when the last one is."""
    totals = {stage: rows[(rows.kind == "total") & (rows.stage == stage)] for stage in ("first", "last")}
    if any(own.empty for own in totals.values()):
        return None
    first, last = (_cell(own) for own in totals.values())
    revealed = rows[(rows.stage == "last") & (rows.kind == "state") & (rows.role == "revealed answer")]
    return {"first": first, "last": last, "change": difference(last, first), "revealed": _best(revealed)}


def _all_severed(effects, traced):
    """What the last subject token's best state loses, under the first corruption that severs, over the splits."""
    names = effects[effects.kind.isin(SEVERED)].corruption.unique()
    if not len(names):
        return None
    own = effects[effects.corruption == names[0]]
    found = _known({split: _severed(own[own.split == split]) for split in traced})
    if not found:
        return None
    lost = {kind: [one[kind] for one in found.values()] for kind in SEVERED}
    return {
        "corruption": names[0],
        "splits": found,
        "lost": {kind: {"least": min(shares), "most": max(shares)} for kind, shares in lost.items()},
        "mlp_ahead": sum(mlp > attn for mlp, attn in zip(*(lost[kind] for kind in SEVERED), strict=True)),
        "all": len(found),
    }


def _severed(rows):
    """The share of the last subject token's best state that is gone with either module above kept corrupted."""
    rows = rows[(rows.stage == "all") & (rows.role == "last subject")]
    best = _best(rows[rows.kind == "state"])
    if best is None or best["estimate"] <= 0:
        return None
    there = rows[rows.layer == best["layer"]]
    left = {kind: there[there.kind == kind]["mean"].mean() for kind in SEVERED}
    if any(math.isnan(one) for one in left.values()):
        return None
    return {kind: 1 - one / best["estimate"] for kind, one in left.items()} | {"layer": best["layer"]}


def _alike_splits(rows, pair, traced, clear):
    """How alike the effects of two splits are, both of which were `traced`; `clear` are those where hiding tells."""
    return _alike(rows, "split", pair, clear=set(pair) <= clear) if set(pair) <= set(traced) else None


def _alike(rows, column, pair, clear=True):
    """Correlation of two sets of effects of MLPs and attention over roles, layers and what else tells them apart.

    They are `enough` to be compared where both are of several facts and hiding the subject has a `clear` effect.
    """
    rows = rows[(rows.stage == "all") & rows.kind.isin(("mlp", "attn")) & rows[column].isin(pair)]
    keys = [key for key in ("kind", "role", "layer", "split") if key != column]
    cells = rows.groupby([*keys, column])["mean"].mean().unstack(column)
    cells = cells[list(pair)].dropna() if set(pair) <= set(cells) else pd.DataFrame()
    facts = int(rows.groupby([column, "seed", "split"]).n.max().min()) if len(cells) else 0
    few = len(cells) <= 2 or facts < FEWEST_FACTS
    return {
        "correlation": cells[pair[0]].corr(cells[pair[1]]) if len(cells) > 2 else math.nan,
        "facts": facts,
        "few": few,
        "enough": clear and not few,
    }


def keyvalue(evidence):
    """How the search for values went where MLPs matter most: by model, before and after fine-tuning, and question."""
    table, peaks = evidence.tables["keyvalue"], evidence.tables["symmetry"]
    peaks = peaks[peaks.layer == PEAK]
    most = evidence.config["keyvalue"]["search"]["steps"]
    found = {}
    for (model, base), run in peaks.groupby(["model", peaks.stage == BASE], sort=False):
        own = table[(table.model == model) & ((table.stage == BASE) == base)]
        asks = own.split.map(lambda split: SPLITS[split].asks)
        for what, layer in (("description", run.layer_forward.iloc[0]), ("name", run.layer_reverse.iloc[0])):
            rows = own[(asks == what) & (own.layer == layer)]
            if len(rows):
                found.setdefault(_who(model, base), {})[what] = {
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


def symmetry(evidence):
    """What the forward and the reverse memory of the same facts share, where MLPs matter most in either direction.

    `pairing` counts the tests that ask whether the same facts correspond, `directions` those that ask only whether both
    runs use the same directions of their space. `by_layer` has the pairing tests of every layer. `tests` is how many
    are corrected together, and `least_p` what so many leave of the smallest p that the permutations can give.
    """
    table = evidence.tables["symmetry"]
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
        found["labels"][who] = evidence.labels[model] + (" before fine-tuning" if base else "")
        found["models"][who] = {
            "base": bool(base),
            "layers": [int(rows.layer_forward.iloc[0]), int(rows.layer_reverse.iloc[0])],
            **{kind: {"tests": len(each), "significant": sum(each)} for kind, each in corrected.items()},
            "facts": int(rows.n.min()),
            "comparisons": tests,
            "by_layer": _by_layer(layers[(layers.model == model) & ((layers.stage == BASE) == base)]),
        }
        if set(HEADLINES.values()) <= set(tests):
            found["models"][who] |= {what: tests[pair]["debiased_cka"] for what, pair in HEADLINES.items()}
    found["any"] = any(own["pairing"]["tests"] for own in found["models"].values())
    found["permutations"] = evidence.config["symmetry"]["permutations"]
    found["tests"] = max(
        (own["pairing"]["tests"] + own["directions"]["tests"] for own in found["models"].values()), default=0
    )
    found["least_p"] = found["tests"] / (1 + found["permutations"])
    found["beyond_base"] = {
        model: {
            concept: difference(found["models"][model][concept], found["models"][f"{model} base"][concept])
            for concept in HEADLINES
        }
        for model in evidence.families
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


def edits(evidence):
    """What rank-one edits did, by the edited people's training, measure and statistic, before and after.

    `groups` has the edits in one `layer`: the one to which tracing `points`, or else the first. `best` is the layer in
    which most edits take, with the share that does, the groups' mean; and the largest share that holds in reverse, of
    any layer and group. `search` has the share of edits whose search found a value that gives the new object a
    probability of at least `threshold`, there and in the layer where most do, and whether even there most `failed`.
    """
    table, peaks = evidence.tables["edits"], evidence.tables["symmetry"]
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
        threshold = evidence.config["keyvalue"]["search"]["threshold"]
        own["search"] = {"there": values[own["layer"]], "most": values.max(), "threshold": threshold}
        own["search"]["failed"] = bool(values.max() < 0.5)
    return found


def _best_layer(rows):
    after = rows[(rows.when == "after") & (rows.statistic == "preferred")]
    shares = after.groupby(["measure", "layer", "group"]).value.mean()
    efficacy = shares["efficacy"].groupby("layer").mean()
    return {
        "layers": len(efficacy),
        "layer": int(efficacy.idxmax()),
        "efficacy": efficacy.max(),
        "reverse_anywhere": shares["reverse_new"].max(),
    }


def _outcome(rows):
    return over_seeds(rows.value, rows.ci_low, rows.ci_high) | {"n": int(rows.n.sum())}
