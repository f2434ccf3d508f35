"""Where each model starts, and its fine-tuning on the study's facts."""


rule base_folder:
    """Start from a model in a folder: one that ships with the project, or the user's."""
    input:
        files=source_files,
        code=library("base_folder"),
    output:
        directory("<results>/models/{model}/base"),
    log:
        "<results>/logs/base_folder/{model}.log",
    benchmark:
        "<results>/benchmarks/base_folder/{model}.tsv"
    wildcard_constraints:
        model=models_from("folder"),
    priority: FIRST_OF_ALL
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        causal=is_causal,
        folder=lambda wildcards: MODELS[wildcards.model]["source"]["folder"],
    script:
        "../scripts/base_folder.py"


rule base_scratch:
    """Start from random weights; the tokenizer is trained on the study's training rows."""
    input:
        rows="<results>/data/train.jsonl",
        code=library("base"),
    output:
        directory("<results>/models/{model}/base"),
    log:
        "<results>/logs/base_scratch/{model}.log",
    benchmark:
        "<results>/benchmarks/base_scratch/{model}.tsv"
    wildcard_constraints:
        model=models_from("scratch"),
    priority: FIRST_OF_ALL
    conda:
        "../../envs/reversal.yaml"
    params:
        causal=is_causal,
        network=setting("network"),
    script:
        "../scripts/base.py"


rule tokenizer:
    """Train a tokenizer on the biographies that a base will be pretrained on."""
    input:
        lists=word_and_template_files(PRETRAINING_TEMPLATES),
        # Generated people share the words of the biographies; other data need their own rows.
        rows="<results>/data/train.jsonl" if DATA["source"] != "generated" else [],
        code=library("tokenizer"),
    output:
        directory("<results>/models/{model}/tokenizer"),
    log:
        "<results>/logs/tokenizer/{model}.log",
    benchmark:
        "<results>/benchmarks/tokenizer/{model}.tsv"
    wildcard_constraints:
        model=models_from("pretrain"),
    priority: FIRST_OF_ALL
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        **{name: config["pretraining"][name] for name in ("people", "rows", "seed")},
        name_first=DATA["generated"]["name_first"],
        words=lambda wildcards, input: str(Path(input.lists[0]).parent),
        templates=lambda wildcards, input: str(Path(input.lists[-1]).parent),
        network=setting("network"),
    script:
        "../scripts/tokenizer.py"


rule base_pretrain:
    """Train a base on biographies of people who are in no study."""
    input:
        lists=word_and_template_files(PRETRAINING_TEMPLATES),
        tokenizer="<results>/models/{model}/tokenizer",
        # Not read, but it must exist: what it rejects must not be trained.
        preflight=ancient("<results>/models/{model}/preflight.json"),
        code=library("base_pretrain"),
    output:
        model=directory("<results>/models/{model}/base"),
        history="<results>/models/{model}/base.training.csv",
    log:
        "<results>/logs/base_pretrain/{model}.log",
    benchmark:
        "<results>/benchmarks/base_pretrain/{model}.tsv"
    wildcard_constraints:
        model=models_from("pretrain"),
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        **config["pretraining"],
        name_first=DATA["generated"]["name_first"],
        words=lambda wildcards, input: str(Path(input.lists[0]).parent),
        templates=lambda wildcards, input: str(Path(input.lists[-1]).parent),
        causal=is_causal,
        network=setting("network"),
        objective=setting("objective"),
    script:
        "../scripts/base_pretrain.py"


rule base_hub:
    """Start from a Hugging Face causal LM at a pinned revision."""
    input:
        code=library("base"),
    output:
        directory("<results>/models/{model}/base"),
    log:
        "<results>/logs/base_hub/{model}.log",
    benchmark:
        "<results>/benchmarks/base_hub/{model}.tsv"
    wildcard_constraints:
        model=models_from("hub"),
    priority: FIRST_OF_ALL
    conda:
        "../../envs/reversal.yaml"
    params:
        hub=setting("source"),
    script:
        "../scripts/base.py"


rule base_lit_gpt:
    """Start from an SMDM checkpoint: a safetensors file with lit-gpt's tensor names."""
    input:
        files=source_files,
        code=library("base_lit_gpt"),
    output:
        directory("<results>/models/{model}/base"),
    log:
        "<results>/logs/base_lit_gpt/{model}.log",
    benchmark:
        "<results>/benchmarks/base_lit_gpt/{model}.tsv"
    wildcard_constraints:
        model=models_from("lit_gpt"),
    priority: FIRST_OF_ALL
    conda:
        "../../envs/reversal.yaml"
    params:
        causal=is_causal,
        lit_gpt=setting("source"),
    script:
        "../scripts/base_lit_gpt.py"


rule base_checkpoint:
    """Start from a published diffusion checkpoint (LLaDA, Dream): a folder, or a hub repository at a pinned revision."""
    input:
        files=source_files,
        code=library("base_checkpoint"),
    output:
        directory("<results>/models/{model}/base"),
    log:
        "<results>/logs/base_checkpoint/{model}.log",
    benchmark:
        "<results>/benchmarks/base_checkpoint/{model}.tsv"
    wildcard_constraints:
        model=models_from("checkpoint"),
    priority: FIRST_OF_ALL
    conda:
        "../../envs/reversal.yaml"
    params:
        source=setting("source"),
    script:
        "../scripts/base_checkpoint.py"


rule bases:
    """All models before fine-tuning."""
    input:
        expand("<results>/models/{model}/base", model=MODELS),


rule preflight:
    """Reject, before anything is trained, what later stages could not do: rows that do not fit on the canvas, layers
    that the network does not have, too few facts, too little disk space."""
    input:
        unpack(tokenizer_and_base),
        rows=expand("<results>/data/{split}.jsonl", split=ALL_SPLITS),
        # Ancient, so that a change does not repeat this check: Snakemake would leave the jobs that wait for it out of
        # its plan.
        code=ancient(library("preflight")),
    output:
        "<results>/models/{model}/preflight.json",
    log:
        "<results>/logs/preflight/{model}.log",
    benchmark:
        "<results>/benchmarks/preflight/{model}.tsv"
    priority: FIRST_OF_ALL
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=lambda wildcards, output: str(Path(output[0]).parents[1]),
    script:
        "../scripts/preflight.py"


rule untrained:
    """Use a base as it is, if the study tests what it knows already."""
    input:
        base="<results>/models/{model}/base",
        # Not read, but it must exist: what it rejects must not be trained.
        preflight=ancient("<results>/models/{model}/preflight.json"),
        code=library("untrained"),
    output:
        directory("<results>/models/{model}/seed_{seed}"),
    log:
        "<results>/logs/untrained/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/untrained/{model}/seed_{seed}.tsv"
    wildcard_constraints:
        seed=r"\d+" if UNTRAINED else "(?!)",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/untrained.py"


rule finetune:
    """Fine-tune a base on the study's facts. If killed, it resumes from its checkpoint and ends in the same weights."""
    input:
        base="<results>/models/{model}/base",
        # Not read, but it must exist: what it rejects must not be trained.
        preflight=ancient("<results>/models/{model}/preflight.json"),
        rows=training_files,
        facts=control_facts,
        code=library("finetune"),
    output:
        model=directory("<results>/models/{model}/seed_{seed}"),
        history="<results>/models/{model}/seed_{seed}.training.csv",
    log:
        "<results>/logs/finetune/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/finetune/{model}/seed_{seed}.tsv"
    wildcard_constraints:
        model="|".join(name for name, model in MODELS.items() if not model["store"]) or "(?!)",
        seed="(?!)" if UNTRAINED else r"\d+",
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=config["training_processes"],
    params:
        recipe=setting("training"),
        objective=setting("objective"),
        train_on=setting("train_on"),
        processes=config["training_processes"],
        checkpoint_seconds=config["checkpoint_seconds"],
    script:
        "../scripts/finetune.py"


rule train_store:
    """Give a base a store, train it on pairs drawn anew, and write the study's facts into the store."""
    input:
        base=expand("<results>/models/{model}/base", model=STORES[:1]),
        preflight=ancient(expand("<results>/models/{model}/preflight.json", model=STORES)),
        lists=word_and_template_files([*PRETRAINING_TEMPLATES, *DIRECTIONS]),
        facts="<results>/data/facts.jsonl",
        rows="<results>/data/train.jsonl",
        code=library("train_store"),
    output:
        model=directory("<results>/store/seed_{seed}"),
        parts="<results>/store/seed_{seed}.parts.safetensors",
    log:
        "<results>/logs/train_store/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/train_store/seed_{seed}.tsv"
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        training={key: value for key, value in config["store"].items() if key != "max_facts"},
        words=lambda wildcards, input: str(Path(input.lists[0]).parent),
        templates=lambda wildcards, input: str(Path(input.lists[-1]).parent),
        train_templates=DATA["generated"]["train_templates"],
        canvas=config["sampling"]["canvas"],
    script:
        "../scripts/train_store.py"


rule split_store:
    """A network of known storage: the same function, with facts stored once, twice, or in part."""
    input:
        store="<results>/store/seed_{seed}",
        parts="<results>/store/seed_{seed}.parts.safetensors",
        rows=split_files(split_pairs(["both"])),
        code=library("split_store"),
    output:
        model=directory("<results>/models/{model}/seed_{seed}"),
        checks="<results>/store/{model}/seed_{seed}.csv",
    log:
        "<results>/logs/split_store/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/split_store/{model}/seed_{seed}.tsv"
    wildcard_constraints:
        model="|".join(STORES) or "(?!)",
    conda:
        "../../envs/reversal.yaml"
    resources:
        gpu=1,
    params:
        sharing=setting("store"),
        canvas=setting("canvas"),
    script:
        "../scripts/split_store.py"
