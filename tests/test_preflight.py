"""Preflight checks: what later stages could not do with the rows, a base or the machine is found before training."""

import json
import subprocess
import sys

import pytest
import torch
import yaml
from input_fixtures import change_key

from reversal.data import facts
from reversal.models import network, tokens
from reversal.study import machine, preflight
from reversal.study.resolve import resolve_models
from reversal.tracing import llama


@pytest.fixture(scope="module")
def config(root):
    return yaml.safe_load((root / "config.yaml").read_text())


@pytest.fixture(scope="module")
def measured(generated, tokenizer, tmp_path_factory):
    """The default study's splits on disk: the rows by file, and what is measured of them."""
    folder = tmp_path_factory.mktemp("measured")
    tokenizer.save_pretrained(folder)
    for split, rows in generated[2].items():
        facts.write(rows, folder / f"{split}.jsonl")
    files = [folder / f"{split}.jsonl" for split in generated[2]]
    return {str(file): generated[2][file.stem] for file in files}, preflight.measure_rows(
        folder / "tokenizer.json", files
    )


def test_the_longest_row_and_the_shortest_prompt_are_those_of_the_rows_in_tokens(measured, tokenizer):
    rows, found = measured
    examples = {
        (file, line): tokens.encode(tokenizer, facts.add_full_stop(row))
        for file, own in rows.items()
        for line, row in enumerate(own, 1)
    }
    most = max(len(example.ids) for example in examples.values())
    longest = found["longest_row"]
    assert longest["tokens"] == most == len(examples[longest["file"], longest["line"]].ids)
    assert found["shortest_prompt"] == min(example.prompt for example in examples.values())
    assert found == json.loads(json.dumps(found)) and tuple(found) == preflight.FIELDS


def test_facts_templates_and_answers_are_counted_by_split(measured, generated):
    counts = measured[1]["splits"]["p2d_same"]
    assert counts == {"facts": 30, "templates": 10, "answers": 30, "one_word_subject": None}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_reduced_precision_is_rejected_without_the_fast_engine(kind, config, tmp_path):
    """By the name in config.json, as the engine decides by the network's class."""
    network.save(
        network.new(causal=True, vocab=10, width=8, layers=1, heads=2, mlp=8, eos=0, seed=0), None, tmp_path / "net"
    )
    assert llama.is_supported(network.load(tmp_path / "net")[0])
    shape = json.loads((tmp_path / "net/config.json").read_text()) | {"model_type": kind}
    config = change_key(config, ["tracing", "precision"], "bfloat16")
    model = resolve_models(config)["ar"]
    errors = list(preflight._find_base_errors(shape | {"num_hidden_layers": 8}, config, "ar", model))
    assert bool(errors) == (kind == "gpt2")


def test_the_disk_space_that_models_need_is_that_of_their_weights(config, tmp_path):
    """Of networks made here by their shape, of others by what is in their files."""
    shape = config["network"]
    net = network.new(
        causal=True,
        vocab=shape["vocabulary"],
        eos=0,
        seed=0,
        **{k: shape[k] for k in ("width", "layers", "heads", "mlp")},
    )
    weights = 4 * sum(parameter.numel() for parameter in net.parameters())
    own = config | {"models": {"ar": {"family": "autoregressive", "base": "scratch"}}, "seeds": [1, 2]}
    needed = machine.count_missing_bytes(own, tmp_path)
    assert needed == pytest.approx(weights * (1 + 2 + 6), rel=0.01)
    network.save(net, None, tmp_path / "ar/base")
    assert machine.count_missing_bytes(own, tmp_path) == weights * (2 + 6)
    (tmp_path / "ar/seed_1").mkdir()
    assert machine.count_missing_bytes(own, tmp_path) == weights * (1 + 6)
    (tmp_path / "ar/seed_2").mkdir()
    assert machine.count_missing_bytes(own, tmp_path) == 0


def test_16_bits_stay_16_bits_where_an_adapter_is_trained(config, tmp_path):
    net = network.new(causal=True, vocab=10, width=8, layers=1, heads=2, mlp=8, eos=0, seed=0).to(torch.bfloat16)
    numbers = sum(parameter.numel() for parameter in net.parameters())
    network.save(net, None, tmp_path / "mine")
    own = config | {"models": {"ar": {"family": "autoregressive", "base": "folder", "folder": str(tmp_path / "mine")}}}
    assert machine.count_missing_bytes(own, tmp_path) == numbers * (2 + 4 + 6 * 4)
    adapted = own | {"training": own["training"] | {"adapter": {"rank": 1, "alpha": 1}}}
    assert machine.count_missing_bytes(adapted, tmp_path) == numbers * (2 + 2)
    assert machine.count_missing_bytes(own | {"training": "none"}, tmp_path) == numbers * 2


def test_preflight_needs_no_jsonschema(root):
    code = "import sys; sys.modules['jsonschema'] = None; import reversal.study.preflight"
    subprocess.run([sys.executable, "-c", code], cwd=root / "workflow", check=True)
