"""A real Slurm over the machines of a lab: the controller on this machine, and a slurmd on each machine, with simulated GPUs."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from eventually import eventually
from hosts.lab import Lab, Machine
from ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
PARTITIONS = {
    "gpu": "Default=YES PreemptMode=OFF",
    "spot": "PreemptMode=REQUEUE GraceTime=33",  # jobs of `urgent` preempt those of `spot` and `brief`
    "brief": "PreemptMode=CANCEL GraceTime=0",
    "urgent": "PreemptMode=OFF PriorityTier=10",
}
SEARCH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def why_not() -> str | None:
    """Why there can be no Slurm here; None: there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    return f"{', '.join(missing)} of Slurm not installed: `make test` installs it" if missing else None


class SlurmCluster:
    def __init__(self, folder: Path, lab: Lab, machines: Sequence[Machine], gpus: int) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": SEARCH}
        self._machines = machines
        self._controller: subprocess.Popen[bytes] | None = None
        folder.mkdir(mode=0o755)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        port = free_port(lab.address)
        for number in range(gpus):  # Slurm takes only device files for GPUs, and reads the index of a GPU from the name
            os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{gpus - 1}]\n")
        (folder / "state").mkdir()
        lines = {
            "ClusterName": "lab",
            "SlurmctldHost": f"{socket.gethostname()}({lab.address})",
            "SlurmctldPort": port,
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={folder}/munge.socket",
            "CredType": "cred/munge",
            "StateSaveLocation": folder / "state",
            "SlurmdSpoolDir": f"{folder}/spool-%n",
            "SlurmctldPidFile": folder / "slurmctld.pid",
            "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
            "SlurmctldLogFile": folder / "slurmctld.log",
            "SlurmdLogFile": f"{folder}/slurmd-%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "JobCompType": "jobcomp/none",
            "SlurmdParameters": "config_overrides",
            "ReturnToService": "2",
            "SlurmdTimeout": "30",
            "KillWait": "60",
            "InactiveLimit": "0",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_min_interval=0,sched_interval=1,batch_sched_delay=0,bf_interval=1",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU_Memory",
            "GresTypes": "gpu",
            "CompleteWait": "0",
            "SwitchType": "switch/none",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "CANCEL",
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        for each in machines:
            text += (
                f"NodeName={each.name} NodeAddr={each.address} NodeHostname={each.name} CPUs=8 RealMemory=64000 Gres=gpu:{gpus}\n"
            )
        for name, settings in PARTITIONS.items():
            text += f"PartitionName={name} Nodes=ALL MaxTime=INFINITE State=UP {settings}\n"
        (folder / "slurm.conf").write_text(text)

    def start_controller(self) -> None:
        """Start the controller, and start it again if it ends, for example because another program has its port for a moment."""

        def is_up() -> bool:
            if self._controller is None or self._controller.poll() is not None:
                with open(self.folder / "slurmctld.out", "ab") as log:
                    self._controller = subprocess.Popen(["slurmctld", "-D"], env=self.environment, stdout=log, stderr=log)
            return "is UP" in self.run("scontrol", "ping")

        eventually(is_up, "slurmctld", within_s=120.0)

    def stop_controller(self) -> None:
        """End the controller in order: one that is killed forgets the jobs of the last seconds."""
        if self._controller is not None:
            self._controller.terminate()
            self._controller.wait()

    def start_node(self, machine: Machine) -> None:
        (self.folder / f"spool-{machine.name}").mkdir(exist_ok=True)
        machine.start("slurmd", "-D", "-N", machine.name, log=self.folder / f"{machine.name}.out", environment=self.environment)

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return done.stdout

    def submit(self, partition: str, *options: str) -> str:
        """Submit a job that runs until it is cancelled, and return its id."""
        words = ["sbatch", "--parsable", f"--partition={partition}", "--output=/dev/null", "--chdir=/", *options]
        return self.run(*words, "--wrap=exec sleep 600").strip()

    def state(self, job: str) -> str:
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

    def jobs(self) -> list[str]:
        """The names of the jobs that have not ended."""
        return self.run("squeue", "--noheader", "--format=%j").split()


@contextmanager
def slurm_cluster(folder: Path, lab: Lab, machines: Sequence[Machine], gpus: int) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(folder, lab, machines, gpus)
    with ExitStack() as running:
        munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
        munge += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]
        with open(folder / "munged.out", "ab") as log:
            munged = subprocess.Popen(munge, env=cluster.environment, stdout=log, stderr=log)
        running.callback(munged.wait)
        running.callback(munged.kill)
        eventually(lambda: (folder / "munge.socket").exists(), "munged")
        cluster.start_controller()
        running.callback(cluster.stop_controller)
        for machine in machines:
            cluster.start_node(machine)
        eventually(lambda: cluster.run("sinfo", "--noheader", "--format=%T").split() == ["idle"], "idle nodes")
        yield cluster
