"""A process that has imported what jobs import, of which each job begins as a copy: that is most of a small job's time.

Only other people's libraries are shared. What a job imports of the project, reads, writes and prints is its own, and so
is the process that it can be killed in.
"""

import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

LIBRARIES = ["pandas", "scipy.stats", "matplotlib.figure", "matplotlib.backends.backend_svg", "safetensors.torch"]
LIBRARIES += [f"transformers.models.{name}" for name in ("llama.modeling_llama", "qwen2.modeling_qwen2")]
COPIES = multiprocessing.get_context("fork")


def start():
    """The process, which ends with the one that called."""
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=-1, env=one_thread)
    assert server.stdout.readline() == b"ready\n"
    return server


def run(script, server, measured):
    """Run a script as a copy of the process `server`, with the folder, environment and outputs of this one.

    `measured(pid)` is a context in which it runs; raises where it fails.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.connect(_address(server))
        socket.send_fds(asked, [json.dumps([script, os.getcwd(), dict(os.environ)]).encode()], [1, 2])
        with measured(int(asked.recv(100))):
            code = int(asked.recv(100))
    if code:
        raise subprocess.CalledProcessError(code, script)


def _address(server):
    return f"\0reversal-jobs-{server}"  # no file: it is gone with the process


def _serve():
    for library in LIBRARIES:
        importlib.import_module(library)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(_address(os.getpid()))
        listener.listen()
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that attend are not waited for
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:  # which closes with the caller
            asked, _ = listener.accept()
            with asked:
                if not os.fork():
                    _attend(asked)
                    os._exit(0)


def _attend(asked):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told, outputs, *_ = socket.recv_fds(asked, 2**20, 2)
    job = COPIES.Process(target=_become, args=(*json.loads(told), outputs))
    job.start()
    asked.send(str(job.pid).encode())
    job.join()
    asked.send(str(job.exitcode).encode())


def _become(script, folder, environment, outputs):
    for descriptor, output in enumerate(outputs, start=1):
        os.dup2(output, descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script]
    Path("/proc/self/comm").write_text(".".join(script.split(".")[-2:]))  # by which others find it
    sys.path[0:1] = [os.path.dirname(script), *environment["PYTHONPATH"].split(os.pathsep)]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _serve()
