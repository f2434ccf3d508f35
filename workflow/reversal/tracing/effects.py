"""What changing a site does, at the tokens of a role: the numbers of one fact."""

import numpy as np

from .vocabulary import ROLES


def by_role(trace, values):
    """Means (S', roles, L) of a trace's `values` (S', P, L) over the places of each role; NaN where a step has none."""
    member = np.array(trace.roles[: len(values)])[:, None] == np.array(ROLES)[:, None]  # (S', roles, P)
    member = member[..., None] & ~np.isnan(values)[:, None]
    with np.errstate(invalid="ignore"):
        return np.where(member, values[:, None], 0).sum(2) / member.sum(2)


def indirect(trace, corruption, kind, *, score="log_probability", window=None):
    """What restoring returns (S', roles, L): restored − corrupted."""
    return by_role(trace, trace.effects(corruption, kind, score=score, window=window))


def necessary(trace, corruption, kind):
    """What is lost where a site alone is as if the subject were hidden (1, roles, L), in nats."""
    changed = trace.runs(corruption, kind, reading="necessary").astype(float)
    return by_role(trace, trace.arrays["log_probability.clean"][: len(changed), None, None] - changed)


def total(trace, corruption, score="log_probability"):
    """What hiding the subject costs (S',): clean − corrupted."""
    corrupted = trace.arrays[f"{score}.{corruption}.corrupted"].astype(float)
    return trace.arrays[f"{score}.clean"][: len(corrupted)] - corrupted


def at_first(traces, corruption, kind):
    """The effects at t1 (facts, roles, L) in nats, of the traces that have such a kind, and these traces."""
    own = [trace for trace in traces if kind in trace.kinds.get(corruption, ())]
    return np.array([indirect(trace, corruption, kind)[0] for trace in own]), own
