"""Slurm as a lender: an instance is a job, whose batch script is the pilot.

Only sbatch, squeue, scancel, sinfo and scontrol are used, on this machine or by ssh on a login node. The end of a job is proof that
none of its processes is left, with two exceptions. A node that does not answer the controller may still run all of them until it is
back. And with proctrack/pgid, Slurm does not find processes that have left their process group.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from corral.model.allocation import Found, Phase
from corral.model.lender_settings import SlurmSettings
from corral.model.numbers import whole_number
from corral.server.lenders.lender import AllocationRequest, LenderFailed, LenderRefused
from corral.server.lenders.pilot_script import pilot_script

ANSWER_S = 60.0
# Slurm's names of states: https://slurm.schedmd.com/squeue.html. A state that is not listed here counts as unknown.
PHASES = {
    Phase.WAITING: ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
    Phase.RUNNING: ("CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"),
    Phase.ENDING: ("COMPLETING",),  # its processes are being ended, and its epilog runs
    Phase.ENDED: (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
        "NODE_FAIL",
    ),
}
_PHASE = {name: phase for phase, names in PHASES.items() for name in names}
# States in which a node has registered with the controller again. It has ended the processes of jobs that are over before
# that. A `*` after the state means that the node does not respond.
NODE_IS_BACK = ("idle", "mixed", "allocated", "completing", "drained", "draining", "reserved", "planned", "maint")
NODE_NOTES = "+-$"  # after the state: some jobs are completing, the node is planned for another job, or it is reserved
CONFIGURATION_S = 600.0  # the configuration of Slurm is read again after this time
NO_ANSWER = re.compile(r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|Connection refused")
SSH_FAILED = 255
WORDS = {
    "Resources": "waits for free resources",
    "Priority": "waits behind jobs of higher priority",
    "Dependency": "waits for another job",
    "QOSMaxJobsPerUserLimit": "waits for the limit of jobs of its user",
}


DOES = {"SUSPENDED": "is suspended", "STOPPED": "is suspended"}


class _Job(Struct, frozen=True):
    """A line of squeue."""

    FORMAT: ClassVar[str] = "--Format=JobID:|,State:|,EndTime:|,NodeList:|,Reason:|,PreemptTime:|,Partition:|,Name:"

    handle: str
    state: str
    ends: str
    node: str
    reason: str
    preempted: str  # when Slurm decided that another job gets its resources
    partition: str
    label: str

    @property
    def phase(self) -> Phase:
        return _PHASE.get(self.state, Phase.UNKNOWN)

    @property
    def is_preempted(self) -> bool:
        return whole_number(self.preempted) is not None


class Slurm:
    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._misses_processes = False  # the end of a job does not end all of its processes
        self._preempts_by_qos = False  # only Slurm's accounting knows the grace time of a QOS
        self._configured_until_s = 0.0

    def launch(self, request: AllocationRequest) -> str:
        """Submit a job, and return its id."""
        log = f"{self._settings.log_folder}/corral-pilot-%j.log" if self._settings.log_folder else "/dev/null"
        command = [
            "sbatch", "--parsable", f"--job-name={request.label}", "--no-requeue", "--nodes=1", "--ntasks=1",
            "--export=NIL", "--chdir=/",
            f"--output={log}", f"--cpus-per-task={request.cpus}", f"--mem={request.memory_mib}M",
        ]  # fmt: skip
        command += [f"--gres={self._settings.gres}:{request.gpus}"] if request.gpus else []
        chosen = {name: getattr(self._settings, name) for name in self._settings.options} | dict(request.options)
        command += [f"--{'time' if name == 'time_limit' else name}={value}" for name, value in chosen.items() if value]
        done = self._run(command, pilot_script(self._settings, request, "$SLURM_JOB_ID"))
        if done.returncode == SSH_FAILED or NO_ANSWER.search(done.stderr):  # it may have the job nevertheless
            raise LenderFailed(_error(done))
        if done.returncode:
            raise LenderRefused(_error(done))
        handle = done.stdout.strip().partition(";")[0]
        if whole_number(handle) is None:
            raise LenderFailed(f"sbatch printed no job id: {done.stdout[:200]!r}")
        return handle

    def found(self, label_prefix: str) -> list[Found]:
        """Return all allocations of Corral that Slurm remembers. Jobs that have ended are remembered for MinJobAge."""
        self._read_configuration()
        jobs = list[_Job]()
        for line in self._output("env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--states=all", _Job.FORMAT, "--me"):
            try:
                job = _Job(*line.strip().split("|", 7))
            except TypeError:  # such as a greeting of a login shell. It may have replaced the line of a job, so nothing is known
                raise LenderFailed(f"squeue printed {line[:200]!r} instead of a list of jobs") from None
            if job.label.startswith(label_prefix):
                jobs.append(job)
        back = self._nodes_that_are_back() if any(job.phase is Phase.ENDED and job.node for job in jobs) else set[str]()
        return [self._found(job, back) for job in jobs]

    def terminate(self, handles: Sequence[str]) -> None:
        done = self._run(["scancel", "--quiet", "--", *handles])
        if done.returncode:
            raise LenderFailed(_error(done))

    def phase_of_missing(self, handle: str, machine: str) -> Phase:
        """A node that has registered with the controller has ended the processes of jobs that the controller does not know."""
        if machine and machine not in self._nodes_that_are_back():
            return Phase.UNKNOWN
        return Phase.OVER if machine and self._misses_processes else Phase.ENDED

    def advice(self) -> list[str]:
        if not self._misses_processes:
            return []
        return [
            "ProctrackType is proctrack/pgid, so Slurm may not find all processes of an ended job: its tasks count as alive "
            "until the agent has reported their ends. Set ProctrackType=proctrack/cgroup in slurm.conf"
        ]

    def _found(self, job: _Job, back: set[str]) -> Found:
        handle, node, phase = job.handle, job.node, job.phase
        if phase is Phase.WAITING:
            why = f"Slurm job {handle} {WORDS.get(job.reason, f'waits: {job.reason}')}"
        elif phase is Phase.RUNNING:
            why = f"Slurm job {handle} {'is preempted' if job.is_preempted else DOES.get(job.state, 'runs')} on {node}"
        elif phase is Phase.ENDING:
            why = f"Slurm job {handle} is ending on {node}"
        elif phase is Phase.UNKNOWN:
            why = f"Slurm job {handle} is in the state {job.state}"
        elif node and node not in back:
            phase, why = (
                Phase.UNKNOWN,
                f"{node}, the node of Slurm job {handle} ({job.state}), does not respond: its tasks may still run",
            )
        else:
            why = f"Slurm job {handle} has ended: {job.state}{'' if job.reason in ('None', '') else f' ({job.reason})'}"
            phase = Phase.OVER if node and self._misses_processes else Phase.ENDED
        ends_at_s = self._ends_at_s(job) if job.state == "RUNNING" else None
        ends_why = f"Slurm job {handle} {'is preempted' if job.is_preempted else 'reaches its time limit'}"
        return Found(job.label, handle, phase, why, ends_at_s, node, ends_why=ends_why)

    def _ends_at_s(self, job: _Job) -> int | None:
        """Return when Slurm will end a running job: at its time limit, or after the grace time if it is preempted.

        squeue does not print the end of a preempted job that has no time limit.
        """
        ends_at_s, preempted_at_s = whole_number(job.ends), whole_number(job.preempted)
        if ends_at_s is not None or preempted_at_s is None:
            return ends_at_s
        return preempted_at_s + (0 if self._preempts_by_qos else self._grace_s(job.partition))

    def _grace_s(self, partition: str) -> int:
        """Return how long the jobs of a partition run on when they are preempted."""
        text = " ".join(self._output("scontrol", "show", "partition", partition))
        found = re.search(r"\bGraceTime=(\d+)", text)
        return int(found[1]) if found else 0

    def _nodes_that_are_back(self) -> set[str]:
        """Return the nodes that respond to the controller, and on which it starts jobs or lets them end."""
        states: dict[str, set[str]] = {}
        for line in self._output("sinfo", "--noheader", "--Node", "--format=%N|%T"):
            node, _, state = line.strip().lower().partition("|")
            states.setdefault(node, set()).add(state.rstrip(NODE_NOTES))
        return {node for node, found in states.items() if found <= set(NODE_IS_BACK)}

    def _read_configuration(self) -> None:
        if time.monotonic() < self._configured_until_s:
            return
        lines = self._output("scontrol", "show", "config")
        self._misses_processes = any(re.match(r"ProctrackType\s*=\s*proctrack/pgid", line) for line in lines)
        self._preempts_by_qos = any(re.match(r"PreemptType\s*=\s*preempt/qos", line) for line in lines)
        self._configured_until_s = time.monotonic() + CONFIGURATION_S

    def _output(self, *command: str) -> list[str]:
        done = self._run(command)
        if done.returncode:
            raise LenderFailed(_error(done))
        return done.stdout.splitlines()

    def _run(self, command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
        words = list(command)
        if self._settings.ssh:
            words = [
                "ssh",
                "-o",
                "BatchMode=yes",
                "-o",
                f"ConnectTimeout={ANSWER_S:.0f}",
                "--",
                self._settings.ssh,
                shlex.join(command),
            ]
        try:
            return subprocess.run(words, input=text, capture_output=True, text=True, timeout=ANSWER_S, env=_environment())
        except subprocess.TimeoutExpired:
            raise LenderFailed(f"{words[0]} has not answered within {ANSWER_S:.0f} s") from None
        except OSError as error:
            raise LenderFailed(f"{words[0]} cannot be run: {error.strerror}") from None


def _environment() -> dict[str, str]:
    """Return the environment without options of Slurm, which sbatch would read from it, and without Corral's keys."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SBATCH_", "SQUEUE_", "AWS_", "CORRAL_"))}


def _error(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a command printed as an error."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    return lines[-1].removeprefix("sbatch: error: ").removeprefix("slurm_load_jobs error: ")[:500]
