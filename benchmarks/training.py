"""Fine-tuning speed: our loop against transformers' Trainer with the same network, loss and batches.

    python -m benchmarks.training                                  4 layers × 128 on the CPU
    python -m benchmarks.training --device cuda --size 1028m       the shape of SMDM-1028M, random weights
    … --compile                                                    our loop with training.compile and .cuda_graphs
    … --ours                                                       our loop alone

On a GPU it also prints which share of the GPU's bf16 matrix rate, measured in the same run, is spent on tokens that are
not padding: 6 FLOP per token and parameter that it is multiplied with.
"""

import argparse
import tempfile

import numpy as np
import torch
from transformers import Trainer, TrainingArguments

from benchmarks.shapes import SMDM_1028M
from benchmarks.timing import measure_time
from reversal.models import network
from reversal.training import loop, objective

SIZES = {
    "default": {"shape": {"vocab": 2560, "width": 128, "layers": 4, "heads": 4, "mlp": 512}, "rows": (11, 20)},
    "1028m": {"shape": SMDM_1028M, "rows": (20, 48)},
}
STUDY_ROWS = 36_000  # 10 epochs of 3,600


class DiffusionTrainer(Trainer):
    """Trainer with our diffusion objective."""

    def compute_loss(self, net, inputs, **_):
        return objective.compute_loss(
            net, objective.Targets(*(inputs[name].cpu() for name in objective.Targets._fields[:3]))
        )


def random_rows(number, shortest, longest, vocab):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(shortest, longest + 1, (number,), generator=generator).tolist()
    return [torch.randint(1, vocab, (length,), generator=generator).tolist() for length in lengths]


def time_loop(net, rows, recipe, device):
    """Seconds for one epoch of our loop, and for the second half of its steps, after all set-up."""
    seconds, history = measure_time(lambda: loop.fit(net, rows, recipe), device)
    elapsed = np.cumsum([len(batch) for batch in batches(rows, recipe)]) / history.rows_per_second  # at each step
    return seconds, elapsed.iloc[-1] - elapsed.iloc[len(elapsed) // 2 - 1]


def batches(rows, recipe):
    """The row numbers of each step."""
    return loop.epoch_batches([len(row) for row in rows], recipe.batch, seed=recipe.seed, epoch=0)


def time_trainer(net, rows, recipe, device):
    """Seconds for the same batches with transformers' Trainer."""
    order = batches(rows, recipe)

    def collate(batch):
        numbers = order[collate.step % len(order)]
        collate.step += 1
        ids, _ = loop.pad([rows[i] for i in numbers], 0)
        generator = torch.Generator().manual_seed(collate.step)
        batch = objective.diffusion_targets(ids, net, generator=generator)
        return dict(zip(batch._fields[:3], batch[:3], strict=True))

    collate.step = 0
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=recipe.batch,
            num_train_epochs=1,
            learning_rate=recipe.learning_rate,
            warmup_steps=recipe.warmup_steps,
            lr_scheduler_type="cosine",
            optim="adamw_torch_fused",
            max_grad_norm=recipe.clip,
            bf16=device.type == "cuda",
            use_cpu=device.type == "cpu",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_steps=10,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        trainer = DiffusionTrainer(model=net, args=arguments, train_dataset=rows, data_collator=collate)
        return measure_time(trainer.train, device)[0]


def matrix_rate(device, size=8192, rounds=30):
    """bf16 FLOP/s of a large matrix product."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))

    def multiply(times):
        for _ in range(times):
            a @ b

    multiply(5)
    seconds, _ = measure_time(lambda: multiply(rounds), device)
    return 2 * size**3 * rounds / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--steps", type=int, default=40, help="steps of 64 rows in each epoch")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each loop, in turns; the fastest counts")
    parser.add_argument("--compile", action="store_true", help="our loop with training.compile and .cuda_graphs")
    parser.add_argument("--ours", action="store_true", help="our loop alone")
    options = parser.parse_args()
    size, device = SIZES[options.size], options.device
    rows = random_rows(64 * options.steps, *size["rows"], size["shape"]["vocab"])
    recipe = loop.Recipe(
        epochs=1, batch=64, learning_rate=1e-4, warmup_steps=10, compile=options.compile, cuda_graphs=options.compile
    )
    net = network.new(causal=False, eos=0, seed=0, **size["shape"]).to(device)
    trainer_seconds, loop_seconds = [], []
    for _ in range(options.rounds):
        if not options.ours:
            trainer_seconds.append(time_trainer(net, rows, recipe, device))
        loop_seconds.append(time_loop(net, rows, recipe, device))
    fastest, second_half = map(min, zip(*loop_seconds, strict=True))
    print(f"{options.size}, {network.parameter_count(net) / 1e6:.1f}M parameters, batches of 64, {device}")
    best = ({"transformers' Trainer": min(trainer_seconds)} if trainer_seconds else {}) | {"ours": fastest}
    for name, seconds in best.items():
        print(f"{name:24}{len(rows) / seconds:9.0f} rows/s{next(iter(best.values())) / seconds:7.2f} ×")
    study = STUDY_ROWS / len(rows) * fastest
    print(f"{STUDY_ROWS} rows at our rate: {study:.0f} s; the first epoch took {loop_seconds[0][0]:.1f} s")
    if device.type == "cuda":
        order = batches(rows, recipe)
        tokens = sum(len(rows[i]) for batch in order[len(order) // 2 :] for i in batch)
        multiplied = network.parameter_count(net) - net.get_input_embeddings().weight.numel()
        used, possible = 6 * multiplied * tokens / second_half, matrix_rate(device)
        print(f"in the second half of the steps, {2e3 * second_half / len(order):.1f} ms each:")
        print(
            f"{used / 1e12:.0f} of {possible / 1e12:.0f} TFLOP/s ({used / possible:.0%}) on tokens that are not padding"
        )
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most")


if __name__ == "__main__":
    main()
