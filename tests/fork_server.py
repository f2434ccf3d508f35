"""A process that has imported the libraries that jobs import; each job starts as a fork of it.

Imports are most of the time of a small job. Only third-party libraries are imported in advance: a job still imports the
project's code, has its own files and outputs, and runs in a process of its own, which can be killed.
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
FORK = multiprocessing.get_context("fork")


def start():
    """Start the server, which ends with the calling process."""
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=-1, env=one_thread)
    assert server.stdout.readline() == b"ready\n"
    return server


def run(script, server, measure):
    """Run a script as a fork of the process `server`, with the folder, environment and outputs of this one.

    `measure(pid)` is a context manager around the run. An error is raised if the script fails.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(_address(server))
        socket.send_fds(connection, [json.dumps([script, os.getcwd(), dict(os.environ)]).encode()], [1, 2])
        with measure(int(connection.recv(100))):
            code = int(connection.recv(100))
    if code:
        raise subprocess.CalledProcessError(code, script)


def _address(server):
    return f"\0reversal-jobs-{server}"  # an abstract address: it ends with the process


def _serve():
    for library in LIBRARIES:
        importlib.import_module(library)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(_address(os.getpid()))
        listener.listen()
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the handlers
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:  # stdin closes with the caller
            connection, _ = listener.accept()
            with connection:
                if not os.fork():
                    _handle(connection)
                    os._exit(0)


def _handle(connection):
    """Run the script that a connection asks for, and send its process id and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, outputs, *_ = socket.recv_fds(connection, 2**20, 2)
    job = FORK.Process(target=_run_script, args=(*json.loads(message), outputs))
    job.start()
    connection.send(str(job.pid).encode())
    job.join()
    connection.send(str(job.exitcode).encode())


def _run_script(script, folder, environment, outputs):
    for descriptor, output in enumerate(outputs, start=1):
        os.dup2(output, descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script]
    Path("/proc/self/comm").write_text(".".join(script.split(".")[-2:]))  # the name by which `study_fixtures` finds it
    sys.path[0:1] = [os.path.dirname(script), *environment["PYTHONPATH"].split(os.pathsep)]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _serve()
