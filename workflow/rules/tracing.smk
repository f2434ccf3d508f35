"""Causal tracing: where in the network, and at which denoising steps, an answer depends on its subject."""


rule trace:
    """Corrupt the subject and restore one site at a time, a file per fact; corrupt the subject at some of the steps and
    measure recall; read answers out of every layer."""
    input:
        model=require_mask_model,
        rows=expand("<results>/data/{split}.jsonl", split=TRACED_SPLITS),
        completions="<results>/completions/{model}/seed_{seed}.jsonl",
        code=library("trace"),
    output:
        directory("<results>/traces/{model}/seed_{seed}"),
    log:
        "<results>/logs/trace/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/trace/{model}/seed_{seed}.tsv"
    priority: 3  # keys, values and edits need it
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        settings={
            name: config["tracing"][name]
            for name in config["tracing"]
            if name not in ("splits", "sampling_steps", "time")
        },
        time=config["tracing"]["time"],
        sampling=setting("sampling"),
        precision=config["precision"],
        # The completions that are traced; those of an autoregressive model have no number of steps.
        steps=lambda wildcards: None if is_causal(wildcards) else config["tracing"]["sampling_steps"],
    script:
        "../scripts/trace.py"


rule aggregate:
    """Average effects over facts by role, layer and stage, with intervals; compare their maps; average the effects over
    steps; count the traced facts."""
    input:
        traces=expand("<results>/traces/{trained}", trained=TRAINED),
        code=library("aggregate"),
    output:
        effects="<results>/tables/causal_trace.csv",
        maps="<results>/tables/trace_maps.csv",
        time="<results>/tables/time.csv",
        lens="<results>/tables/logit_lens.csv",
        heads="<results>/tables/attention_heads.csv",
        attribution="<results>/tables/attribution.csv",
        facts="<results>/tables/traced_facts.csv",
    log:
        "<results>/logs/aggregate.log",
    benchmark:
        "<results>/benchmarks/aggregate.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        trained=TRAINED,
        splits=TRACED_SPLITS,
        seed=config["tracing"]["seed"],
    script:
        "../scripts/aggregate.py"


rule peaks:
    """Find the layers where restoring MLPs at the last subject token has the largest effect, in both directions."""
    input:
        traces="<results>/traces/{model}/seed_{seed}",
        code=library("peaks"),
    output:
        "<results>/peaks/{model}/seed_{seed}.json",
    log:
        "<results>/logs/peaks/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/peaks/{model}/seed_{seed}.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/peaks.py"
