"""What a study needs of the machine that it runs on: GPUs where it counts on them, and room for its models."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

from .errors import UserError

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

    Models whose size is not known before they are fetched count once their base is there.
    """
    if config["training"] == "none":  # the bases are linked
        return sum(_parameters(config, name, folder) * 4 for name in config["models"] if not _base(folder, name))
    whole = snapshot = 0
    for name in config["models"]:
        weights = 4 * _parameters(config, name, folder)  # float32
        stages = [f"seed_{seed}" for seed in config["seeds"]]
        left = [stage for stage in stages if not (Path(folder) / name / stage).exists()]
        whole += weights * (len(left) + (not _base(folder, name)))
        if left and not (config["training"] | config["models"][name].get("training", {})).get("adapter"):
            snapshot = max(snapshot, 3 * SNAPSHOTS * weights)
    return whole + snapshot


def _parameters(config, name, folder):
    """How many parameters a model has; 0 where that is not known yet."""
    model = config["models"][name]
    if made := _base(folder, name):
        return sum(map(_tensors, made.glob("*.safetensors")))
    if model["base"] in ("pretrain", "scratch"):
        shape = config["network"] | model.get("network", {})
        width, mlp = shape["width"], shape["mlp"]
        return shape["layers"] * (4 * width**2 + 3 * width * mlp) + 2 * shape["vocabulary"] * width
    told = model if model["base"] == "folder" else model[model["base"]]
    if "folder" in told:
        return sum(map(_tensors, Path(told["folder"]).glob("*.safetensors")))
    return _tensors(Path(told["weights"]["path"])) if "path" in told.get("weights", {}) else 0


def _base(folder, name):
    """Where a model's base is, or None."""
    base = Path(folder) / name / "base"
    return base if base.exists() else None


def _tensors(file):
    """The numbers in a safetensors file, by its header; 0 where it has none, of which its reader will tell."""
    try:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError):
        return 0


def _size(count):
    unit = next(power for power in (3, 2, 1, 0) if count >= 1024**power or not power)
    return f"{count / 1024**unit:.1f} {['bytes', 'KiB', 'MiB', 'GiB'][unit]}"
