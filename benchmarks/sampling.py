"""Speed of the batched sampler against one prompt at a time; both must give the same tokens.

    python -m benchmarks.sampling                                  4 layers × 128 on the CPU
    python -m benchmarks.sampling --device cuda --size 1028m       the shape of SMDM-1028M, random weights

The tests compare the sampler with `denoise_alone`, too.
"""

import argparse
import functools

import torch

from benchmarks.shapes import SMDM_1028M
from benchmarks.timing import measure_time
from reversal.common import batches
from reversal.models import network
from reversal.recall import masked

SIZES = {
    "default": {"shape": {"vocab": 2000, "width": 128, "layers": 4, "heads": 4, "mlp": 512}, "canvas": 25, "steps": 16},
    "1028m": {"shape": SMDM_1028M, "canvas": 52, "steps": 32},
}


@torch.no_grad()
def denoise_alone(net, prompt, *, canvas, steps, guidance):
    """The canvas of one prompt as SMDM's evaluation computes it: every step, all logits, a batch of one."""
    mask = network.mask_id(net)
    x = torch.full((1, canvas), mask, device=net.device)
    x[0, : len(prompt)] = torch.tensor(prompt)
    t = torch.linspace(1, 1e-5, steps + 1)
    for i in range(steps):
        masked = x == mask
        if guidance:
            unconditional = x.clone()
            unconditional[:, : len(prompt)] = mask
            together = network.logits(net, network.hidden(net, torch.cat([x, unconditional])))
            cond, un = together.float().chunk(2)
            logits = (un + (1 + guidance) * (cond - un))[masked]
        else:
            logits = network.logits(net, network.hidden(net, x)).float()[masked]
        confidence, token = logits.double().softmax(-1).max(-1)
        remaining = int(masked.sum())
        count = remaining if i == steps - 1 else int(remaining * (1 - t[i + 1] / t[i]))
        chosen = confidence.topk(count).indices
        x[0, masked[0].nonzero()[chosen, 0]] = token[chosen]
    return x[0].tolist()


def random_prompts(number, *, vocab, longest, generator):
    """Prompts of random tokens, of between half of `longest` and `longest` tokens."""
    lengths = torch.randint(longest // 2, longest + 1, (number,), generator=generator).tolist()
    return [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--size", choices=SIZES, default="default", help="shape of the random network")
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--alone", type=int, default=10, help="how many of them to run one at a time")
    parser.add_argument("--guidance", type=float, default=0.8)
    parser.add_argument("--precision", choices=batches.PRECISIONS, default="float32")
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[None])
    parser.add_argument("--rounds", type=int, default=3, help="repetitions, of which the fastest counts")
    options = parser.parse_args()
    size, device = SIZES[options.size], options.device
    net = network.new(causal=False, seed=0, **size["shape"]).to(device)
    generator = torch.Generator().manual_seed(0)
    prompts = random_prompts(
        options.prompts, vocab=size["shape"]["vocab"], longest=size["canvas"] * 3 // 5, generator=generator
    )
    settings = {"canvas": size["canvas"], "steps": size["steps"], "guidance": options.guidance}

    def run_alone():
        with batches.autocast(device, options.precision):
            return [denoise_alone(net, prompt, **settings) for prompt in prompts[: options.alone]]

    default_size = batches.SIZES[device.type]

    def run_batches(batch_size):
        batches.SIZES[device.type] = batch_size or default_size
        return masked.denoise(net, prompts, **settings, precision=options.precision)

    alone_time, batch_times, same = float("inf"), {}, {}
    # Alternately, so that other load on the machine affects all alike.
    for _ in range(options.rounds):
        seconds, expected = measure_time(run_alone, device)
        alone_time = min(alone_time, seconds)
        for batch_size in options.batch_sizes:
            seconds, denoised = measure_time(functools.partial(run_batches, batch_size), device)
            batch_times[batch_size] = min(batch_times.get(batch_size, seconds), seconds)
            same[batch_size] = sum(a == b for a, b in zip(denoised.canvas.tolist(), expected, strict=False))

    alone_speed = options.alone / alone_time
    print(f"{options.size} on {device}, {options.precision}, {size['steps']} steps, guidance {options.guidance}")
    print(f"{'sampler':<24}{'prompts/s':>10}{'ratio':>8}{'same canvases':>16}")
    print(f"{'one at a time':<24}{alone_speed:>10.1f}{1:>8.1f}")
    for batch_size, seconds in batch_times.items():
        name = f"batches of {batch_size or default_size}"
        speed = len(prompts) / seconds
        print(f"{name:<24}{speed:>10.1f}{speed / alone_speed:>8.1f}{f'{same[batch_size]} of {options.alone}':>16}")


if __name__ == "__main__":
    main()
