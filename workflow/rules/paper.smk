"""The paper: its claims on this run and the reference runs, its Markdown for al-folio, and the page that stands alone."""

PAPER = config["paper"]
if not HAS_ARTICLE and PAPER["author"] == DEFAULTS["paper"]["author"]:
    PAPER = PAPER | {"author": ""}  # the article's author did not write a report of another study
POST = f"{PAPER['date']}-{PAPER['slug']}"
# Tables of the reference runs, those first that most claims are about.
CLAIMED = yaml.load(
    (ROOT / "paper/claims.yaml").read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
CLAIMED_TABLES = [table for table in STUDY_TABLES if any(claim["table"] == table for claim in CLAIMED)]
RUNS = list(dict.fromkeys([*(run for claim in CLAIMED for run in claim["runs"] if run in REFERENCE), *REFERENCE]))
TABLE_FILES = expand("<results>/tables/{table}.csv", table=STUDY_TABLES)
EXPLORER = [] if "tracing" in DISABLED_STAGES else "<results>/paper/explorer.json"
LAB = [] if "tracing" in DISABLED_STAGES else "<results>/paper/lab.json"
CLAIMS = {
    "claims": shipped("paper/claims.yaml"),
    "reference": shipped([f"paper/reference/{run}/{table}.csv" for run in RUNS for table in REFERENCE[run]])
    + shipped(expand("paper/reference/{run}/provenance.json", run=RUNS)),
}
SHOWN = {
    **CLAIMS,
    "sources": shipped(ARTICLE) if HAS_ARTICLE else [],
    "numbers": shipped("paper/numbers.yaml"),
    "bibliography": shipped("paper/references.bib"),
    "verdicts": "<results>/tables/claims.csv",
    "tables": TABLE_FILES,
    "figures": expand("<results>/figures/{figure}.svg", figure=FIGURES),
    "alternatives": expand("<results>/figures/{figure}.txt", figure=FIGURES),
    "explorer": EXPLORER,
}
# What a whole run leaves for readers.
WRITTEN = [
    f"<results>/paper/{POST}.md",
    "<results>/paper/index.html",
    *TABLE_FILES,
    *SHOWN["figures"],
    *expand("<results>/paper/tables/{table}.html", table=STUDY_TABLES),
]


rule claims:
    """The claims of the article, tested on this run and on the reference runs: a table and the matrix as a figure."""
    input:
        "<results>/tables/claims.csv",
        "<results>/figures/claims.svg",


rule evaluate_claims:
    """Test every claim of the article on this run and on the reference runs."""
    input:
        **CLAIMS,
        tables=expand("<results>/tables/{table}.csv", table=CLAIMED_TABLES),
        code=library("render"),
    output:
        "<results>/tables/claims.csv",
    log:
        "<results>/logs/evaluate_claims.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        config=config,
    script:
        "../scripts/render.py"


rule costs:
    """Time, memory and an estimate of energy, of every job but the few that write the post from this table."""
    input:
        # Not read, but the last that the measured jobs make. Their logs and benchmark files are no inputs: who deletes
        # those should not have to train again.
        tables=[file for file in TABLE_FILES if Path(file).stem != "costs"],
        figures=SHOWN["figures"],
        explorer=EXPLORER,
        lab=LAB,
        code=library("costs"),
    output:
        "<results>/tables/costs.csv",
    log:
        "<results>/logs/costs.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=list(FAMILIES),
        energy=config["energy"],
    script:
        "../scripts/costs.py"


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


rule lab:
    """The networks of the page's lab, one of each family, small enough to embed, and what can be asked of them."""
    input:
        models=expand("<results>/models/{first}", first=FIRST),
        completions=expand("<results>/completions/{first}.jsonl", first=FIRST),
        facts="<results>/data/facts.jsonl",
        splits=expand("<results>/data/{split}.jsonl", split=dict.fromkeys([*SPLITS, *COMPLETED_SPLITS])),
        code=library("render"),
    output:
        "<results>/paper/lab.json",
    log:
        "<results>/logs/lab.log",
    benchmark:
        "<results>/benchmarks/lab.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
        sampling=MODELS[(DIFFUSION or list(MODELS))[0]]["sampling"],
        steps=config["tracing"]["sampling_steps"],
    script:
        "../scripts/render.py"


rule post:
    """The article, or a report of a study of other data, as Markdown for an al-folio site."""
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
        config=config | {"paper": PAPER},
        makers=provenance_of,
    script:
        "../scripts/render.py"


rule page:
    """The same as one HTML file that needs nothing else, with the lab or the explorer in it."""
    input:
        **SHOWN,
        lab=LAB,
        page=shipped("paper/page.html.j2"),
        style=shipped("paper/page.css"),
        scripts=shipped(expand("paper/{name}.js", name=["page", "drawing", "explorer", "lab_worker", "lab"])),
        tools=shipped(expand("paper/{name}.html", name=["explorer", "lab"])),
        code=library("render"),
    output:
        report(
            "<results>/paper/index.html",
            category="00 The post",
            caption="../../paper/report/page.rst",
            labels={"page": "the post, with the lab"},
        ),
    log:
        "<results>/logs/page.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        config=config | {"paper": PAPER},
        makers=provenance_of,
    script:
        "../scripts/render.py"


rule sortable:
    """The tables as pages whose columns sort, for Snakemake's report."""
    input:
        tables=TABLE_FILES,
        template=shipped("paper/sortable.html.j2"),
        code=library("render"),
    output:
        [
            report(
                f"<results>/paper/tables/{name}.html",
                category=f"{len(SECTIONS) + 1:02} Tables",
                caption="../../paper/report/table.rst",
                labels={"table": TABLES[name].title, "contents": TABLES[name].caption},
            )
            for name in STUDY_TABLES
        ],
    log:
        "<results>/logs/sortable.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/render.py"
