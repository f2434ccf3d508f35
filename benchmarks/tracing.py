"""Causal tracing of one fact: our engine against the loop over states, on random weights.

    python -m benchmarks.tracing                                              both families on the CPU
    python -m benchmarks.tracing --device cuda --size 1028m --positions 2     SMDM-1028M's shape, in each precision

Random weights know no answer, and where all probabilities are small every error looks small. So an answer is planted in
the head. `largest` is the largest effect, `error` the largest difference of an effect from its float32 value.
"""

import argparse
import statistics
import time

import torch

from benchmarks import naive_trace
from benchmarks.shapes import SMDM_1028M
from reversal.models import network
from reversal.tracing import engine, llama

SIZES = {
    "default": {"shape": {"vocab": 2000, "width": 128, "layers": 4, "heads": 4, "mlp": 512}, "tokens": 20},
    "wide": {"shape": {"vocab": 2000, "width": 384, "layers": 8, "heads": 6, "mlp": 1536}, "tokens": 20},
    "1028m": {"shape": SMDM_1028M, "tokens": 30},
}
DRAWS = 10
SUBJECT = (2, 6)
SPREAD = 2.0  # standard deviation of the planted network's logits
ANSWERS = 4  # masked tokens that the diffusion network is asked for; the autoregressive one is asked for one


def main():
    options = arguments()
    device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    size = SIZES[options.size]
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {options.threads} threads"
    print(f"{options.size}, {size['tokens']} tokens, {DRAWS} draws, window {options.window}, {where}")
    print(
        f"{'family':<8}{'kind':<7}{'precision':<11}{'naive s':>9}{'ours s':>9}{'ratio':>8}{'largest':>9}{'error':>10}"
    )
    for family in options.families:
        net, question = build(family, size, device)
        for kind in options.kinds:
            question |= {"kind": kind, "window": options.window}
            expected = effects(net, question)
            for precision in options.precisions or (["float32"] if device.type == "cpu" else llama.DTYPES):
                slow, fast = race(net, question, precision, options)
                error = (effects(net, question, precision) - expected).abs().max().item()
                print(
                    f"{family:<8}{kind:<7}{precision:<11}{slow:>9.3f}{fast:>9.3f}{slow / fast:>8.1f}"
                    f"{expected.abs().max().item():>9.3f}{error:>10.1e}",
                    flush=True,
                )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="default", choices=SIZES)
    parser.add_argument("--families", nargs="+", default=["ar", "mdm"], choices=["ar", "mdm"])
    parser.add_argument("--kinds", nargs="+", default=["state"], choices=engine.KINDS)
    parser.add_argument("--precisions", nargs="+", choices=llama.DTYPES)
    parser.add_argument("--window", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--positions", type=int, help="time the naive loop on so many positions and scale up")
    return parser.parse_args()


def build(family, size, device):
    """A network with random weights and what to trace in it."""
    generator = torch.Generator().manual_seed(0)
    net = network.new(causal=family == "ar", seed=0, **size["shape"]).to(device)
    ids = torch.randint(network.vocab(net), (size["tokens"],), generator=generator)
    places = [len(ids) - 1]
    if family == "mdm":
        places = list(range(len(ids) - ANSWERS - 2, len(ids) - 2))
        ids[places[0] :] = network.mask_id(net)
    noise = engine.draw_noise(net, SUBJECT, DRAWS, generator=generator)
    return net, {"input_ids": ids, "subject": SUBJECT, "answer": plant(net, ids, places), "noise": noise}


@torch.no_grad()
def plant(net, ids, places):
    """Make token 0 the network's answer at `places`, jointly with an even chance; {place: 0}.

    A trained network's logits have a spread of some nats, and the right answer stands out because its row of the head
    points where the last state does.
    """
    head = net.get_output_embeddings().weight
    states = network.hidden(net, ids[None].to(net.device))[0, places]
    logits = network.logits(net, states).float()
    head.mul_(SPREAD / logits[logits > -1e30].std())  # a mask within the vocabulary is far below
    head[0] = states.mean(0) / states.mean(0).square().sum()
    logits = network.logits(net, states).float()
    low, high = 0.0, 1e3
    for _ in range(40):
        scale = (low + high) / 2
        logits[:, 0] = scale * (states @ head[0]).float()
        low, high = (scale, high) if logits.log_softmax(-1)[:, 0].sum().exp() < 0.5 else (low, scale)
    head[0] *= scale
    return dict.fromkeys(places, 0)


def effects(net, question, precision="float32"):
    """The indirect effects (positions, layers)."""
    found = engine.trace(net, **question, precision=precision)
    return found.restored - found.corrupted


def race(net, question, precision, options):
    """Median seconds of the naive loop and of ours, run in turns."""
    tokens = len(question["input_ids"])
    some = range(options.positions or tokens)
    naive, ours = [], []
    for turn in range(1 + options.repeats):
        slow = seconds(lambda: naive_trace.trace(net, **question, positions=some), net.device)
        fast = seconds(lambda: engine.trace(net, **question, precision=precision), net.device)
        if turn:  # the first warms up
            naive.append(slow * tokens / len(some))
            ours.append(fast)
    return statistics.median(naive), statistics.median(ours)


def seconds(work, device):
    """How long `work` takes."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def wait(device):
    """Let the device finish what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
