"""Keys and values of the facts in both directions, whether they are the same, and what a rank-one edit does."""


rule keyvalue:
    """Read what each fact leaves at its subject and its answer in both directions, and find its values."""
    input:
        model=looked_into,
        peaks=peaks_to_look_at,
        rows=splits_of(PAIRED),
        train="<results>/data/train.jsonl",
        code=library("keyvalue"),
    output:
        directory("<results>/keyvalue/{model}/{stage}"),
    log:
        "<results>/logs/keyvalue/{model}/{stage}.log",
    benchmark:
        "<results>/benchmarks/keyvalue/{model}/{stage}.tsv"
    priority: 2  # long: begun before figures
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        canvas=own_canvas,
        layers=config["keyvalue"]["layers"],
        value_layers=value_layers_of,
        max_facts=config["keyvalue"]["max_facts"],
        prefixes=config["keyvalue"]["prefixes"],
        search=config["keyvalue"]["search"],
    script:
        "../scripts/keyvalue.py"


rule symmetry:
    """Compare forward with reverse keys and values: statistics, nulls, intervals; layer by layer and where MLPs peak."""
    input:
        extractions=expand("<results>/keyvalue/{staged}", staged=STAGED),
        peaks=[peaks_of(*staged.split("/")) for staged in STAGED],
        facts="<results>/data/facts.jsonl",
        code=library("symmetry"),
    output:
        outcomes="<results>/tables/keyvalue.csv",
        symmetry="<results>/tables/symmetry.csv",
        spectra="<results>/tables/symmetry_spectra.csv",
        pca="<results>/tables/symmetry_pca.csv",
    log:
        "<results>/logs/symmetry.log",
    benchmark:
        "<results>/benchmarks/symmetry.tsv"
    conda:
        "../../envs/reversal.yaml"
    threads: CORES
    params:
        **config["symmetry"],
        staged=STAGED,
        pairs=PAIRED,
    script:
        "../scripts/symmetry.py"


rule edit:
    """Give facts a new object by ROME's rank-one edit, one at a time, and ask forward and in reverse."""
    input:
        model=looked_into,
        peaks=[] if config["rank_one_edits"]["layers"] == "all" else "<results>/peaks/{model}/seed_{seed}.json",
        rows=splits_of(EDITED),
        train="<results>/data/train.jsonl",
        code=library("rank_one_edits"),
    output:
        "<results>/edits/{model}/seed_{seed}.csv",
    log:
        "<results>/logs/edit/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/edit/{model}/seed_{seed}.tsv"
    priority: 1  # long: begun before figures
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        canvas=own_canvas,
        edits=config["rank_one_edits"],
        groups=EDITED_GROUPS,
        prefixes=config["keyvalue"]["prefixes"],
        search=config["keyvalue"]["search"],
    script:
        "../scripts/rank_one_edits.py"


rule edits_table:
    """All models' edits in one table, with where tracing pointed."""
    input:
        edits=expand("<results>/edits/{trained}.csv", trained=TRAINED),
        peaks=expand("<results>/peaks/{trained}.json", trained=TRAINED),
        code=library("rank_one_edits_table"),
    output:
        "<results>/tables/edits.csv",
    log:
        "<results>/logs/edits_table.log",
    benchmark:
        "<results>/benchmarks/edits_table.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/rank_one_edits_table.py"


rule rewrite:
    """Teach facts a new answer by gradient, one direction at a time, and ask the other; compare both gradients."""
    input:
        model=looked_into,
        rows=splits_of(REWRITTEN),
        code=library("finetuned_edits"),
    output:
        lessons="<results>/rewriting/{model}/{stage}.csv",
        gradients="<results>/rewriting/{model}/{stage}.gradients.csv",
    log:
        "<results>/logs/rewrite/{model}/{stage}.log",
    benchmark:
        "<results>/benchmarks/rewrite/{model}/{stage}.tsv"
    priority: 1  # long: begun before figures
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        canvas=own_canvas,
        rewriting={key: value for key, value in config["finetuned_edits"].items() if key != "bases"}
        | ({"groups": ["known"]} if KNOWN else {}),
    script:
        "../scripts/finetuned_edits.py"


rule sharing:
    """What forward and reverse share, of all models: carry-over of rewritten facts, and to first order."""
    input:
        lessons=expand("<results>/rewriting/{staged}.csv", staged=REWRITTEN_MODELS),
        gradients=expand("<results>/rewriting/{staged}.gradients.csv", staged=REWRITTEN_MODELS),
        code=library("finetuned_edits_table"),
    output:
        lessons="<results>/tables/rewriting.csv",
        gradients="<results>/tables/gradients.csv",
    log:
        "<results>/logs/sharing.log",
    benchmark:
        "<results>/benchmarks/sharing.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/finetuned_edits_table.py"


rule evidence:
    """What rewriting, gradients, symmetry and edits say together: one memory or two."""
    input:
        rewriting="<results>/tables/rewriting.csv",
        gradients="<results>/tables/gradients.csv",
        symmetry="<results>/tables/symmetry.csv",
        edits="<results>/tables/edits.csv",
        code=library("evidence"),
    output:
        "<results>/tables/evidence.csv",
    log:
        "<results>/logs/evidence.log",
    benchmark:
        "<results>/benchmarks/evidence.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/evidence.py"
