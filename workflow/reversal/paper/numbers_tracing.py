"""Numbers about where a fact is recalled from, in nats at t1, and about when its subject is needed."""

import math

from ..data.facts import FORWARD_REVERSE, RECALL_SPLITS
from ..tracing.tables import SAME_QUESTION
from ..tracing.vocabulary import CORRUPTIONS, STAGES, TOGETHER, WINDOWED, leading
from .findings import judged, over_seeds

SUBJECT, ANSWER = TOGETHER
LAST = "last subject"
SEVERED = ("severed_mlp", "severed_attn")
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
        found["models"][model] = {
            "facts": facts,
            "traced": sum(count["traced"] for count in facts.values()),
            "asked": sum(count["asked"] for count in facts.values()),
            "untraced": [outcome for outcome in asked[asked.n > 0].outcome.unique() if outcome != "traced"],
            "compared": [split for split in traced if facts[split]["traced"] >= FEWEST_FACTS] or traced,
            "total": _known({split: _totals(rows, main) for split, rows in parts.items()}),
            "sites": _known({split: _sites(_at_first(rows, main)) for split, rows in parts.items()}),
            "modules": _known({kind: _modules(_where(own_maps, kind=kind)) for kind in WINDOWED}),
            "stages": _known({split: _stages(rows, main) for split, rows in parts.items()}),
            "severed": _all_severed([_severed(_at_first(rows, main)) for rows in parts.values()]),
            "alike": _known({asks: _alike(own_maps, pair, facts) for asks, pair in SAME_QUESTION.items()}),
            "turned": _known({group: _turned(own, pair) for group, pair in FORWARD_REVERSE.items()}),
            "sure": _sure(_where(own_maps, kind="state")),
            "seeds": _seeds(own_maps),
            "checks": {
                split: _known({name: _check(rows, own_maps[own_maps.split == split], name, main) for name in present})
                for split, rows in parts.items()
            },
            "time": (time_of := _known({split: _time(own_time[own_time.split == split]) for split in traced})),
            "handed": _known({split: _handed(one) for split, one in time_of.items()}),
            "needed": _needed(list(time_of.values())),
        }
    found["any"] = any(own["traced"] for own in found["models"].values())
    return found


def _known(findings):
    return {name: one for name, one in findings.items() if one}


def _outcomes(rows):
    return {"asked": int(rows.n.sum()), "traced": int(rows.n[rows.outcome == "traced"].sum())}


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


def _best(rows):
    """The layer with the greatest mean over seeds, and the finding there."""
    if rows.empty:
        return None
    layer = rows.groupby("layer")["mean"].mean().idxmax()
    return _cell(_where(rows, layer=layer)) | {"layer": int(layer)}


def _sites(rows):
    """The shares that states return and take away, at the layer where the whole subject returns most."""
    states = _where(rows, kind="state")
    shares = _where(states, reading="recovered")
    whole = _best(_where(shares, role=SUBJECT))
    if whole is None or rows.empty:
        return None
    there = _where(states, layer=whole["layer"])
    answer = _where(shares, role=ANSWER).groupby("layer")["mean"].mean()
    subject = _where(shares, role=SUBJECT).groupby("layer")["mean"].mean()
    over = [int(layer) for layer in answer.index if answer[layer] > subject.get(layer, math.inf)]
    return {
        "whole": whole,
        "last": _cell(_where(there, reading="recovered", role=LAST)),
        "needed": _cell(_where(there, reading="necessary", role=SUBJECT)),
        "last_needed": _cell(_where(there, reading="necessary", role=LAST)),
        # From this layer on, the places where the answer is read hold more of it than the subject does.
        "handed": min(over) if over and over == list(range(min(over), int(answer.index.max()) + 1)) else None,
    }


def _modules(maps):
    """In how many tests a kind of module clearly has an effect at the last subject token, and where the largest."""
    peaks = _where(maps, statistic="peak")
    clear = peaks[peaks.place != "nowhere"]
    layers = sorted({int(layer) for layer in clear.layer})
    return {"tests": len(peaks), "clear": len(clear), "layers": layers} if len(peaks) else None


def _stages(rows, corruption):
    """What hiding the subject costs at t1 and at t2, in nats, and the change, fact by fact."""
    rows = _where(rows, corruption=corruption, score="log_probability", reading="whole")
    change = _cell(_where(rows, kind="change", stage=STAGES[-1]))
    first, last = (_cell(_where(rows, kind="total", stage=stage)) for stage in (STAGES[0], STAGES[-1]))
    return {"first": first, "last": last, "change": change} if change else None


def _severed(rows):
    """The shares that the last subject token's states return, whole and with either module above kept corrupted.

    At the layer where they return most; None unless that is clearly something.
    """
    rows = _where(rows, reading="recovered", role=LAST)
    best = _best(_where(rows, kind="state"))
    if best is None or best["verdict"] != "more":
        return None
    left = {kind: _cell(_where(rows, kind=kind, layer=best["layer"])) for kind in SEVERED}
    return {kind: one["estimate"] / best["estimate"] for kind, one in left.items()} if all(left.values()) else None


def _all_severed(found):
    """The ends of these shares over the tests, as parts of what the whole states return."""
    found = [one for one in found if one]
    return {kind: _ends([one[kind] for one in found]) for kind in SEVERED} if found else None


def _ends(values):
    return {"least": min(values), "most": max(values)} if values else None


def _alike(maps, pair, facts):
    """How alike the sites of one question are, whichever way its people were taught: hidden states."""
    rows = _where(maps, split=pair[0], other=pair[1], kind="state")
    found = {name: _where(rows, statistic=name) for name in ("correlation", "slope")}
    if any(part.empty for part in found.values()) or not all(facts[split]["traced"] for split in pair):
        return None
    spans = {name: over_seeds(part.value, part.ci_low, part.ci_high) for name, part in found.items()}
    few = min(facts[split]["traced"] for split in pair) < FEWEST_FACTS
    known = not math.isnan(spans["correlation"]["estimate"])
    return spans | {"ceiling": found["correlation"].ceiling.mean(), "few": few, "enough": known and not few}


def _turned(rows, pair):
    """At how many of the sites the same people's effects differ, asked forward and in reverse."""
    rows = _where(rows, split=pair[0], reading="turned", kind="state")
    rows = rows[~rows.role.isin(TOGETHER)]
    if rows.empty:
        return None
    first = rows[rows.seed == rows.seed.min()]
    apart = (first.ci_low > 0) | (first.ci_high < 0)
    most = first.loc[first["mean"].abs().idxmax()]
    largest = _cell(first.loc[[most.name]]) | {"role": most.role, "layer": int(most.layer)}
    return {"sites": len(first), "differ": int(apart.sum()), "largest": largest, "n": int(first.n.max())}


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


def _check(rows, maps, corruption, main):
    """The picture under one corruption: what it costs, what the whole subject returns, how alike its map is."""
    rows = _at_first(rows, corruption)
    cost = _cell(_where(rows, reading="whole", kind="total"))
    if cost is None:
        return None
    share = _best(_where(rows, reading="recovered", kind="state", role=SUBJECT))
    alike = _where(maps, kind="state", statistic="correlation", other=corruption)
    return {
        "cost": cost,
        "whole": share,
        "alike": None if corruption == main or alike.empty else over_seeds(alike.value, alike.ci_low, alike.ci_high),
    }


def _time(rows):
    """When the subject is needed: what the rest of the answer rests on, what is recalled, what is carried on."""
    return _known({"rests": _rests(rows), "recalled": _recalled(rows), "carried": _carried(rows)})


def _rests(rows):
    rows = _where(rows, reading="rests", revealed=None)
    found = {}
    for stage in STAGES:
        own = _where(rows, stage=stage)
        subject = _cell(_where(own, hidden="subject"))
        if subject:
            others = ("revealed", "both", "excess")
            found[stage] = {"subject": subject} | {one: _cell(_where(own, hidden=one, kind="swap")) for one in others}
    return found


def _handed(found):
    """What the last token rests on, where all of it was asked."""
    last = found.get("rests", {}).get(STAGES[-1])
    return last if last and all(last.values()) else None


def _needed(found):
    """When the subject is needed, from test to test."""
    recalled = [one["recalled"] for one in found if "recalled" in one]
    if not recalled:
        return None
    carried = [one["carried"]["end"]["estimate"] for one in found if "end" in one.get("carried", {})]
    return {
        "hidden": _ends([one["hidden"]["estimate"] for one in recalled]),
        "until": _ends([one["until"] for one in recalled]),
        "since": _ends([one["from"] for one in recalled]),
        "steps": max(one["steps"] for one in recalled),
        "carried": _ends(carried),
    }


def _recalled(rows):
    """Recall with the subject hidden throughout, and the steps between which half of the answers are lost."""
    rows = _where(rows, reading="recalled", kind="subject")
    if rows.empty:
        return None
    since, until = (_where(rows, hidden=way) for way in ("from", "until"))
    curves = [part.groupby("step")["mean"].mean() for part in (since, until)]
    spared = [step for step, share in curves[1].items() if share >= 0.5]  # hidden up to there, half are still right
    needed = [step for step, share in curves[0].items() if share < 0.5]  # hidden from there on, half are not
    found = {
        "hidden": _cell(_where(since, step=0)),
        "steps": int(rows.step.max()),
        "until": int(max(spared, default=0)),
        "from": int(max(needed, default=0)),
    }
    return found


def _carried(rows):
    rows = _where(rows, reading="carried", hidden="restored", kind="state")
    return _known({stage: _cell(_where(rows, stage=stage)) for stage in ("between", "t2", "end")}) or None
