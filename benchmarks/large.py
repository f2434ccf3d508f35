"""Tracing and fine-tuning at the size of LLaDA-8B and Dream-7B: random weights in bfloat16 on one GPU.

    python -m benchmarks.large trace llada       one fact, our engine against a loop over states
    python -m benchmarks.large train llada       the fine-tuning loop with an adapter

The loop over states is timed on a few states and scaled up: with a float32 copy of the weights, as such traces are
usually run, and with the 16-bit weights themselves. Effects are compared with those of float32 at a few positions.
"""

import argparse
import copy
import time

import torch

from benchmarks import naive_trace
from benchmarks.shapes import PUBLISHED, published_network
from benchmarks.timing import measure_time
from benchmarks.tracing import plant_answer
from benchmarks.training import batches, random_rows
from reversal.models import network
from reversal.tracing import engine
from reversal.training import adapters, loop

TOKENS, PROMPT, SUBJECT, ANSWERS = 52, 20, (8, 14), 8
GIB = 2**30


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["trace", "train"])
    parser.add_argument("model", choices=PUBLISHED)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kinds", nargs="+", default=["state"], choices=engine.KINDS)
    parser.add_argument("--draws", type=int, default=engine.DRAWS)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    began = time.perf_counter()
    net = published_network(options.model, options.device)
    size = f"{network.parameter_count(net) / 1e9:.2f} billion parameters in {next(net.parameters()).dtype}"
    print(
        f"{options.model}, {size}, {peak_memory(net):.1f} GiB, made in {time.perf_counter() - began:.0f} s", flush=True
    )
    trace(net, options) if options.task == "trace" else train(net, options)


def peak_memory(net):
    """The peak GPU memory since the last call, in GiB."""
    if net.device.type != "cuda":
        return 0.0
    peak = torch.cuda.max_memory_allocated() / GIB
    torch.cuda.reset_peak_memory_stats()
    return peak


def trace(net, options):
    prompt = planted_prompt(net, options.draws)
    print(f"{TOKENS} tokens, {options.draws} draws, {ANSWERS} answer tokens", flush=True)
    for kind in options.kinds:
        site = {"kind": kind, "precision": "bfloat16"}
        engine.trace(net, **prompt, **site)  # warms up
        engine_seconds, _ = measure_time(lambda site=site: engine.trace(net, **prompt, **site), net.device)
        print(f"{kind}: {engine_seconds:.2f} s, {peak_memory(net):.1f} GiB at most", flush=True)
        loops = {"16-bit loop": time_naive_loop(net, prompt, kind, positions=2)}
        groups = [(0,), (SUBJECT[1] - 1,), (PROMPT,)]
        effects = indirect_effects(net, net, prompt, kind, groups, "bfloat16")
        wide = copy.deepcopy(net).float()
        loops["float32 loop"] = time_naive_loop(wide, prompt, kind, positions=1)
        expected = indirect_effects(wide, net, prompt, kind, groups, "float32")
        del wide
        for name, loop_seconds in loops.items():
            print(f"{kind}: {name} {loop_seconds:.1f} s, {loop_seconds / engine_seconds:.1f} times ours", flush=True)
        print(
            f"{kind}: largest effect {expected.abs().max():.3f}, "
            f"largest error at {len(groups)} positions {(effects - expected).abs().max():.1e}",
            flush=True,
        )
        peak_memory(net)


def planted_prompt(net, draws):
    """What to trace: a canvas with an answer planted at its first masks."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(100_000, network.mask_id(net)), (TOKENS,), generator=generator)
    ids[PROMPT:] = network.mask_id(net)
    positions = [network.prediction_position(net, i) for i in range(PROMPT, PROMPT + ANSWERS)]
    noise = engine.draw_noise(net, SUBJECT, draws, generator=generator)
    return {"input_ids": ids, "subject": SUBJECT, "answer": plant_answer(net, ids, positions), "noise": noise}


def time_naive_loop(net, prompt, kind, positions):
    """Seconds of the loop over all states, scaled up from those of the first `positions`."""
    measured, _ = measure_time(
        lambda: naive_trace.trace(net, **prompt, kind=kind, positions=range(positions)), net.device
    )
    return measured * TOKENS / positions


def indirect_effects(net, embedder, prompt, kind, groups, precision):
    """Indirect effects (groups, layers) of one draw of noise, with `embedder`'s embeddings."""
    ids, subject = prompt["input_ids"], prompt["subject"]
    corrupted = engine.add_noise(embedder, ids, subject, prompt["noise"][:1])
    problem = engine.Problem(engine.embed(embedder, ids), corrupted, prompt["answer"], groups)
    scores = engine.score_runs(engine.restore(net, [problem], kind=kind, precision=precision)[0])
    return scores.restored - scores.corrupted


def train(net, options):
    adapters.attach(net, rank=options.rank, alpha=2 * options.rank, seed=0)
    count = sum(parameter.numel() for parameter in adapters.trainable_parameters(net).values())
    print(f"rank {options.rank}: {count / 1e6:.0f} million weights are trained; batches of {options.batch}", flush=True)
    rows = random_rows(options.batch * options.steps, 20, 48, min(100_000, network.mask_id(net)))
    recipe = loop.Recipe(epochs=1, batch=options.batch, learning_rate=1e-4, warmup_steps=2, width=TOKENS)
    history = loop.fit(net, rows, recipe)
    first_half = options.batch * (options.steps // 2)
    # rows_per_second counts from the start; the second half excludes the set-up of the first steps.
    sizes = [len(batch) for batch in batches(rows, recipe)]
    elapsed = [sum(sizes[: i + 1]) / rate for i, rate in enumerate(history.rows_per_second)]
    rate = (sum(sizes) - first_half) / (elapsed[-1] - elapsed[options.steps // 2 - 1])
    print(f"{rate:.1f} rows/s in the second half, {peak_memory(net):.1f} GiB at most; loss {history.loss.iloc[-1]:.2f}")


if __name__ == "__main__":
    main()
