"""A real Slurm of two nodes for tests, on the loopback interface: munge, a controller and nodes, run as root."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
NODES = ("lab1", "lab2")
COMPILED_IN = Path("/etc/slurm/slurm.conf")  # Snakemake's plugin unsets SLURM_CONF on the node

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={lab}/munge/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={ports[0]}
SlurmctldPidFile={lab}/slurmctld.pid
SlurmdPidFile={lab}/slurmd-%n.pid
SlurmctldLogFile={lab}/slurmctld.log
SlurmdLogFile={lab}/slurmd-%n.log
StateSaveLocation={lab}/state
SlurmdSpoolDir={lab}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=0
SlurmdTimeout=10
KillWait=3
MinJobAge=3600
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=5
GresTypes=gpu
NodeName=DEFAULT CPUs={cpus} RealMemory=100000 Gres=gpu:2 State=UNKNOWN
NodeName=lab1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=lab2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=lab Nodes=lab1,lab2 Default=YES MaxTime=INFINITE State=UP
"""


def find_obstacle():
    """Why Slurm cannot be started here, or None."""
    missing = [name for name in (*DAEMONS, "sbatch", "squeue") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} not installed"
    if os.geteuid():
        return "Slurm needs root"
    if COMPILED_IN.exists() and not COMPILED_IN.is_symlink():
        return f"{COMPILED_IN} belongs to another Slurm"
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return f"the host name {socket.gethostname()} does not resolve"
    return None


class Lab:
    """Start and stop the daemons; each is ended by the process id in its own file."""

    def __init__(self, cpus=8):
        self.host = socket.gethostname().split(".")[0]
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.cpus = cpus

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        self.folder.chmod(0o755)  # munge refuses a socket in a folder that others cannot read
        for name in ("munge", "state", "dev", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(mode=0o755)
        self._configure()
        munge, lab = self.folder / "munge", self.folder
        files = {"key-file": "key", "socket": "socket", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={munge / name}" for option, name in files.items()]
        self._run("munged", *options, f"--pid-file={lab / 'munged.pid'}")
        self._run("slurmctld", "-f", lab / "slurm.conf")
        for node in NODES:
            self._run("slurmd", "-f", lab / "slurm.conf", "-N", node)
        self._wait_until_idle()

    def __exit__(self, *_):
        subprocess.run(["scancel", "-u", "root"], env=self.environment, check=False, timeout=20)
        for file in (*(f"slurmd-{node}" for node in NODES), "slurmctld", "munged"):
            self._end(self.folder / f"{file}.pid")
        if COMPILED_IN.is_symlink() and COMPILED_IN.readlink() == self.folder / "slurm.conf":
            COMPILED_IN.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def environment(self):
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def queue(self, states="pending,running"):
        """The requests of jobs: {(comment, memory, time, GPUs)}; Snakemake's comment has the rule or the group."""
        fields = ("comment", "minmemory", "timelimit", "tres-per-job")
        listed = self._run("squeue", "-h", "-t", states, "-O", ",".join(f"{field}:200" for field in fields))
        return {tuple(line[i : i + 200].strip() for i in range(0, 800, 200)) for line in listed.splitlines()}

    def fail(self, job):
        """Kill the node on which a job runs: its daemon and all its processes, without a message to the controller."""
        node, job = self._run("squeue", "-h", "-o", "%N %i", "-j", job).split()
        os.kill(int((self.folder / f"slurmd-{node}.pid").read_text()), signal.SIGKILL)
        started = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _belongs_to(pid, node, job)]
        for pid in sorted(
            started, key=lambda pid: not _read_command(pid).startswith("slurmstepd")
        ):  # slurmstepd first: it would report
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return node

    def running(self):
        """{job: comment} of the jobs that are running."""
        listed = self._run("squeue", "-h", "-t", "running", "-o", "%i %k")
        return dict(line.split(maxsplit=1) for line in listed.splitlines())

    def _configure(self):
        lab = self.folder
        (lab / "munge/key").write_bytes(secrets.token_bytes(1024))
        (lab / "munge/key").chmod(0o400)
        for i in range(2):  # fake devices that Slurm counts and assigns; there is no GPU
            os.mknod(lab / f"dev/nvidia{i}", 0o600 | 0o020000, os.makedev(1, 3))
        (lab / "gres.conf").write_text(f"Name=gpu File={lab}/dev/nvidia[0-1]\n")
        (lab / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # required, but unused
        (lab / "slurm.conf").write_text(
            CONFIGURATION.format(lab=lab, host=self.host, cpus=self.cpus, ports=_free_ports(3))
        )
        COMPILED_IN.parent.mkdir(exist_ok=True)
        COMPILED_IN.unlink(missing_ok=True)
        COMPILED_IN.symlink_to(lab / "slurm.conf")

    def _run(self, *command):
        done = subprocess.run(
            list(map(str, command)), env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            logs = "\n".join(log.read_text()[-2000:] for log in self.folder.glob("*.log"))
            raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}\n{logs}")
        return done.stdout

    def _wait_until_idle(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self._run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES):
                return
            time.sleep(0.25)
        logs = "\n".join(log.read_text()[-2000:] for log in self.folder.glob("slurmd-*.log"))
        raise RuntimeError(f"the nodes did not start: {logs}")

    def _end(self, file):
        """End the daemon whose process id is in `file`."""
        if not file.is_file():
            return
        pid = int(file.read_text())
        for number in (signal.SIGTERM, signal.SIGKILL):
            daemon = file.stem.split("-")[0]
            if _is_running(pid, daemon):
                os.kill(pid, number)
            deadline = time.monotonic() + 10
            while _is_running(pid, daemon) and time.monotonic() < deadline:
                time.sleep(0.1)


def _is_running(pid, name):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == name
    except FileNotFoundError:
        return False


def _read_command(pid):
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _belongs_to(pid, node, job):
    """Whether a process belongs to a job of a node, by its environment; slurmstepd by its command line."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    expected = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_JOB_ID={job}".encode()}
    return expected <= set(variables) or _read_command(pid).startswith(f"slurmstepd: [{job}.")


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports
