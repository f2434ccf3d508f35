"""Where each model starts, and its fine-tuning on the study's facts."""


rule base_folder:
    """Start from a model in a folder: one that ships with the project, or one's own."""
    input:
        files=lambda wildcards: files_in(config["models"][wildcards.model]["folder"]),
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
        folder=lambda wildcards: config["models"][wildcards.model]["folder"],
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
        network=own_shape,
    script:
        "../scripts/base.py"


rule tokenizer:
    """Learn the words of the biographies that a base will be trained on."""
    input:
        lists=lists(PRETRAINING),
        # Generated people share the biographies' words; others have words of their own.
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
        words=lambda wildcards, input: str(Path(input.lists[0]).parent),
        templates=lambda wildcards, input: str(Path(input.lists[-1]).parent),
        network=own_shape,
    script:
        "../scripts/tokenizer.py"


rule base_pretrain:
    """Train a base on biographies of people who are in no study."""
    input:
        lists=lists(PRETRAINING),
        tokenizer="<results>/models/{model}/tokenizer",
        # Not read, but to be made first.
        needs=ancient("<results>/models/{model}/preflight.json"),
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
        words=lambda wildcards, input: str(Path(input.lists[0]).parent),
        templates=lambda wildcards, input: str(Path(input.lists[-1]).parent),
        causal=is_causal,
        network=own_shape,
        objective=own_objective,
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
        hub=lambda wildcards: config["models"][wildcards.model]["hub"],
    script:
        "../scripts/base.py"


rule base_lit_gpt:
    """Start from an SMDM checkpoint: a safetensors file with lit-gpt's tensor names."""
    input:
        files=own_files,
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
        lit_gpt=lambda wildcards: config["models"][wildcards.model]["lit_gpt"],
    script:
        "../scripts/base_lit_gpt.py"


rule base_llada:
    """Start from a LLaDA checkpoint: a folder or a hub repository at a pinned revision, its tensors renamed."""
    input:
        files=checkpoint_files,
        code=library("base_checkpoint"),
    output:
        directory("<results>/models/{model}/base"),
    log:
        "<results>/logs/base_llada/{model}.log",
    benchmark:
        "<results>/benchmarks/base_llada/{model}.tsv"
    wildcard_constraints:
        model=models_from("llada"),
    priority: FIRST_OF_ALL
    conda:
        "../../envs/reversal.yaml"
    params:
        kind="llada",
        source=lambda wildcards: config["models"][wildcards.model]["llada"],
    script:
        "../scripts/base_checkpoint.py"


use rule base_llada as base_dream with:
    log:
        "<results>/logs/base_dream/{model}.log",
    benchmark:
        "<results>/benchmarks/base_dream/{model}.tsv"
    wildcard_constraints:
        model=models_from("dream"),
    params:
        kind="dream",
        source=lambda wildcards: config["models"][wildcards.model]["dream"],


rule bases:
    """All models before fine-tuning."""
    input:
        expand("<results>/models/{model}/base", model=config["models"]),


rule needs:
    """Refuse, before anything is trained, what later stages could not do: rows that the canvas cannot hold, layers that
    the network lacks, too few facts, too little room for the models."""
    input:
        unpack(tokenizer_and_base),
        rows=expand("<results>/data/{split}.jsonl", split=ALL_SPLITS),
        # What the probe asks of bases whose pretraining is not known. Whatever is measured again for this, or for new
        # code, would hold up what else it changes: Snakemake plans nothing behind an ancient input that is made again.
        prompts=ancient(
            local(config["probe"]["file"]) if config["probe"]["file"] else shipped("data/prompts/general.txt")
        ),
        lists=ancient([file for file in lists(PRETRAINING) if os.path.exists(file)]),
        shipped=ancient(shipped("data/base/shipped.json")),
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
    """Leave a base as it is, where the study asks what it knows already."""
    input:
        base="<results>/models/{model}/base",
        # Not read, but to be made first.
        needs=ancient("<results>/models/{model}/preflight.json"),
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
    """Teach a base the study's facts. Killed at any moment, it goes on where it was and ends in the same weights."""
    input:
        base="<results>/models/{model}/base",
        # Not read, but to be made first.
        needs=ancient("<results>/models/{model}/preflight.json"),
        rows=own_rows,
        facts=control_people,
        code=library("finetune"),
    output:
        model=directory("<results>/models/{model}/seed_{seed}"),
        history="<results>/models/{model}/seed_{seed}.training.csv",
    log:
        "<results>/logs/finetune/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/finetune/{model}/seed_{seed}.tsv"
    wildcard_constraints:
        seed="(?!)" if UNTRAINED else r"\d+",
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=config["training_processes"],
    params:
        recipe=own_recipe,
        objective=own_objective,
        train_on=own_reading,
        processes=config["training_processes"],
        checkpoint_seconds=config["checkpoint_seconds"],
    script:
        "../scripts/finetune.py"
