"""What a study needs of the machine that it runs on: GPUs where it counts on them, and room for its models."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

from ..common.errors import UserError

COUNT_GPUS = "import torch; print(torch.cuda.device_count())"
SNAPSHOTS = 2  # that a training keeps: weights and two moments each


def require_gpus(limit, processes, there):
    """Refuse a run whose jobs take turns on `limit` GPUs, where `there` are none, or fewer than a training's."""
    if limit and not there:
        raise UserError(
            f"jobs are to share {limit} GPU (--resources gpu={limit}, as profiles/gpu has it), but PyTorch sees none "
            "here; leave that profile out to run on the processor"
        )
    if limit and processes > min(limit, there):
        raise UserError(
            f"training_processes is {processes}; allowed: up to {min(limit, there)}, the GPUs here (--resources "
            f"gpu={limit})"
        )


def gpus():
    """How many GPUs PyTorch sees, asked in a process of its own, which takes seconds."""
    told = subprocess.run([sys.executable, "-c", COUNT_GPUS], capture_output=True, text=True, check=False)
    return int(told.stdout) if told.returncode == 0 else 0


def require_room(config, folder):
    """Refuse a study whose models, as far as their sizes are known, do not fit beside what is in their `folder`."""
    needed = missing(config, folder)
    free = shutil.disk_usage(
        next(part for part in (folder, *Path(folder).absolute().parents) if Path(part).exists())
    ).free
    if needed > free:
        raise UserError(
            f"{folder}: the models still to be made need {_size(needed)}, and {_size(free)} are free; make room, or "
            "ask for fewer models or seeds"
        )


def missing(config, folder):
    """The bytes of the models that a study has still to make in a `folder`, and of one training's snapshots.

    A base is kept in the precision it has, and so is what an adapter was merged into; other trainings leave float32.
    Models whose size is not known before they are fetched count once their base is there.
    """
    whole = snapshot = 0
    for name in config["models"]:
        numbers, stored = _sizes(config, name, folder)
        whole += 0 if _base(folder, name) else stored
        if config["training"] == "none":  # the bases are linked
            continue
        left = [seed for seed in config["seeds"] if not (Path(folder) / name / f"seed_{seed}").exists()]
        adapted = (config["training"] | config["models"][name].get("training", {})).get("adapter")
        whole += len(left) * (stored if adapted else 4 * numbers)
        if left and not adapted:
            snapshot = max(snapshot, 3 * SNAPSHOTS * 4 * numbers)
    return whole + snapshot


def _sizes(config, name, folder):
    """How many numbers a model has, and the bytes of its base; zeros where that is not known yet."""
    model = config["models"][name]
    if made := _base(folder, name):
        return _tensors(made.glob("*.safetensors"))
    if model["base"] in ("pretrain", "scratch"):
        shape = config["network"] | model.get("network", {})
        width, mlp = shape["width"], shape["mlp"]
        numbers = shape["layers"] * (4 * width**2 + 3 * width * mlp) + 2 * shape["vocabulary"] * width
        return numbers, 4 * numbers
    told = model if model["base"] == "folder" else model[model["base"]]
    if "folder" in told:
        return _tensors(Path(told["folder"]).glob("*.safetensors"))
    numbers, _ = _tensors([Path(told["weights"]["path"])] if "path" in told.get("weights", {}) else [])
    return numbers, 4 * numbers  # lit-gpt's files become float32


def _base(folder, name):
    """Where a model's base is, or None."""
    base = Path(folder) / name / "base"
    return base if base.exists() else None


def _tensors(files):
    """The numbers in safetensors files, by their headers, and their bytes; a file without one is left to its reader."""
    numbers = stored = 0
    for file in files:
        try:
            with file.open("rb") as stream:
                header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
            numbers += sum(math.prod(tensor["shape"]) for tensor in tensors)
            stored += sum(tensor["data_offsets"][1] - tensor["data_offsets"][0] for tensor in tensors)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError):
            continue
    return numbers, stored


def _size(count):
    unit = next(power for power in (3, 2, 1, 0) if count >= 1024**power or not power)
    return f"{count / 1024**unit:.1f} {['bytes', 'KiB', 'MiB', 'GiB'][unit]}"
