"""What the models recall: completions, recall by steps, the likelihood test."""


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
