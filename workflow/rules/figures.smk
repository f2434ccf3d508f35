"""The figures of the post, each drawn from tables, rows and arrays already on disk."""


include: "pictures.smk"


rule figure_reversal_curse:
    """A fact asked both ways, and the likelihood test."""
    input:
        completions=expand("<results>/completions/{trained}.jsonl", trained=TRAINED),
        likelihood="<results>/tables/likelihood.csv",
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "completion_files", "figures/curse"),
    output:
        **picture("reversal_curse", category="Recall", figure="The reversal curse"),
    log:
        "<results>/logs/figures/reversal_curse.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
        trained=TRAINED,
    script:
        "../scripts/figure.py"


rule figure_canvas:
    """The prompt and the masked response on the canvas."""
    input:
        completions=expand("<results>/completions/{trained}.jsonl", trained=EXAMPLES),
        rows=expand("<results>/data/{split}.jsonl", split=RECALL_SPLITS),
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "completion_files", "figures/denoising"),
    output:
        **picture("canvas", category="Denoising", figure="The canvas"),
    log:
        "<results>/logs/figures/canvas.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        trained=EXAMPLES,
        order=config["sampling"]["order"],
    script:
        "../scripts/figure.py"


use rule figure_canvas as figure_denoising_step with:
    output:
        **picture("denoising_step", category="Denoising", figure="One step of denoising"),
    log:
        "<results>/logs/figures/denoising_step.log",


use rule figure_canvas as figure_timeline with:
    output:
        **picture("timeline", category="Denoising", figure="A generation step by step"),
    log:
        "<results>/logs/figures/timeline.log",


rule figure_probe:
    """What comes first to mind, before and after fine-tuning."""
    input:
        table="<results>/tables/probe.csv",
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/recall"),
    output:
        **picture("probe", category="Recall", figure="What comes first to mind"),
    log:
        "<results>/logs/figures/probe.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
    script:
        "../scripts/figure.py"


rule figure_dataset:
    """Real rows of each group with subject, relation and object marked."""
    input:
        facts="<results>/data/facts.jsonl",
        train="<results>/data/train.jsonl",
        splits=expand("<results>/data/{split}.jsonl", split=SPLITS),
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/data"),
    output:
        **picture("dataset", category="Data", figure="The dataset"),
    log:
        "<results>/logs/figures/dataset.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/figure.py"


rule figure_training_curves:
    """The loss of fine-tuning."""
    input:
        history=expand("<results>/models/{trained}.training.csv", trained=TRAINED),
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/recall"),
    output:
        **picture("training_curves", category="Recall", figure="Training"),
    log:
        "<results>/logs/figures/training_curves.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
        trained=TRAINED,
    script:
        "../scripts/figure.py"


rule figure_step_scaling:
    """Recall against denoising steps; published values beside ours where the data are the published ones."""
    input:
        scaling="<results>/tables/step_scaling.csv",
        published=local("paper/table3.csv") if config["data"]["source"] == "published" else [],
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/recall"),
    output:
        **picture("step_scaling", category="Recall", figure="Recall against denoising steps"),
    log:
        "<results>/logs/figures/step_scaling.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
    script:
        "../scripts/figure.py"


use rule figure_step_scaling as figure_kept_step_scaling with:
    input:
        scaling=local("paper/reference/{run}/step_scaling.csv"),
        about=local("paper/reference/{run}/numbers.json"),
        published=lambda wildcards: [] if kept(wildcards.run)["generated"] else local("paper/table3.csv"),
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/recall"),
    output:
        **picture("{run}_step_scaling", category="Kept runs", figure="{run}: recall", like="step_scaling"),
    log:
        "<results>/logs/figures/{run}_step_scaling.log",
    params:
        models=kept_families,


rule figure_trace_facts:
    """One fact traced: token by layer, a panel a denoising step."""
    input:
        traces=expand("<results>/traces/{model}/seed_{seed}", model=FAMILIES, seed=config["seeds"][:1]),
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "corruptions", "figures/tracing", "trace_files"),
    output:
        **picture("trace_facts", category="Causal tracing", figure="One fact traced"),
    log:
        "<results>/logs/figures/trace_facts.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
    script:
        "../scripts/figure.py"


rule figure_trace_average:
    """Average indirect effects by role and layer, both directions of the diffusion model beside the autoregressive one."""
    input:
        table="<results>/tables/causal_trace.csv",
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "corruptions", "figures/tracing"),
    output:
        **picture("trace_average", category="Causal tracing", figure="Average indirect effects"),
    log:
        "<results>/logs/figures/trace_average.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
    script:
        "../scripts/figure.py"


use rule figure_trace_average as figure_trace_steps with:
    output:
        **picture("trace_steps", category="Causal tracing", figure="Effects over denoising steps"),
    log:
        "<results>/logs/figures/trace_steps.log",


use rule figure_trace_average as figure_kept_trace_average with:
    input:
        table=local("paper/reference/{run}/causal_trace.csv"),
        about=local("paper/reference/{run}/numbers.json"),
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "corruptions", "figures/tracing"),
    output:
        **picture("{run}_trace_average", category="Kept runs", figure="{run}: average effects", like="trace_average"),
    log:
        "<results>/logs/figures/{run}_trace_average.log",
    params:
        models=kept_families,


rule figure_symmetry_layers:
    """What forward and reverse memories share, by layer and statistic."""
    input:
        table="<results>/tables/symmetry.csv",
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/symmetry"),
    output:
        **picture("symmetry_layers", category="Symmetry", figure="Symmetry by layer"),
    log:
        "<results>/logs/figures/symmetry_layers.log",
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        models=FAMILIES,
    script:
        "../scripts/figure.py"


use rule figure_symmetry_layers as figure_symmetry_pca with:
    input:
        table="<results>/tables/symmetry_pca.csv",
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/symmetry"),
    output:
        **picture("symmetry_pca", category="Symmetry", figure="Keys and values in a plane"),
    log:
        "<results>/logs/figures/symmetry_pca.log",


use rule figure_symmetry_layers as figure_symmetry_spectra with:
    input:
        table="<results>/tables/symmetry_spectra.csv",
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/symmetry"),
    output:
        **picture("symmetry_spectra", category="Symmetry", figure="Spectra of keys and values"),
    log:
        "<results>/logs/figures/symmetry_spectra.log",


use rule figure_symmetry_layers as figure_symmetry_retrieval with:
    input:
        table="<results>/tables/symmetry_retrieval.csv",
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/symmetry"),
    output:
        **picture("symmetry_retrieval", category="Symmetry", figure="Retrieving a fact's partner"),
    log:
        "<results>/logs/figures/symmetry_retrieval.log",


use rule figure_symmetry_layers as figure_edits with:
    input:
        table="<results>/tables/edits.csv",
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/editing"),
    output:
        **picture("edits", category="Edits", figure="Rank-one edits"),
    log:
        "<results>/logs/figures/edits.log",


use rule figure_symmetry_layers as figure_ablations with:
    input:
        table="<results>/tables/ablations.csv",
        words=local("paper/alt.yaml"),
        code=library(*DRAWING, "figures/ablation"),
    output:
        **picture("ablations", category="Recall", figure="Choices of the sampler"),
    log:
        "<results>/logs/figures/ablations.log",
