"""A Slurm of one's own on this machine: slurmctld, slurmd and munged in a folder. Debian's slurm-wlm has all three.

The methods of `Slurm` run many jobs of `true`. The settings are those that Slurm's own guide recommends for many short jobs: no
accounting, no process tracking by cgroups, and no delay between scheduling passes. Slurm has more CPUs than the machine, so that
the number of CPUs does not limit the jobs.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rows import Bench

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "sinfo")
READY_MAX_S = 60.0
ENDED_MAX_S = 900.0
POLL_S = 0.2
TRUE = "/bin/true"


@dataclass(frozen=True, slots=True)
class Settings:
    """One way to configure Slurm's scheduler."""

    name: str
    scheduler: str
    parameters: str
    cpus: int


AT_ONCE = "sched_min_interval=0,sched_interval=1,sched_max_job_start=0,batch_sched_delay=0,max_sched_time=30,"
AT_ONCE += "default_queue_depth=100000,partition_job_depth=0,max_array_tasks=20000"
# A job takes about a second, most of it waiting, so more CPUs give more jobs per second until the machine is busy.
SETTINGS = (
    Settings("backfill, 256 CPUs", "sched/backfill", AT_ONCE + ",bf_interval=1", 256),
    Settings("backfill, 1,024 CPUs", "sched/backfill", AT_ONCE + ",bf_interval=1", 1024),
    Settings("builtin, 256 CPUs", "sched/builtin", AT_ONCE, 256),
    Settings("builtin, 1,024 CPUs", "sched/builtin", AT_ONCE, 1024),
    Settings("backfill, 256 CPUs, Slurm's default parameters", "sched/backfill", "default_queue_depth=100", 256),
)


class Slurm:
    """The commands of a running Slurm."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        self.script = folder / "true.sh"
        self.script.write_text(f"#!/bin/sh\nexec {TRUE}\n")

    def array(self, count: int) -> tuple[float, float]:
        """Submit one array of jobs. Return the seconds until it is accepted, and until all its jobs have ended."""
        began = time.perf_counter()
        self.run("sbatch", "--parsable", f"--array=0-{count - 1}", "--output=/dev/null", "--ntasks=1", str(self.script))
        accepted_s = time.perf_counter() - began
        self._until_idle()
        return accepted_s, time.perf_counter() - began

    def single_jobs(self, count: int, threads: int) -> tuple[float, float]:
        """Submit jobs one by one from several threads. Return the seconds until they are accepted, and until all have ended."""
        began = time.perf_counter()
        command = ("sbatch", "--parsable", "--output=/dev/null", "--ntasks=1", str(self.script))
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda _: self.run(*command), range(count)))
        accepted_s = time.perf_counter() - began
        self._until_idle()
        return accepted_s, time.perf_counter() - began

    def steps(self, count: int, threads: int) -> float:
        """Run job steps in one allocation: `srun` for each, from several threads. Return the seconds until all have ended."""
        loop = f"seq {count} | xargs -P {threads} -n 1 sh -c 'exec srun --quiet --ntasks=1 --exact --overlap {TRUE}'"
        script = self.folder / "steps.sh"
        script.write_text(f"#!/bin/sh\n{loop}\n")
        began = time.perf_counter()
        self.run("sbatch", "--parsable", "--output=/dev/null", f"--ntasks={min(threads, self.settings.cpus)}", str(script))
        self._until_idle()
        return time.perf_counter() - began

    def one_step(self, count: int) -> float:
        """Run one job step with many tasks. Slurm starts them all with one request, and keeps no record of each."""
        began = time.perf_counter()
        self.run("srun", "--quiet", f"--ntasks={count}", "--overcommit", "--nodes=1", TRUE)
        return time.perf_counter() - began

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=ENDED_MAX_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)[:200]}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def _until_idle(self) -> None:
        until_s = time.monotonic() + ENDED_MAX_S
        while self.run("squeue", "--noheader", "--states=PENDING,CONFIGURING,RUNNING,COMPLETING", "--format=%i").strip():
            if time.monotonic() > until_s:
                raise RuntimeError(f"Slurm has not ended all jobs within {ENDED_MAX_S:.0f} s")
            time.sleep(POLL_S)


@contextmanager
def slurm(bench: Bench, settings: Settings) -> Iterator[Slurm]:
    """A fresh Slurm. Its processes end with the context."""
    search = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
    if missing:
        raise RuntimeError(f"{', '.join(missing)} of Slurm is not installed: `make bench` does that")
    folder = bench.fresh("slurm")
    _configure(folder, settings)
    found = Slurm(folder, settings)
    with ExitStack() as running:
        munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
        munge += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]
        running.enter_context(_process(munge, found))
        _until(lambda: (folder / "munge.socket").exists(), "munged")
        running.enter_context(_process(["slurmctld", "-D", "-i"], found))
        _until(lambda: _answers(found, "scontrol", "ping"), "slurmctld")
        running.enter_context(_process(["slurmd", "-D", "-N", "bench"], found))
        _until(lambda: "idle" in found.run("sinfo", "--noheader", "--format=%t"), "slurmd")
        yield found


def _configure(folder: Path, settings: Settings) -> None:
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    controller, node = _free_ports(2)
    lines = {
        "ClusterName": "bench",
        "SlurmctldHost": f"{socket.gethostname()}(127.0.0.1)",
        "SlurmctldPort": controller,
        "SlurmdPort": node,
        "SlurmUser": getpass.getuser(),
        "SlurmdUser": getpass.getuser(),
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdLogFile": folder / "slurmd.log",
        "SlurmctldDebug": "error",
        "SlurmdDebug": "error",
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/none",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "SchedulerType": settings.scheduler,
        "SchedulerParameters": settings.parameters,
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "MaxArraySize": "20001",
        "MaxJobCount": "100000",
        "MaxStepCount": "100000",
        "MinJobAge": "2",
        "CompleteWait": "0",
        "MessageTimeout": "60",
        "SwitchType": "switch/none",
        "NodeName": f"bench NodeAddr=127.0.0.1 NodeHostname={socket.gethostname()} Port={node} CPUs={settings.cpus} State=UNKNOWN",
        "PartitionName": "all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO",
    }
    (folder / "slurm.conf").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


@contextmanager
def _process(command: Sequence[str], found: Slurm) -> Iterator[None]:
    with open(found.folder / f"{command[0]}.out", "ab") as log:
        process = subprocess.Popen(command, env=found.environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(found: Slurm, *command: str) -> bool:
    try:
        return "is UP" in found.run(*command)
    except RuntimeError:
        return False


def _until(condition: object, what: str) -> None:
    assert callable(condition)
    until_s = time.monotonic() + READY_MAX_S
    while not condition():
        if time.monotonic() > until_s:
            raise RuntimeError(f"{what} did not start")
        time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        listeners = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]
