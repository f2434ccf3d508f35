"""Numbers about where a fact is recalled from, in nats at t1, and about when its subject is needed."""

import math

from ..common.contrasts import verdict
from ..data.facts import FORWARD_REVERSE, RECALL_SPLITS, SPLITS
from ..tracing.tables import SAME_QUESTION
from ..tracing.vocabulary import CORRUPTIONS, STAGES, TOGETHER, TRACED, WINDOWED, leading
from .findings import judged, over_seeds

SUBJECT, ANSWER = TOGETHER
LAST = "last subject"
SEVERED = ("severed_mlp", "severed_attn")
EACH = {"first": STAGES[0], "last": STAGES[-1], "change": "change"}
FEWEST_FACTS = 5  # below this, averages over facts are not compared in words


def tracing(sources):
    """Causal traces: what hiding the subject costs, which states bring the answer back, and when it is needed."""
    table, outcomes = sources.tables["causal_trace"], sources.tables["traced_facts"]
    maps, time = sources.tables["trace_maps"], sources.tables["time"]
    present = [name for name in CORRUPTIONS if name in set(outcomes.corruption)]
    main = leading(present)
    windows = sorted({int(window) for window in table[table.kind.isin(WINDOWED)].window})
    found = {"corruption": main, "corruptions": present, "windows": windows, "models": {}}
    for model in sources.families:
        asked = outcomes[(outcomes.model == model) & (outcomes.corruption == main)]
        own, own_maps, own_time = (part[part.model == model] for part in (table, maps, time))
        facts = {split: _outcomes(asked[asked.split == split]) for split in RECALL_SPLITS}
        traced = [split for split in RECALL_SPLITS if facts[split]["traced"]]
        parts = {split: own[own.split == split] for split in traced}
        compared = [split for split in traced if facts[split]["traced"] >= FEWEST_FACTS]
        sites = {split: _sites(_at_first(rows, main), _plateau(own_maps, split)) for split, rows in parts.items()}
        times = {split: _where(own_time, split=split) for split in traced}
        recalled = _known({split: _recalled(rows) for split, rows in times.items()})
        found["models"][model] = {
            "facts": facts,
            "traced": sum(count["traced"] for count in facts.values()),
            "total": _known({split: _totals(rows, main) for split, rows in parts.items()}),
            "sites": _known(sites),
            "where": _known({answer_type: _where_from(parts, sites, compared, answer_type, main) for answer_type in SAME_QUESTION}),
            "modules": _known({kind: _modules(_where(own_maps, kind=kind)) for kind in WINDOWED}),
            "severed": _known({split: _severed(_at_first(parts[split], main)) for split in compared}),
            "alike": _known({answer_type: _alike(own_maps, pair, facts) for answer_type, pair in SAME_QUESTION.items()}),
            "routes": _known({group: _alike(own_maps, pair, facts) for group, pair in FORWARD_REVERSE.items()}),
            "turned": _known({group: _turned(own, pair) for group, pair in FORWARD_REVERSE.items()}),
            "sure": _sure(_where(own_maps, kind="state")),
            "seeds": _seeds(own_maps),
            "checks": {
                split: _known(
                    {name: _check(parts[split], _where(own_maps, split=split), name, main, layer) for name in present}
                )
                for split, layer in ((split, site["layers"][-1]) for split, site in sites.items() if site)
            },
            "each": _known({split: _each(times[split], facts[split]) for split in compared}),
            "time": {split: {"recalled": one} for split, one in recalled.items()},
            "handed": _known({split: _handed(rows) for split, rows in times.items()}),
            "needed": _needed(list(recalled.values()), [_carried(rows) for rows in times.values()]),
        }
    found["any"] = any(own["traced"] for own in found["models"].values())
    found["most"] = int(outcomes.n[outcomes.outcome == TRACED].max()) if found["any"] else 0
    return found


def _known(findings):
    return {name: one for name, one in findings.items() if one}


def _outcomes(rows):
    return {"asked": int(rows.n.sum()), "traced": int(rows.n[rows.outcome == TRACED].sum())}


def _cell(rows):
    """The finding of rows that differ in their seed alone; None without any."""
    if rows.empty:
        return None
    return judged(over_seeds(rows["mean"], rows.ci_low, rows.ci_high)) | {"n": int(rows.n.sum())}


def _where(rows, **values):
    for column, value in values.items():
        rows = rows[rows[column].isna() if value is None else rows[column] == value]
    return rows


def _at_first(rows, corruption):
    return _where(rows, corruption=corruption, stage=STAGES[0], score="log_probability")


def _totals(rows, corruption):
    """What hiding the subject costs, in nats, and what it does to the probability."""
    rows = _where(rows, corruption=corruption, stage=STAGES[0], reading="whole")
    cost = _cell(_where(rows, score="log_probability", kind="total"))
    if cost is None:
        return None
    likely = _where(rows, score="probability")
    contrast = _cell(_where(rows, score="contrast", kind="total"))
    return {
        "cost": cost,
        "contrast": contrast,
        **{kind: _cell(_where(likely, kind=kind)) for kind in ("clean", "corrupted")},
    }


def _plateau(maps, split):
    """The layers in which the whole subject returns as much as in its best, in all seeds."""
    rows = _where(maps, split=split, kind="state", statistic="plateau")
    layers = [set(own.layer) for _, own in rows.groupby("seed")]
    return sorted(map(int, set.intersection(*layers))) if layers else []


def _sites(rows, layers):
    """The shares that states return and take away in the last of the layers where the whole subject returns most."""
    states = _where(rows, kind="state")
    if not layers or states.empty:
        return None
    shares = _where(states, reading="recovered")
    there = _where(states, layer=layers[-1])
    subject = [cell["estimate"] for layer in layers if (cell := _cell(_where(shares, role=SUBJECT, layer=layer)))]
    if not subject:
        return None
    return {
        "layers": layers,
        "subject": _ends(subject),
        "whole": _cell(_where(there, reading="recovered", role=SUBJECT)),
        "last": _cell(_where(there, reading="recovered", role=LAST)),
        "needed": _cell(_where(there, reading="necessary", role=SUBJECT)),
        "handed": _handed_from(_where(states, reading="handed")),
    }


def _handed_from(rows):
    """The layer from which on the places where the answer is read clearly hold more of it than the subject does."""
    found = None
    for layer in sorted(rows.layer.unique(), reverse=True):
        if _cell(_where(rows, layer=layer))["verdict"] != "more":
            break
        found = int(layer)
    return found


def _where_from(parts, sites, compared, answer_type, corruption):
    """What the subject's states return when a model is asked for something, and the answer's places in layer 0.

    The subject's are None where they clearly return something in no layer.
    """
    asked = [split for split in compared if SPLITS[split].answer_type == answer_type]
    found = [sites[split] for split in asked if sites[split]]
    early = [
        _cell(_where(_at_first(parts[split], corruption), kind="state", reading="recovered", role=ANSWER, layer=0))
        for split in asked
    ]
    early = [one["estimate"] for one in early if one and one["verdict"] == "more"]
    layers = sorted(set.intersection(*(set(one["layers"]) for one in found))) if len(found) == len(asked) > 0 else []
    if not asked or found and not layers:
        return None
    return {
        "layers": layers,
        "subject": _ends([one["subject"][end] for one in found for end in ("least", "most")]) if layers else None,
        "answer": _ends(early) if len(early) == len(asked) else None,
    }


def _modules(maps):
    """In how many tests a kind of module clearly has an effect at the last subject token, and where the largest."""
    peaks = _where(maps, statistic="peak")
    clear = peaks[peaks.place != "nowhere"]
    layers = sorted({int(layer) for layer in clear.layer})
    found = {"tests": len(peaks), "clear": len(clear), "layers": layers, "here": int((clear.place == "here").sum())}
    return found if len(peaks) else None


def _each(rows, count):
    """What hiding the subject costs each token still to come, first and last, and how many answers have no last."""
    rows = _where(rows, reading="each")
    found = {name: _cell(_where(rows, stage=stage)) for name, stage in EACH.items()}
    return found | {"left_out": count["traced"] - found["change"]["n"]} if all(found.values()) else None


def _severed(rows):
    """What is left of what the last subject token's first state returns, with either module above kept corrupted."""
    rows = _where(rows, reading="kept", role=LAST, layer=0)
    found = {kind: _cell(_where(rows, kind=kind)) for kind in SEVERED}
    return found if all(found.values()) else None


def _ends(values):
    return {"least": min(values), "most": max(values)} if values else None


def _alike(maps, pair, facts):
    """How alike the maps of two tests' hidden states are; `ceiling` is of the rank correlation."""
    rows = _where(maps, split=pair[0], other=pair[1], kind="state")
    found = {name: _where(rows, statistic=name) for name in ("correlation", "slope", "rank")}
    if any(part.empty for part in found.values()) or not all(facts[split]["traced"] for split in pair):
        return None
    spans = {name: over_seeds(part.value, part.ci_low, part.ci_high) for name, part in found.items()}
    rank = {"rank": spans["rank"]["estimate"], "ceiling": found["rank"].ceiling.mean()}
    slope = spans["slope"] | {"verdict": verdict(spans["slope"]["low"] - 1, spans["slope"]["high"] - 1)}
    few = min(facts[split]["traced"] for split in pair) < FEWEST_FACTS
    known = not math.isnan(spans["correlation"]["low"])
    return {"correlation": spans["correlation"], "slope": slope, **rank, "few": few, "enough": known and not few}


def _turned(rows, pair):
    """At how many of the sites the same people's effects differ, asked forward and in reverse."""
    rows = _where(rows, split=pair[0], reading="turned", kind="state")
    if rows.empty:
        return None
    first = rows[rows.seed == rows.seed.min()]
    apart = (first.ci_low > 0) | (first.ci_high < 0)
    most = first.loc[first["mean"].abs().idxmax()]
    largest = _cell(first.loc[[most.name]]) | {"role": most.role, "layer": int(most.layer)}
    return {"sites": len(first), "differ": int(apart.sum()), "largest": largest}


def _sure(maps):
    """How well the maps of the states are known, and over how many single states facts are spread."""
    half, spread = (_where(maps, statistic=name).value.dropna() for name in ("split_half", "participation"))
    if half.empty or spread.empty:
        return None
    return {"split_half": half.min(), "sites": {"least": round(spread.min()), "most": round(spread.max())}}


def _seeds(maps):
    """The least and the greatest correlation of the states' maps between seeds; None with one seed."""
    rows = _where(maps, kind="state", statistic="correlation")
    rows = rows[rows.other.astype(str).str.startswith("seed_") & rows.value.notna()]
    return {"least": rows.value.min(), "most": rows.value.max()} if len(rows) else None


def _check(rows, maps, corruption, main, layer):
    """The picture under one corruption: what it costs, what the whole subject returns, how alike its map is."""
    rows = _at_first(rows, corruption)
    cost = _cell(_where(rows, reading="whole", kind="total"))
    if cost is None:
        return None
    share = _cell(_where(rows, reading="recovered", kind="state", role=SUBJECT, layer=layer))
    alike = _where(maps, kind="state", statistic="correlation", other=corruption)
    return {
        "cost": cost,
        "whole": share,
        "alike": None if corruption == main or alike.empty else over_seeds(alike.value, alike.ci_low, alike.ci_high),
    }


def _handed(rows):
    """What the last token rests on, where all of it was asked."""
    rows = _where(rows, reading="rests", revealed=None, stage=STAGES[-1])
    found = {"subject": _cell(_where(rows, hidden="subject"))}
    found |= {one: _cell(_where(rows, hidden=one, kind="swap")) for one in ("revealed", "both", "excess")}
    found["excess_of_masks"] = _cell(_where(rows, hidden="excess", kind="mask"))
    return found if found["subject"] and found["excess"] else None


def _needed(recalled, carried):
    """When the subject is needed, from test to test."""
    if not recalled:
        return None
    return {
        "hidden": _ends([one["hidden"]["estimate"] for one in recalled]),
        "until": _ends([one["until"] for one in recalled]),
        "since": _ends([one["from"] for one in recalled]),
        "steps": max(one["steps"] for one in recalled),
        "apart": max(one["apart"] for one in recalled),
        "carried": _ends([one["estimate"] for one in carried if one]),
    }


def _recalled(rows):
    """Recall with the subject hidden throughout, and the steps between which half of the answers are lost."""
    rows = _where(rows, reading="recalled", kind="subject")
    if rows.empty:
        return None
    since, until = (_where(rows, hidden=way) for way in ("from", "until"))
    curves = [part.groupby("step")["mean"].mean() for part in (since, until)]
    protected = [step for step, share in curves[1].items() if share >= 0.5]  # hidden up to there, half are still right
    needed = [step for step, share in curves[0].items() if share < 0.5]  # hidden from there on, half are not
    found = {
        "hidden": _cell(_where(since, step=0)),
        "steps": int(rows.step.max()),
        "apart": int(rows.step.drop_duplicates().sort_values().diff().max()),
        "until": int(max(protected, default=0)),
        "from": int(max(needed, default=0)),
    }
    return found


def _carried(rows):
    """How many finished answers are right with the subject's best states put back at t1 alone."""
    return _cell(_where(rows, reading="carried", hidden="restored", kind="state", stage="end"))
