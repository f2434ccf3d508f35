"""Traces over many facts: effects by token role, layer and stage, and how sure their maps are, with intervals."""

import numpy as np
import pandas as pd

from ..common import contrasts, intervals
from ..data.facts import ANY_SPLIT, FORWARD_REVERSE, KNOWN
from .effects import at_first, indirect, necessary, total
from .vocabulary import CORRUPTIONS, KINDS, ROLES, SCORES, SINGLE_ROLES, STAGES, TOGETHER, WHOLE, WINDOWED, leading

KEYS = ["model", "seed", "split", "direction", "kind", "window", "corruption", "score", "reading", "stage", "layer"]
COLUMNS = [*KEYS, "role", "n", "mean", "ci_low", "ci_high"]
MAP_KEYS = ["model", "seed", "split", "kind", "corruption", "statistic", "other"]
MAP_COLUMNS = [*MAP_KEYS, "role", "layer", "n", "value", "ci_low", "ci_high", "ceiling", "place"]
# The same question about people who were taught the other way round.
SAME_QUESTION = {"name": ("d2p_same", "p2d_reverse"), "description": ("p2d_same", "d2p_reverse")}


def count_outcomes(outcomes):
    """How many facts were traced and why the others were not: columns corruption, outcome, n."""
    return outcomes.groupby(["corruption", "outcome"], sort=False).size().rename("n").reset_index()


def aggregate(traces_by_split, *, model, seed):
    """The rows of the study's table of traces, of one model: means over the facts of each split, with 95% intervals.

    By `reading`, a site's `mean` is what restoring it returns ("indirect"), the share that is of the total effect
    ("recovered"), the share that is lost where it alone is as if the subject were hidden ("necessary"), the share of
    what its state returns that is left with modules severed ("kept"), by how much it returns more than the subject in
    the same layer ("handed", of the whole answer's places), or more than asked the other way round about the same
    people ("turned"); intervals of the last two hold at all sites at once. Reading "whole" has no site: its kinds are
    the "clean" and the "corrupted" score and "total", their difference. Shares are ratios of means. n counts facts.
    """
    frames = [
        frame.assign(split=split)
        for split, traces in traces_by_split.items()
        for frame in _frames(traces)
        if len(frame)
    ]
    frames += [frame for pair in (*FORWARD_REVERSE.values(), tuple(KNOWN)) for frame in _turned(traces_by_split, pair)]
    if not frames:
        return pd.DataFrame(columns=COLUMNS)
    table = pd.concat(frames, ignore_index=True)
    table = table[table.n > 0].assign(model=model, seed=seed)
    table["direction"] = table.split.map({split: about.direction for split, about in ANY_SPLIT.items()})
    return table.astype({"layer": "Int64", "window": "Int64", "n": int})[COLUMNS].reset_index(drop=True)


def _frames(traces):
    for corruption in CORRUPTIONS:
        for score in SCORES:
            own = [trace for trace in traces if f"{score}.{corruption}.corrupted" in trace.arrays]
            for stage in STAGES if own else ():
                yield from _stage(own, corruption, score, stage)


def _stage(traces, corruption, score, stage):
    """The tables of one stage, from the traces that have it."""
    there = [(trace, trace.stages().index(stage)) for trace in traces if stage in trace.stages()]
    about = {"corruption": corruption, "score": score, "stage": stage}
    known = [(trace, i) for trace, i in there if i < len(trace.arrays[f"{score}.{corruption}.corrupted"])]
    if not known:
        return
    scores = np.array([[_score(trace, corruption, score, part, i) for part in SCORED] for trace, i in known])
    yield _table(scores, intervals.mean(scores), {"kind": SCORED}, about | {"reading": "whole", "role": "all"})
    for kind in dict.fromkeys(kind for trace, _ in known for kind in trace.kinds[corruption]):
        for window in known[0][0].windows if kind in WINDOWED else known[0][0].windows[:1]:
            yield from _sites(known, about | {"kind": kind, "window": window if kind in WINDOWED else 1})


SCORED = ["clean", "corrupted", "total"]


def _score(trace, corruption, score, part, i):
    if part == "total":
        return total(trace, corruption, score)[i]
    return trace.arrays[f"{score}.clean" if part == "clean" else f"{score}.{corruption}.corrupted"][i]


def _sites(known, about):
    """The tables of one kind: what restoring returns, and shares."""
    corruption, score, kind = (about[name] for name in ("corruption", "score", "kind"))
    how = {"score": score, "window": about["window"] if kind in WINDOWED else None}
    own = [(trace, i) for trace, i in known if i < len(_runs(trace, corruption, kind, how))]
    if not own:
        return
    effects = np.array([indirect(trace, corruption, kind, **how)[i] for trace, i in own])
    costs = np.array([total(trace, corruption, score)[i] for trace, i in own])[:, None, None]
    axes = {"role": ROLES, "layer": range(effects.shape[-1])}
    yield _table(effects, intervals.mean(effects), axes, about | {"reading": "indirect"})
    if score == "probability":
        return
    yield _table(effects, contrasts.ratio(effects, costs), axes, about | {"reading": "recovered"})
    if score == "log_probability" and about["stage"] == STAGES[0]:
        yield from _beside(own, effects, corruption, kind, about)
    if score == "log_probability" and all(
        trace.runs(corruption, kind, reading="necessary") is not None for trace, _ in own
    ):
        lost = [necessary(trace, corruption, kind) for trace, _ in own]
        if about["window"] in (1, own[0][0].windows[0]) and about["stage"] == STAGES[0]:
            lost = np.array([one[0] for one in lost])
            yield _table(lost, contrasts.ratio(lost, costs), axes, about | {"reading": "necessary"})


def _beside(own, effects, corruption, kind, about):
    """Tables of one site's effects (facts, roles, L) at t1 beside another's: of modules severed, of the subject."""
    layers = range(effects.shape[-1])
    if KINDS[kind].severed:
        last = ROLES.index("last subject")
        states = at_first([trace for trace, _ in own], corruption, KINDS[kind].restored)[0]
        if len(states) == len(effects):
            kept = contrasts.ratio(effects[:, last], states[:, last])
            yield _table(
                effects[:, last], kept, {"role": ["last subject"], "layer": layers}, about | {"reading": "kept"}
            )
    elif kind == "state":
        subject, answer = (effects[:, ROLES.index(role)] for role in TOGETHER)
        more = contrasts.band(answer - subject, rng=np.random.default_rng(0))
        yield _table(answer - subject, more, {"role": TOGETHER[1:], "layer": layers}, about | {"reading": "handed"})


def _runs(trace, corruption, kind, how):
    found = trace.runs(corruption, kind, **how)
    return () if found is None else found


def _turned(traces_by_split, pair):
    """Tables of what each direction's effects exceed the other's by, for the people who were traced in both."""
    if not set(pair) <= set(traces_by_split):
        return
    corruption = leading(name for traces in traces_by_split.values() for trace in traces for name in trace.kinds)
    for split, other in (pair, pair[::-1]):
        for kind in WHOLE:
            there = [at_first(traces_by_split[one], corruption, kind) for one in (split, other)]
            effects = [dict(zip([trace.about["fact"] for trace in own], values, strict=True)) for values, own in there]
            both = [fact for fact in effects[0] if fact in effects[1]]
            if both:
                gaps = np.array([(effects[0][fact] - effects[1][fact])[: len(SINGLE_ROLES)] for fact in both])
                gaps[:, (~np.isnan(gaps)).sum(0) < max(2, len(both) / 2)] = np.nan  # sites that most people lack
                about = {"kind": kind, "window": there[0][1][0].windows[0] if kind in WINDOWED else 1}
                about |= {"corruption": corruption, "score": "log_probability", "stage": STAGES[0], "reading": "turned"}
                found = contrasts.band(gaps.reshape(len(both), -1), rng=np.random.default_rng(0))
                axes = {"role": SINGLE_ROLES, "layer": range(gaps.shape[-1])}
                yield _table(gaps, found, axes, about | {"split": split})


def _table(values, found, axes, about):
    """A row for each combination of the `axes`, with the number of facts that `values` (facts, ...) are of."""
    index = pd.MultiIndex.from_product(list(axes.values()), names=list(axes))
    parts = {"n": (~np.isnan(values)).sum(0), "mean": found.estimate, "ci_low": found.low, "ci_high": found.high}
    table = pd.DataFrame({name: np.ravel(part) for name, part in parts.items()}, index=index).reset_index()
    return table[table["mean"].notna()].assign(**about)


def maps(traces_by_seed, *, model, rng):
    """How sure and how alike maps of effects at t1 are: a table of one model's traces by seed and split.

    By `statistic`: "split_half", what the map of as many other facts would correlate with this one at; "participation",
    over how many single sites a fact's effects are spread; "peak", the layer of the largest effect at the last subject
    token, and whether it is one ("here", "shared", "nowhere"); "plateau", each of the layers side by side in which
    the whole subject's effect is not clearly less than its largest; "correlation" and "slope", without the maps' noise,
    and "rank", Spearman's correlation as it is, with the map of an `other` corruption, seed or split: the same question
    about people taught the other way round, or the other question to the same people. `ceiling` is the most that a
    plain correlation could have shown.
    """
    rows = []
    for seed, traces_by_split in traces_by_seed.items():
        everything = [trace for traces in traces_by_split.values() for trace in traces]
        corruption = leading(name for trace in everything for name in trace.kinds)
        for split, traces in traces_by_split.items():
            for kind in WHOLE:
                effects, own = at_first(traces, corruption, kind)
                if not len(own):
                    continue
                about = {"model": model, "seed": seed, "split": split, "kind": kind, "corruption": corruption}
                rows += [about | row for row in _sure(effects, own, corruption, kind, rng)]
                for other, also in _others(traces_by_seed, seed, split, corruption, kind):
                    rows += [about | row for row in _likeness(effects, own, also, other, rng)]
    return pd.DataFrame(rows, columns=MAP_COLUMNS).astype({"layer": "Int64", "n": "Int64"})


def _sure(effects, own, corruption, kind, rng):
    cells = _cells(effects)
    itself = contrasts.alike(cells, cells, rng=rng, paired=True)
    yield {"statistic": "split_half", "value": itself.ceiling, "n": len(own)}
    spread = intervals.mean([_participation(trace, corruption, kind) for trace in own])
    yield {"statistic": "participation", "value": spread.estimate, "n": len(own)} | _ends(spread)
    peak = contrasts.peak(effects[:, ROLES.index("last subject")], rng=rng)
    found = {"statistic": "peak", "role": "last subject", "layer": peak.cell, "value": peak.estimate, "n": len(own)}
    yield found | {"ci_low": peak.low, "ci_high": peak.high, "place": peak.place}
    whole = contrasts.peak(effects[:, ROLES.index("whole subject")], rng=rng)
    for layer in _plateau(whole):
        yield {"statistic": "plateau", "role": "whole subject", "layer": layer, "n": len(own)}


def _plateau(peak):
    """The layers around a peak that are not clearly below it, one next to the other."""
    if peak.place == "nowhere":
        return []
    high, first, last = {peak.cell, *peak.rivals}, peak.cell, peak.cell
    while first - 1 in high:
        first -= 1
    while last + 1 in high:
        last += 1
    return range(first, last + 1)


def _others(traces_by_seed, seed, split, corruption, kind):
    """What a map can be compared with: (name, (effects, traces))."""
    here = traces_by_seed[seed]
    for other in CORRUPTIONS:
        if other != corruption:
            yield other, at_first(here[split], other, kind)
    for other, traces_by_split in traces_by_seed.items():
        if other > seed:
            yield f"seed_{other}", at_first(traces_by_split.get(split, ()), corruption, kind)
    for pair in (*SAME_QUESTION.values(), *FORWARD_REVERSE.values()):
        if split == pair[0]:
            yield pair[1], at_first(here.get(pair[1], ()), corruption, kind)


def _likeness(effects, own, also, other, rng):
    others, traces = also
    names, facts = ([trace.about["fact"] for trace in some] for some in (own, traces))
    if both := [fact for fact in names if fact in facts]:
        effects, others = effects[[names.index(f) for f in both]], others[[facts.index(f) for f in both]]
    if len(others):
        found = contrasts.alike(_cells(effects), _cells(others), rng=rng, paired=bool(both))
        about = {"other": other, "n": len(effects)}
        for statistic, ceiling in (("correlation", found.ceiling), ("slope", None)):
            value = getattr(found, statistic)
            yield about | {"statistic": statistic, "value": value.estimate, "ceiling": ceiling} | _ends(value)
        yield about | {"statistic": "rank", "value": found.rank, "ceiling": found.rank_ceiling}


def _cells(effects):
    """Effects (facts, roles, L) as maps (facts, cells) of single sites: tokens restored together are none."""
    return effects[:, : len(SINGLE_ROLES)].reshape(len(effects), -1)


def _participation(trace, corruption, kind):
    """Over how many sites the positive effects of one fact are spread: (Σ e)² / Σ e²; 1 where one has all."""
    single = [role in SINGLE_ROLES for role in trace.roles[0]]
    effects = np.maximum(trace.effects(corruption, kind)[0][single], 0)
    return effects.sum() ** 2 / (effects**2).sum() if effects.any() else np.nan


def _ends(interval):
    return {"ci_low": interval.low, "ci_high": interval.high}
