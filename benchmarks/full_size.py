"""Try a study at its size without the published files: random weights in their layout, and a study that uses them.

    python -m benchmarks.full_size FOLDER --data DATA                   studies/paper.yaml: SMDM-1028M and AR-1028M
    python -m benchmarks.full_size FOLDER --study llada (or dream)      LLaDA-8B, with the tiny model that ships
    snakemake --profile profiles/gpu --configfile FOLDER/study.yaml

DATA is a local copy of the published data; without it the data are generated. The study shows what each stage costs and
nothing about language: the networks know only what they are fine-tuned on, to which `--epochs` can give more time.
"""

import argparse
import json
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from benchmarks.shapes import PUBLISHED, SMDM_1028M
from reversal.data import berglund, generated
from reversal.models import shards, smdm, tokens
from reversal.models.layouts import find_layout

ROOT = Path(__file__).resolve().parent.parent


def write_weights(path, *, causal, seed, shape=SMDM_1028M):
    """Write a checkpoint with lit-gpt's tensor names and random matrices."""
    generator = torch.Generator().manual_seed(seed)
    sizes = smdm.expected_shapes(shape["vocab"], shape["width"], shape["mlp"], shape["layers"], causal)
    tensors = {
        name: torch.ones(size) if len(size) == 1 else torch.empty(size).normal_(0, 0.02, generator=generator)
        for name, size in sizes.items()
    }
    save_file(tensors, path)


def write_checkpoint(folder, config, *, file_size=4 * 2**30):
    """Write a checkpoint in LLaDA's or Dream's layout with random matrices, in files of a little over `file_size`."""
    layout = find_layout(config, folder)
    with torch.device("meta"):
        net = layout.kind(layout.configuration(config, folder))
    device = "cuda" if torch.cuda.is_available() else "cpu"  # billions of random numbers take minutes on a CPU
    generator, part, size, files = torch.Generator(device).manual_seed(0), {}, 0, {}
    names = [layout.rename(ours) for ours, _ in net.named_parameters()]
    for theirs, parameter in zip(names, net.parameters(), strict=True):
        tensor = torch.ones(parameter.shape, dtype=torch.bfloat16, device=device)
        part[theirs] = (tensor if tensor.dim() == 1 else tensor.normal_(0, 0.02, generator=generator)).cpu()
        size += tensor.nbytes
        if size >= file_size or theirs == names[-1]:
            file = f"model-{len(set(files.values())) + 1:05}.safetensors"
            save_file(part, folder / file)
            files |= dict.fromkeys(part, file)
            part, size = {}, 0
    (folder / shards.INDEX).write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps(config))


def write_tokenizer(path, texts, size, max_trained=None):
    """Write a tokenizer.json of exactly `size` ids: at most `max_trained` learned from `texts`, the rest unused."""
    tokenizer = tokens.train_tokenizer(texts, max_trained or size)
    tokenizer.add_tokens([f"<unused_{i}>" for i in range(size - len(tokenizer))])
    tokenizer.backend_tokenizer.save(str(path))


def full_size_study(config, *, data, epochs):
    """The study of `config` with a name of its own, local data, and `epochs`."""
    source = {"source": "berglund", "berglund": {"folder": str(data)}} if data else {"source": "generated"}
    name = f"{config['study']}_full_size"
    return config | {"study": name, "data": source, "training": {**config["training"], "epochs": epochs}}


def use_checkpoint(config, folder):
    """The study of `config` with the checkpoint in `folder` and the bundled autoregressive model."""
    mdm = {"family": "diffusion", "base": "checkpoint", "checkpoint": {"folder": str(folder)}}
    ar = {"family": "autoregressive", "base": "folder", "folder": "data/base/ar"}
    return config | {"models": {"mdm": mdm, "ar": ar}}


def use_local_files(config, folder, *, shape=SMDM_1028M):
    """The study of `config` with the files of `folder` instead of the hub's."""
    config = dict(config)
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
    """The study's training and test rows; with a token for each of their words, rows fit the paper's canvas."""
    if data:
        _, train, splits = berglund.read(data)
    else:
        default = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))["data"]["generated"]
        folders = {name: ROOT / default[name] for name in ("words", "templates")}
        _, train, splits = generated.make(**{**default, **folders})
    return [row.text for rows in (train, *splits.values()) for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the files: 8 GB, or 16 GB")
    parser.add_argument("--study", choices=["paper", *PUBLISHED], default="paper")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load((ROOT / f"studies/{options.study}.yaml").read_text(encoding="utf-8"))
    config = full_size_study(config, data=options.data, epochs=options.epochs)
    if options.study in PUBLISHED:
        published = PUBLISHED[options.study]
        write_checkpoint(options.folder, published)
        write_tokenizer(options.folder / "tokenizer.json", sentences(options.data), published["vocab_size"], 20_000)
        study = use_checkpoint(config, options.folder)
    else:
        for seed, (name, model) in enumerate(config["models"].items()):
            causal = model["family"] == "autoregressive"
            write_weights(options.folder / f"{name}.safetensors", causal=causal, seed=seed)
        write_tokenizer(options.folder / "tokenizer.json", sentences(options.data), SMDM_1028M["vocab"])
        study = use_local_files(config, options.folder)
    (options.folder / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")


if __name__ == "__main__":
    main()
