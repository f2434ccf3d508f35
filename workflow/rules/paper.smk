"""The post: its numbers, its Markdown for al-folio, and the page that stands alone."""

from glob import glob

PAPER = config["paper"]
POST = f"{PAPER['date']}-{PAPER['slug']}"
FIRST_SEED = config["seeds"][0]
READING = ["errors", "facts", "files", *(f"render/{part}" for part in ("__init__", "evidence"))]
WRITING = [f"render/{part}" for part in ("bibliography", "markdown", "post", "provenance", "tables", "wording")]

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
SHOWN = {
    "figures": expand("<results>/figures/{figure}.svg", figure=FIGURES),
    "alternatives": expand("<results>/figures/{figure}.txt", figure=FIGURES),
    "numbers": "<results>/paper/numbers.json",
    "template": "paper/post.md.j2",
    "sentences": "paper/sentences.j2",
    "bibliography": "paper/references.bib",
    # Not read: what the footers tell the age of.
    "tables": EVIDENCE["tables"]
    + expand("<results>/tables/step_scaling_by_{way}_direction.csv", way=["training", "question"]),
    "models": EVIDENCE["models"],
    "data": EVIDENCE["data"],
}


def makers(wildcards, input):
    """The rule and the script that made each file of the results."""
    found = {}
    for file in input:
        for rule in workflow.rules:
            if rule.script and any(output.match(file) for output in rule.output):
                found[str(file)] = [rule.name, rule.script.replace("..", "workflow", 1)]
    return found


rule numbers:
    """Every number of the prose, and every choice between sentences, with its source."""
    input:
        **EVIDENCE,
        histories=expand("<results>/models/{trained}.training.csv", trained=TRAINED),
        completions=expand("<results>/completions/{trained}.jsonl", trained=TRAINED),
        published="paper/table3.csv",
        reference=sorted(glob("paper/reference/*/**/*.*", recursive=True)),
        code=library(*READING, "intervals", "render/findings", "render/memory", "render/numbers"),
    output:
        "<results>/paper/numbers.json",
    log:
        "<results>/logs/paper/numbers.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        config=config,
        trained=TRAINED,
    script:
        "../scripts/render.py"


rule explorer:
    """Some generations of each model, step by step, and their traces: the data of the page's explorer."""
    input:
        completions=expand("<results>/completions/{model}/seed_{seed}.jsonl", model=config["models"], seed=FIRST_SEED),
        traces=expand(
            "<results>/traces/{model}/seed_{seed}/{split}",
            model=config["models"],
            seed=FIRST_SEED,
            split=RECALL_SPLITS,
        ),
        facts="<results>/data/facts.jsonl",
        code=library(*READING, "render/explorer"),
    output:
        "<results>/paper/explorer.json",
    log:
        "<results>/logs/paper/explorer.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
        most_facts=PAPER["explorer_facts"],
    script:
        "../scripts/render.py"


rule post:
    """The post as Markdown for an al-folio site: the file goes to _posts, assets to assets."""
    input:
        **SHOWN,
        code=library(*READING, *WRITING),
    output:
        post=f"<results>/paper/{POST}.md",
        images=directory(f"<results>/paper/assets/img/{PAPER['slug']}"),
        bibliography=f"<results>/paper/assets/bibliography/{POST}.bib",
    log:
        "<results>/logs/paper/post.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        config=config,
        makers=makers,
    script:
        "../scripts/render.py"


rule page:
    """The post as one HTML file that needs nothing else, with the explorer in it."""
    input:
        **SHOWN,
        explorer="<results>/paper/explorer.json",
        page="paper/page.html.j2",
        style="paper/page.css",
        script="paper/explorer.js",
        tool="paper/explorer.html",
        code=library(*READING, *WRITING, "render/explorer", "render/page"),
    output:
        report("<results>/paper/index.html", category="Paper", caption="../../paper/captions/page.rst"),
    log:
        "<results>/logs/paper/page.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        config=config,
        makers=makers,
    script:
        "../scripts/render.py"
