"""What each outside peer needs, how to see whether it is there, and how its processes are started."""

import glob
import json
import os
import shutil
import socket
import sys

import machine
import processes
import report

HERE = os.path.dirname(os.path.abspath(__file__))
DEBIAN_PYTHON = "/usr/bin/python3"
DATA_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
# Which libraries do the arithmetic is seen in what the process has loaded.
_PROBE = """
import json, sys
found = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    found[name] = __import__(name).__version__
if "numpy" in found:
    import numpy
    numpy.zeros((2, 2)) @ numpy.zeros((2, 2))
maps = open("/proc/self/maps").read().split()
found["blas"] = sorted({word for word in maps if "/" in word and "blas" in word.lower()})
print("FOUND " + json.dumps(found))
"""


class Absent(Exception):
    """A peer that is not installed; the message says what to install."""


def openblas_core(flags):
    """The kernels that OpenBLAS is to use on a processor with these flags, or None to leave it to OpenBLAS.

    OpenBLAS 0.3.21 goes by the model's number, and on one that it does not know takes kernels of 2004: a third of the speed on Sapphire
    Rapids. A peer that is slowed down so would make no fair comparison.
    """
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= flags:
        return "SkylakeX"
    if {"avx2", "fma"} <= flags:
        return "Haswell"
    return None


def environment(**more):
    """The environment of every process: one thread each, the kernels that fit the processor unless the caller names others, and nothing
    else of the caller's that would tune a peer."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPENBLAS_", "DMLC_", "OMPI_", "GLOO_", "SLACKLINE_"))}
    single = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MXNET_CPU_WORKER_NTHREADS")}
    core = os.environ.get("OPENBLAS_CORETYPE") or openblas_core(machine.cpu_flags())
    core = {"OPENBLAS_CORETYPE": core} if core else {}
    return {**kept, **single, **core, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", **more}


def _probe(python, *modules):
    well, said = processes.ask([python, "-c", _PROBE, *modules], environment())
    lines = [text for text in said.splitlines() if text.startswith("FOUND ")]
    return json.loads(lines[-1][len("FOUND ") :]) if well and lines else None


class Installed:
    """Looks up once what is installed; every `need_...` gives what was found or raises Absent."""

    def __init__(self, settings):
        self.settings = settings
        self.known = {}

    def _once(self, name, look):
        if name not in self.known:
            self.known[name] = look()
        return self.known[name]

    def _python_with(self, *modules):
        """(interpreter, what it has): the one that was named, or this one, or Debian's."""
        asked = self.settings.python
        for python in [asked] if asked else dict.fromkeys([sys.executable, DEBIAN_PYTHON]):
            found = _probe(python, *modules)
            if found:
                return python, found
        return None

    def need_torch(self):
        found = self._once("torch", lambda: self._python_with("torch", "numpy"))
        if not found:
            advice = "apt-get install --no-install-recommends python3-torch python3-numpy libopenblas0-pthread, or --python PATH"
            raise Absent(f"PyTorch is not installed ({advice})")
        return found

    def need_mpi(self):
        def look():
            mpirun = shutil.which("mpirun")
            well, said = processes.ask([mpirun, "--version"], environment()) if mpirun else (False, "")
            found = self._python_with("mpi4py", "numpy") if well else None
            if not found:
                return None
            return mpirun, found[0], {**found[1], "mpirun": said.splitlines()[0] if said else "?"}

        found = self._once("mpi", look)
        if not found:
            raise Absent("Open MPI is not installed (apt-get install --no-install-recommends openmpi-bin python3-mpi4py)")
        return found

    def need_mxnet(self):
        venv = self.settings.mxnet_venv
        python = os.path.join(venv, "bin", "python")
        found = self._once("mxnet", lambda: _probe(python, "mxnet", "numpy"))
        if not found:
            advice = f"python3 -m venv {venv} && {venv}/bin/pip install mxnet==1.9.1 numpy==1.23.5, on Python 3.11"
            raise Absent(f"MXNet 1.9.1 is not installed ({advice})")
        return python, found

    def need_data(self):
        folder = self.settings.data_dir
        for name in DATA_FILES:
            if not any(os.path.isfile(os.path.join(folder, name + end)) for end in (".gz", "")):
                advice = "apt-get install dataset-fashion-mnist, or --data-dir DIR"
                raise Absent(f"Fashion-MNIST is not complete in {folder}: no {name} ({advice})")
        return folder


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Place:
    """Where the processes run, and how: all on loopback, or each in its own network namespace of `netns.sh`; at real-time priority or not."""

    def __init__(self, netns=False, realtime=False):
        self.interface = "eth0" if netns else "lo"
        self.netns, self.realtime = netns, realtime

    def address(self, index):
        return f"10.77.0.{index + 1}" if self.netns else "127.0.0.1"

    def command(self, index, command):
        command = ["ip", "netns", "exec", f"slackline-peer-{index}", *command] if self.netns else command
        return processes.realtime(command) if self.realtime else command


def write_job(job):
    """Leaves the job for its workers; the path of it."""
    path = os.path.join(job["folder"], "job.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(job, file, indent=1)
    return path


def script(name):
    return os.path.join(HERE, name)


def start_ddp(group, job, place, python):
    path = write_job(job)
    for index in range(job["workers"]):
        command = [python, script("train_ddp.py"), path, str(index)]
        group.start(f"worker-{index}", place.command(index, command), environment(GLOO_SOCKET_IFNAME=place.interface))


def start_mxnet(group, job, place, python, program="train_mxnet.py"):
    """Workers in the first places, servers after them, the scheduler beside the first server."""
    path, port = write_job(job), free_port()
    workers, servers = job["workers"], job["servers"]

    def start(role, index, command, needed):
        variables = environment(
            DMLC_ROLE=role,
            DMLC_PS_ROOT_URI=place.address(workers),
            DMLC_PS_ROOT_PORT=str(port),
            DMLC_NODE_HOST=place.address(index),
            DMLC_INTERFACE=place.interface,
            DMLC_NUM_SERVER=str(servers),
            DMLC_NUM_WORKER=str(workers),
        )
        name = role if role == "scheduler" else f"{role}-{index if role == 'worker' else index - workers}"
        group.start(name, place.command(index, command), variables, needed)

    # Importing the library with one of these roles serves until the workers have left.
    serve = [python, "-c", "import mxnet"]
    start("scheduler", workers, serve, needed=False)
    for index in range(workers, workers + servers):
        start("server", index, serve, needed=False)
    for index in range(workers):
        start("worker", index, [python, script(program), path], needed=True)


def start_gloo(group, job, place, python):
    path = write_job(job)
    for rank in range(job["ranks"]):
        command = [python, script("allreduce_gloo.py"), path, str(rank)]
        group.start(f"rank-{rank}", place.command(rank, command), environment(GLOO_SOCKET_IFNAME=place.interface))


def mpirun_command(mpirun, ranks, tcp):
    """Ranks on this machine only; over shared memory, or over TCP on loopback."""
    command = [mpirun, "-np", str(ranks), "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if tcp:
        command += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
    return command


def read_records(job):
    """The records of all workers, in their order."""
    records = []
    for path in glob.glob(os.path.join(glob.escape(job["folder"]), "worker-*.json")):
        with open(path, encoding="utf-8") as file:
            records.append(json.load(file))
    if len(records) != job["workers"]:
        raise processes.PeerFailed(f"{len(records)} of {job['workers']} workers left a record")
    return sorted(records, key=lambda record: record["worker"])


def train(job, start, deadline_s, targets):
    """Runs one training to its object."""
    with processes.Group(job["folder"]) as group:
        start(group)
        group.wait(deadline_s)
    return report.training(job, read_records(job), targets)


def pushpull(job, start, deadline_s):
    """Runs one repetition of pushes and pulls to its object."""
    with processes.Group(job["folder"]) as group:
        start(group)
        group.wait(deadline_s)
    return report.pushpull(job, report.of_rounds(job, read_records(job)))


def allreduce(job, start, deadline_s):
    """Runs one timed allreduce to its objects, one a size."""
    write_job(job)
    with processes.Group(job["folder"]) as group:
        start(group)
        group.wait(deadline_s)
    with open(os.path.join(job["folder"], "allreduce.json"), encoding="utf-8") as file:
        result = json.load(file)
    return [report.allreduce(job["peer"], result["version"], job["ranks"], case) for case in result["cases"]]
