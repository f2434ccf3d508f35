"""How a job tells what it does: a bar in a terminal, plain lines in its log, one line for a user's mistake."""

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
    """One running job: where its lines go and how many threads it may use."""

    def __init__(self, log=None, threads=None):
        self.log = Path(log) if log else None
        self.threads = threads
        if self.log:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_text("")

    def say(self, line):
        """Write one line to the log, and to the terminal where there is no log."""
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
        self.done, self.first, self.began, self.told = start, start, time.monotonic(), 0.0
        self.bar = tqdm(total=total, initial=start, desc=label, unit=unit, disable=None, leave=False)

    def advance(self, count=1, **facts):
        """Count `count` units more, with facts to show beside them."""
        self.done += count
        self.bar.set_postfix(facts, refresh=False)
        self.bar.update(count)
        if time.monotonic() - self.told >= SECONDS_BETWEEN_LINES or self.done >= self.total:
            self.told = time.monotonic()
            shown = "".join(f", {name} {value}" for name, value in facts.items())
            self.job.say(f"{self.label}: {self.done}/{self.total} {self.unit}, {self.rate():.1f} {self.unit}/s{shown}")

    def rate(self):
        """Units a second since the start."""
        return (self.done - self.first) / max(time.monotonic() - self.began, 1e-9)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()


@contextlib.contextmanager
def job(snakemake):
    """Run a script's body: threads set, progress logged, a `UserError` told in one line instead of a traceback.

    Inputs that changed since another job made them are refused. A job that an earlier, killed run left behind ends
    before the body begins.
    """
    if snakemake.log:
        files.hold(snakemake.log[0], waiting=lambda: print("waiting for this job of an earlier run to end", flush=True))
    running = Job(snakemake.log[0] if snakemake.log else None, snakemake.threads)
    # Hugging Face libraries draw bars of their own around work of milliseconds.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    torch = sys.modules.get("torch")  # where the script imports it
    gpus, began = getattr(snakemake, "resources", {}).get("gpu", 0), time.monotonic()
    threadpoolctl.threadpool_limits(snakemake.threads)  # NumPy's: by itself it takes every core
    if torch:
        torch.set_num_threads(snakemake.threads)
        _choose_gpus(gpus, torch.cuda.device_count())
    if "transformers" in sys.modules:
        sys.modules["transformers"].utils.logging.disable_progress_bar()
    try:
        files.verify(snakemake.input, tell=lambda line: (running.say(line), print(line, file=sys.stderr)))
        yield running
        files.record(snakemake.output)
        # Snakemake looks at a job every half minute only.
        running.say(f"memory: at most {_peak_memory() / 2**30:.1f} GiB")
        running.say(f"CPU time: {sum(os.times()[:4]):.1f} s")
        if torch and torch.cuda.is_initialized():
            # Torch holds more than is in use at once: it keeps freed blocks, whose sizes may not fit again.
            held, taken = torch.cuda.max_memory_reserved() / 2**30, torch.cuda.max_memory_allocated() / 2**30
            running.say(f"GPU memory: at most {held:.1f} GiB, {taken:.1f} GiB of it in use at once")
            running.say(f"GPU time: at most {max(gpus, 1) * (time.monotonic() - began):.1f} s")
    except UserError as error:
        _end(running, error)
    except Exception as error:
        if words := files.full(error):
            _end(running, f"{words}: {getattr(error, 'filename', None) or ', '.join(snakemake.output)} was not written")
        raise


def _peak_memory():
    """The most bytes of memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _choose_gpus(wanted, there):
    """Let this process see as many GPUs as it asked for, of those `there`; other jobs' only where no more are free."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [str(number) for number in range(there)]
    if not 0 < wanted < len(names):
        return
    locks = Path(tempfile.gettempdir()) / f"reversal-{os.getuid()}"
    chosen = list(itertools.islice((name for name in names if files.hold(locks / f"gpu-{name}")), wanted))
    shared = [name for name in names if name not in chosen]
    # CUDA reads this when it starts, which it has not yet.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join([*chosen, *shared][:wanted])


def _end(running, message):
    if running.log:
        running.say(f"error: {message}")
    sys.exit(f"error: {message}")
