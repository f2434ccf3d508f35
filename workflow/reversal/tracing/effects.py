"""What restoring brings back at the tokens of a role: the numbers of one fact, and their mean over steps."""

import numpy as np

from .vocabulary import ROLES


def effects_by_role(trace, corruption, score):
    """Indirect effects (kinds, S, roles, L), means over a role's positions; NaN where a step has none."""
    corrupted = trace.arrays[f"{score}.{corruption}.corrupted"]
    effects = trace.arrays[f"{score}.{corruption}.restored"].astype(float) - corrupted[:, None, None]
    member = np.array(trace.roles)[:, None] == np.array(ROLES)[:, None]  # (S, roles, P)
    with np.errstate(invalid="ignore"):
        return np.einsum("kspl,srp->ksrl", effects, member) / member.sum(-1)[:, :, None]


def mean(values):
    """The mean over the first axis of what is not NaN; NaN where nothing is."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(0) / known.sum(0)
