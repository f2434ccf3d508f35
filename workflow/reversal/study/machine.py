"""What a study needs of the machine it runs on: GPUs, if its profile asks for them, and disk space for its models."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

from ..common.errors import UserError
from .resolve import is_built_by_workflow, resolve_models

COUNT_GPUS = "import torch; print(torch.cuda.device_count())"
CHECKPOINTS = 2  # kept of each training: weights and two moments


def require_gpus(limit, processes, available):
    """Raise an error if jobs share `limit` GPUs and fewer are `available`, or than one training needs."""
    if limit and not available:
        raise UserError(
            f"jobs share {limit} GPU (--resources gpu={limit}, as in profiles/gpu), but PyTorch finds none here; run "
            "without that profile to use the CPU"
        )
    if limit and processes > min(limit, available):
        raise UserError(
            f"training_processes is {processes}; allowed: up to {min(limit, available)}, the GPUs here (--resources "
            f"gpu={limit})"
        )


def count_gpus():
    """How many GPUs PyTorch finds, in a process of its own: importing torch takes seconds."""
    process = subprocess.run([sys.executable, "-c", COUNT_GPUS], capture_output=True, text=True, check=False)
    return int(process.stdout) if process.returncode == 0 else 0


def require_disk_space(config, folder):
    """Raise an error if the models that a study has still to make, as far as their sizes are known, do not fit."""
    needed = count_missing_bytes(config, folder)
    existing = next(part for part in (folder, *Path(folder).absolute().parents) if Path(part).exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise UserError(
            f"{folder}: the models still to be made need {needed / 2**30:.1f} GiB, only {free / 2**30:.1f} are free; "
            "free some space, or use fewer models or seeds"
        )


def count_missing_bytes(config, folder):
    """The bytes of the models that a study has still to make in `folder`, and of one training's checkpoints.

    A base is stored in its own precision, and so is a network with a merged adapter; other trainings leave float32.
    Models whose size is unknown before the download count once their base is there.
    """
    total = checkpoints = 0
    for name, model in resolve_models(config).items():
        parameters, stored = _measure_model(name, model, folder)
        total += 0 if _find_base(folder, name) else stored
        if model["training"] is None:  # the bases are linked
            continue
        missing = [seed for seed in config["seeds"] if not (Path(folder) / name / f"seed_{seed}").exists()]
        adapter = model["training"].get("adapter")
        total += len(missing) * (stored if adapter else 4 * parameters)
        if missing and not adapter:
            checkpoints = max(checkpoints, 3 * CHECKPOINTS * 4 * parameters)
    return total + checkpoints


def _measure_model(name, model, folder):
    """The number of parameters of a model, and the bytes of its base; zeros where that is unknown yet."""
    if base := _find_base(folder, name):
        return _measure_tensors(base.glob("*.safetensors"))
    if is_built_by_workflow(model):
        shape = model["network"]
        width, mlp = shape["width"], shape["mlp"]
        parameters = shape["layers"] * (4 * width**2 + 3 * width * mlp) + 2 * shape["vocabulary"] * width
        return parameters, 4 * parameters
    source = model["source"]
    if source.get("folder"):
        return _measure_tensors(Path(source["folder"]).glob("*.safetensors"))
    weights = source.get("weights", {})
    parameters, _ = _measure_tensors([Path(weights["path"])] if "path" in weights else [])
    return parameters, 4 * parameters  # lit-gpt's files become float32


def _find_base(folder, name):
    """The folder of a model's base, or None."""
    base = Path(folder) / name / "base"
    return base if base.exists() else None


def _measure_tensors(files):
    """The number of values in safetensors files, and their bytes, from the headers; unreadable files count nothing."""
    count = stored = 0
    for file in files:
        try:
            with file.open("rb") as stream:
                header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
            count += sum(math.prod(tensor["shape"]) for tensor in tensors)
            stored += sum(tensor["data_offsets"][1] - tensor["data_offsets"][0] for tensor in tensors)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError):
            continue
    return count, stored
