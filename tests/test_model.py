import contextlib
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from reversal.models import folders, network

SHAPE = {"vocab": 50, "width": 32, "layers": 2, "heads": 2, "mlp": 64, "eos": 0, "seed": 0}


@pytest.fixture(params=[True, False], ids=["autoregressive", "diffusion"])
def net(request):
    return network.new(causal=request.param, **SHAPE)


def test_a_later_token_changes_earlier_states_only_without_a_causal_mask():
    ids = torch.tensor([[3, 4, 5, 6]])
    changed = torch.tensor([[3, 4, 5, 9]])
    for causal in (True, False):
        net = network.new(causal=causal, **SHAPE)
        same = torch.allclose(network.hidden(net, ids)[:, :3], network.hidden(net, changed)[:, :3], atol=1e-6)
        assert same is causal


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_every_attention_implementation_is_bidirectional(implementation):
    net = network.new(causal=False, **SHAPE)
    ids = torch.tensor([[3, 4, 5, 6]])
    expected = network.hidden(net, ids)
    net.set_attn_implementation(implementation)
    torch.testing.assert_close(network.hidden(net, ids), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(network.hidden(net, torch.tensor([[3, 4, 5, 9]]))[:, 0], expected[:, 0])


def test_the_mask_is_embedded_and_never_predicted():
    net = network.new(causal=False, **SHAPE)
    states = network.hidden(net, torch.tensor([[network.mask_id(net), 1]]))
    assert network.mask_id(net) == network.vocab(net) == 50
    assert network.logits(net, states).shape == (1, 2, 50)


def test_logits_are_those_of_transformers(net):
    ids = torch.tensor([[3, 4, 5]])
    expected = net(input_ids=ids).logits[..., :50]
    torch.testing.assert_close(network.logits(net, network.hidden(net, ids)), expected)


def test_a_saved_network_loads_as_it_was(net, tokenizer, tmp_path):
    network.save(net, tokenizer, tmp_path / "net")
    again, reader = network.load(tmp_path / "net", device="cpu")
    ids = torch.tensor([[3, 4, 5]])
    assert torch.equal(network.hidden(net, ids), network.hidden(again, ids))
    assert network.is_diffusion(again) == network.is_diffusion(net)
    assert reader("Ada is")["input_ids"] == tokenizer("Ada is")["input_ids"]


def test_transformers_opens_what_we_save(net, tokenizer, tmp_path):
    network.save(net, tokenizer, tmp_path / "net")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "net")
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(theirs(input_ids=ids).logits, net(input_ids=ids).logits)


def test_rounded_tables_survive_saving(tmp_path):
    net = network.new(causal=False, rounded_rope=True, **SHAPE)
    plain = network.new(causal=False, **SHAPE)
    ids = torch.arange(20)[None]
    assert not torch.equal(network.hidden(net, ids), network.hidden(plain, ids))
    network.save(net, None, tmp_path / "net")
    assert torch.equal(network.hidden(network.load(tmp_path / "net", device="cpu")[0], ids), network.hidden(net, ids))


def test_the_same_seed_gives_the_same_weights_and_leaves_other_randomness_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (network.new(causal=True, **SHAPE) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_missing_file_is_named(net, tmp_path):
    network.save(net, None, tmp_path / "net")
    (tmp_path / "net/generation_config.json").unlink()
    with pytest.raises(network.ModelError, match=r"generation_config\.json: missing"):
        network.load(tmp_path / "net")


def test_a_pickled_model_is_never_loaded(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(network.ModelError, match="never loaded"):
        network.load(tmp_path)


def test_code_of_a_checkpoint_is_never_run(net, tmp_path, monkeypatch):
    """transformers would ask on the terminal whether to run it."""
    network.save(net, None, tmp_path / "net")
    config = json.loads((tmp_path / "net/config.json").read_text())
    code = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
    code += "from transformers import LlamaConfig as Config, LlamaForCausalLM as Net\n"
    (tmp_path / "net/theirs.py").write_text(code)
    code_map = {"auto_map": {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Net"}}
    (tmp_path / "net/checksums.json").unlink()
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for kind in ("theirs", "llama"):  # unknown to transformers, and known
        (tmp_path / "net/config.json").write_text(json.dumps({**config, **code_map, "model_type": kind}))
        with contextlib.suppress(network.ModelError):
            loaded, _ = network.load(tmp_path / "net", device="cpu")
            assert type(loaded).__module__.startswith("transformers.")
    assert not list(tmp_path.rglob("ran")) and type(loaded) is type(net)


def test_a_failed_save_leaves_the_old_model(net, tmp_path, monkeypatch):
    network.save(net, None, tmp_path / "net")
    before = folders.checksums(tmp_path / "net")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(net), "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        network.save(net, None, tmp_path / "net")
    assert folders.checksums(tmp_path / "net") == before
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_modules_are_found_in_another_architecture():
    net = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=3, n_head=2, vocab_size=40)).eval()
    assert len(network.layers(net)) == 3
    block = network.layers(net)[0]
    assert network.down_projection(block) is block.mlp.c_proj
    assert network.attention(block) is block.attn
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(network.logits(net, network.hidden(net, ids)), net(input_ids=ids).logits)
