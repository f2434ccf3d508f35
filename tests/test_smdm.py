import json
import math
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.shapes import SMDM_1028M
from reversal.models import network, smdm

GOLDEN = Path(__file__).parent / "golden/smdm"
CONFIG = json.loads((GOLDEN / "config.json").read_text())
FAMILIES = [("mdm", False), ("ar", True)]


@pytest.mark.parametrize("name, causal", FAMILIES)
def test_logits_match_the_reference(name, causal):
    recorded = load_file(GOLDEN / "logits.safetensors")
    net = smdm.load(GOLDEN / f"{name}.safetensors", CONFIG, causal=causal)
    with torch.no_grad():
        logits = net(input_ids=recorded[f"{name}_input"]).logits[..., : CONFIG["vocab_size"]]
    torch.testing.assert_close(logits, recorded[f"{name}_logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name, causal", FAMILIES)
def test_the_shape_is_read_from_the_tensors(name, causal):
    net = smdm.load(GOLDEN / f"{name}.safetensors", {"n_head": 4}, causal=causal)
    assert (net.config.num_hidden_layers, net.config.hidden_size, net.config.intermediate_size) == (3, 64, 160)
    assert network.vocab(net) == 320 and network.is_diffusion(net) is not causal


PEAK = """
import resource, sys, torch
from reversal.models import smdm
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
smdm.load(sys.argv[1], {"n_head": 4}, causal=False)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_SELF") or sys.platform != "linux", reason="measures memory on Linux")
def test_loading_makes_no_second_copy_of_the_weights(tmp_path, root):
    """200 MB of weights may take their own size, the file's cached pages and one tensor more."""
    width, inner, layers, vocab = 512, 2048, 10, 4000
    big = {
        name: torch.zeros(shape, dtype=torch.float32)
        for name, shape in smdm.expected_shapes(vocab, width, inner, layers, causal=False).items()
    }
    size = sum(tensor.numel() * 4 for tensor in big.values())
    save_file(big, tmp_path / "big.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "big.safetensors"], cwd=root, capture_output=True, text=True, check=True
    )
    # Pages of the mapped file count as resident, too: hence twice the size, but not three times.
    assert int(done.stdout) < 2.3 * size


def test_the_blocks_of_smdm_1028m_have_1028_million_parameters():
    shape = {name: SMDM_1028M[name] for name in ("vocab", "width", "mlp", "layers")}
    for _, causal in FAMILIES:
        sizes = smdm.expected_shapes(**shape, causal=causal)
        blocks = sum(math.prod(size) for name, size in sizes.items() if ".h." in name)
        assert round(blocks / 1e6) == 1028
