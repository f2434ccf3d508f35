"""The people, the facts about them, and the sentences that state or ask for them."""

DOWNLOADS = "results/downloads/reversal_curse"
BERGLUND = f"{DOWNLOADS}/june_version_7921032488"
WORD_LISTS = ("first_names", "last_names", "roles", "deeds", "qualities", "things")
PRETRAINING_TEMPLATES = ("pretraining_p2d", "pretraining_d2p")


def word_and_template_files(templates):
    """The word lists, and the files of the named `templates`."""
    generated = DATA["generated"]
    words = [f"{generated['words']}/{name}.txt" for name in WORD_LISTS]
    return local(words + [f"{generated['templates']}/{name}.txt" for name in templates])


def data_source(wildcards):
    """What a study's data are made from: word lists and templates, a user's files, or the download."""
    if DATA["source"] == "generated":
        return word_and_template_files([*DIRECTIONS, "mentions"])
    if DATA["source"] == "pairs":
        pairs = DATA["pairs"]
        csv = local(pairs["file"]) if pairs["file"] else f"{DOWNLOADS}/parent_child_pairs.csv"
        return [csv, *local([f"{pairs['templates']}/known_{direction}.txt" for direction in DIRECTIONS])]
    if DATA["source"] == "rows":
        rows = DATA["rows"]
        templates = [f"{rows['templates']}/{direction}.txt" for direction in DIRECTIONS] if rows["templates"] else []
        return local([rows["train"], rows["tests"], *templates])
    if folder := DATA["berglund"]["folder"]:
        return files_in(folder, f"{folder}/templates", f"{folder}/../templates")
    return BERGLUND


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
        table="|".join(["facts", "train", "train_mentions", *ALL_SPLITS]),
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
