"""Wrong inputs, each with a part of the error that it must give: configurations, data, models, machines.

A function here makes a wrong file and uses it, as its name says; `test_errors.py` expects the error.
"""

import copy
import functools
import json
import tempfile
from pathlib import Path
from unittest import mock

import torch
import yaml
from safetensors.torch import load_file, save_file

from reversal.data import berglund, facts, pairs
from reversal.data import generated as generation
from reversal.data import rows as user_rows
from reversal.models import folders, network, smdm, tokens
from reversal.models.layouts import LAYOUTS, LLADA
from reversal.study import machine, preflight
from reversal.training import adapters, loop

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden/smdm"
REMOVE = object()
GPT2 = {"family": "autoregressive", "base": "hub"}
PINNED = {"repo": "owner/name", "revision": "0" * 40, "files": {"model.safetensors": "0" * 64}}

CONFIGURATIONS = [
    # (keys, value, part of the error)
    (["study"], "My Study", "study is 'My Study'; allowed: a folder name"),
    (["study"], "../elsewhere", "study is '../elsewhere'; allowed: a folder name"),
    (["study"], 7, "study is 7; allowed: a folder name"),
    (["container"], 7, "container is 7; allowed: an image for --sdm apptainer, or null"),
    (["stduy"], "x", "stduy is not a key; did you mean study?"),
    (["tracing", "most_facts"], 3, "tracing.most_facts is now called tracing.max_facts; rename it"),
    (["rewriting"], {}, "rewriting is now called finetuned_edits; rename it"),
    (["data", "source"], "wikipedia", "data.source is 'wikipedia'; allowed: generated, berglund, rows or pairs"),
    (["data", "generated", "people_per_group"], 0, "data.generated.people_per_group is 0; allowed: a whole number"),
    (
        ["data", "generated", "people_per_group"],
        1,
        "data.generated.people_per_group is 1; allowed: a whole number from 2",
    ),
    (["data", "generated", "people_per_group"], 30.5, "data.generated.people_per_group is 30.5; allowed: a whole"),
    (["data", "generated", "test_templates"], -1, "data.generated.test_templates is -1; allowed: a whole number"),
    (["data", "generated", "seed"], "one", "data.generated.seed is 'one'; allowed: a whole number from 0 up"),
    (["data", "generated", "sed"], 1, "data.generated.sed is not a key; did you mean seed?"),
    (["data", "generated", "words"], "no/words", "data.generated.words: no/words/patterns.txt: No such file"),
    (["data", "generated", "templates"], "data", "data.generated.templates: data/p2d.txt: no such file; add it, or"),
    (["sampling", "canvas"], 1_000_000, "sampling.canvas is 1000000; allowed: up to 256, the positions of mdm"),
    (
        ["tracing", "max_facts"],
        0,
        "tracing.max_facts is 0; allowed: with keyvalue.max_facts 0 too, since keyvalue uses",
    ),
    (["rank_one_edits", "max_facts"], 1, "rank_one_edits.max_facts is 1; allowed: a whole number from 2 up, or 0 to"),
    (["probe", "file"], "my/prompts.txt", "probe.file: my/prompts.txt: no such file; add it, or change probe.file"),
    (["data", "berglund", "folder"], 3, "data.berglund.folder is 3; allowed: a local folder, or null"),
    (
        ["data", "source"],
        "rows",
        "data.rows.tests is None; allowed: the file of your test rows, when data.source is rows",
    ),
    (["models"], {}, "models is {}; allowed: at least one model"),
    (["models", "mdm", "family"], "gpt", "models.mdm.family is 'gpt'; allowed: diffusion or autoregressive"),
    (["models", "mdm", "base"], REMOVE, "models.mdm has no base; it needs one: folder, pretrain"),
    (["models", "mdm", "family"], REMOVE, "models.mdm has no family; it needs one: diffusion or"),
    (["models", "mdm", "base"], "internet", "models.mdm.base is 'internet'; allowed: folder, pretrain"),
    (["models", "mdm", "folder"], REMOVE, "models.mdm has no folder; it needs one: the folder"),
    (["models", "mdm", "foldr"], "x", "models.mdm.foldr is not a key; did you mean folder?"),
    (["models", "ar"], GPT2, "models.ar has no hub; it needs one: repo, revision and files"),
    (
        ["models", "ar"],
        {**GPT2, "family": "diffusion", "hub": PINNED},
        "models.ar.family is 'diffusion'; allowed: autoregr",
    ),
    (
        ["models", "ar"],
        {**GPT2, "hub": {**PINNED, "revision": "main"}},
        "models.ar.hub.revision is 'main'; allowed: a commit",
    ),
    (
        ["models", "mdm"],
        {"family": "diffusion", "base": "llada"},
        "models.mdm has no llada; it needs one: a folder, or repo, revision and files with their SHA-256",
    ),
    (
        ["models", "ar"],
        {"family": "autoregressive", "base": "dream", "dream": {"folder": "x"}},
        "models.ar.family is 'autoregressive'; allowed: diffusion, for a Dream",
    ),
    (
        ["models", "mdm"],
        {"family": "diffusion", "base": "llada", "llada": {"repo": "owner/name", "revision": "main", "files": "all"}},
        "models.mdm.llada.files is 'all'; allowed: files with their SHA-256, or unpinned",
    ),
    (["models", "mdm", "objective", "noise"], "salt", "objective.noise is 'salt'; allowed: mask, uniform or gaussian"),
    (["models", "mdm", "objective", "noise"], "uniform", "noise is 'uniform'; allowed: mask for a base from folder"),
    (
        ["models", "mdm", "objective", "rate"],
        0,
        "models.mdm.objective.rate is 0; allowed: uniform, or a number above 0",
    ),
    (
        ["models", "mdm", "objective", "protect"],
        "none",
        "objective.people is 'control'; allowed: only where something",
    ),
    (
        ["models", "mdm"],
        {"family": "diffusion", "base": "pretrain", "objective": {"noise": "gaussian"}},
        "models.mdm.objective.noise is 'gaussian'; allowed: gaussian only with time_conditioning: embedded",
    ),
    (
        ["models", "ar", "objective"],
        {"rate": 0.5},
        "models.ar.objective.rate is 0.5; allowed: for diffusion models only",
    ),
    (
        ["models", "ar", "train_on"],
        ["backwards"],
        "models.ar.train_on[0] is 'backwards'; allowed: facts, reversed, mentions, control",
    ),
    (
        ["models", "ar", "train_on"],
        ["facts", "control_mentions"],
        "models.ar.train_on has control_mentions; allowed: with objective.people control",
    ),
    (
        ["models", "ar", "objective"],
        {"whole_entities": True},
        "models.ar.objective.whole_entities is True; allowed: for diffusion models only",
    ),
    (
        ["models", "ar", "objective"],
        {"masked_context": 0.5, "protect": "subject"},
        "models.ar.objective.protect is 'subject'; allowed: none with a masked context",
    ),
    (
        ["models", "mdm", "objective"],
        {"masked_context": 0.5},
        "models.mdm.objective.masked_context is 0.5; allowed: 0 for a diffusion model",
    ),
    (
        ["models", "ar"],
        {"family": "autoregressive", "base": "scratch", "network": {"positions": "none"}},
        "models.ar.network.positions is 'none'; allowed: rotary for ar",
    ),
    (
        ["models", "ar", "objective"],
        {"block": 4},
        "models.ar.objective.block is 4; allowed: null: block diffusion is for",
    ),
    (
        ["models", "mdm", "objective", "block"],
        4,
        "sampling.guidance is 0.8; allowed: 0, since mdm is trained with blocks",
    ),
    (["models", "ar", "network"], {"layers": 2}, "models.ar.network is given; allowed: with base pretrain or scratch"),
    (["training"], "none", "training is 'none'; allowed: a recipe, unless data.source is pairs"),
    (["training"], "never", "training is 'never'; allowed: none, or how to train"),
    (["data", "source"], "pairs", "training is a recipe; allowed: none, when data.source is pairs"),
    (
        ["data", "pairs", "max_pairs"],
        1,
        "data.pairs.max_pairs is 1; allowed: a whole number from 4 up, or null for all",
    ),
    (["training", "adapter"], {"rank": 8}, "training.adapter has no alpha; it needs one: a number above 0"),
    (["training", "adapter"], 8, "training.adapter is 8; allowed: rank and alpha of an adapter, or null"),
    (
        ["pretraining", "recipe", "adapter"],
        {"rank": 8, "alpha": 16},
        "pretraining.recipe.adapter is {'rank': 8, 'alpha': 16}; allowed: null; a base is trained whole",
    ),
    (
        ["models", "ar"],
        {**GPT2, "hub": {**PINNED, "repo": "gpt2"}},
        "models.ar.hub.repo is 'gpt2'; allowed: owner/name",
    ),
    (["models", "ar"], {**GPT2, "hub": {**PINNED, "files": {"m.safetensors": "abc"}}}, "is 'abc'; allowed: a SHA-256"),
    (
        ["models", "ar"],
        {**GPT2, "hub": {**PINNED, "files": {"../m.safetensors": "0" * 64}}},
        "models.ar.hub.files has the key '../m.safetensors'; allowed: a file's name, without a folder",
    ),
    (
        ["models", "ar"],
        {"family": "autoregressive", "base": "lit_gpt"},
        "models.ar has no lit_gpt; it needs one: weights",
    ),
    (["models", "Big Model"], {"family": "diffusion", "base": "scratch"}, "'Big Model'; allowed: a name of lower-case"),
    (["seeds"], [], "seeds is []; allowed: a list of different whole numbers"),
    (["seeds"], [1, 1], "seeds is [1, 1]; allowed: a list of different whole numbers"),
    (["seeds"], 1, "seeds is 1; allowed: a list of different whole numbers"),
    (["network", "width"], 0, "network.width is 0; allowed: a whole number from 1 up"),
    (["network", "width"], 130, "network.width is 130; allowed: a multiple of twice network.heads"),
    (["network", "vocabulary"], 100, "network.vocabulary is 100; allowed: a whole number from 257 up"),
    (["pretraining", "rows"], 0, "pretraining.rows is 0; allowed: a whole number from 1 up"),
    (["training", "learning_rate"], 0, "training.learning_rate is 0; allowed: a number above 0"),
    (["training", "epochs"], 0, "training.epochs is 0; allowed: a whole number from 1 up"),
    (["training", "betas"], [0.9], "training.betas is [0.9]; allowed: two numbers"),
    (["training", "betas"], [0.9, 1.0], "training.betas[1] is 1.0; allowed: a number from 0 up, below 1"),
    (
        ["training", "width"],
        [40, 22],
        "training.width is [40, 22]; allowed: the smaller number before the larger",
    ),
    (
        ["training", "width"],
        [22],
        "training.width is [22]; allowed: a whole number of tokens, a smallest and a largest",
    ),
    (["training", "width"], 20, "sampling.canvas is 22; allowed: up to training.width (20), since a canvas wider"),
    (["models", "mdm", "canvas"], 60, "models.mdm.canvas is 60; allowed: up to training.width (40), since"),
    (["training", "lr"], 0.1, "training.lr is not a key; known here: epochs"),
    (["training_processes"], 0, "training_processes is 0; allowed: a whole number from 1 up"),
    (["sampling", "steps"], [1, 2, 0], "sampling.steps[2] is 0; allowed: steps are whole numbers from 1 up"),
    (["sampling", "steps"], [], "sampling.steps is []; allowed: a list of different whole numbers from 1 up"),
    (["sampling", "guidance"], -1, "sampling.guidance is -1; allowed: a number from 0 up"),
    (["sampling", "guidance"], "much", "sampling.guidance is 'much'; allowed: a number from 0 up"),
    (["sampling", "guidance"], float("nan"), "sampling.guidance is no number; allowed: a finite one"),
    (["sampling", "order"], "greedy", "sampling.order is 'greedy'; allowed: confidence or random"),
    (["sampling", "block"], 0, "sampling.block is 0; allowed: a whole number of tokens from 1 up, or null"),
    (["likelihood", "samples"], 1, "likelihood.samples is 1; allowed: a whole number from 2 up"),
    (["precision"], "float16", "precision is 'float16'; allowed: float32 or bfloat16"),
    (["keyvalue", "layers"], "last", "keyvalue.layers is 'last'; allowed: all, peak, or a list of layers from 0 up"),
    (["keyvalue", "layers"], [0, 40], "keyvalue.layers[1] is 40; allowed: up to 7, the last layer of mdm"),
    (["keyvalue", "value_layers"], [8], "keyvalue.value_layers[0] is 8; allowed: up to 7, the last layer of mdm"),
    (["rank_one_edits", "random_sites"], -1, "rank_one_edits.random_sites is -1; allowed: a whole number from 0 up"),
    (["rank_one_edits", "layers"], [8], "rank_one_edits.layers[0] is 8; allowed: up to 7, the last layer of mdm"),
    (["tracing", "windows"], [], "tracing.windows is []; allowed: a list of different whole numbers from 1 up"),
    (["tracing", "time", "starts"], 1, "tracing.time.starts is 1; allowed: a whole number from 2 up"),
    (
        ["keyvalue", "optimization", "weight_decay"],
        -1,
        "keyvalue.optimization.weight_decay is -1; allowed: a number from 0 up",
    ),
    (
        ["rank_one_edits", "layers"],
        [-1],
        "rank_one_edits.layers is [-1]; allowed: all, peak, or a list of layers from 0 up",
    ),
    (
        ["tracing", "sampling_steps"],
        5,
        "tracing.sampling_steps is 5; allowed: one of sampling.steps (1, 2",
    ),
    (["models", "mdm", "folder"], "nowhere", "models.mdm.folder is 'nowhere'; allowed: a folder that exists"),
    (
        ["models", "small"],
        {"family": "diffusion", "base": "scratch", "network": {"layers": 2}},
        "keyvalue.layers[1] is 3; allowed: up to 1, the last layer of small",
    ),
    (
        ["keyvalue", "prefixes", "lengths"],
        [1, 50],
        "keyvalue.prefixes.lengths[1] is 50; allowed: up to the canvas of mdm (22)",
    ),
    (["tracing", "splits"], ["p2d"], "tracing.splits[0] is 'p2d'; allowed: p2d_same"),
]


def change_key(config, keys, value):
    """A copy of `config` with the value at the path `keys` replaced, or removed."""
    config = copy.deepcopy(config)
    inner = config
    for key in keys[:-1]:
        inner = inner[key]
    if value is REMOVE:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return config


ROW = {"fact": "p2d-00", "template": 1, "prompt": "Ann is", "completion": " tall.", "subject": [0, 3], "answer": [1, 5]}
FACT = {"id": "p2d-00", "group": "p2d", "name": "Ann", "description": "tall", "trained_as": [], "tested_as": ["tall"]}


def read_rows(folder, *lines, read=facts.read):
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    read(file)


def parse_user_row(folder, changes):
    line = {"prompt": "Ann is", "completion": " tall.", "name": "Ann", "description": "tall"} | changes
    (folder / "rows.jsonl").write_text(json.dumps(line))
    return user_rows.parse_file(folder / "rows.jsonl")


def read_word_list(folder, name, content):
    file = folder / f"{name}.txt"
    file.write_text(content)
    return generation.read_lines(file)


def read_template(folder, line):
    (folder / "p2d.txt").write_text(f"{line}\n")
    generation.read_templates(folder / "p2d.txt", answer_type="description")


def generate(**changes):
    folders = {"words": ROOT / "data/words", "templates": ROOT / "data/templates", "seed": 1}
    sizes = {"people_per_group": 30, "train_templates": 30, "test_templates": 10}
    generation.make(**folders, **sizes | changes)


def load_smdm(folder, change=None, causal=False, n_head=4):
    tensors = load_file(GOLDEN / "mdm.safetensors")
    if change:
        change(tensors)
    save_file(tensors, folder / "mdm.safetensors")
    smdm.load(folder / "mdm.safetensors", {"n_head": n_head}, causal=causal)


def load_truncated_smdm(folder):
    content = (GOLDEN / "mdm.safetensors").read_bytes()
    (folder / "mdm.safetensors").write_bytes(content[: len(content) // 2])
    smdm.load(folder / "mdm.safetensors", {"n_head": 4}, causal=False)


def load_pickled_smdm(folder):
    (folder / "mdm.pth").write_bytes(b"\x80\x04.")
    smdm.load(folder / "mdm.pth", {"n_head": 4}, causal=False)


def convert_smdm(folder, **changes):
    tokenizer = tokens.train_tokenizer(["a few words"], 300)
    tokenizer.save_pretrained(folder)
    source = {
        "weights": {"path": GOLDEN / "mdm.safetensors"},
        "tokenizer": {"path": folder / "tokenizer.json"},
        "eos_token": tokens.EOS,
    }
    smdm.convert(folder / "base", causal=False, n_head=4, **source | changes)


def write_checkpoint(folder, name="llada", *, size=318):
    """Write a checkpoint as it is published: config.json, two shards with an index, a tokenizer of `size` tokens."""
    golden = ROOT / "tests/golden" / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes((golden / "config.json").read_bytes())
    tensors = list(load_file(golden / "model.safetensors").items())
    weight_map = {}
    for number, part in enumerate((tensors[:9], tensors[9:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file(dict(part), folder / file)
        weight_map |= dict.fromkeys(dict(part), file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    tokenizer = tokens.train_tokenizer(["a few words"], 300)
    tokenizer.add_tokens([f"<|{i}|>" for i in range(len(tokenizer), size)], special_tokens=True)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def load_with_config(folder, name="llada", **changes):
    config = json.loads((write_checkpoint(folder, name) / "config.json").read_text()) | changes
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value is not REMOVE})
    )
    LAYOUTS[name].load(folder)


def convert_without_mask_token(folder):
    config = json.loads((write_checkpoint(folder, size=311) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 0}))
    LLADA.convert(folder / "base", folder=folder)


def load_without_shard(folder):
    (write_checkpoint(folder) / "model-00002-of-00002.safetensors").unlink()
    LLADA.load(folder)


def load_without_index(folder):
    (write_checkpoint(folder / "net") / "model.safetensors.index.json").unlink()
    LLADA.load(folder / "net")


def load_with_tensors(folder, change):
    shard = write_checkpoint(folder) / "model-00002-of-00002.safetensors"
    save_file({name: change(tensor) for name, tensor in load_file(shard).items()}, shard)
    LLADA.load(folder)


def load_with_index(folder, change):
    file = write_checkpoint(folder) / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))
    LLADA.load(folder)


def read_pairs(folder, *lines, header="child,parent,parent_type"):
    file = folder / "pairs.csv"
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return pairs.read(file)


def make_pairs(selected):
    pairs.make(selected, templates=ROOT / "data/templates", max_pairs=None, seed=1)


def read_pair_template(folder, line):
    (folder / "known_p2d.txt").write_text(f"{line}\n")
    pairs.read_templates(folder / "known_p2d.txt", "description")


def save_network(folder):
    net = network.new(causal=True, vocab=10, width=8, layers=1, heads=2, mlp=8, eos=0, seed=0)
    network.save(net, None, folder / "net")
    return folder / "net"


def load_damaged(folder):
    weights = save_network(folder) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    network.load(folder / "net")


def load_without_file(folder, name):
    (save_network(folder) / name).unlink()
    network.load(folder / "net")


def load_unverified(folder, change):
    net = save_network(folder)
    (net / "checksums.json").unlink()
    change(net)
    network.load(net)


def load_with_file(folder, name, content):
    load_unverified(folder, lambda net: (net / name).write_text(content))


def load_with_weights(folder, change):
    def change_weights(net):
        tensors = load_file(net / "model.safetensors")
        change(tensors)
        save_file(tensors, net / "model.safetensors")

    load_unverified(folder, change_weights)


def load_truncated(folder):
    weights = folder / "net/model.safetensors"
    load_unverified(folder, lambda net: weights.write_bytes(weights.read_bytes()[:-100]))


@functools.cache
def default_config():
    """The default configuration."""
    return yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))


SPLIT = {"facts": 30, "templates": 10, "answers": 30, "one_word_subject": None}
SPLITS = dict.fromkeys(facts.SPLITS, SPLIT)
LONGEST = {"tokens": 20, "file": "data/both_p2d.jsonl", "line": 7}
MEASURED = {"longest_row": LONGEST, "shortest_prompt": 4, "longest_probe": (9, "Two and two are")}
MEASURED |= {"supports_subword_dropout": True, "splits": SPLITS}


def check_study(keys=(), value=None, *, shape=None, **measured):
    """Run the preflight of the default study with one key, one measurement or the shape of the base changed."""
    config = change_key(default_config(), keys, value) if keys else default_config()
    with tempfile.TemporaryDirectory() as base:
        (Path(base) / "config.json").write_text(
            json.dumps({"num_hidden_layers": 8, "model_type": "llama"} | (shape or {}))
        )
        preflight.require_feasible(MEASURED | measured, config, "mdm", base)


def measured_splits(**changes):
    """The measurements of the splits, with one of them changed."""
    return {"splits": SPLITS | {"both_p2d": SPLIT | changes}}


def measure_empty_split(folder):
    tokens.train_tokenizer(["a few words"], 300).save_pretrained(folder)
    (folder / "p2d_same.jsonl").write_text("")
    preflight.measure_rows(folder / "tokenizer.json", [folder / "p2d_same.jsonl"])


def require_space_on_full_disk(folder):
    with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=2**20)):
        machine.require_disk_space(default_config(), folder / "models")


def attach_without_peft(folder):
    with mock.patch.dict("sys.modules", peft=None):
        adapters.attach(None, rank=8, alpha=16, seed=0)


def compile_without_compiler(folder):
    with mock.patch("shutil.which", return_value=None), loop._compile_blocks(None, enabled=True):
        pass


REMOTE_CODE = json.dumps({"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}})
NORM = "model.norm.weight"
HUB = {"repo": "owner/model", "revision": "unpinned", "file": "mdm.safetensors", "sha256": "unpinned"}
# (what is wrong, function that makes and uses it, part of the error)
FILES = [
    (
        "a word list without words",
        lambda f: read_word_list(f, "roles", "\n"),
        "roles.txt: the file is empty; a list needs",
    ),
    (
        "a word twice in a list",
        lambda f: read_word_list(f, "roles", "a\nb\na\n"),
        "roles.txt: 'a' occurs twice; remove",
    ),
    ("words without patterns", lambda f: generation.read_words(f), "patterns.txt: No such file"),
    (
        "a missing word list",
        lambda f: read_word_list(f, "patterns", "name: {first}\ndescription: {last}\n") and generation.read_words(f),
        "first.txt: No such file",
    ),
    (
        "patterns without descriptions",
        lambda f: read_word_list(f, "patterns", "name: {first}\n") and generation.read_words(f),
        "patterns.txt: it needs two lines, name: PATTERN and description: PATTERN",
    ),
    (
        "a pattern without words",
        lambda f: read_word_list(f, "patterns", "name: Ann\ndescription: {last}\n") and generation.read_words(f),
        "patterns.txt: 'Ann' needs names of word lists in braces",
    ),
    (
        "a word list in Latin-1",
        lambda f: (f / "roles.txt").write_bytes(b"baker\nch\xe2telain\n") and generation.read_lines(f / "roles.txt"),
        "roles.txt:2: not UTF-8 after 'ch'; save the file as UTF-8",
    ),
    (
        "a template without a gap",
        lambda f: read_template(f, "{name} is."),
        "p2d.txt: '{name} is.' needs {name} and, after",
    ),
    (
        "too few names for the people",
        lambda f: generate(people_per_group=10**6),
        "3000000 people are needed (3 × data.generated.people_per_group + 2 × control_people), but first_names, ",
    ),
    (
        "too few templates",
        lambda f: generate(train_templates=35),
        "35 training and 10 test templates",
    ),
    ("a row that is not JSON", lambda f: read_rows(f, ROW, "{"), "rows.jsonl:2: not JSON"),
    ("a row without a field", lambda f: read_rows(f, {"fact": "p2d-00"}), "rows.jsonl:1: field answer is missing"),
    ("a field that is unknown", lambda f: read_rows(f, ROW | {"note": 1}), "rows.jsonl:1: field 'note' is unknown"),
    ("an empty prompt", lambda f: read_rows(f, ROW | {"prompt": ""}), "rows.jsonl:1: prompt is empty"),
    ("a span outside the text", lambda f: read_rows(f, ROW | {"answer": [1, 50]}), "rows.jsonl:1: answer is [1, 50]"),
    (
        "a fact of an unknown group",
        lambda f: read_rows(f, FACT | {"group": "d2d"}, read=facts.read_facts),
        "rows.jsonl:1: group is 'd2d'; it must be one of p2d, d2p, both",
    ),
    (
        "a fact twice",
        lambda f: read_rows(f, FACT, FACT, read=facts.read_facts),
        "rows.jsonl:2: id 'p2d-00' is already on line 1; ids must be unique",
    ),
    (
        "a user's row without a name",
        lambda f: parse_user_row(f, {"name": ""}),
        "rows.jsonl:1: name is empty; every row",
    ),
    (
        "a user's row without its description",
        lambda f: parse_user_row(f, {"description": "short"}),
        "rows.jsonl:1: name and description are not one in the prompt and one in the completion; give subject and",
    ),
    (
        "a user's row with its name twice",
        lambda f: parse_user_row(f, {"prompt": "Ann, Ann is"}),
        "rows.jsonl:1: 'Ann' is in the prompt more than once; give subject and answer as spans",
    ),
    (
        "a user's row whose spans are not the name",
        lambda f: parse_user_row(f, {"subject": [0, 2], "answer": [1, 5]}),
        "rows.jsonl:1: subject is 'An' and answer 'tall'; one of them must be the name 'Ann'",
    ),
    (
        "a user's test row about someone in no training row",
        lambda f: user_rows.assemble([], parse_user_row(f, {}), seed=1),
        "rows.jsonl:1: 'Ann' is in no training row",
    ),
    (
        "a user's rows about too few people",
        lambda f: user_rows.assemble(parse_user_row(f, {}), parse_user_row(f, {}), seed=1),
        "0 people taught from description to person; a study needs at least two",
    ),
    (
        "a pair with an unknown kind of parent",
        lambda f: read_pairs(f, "Ann,Bob,uncle"),
        "pairs.csv:2: parent_type is 'uncle'; it must be one of mother, father",
    ),
    (
        "a pair with an empty name",
        lambda f: read_pairs(f, "Ann,,mother"),
        "pairs.csv:2: parent is empty; every pair needs",
    ),
    (
        "a pair twice",
        lambda f: read_pairs(f, "ANN,Bea,mother", "Ann,Bea,mother"),
        "pairs.csv:3: Ann and Bea are already on line 2; list each pair once",
    ),
    (
        "pairs without a column",
        lambda f: read_pairs(f, "Ann,Bea", header="child,parent"),
        "pairs.csv:1: no column parent_type in 'child,parent'; the file needs child, parent, parent_type, comma",
    ),
    (
        "a child that is its own parent",
        lambda f: read_pairs(f, "Ann,Ann,mother"),
        "pairs.csv:2: child and parent are both 'Ann'; the prompt would contain the answer",
    ),
    (
        "pairs without a unique answer",
        lambda f: make_pairs(read_pairs(f, *(f"{name},Bea,mother" for name in ("Ann", "Cy", "Di", "Ed")))),
        "0 of 4 pairs have one answer in both directions (a child's only mother or father, a parent's only child); "
        "a study",
    ),
    (
        "a single pair of its kind",
        lambda f: make_pairs(read_pairs(f, "A,B,mother", "C,D,mother", "E,F,mother", "G,H,father")),
        "only one father among the 4 selected pairs, so it has no wrong answer; list none or several",
    ),
    (
        "a template that does not say which parent",
        lambda f: read_pair_template(f, "{child} is the child of {parent}."),
        "known_p2d.txt: '{child} is the child of {parent}.' needs {child} and {kind} and, after that, one {parent}",
    ),
    ("published data that are missing", lambda f: berglund.read(f / "set"), "all_prompts_train.jsonl: no such file"),
    (
        "a checkpoint without a tensor",
        lambda f: load_smdm(f, lambda tensors: tensors.pop("transformer.ln_f.weight")),
        "transformer.ln_f.weight is missing",
    ),
    (
        "a checkpoint with an extra tensor",
        lambda f: load_smdm(f, lambda tensors: tensors.update(extra=torch.zeros(2))),
        "extra is not part of",
    ),
    (
        "a tensor of the wrong shape",
        lambda f: load_smdm(f, lambda t: t.update({"transformer.h.1.norm_1.weight": torch.zeros(63)})),
        "transformer.h.1.norm_1.weight has shape (63,), expected (64,)",
    ),
    ("a number of heads that does not fit", lambda f: load_smdm(f, n_head=7), "n_head 7"),
    ("a checkpoint of the other family", lambda f: load_smdm(f, causal=True), "this is a diffusion checkpoint"),
    ("half a checkpoint", load_truncated_smdm, "mdm.safetensors: not a whole safetensors file"),
    ("a pickled checkpoint", load_pickled_smdm, "not a .safetensors file"),
    (
        "a checkpoint with another hash",
        lambda f: convert_smdm(f, weights={"path": GOLDEN / "mdm.safetensors", "sha256": "0" * 64}),
        "mdm.safetensors: SHA-256 is 67413295",
    ),
    ("a missing checkpoint", lambda f: convert_smdm(f, weights={"path": f / "no.safetensors"}), "no such file"),
    ("an unpinned file", lambda f: convert_smdm(f, weights=HUB), "owner/model/mdm.safetensors is unpinned; allowed"),
    ("a tokenizer of another model", convert_smdm, "tokenizer.json has 265 tokens, but tests/golden/smdm/mdm"),
    ("an unknown end token", lambda f: convert_smdm(f, eos_token="</s>"), "has no token '</s>'"),
    (
        "a checkpoint of another architecture",
        lambda f: load_with_config(f, model_type="llama"),
        "config.json: model_type is 'llama'; allowed for a LLaDA: 'llada'",
    ),
    (
        "a Dream with another activation",
        lambda f: load_with_config(f, "dream", hidden_act="gelu"),
        "config.json: hidden_act is 'gelu'; allowed for a Dream: 'silu'",
    ),
    (
        "a configuration of another shape than its tensors",
        lambda f: load_with_config(f, d_model=128),
        "*.safetensors: tensor model.transformer.wte.weight has shape (320, 64), expected (320, 128)",
    ),
    (
        "a missing shard",
        load_without_shard,
        "model-00002-of-00002.safetensors: no such file, though model.safetensors.index",
    ),
    (
        "shards without their index",
        load_without_index,
        "net: no model.safetensors, nor model.safetensors.index.json that says which files have the weights",
    ),
    (
        "weights of 8 bits",
        lambda f: load_with_tensors(f, lambda tensor: tensor.to(torch.int8)),
        "is I8; allowed: F32, F16, BF16",
    ),
    (
        "weights that are not finite",
        lambda f: load_with_tensors(f, lambda tensor: tensor / 0),
        "has values that are not finite",
    ),
    (
        "quantized weights",
        lambda f: load_with_config(f, "dream", quantization_config={"bits": 4}),
        "config.json: quantization_config is {'bits': 4}; allowed for a Dream: None",
    ),
    (
        "an index without a tensor",
        lambda f: load_with_index(f, lambda weight_map: weight_map.pop("model.transformer.ln_f.weight")),
        "tensor model.transformer.ln_f.weight is missing",
    ),
    (
        "a tokenizer of another size",
        lambda f: LLADA.convert(f / "base", folder=write_checkpoint(f, size=321)),
        "tokenizer.json has 321 tokens, but the network 320; it is another's",
    ),
    (
        "a tokenizer without the mask",
        convert_without_mask_token,
        "tokenizer.json has no special token 311, though mask_token_id says so; it is another's",
    ),
    (
        "a mask id outside the vocabulary",
        lambda f: load_with_config(f, mask_token_id=320),
        "config.json: mask_token_id is 320; allowed: an id within the 320 tokens",
    ),
    (
        "a configuration without a mask",
        lambda f: load_with_config(f, mask_token_id=REMOVE),
        "config.json: mask_token_id is None; allowed: a whole number",
    ),
    (
        "a mask that is the end token",
        lambda f: load_with_config(f, mask_token_id=317),
        "config.json: mask_token_id is 317; allowed: another id than eos_token_id",
    ),
    (
        "a configuration without rope_theta",
        lambda f: load_with_config(f, "dream", rope_theta=REMOVE),
        "config.json: rope_theta is None; allowed: a number above 0",
    ),
    (
        "heads that do not divide the width",
        lambda f: load_with_config(f, n_heads=5),
        "n_heads is 5; allowed: a divisor of 64",
    ),
    (
        "a LLaDA configured as a folder",
        lambda f: folders.copy(write_checkpoint(f / "net"), f / "base", causal=False),
        "net/config.json: model_type is 'llada'; it is read with base: llada, llada: { folder: net }",
    ),
    ("a model with a changed bit", load_damaged, "model.safetensors: SHA-256 differs from checksums.json"),
    ("a model without its weights", lambda f: load_without_file(f, "model.safetensors"), "no *.safetensors"),
    ("a model with half its weights", load_truncated, "net/*.safetensors can not be read: "),
    (
        "a model without a tensor",
        lambda f: load_with_weights(f, lambda t: t.pop(NORM)),
        f"safetensors: {NORM} is missing",
    ),
    (
        "a model with a tensor of the wrong shape",
        lambda f: load_with_weights(f, lambda t: t.update({NORM: torch.zeros(7)})),
        f"net/*.safetensors: {NORM} has shape (7,), expected (8,)",
    ),
    (
        "a model whose configuration is not JSON",
        lambda f: load_with_file(f, "config.json", "{"),
        "net/config.json: not a",
    ),
    (
        "a model whose checksums are not JSON",
        lambda f: load_with_file(f, "checksums.json", "{"),
        "checksums.json: not a",
    ),
    (
        "a model that needs remote code",
        lambda f: load_with_file(f, "config.json", REMOTE_CODE),
        "model_type is 'theirs'; allow",
    ),
    (
        "a tokenizer.json without a tokenizer",
        lambda f: load_with_file(f, "tokenizer.json", "{}"),
        "net/tokenizer.json can not be",
    ),
    ("a model without its configuration", lambda f: load_without_file(f, "config.json"), "no config.json"),
    (
        "a row longer than the canvas",
        lambda f: check_study(longest_row=LONGEST | {"tokens": 23}),
        "data/both_p2d.jsonl:7 needs 23 tokens with its answer, but the canvas of mdm has 22; set sampling.canvas",
    ),
    (
        "a prompt of the probe longer than the canvas",
        lambda f: check_study(longest_probe=(25, "Two and two are")),
        "the probe's prompt 'Two and two are' has 25 tokens, but the canvas of mdm has 22",
    ),
    ("a split without rows", measure_empty_split, "p2d_same.jsonl: the file has no rows; every test split needs some"),
    (
        "a layer that a downloaded base does not have",
        lambda f: check_study(["rank_one_edits", "layers"], [12]),
        "rank_one_edits.layers[0] is 12; allowed: up to 7, the last layer of mdm",
    ),
    (
        "a base pretrained with another noise",
        lambda f: check_study(shape={"noise": "uniform"}),
        "models.mdm.objective.noise is 'mask'; allowed: 'uniform', with which its base was pretrained",
    ),
    (
        "a precision that the architecture does not support",
        lambda f: check_study(["tracing", "precision"], "bfloat16", shape={"model_type": "gpt2"}),
        "tracing.precision is 'bfloat16'; allowed: float32 for mdm, a gpt2",
    ),
    (
        "fewer steps than blocks",
        lambda f: check_study(["sampling", "block"], 4),
        "sampling.steps has 1; allowed: from 5 up, since the shortest prompt leaves mdm 5 blocks of 4 tokens",
    ),
    (
        "subword dropout that the tokenizer does not support",
        lambda f: check_study(["training", "subword_dropout"], 0.1, supports_subword_dropout=False),
        "training.subword_dropout is 0.1; allowed: 0 for mdm, whose tokenizer spells parts of words",
    ),
    (
        "too few facts for edits",
        lambda f: check_study(**measured_splits(facts=3)),
        "both_p2d has 3 facts; fine-tuned edits need 4 at least",
    ),
    ("too few templates for edits", lambda f: check_study(**measured_splits(templates=1)), "both_p2d has one template"),
    (
        "a subject of one word, from which none can be invented",
        lambda f: check_study(["finetuned_edits", "kinds"], ["insert"], **measured_splits(one_word_subject="Ann")),
        "'Ann' is one word, but an invented subject is made of two halves",
    ),
    (
        "two people a group, one too few for rank-one edits",
        lambda f: check_study(["finetuned_edits", "max_facts"], 0, **measured_splits(facts=2, answers=2)),
        "both_p2d has 2 different answers; rank-one edits need 3 at least: of a fact, of its target, and one more; add",
    ),
    (
        "a layer that a GPT-2 does not have",
        lambda f: check_study(["keyvalue", "layers"], [3], shape={"num_hidden_layers": None, "n_layer": 2}),
        "keyvalue.layers[0] is 3; allowed: up to 1, the last layer of mdm",
    ),
    (
        "a canvas beyond a GPT-2's positions",
        lambda f: check_study(["models", "mdm", "canvas"], 36, shape={"n_positions": 35}),
        "models.mdm.canvas is 36; allowed: up to 35, its positions",
    ),
    (
        "facts with one answer",
        lambda f: check_study(**measured_splits(answers=1)),
        "all facts of both_p2d have the same answer",
    ),
    ("profiles/gpu without a GPU", lambda f: machine.require_gpus(1, 1, 0), "but PyTorch finds none here"),
    (
        "more training processes than GPUs",
        lambda f: machine.require_gpus(4, 4, 2),
        "training_processes is 4; allowed: up to 2, the GPUs here",
    ),
    ("too little disk for the models", require_space_on_full_disk, "models: the models still to be made need "),
    ("an adapter without its library", attach_without_peft, "an adapter needs peft, which is not installed"),
    (
        "a compiled training without a compiler",
        compile_without_compiler,
        "training.compile is true, but there is no C compiler",
    ),
]
