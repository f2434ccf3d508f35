"""What the paper's rules share: its names, the files it rests on and shows, and who made them. No rules."""

PAPER = config["paper"]
POST = f"{PAPER['date']}-{PAPER['slug']}"
FIRST_SEED = config["seeds"][0]
READING = ["errors", "facts", "figures/read", "files", "render/__init__", "render/evidence", "render/write"]
WRITING = [f"render/{part}" for part in ("bibliography", "markdown", "post", "provenance", "tables", "wording")]
WRITING += ["figures/style"]

EVIDENCE = {
    "tables": expand(
        "<results>/tables/{table}.csv",
        table=[
            *("step_scaling", "recall_differences", "likelihood", "probe"),
            *("causal_trace", "traced_facts", "keyvalue", "symmetry", "edits"),
        ],
    ),
    "models": expand("<results>/models/{model}/seed_{seed}", model=config["models"], seed=FIRST_SEED),
    "data": expand("<results>/data/{table}.jsonl", table=["facts", "train", *RECALL_SPLITS]),
}
KEPT = local(expand("paper/reference/{run}/{file}.json", run=PAPER["kept"], file=["numbers", "provenance"]))
SHOWN = {
    "figures": expand("<results>/figures/{figure}.svg", figure=FIGURES),
    "alternatives": expand("<results>/figures/{figure}.txt", figure=FIGURES),
    "numbers": "<results>/paper/numbers.json",
    "template": local("paper/post.md.j2"),
    "sentences": local("paper/sentences.j2"),
    "beside": local("paper/kept.md.j2"),
    "bibliography": local("paper/references.bib"),
    # Not read: what the footers tell the age and the maker of.
    "tables": EVIDENCE["tables"]
    + expand("<results>/tables/step_scaling_by_{way}_direction.csv", way=["training", "question"]),
    "models": EVIDENCE["models"],
    "data": EVIDENCE["data"],
}


def makers(wildcards, input):
    """What made each file of the results: the name in the workflow, and the script."""
    found = {}
    for file in input:
        for maker in workflow.rules:
            if maker.script and any(output.match(file) for output in maker.output):
                found[str(file)] = [maker.name, maker.script.replace("..", "workflow", 1)]
    return found
