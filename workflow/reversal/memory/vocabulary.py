"""The words for what is compared between forward and reverse memories, each said once."""

COMPARISONS = {
    "name: key forward × value reverse": ("key forward", "value reverse"),
    "name: projected key forward × value reverse": ("projected key forward", "value reverse"),
    "description: value forward × key reverse": ("value forward", "key reverse"),
    "description: value forward × projected key reverse": ("value forward", "projected key reverse"),
    "keys: forward × reverse": ("key forward", "key reverse"),
    "projected keys: forward × reverse": ("projected key forward", "projected key reverse"),
    "values: forward × reverse": ("value forward", "value reverse"),
}
# A value is sought from what its own key projects to. How near it stayed limits what the comparisons above can
# say about values, so it is measured beside them. It is no claim of symmetry and enters no correction.
REFERENCES = {
    "within forward: projected key × value": ("projected key forward", "value forward"),
    "within reverse: projected key × value": ("projected key reverse", "value reverse"),
    # The same questions of what the MLP says by itself, where no search had a hand in it.
    "name: projected key forward × output reverse": ("projected key forward", "output reverse"),
    "description: output forward × projected key reverse": ("output forward", "projected key reverse"),
}
PAIRS = COMPARISONS | REFERENCES
KEYS_ALONE = [pair for pair, sides in COMPARISONS.items() if all("key" in side for side in sides)]
STATISTICS = ("linear_cka", "debiased_cka", "rsa", "retrieval_at_1", "mean_rank", "subspace_overlap")
# Those whose sides are in one space, the values' own.
IN_ONE_SPACE = [pair for pair, sides in COMPARISONS.items() if not any(side.startswith("key") for side in sides)]
# Of a concept as a key and as a value, in one space: the comparisons that answer the question, by HEADLINE. These two
# were named beforehand; the others are for looking.
CONCEPTS = {
    "name": "name: projected key forward × value reverse",
    "description": "description: value forward × projected key reverse",
}
HEADLINE = "debiased_cka"
BEYOND = "debiased_cka beyond base"  # the statistic less that of the base, on the same facts
BASE, PEAK = "base", "peak"  # a stage; in place of a layer, each direction at the one where its MLPs matter most
LESSONS = ("rewrite", "forget", "teach")
WEIGHTS = ("all", "mlp", "attention", "layers")  # what a lesson trains; the last stands for each layer by itself
RIDGE = 1e-2  # of the mean of a second moment's diagonal, which an edit adds to that diagonal
DONOR = "another person of the group, whose answer has as many tokens where there is one"
LEARNT = "learnt"  # in place of a number of steps: each fact at the first at which its lesson is learnt, or the last
