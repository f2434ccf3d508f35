"""Keys and values of the facts in both directions, whether they are the same, and what a rank-one edit does."""


rule keyvalue:
    """Read each fact's key and find its value in both directions: fine-tuned at every layer, the base where MLPs peak."""
    input:
        model="<results>/models/{model}/{stage}",
        traces="<results>/tables/causal_trace.csv",
        rows=expand("<results>/data/{split}.jsonl", split=PAIRED_SPLITS),
        train="<results>/data/train.jsonl",
        code=library("corruptions", "extractions", "keyvalue", "memory_tables", "model", "text", "trace_tables"),
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
        canvas=config["sampling"]["canvas"],
        keyvalue=config["keyvalue"],
    script:
        "../scripts/keyvalue.py"


rule symmetry:
    """Compare forward with reverse keys and values: statistics, nulls, intervals; layer by layer and where MLPs peak."""
    input:
        extractions=expand("<results>/keyvalue/{staged}", staged=STAGED),
        traces="<results>/tables/causal_trace.csv",
        facts="<results>/data/facts.jsonl",
        code=library("corruptions", "extractions", "intervals", "memory_tables", "symmetry", "trace_tables"),
    output:
        outcomes="<results>/tables/keyvalue.csv",
        symmetry="<results>/tables/symmetry.csv",
        retrieval="<results>/tables/symmetry_retrieval.csv",
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
        model="<results>/models/{model}/seed_{seed}",
        traces="<results>/tables/causal_trace.csv",
        rows=expand("<results>/data/{split}.jsonl", split=["both_p2d", "both_d2p", "p2d_same", "p2d_reverse"]),
        train="<results>/data/train.jsonl",
        code=library("corruptions", "edit", "keyvalue", "memory_tables", "model", "objective", "text", "trace_tables"),
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
        canvas=config["sampling"]["canvas"],
        keyvalue=config["keyvalue"],
        edits=config["edits"],
    script:
        "../scripts/edit.py"


rule edits_table:
    """All models' edits in one table."""
    input:
        expand("<results>/edits/{trained}.csv", trained=TRAINED),
    output:
        "<results>/tables/edits.csv",
    log:
        "<results>/logs/edits.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/concatenate.py"
