"""Functions that give rules their inputs and params, mostly from a job's wildcards. No rules."""


def is_causal(wildcards):
    """Whether a job's model is autoregressive."""
    return FAMILIES[wildcards.model] == "autoregressive"


def setting(key):
    """A function of a job's wildcards: one setting of its model, as resolved."""
    return lambda wildcards: MODELS[wildcards.model][key]


def require_mask_model(wildcards):
    """The folder of a model to be traced or edited, which puts masks into a canvas; stop if it knows other noise."""
    name = wildcards.model
    if key := find_unsupported_objective(MODELS[name]):
        section, field = key.split(".")
        sys.exit(
            f"error: models.{name}.{key} is {MODELS[name][section][field]}; only recall can be measured, by the target "
            "`objectives`: tracing, keys and values, edits and the post support masks on whole rows, without times, "
            "and rotary positions"
        )
    return f"<results>/models/{name}/{wildcards.get('stage') or f'seed_{wildcards.seed}'}"


def editable_model(wildcards):
    """The folder of a model to be edited: of known storage, or one that puts masks into a canvas."""
    is_store = wildcards.model in STORES
    return f"<results>/models/{wildcards.model}/{wildcards.stage}" if is_store else require_mask_model(wildcards)


def edit_settings(wildcards):
    """The settings of a model's edits; networks of known storage have their own number of facts."""
    settings = {key: value for key, value in config["finetuned_edits"].items() if key != "include_bases"}
    settings |= {"groups": ["known"]} if UNTRAINED else {}
    return settings | ({"max_facts": config["store"]["max_facts"]} if wildcards.model in STORES else {})


def split_pairs(groups):
    """For each group, the two splits about its people: asking for the description, and for the name."""
    return [facts.select_splits(group) for group in (["known"] if UNTRAINED else groups)]


def split_files(pairs):
    """The files of the splits in pairs of splits."""
    return expand("<results>/data/{split}.jsonl", split=[split for pair in pairs for split in pair])


def model_splits(splits):
    """A function of a job's wildcards: the files of `splits`, without control people if its model protects nobody."""

    def select(wildcards):
        protects = MODELS[wildcards.model]["objective"]["protect"] != "none"
        names = [split for split in splits if protects or split.removesuffix("_randomized") not in CONTROL_SPLITS]
        return expand("<results>/data/{split}.jsonl", split=names)

    return select


def word_and_template_files(templates):
    """The files of words, and those of the named `templates`."""
    folders = DATA["generated"]
    templates = [f"{folders['templates']}/{name}.txt" for name in templates]
    return local(generated.list_word_files(folders["words"]) + templates)


def data_source(wildcards):
    """What a study's data are made from: word lists and templates, a user's files, or the download."""
    if DATA["source"] == "generated":
        own = {"train_mentions": ["mentions"], "train_identity": ["identity"]}
        return word_and_template_files([*DIRECTIONS, *own.get(wildcards.table, [])])
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


def models_from(base):
    """A pattern for the names of the models that start from this kind of base; matches nothing if there are none."""
    return "|".join(name for name, model in MODELS.items() if model["base"] == base) or "(?!)"


def source_files(wildcards):
    """The local files that a model's base is made from."""
    source = MODELS[wildcards.model]["source"]
    paths = [source[part]["path"] for part in ("weights", "tokenizer") if "path" in source.get(part, {})]
    return files_in(source["folder"]) if source.get("folder") else local(paths)


def tokenizer_and_base(wildcards):
    """A model's tokenizer, and its base unless that is pretrained here, which takes hours."""
    folder = f"<results>/models/{wildcards.model}"
    if MODELS[wildcards.model]["base"] == "pretrain":
        return {"tokenizer": f"{folder}/tokenizer"}
    return {"tokenizer": f"{folder}/base", "base": f"{folder}/base"}


def training_files(wildcards):
    """The files of rows that a model is trained on, in the order of `train_on`."""
    return [f"<results>/data/{TRAIN_ON[kind]}.jsonl" for kind in MODELS[wildcards.model]["train_on"]]


def control_facts(wildcards):
    """The file that says who the control people are, if the model's objective protects them."""
    return "<results>/data/facts.jsonl" if MODELS[wildcards.model]["objective"]["people"] == "control" else []


def peaks_of(model, stage):
    """The file of a model's peaks in tracing; a base has those of its first fine-tuning."""
    return f"<results>/peaks/{model}/{f'seed_{FIRST_SEED}' if stage == 'base' else stage}.json"


def value_layers(wildcards):
    """The layers at which values are optimised: none for a base, which does not know the facts."""
    return [] if wildcards.stage == "base" and not UNTRAINED else config["keyvalue"]["value_layers"]


def peaks_if_needed(wildcards):
    """The file of peaks, if the layers of keys or values depend on it."""
    choices = [config["keyvalue"]["layers"], value_layers(wildcards)]
    return [] if all(choice in ("all", []) for choice in choices) else peaks_of(wildcards.model, wildcards.stage)


def provenance_of(wildcards, input):
    """{file: [rule, script]} of each input that a rule of this workflow makes."""
    makers = [rule for rule in workflow.rules if rule.script]
    return {
        str(file): [rule.name, rule.script.replace("..", "workflow", 1)]
        for file in input
        for rule in makers
        if any(output.match(file) for output in rule.output)
    }
