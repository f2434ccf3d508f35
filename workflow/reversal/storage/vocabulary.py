"""The words for what is compared between forward and reverse memories, each said once."""

# What is read of a network at a place of a question: the MLP's key, what the MLP makes of it, the block's hidden state.
KINDS = ("key", "output", "state")
# The last subject token; and where the answer is predicted while nothing of it is in sight: all its masks, or the last
# token of a causal network's prompt.
PLACES = ("subject", "answer")
WAYS = ("forward", "reverse")  # asked for the description, asked for the name


def side(what, way):
    """The name of one set of vectors."""
    return f"{what}, {way}"


def pair_sides(first, second):
    """A pair of sets of vectors: forward, then reverse."""
    return side(first, "forward"), side(second, "reverse")


# Of a concept as what the MLP makes of its key and as a value, in one space: the comparisons that answer the question,
# by HEADLINE. These two were named beforehand; the others are for looking.
CONCEPTS = {"name": "name: output at subject × value", "description": "description: value × output at subject"}
COMPARISONS = {
    CONCEPTS["name"]: pair_sides("output at subject", "value"),
    CONCEPTS["description"]: pair_sides("value", "output at subject"),
}
for _kind in KINDS:
    # A name is the subject of the forward question and the answer of the reverse one; a description is the other.
    COMPARISONS |= {
        f"name: {_kind} at subject × at answer": pair_sides(f"{_kind} at subject", f"{_kind} at answer"),
        f"description: {_kind} at answer × at subject": pair_sides(f"{_kind} at answer", f"{_kind} at subject"),
        f"fact: {_kind} at subject": pair_sides(f"{_kind} at subject", f"{_kind} at subject"),
        f"fact: {_kind} at answer": pair_sides(f"{_kind} at answer", f"{_kind} at answer"),
    }
COMPARISONS["fact: value"] = pair_sides("value", "value")
# A value is sought from what the MLP says by itself. How near it stayed limits what comparisons with values can say, so
# it is measured beside them. It is no claim of symmetry and enters no correction.
REFERENCES = {
    f"within {_way}: output at subject × value": (side("output at subject", _way), side("value", _way)) for _way in WAYS
}
PAIRS = COMPARISONS | REFERENCES
READ_ALONE = [pair for pair, sides in PAIRS.items() if not any("value" in one for one in sides)]
# The same of hidden states, which need no search, at every layer and in the base too.
STATES = {"name": "name: state at subject × at answer", "description": "description: state at answer × at subject"}
# How alike two sets of vectors are, by `symmetry`: 0 or what chance gives, to 1.
BRIEF = ("debiased_cka", "cosine_similarity", "probe")
STATISTICS = (*BRIEF, "rsa", "retrieval_at_1", "outranked", "subspace_overlap")
HEADLINE = "debiased_cka"
BEYOND = "debiased_cka beyond base"  # the statistic less that of the base, on the same facts
BASE, PEAK = "base", "peak"  # a stage; in place of a layer, each direction at the one where its MLPs matter most
LESSONS = ("rewrite", "forget", "teach")
WEIGHTS = ("all", "mlp", "attention", "layers", "adapter")  # what a lesson trains; layers: each by itself
RIDGE = 1e-2  # of the mean of a second moment's diagonal, which an edit adds to that diagonal
DONOR = "another person of the group, whose answer has as many tokens where there is one"
LEARNT = "learnt"  # in place of a number of steps: each fact at the first at which its lesson is learnt, or the last


def mainly_trained(weights):
    """Of the `weights` that lessons train, those whose lessons tell one memory from two: all, or else the first."""
    trained = list(weights)
    return "all" if "all" in trained or not trained else trained[0]
