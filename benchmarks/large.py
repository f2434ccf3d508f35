"""Tracing and fine-tuning at LLaDA-8B's and Dream-7B's size: random weights in bfloat16 on one GPU.

    python -m benchmarks.large trace llada       one fact, our engine against the loop over states
    python -m benchmarks.large train llada       the fine-tuning loop with an adapter

The loop over states is timed on a few states and scaled up: with a float32 copy of the weights, which is how such
traces are commonly run, and with the 16-bit weights themselves. Effects are compared with float32 at a few positions.
"""

import argparse
import copy
import time

import torch

from benchmarks import naive_trace
from benchmarks.shapes import PUBLISHED, published_network
from benchmarks.tracing import DRAWS, plant, seconds
from benchmarks.training import batches, random_rows
from reversal.models import network
from reversal.tracing import engine
from reversal.training import adapters, loop

TOKENS, PROMPT, SUBJECT, ANSWERS = 52, 20, (8, 14), 8
GIB = 2**30


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["trace", "train"])
    parser.add_argument("model", choices=PUBLISHED)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kinds", nargs="+", default=["state"], choices=engine.KINDS)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    began = time.perf_counter()
    net = published_network(options.model, options.device)
    made = f"{network.parameter_count(net) / 1e9:.2f} billion parameters in {next(net.parameters()).dtype}"
    print(f"{options.model}, {made}, {used(net):.1f} GiB, made in {time.perf_counter() - began:.0f} s", flush=True)
    trace(net, options) if options.what == "trace" else train(net, options)


def used(net):
    """The most GPU memory there was since the last call, in GiB."""
    if net.device.type != "cuda":
        return 0.0
    most = torch.cuda.max_memory_allocated() / GIB
    torch.cuda.reset_peak_memory_stats()
    return most


def trace(net, options):
    question = asked(net, options.draws)
    print(f"{TOKENS} tokens, {options.draws} draws, {ANSWERS} answer tokens", flush=True)
    for kind in options.kinds:
        how = {"kind": kind, "precision": "bfloat16"}
        engine.trace(net, **question, **how)  # warms up
        ours = seconds(lambda how=how: engine.trace(net, **question, **how), net.device)
        print(f"{kind}: {ours:.2f} s, {used(net):.1f} GiB at most", flush=True)
        loops = {"16-bit loop": naive(net, question, kind, places=2)}
        few = [(0,), (SUBJECT[1] - 1,), (PROMPT,)]
        found = effects(net, net, question, kind, few, "bfloat16")
        wide = copy.deepcopy(net).float()
        loops["float32 loop"] = naive(wide, question, kind, places=1)
        expected = effects(wide, net, question, kind, few, "float32")
        del wide
        for name, time_ in loops.items():
            print(f"{kind}: {name} {time_:.1f} s, {time_ / ours:.1f} times ours", flush=True)
        print(
            f"{kind}: largest effect {expected.abs().max():.3f}, "
            f"largest error at {len(few)} positions {(found - expected).abs().max():.1e}",
            flush=True,
        )
        used(net)


def asked(net, draws):
    """What to trace: a canvas whose first masks have an answer planted."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(100_000, network.mask_id(net)), (TOKENS,), generator=generator)
    ids[PROMPT:] = network.mask_id(net)
    places = [network.read_at(net, place) for place in range(PROMPT, PROMPT + ANSWERS)]
    noise = engine.draw_noise(net, SUBJECT, draws, generator=generator)
    return {"input_ids": ids, "subject": SUBJECT, "answer": plant(net, ids, places), "noise": noise}


def naive(net, question, kind, places):
    """Seconds of the loop over all states, from those of the first `places`."""
    some = range(places)
    return seconds(lambda: naive_trace.trace(net, **question, kind=kind, positions=some), net.device) * TOKENS / places


def effects(net, embedder, question, kind, groups, precision):
    """Indirect effects (groups, layers) of one draw, the sequences as `embedder` embeds them."""
    ids, subject = question["input_ids"], question["subject"]
    corrupted = engine.add_noise(embedder, ids, subject, question["noise"][:1])
    problem = engine.Problem(engine.embed(embedder, ids), corrupted, question["answer"], groups)
    found = engine.score(engine.restore(net, [problem], kind=kind, precision=precision)[0])
    return found.restored - found.corrupted


def train(net, options):
    adapters.attach(net, rank=options.rank, alpha=2 * options.rank, seed=0)
    own = sum(parameter.numel() for parameter in adapters.trained(net).values())
    print(f"rank {options.rank}: {own / 1e6:.0f} million weights are trained; batches of {options.batch}", flush=True)
    rows = random_rows(options.batch * options.steps, 20, 48, min(100_000, network.mask_id(net)))
    recipe = loop.Recipe(epochs=1, batch=options.batch, learning_rate=1e-4, warmup_steps=2, width=TOKENS)
    history = loop.fit(net, rows, recipe)
    passed = options.batch * (options.steps // 2)
    # rows_per_second counts from the start; the second half is without what the first steps set up.
    done = [len(batch) for batch in batches(rows, recipe)]
    spent = [sum(done[: i + 1]) / rate for i, rate in enumerate(history.rows_per_second)]
    rate = (sum(done) - passed) / (spent[-1] - spent[options.steps // 2 - 1])
    print(f"{rate:.1f} rows/s in the second half, {used(net):.1f} GiB at most; loss {history.loss.iloc[-1]:.2f}")


if __name__ == "__main__":
    main()
