"""Causal tracing of one fact: the engine against a loop over states, on random weights.

    python -m benchmarks.tracing                                              both families on the CPU
    python -m benchmarks.tracing --device cuda --size 1028m --positions 2     SMDM-1028M's shape, in each precision

Random weights give every answer a small probability, so every error would look small. Therefore an answer is planted in
the head. `largest` is the largest effect, `error` the largest difference of an effect from its float32 value.
"""

import argparse
import statistics

import torch

from benchmarks import naive_trace
from benchmarks.shapes import SMDM_1028M
from benchmarks.timing import measure_time
from reversal.models import network
from reversal.tracing import engine, llama

SIZES = {
    "default": {"shape": {"vocab": 2000, "width": 128, "layers": 4, "heads": 4, "mlp": 512}, "tokens": 20},
    "wide": {"shape": {"vocab": 2000, "width": 384, "layers": 8, "heads": 6, "mlp": 1536}, "tokens": 20},
    "1028m": {"shape": SMDM_1028M, "tokens": 30},
}
SUBJECT = (2, 6)
SPREAD = 2.0  # standard deviation of the planted network's logits
ANSWERS = 4  # masked tokens that the diffusion network predicts; the autoregressive one predicts one


def main():
    options = parse_arguments()
    device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    size = SIZES[options.size]
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {options.threads} threads"
    print(f"{options.size}, {size['tokens']} tokens, {engine.DRAWS} draws, window {options.window}, {machine}")
    print(
        f"{'family':<8}{'kind':<7}{'precision':<11}{'naive s':>9}{'engine s':>9}{'ratio':>8}{'largest':>9}{'error':>10}"
    )
    for family in options.families:
        net, query = build(family, size, device)
        for kind in options.kinds:
            query |= {"kind": kind, "window": options.window}
            expected = compute_effects(net, query)
            for precision in options.precisions or (["float32"] if device.type == "cpu" else llama.DTYPES):
                slow, fast = time_both(net, query, precision, options)
                error = (compute_effects(net, query, precision) - expected).abs().max().item()
                print(
                    f"{family:<8}{kind:<7}{precision:<11}{slow:>9.3f}{fast:>9.3f}{slow / fast:>8.1f}"
                    f"{expected.abs().max().item():>9.3f}{error:>10.1e}",
                    flush=True,
                )


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="default", choices=SIZES)
    parser.add_argument("--families", nargs="+", default=["ar", "mdm"], choices=["ar", "mdm"])
    parser.add_argument("--kinds", nargs="+", default=["state"], choices=engine.KINDS)
    parser.add_argument("--precisions", nargs="+", choices=llama.DTYPES)
    parser.add_argument("--window", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--positions", type=int, help="time the naive loop on this many positions and scale up")
    return parser.parse_args()


def build(family, size, device):
    """A network with random weights and the arguments of a trace."""
    generator = torch.Generator().manual_seed(0)
    net = network.new(causal=family == "ar", seed=0, **size["shape"]).to(device)
    ids = torch.randint(network.vocab(net), (size["tokens"],), generator=generator)
    positions = [len(ids) - 1]
    if family == "mdm":
        positions = list(range(len(ids) - ANSWERS - 2, len(ids) - 2))
        ids[positions[0] :] = network.mask_id(net)
    noise = engine.draw_noise(net, SUBJECT, engine.DRAWS, generator=generator)
    return net, {"input_ids": ids, "subject": SUBJECT, "answer": plant_answer(net, ids, positions), "noise": noise}


@torch.no_grad()
def plant_answer(net, ids, positions):
    """Give token 0 a joint probability of one half at `positions`, and return {position: 0}.

    As in a trained network, logits have a spread of some nats, and the head's row of the answer points in the direction
    of the last state.
    """
    head = net.get_output_embeddings().weight
    states = network.hidden(net, ids[None].to(net.device))[0, positions]
    logits = network.logits(net, states).float()
    head.mul_(SPREAD / logits[logits > -1e30].std())  # excludes a mask token within the vocabulary
    head[0] = states.mean(0) / states.mean(0).square().sum()
    logits = network.logits(net, states).float()
    low, high = 0.0, 1e3
    for _ in range(40):
        scale = (low + high) / 2
        logits[:, 0] = scale * (states @ head[0]).float()
        low, high = (scale, high) if logits.log_softmax(-1)[:, 0].sum().exp() < 0.5 else (low, scale)
    head[0] *= scale
    return dict.fromkeys(positions, 0)


def compute_effects(net, query, precision="float32"):
    """The indirect effects (positions, layers)."""
    result = engine.trace(net, **query, precision=precision)
    return result.restored - result.corrupted


def time_both(net, query, precision, options):
    """Median seconds of the naive loop and of the engine, run in turns."""
    tokens = len(query["input_ids"])
    positions = range(options.positions or tokens)
    naive, engine_times = [], []
    for turn in range(1 + options.repeats):
        slow, _ = measure_time(lambda: naive_trace.trace(net, **query, positions=positions), net.device)
        fast, _ = measure_time(lambda: engine.trace(net, **query, precision=precision), net.device)
        if turn:  # the first turn warms up
            naive.append(slow * tokens / len(positions))
            engine_times.append(fast)
    return statistics.median(naive), statistics.median(engine_times)


if __name__ == "__main__":
    main()
