"""The post: its numbers, its Markdown for al-folio, and the page that stands alone."""

PAPER = config["paper"]
POST = f"{PAPER['date']}-{PAPER['slug']}"

EVIDENCE = {
    "tables": expand(
        "<results>/tables/{table}.csv",
        table=[
            *("step_scaling", "recall_differences", "likelihood", "objectives", "probe"),
            *("causal_trace", "traced_facts", "trace_maps", "time"),
            *("keyvalue", "symmetry", "edits", "rewriting", "gradients"),
        ],
    ),
    "models": expand("<results>/models/{first}", first=FIRST),
    "data": expand("<results>/data/{table}.jsonl", table=["facts", "train", *RECALL_SPLITS]),
}
KEPT = shipped(expand("paper/reference/{run}/{file}.json", run=KEPT_RUNS, file=["numbers", "provenance"]))
SHOWN = {
    "figures": expand("<results>/figures/{figure}.svg", figure=FIGURES),
    "alternatives": expand("<results>/figures/{figure}.txt", figure=FIGURES),
    "numbers": "<results>/paper/numbers.json",
    "template": shipped("paper/post.md.j2"),
    "sentences": shipped("paper/sentences.j2"),
    "beside": shipped("paper/kept.md.j2"),
    "bibliography": shipped("paper/references.bib"),
    # Not read: what the footers tell the age and the maker of.
    "tables": EVIDENCE["tables"]
    + expand("<results>/tables/step_scaling_by_{way}_direction.csv", way=["training", "question"]),
    "models": EVIDENCE["models"],
    "data": EVIDENCE["data"],
}


rule numbers:
    """Every number of the prose, and every choice between sentences, with its source."""
    input:
        **EVIDENCE,
        histories=expand("<results>/models/{trained}.training.csv", trained=TRAINED),
        published=shipped("paper/table3.csv"),
        bases=expand("<results>/models/{model}/base", model=FAMILIES),
        shipped=shipped("data/base/shipped.json"),
        kept=KEPT,
        taught=shipped(expand("paper/reference/{run}/objectives.csv", run=TAUGHT_RUNS)),
        code=library("render"),
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
        completions=expand("<results>/completions/{first}.jsonl", first=FIRST),
        traces=expand("<results>/traces/{first}", first=FIRST),
        facts="<results>/data/facts.jsonl",
        code=library("render"),
    output:
        "<results>/paper/explorer.json",
    log:
        "<results>/logs/paper/explorer.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
        steps=config["tracing"]["sampling_steps"],
        most_facts=PAPER["explorer_facts"],
    script:
        "../scripts/render.py"


rule post:
    """The post as Markdown for an al-folio site: the file goes to _posts, assets to assets."""
    input:
        **SHOWN,
        code=library("render"),
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
        page=shipped("paper/page.html.j2"),
        style=shipped("paper/page.css"),
        script=shipped("paper/explorer.js"),
        tool=shipped("paper/explorer.html"),
        code=library("render"),
    output:
        report("<results>/paper/index.html", category="Paper", caption="../../paper/report/page.rst"),
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
