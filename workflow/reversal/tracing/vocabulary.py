"""The words of causal tracing, each said once: how a subject is hidden, what is put back, where and when."""

from typing import NamedTuple

# How a subject is hidden, and what that puts in its place. Of those that a study has, the first leads.
CORRUPTIONS = {"gaussian": "noise on its embeddings", "mask": "masks in its place", "swap": "another's subject"}


class Kind(NamedTuple):
    """What is restored, which modules stay corrupted above it, and what to call that."""

    restored: str
    severed: str | None
    label: str


KINDS = {
    "state": Kind("state", None, "hidden state"),
    "mlp": Kind("mlp", None, "MLP"),
    "attn": Kind("attn", None, "attention"),
    "severed_mlp": Kind("state", "mlp", "hidden state, MLPs above kept corrupted"),
    "severed_attn": Kind("state", "attn", "hidden state, attention above kept corrupted"),
}
WHOLE = [name for name, kind in KINDS.items() if kind.severed is None]  # kinds that sever nothing
SEVERABLE = [kind.severed for kind in KINDS.values() if kind.severed]
ROLES = (
    "prior prompt",  # before the subject
    "first subject",
    "middle subject",
    "last subject",  # also of a subject of one token
    "first subsequent",
    "further prompt",
    "last prompt",
    "revealed answer",
    "revealed canvas",  # generated, but not part of the answer
    "masked answer",
    "masked canvas",
    "whole subject",  # all its tokens restored together
)
SCORES = ("probability", "log_probability")
STAGES = ("first", "middle", "last", "only")  # t1, between, t2; "only" where t1 is t2
# Why a fact was traced or not.
TRACED, NOT_ANSWERED, TOO_SHORT, NOT_NEEDED = "traced", "not answered", "too few answer tokens", "not needed"
NO_PARTNER, NO_MASK = "no swap partner", "no mask token"


def leading(present):
    """The corruption whose results lead, of those `present`; that of ROME where none is."""
    present = set(present)
    return next((name for name in CORRUPTIONS if name in present), next(iter(CORRUPTIONS)))
