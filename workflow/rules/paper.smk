"""The post: its numbers, its Markdown for al-folio, and the page that stands alone."""


include: "writing.smk"


rule numbers:
    """Every number of the prose, and every choice between sentences, with its source."""
    input:
        **EVIDENCE,
        histories=expand("<results>/models/{trained}.training.csv", trained=TRAINED),
        completions=expand("<results>/completions/{trained}.jsonl", trained=TRAINED),
        published=local("paper/table3.csv"),
        kept=KEPT,
        code=library(*READING, "corruptions", "intervals", "render/findings", "render/memory", "render/numbers"),
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
        traces=expand("<results>/traces/{model}/seed_{seed}", model=config["models"], seed=FIRST_SEED),
        facts="<results>/data/facts.jsonl",
        code=library(*READING, "figures/denoising", "figures/style", "render/explorer", "trace_files"),
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
        page=local("paper/page.html.j2"),
        style=local("paper/page.css"),
        script=local("paper/explorer.js"),
        tool=local("paper/explorer.html"),
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
