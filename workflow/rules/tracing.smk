"""Where a fact is: hidden states, MLPs and attention restored one at a time, at every traced denoising step."""


rule trace:
    """Corrupt the subject, restore one site at a time, and see how much of the answer comes back; a file per fact."""
    input:
        model="<results>/models/{model}/seed_{seed}",
        rows=expand("<results>/data/{split}.jsonl", split=config["tracing"]["splits"]),
        completions="<results>/completions/{model}/seed_{seed}.jsonl",
        code=library(
            *("asking", "completion_files", "diffusion", "autoregressive", "model", "text"),
            *("trace_files", "trace_study", "tracing", "tracing_llama"),
        ),
    output:
        directory("<results>/traces/{model}/seed_{seed}"),
    log:
        "<results>/logs/trace/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/trace/{model}/seed_{seed}.tsv"
    conda:
        "../../envs/reversal.yaml"
    threads: own_cores
    resources:
        gpu=1,
    params:
        tracing=config["tracing"],
        sampling=config["sampling"],
    script:
        "../scripts/trace.py"


rule aggregate:
    """Average effects over facts by role, layer and step, with intervals; and why facts were not traced."""
    input:
        traces=expand("<results>/traces/{trained}", trained=TRAINED),
        code=library("corruptions", "intervals", "trace_files", "trace_tables"),
    output:
        effects="<results>/tables/causal_trace.csv",
        facts="<results>/tables/traced_facts.csv",
    log:
        "<results>/logs/aggregate.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        trained=TRAINED,
        splits=config["tracing"]["splits"],
    script:
        "../scripts/aggregate.py"
