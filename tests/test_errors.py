"""Wrong data, models and machines: each gives one line that says what is wrong, where, and what to do."""

import json
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import yaml
from input_fixtures import ROOT, write_checkpoint
from safetensors.torch import load_file, save_file
from snakemake.utils import update_config

from reversal.common.errors import UserError
from reversal.data import berglund, facts, generated, pairs
from reversal.data import rows as user_rows
from reversal.models import folders, layouts, network, smdm, tokens
from reversal.study import machine, preflight
from reversal.training import adapters, loop

GOLDEN = ROOT / "tests/golden/smdm/mdm.safetensors"


@contextmanager
def one_line_error(*parts):
    """A context in which a user's error is raised, in one line that has these parts."""
    with pytest.raises(UserError) as error:
        yield
    line = str(error.value)
    assert "\n" not in line and all(part in line for part in parts), line


@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, "patterns.txt: No such file"),
        ({"patterns": "name: {first}\ndescription: {last}\n"}, "first.txt: No such file"),
        ({"patterns": "name: {first}\n"}, "patterns.txt: it needs two lines"),
        ({"patterns": "name: Ann\ndescription: {last}\n"}, "'Ann' needs names of word lists in braces"),
        ({"patterns": "name: {a}\ndescription: {a}\n", "a": "\n"}, "a.txt: the file is empty"),
        ({"patterns": "name: {a}\ndescription: {a}\n", "a": "x\ny\nx\n"}, "a.txt: 'x' occurs twice"),
        ({"patterns": "name: {a}\ndescription: {a}\n", "a": "baker\nch\xe2telain\n"}, "a.txt:2: not UTF-8 after 'ch'"),
    ],
)
def test_word_lists(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / f"{name}.txt").write_text(content, encoding="latin-1")
    with one_line_error(expected):
        generated.read_words(tmp_path)


def test_a_template_of_pairs_that_does_not_say_which_parent(tmp_path):
    (tmp_path / "p2d.txt").write_text("{child} is the child of {parent}.\n")
    with one_line_error("p2d.txt: '{child} is the child of {parent}.' needs {child} and {kind}"):
        pairs.read_templates(tmp_path / "p2d.txt", "description")


@pytest.mark.parametrize(
    "change, expected",
    [({"people_per_group": 10**6}, "3000000 people are needed"), ({"train_templates": 35}, "35 training and 10 test")],
)
def test_more_people_or_templates_than_there_are(change, expected):
    sizes = {"people_per_group": 30, "train_templates": 30, "test_templates": 10} | change
    with one_line_error(expected):
        generated.make(words=ROOT / "data/words", templates=ROOT / "data/templates", seed=1, **sizes)


ROW = {"fact": "p2d-00", "template": 1, "prompt": "Ann is", "completion": " tall.", "subject": [0, 3], "answer": [1, 5]}
FACT = {"id": "p2d-00", "group": "p2d", "name": "Ann", "description": "tall", "trained_as": [], "tested_as": ["tall"]}
USER_ROW = {"prompt": "Ann is", "completion": " tall.", "name": "Ann", "description": "tall"}


@pytest.mark.parametrize(
    "read, lines, place, expected",
    [
        (facts.read, [{"fact": "p2d-00"}], "rows.jsonl:1", "answer is missing"),
        (facts.read, [ROW | {"note": 1}], "rows.jsonl:1", "'note' is unknown"),
        (facts.read, [ROW, ""], "rows.jsonl:2", "not JSON"),
        (facts.read, [ROW, "[" * 100_000], "rows.jsonl:2", "not JSON"),
        (facts.read, [ROW, "[1, 2]"], "rows.jsonl:2", "not a JSON object"),
        (facts.read, [ROW | {"prompt": " \n"}], "rows.jsonl:1", "prompt is empty"),
        (facts.read, [ROW | {"prompt": 7}], "rows.jsonl:1", "prompt is 7; it must be text"),
        (facts.read, [ROW | {"prompt": "\ud800"}], "rows.jsonl:1", "surrogates not allowed"),
        (facts.read, [ROW | {"completion": "tall."}], "rows.jsonl:1", "it must start with a space"),
        (facts.read, [ROW | {"template": True}], "rows.jsonl:1", "template is True"),
        (facts.read, [ROW | {"template": -1}], "rows.jsonl:1", "template is -1"),
        (facts.read, [ROW | {"subject": [4]}], "rows.jsonl:1", "subject is (4,)"),
        (facts.read, [ROW | {"subject": "0, 3"}], "rows.jsonl:1", "subject is '0, 3'"),
        (facts.read, [ROW | {"subject": [3, 3]}], "rows.jsonl:1", "subject is [3, 3]"),
        (facts.read, [ROW | {"answer": [0, 99]}], "rows.jsonl:1", "within the 6 characters of the completion"),
        (facts.read_facts, [FACT | {"name": ""}], "rows.jsonl:1", "name is empty"),
        (facts.read_facts, [FACT | {"trained_as": "tall"}], "rows.jsonl:1", "it must be a list of texts"),
        (facts.read_facts, [FACT | {"tested_as": ["tall", 3]}], "rows.jsonl:1", "tested_as[1] is 3"),
        (facts.read_facts, [FACT | {"group": "d2d"}], "rows.jsonl:1", "one of p2d, d2p, both"),
        (facts.read_facts, [FACT, FACT], "rows.jsonl:2", "already on line 1"),
        (user_rows.parse_file, [USER_ROW | {"name": ""}], "rows.jsonl:1", "name is empty"),
        (user_rows.parse_file, [USER_ROW | {"description": "short"}], "rows.jsonl:1", "give subject and"),
        (user_rows.parse_file, [USER_ROW | {"prompt": "Ann, Ann is"}], "rows.jsonl:1", "more than once"),
        (user_rows.parse_file, [USER_ROW | {"subject": [0, 2], "answer": [1, 5]}], "rows.jsonl:1", "the name 'Ann'"),
    ],
)
def test_rows(tmp_path, read, lines, place, expected):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    with one_line_error(place, expected):
        read(file)


@pytest.mark.parametrize("trained, expected", [(0, "is in no training row"), (1, "a study needs at least two")])
def test_rows_about_too_few_people(tmp_path, trained, expected):
    (tmp_path / "rows.jsonl").write_text(json.dumps(USER_ROW))
    rows = user_rows.parse_file(tmp_path / "rows.jsonl")
    with one_line_error(expected):
        user_rows.assemble(rows * trained, rows, seed=1)


@pytest.mark.parametrize(
    "lines, expected",
    [
        (["child,parent", "Ann,Bea"], "pairs.csv:1: no column parent_type"),
        (["Ann,Bob,uncle"], "pairs.csv:2: parent_type is 'uncle'"),
        (["Ann,,mother"], "pairs.csv:2: parent is empty"),
        (["ANN,Bea,mother", "Ann,Bea,mother"], "pairs.csv:3: Ann and Bea are already on line 2"),
        (["Ann,Ann,mother"], "pairs.csv:2: child and parent are both 'Ann'"),
        (["A,X,mother", "B,X,mother", "C,X,mother", "D,X,mother"], "0 of 4 pairs have one answer in both directions"),
        (["A,B,mother", "C,D,mother", "E,F,mother", "G,H,father"], "only one father"),
    ],
)
def test_pairs(tmp_path, lines, expected):
    header = [] if lines[0].startswith("child") else ["child,parent,parent_type"]
    (tmp_path / "pairs.csv").write_text("\n".join([*header, *lines]) + "\n")
    with one_line_error(expected):
        pairs.make(pairs.read(tmp_path / "pairs.csv"), templates=ROOT / "data/templates", max_pairs=None, seed=1)


def test_published_data_that_are_missing(tmp_path):
    with one_line_error("all_prompts_train.jsonl: no such file"):
        berglund.read(tmp_path)


NORM = "transformer.h.1.norm_1.weight"


@pytest.mark.parametrize(
    "change, options, expected",
    [
        (lambda tensors: tensors.pop(NORM), {}, f"{NORM} is missing"),
        (lambda tensors: tensors.update(extra=torch.zeros(2)), {}, "extra is not part of"),
        (lambda tensors: tensors.update({NORM: torch.zeros(63)}), {}, "has shape (63,), expected (64,)"),
        (lambda tensors: None, {"n_head": 7}, "n_head 7"),
        (lambda tensors: None, {"causal": True}, "this is a diffusion checkpoint"),
    ],
)
def test_checkpoints_of_smdm(tmp_path, change, options, expected):
    tensors = load_file(GOLDEN)
    change(tensors)
    save_file(tensors, tmp_path / "mdm.safetensors")
    with one_line_error(expected):
        smdm.load(
            tmp_path / "mdm.safetensors", {"n_head": options.get("n_head", 4)}, causal=options.get("causal", False)
        )


@pytest.mark.parametrize(
    "name, content, expected",
    [("mdm.safetensors", GOLDEN.read_bytes()[:9999], "not a whole"), ("mdm.pth", b"\x80\x04.", "not a .safetensors")],
)
def test_files_that_are_no_checkpoint(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    with one_line_error(name, expected):
        smdm.load(tmp_path / name, {"n_head": 4}, causal=False)


HUB = {"repo": "owner/model", "revision": "unpinned", "file": "mdm.safetensors", "sha256": "unpinned"}


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"weights": {"path": GOLDEN, "sha256": "0" * 64}}, "mdm.safetensors: SHA-256 is 67413295"),
        ({"weights": {"path": "no.safetensors"}}, "no such file"),
        ({"weights": HUB}, "owner/model/mdm.safetensors is unpinned"),
        ({}, "tokenizer.json has 265 tokens"),
        ({"eos_token": "</s>"}, "has no token '</s>'"),
    ],
)
def test_sources_of_a_checkpoint_of_smdm(tmp_path, change, expected):
    tokens.train_tokenizer(["a few words"], 300).save_pretrained(tmp_path)
    source = {"weights": {"path": GOLDEN}, "tokenizer": {"path": tmp_path / "tokenizer.json"}, "eos_token": tokens.EOS}
    with one_line_error(expected):
        smdm.convert(tmp_path / "base", causal=False, n_head=4, **source | change)


@pytest.mark.parametrize(
    "name, change, expected",
    [
        ("llada", {"model_type": "llama"}, "model_type is 'llama'; allowed for a checkpoint: llada, Dream"),
        ("llada", {"d_model": 128}, "has shape (320, 64), expected (320, 128)"),
        ("llada", {"mask_token_id": 320}, "mask_token_id is 320"),
        ("llada", {"mask_token_id": None}, "mask_token_id is None"),
        ("llada", {"mask_token_id": 317}, "another than eos_token_id"),
        ("llada", {"n_heads": 5}, "n_heads is 5; allowed: a divisor of 64"),
        ("dream", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; allowed for a Dream: 'silu'"),
        ("dream", {"rope_theta": None}, "rope_theta is None"),
        ("dream", {"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
    ],
)
def test_configurations_of_other_architectures(tmp_path, name, change, expected):
    with one_line_error(expected):
        layouts.load(write_checkpoint(tmp_path, name, **change))


def change_tensors(change):
    """A function that changes the tensors of a file."""
    return lambda file: save_file({name: change(tensor) for name, tensor in load_file(file).items()}, file)


def forget_tensor(file):
    index = json.loads(file.read_text())
    del index["weight_map"]["model.transformer.ln_f.weight"]
    file.write_text(json.dumps(index))


SHARD, INDEX = "model-00002-of-00002.safetensors", "model.safetensors.index.json"


@pytest.mark.parametrize(
    "file, change, expected",
    [
        (SHARD, lambda file: file.unlink(), f"{SHARD}: no such file"),
        (SHARD, change_tensors(lambda tensor: tensor.to(torch.int8)), "is I8; allowed: F32, F16, BF16"),
        (SHARD, change_tensors(lambda tensor: tensor / 0), "has values that are not finite"),
        (INDEX, lambda file: file.unlink(), f"no model.safetensors, nor {INDEX}"),
        (INDEX, forget_tensor, "tensor model.transformer.ln_f.weight is missing"),
    ],
)
def test_shards(tmp_path, file, change, expected):
    change(write_checkpoint(tmp_path) / file)
    with one_line_error(expected):
        layouts.load(tmp_path)


@pytest.mark.parametrize(
    "size, change, expected",
    [(321, {}, "tokenizer.json has 321 tokens"), (311, {"eos_token_id": 0}, "has no special token 311")],
)
def test_tokenizers_of_other_networks(tmp_path, size, change, expected):
    with one_line_error(expected):
        layouts.convert(tmp_path / "base", folder=write_checkpoint(tmp_path, size=size, **change))


def test_a_published_checkpoint_configured_as_a_folder(tmp_path):
    with one_line_error("config.json: model_type is 'llada'; it is read with base: checkpoint"):
        folders.copy(write_checkpoint(tmp_path / "net"), tmp_path / "base", causal=False)


def flip_last_bit(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


REMOTE_CODE = json.dumps({"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}})
NORM_OF_OURS = "model.norm.weight"


def replace_norm(*tensors):
    """A function that replaces a tensor of a file, or removes it if no tensor is given."""

    def change(file):
        others = {name: tensor for name, tensor in load_file(file).items() if name != NORM_OF_OURS}
        save_file(others | dict(zip([NORM_OF_OURS], tensors, strict=False)), file)

    return change


@pytest.mark.parametrize(
    "file, checked, change, expected",
    [
        ("model.safetensors", True, flip_last_bit, "SHA-256 differs from checksums.json"),
        ("model.safetensors", True, lambda file: file.unlink(), "no *.safetensors"),
        ("model.safetensors", False, lambda file: file.write_bytes(file.read_bytes()[:-100]), "can not be read"),
        ("model.safetensors", False, replace_norm(), f"{NORM_OF_OURS} is missing"),
        ("model.safetensors", False, replace_norm(torch.zeros(7)), "has shape (7,), expected (8,)"),
        ("config.json", True, lambda file: file.unlink(), "no config.json"),
        ("config.json", False, lambda file: file.write_text("{"), "config.json: not a"),
        ("config.json", False, lambda file: file.write_text(REMOTE_CODE), "model_type is 'theirs'"),
        ("checksums.json", True, lambda file: file.write_text("{"), "checksums.json: not a"),
        ("tokenizer.json", False, lambda file: file.write_text("{}"), "tokenizer.json can not be"),
    ],
)
def test_models_of_ours(tmp_path, file, checked, change, expected):
    net = network.new(causal=True, vocab=10, width=8, layers=1, heads=2, mlp=8, eos=0, seed=0)
    network.save(net, None, tmp_path)
    if not checked:
        (tmp_path / "checksums.json").unlink()
    change(tmp_path / file)
    with one_line_error(expected):
        network.load(tmp_path)


SPLIT = {"facts": 30, "templates": 10, "answers": 30, "one_word_subject": None}
LONGEST = {"tokens": 20, "file": "data/both_p2d.jsonl", "line": 7}
MEASURED = {
    "longest_row": LONGEST,
    "shortest_prompt": 4,
    "supports_subword_dropout": True,
}


@pytest.mark.parametrize(
    "overlay, measured, shape, expected",
    [
        ("", {"longest_row": LONGEST | {"tokens": 23}}, {}, "both_p2d.jsonl:7 needs 23 tokens"),
        ("rank_one_edits: {layers: [12]}", {}, {}, "rank_one_edits.layers[0] is 12; allowed: up to 7"),
        ("", {}, {"noise": "uniform"}, "models.mdm.objective.noise is 'mask'; allowed: 'uniform'"),
        ("tracing: {precision: bfloat16}", {}, {"model_type": "gpt2"}, "tracing.precision is 'bfloat16'"),
        ("sampling: {block: 4}", {}, {}, "sampling.steps has 1; allowed: from 5 up"),
        ("training: {subword_dropout: 0.1}", {"supports_subword_dropout": False}, {}, "subword_dropout is 0.1"),
        ("", {"both_p2d": SPLIT | {"facts": 3}}, {}, "both_p2d has 3 facts; fine-tuned edits need 4"),
        ("", {"both_p2d": SPLIT | {"templates": 1}}, {}, "both_p2d has one template"),
        ("", {"both_p2d": SPLIT | {"answers": 1}}, {}, "all facts of both_p2d have the same answer"),
        (
            "finetuned_edits: {max_facts: 0}",
            {"both_p2d": SPLIT | {"facts": 2, "answers": 2}},
            {},
            "has 2 different",
        ),
        (
            "finetuned_edits: {kinds: [insert]}",
            {"both_p2d": SPLIT | {"one_word_subject": "Ann"}},
            {},
            "is one word",
        ),
        ("keyvalue: {layers: [3]}", {}, {"num_hidden_layers": None, "n_layer": 2}, "keyvalue.layers[0] is 3"),
        ("models: {mdm: {canvas: 36}}", {}, {"n_positions": 35}, "models.mdm.canvas is 36; allowed: up to 35"),
    ],
)
def test_studies_that_their_rows_or_a_base_rule_out(tmp_path, overlay, measured, shape, expected):
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    update_config(config, yaml.safe_load(overlay) or {})
    shape = {"num_hidden_layers": 8, "model_type": "llama"} | shape
    (tmp_path / "config.json").write_text(json.dumps(shape))
    splits = {split: measured.get(split, SPLIT) for split in facts.SPLITS}
    with one_line_error(expected):
        preflight.require_feasible(MEASURED | {"splits": splits} | measured, config, "mdm", tmp_path)


def test_a_split_without_rows(tmp_path):
    tokens.train_tokenizer(["a few words"], 300).save_pretrained(tmp_path)
    (tmp_path / "p2d_same.jsonl").write_text("")
    with one_line_error("p2d_same.jsonl: the file has no rows"):
        preflight.measure_rows(tmp_path / "tokenizer.json", [tmp_path / "p2d_same.jsonl"])


@pytest.mark.parametrize(
    "requested, expected",
    [((1, 1, 0), "PyTorch finds none here"), ((4, 4, 2), "training_processes is 4; allowed: up to 2, the GPUs here")],
)
def test_too_few_gpus(requested, expected):
    with one_line_error(expected):
        machine.require_gpus(*requested)


def test_too_little_disk_space(tmp_path):
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=2**20)), one_line_error("still to be made need"):
        machine.require_disk_space(config, tmp_path / "models")


def test_an_adapter_without_its_library():
    with mock.patch.dict("sys.modules", peft=None), one_line_error("an adapter needs peft"):
        adapters.attach(None, rank=8, alpha=16, seed=0)


def test_a_compiled_training_without_a_compiler():
    with mock.patch("shutil.which", return_value=None), one_line_error("there is no C compiler"):
        loop._compile_blocks(None, enabled=True).__enter__()
