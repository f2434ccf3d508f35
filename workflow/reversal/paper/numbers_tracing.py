"""Numbers about where a fact is recalled from: what hiding its subject costs, and what brings the answer back."""

import math

import pandas as pd

from ..data.facts import RECALL_SPLITS
from ..tracing.vocabulary import WHOLE, leading
from .findings import difference, judged, over_seeds

SUBJECT = ("first subject", "middle subject", "last subject")
TOGETHER = "whole subject"
SEVERED = ("severed_mlp", "severed_attn")
# The same question about people who were taught the other way round.
PAIRS = {"name": ("d2p_same", "p2d_reverse"), "description": ("p2d_same", "d2p_reverse")}
QUESTIONS = ("p2d_same", "d2p_same")
FEWEST_FACTS = 5  # below this, averages over facts are not compared in words


def tracing(sources):
    """Causal traces: what hiding the subject costs, and which states bring the answer back."""
    table, outcomes = sources.tables["causal_trace"], sources.tables["traced_facts"]
    table = table[table.step.isna() & (table.score == "probability")]
    present = list(outcomes.corruption.unique())
    main = leading(present)
    found = {"corruption": main, "corruptions": present, "models": {}}
    for model in sources.families:
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
            "range": {kind: _range(enough, kind) for kind in WHOLE if any(kind in peak for peak in enough.values())},
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
    for kind in WHOLE:
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
    return {kind: 1 - one / best["estimate"] for kind, one in left.items()}


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
