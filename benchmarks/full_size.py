"""Try studies/paper.yaml at its size without SMDM's files: random weights in their layout, and a study that uses them.

    python -m benchmarks.full_size FOLDER --data DATA
    snakemake --profile profiles/gpu --configfile FOLDER/study.yaml

DATA is a local copy of the published data; without it the data are generated. It tells what each stage costs, nothing
about language: the networks know only what they are fine-tuned on, for which `--epochs` can give them more time.
"""

import argparse
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from benchmarks.shapes import SMDM_1028M
from reversal.data import berglund, generated
from reversal.models import smdm, tokens

ROOT = Path(__file__).resolve().parent.parent


def write_weights(path, *, causal, seed, shape=SMDM_1028M):
    """A checkpoint of a shape with lit-gpt's names, its matrices random."""
    generator = torch.Generator().manual_seed(seed)
    sizes = smdm.expected(shape["vocab"], shape["width"], shape["mlp"], shape["layers"], causal)
    tensors = {
        name: torch.ones(size) if len(size) == 1 else torch.empty(size).normal_(0, 0.02, generator=generator)
        for name, size in sizes.items()
    }
    save_file(tensors, path)


def write_tokenizer(path, texts, size):
    """A tokenizer.json of exactly `size` ids: those that `texts` need, and others that stand for nothing."""
    tokenizer = tokens.train_tokenizer(texts, size)
    tokenizer.add_tokens([f"<unused_{i}>" for i in range(size - len(tokenizer))])
    tokenizer.backend_tokenizer.save(str(path))


def study(config, folder, *, data, epochs, shape=SMDM_1028M):
    """The study of `config`, with the files of `folder` in the place of the hub's."""
    config = {**config, "study": "full_size"}
    if data:
        config["data"] = {"source": "berglund", "berglund": {"folder": str(data)}}
    else:
        config["data"] = {"source": "generated"}
    config["training"] = {**config["training"], "epochs": epochs}
    config["models"] = {
        name: {
            **model,
            "lit_gpt": {
                "n_head": shape["heads"],
                "eos_token": tokens.EOS,
                "weights": {"path": str(folder / f"{name}.safetensors")},
                "tokenizer": {"path": str(folder / "tokenizer.json")},
            },
        }
        for name, model in config["models"].items()
    }
    return config


def sentences(data):
    """What the study trains on and asks; with all its words whole, rows fit into the canvas that the paper's has."""
    if data:
        _, train, splits = berglund.read(data)
    else:
        default = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))["data"]["generated"]
        folders = {name: ROOT / default[name] for name in ("words", "templates")}
        _, train, splits = generated.make(**{**default, **folders})
    return [row.text for rows in (train, *splits.values()) for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to leave the files, 8 GB")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load((ROOT / "studies/paper.yaml").read_text(encoding="utf-8"))
    for seed, (name, model) in enumerate(config["models"].items()):
        causal = model["family"] == "autoregressive"
        write_weights(options.folder / f"{name}.safetensors", causal=causal, seed=seed)
    write_tokenizer(options.folder / "tokenizer.json", sentences(options.data), SMDM_1028M["vocab"])
    made = study(config, options.folder, data=options.data, epochs=options.epochs)
    (options.folder / "study.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")


if __name__ == "__main__":
    main()
