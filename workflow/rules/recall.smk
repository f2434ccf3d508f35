"""What the models recall: completions, recall by steps, the likelihood test, the pretraining probe, ablations."""


rule complete:
    """Answer every test prompt of one model, at every number of denoising steps."""
    input:
        model="<results>/models/{model}/seed_{seed}",
        rows=model_splits(COMPLETED_SPLITS),
        code=library("complete"),
    output:
        "<results>/completions/{model}/seed_{seed}.jsonl",
    log:
        "<results>/logs/complete/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/complete/{model}/seed_{seed}.tsv"
    priority: 4  # tracing waits for it, and the most jobs wait for tracing
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        sampling=setting("sampling"),
        precision=config["precision"],
    script:
        "../scripts/complete.py"


rule score:
    """Recall by denoising steps, and its differences between families, steps and directions."""
    input:
        completions=expand("<results>/completions/{trained}.jsonl", trained=TRAINED),
        code=library("score"),
    output:
        steps="<results>/tables/step_scaling.csv",
        differences="<results>/tables/recall_differences.csv",
    log:
        "<results>/logs/score.log",
    benchmark:
        "<results>/benchmarks/score.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        splits=RECALL_SPLITS,
        families=FAMILIES,
    script:
        "../scripts/score.py"


rule compare_likelihoods:
    """Score the correct and a wrong completion of every prompt by one model's log-probabilities."""
    input:
        model="<results>/models/{model}/seed_{seed}",
        right=model_splits(LIKELIHOOD_SPLITS),
        wrong=model_splits([f"{split}_randomized" for split in LIKELIHOOD_SPLITS]),
        code=library("compare_likelihoods"),
    output:
        "<results>/likelihood/{model}/seed_{seed}.csv",
    log:
        "<results>/logs/compare_likelihoods/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/compare_likelihoods/{model}/seed_{seed}.tsv"
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        canvas=setting("canvas"),
        # An autoregressive model's likelihood is exact.
        samples=lambda wildcards: None if is_causal(wildcards) else config["likelihood"]["samples"],
        precision=config["precision"],
    script:
        "../scripts/compare_likelihoods.py"


rule likelihood:
    """How often the correct answer is more likely than a wrong one, by model and split."""
    input:
        comparisons=expand("<results>/likelihood/{trained}.csv", trained=TRAINED),
        code=library("likelihood"),
    output:
        "<results>/tables/likelihood.csv",
    log:
        "<results>/logs/likelihood.log",
    benchmark:
        "<results>/benchmarks/likelihood.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/likelihood.py"


rule objectives_table:
    """Recall and likelihood by training objective, with control people apart from the others."""
    input:
        completions=expand("<results>/completions/{trained}.jsonl", trained=TRAINED),
        comparisons=expand("<results>/likelihood/{trained}.csv", trained=TRAINED),
        histories=expand("<results>/models/{trained}.training.csv", trained=TRAINED),
        facts="<results>/data/facts.jsonl",
        code=library("objectives"),
    output:
        "<results>/tables/objectives.csv",
    log:
        "<results>/logs/objectives_table.log",
    benchmark:
        "<results>/benchmarks/objectives_table.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        training={name: summarize_training(model) for name, model in MODELS.items()},
    script:
        "../scripts/objectives.py"


rule block_spans:
    """How many training sentences have subject and object in one block, by the block size."""
    input:
        rows="<results>/data/train.jsonl",
        tokenizer=[f"<results>/models/{name}/base" for name in DIFFUSION[:1]],
        code=library("block_spans"),
    output:
        "<results>/tables/block_spans.csv",
    log:
        "<results>/logs/block_spans.log",
    benchmark:
        "<results>/benchmarks/block_spans.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        canvas=config["sampling"]["canvas"],
    script:
        "../scripts/block_spans.py"


rule probe:
    """The most likely first tokens: for pretraining facts before fine-tuning, for the study's facts after it."""
    input:
        base="<results>/models/{model}/base",
        tuned=expand("<results>/models/{{model}}/seed_{seed}", seed=FIRST_SEED),
        rows=expand("<results>/data/{split}.jsonl", split=["p2d_same", "d2p_same"]),
        # A user's lists may have no templates for pretraining.
        lists=[file for file in word_and_template_files(PRETRAINING_TEMPLATES) if os.path.exists(file)],
        shipped=shipped("data/base/shipped.json"),
        prompts=local(config["probe"]["file"]) if config["probe"]["file"] else shipped("data/prompts/general.txt"),
        code=library("probe"),
    output:
        "<results>/probe/{model}.csv",
    log:
        "<results>/logs/probe/{model}.log",
    benchmark:
        "<results>/benchmarks/probe/{model}.tsv"
    conda:
        "../../envs/reversal.yaml"
    resources:
        gpu=1,
    params:
        canvas=setting("canvas"),
        # It is known what a base was pretrained on if it was made from these lists: here, or before it was shipped.
        pretrained_here=lambda wildcards: MODELS[wildcards.model]["base"] == "pretrain",
        has_prompt_file=config["probe"]["file"] is not None,
        people=config["pretraining"]["people"],
        seed=config["pretraining"]["seed"],
        words=lambda wildcards, input: str(Path(input.lists[0]).parent),
        templates=lambda wildcards, input: str(Path(input.lists[-1]).parent),
        prompts=config["probe"]["prompts"],
        top=config["probe"]["top"],
    script:
        "../scripts/probe.py"


rule probe_table:
    """The probes of all models in one table."""
    input:
        tables=expand("<results>/probe/{model}.csv", model=MODELS),
        code=library("concatenate"),
    output:
        "<results>/tables/probe.csv",
    log:
        "<results>/logs/probe_table.log",
    benchmark:
        "<results>/benchmarks/probe_table.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/concatenate.py"


rule ablate:
    """Change one choice of the sampler at a time: schedule, order, guidance, canvas, blocks, remasking, steps."""
    input:
        model=require_mask_model,
        rows=expand("<results>/data/{split}.jsonl", split=RECALL_SPLITS),
        code=library("ablate"),
    output:
        "<results>/ablations/{model}/seed_{seed}.csv",
    log:
        "<results>/logs/ablate/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/ablate/{model}/seed_{seed}.tsv"
    conda:
        "../../envs/reversal.yaml"
    threads: CORES
    resources:
        gpu=1,
    params:
        **config["ablations"],
        sampling=setting("sampling"),
        precision=config["precision"],
    script:
        "../scripts/ablate.py"


rule ablations_table:
    """The ablations of all diffusion models and seeds in one table."""
    input:
        tables=expand("<results>/ablations/{model}/seed_{seed}.csv", model=DIFFUSION, seed=config["seeds"]),
        code=library("concatenate"),
    output:
        "<results>/tables/ablations.csv",
    log:
        "<results>/logs/ablations_table.log",
    benchmark:
        "<results>/benchmarks/ablations_table.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/concatenate.py"


rule ablations:
    """The effect of each choice of the sampler on recall; not part of the default target."""
    input:
        "<results>/tables/ablations.csv",


rule objectives:
    """Recall by training objective; for studies/objectives.yaml, and not part of the default target."""
    input:
        "<results>/tables/objectives.csv",
        "<results>/figures/objectives.svg",


rule blocks:
    """Recall by the block size of block diffusion; for studies/blocks.yaml, and not part of the default target."""
    input:
        "<results>/tables/objectives.csv",
        "<results>/figures/blocks.svg",


rule epochs:
    """Recall by epochs; for studies/epochs.yaml, and not part of the default target."""
    input:
        "<results>/tables/objectives.csv",
        "<results>/figures/epochs.svg",
