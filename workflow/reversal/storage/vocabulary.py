"""The names of what is compared between the forward and the reverse direction. Each is defined once, here."""

# What is read of a network: the MLP's key, the MLP's output for that key, the block's hidden state.
KINDS = ("key", "output", "state")
# Where it is read: at the last subject token; and where the answer is predicted while none of it is visible, which is
# all of its masks, or the last prompt token of a causal network.
POSITIONS = ("subject", "answer")
DIRECTIONS = ("forward", "reverse")  # the prompt asks for the description; it asks for the name


def side_name(vectors, direction):
    """The name of one set of vectors: one side of a comparison."""
    return f"{vectors}, {direction}"


def pair_sides(forward, reverse):
    """The two sides of a comparison: forward, then reverse."""
    return side_name(forward, "forward"), side_name(reverse, "reverse")


# A concept as the MLP's output at the subject and as a value, which lie in one space. These two comparisons, measured
# by PRIMARY_STATISTIC, are the primary (preregistered) tests; all others are exploratory.
PRIMARY_COMPARISONS = {
    "name": "name: output at subject × value",
    "description": "description: value × output at subject",
}
COMPARISONS = {
    PRIMARY_COMPARISONS["name"]: pair_sides("output at subject", "value"),
    PRIMARY_COMPARISONS["description"]: pair_sides("value", "output at subject"),
}
for _kind in KINDS:
    # A name is the subject of the forward prompt and the answer of the reverse one; for a description it is the other
    # way round.
    COMPARISONS |= {
        f"name: {_kind} at subject × at answer": pair_sides(f"{_kind} at subject", f"{_kind} at answer"),
        f"description: {_kind} at answer × at subject": pair_sides(f"{_kind} at answer", f"{_kind} at subject"),
    }
for _kind in ("key", "state"):
    COMPARISONS |= {f"fact: {_kind} at {_at}": pair_sides(*[f"{_kind} at {_at}"] * 2) for _at in POSITIONS}
# The optimisation of a value starts from the MLP's own output. How close the value stays to it limits what comparisons
# with values can show, so it is measured too. It is no test of symmetry and enters no correction.
REFERENCES = {
    f"within {_direction}: output at subject × value": (
        side_name("output at subject", _direction),
        side_name("value", _direction),
    )
    for _direction in DIRECTIONS
}
PAIRS = COMPARISONS | REFERENCES
WITHOUT_VALUES = [pair for pair, sides in PAIRS.items() if not any("value" in side for side in sides)]
# The same for hidden states, which need no optimisation: at every layer, and in the base model too.
STATE_COMPARISONS = {
    "name": "name: state at subject × at answer",
    "description": "description: state at answer × at subject",
}
# The comparisons whose subspaces, spectra and principal components are shown: one space, and one side the MLP's output
# for the key at the subject. Values are in few layers and in no base, outputs at the answer everywhere.
SHOWN_COMPARISONS = (
    *PRIMARY_COMPARISONS.values(),
    "name: output at subject × at answer",
    "description: output at answer × at subject",
)
TWO_HALVES = ", two halves of the templates"
# How similar two sets of vectors are, as `similarity` measures it: from 0, or what chance gives, to 1.
MAIN_STATISTICS = ("debiased_cka", "cosine_similarity", "linear_probe")
STATISTICS = (*MAIN_STATISTICS, "subspace_overlap")
PRIMARY_STATISTIC = "debiased_cka"
SEARCHED = "searched"  # share of values whose search took steps; the others are the MLP's own outputs
BASE = "base"  # a stage
PEAK = "peak"  # in place of a layer: each direction at the layer where its MLPs have the largest effect
# As in `finetuned`.
EDIT_KINDS = ("replace", "replay_both", "forget", "insert", "knock_out", "erase", "relearn")
# What an edit trains: traced is the part that tracing points to; layers, one at a time.
WEIGHTS = ("all", "mlp", "attention", "traced", "layers", "adapter")
RIDGE = 1e-2  # what a rank-one edit adds to the diagonal of the second moment, as a share of that diagonal's mean
# In place of a number of steps: each fact at the first number of steps at which its edit converged, or at the last.
CONVERGED = "converged"


def main_weights(weights):
    """Return which of the trained `weights` decide between shared and separate storage: all, or else the first."""
    trained = list(weights)
    return "all" if "all" in trained or not trained else trained[0]
