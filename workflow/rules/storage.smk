"""How facts are stored: keys and values in both directions, their similarity, rank-one edits and fine-tuned edits."""

KEYVALUE_SPLITS = split_pairs(config["keyvalue"]["groups"])
RANK_ONE_GROUPS = ["known"] if UNTRAINED else ["both", "p2d"]
FINETUNED_EDIT_STAGES = STAGES if config["finetuned_edits"]["include_bases"] else TRAINED


rule keyvalue:
    """Read each fact's activations at subject and answer in both directions, and optimise its values."""
    input:
        model=require_mask_model,
        peaks=peaks_if_needed,
        rows=split_files(KEYVALUE_SPLITS),
        train="<results>/data/train.jsonl",
        code=library("keyvalue"),
    output:
        directory("<results>/keyvalue/{model}/{stage}"),
    log:
        "<results>/logs/keyvalue/{model}/{stage}.log",
    benchmark:
        "<results>/benchmarks/keyvalue/{model}/{stage}.tsv"
    priority: 2  # long: starts before figures
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        canvas=setting("canvas"),
        layers=config["keyvalue"]["layers"],
        value_layers=value_layers,
        max_facts=config["keyvalue"]["max_facts"],
        prefixes=config["keyvalue"]["prefixes"],
        optimization=config["keyvalue"]["optimization"],
    script:
        "../scripts/keyvalue.py"


rule symmetry:
    """Compare forward with reverse keys and values, by layer and where MLPs peak: statistics, nulls and intervals."""
    input:
        extractions=expand("<results>/keyvalue/{staged}", staged=STAGES),
        peaks=[peaks_of(*staged.split("/")) for staged in STAGES],
        facts="<results>/data/facts.jsonl",
        code=library("symmetry"),
    output:
        outcomes="<results>/tables/keyvalue.csv",
        symmetry="<results>/tables/symmetry.csv",
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
        staged=STAGES,
        pairs=KEYVALUE_SPLITS,
    script:
        "../scripts/symmetry.py"


rule rank_one_edits:
    """Give facts a new object by ROME's rank-one edit, one at a time, and evaluate both directions."""
    input:
        model=require_mask_model,
        peaks=[] if config["rank_one_edits"]["layers"] == "all" else "<results>/peaks/{model}/seed_{seed}.json",
        rows=split_files(split_pairs(RANK_ONE_GROUPS)),
        train="<results>/data/train.jsonl",
        code=library("rank_one_edits"),
    output:
        "<results>/rank_one_edits/{model}/seed_{seed}.csv",
    log:
        "<results>/logs/rank_one_edits/{model}/seed_{seed}.log",
    benchmark:
        "<results>/benchmarks/rank_one_edits/{model}/seed_{seed}.tsv"
    priority: 1  # long: starts before figures
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        canvas=setting("canvas"),
        edits=config["rank_one_edits"],
        groups=RANK_ONE_GROUPS,
        prefixes=config["keyvalue"]["prefixes"],
        optimization=config["keyvalue"]["optimization"],
    script:
        "../scripts/rank_one_edits.py"


rule rank_one_edits_table:
    """All models' rank-one edits in one table, with the layers that tracing points to."""
    input:
        edits=expand("<results>/rank_one_edits/{trained}.csv", trained=TRAINED),
        peaks=expand("<results>/peaks/{trained}.json", trained=TRAINED),
        code=library("rank_one_edits_table"),
    output:
        "<results>/tables/rank_one_edits.csv",
    log:
        "<results>/logs/rank_one_edits_table.log",
    benchmark:
        "<results>/benchmarks/rank_one_edits_table.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/rank_one_edits_table.py"


rule finetuned_edits:
    """Edit facts in one direction and evaluate the other; compare both directions' gradients."""
    input:
        model=editable_model,
        rows=split_files(split_pairs(config["finetuned_edits"]["groups"])),
        code=library("finetuned_edits"),
    output:
        edits="<results>/finetuned_edits/{model}/{stage}.csv",
        gradients="<results>/finetuned_edits/{model}/{stage}.gradients.csv",
    log:
        "<results>/logs/finetuned_edits/{model}/{stage}.log",
    benchmark:
        "<results>/benchmarks/finetuned_edits/{model}/{stage}.tsv"
    priority: 1  # long: starts before figures
    conda:
        "../../envs/reversal.yaml"
    threads: SHARED_THREADS
    resources:
        gpu=1,
    params:
        canvas=setting("canvas"),
        edits=edit_settings,
    script:
        "../scripts/finetuned_edits.py"


rule finetuned_edits_table:
    """How much transfers to the reverse direction, for all models: from fine-tuned edits, and from gradients."""
    input:
        edits=expand("<results>/finetuned_edits/{staged}.csv", staged=FINETUNED_EDIT_STAGES),
        gradients=expand("<results>/finetuned_edits/{staged}.gradients.csv", staged=FINETUNED_EDIT_STAGES),
        code=library("finetuned_edits_table"),
    output:
        edits="<results>/tables/finetuned_edits.csv",
        gradients="<results>/tables/gradients.csv",
    log:
        "<results>/logs/finetuned_edits_table.log",
    benchmark:
        "<results>/benchmarks/finetuned_edits_table.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/finetuned_edits_table.py"


rule storage_tests:
    """Each test of shared storage: what it shows on networks of known storage, its power, and what the models show."""
    input:
        edits="<results>/tables/finetuned_edits.csv",
        gradients="<results>/tables/gradients.csv",
        code=library("storage_tests"),
    output:
        "<results>/tables/storage_tests.csv",
    log:
        "<results>/logs/storage_tests.log",
    benchmark:
        "<results>/benchmarks/storage_tests.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    params:
        stores={name: MODELS[name]["store"] for name in STORES},
    script:
        "../scripts/storage_tests.py"


rule store_checks:
    """What networks of known storage recall with each of the store's matrices set to 0."""
    input:
        tables=expand("<results>/store/{model}/seed_{seed}.csv", model=STORES, seed=config["seeds"]),
        code=library("concatenate"),
    output:
        "<results>/tables/store_checks.csv",
    log:
        "<results>/logs/store_checks.log",
    benchmark:
        "<results>/benchmarks/store_checks.tsv"
    localrule: True
    conda:
        "../../envs/reversal.yaml"
    script:
        "../scripts/concatenate.py"


rule storage:
    """Tests of shared storage, on networks of known storage and on the models of the study."""
    input:
        "<results>/tables/store_checks.csv",
        "<results>/tables/storage_tests.csv",
        "<results>/figures/storage_tests.svg",
