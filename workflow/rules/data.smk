"""The people, the facts about them, and the sentences that state or ask for them."""

DOWNLOADS = "results/downloads/reversal_curse"
BERGLUND = f"{DOWNLOADS}/june_version_7921032488"
PRETRAINING_TEMPLATES = ("pretraining_p2d", "pretraining_d2p")


rule download:
    """Fetch Berglund et al.'s reversal-curse data at a pinned commit; every file's SHA-256 is checked."""
    input:
        code=library("download"),
    output:
        directory(BERGLUND),
        directory(f"{DOWNLOADS}/templates"),
    log:
        "logs/download.log",
    priority: FIRST_OF_ALL
    retries: 1
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        folder=lambda wildcards, output: str(Path(output[0]).parent),
    script:
        "../scripts/download.py"


rule download_pairs:
    """Fetch Berglund et al.'s celebrities and their parents at the same commit; its SHA-256 is checked."""
    input:
        code=library("download_pairs"),
    output:
        f"{DOWNLOADS}/parent_child_pairs.csv",
    log:
        "logs/download_pairs.log",
    priority: FIRST_OF_ALL
    retries: 1
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/download_pairs.py"


rule prepare:
    """Write one table of the data: the facts, the training rows, or the questions of one split."""
    input:
        source=data_source,
        code=library(f"prepare_{DATA['source']}"),
    output:
        "<results>/data/{table}.jsonl",
    log:
        "<results>/logs/prepare/{table}.log",
    benchmark:
        "<results>/benchmarks/prepare/{table}.tsv"
    wildcard_constraints:
        table="|".join(["facts", "train", "train_mentions", "train_identity", *ALL_SPLITS]),
    priority: FIRST_OF_ALL
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        settings=DATA[DATA["source"]],
        downloaded=BERGLUND,
    script:
        f"../scripts/prepare_{DATA['source']}.py"


rule reverse_rows:
    """Reverse the words of the training rows, so that the subject comes after the object and is predicted."""
    input:
        rows="<results>/data/train.jsonl",
        code=library("reverse_rows"),
    output:
        "<results>/data/train_reversed.jsonl",
    log:
        "<results>/logs/reverse_rows.log",
    benchmark:
        "<results>/benchmarks/reverse_rows.tsv"
    priority: FIRST_OF_ALL
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/reverse_rows.py"
