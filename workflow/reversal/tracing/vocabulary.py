"""The words of causal tracing, each said once: how a subject is hidden, what is put back, where and when."""

from typing import NamedTuple

# How a subject is hidden, and what that puts in its place. Of those that a study has, the first leads.
CORRUPTIONS = {
    "swap": "another person's subject in its place",
    "gaussian": "Gaussian noise on its embeddings",
    "mask": "masks in its place",
}


class Kind(NamedTuple):
    """What is restored, which modules stay corrupted above it, and what to call that, one or many."""

    restored: str
    severed: str | None
    label: str
    many: str


KINDS = {
    "state": Kind("state", None, "hidden state", "hidden states"),
    "mlp": Kind("mlp", None, "MLP", "MLP outputs"),
    "attn": Kind("attn", None, "attention", "attention outputs"),
    "severed_mlp": Kind("state", "mlp", "hidden state, MLPs severed", "states, MLPs above kept corrupted"),
    "severed_attn": Kind("state", "attn", "hidden state, attention severed", "states, attention above kept corrupted"),
}
WHOLE = [name for name, kind in KINDS.items() if kind.severed is None]  # kinds that sever nothing
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
    "whole answer",  # all places together where tokens are read that are not there yet
)
SINGLE_ROLES, TOGETHER = ROLES[:-2], ROLES[-2:]
WINDOWED = ("mlp", "attn")  # kinds that are restored over a window of layers
# What is scored of the answer: log p in nats, p, and by how many nats it is likelier than the answer about whoever
# stands in the subject's place.
SCORES = ("log_probability", "probability", "contrast")
STAGES = ("t1", "between", "t2")  # when the answer's first token is about to appear, half way, and its last
# Why a fact was traced or not.
TRACED, NOT_ANSWERED, TOO_SHORT, NOT_NEEDED = "traced", "not answered", "too few answer tokens", "not needed"
NO_PARTNER, NO_MASK = "no swap partner", "no mask token"
# And what is traced beside, where it can be: `REVEALED`, what rests on tokens already revealed; `RIVAL`, the contrast.
REVEALED, RIVAL = "revealed tokens", "partner's answer"
AT_ONCE, UNEQUAL = "revealed in one step", "of another length"


def leading(present):
    """The corruption whose results lead, of those `present`; that of ROME where none is."""
    present = set(present)
    return next((name for name in CORRUPTIONS if name in present), next(iter(CORRUPTIONS)))
