"""The post: its numbers, its Markdown for al-folio, and the page that stands alone."""

PAPER = config["paper"]
POST = f"{PAPER['date']}-{PAPER['slug']}"

# The jobs of a run, as their logs and benchmark files are called; those that make the post come after the table.
MEASURED = [
    *expand("prepare/{table}", table=["facts", "train", *ALL_SPLITS]),
    *(["prepare/train_mentions"] if "mentions" in READ else []),
    *(["reverse_words"] if "reversed" in READ else []),
    *(f"base_{model['base']}/{name}" for name, model in config["models"].items()),
    *(f"tokenizer/{name}" for name, model in config["models"].items() if model["base"] == "pretrain"),
    *expand("needs/{model}", model=FAMILIES),
    *expand(
        "{stage}/{trained}",
        stage=["untrained" if UNTRAINED else "finetune", "complete", "compare_likelihoods"],
        trained=TRAINED,
    ),
    *("score", "likelihood"),
    *([] if KNOWN else ["objectives_table"]),
]
if not OTHER_NOISE:
    MEASURED += [
        *expand("{stage}/{trained}", stage=["trace", "peaks", "edit"], trained=TRAINED),
        *expand("keyvalue/{staged}", staged=STAGED),
        *expand("rewrite/{staged}", staged=REWRITTEN_MODELS),
        *("aggregate", "symmetry", "edits_table", "sharing", "evidence"),
        *expand("figures/{figure}", figure=FIGURES),
    ]
if not (KNOWN or OTHER_NOISE):
    MEASURED += [*expand("probe/{model}", model=FAMILIES), "probe_table", "explorer"]
TABLES = [
    *("step_scaling", "recall_differences", "likelihood", "objectives", "probe"),
    *("causal_trace", "traced_facts", "trace_maps", "time"),
    *("keyvalue", "symmetry", "edits", "rewriting", "gradients", "evidence", "costs"),
]
EVIDENCE = {
    "tables": expand("<results>/tables/{table}.csv", table=TABLES),
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
    "questions": shipped("paper/questions.j2"),
    "beside": shipped("paper/kept.md.j2"),
    "bibliography": shipped("paper/references.bib"),
    # Not read: what the footers tell the age and the maker of.
    "tables": EVIDENCE["tables"]
    + expand("<results>/tables/step_scaling_by_{way}_direction.csv", way=["training", "question"]),
    "models": EVIDENCE["models"],
    "data": EVIDENCE["data"],
}
# What a whole run leaves, beside data and recall: of looking into the networks, and for readers.
INSIDE = [
    *expand("<results>/tables/{table}.csv", table=["causal_trace", "symmetry", "edits"]),
    *SHOWN["figures"],
]
WRITTEN = [
    f"<results>/paper/{POST}.md",
    "<results>/paper/index.html",
    *expand("<results>/tables/{table}.csv", table=["objectives", "probe"]),
    *expand("<results>/paper/tables/{table}.html", table=TABLES),
]


rule costs:
    """Time, memory and an estimate of energy, of every job but the few that write the post from this table."""
    input:
        # Not read, but the last that the measured jobs make. Their logs and benchmark files are no inputs: who deletes
        # those should not have to train again.
        tables=expand("<results>/tables/{table}.csv", table=["step_scaling", "likelihood"]),
        objectives=[] if KNOWN else "<results>/tables/objectives.csv",
        figures=[] if OTHER_NOISE else SHOWN["figures"],
        explorer=[] if KNOWN or OTHER_NOISE else "<results>/paper/explorer.json",
        code=library("costs"),
    output:
        "<results>/tables/costs.csv",
    log:
        "<results>/logs/costs.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        jobs=MEASURED,
        models=list(FAMILIES),
        energy=config["energy"],
    script:
        "../scripts/costs.py"


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
        "<results>/logs/numbers.log",
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
        "<results>/logs/explorer.log",
    benchmark:
        "<results>/benchmarks/explorer.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
        steps=config["tracing"]["sampling_steps"],
        max_facts=PAPER["explorer_facts"],
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
        tables=directory(f"<results>/paper/assets/csv/{PAPER['slug']}"),
        bibliography=f"<results>/paper/assets/bibliography/{POST}.bib",
    log:
        "<results>/logs/post.log",
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
        report(
            "<results>/paper/index.html",
            category="00 The post",
            caption="../../paper/report/page.rst",
            labels={"page": "the post, with the explorer"},
        ),
    log:
        "<results>/logs/page.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        config=config,
        makers=makers,
    script:
        "../scripts/render.py"


rule sortable:
    """The tables as pages whose columns sort, for Snakemake's report."""
    input:
        tables=EVIDENCE["tables"],
        template=shipped("paper/sortable.html.j2"),
        code=library("render"),
    output:
        [
            report(
                f"<results>/paper/tables/{table}.html",
                category=f"{len(SECTIONS) + 1:02} Tables",
                caption="../../paper/report/table.rst",
                labels={"table": table.replace("_", " ")},
            )
            for table in TABLES
        ],
    log:
        "<results>/logs/sortable.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/render.py"
