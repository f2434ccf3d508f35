"""What every job does around its work: threads and GPUs, progress in a terminal and a log, one-line errors."""

import contextlib
import itertools
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import threadpoolctl
from tqdm import tqdm

from . import files
from .errors import UserError

SECONDS_BETWEEN_LINES = 5.0


class Job:
    """A running job: its log and its number of threads."""

    def __init__(self, log=None, threads=None):
        self.log = Path(log) if log else None
        self.threads = threads
        if self.log:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_text("")

    def log_line(self, line):
        """Write one line to the log, or to the terminal if there is no log."""
        if self.log:
            with self.log.open("a", encoding="utf-8") as stream:
                print(time.strftime("%H:%M:%S"), line, file=stream)
        else:
            print(line, file=sys.stderr, flush=True)

    def progress(self, total, label, unit):
        """A `Progress` over `total` units."""
        return Progress(self, total, label, unit)


class Progress:
    """A bar in a terminal; otherwise a line every few seconds."""

    def __init__(self, job, total, label, unit, start=0):
        self.job, self.total, self.label, self.unit = job, total, label, unit
        self.done, self.first, self.began, self.last_line = start, start, time.monotonic(), 0.0
        self.bar = tqdm(total=total, initial=start, desc=label, unit=unit, disable=None, leave=False)

    def advance(self, count=1, **values):
        """Count `count` more units, with values to show beside them."""
        self.done += count
        self.bar.set_postfix(values, refresh=False)
        self.bar.update(count)
        if time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES or self.done >= self.total:
            self.last_line = time.monotonic()
            shown = "".join(f", {name} {value}" for name, value in values.items())
            rate = (self.done - self.first) / max(time.monotonic() - self.began, 1e-9)
            self.job.log_line(f"{self.label}: {self.done}/{self.total} {self.unit}, {rate:.1f} {self.unit}/s{shown}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()


@contextlib.contextmanager
def job(snakemake):
    """Run a script's body: set threads, log progress, and end a `UserError` in one line instead of a traceback.

    Inputs that changed since another job made them are rejected. If a killed run left the same job running, wait for
    it to end.
    """
    if snakemake.log:
        files.lock(snakemake.log[0], waiting=lambda: print("waiting for this job of an earlier run to end", flush=True))
    running = Job(snakemake.log[0] if snakemake.log else None, snakemake.threads)
    # Hugging Face libraries would draw progress bars of their own.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    torch = sys.modules.get("torch")  # if the script imports it
    gpus, began = getattr(snakemake, "resources", {}).get("gpu", 0), time.monotonic()
    threadpoolctl.threadpool_limits(snakemake.threads)  # NumPy would take every core
    if torch:
        torch.set_num_threads(snakemake.threads)
        _reserve_gpus(gpus, torch.cuda.device_count())
    if "transformers" in sys.modules:
        sys.modules["transformers"].utils.logging.disable_progress_bar()
    try:
        files.verify_hashes(snakemake.input, warn=lambda line: (running.log_line(line), print(line, file=sys.stderr)))
        yield running
        files.record_hashes(snakemake.output)
        # Snakemake samples memory only every half minute.
        running.log_line(f"memory: at most {_peak_memory() / 2**30:.1f} GiB")
        running.log_line(f"CPU time: {sum(os.times()[:4]):.1f} s")
        if torch and torch.cuda.is_initialized():
            # Torch reserves more than it uses: it keeps freed blocks for reuse.
            reserved, used = torch.cuda.max_memory_reserved() / 2**30, torch.cuda.max_memory_allocated() / 2**30
            running.log_line(f"GPU memory: at most {reserved:.1f} GiB, {used:.1f} GiB of it in use at once")
            running.log_line(f"GPU time: at most {max(gpus, 1) * (time.monotonic() - began):.1f} s")
    except UserError as error:
        _exit_with_error(running, error)
    except Exception as error:
        if reason := files.describe_full_disk(error):
            _exit_with_error(
                running, f"{reason}: {getattr(error, 'filename', None) or ', '.join(snakemake.output)} was not written"
            )
        raise


def _peak_memory():
    """The peak memory of this process in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _reserve_gpus(wanted, available):
    """Make `wanted` of the `available` GPUs visible to this process: free ones first, then those of other jobs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(available)]
    if not 0 < wanted < len(names):
        return
    locks = Path(tempfile.gettempdir()) / f"reversal-{os.getuid()}"
    free = list(itertools.islice((name for name in names if files.lock(locks / f"gpu-{name}")), wanted))
    busy = [name for name in names if name not in free]
    # CUDA reads this variable when it is first used, which is later.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join([*free, *busy][:wanted])


def _exit_with_error(job, message):
    if job.log:
        job.log_line(f"error: {message}")
    sys.exit(f"error: {message}")
