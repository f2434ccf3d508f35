"""The terms of causal tracing: how a subject is corrupted, what is restored, and at which tokens and steps."""

# How a subject is corrupted, and what that puts in its place. The first one that a study has is the leading one.
CORRUPTIONS = {
    "swap": "another person's subject in its place",
    "gaussian": "Gaussian noise on its embeddings",
    "mask": "masks in its place",
}
KINDS = {"state": "hidden state", "mlp": "MLP", "attn": "attention"}  # what is restored, and its label
WINDOWED_KINDS = ("mlp", "attn")  # restored over a window of layers
ROLES = (
    "prior prompt",  # before the subject
    "first subject",
    "middle subject",
    "last subject",  # also the only token of a one-token subject
    "first subsequent",
    "further prompt",
    "last prompt",
    "revealed answer",
    "revealed canvas",  # generated, but not part of the answer
    "masked answer",
    "masked canvas",
    "all subject tokens",  # restored together
    "answer positions",  # all positions where tokens still to come are predicted, restored together
)
SINGLE_ROLES, JOINT_ROLES = ROLES[:-2], ROLES[-2:]
# How the answer is scored: log p in nats, p, log p minus the log p of the swap partner's answer, and log p with each
# token given those before it, by which the families compare; in the others a diffusion network's tokens are all masked.
SCORES = ("log_probability", "probability", "contrast", "sequential")
STAGES = ("t1", "between", "t2")  # the steps that reveal the answer's first token, one half way, and its last token
# Why a fact is traced or not.
TRACED, NOT_ANSWERED, TOO_SHORT, NOT_NEEDED = "traced", "not answered", "too few answer tokens", "not needed"
NO_PARTNER, NO_MASK = "no swap partner", "no mask token"
# Further measures that only some facts allow: the effect of the revealed tokens, and the contrast score.
REVEALED, CONTRAST = "revealed tokens", "partner's answer"
SINGLE_STEP, OTHER_LENGTH = "revealed in one step", "of another length"


def choose_corruption(present):
    """The leading corruption among those `present`; swap where none is."""
    present = set(present)
    return next((name for name in CORRUPTIONS if name in present), next(iter(CORRUPTIONS)))
