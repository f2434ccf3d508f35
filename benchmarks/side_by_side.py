"""Train and ask a study's models side by side on one GPU, without Snakemake: many small networks in few processes.

    PYTHONPATH=workflow python -m benchmarks.side_by_side studies/objectives.yaml --workers 10 --out FOLDER

Leaves in results/STUDY what the rules `prepare`, `base_…`, `finetune`, `complete` and `compare_likelihoods` leave,
by the same calls, and in --out one archive a seed with all but the networks. What is not done after --seconds is left.
"""

import argparse
import multiprocessing
import tarfile
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path

import pandas as pd
import torch
import yaml

from reversal.common.files import write_table
from reversal.common.jobs import Job
from reversal.data import facts, generated
from reversal.data.facts import READS, RECALL_SPLITS, SPARED_SPLITS
from reversal.models import folders, network
from reversal.recall import ask
from reversal.recall import files as completion_files
from reversal.recall.sampling import Sampling
from reversal.training import loop
from reversal.training.objective import Objective
from reversal.training.pretraining import Biographies, pretrain, tokenizer

ROOT = Path(__file__).resolve().parent.parent


def merged(config, changes):
    """A configuration with a study's changes, as Snakemake merges them."""
    both = {key: merged(config[key], changes[key]) for key in changes if isinstance(config.get(key), dict)}
    return {**config, **changes, **both}


def configuration(study):
    """The configuration of a study's file."""
    base, changes = (yaml.safe_load(file.read_text(encoding="utf-8")) for file in (ROOT / "config.yaml", study))
    return merged(base, changes)


def prepare(config, results):
    """Write the study's rows."""
    settings = config["data"]["generated"]
    people, train, splits = generated.make(**settings)
    mentions = generated.mentions(people, generated.read_mentions(Path(settings["templates"]) / "mentions.txt"))
    tables = {"train_reversed": map(facts.read_backwards, train), "train_mentions": mentions}
    for name, rows in {"facts": people, "train": train, **splits, **tables}.items():
        facts.write(rows, results / f"data/{name}.jsonl")


def make_base(config, results, name):
    """The network that a model's fine-tuning starts from."""
    model, output = config["models"][name], results / f"models/{name}/base"
    causal = model["family"] == "autoregressive"
    if model["base"] == "folder":
        folders.copy(ROOT / model["folder"], output, causal=causal)
        return
    lists, read = config["data"]["generated"], config["pretraining"]
    biographies = Biographies(lists["words"], lists["templates"], read["people"], read["rows"], read["seed"])
    tokenizer(results / f"models/{name}/tokenizer", biographies, size=config["network"]["vocabulary"])
    pretrain(
        output,
        results / f"models/{name}/base.training.csv",
        biographies,
        reader=results / f"models/{name}/tokenizer",
        causal=causal,
        shape=config["network"] | model.get("network", {}),
        recipe=read["recipe"],
        aim=Objective(**model.get("objective", {})),
        checkpoints=f"{output}.checkpoints",
        job=Job(results / f"logs/base/{name}.log"),
    )


def teach_and_ask(config, results, name, seed):
    """Fine-tune one model with one seed, and have it answer and judge every test prompt."""
    model, place = config["models"][name], f"{name}/seed_{seed}"
    recipe = config["training"] | model.get("training", {})
    task = {
        "base": str(results / f"models/{name}/base"),
        "rows": {kind: str(results / f"data/{READS[kind]}.jsonl") for kind in model.get("reads", ["facts"])},
        "facts": str(results / "data/facts.jsonl"),
        "objective": model.get("objective", {}),
        "recipe": {**recipe, "seed": seed},
        "output": str(results / f"models/{place}"),
        "history": str(results / f"models/{place}.training.csv"),
        "checkpoints": str(results / f"models/{place}.checkpoints"),
        "checkpoint_seconds": 1e9,
    }
    loop.run(task, job=Job(results / f"logs/finetune/{place}.log"))
    net, tokenizer = network.load(task["output"])
    settings = dict(config["sampling"])
    steps, generator = settings.pop("steps"), torch.Generator().manual_seed(seed)
    sampling = Sampling(**settings, precision=config["precision"])
    spares = config["data"]["generated"]["spared_people"] and task["objective"].get("spare", "none") != "none"
    splits = [*RECALL_SPLITS, *(SPARED_SPLITS if spares else ())]
    completions, comparisons = [], []
    for split in splits:
        right, wrong = (facts.read(results / f"data/{split}{which}.jsonl") for which in ("", "_randomized"))
        completions += ask.complete_split(
            net, tokenizer, right, sampling, split=split, steps=steps[-1:] if split in SPARED_SPLITS else steps
        )
        how = {"canvas": sampling.canvas, "precision": config["precision"], "generator": generator}
        samples = config["likelihood"]["samples"]
        comparisons += ask.compare_likelihoods(net, tokenizer, right, wrong, split=split, samples=samples, **how)
    table = pd.DataFrame(comparisons)
    table.insert(0, "seed", seed)
    table.insert(0, "model", name)
    write_table(table, results / f"likelihood/{place}.csv")
    completion_files.write(completions, results / f"completions/{place}.jsonl")


def timed(work, *arguments):
    """Do it; the name of what was done, the seconds, and what went wrong, if anything did."""
    torch.set_num_threads(1)
    began = time.monotonic()
    try:
        work(*arguments)
        wrong = None
    except Exception:
        wrong = traceback.format_exc()
    return arguments[2:], time.monotonic() - began, wrong


def archive(results, out, seed):
    """What one seed left, but for its networks."""
    files = [*results.glob(f"*/*/seed_{seed}.*"), *results.glob("models/*/base.training.csv"), *results.glob("data/*")]
    with tarfile.open(out / f"{results.name}_seed_{seed}.tar.gz", "w:gz") as bundle:
        for file in files:
            bundle.add(file, file.relative_to(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the study's")
    parser.add_argument("--models", nargs="+", help="instead of all")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing, and wait for nothing, after these")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    began = time.monotonic()
    config = configuration(options.study)
    results = Path("results") / config["study"]
    seeds, names = options.seeds or config["seeds"], options.models or list(config["models"])
    names.sort(key=lambda name: -config["models"][name].get("training", {}).get("epochs", 0))  # the longest first
    prepare(config, results)
    for name in names:
        if config["models"][name]["base"] == "folder":
            make_base(config, results, name)
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=spawned) as pool:
        waiting = [name for name in names if config["models"][name]["base"] != "folder"]
        running = {pool.submit(timed, make_base, config, results, name) for name in waiting}
        ready = [(name, seed) for seed in seeds for name in names if name not in waiting]
        running |= {pool.submit(timed, teach_and_ask, config, results, *one) for one in ready}
        while running and (left := options.seconds - time.monotonic() + began) > 0:
            done, running = wait(running, timeout=left, return_when=FIRST_COMPLETED)
            for what, seconds, wrong in (one.result() for one in done):
                print(f"{time.monotonic() - began:5.0f} s: {' '.join(map(str, what))} in {seconds:.0f} s", flush=True)
                if wrong:
                    print(wrong, flush=True)
                elif len(what) == 1:  # a base, whose fine-tunings can begin
                    running |= {pool.submit(timed, teach_and_ask, config, results, *what, seed) for seed in seeds}
        options.out.mkdir(parents=True, exist_ok=True)
        for seed in seeds:
            archive(results, options.out, seed)
        for process in list(pool._processes.values()) if running else []:
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
