"""Traces averaged over facts: effects by token role, layer and stage, and comparisons of their maps, with intervals."""

import numpy as np
import pandas as pd

from ..common import contrasts, intervals
from ..data.facts import ANY_SPLIT, FORWARD_REVERSE, KNOWN
from .files import collect_t1_effects
from .vocabulary import (
    CORRUPTIONS,
    JOINT_ROLES,
    KINDS,
    ROLES,
    SCORES,
    SINGLE_ROLES,
    STAGES,
    UNSEVERED_KINDS,
    WINDOWED_KINDS,
    choose_corruption,
)

KEYS = ["model", "seed", "split", "direction", "kind", "window", "corruption", "score", "reading", "stage", "layer"]
COLUMNS = [*KEYS, "role", "n", "mean", "ci_low", "ci_high"]
MAP_KEYS = ["model", "seed", "split", "kind", "corruption", "statistic", "other"]
MAP_COLUMNS = [*MAP_KEYS, "role", "layer", "n", "value", "ci_low", "ci_high", "ceiling", "place"]
SCORE_KINDS = ["clean", "corrupted", "total"]
# {answer type: splits that ask the same question about people taught in the same and in the reverse direction}
SAME_QUESTION = {"name": ("d2p_same", "p2d_reverse"), "description": ("p2d_same", "d2p_reverse")}
SAME_PEOPLE = tuple(zip(SAME_QUESTION["name"], SAME_QUESTION["description"][::-1], strict=True))


def count_outcomes(outcomes):
    """How many facts were traced and why the others were not: columns corruption, outcome, n."""
    return outcomes.groupby(["corruption", "outcome"], sort=False).size().rename("n").reset_index()


def aggregate(traces_by_split, *, model, seed):
    """The rows of causal_trace.csv for one model: means over the facts of each split, with 95% intervals.

    By `reading`, the `mean` of a site is
    - "indirect": the indirect effect of restoring it;
    - "recovered": the share of the total effect recovered by restoring it (sufficiency);
    - "necessary": the share of the total effect lost by corrupting it alone in the clean run (necessity);
    - "remaining": the share of its state's indirect effect that remains with modules severed;
    - "handover": the indirect effect of the answer positions minus that of all subject tokens in the same layer;
    - "direction_gap": its indirect effect minus that in the other direction, for the same people.
    Intervals of the last two hold for all sites at once. Reading "scores" has no site: its kinds are the "clean" and
    the "corrupted" score and "total", their difference. Shares are ratios of means. n counts facts.
    """
    tables = [
        table.assign(split=split)
        for split, traces in traces_by_split.items()
        for table in _tabulate_split(traces)
        if len(table)
    ]
    pairs = (*FORWARD_REVERSE.values(), tuple(KNOWN))
    tables += [table for pair in pairs for table in _compare_directions(traces_by_split, pair)]
    if not tables:
        return pd.DataFrame(columns=COLUMNS)
    table = pd.concat(tables, ignore_index=True)
    table = table[table.n > 0].assign(model=model, seed=seed)
    table["direction"] = table.split.map({name: split.direction for name, split in ANY_SPLIT.items()})
    return table.astype({"layer": "Int64", "window": "Int64", "n": int})[COLUMNS].reset_index(drop=True)


def _tabulate_split(traces):
    for corruption in CORRUPTIONS:
        for score in SCORES:
            scored = [trace for trace in traces if f"{score}.{corruption}.corrupted" in trace.arrays]
            for stage in STAGES if scored else ():
                yield from _tabulate_stage(scored, corruption, score, stage)


def _tabulate_stage(traces, corruption, score, stage):
    """The tables of one stage, from the traces that have it."""
    steps = [(trace, trace.stages().index(stage)) for trace in traces if stage in trace.stages()]
    steps = [(trace, i) for trace, i in steps if i < len(trace.arrays[f"{score}.{corruption}.corrupted"])]
    if not steps:
        return
    labels = {"corruption": corruption, "score": score, "stage": stage}
    scores = np.array(
        [[_select_score(trace, corruption, score, kind)[i] for kind in SCORE_KINDS] for trace, i in steps]
    )
    yield _make_rows(
        scores, intervals.mean(scores), {"kind": SCORE_KINDS}, labels | {"reading": "scores", "role": "all"}
    )
    windows = steps[0][0].windows
    for kind in dict.fromkeys(kind for trace, _ in steps for kind in trace.kinds[corruption]):
        for window in windows if kind in WINDOWED_KINDS else windows[:1]:
            yield from _tabulate_sites(
                steps, labels | {"kind": kind, "window": window if kind in WINDOWED_KINDS else 1}
            )


def _select_score(trace, corruption, score, kind):
    """The clean or corrupted scores of a trace (S',), or its total effects."""
    if kind == "total":
        return trace.total_effect(corruption, score)
    return trace.arrays[f"{score}.clean" if kind == "clean" else f"{score}.{corruption}.corrupted"]


def _tabulate_sites(steps, labels):
    """The tables of one kind, from (trace, index of the step) pairs: indirect effects and shares."""
    corruption, score, kind = (labels[name] for name in ("corruption", "score", "kind"))
    options = {"score": score, "window": labels["window"] if kind in WINDOWED_KINDS else None}
    scores = [trace.scores(corruption, kind, **options) for trace, _ in steps]
    steps = [step for step, values in zip(steps, scores, strict=True) if values is not None and step[1] < len(values)]
    if not steps:
        return
    effects = np.array(
        [trace.average_by_role(trace.indirect_effects(corruption, kind, **options))[i] for trace, i in steps]
    )
    totals = np.array([trace.total_effect(corruption, score)[i] for trace, i in steps])[:, None, None]
    axes = {"role": ROLES, "layer": range(effects.shape[-1])}
    yield _make_rows(effects, intervals.mean(effects), axes, labels | {"reading": "indirect"})
    if score == "probability":
        return
    yield _make_rows(effects, contrasts.ratio(effects, totals), axes, labels | {"reading": "recovered"})
    if score != "log_probability" or labels["stage"] != STAGES[0]:
        return
    traces = [trace for trace, _ in steps]
    yield from _compare_sites(traces, effects, labels)
    measured = all(trace.scores(corruption, kind, reading="necessary") is not None for trace in traces)
    if measured and labels["window"] in (1, traces[0].windows[0]):
        necessity = np.array([trace.average_by_role(trace.necessity_effects(corruption, kind))[0] for trace in traces])
        yield _make_rows(necessity, contrasts.ratio(necessity, totals), axes, labels | {"reading": "necessary"})


def _compare_sites(traces, effects, labels):
    """Tables that compare effects (facts, roles, L) at t1: severed with unsevered states, answer with subject."""
    layers = range(effects.shape[-1])
    kind = KINDS[labels["kind"]]
    if kind.severed:
        last = ROLES.index("last subject")
        states = collect_t1_effects(traces, labels["corruption"], kind.restored)[0]
        if len(states) == len(effects):
            remaining = contrasts.ratio(effects[:, last], states[:, last])
            axes = {"role": ["last subject"], "layer": layers}
            yield _make_rows(effects[:, last], remaining, axes, labels | {"reading": "remaining"})
    elif kind.restored == "state":
        subject, answer = (effects[:, ROLES.index(role)] for role in JOINT_ROLES)
        handover = contrasts.simultaneous_band(answer - subject, rng=np.random.default_rng(0))
        axes = {"role": JOINT_ROLES[1:], "layer": layers}
        yield _make_rows(answer - subject, handover, axes, labels | {"reading": "handover"})


def _compare_directions(traces_by_split, pair):
    """Tables of the effects in each direction minus those in the other, for the people traced in both."""
    if not set(pair) <= set(traces_by_split):
        return
    corruption = choose_corruption(
        name for traces in traces_by_split.values() for trace in traces for name in trace.kinds
    )
    for split, other in (pair, pair[::-1]):
        for kind in UNSEVERED_KINDS:
            (effects, traces), (other_effects, other_traces) = (
                collect_t1_effects(traces_by_split[name], corruption, kind) for name in (split, other)
            )
            here, there = _pair_facts(traces, other_traces)
            if here:
                gaps = (effects[here] - other_effects[there])[:, : len(SINGLE_ROLES)]
                gaps[:, (~np.isnan(gaps)).sum(0) < max(2, len(here) / 2)] = np.nan  # sites that most people lack
                labels = {"kind": kind, "window": traces[0].windows[0] if kind in WINDOWED_KINDS else 1}
                labels |= {"corruption": corruption, "score": "log_probability", "stage": STAGES[0]}
                labels |= {"reading": "direction_gap", "split": split}
                band = contrasts.simultaneous_band(gaps.reshape(len(here), -1), rng=np.random.default_rng(0))
                axes = {"role": SINGLE_ROLES, "layer": range(gaps.shape[-1])}
                yield _make_rows(gaps, band, axes, labels)


def _pair_facts(traces, others):
    """The indices in two lists of traces of the facts that are in both."""
    facts, other_facts = ([trace.metadata["fact"] for trace in group] for group in (traces, others))
    common = [fact for fact in facts if fact in other_facts]
    return [facts.index(fact) for fact in common], [other_facts.index(fact) for fact in common]


def _make_rows(values, interval, axes, labels):
    """A row for each combination of `axes` with an estimate; n counts the facts of `values` (facts, ...)."""
    index = pd.MultiIndex.from_product(list(axes.values()), names=list(axes))
    parts = {"n": (~np.isnan(values)).sum(0), "mean": interval.estimate}
    parts |= {"ci_low": interval.low, "ci_high": interval.high}
    table = pd.DataFrame({name: np.ravel(part) for name, part in parts.items()}, index=index).reset_index()
    return table[table["mean"].notna()].assign(**labels)


def tabulate_maps(traces_by_seed, *, model, rng):
    """The rows of trace_maps.csv for one model: reliability and similarity of the maps of effects at t1.

    `traces_by_seed` is {seed: {split: traces}}. By `statistic`:
    - "split_half": the correlation expected with the map of as many other facts;
    - "participation_ratio": over how many single sites the effects of a fact are spread;
    - "peak": the layer of the largest effect at the last subject token, and in `place` whether it is a peak ("here",
      "shared", "nowhere");
    - "plateau": each of the contiguous layers where the effect of all subject tokens is not significantly below its
      maximum;
    - "correlation": with the map of an `other` corruption, seed or split, corrected for the maps' noise, which
      can take a correlation beyond 1; the other split asks the same question about people taught in the other
      direction, or the other question about the same people;
    - "raw": the correlation with that map, uncorrected. `ceiling` is what noise would leave of a correlation of 1;
    - "route": how much better maps of the same question about other people agree than maps of the other question about
      the same people (`contrasts.contrast_maps`), over all four splits.
    """
    rows = []
    for seed, traces_by_split in traces_by_seed.items():
        corruption = choose_corruption(
            name for traces in traces_by_split.values() for trace in traces for name in trace.kinds
        )
        for split, split_traces in traces_by_split.items():
            for kind in UNSEVERED_KINDS:
                effects, traces = collect_t1_effects(split_traces, corruption, kind)
                if not traces:
                    continue
                labels = {"model": model, "seed": seed, "split": split, "kind": kind, "corruption": corruption}
                rows += [labels | row for row in _describe_map(effects, traces, corruption, kind, rng)]
                for other, other_map in _collect_other_maps(traces_by_seed, seed, split, corruption, kind):
                    rows += [
                        labels | {"other": other} | row for row in _correlate_maps((effects, traces), other_map, rng)
                    ]
        for kind in UNSEVERED_KINDS:
            labels = {"model": model, "seed": seed, "kind": kind, "corruption": corruption}
            rows += [labels | row for row in _contrast_routes(traces_by_split, corruption, kind)]
    return pd.DataFrame(rows, columns=MAP_COLUMNS).astype({"layer": "Int64", "n": "Int64"})


def _describe_map(effects, traces, corruption, kind, rng):
    """Rows about one map alone, from effects (facts, roles, L)."""
    n, sites = len(traces), _flatten_sites(effects)
    yield {
        "statistic": "split_half",
        "value": contrasts.compare_maps(sites, sites, rng=rng, paired=True).ceiling,
        "n": n,
    }
    spread = intervals.mean([_participation_ratio(trace, corruption, kind) for trace in traces])
    yield {"statistic": "participation_ratio", "value": spread.estimate, "n": n} | _interval_ends(spread)
    peak = contrasts.find_peak(effects[:, ROLES.index("last subject")], rng=rng)
    row = {"statistic": "peak", "role": "last subject", "layer": peak.cell, "value": peak.estimate, "n": n}
    yield row | _interval_ends(peak) | {"place": peak.place}
    for layer in _find_plateau(contrasts.find_peak(effects[:, ROLES.index("all subject tokens")], rng=rng)):
        yield {"statistic": "plateau", "role": "all subject tokens", "layer": layer, "n": n}


def _find_plateau(peak):
    """The contiguous layers around a peak that are not significantly below it."""
    if peak.place == "nowhere":
        return []
    high, first, last = {peak.cell, *peak.rivals}, peak.cell, peak.cell
    while first - 1 in high:
        first -= 1
    while last + 1 in high:
        last += 1
    return range(first, last + 1)


def _collect_other_maps(traces_by_seed, seed, split, corruption, kind):
    """(name, (effects, traces)) of the maps that one map is compared with."""
    traces_by_split = traces_by_seed[seed]
    for other in CORRUPTIONS:
        if other != corruption:
            yield other, collect_t1_effects(traces_by_split[split], other, kind)
    for other, other_traces in traces_by_seed.items():
        if other > seed:
            yield f"seed_{other}", collect_t1_effects(other_traces.get(split, ()), corruption, kind)
    for first, other in (*SAME_QUESTION.values(), *FORWARD_REVERSE.values()):
        if split == first:
            yield other, collect_t1_effects(traces_by_split.get(other, ()), corruption, kind)


def _correlate_maps(this_map, other_map, rng):
    """Rows about two maps, (effects, traces) each; over the facts that both have, if there are any."""
    (effects, traces), (other_effects, other_traces) = this_map, other_map
    here, there = _pair_facts(traces, other_traces)
    if here:
        effects, other_effects = effects[here], other_effects[there]
    if not len(other_effects):
        return
    maps = _flatten_sites(effects), _flatten_sites(other_effects)
    similarity, n = contrasts.compare_maps(*maps, rng=rng, paired=bool(here)), len(effects)
    correlation = similarity.correlation
    yield {"statistic": "correlation", "n": n, "value": correlation.estimate} | _interval_ends(correlation)
    yield {"statistic": "raw", "n": n, "value": similarity.raw, "ceiling": similarity.ceiling}


def _contrast_routes(traces_by_split, corruption, kind):
    """The row that says whether a route follows the question or the people, where all four splits are traced."""
    people = []
    for pair in SAME_PEOPLE:
        maps = [collect_t1_effects(traces_by_split.get(split, ()), corruption, kind) for split in pair]
        rows = _pair_facts(*(traces for _, traces in maps))
        if not rows[0]:
            return
        people.append([_flatten_sites(effects[facts]) for (effects, _), facts in zip(maps, rows, strict=True)])
    route, n = contrasts.contrast_maps(*people), sum(len(maps[0]) for maps in people)
    yield {"statistic": "route", "n": n, "value": route.estimate} | _interval_ends(route)


def _flatten_sites(effects):
    """Effects (facts, roles, L) of single tokens as maps (facts, sites), without tokens restored together."""
    return effects[:, : len(SINGLE_ROLES)].reshape(len(effects), -1)


def _participation_ratio(trace, corruption, kind):
    """(Σ e)² / Σ e² of one fact's positive effects e at t1: the number of sites that they are spread over."""
    single = [role in SINGLE_ROLES for role in trace.roles[0]]
    effects = np.maximum(trace.indirect_effects(corruption, kind)[0][single], 0)
    return effects.sum() ** 2 / (effects**2).sum() if effects.any() else np.nan


def _interval_ends(interval):
    return {"ci_low": interval.low, "ci_high": interval.high}
