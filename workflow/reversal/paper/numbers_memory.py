"""Numbers about keys and values, what those of two directions share, and what an edit of one fact does."""

import math

import numpy as np

from ..data.facts import CONTROL_GROUPS, SPLITS
from ..figures.rank_one import MEASURES
from ..storage.evidence import ABOUT, DECIDING, MEASURED, ONE, TWO, deepest, leading, pooled_share
from ..storage.vocabulary import BASE, BEYOND, CONCEPTS, HEADLINE, LEARNT, PEAK, STATES, mainly_trained
from .findings import finding, judged, over_seeds
from .tables import LOOKED_AT, SHOWN

SIGNIFICANT = 0.05
WAY = ["lesson", "weights", "group"]  # of teaching


def keyvalue(sources):
    """How the search for values went after fine-tuning, in the layer that leads: by model and question."""
    table, compared = (sources.tables[name] for name in ("keyvalue", "symmetry"))
    table, compared = (one[one.stage != BASE] for one in (table, compared))
    answer_type = table.split.map(lambda split: SPLITS[split].answer_type)
    most = sources.config["keyvalue"]["search"]["steps"]
    found = {}
    for model, run in compared.groupby("model", sort=False):
        run = leading(run)
        for what, layer in (("description", run.layer_forward.iloc[0]), ("name", run.layer_reverse.iloc[0])):
            rows = table[(table.model == model) & (answer_type == what) & (table.layer == layer)]
            if len(rows):
                found.setdefault(model, {})[what] = {
                    "layer": int(layer),
                    "searches": len(rows),
                    "converged": rows.converged.mean(),
                    "already": (rows.p_before >= sources.config["keyvalue"]["search"]["threshold"]).mean(),
                    "moved": (rows.change**0.5).median(),  # |v* − z₀| / |z₀|
                    "moved_most": (rows.change**0.5).max(),
                    "prefixes": int(rows.prefixes.iloc[0]),
                    "improving": (rows.steps == most).mean(),  # when the search ended
                }
    return {"models": found, "any": bool(found), "steps": most}


def _who(model, base):
    """A trained model, or the base it began from."""
    return f"{model} base" if base else model


def symmetry(sources):
    """What the forward and the reverse memory of the same facts share, where MLPs matter most in either direction.

    Where tracing points nowhere, it is the lowest layer that values were sought in. The `name` and the `description` of
    a model are the two tests that were named beforehand; `states` has the same of hidden states, there and over all
    layers; `comparisons` has what else is told.
    """
    table = sources.tables["symmetry"]
    table = table[table.value.notna()]
    beyond = table[table.statistic == BEYOND]
    table = table[table.statistic != BEYOND]
    found = {"models": {}, "labels": {}}
    for (model, base), every in table.groupby(["model", table.stage == BASE], sort=False):
        who = _who(model, base)
        rows = leading(every)
        rows = rows[rows.statistic.isin([HEADLINE, *LOOKED_AT]) & rows.comparison.isin(SHOWN)]
        tests = {
            comparison: {statistic: _test(some) for statistic, some in part.groupby("statistic", sort=False)}
            for comparison, part in rows.groupby("comparison", sort=False)
        }
        found["labels"][who] = sources.labels[model] + (" before fine-tuning" if base else "")
        found["models"][who] = {"comparisons": tests, "states": _states(every, tests)}
        if set(CONCEPTS.values()) <= set(tests):
            found["models"][who] |= {what: tests[pair][HEADLINE] for what, pair in CONCEPTS.items()}
    found["any"] = any("name" in own for own in found["models"].values())
    found["permutations"] = sources.config["symmetry"]["permutations"]
    concepts = {pair: what for what, pair in STATES.items()}
    found["beyond_base"] = {
        model: {
            concepts[pair]: judged(over_seeds(part.value, part.ci_low, part.ci_high))
            for pair, part in deepest(rows).groupby("comparison", sort=False)
        }
        for model, rows in beyond.groupby("model", sort=False)
    }
    return found


def _states(rows, tests):
    """Of each concept its states' likeness in the leading layer; over layers the largest, and how many are clear."""
    found = {}
    for what, pair in STATES.items():
        by_layer = rows[(rows.comparison == pair) & (rows.statistic == HEADLINE) & (rows.layer != PEAK)]
        if pair in tests and len(by_layer):
            layers = {int(layer): _test(some) for layer, some in by_layer.groupby(by_layer.layer.astype(int))}
            values = {layer: one["estimate"] for layer, one in layers.items()}
            found[what] = tests[pair][HEADLINE] | {
                "largest": max(values.values()),
                "where": max(values, key=values.get),
                "clear": sum(one["low"] > 0 for one in layers.values()),
                "layers": len(layers),
            }
    return found


def _test(rows):
    """A test of the table: `p_value` is adjusted for the named tests where it is one, and as it is for looking."""
    named = rows.p_adjusted.notna().all()
    p = (rows.p_adjusted if named else rows.p_value).max()
    return over_seeds(rows.value, rows.ci_low, rows.ci_high) | {
        "n": int(rows.n.min()),
        "ceiling": rows.ceiling.mean(),
        "least": rows.least.max(),
        "p_value": p,
        "p_raw": rows.p_value.max(),
        "largest": rows.largest.max(),
        "significant": bool(named and p < SIGNIFICANT),
    }


def edits(sources):
    """What rank-one edits did, by the edited people's training, measure and statistic, before and after.

    `groups` has the edits in one `layer`: the one to which tracing `points`, or else the first. `best` has the share of
    edits that take in the layer, or layers, `where` most do, the groups' mean, and what `neighbours` still answer
    there. `search` has the share of edits whose search found a value there that gives the new object a probability of
    at least `threshold`, and whether most searches `failed` in every layer. `ways` has, for the first group, the other
    sites and ways (`how`), each with the shares of edited and of reverse questions that the new answer wins, and of
    those told token by token; `lengths` the latter by the number of the new answer's tokens.
    """
    table, peaks = sources.tables["edits"], sources.tables["symmetry"]
    pointed = set(peaks[peaks.layer == PEAK].model)
    found = {"models": {}, "any": bool(len(table))}
    single, table = table[table.fact.notna()], table[table.fact.isna()]
    asked = table[table.peak.astype(bool) & table.measure.isin(MEASURES)]
    for (model, group), rows in asked.groupby(["model", "group"], sort=False):
        measures = {}
        for (measure, statistic), part in rows.groupby(["measure", "statistic"], sort=False):
            outcomes = {when: _outcome(own) for when, own in part.groupby("when", sort=False)}
            if "change" in outcomes:
                outcomes["change"] = judged(outcomes["change"])
            measures.setdefault(measure, {})[statistic] = outcomes
        measures = {measure: measures[measure] for measure in MEASURES if measure in measures}
        where = {"layer": int(rows.layer.iloc[0]), "points": model in pointed}
        own = found["models"].setdefault(model, where | {"groups": {}})
        own["groups"][group] = measures
    for model, own in found["models"].items():
        mine = table[table.model == model]
        own["best"] = _best_layer(mine[mine.how == "layer"])
        values = mine[(mine.measure == "value") & (mine.how == "layer")].groupby("layer").value.mean()
        threshold = sources.config["keyvalue"]["search"]["threshold"]
        failed = bool(values.max() < 0.5)
        own["search"] = {"there": values[own["layer"]], "threshold": threshold, "failed": failed}
        first = next(iter(own["groups"]))
        own["ways"] = _ways(mine[mine.group == first])
        own["lengths"] = _lengths(single[(single.model == model) & (single.group == first)])
    return found


def _ways(rows):
    """{how: {layers, roles, efficacy, told, reverse}}: the best site of each way to edit one group's facts.

    Of random sites there is the mean beside the best.
    """
    shares = rows[(rows.when == "after") & (rows.statistic.isin(["preferred", "told"]))]
    places = ["how", "layer", "role"]
    wide = shares.pivot_table(index=places, columns=["measure", "statistic"], values="value", aggfunc="mean")
    found = {}
    for how, some in wide.groupby(level="how"):
        efficacy = some["efficacy", "preferred"]
        best = efficacy.idxmax()
        found[how] = {
            "sites": len(some),
            "layer": int(best[1]),
            "role": best[2],
            "efficacy": efficacy.max(),
            "mean": efficacy.mean(),
            "told": some.loc[best].get(("efficacy", "told"), math.nan),
            "reverse": some.loc[best].get(("reverse_new", "preferred"), math.nan),
        }
    return found


def _lengths(rows):
    """{how: {tokens: {n, told}}} of the leading edits, and of those whose values know masked canvases alone."""
    told = rows[(rows.statistic == "told") & (rows.peak.astype(bool) | (rows.how == "masked"))]
    return {
        how: {int(tokens): {"n": len(own), "told": own.value.mean()} for tokens, own in some.groupby("tokens")}
        for how, some in told.groupby("how")
    }


def _best_layer(rows):
    shares = rows[rows.statistic == "preferred"].groupby(["when", "measure", "layer", "group"]).value.mean()
    efficacy = shares["after", "efficacy"].groupby("layer").mean()
    where = [int(layer) for layer in efficacy.index[efficacy == efficacy.max()]]
    told = rows[(rows.statistic == "exact") & (rows.measure == "specificity") & rows.layer.isin(where)]
    return {
        "efficacy": efficacy.max(),
        "tried": len(efficacy),
        "where": where,
        "neighbours": {when: own.value.mean() for when, own in told.groupby("when")},
    }


def _outcome(rows):
    return over_seeds(rows.value, rows.ci_low, rows.ci_high) | {"n": int(rows.n.sum())}


def rewriting(sources):
    """What reaches the reverse question when a fact is rewritten in one direction, by model and direction taught.

    Changes are in nats; `carry` has the shares of what was taught that the reverse question's old answer loses and its
    new one gains. `one_memory` has the same of the control: the reverse derived from forward answers, where both share
    one memory by construction. `disturbed` says that the old answer loses and the new one does not gain but loses, too.
    `gradients` has by direction how much more a fact's gradient is like its own reverse gradient than like others', and
    the same of one question in other words; `telling` the directions where the latter is clearly something.
    `verdict` is that of all of it, as in `evidence`; `ways` and `protected` are of `_lessons` and `_spared`.
    """
    table, compared = sources.tables["finetuned_edits"], sources.tables["gradients"]
    every = table[(table.stage != BASE) & (table.steps == LEARNT)]
    weights = mainly_trained(every.weights)
    table = every[(every.lesson == "rewrite") & (every.weights == weights)]
    group = next(iter(table.group), None)
    table = table[table.group == group]
    told = sources.tables["evidence"]
    told = told[told.kind == "rewriting"]
    found = {"models": {}, "any": bool(len(table)), "group": group, "weights": weights}
    for (model, direction), rows in table.groupby(["model", "rewritten"], sort=False):
        gains = rows[(rows.asked == "same") & (rows.answer == "new") & (rows.about == "fact")]
        one = {"n": int(rows.n.min())}
        one["changes"] = {"same_new_fact": over_seeds(gains.value, gains.ci_low, gains.ci_high)}
        shares = rows[rows.about == "difference"]
        carried = {
            (asked, answer): judged(over_seeds(part.transfer, part.transfer_low, part.transfer_high))
            for (asked, answer), part in shares.groupby(["asked", "answer"], sort=False)
        }
        for name, asked in (("carry", "other"), ("one_memory", "inverted")):
            one[name] = {answer: carried[asked, answer] for answer in ("old", "new")}
        one["disturbed"] = one["carry"]["old"]["verdict"] == "more" and one["carry"]["new"]["verdict"] == "less"
        found["models"].setdefault(model, {"directions": {}})["directions"][direction] = one
    for model, own in found["models"].items():
        rows = compared[(compared.model == model) & (compared.stage != BASE) & (compared.group == found["group"])]
        whole = rows[rows.part == "all"]
        own["gradients"] = {
            direction: {
                against: judged(over_seeds(part.value, part.ci_low, part.ci_high))
                for against, part in some.groupby("against", sort=False)
            }
            for direction, some in whole.groupby("rewritten", sort=False)
        }
        own["telling"] = [way for way, one in own["gradients"].items() if one["forward"]["verdict"] == "more"]
        seen = [one for one in own["directions"].values() if one["one_memory"]["new"]["verdict"] == "more"]
        own["most"] = max((one["carry"]["new"]["high"] for one in seen), default=None)
        own["least"] = min((one["one_memory"]["new"]["low"] for one in seen), default=None)
        own["verdict"] = _kind(told[told.model == model])["verdict"]
        mine = every[every.model == model]
        own["ways"] = _lessons(mine[~mine.group.isin(CONTROL_GROUPS)])
        own["protected"] = (
            _spared(mine)
            if sources.config["models"][model].get("objective", {}).get("protect", "none") != "none"
            else None
        )
    return found


def _lessons(table):
    """What lessons of all kinds say, given to all weights and groups in both directions; None of one kind alone.

    The verdicts, as in `evidence`, are counted: `two` memories, and something `shared`.
    """
    rows = _taught(table)
    if len(rows.drop_duplicates(WAY)) < 2:
        return None
    says = [pooled_share(one)[1] for _, one in _carried(rows).groupby([*WAY, "rewritten"], sort=False)]
    named = {name: list(dict.fromkeys(rows[name])) for name in WAY}
    shared = says.count("one") + says.count("partly")
    return {"count": len(says), "two": says.count("two"), "shared": shared, "named": named}


def _spared(table):
    """The same of people whose subject was never predicted: what the first lesson about their object does, by group.

    None where no such people were taught.
    """
    first = (table.lesson == "rewrite") & (table.weights == mainly_trained(table.weights))
    rows = _taught(table[first & (table.group.map(CONTROL_GROUPS) == table.rewritten)])
    return {group: _measure(one) for group, one in _carried(rows).groupby("group", sort=False)} if len(rows) else None


def _taught(table):
    """Of lessons, what they do to the answer that they are about: the new one, or the old one, to be forgotten."""
    taught = table.answer == np.where(table.lesson == "forget", "old", "new")
    return table[taught & (table.about == "difference")]


def _carried(rows):
    """MEASURED of each lesson: what reaches the other direction, and what would if there were one memory."""
    carried = rows.set_index([*WAY, "rewritten", "seed", "asked"])[["transfer", "transfer_low", "transfer_high"]]
    carried = carried.rename(columns=dict(zip(carried, MEASURED, strict=False))).unstack("asked")
    return carried.xs("other", axis="columns", level="asked").assign(
        ceiling=carried["value", "inverted"], ceiling_low=carried["ci_low", "inverted"]
    )


def evidence(sources):
    """What four kinds of evidence say of each model, as shares of what one memory would show: 0 is two, 1 is one.

    `kinds` has for each kind its measures, each with its verdict over seeds, and the `verdict` on which all agree that
    can see. `together` is the verdict of the kind that decides; of the `others`, verdicts are counted. `likest` is what
    of gradients and symmetry is clearly something, and most; `two` and `one` are the shares that tell.
    """
    table, found = sources.tables["evidence"], {}
    for model, own in table.groupby("model", sort=False):
        kinds = {kind: _kind(own[own.kind == kind]) for kind in ABOUT if kind in set(own.kind)}
        rest = {
            (kind, what): one
            for kind in kinds
            if kind not in DECIDING
            for what, one in kinds[kind]["measures"].items()
            if one["verdict"] != "blind"
        }
        said = [one["verdict"] for one in rest.values()]
        alike = {key: one for key, one in rest.items() if key[0] != "edits" and one["low"] > 0}
        kind, what = max(alike, key=lambda key: alike[key]["estimate"], default=(None, None))
        found[model] = {
            "kinds": kinds,
            "together": _agreed([one["verdict"] for kind, one in kinds.items() if kind in DECIDING]),
            "others": {verdict: said.count(verdict) for verdict in ("two", "partly", "one", "unclear")},
            "likest": {"kind": kind, "what": what, **alike[kind, what]} if alike else None,
        }
    return {"models": found, "any": bool(found), "two": TWO, "one": ONE}


def _kind(rows):
    """One kind of evidence: its measures, and the verdict on which they agree."""
    measures = {what: _measure(some) for what, some in rows.groupby("what", sort=False)}
    return {"measures": measures, "verdict": _agreed([one["verdict"] for one in measures.values()])}


def _measure(rows):
    """One measure over seeds: its share and its verdict."""
    share, said = pooled_share(rows)
    return finding(*share) | {"verdict": said}


def _agreed(verdicts):
    """The verdict of all that can see; "unclear" where one of them is, or none can; "mixed" where they differ."""
    seen = set(verdicts) - {"blind"}
    if not seen or "unclear" in seen:
        return "unclear"
    return seen.pop() if len(seen) == 1 else "mixed"
