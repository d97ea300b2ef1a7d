"""Slurm as a lender: an instance is a job, whose batch script is the pilot.

Only sbatch, squeue, scancel and sinfo are used, on this machine or by ssh on a login node. The end of a job is proof that none of
its processes is left, except if its node has failed: then the node may still run all of them until it is back.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence

from corral.model.allocation import Found, Phase
from corral.model.lender_settings import SlurmSettings
from corral.model.numbers import whole_number
from corral.server.lenders.lender import AllocationRequest, LenderFailed, LenderRefused
from corral.server.lenders.pilot_script import pilot_script

ANSWER_S = 60.0
# Slurm's names of states: https://slurm.schedmd.com/squeue.html. A state that is not listed here counts as unknown.
PHASES = {
    Phase.WAITING: ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
    Phase.RUNNING: ("CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"),
    Phase.ENDED: ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}
_PHASE = {name: phase for phase, names in PHASES.items() for name in names}
NODE_FAIL = "NODE_FAIL"
# States in which a node has registered with the controller again. It has ended the processes of jobs that are over before that.
NODE_IS_BACK = ("idle", "mixed", "allocated", "completing", "drained", "draining", "reserved")
WORDS = {
    "Resources": "waits for free resources",
    "Priority": "waits behind jobs of higher priority",
    "Dependency": "waits for another job",
    "QOSMaxJobsPerUserLimit": "waits for the limit of jobs of its user",
}


class Slurm:
    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings

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
        if done.returncode:
            raise LenderRefused(_error(done))
        handle = done.stdout.strip().partition(";")[0]
        if whole_number(handle) is None:
            raise LenderFailed(f"sbatch printed no job id: {done.stdout[:200]!r}")
        return handle

    def found(self, label_prefix: str) -> list[Found]:
        """Return all allocations of Corral that Slurm remembers. Jobs that have ended are remembered for MinJobAge."""
        command = ["env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--states=all", "--format=%i|%T|%e|%N|%r|%j", "--me"]
        done = self._run(command)
        if done.returncode:
            raise LenderFailed(_error(done))
        found = list[Found]()
        for line in done.stdout.splitlines():
            try:
                handle, state, ends, node, reason, label = line.strip().split("|", 5)
            except ValueError:  # such as a greeting of a login shell. It may have replaced the line of a job, so nothing is known
                raise LenderFailed(f"squeue printed {line[:200]!r} instead of a list of jobs") from None
            if label.startswith(label_prefix):
                found.append(self._found(label, handle, state, ends, node, reason))
        return found

    def terminate(self, handles: Sequence[str]) -> None:
        done = self._run(["scancel", "--quiet", "--", *handles])
        if done.returncode:
            raise LenderFailed(_error(done))

    def phase_of_missing(self, handle: str, machine: str) -> Phase:
        """A node that has registered with the controller has ended the processes of jobs that the controller does not know."""
        return Phase.ENDED if not machine or self._is_back(machine) else Phase.UNKNOWN

    def _found(self, label: str, handle: str, state: str, ends: str, node: str, reason: str) -> Found:
        phase = _PHASE.get(state, Phase.UNKNOWN)
        if phase is Phase.WAITING:
            return Found(label, handle, phase, f"Slurm job {handle} {WORDS.get(reason, f'waits: {reason}')}")
        if phase is Phase.RUNNING:
            ends_at_s = whole_number(ends) if state == "RUNNING" else None
            return Found(label, handle, phase, f"Slurm job {handle} runs on {node}", ends_at_s)
        if state == NODE_FAIL and not (node and self._is_back(node)):
            return Found(
                label, handle, Phase.UNKNOWN, f"the node of Slurm job {handle}, {node}, has failed: its tasks may still run"
            )
        why = "" if reason in ("None", "") else f" ({reason})"
        if phase is Phase.ENDED or state == NODE_FAIL:
            return Found(label, handle, Phase.ENDED, f"Slurm job {handle} has ended: {state}{why}")
        return Found(label, handle, Phase.UNKNOWN, f"Slurm job {handle} is in the state {state}")

    def _is_back(self, node: str) -> bool:
        done = self._run(["sinfo", "--noheader", f"--nodes={node}", "--format=%T"])
        if done.returncode:
            raise LenderFailed(_error(done))
        states = {line.strip().lower() for line in done.stdout.split()}
        return bool(states) and all(state.rstrip("+") in NODE_IS_BACK for state in states)  # "idle*" does not respond

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
