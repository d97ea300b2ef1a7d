"""What Corral concludes from the answers of Slurm: which ends are proof, and how requests are passed to its commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral.core.errors import Refused
from corral.model.allocation import Found, Phase
from corral.model.lender_settings import SlurmSettings
from corral.node import pilot
from corral.server.lenders.lender import AllocationRequest, LenderFailed, LenderRefused
from corral.server.lenders.slurm import Slurm
from each import check_each

# Each program prints the file with its name, appends its arguments and its input to a file, and exits with a code.
PROGRAM = """#!/bin/sh
name=$(basename "$0")
for word in "$@"; do echo "$word" >> "{folder}/$name.words"; done
[ "$name" != sbatch ] || cat > "{folder}/sbatch.input"
cat "{folder}/$name.err" >&2 2>/dev/null
cat "{folder}/$name.out" 2>/dev/null
exit $(cat "{folder}/$name.code" 2>/dev/null || echo 0)
"""
SSH = '#!/bin/sh\nfor word in "$@"; do last=$word; done\nexec sh -c "$last"\n'  # the shell of the user reads one text
CONFIGURATION = "ProctrackType           = proctrack/cgroup"
REQUEST = AllocationRequest("corral-x.slurm.i", 2, 4, 1024, {"constraint": "a100&(nvme|ssd)*2"}, "10.0.0.1:4567", "i.secret.pin")


class Answers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "ssh"):
            path = folder / name
            path.write_text(SSH if name == "ssh" else PROGRAM.format(folder=folder))
            path.chmod(0o755)

    def set(self, name: str, out: str = "", err: str = "", code: int = 0) -> None:
        for suffix, text in (("out", out), ("err", err), ("code", str(code))):
            (self.folder / f"{name}.{suffix}").write_text(f"{text}\n" if text else "")

    def words(self, name: str) -> list[str]:
        return (self.folder / f"{name}.words").read_text().splitlines()

    def found(self, job: str, nodes: str, configuration: str = CONFIGURATION, preempted: str = "N/A") -> Found:
        self.set("squeue", f"{job}|{preempted}|spot|corral-x.slurm.i")
        self.set("sinfo", nodes)
        self.set("scontrol", configuration)
        [found] = Slurm(SlurmSettings()).found("corral-x.slurm.")
        return found


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Answers(tmp_path)


def test_which_ends_are_proof(answers: Answers) -> None:
    pgid = "ProctrackType = proctrack/pgid"

    def check(case: tuple[str, str, str, Phase]) -> None:
        job, nodes, configuration, phase = case
        assert answers.found(job, nodes, configuration).phase is phase

    check_each(
        [
            ("7|PENDING|N/A||Resources", "n1|idle", "", Phase.WAITING),
            ("7|RUNNING|1795000000|n1|None", "n1|mixed", "", Phase.RUNNING),
            ("7|COMPLETING|1795000000|n1|None", "n1|completing", "", Phase.ENDING),  # its processes may still run
            ("7|COMPLETED|1795000000|n1|None", "n1|idle", "", Phase.ENDED),
            ("7|TIMEOUT|1795000000|n1|TimeLimit", "n1|allocated+", "", Phase.ENDED),
            ("7|CANCELLED|1795000000||None", "n1|down*", "", Phase.ENDED),  # it has never run
            ("7|CANCELLED|1795000000|n1|None", "n1|idle*", "", Phase.UNKNOWN),  # its node does not respond
            ("7|CANCELLED|1795000000|n1|None", "n1|mixed\nn1|down*", "", Phase.UNKNOWN),
            ("7|CANCELLED|1795000000|n1|None", "n2|idle", "", Phase.UNKNOWN),  # its node has been removed
            ("7|PREEMPTED|1795000000|n1|None", "n1|planned", "", Phase.ENDED),  # Slurm plans to start another job there
            ("7|PREEMPTED|1795000000|n1|None", "n1|mixed-", "", Phase.ENDED),
            ("7|PREEMPTED|1795000000|n1|None", "n1|planned*", "", Phase.UNKNOWN),
            ("7|NODE_FAIL|1795000000|n1|None", "n1|down*", "", Phase.UNKNOWN),
            ("7|NODE_FAIL|1795000000|n1|None", "n1|down", "", Phase.UNKNOWN),  # an administrator may have set this state
            ("7|NODE_FAIL|1795000000|n1|None", "n1|idle", "", Phase.ENDED),  # it has registered again
            ("7|COMPLETED|1795000000|n1|None", "n1|idle", pgid, Phase.OVER),
            ("7|CANCELLED|1795000000||None", "n1|idle", pgid, Phase.ENDED),
            ("7|A_NEW_STATE|1795000000|n1|None", "n1|idle", "", Phase.UNKNOWN),
        ],
        check,
    )


def test_the_end_of_a_job_is_known_only_while_it_runs(answers: Answers) -> None:
    assert answers.found("7|RUNNING|1795000000|n1|None", "n1|mixed").ends_at_s == 1795000000
    assert answers.found("7|RUNNING|NONE|n1|None", "n1|mixed").ends_at_s is None
    assert answers.found("7|PENDING|1795000000||Priority", "").ends_at_s is None


@pytest.mark.parametrize(
    "job, kind, ends_at_s",
    [
        ("7|RUNNING|1795000045|n1|None", "partition_prio", 1795000045),
        ("7|RUNNING|NONE|n1|None", "partition_prio", 1795000045),  # squeue prints no end of a job without a time limit
        ("7|RUNNING|NONE|n1|None", "qos", 1795000000),  # the grace time of a QOS is not known, so the instance ends at once
    ],
)
def test_a_preempted_job_ends_after_the_grace_time(answers: Answers, job: str, kind: str, ends_at_s: int) -> None:
    configuration = f"PreemptType             = preempt/{kind}\n   DefaultTime=NONE ExclusiveUser=NO GraceTime=45 Hidden=NO"
    found = answers.found(job, "n1|mixed", configuration, preempted="1795000000")
    assert (found.phase, found.ends_at_s) == (Phase.RUNNING, ends_at_s)
    assert (found.reason, found.ends_why) == ("Slurm job 7 is preempted on n1", "Slurm job 7 is preempted")


def test_a_suspended_job_has_no_end(answers: Answers) -> None:
    found = answers.found("7|SUSPENDED|1795000000|n1|None", "n1|mixed")
    assert (found.phase, found.ends_at_s, found.reason) == (Phase.RUNNING, None, "Slurm job 7 is suspended on n1")


def test_a_job_that_slurm_does_not_know_is_gone_when_its_node_is_back(answers: Answers) -> None:
    slurm = Slurm(SlurmSettings())
    answers.set("sinfo", "n1|idle\nn2|down*")
    found = [slurm.phase_of_missing("7", node) for node in ("", "n1", "n2", "n3")]
    assert found == [Phase.ENDED, Phase.ENDED, Phase.UNKNOWN, Phase.UNKNOWN]


def test_pgid_is_named_with_what_to_do(answers: Answers) -> None:
    slurm = Slurm(SlurmSettings())
    answers.set("squeue")
    answers.set("scontrol", "ProctrackType = proctrack/pgid")
    assert slurm.advice() == []
    assert slurm.found("corral-") == []
    [advice] = slurm.advice()
    assert "ProctrackType=proctrack/cgroup" in advice
    answers.set("sinfo", "n1|idle")
    assert slurm.phase_of_missing("7", "n1") is Phase.OVER


def test_a_controller_that_does_not_answer_proves_nothing(answers: Answers) -> None:
    slurm = Slurm(SlurmSettings())
    answers.set("squeue", err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    with pytest.raises(LenderFailed, match="Unable to contact"):
        slurm.found("corral-")
    answers.set("sbatch", err="sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", code=1)
    with pytest.raises(LenderFailed, match="Socket timed out"):  # it may have the job
        slurm.launch(REQUEST)
    answers.set("sbatch", err="sbatch: error: invalid partition specified: x", code=1)
    with pytest.raises(LenderRefused, match=r"^invalid partition specified: x$"):
        slurm.launch(REQUEST)


@pytest.mark.parametrize("ssh", ["", "me@login"])
def test_a_request_arrives_unchanged(answers: Answers, ssh: str) -> None:
    """Characters that a shell reads have no effect, also through ssh. The token is in no argument."""
    answers.set("sbatch", "41;cluster")
    settings = SlurmSettings(ssh=ssh, partition="gpu; touch x", time_limit="1:00:00")
    assert Slurm(settings).launch(REQUEST) == "41"
    words, script = answers.words("sbatch"), (answers.folder / "sbatch.input").read_text()
    assert {"--partition=gpu; touch x", "--constraint=a100&(nvme|ssd)*2", "--time=1:00:00", "--gres=gpu:2", "--no-requeue"} < set(
        words
    )
    assert {"--mem=1024M", "--cpus-per-task=4", "--job-name=corral-x.slurm.i", "--export=NIL"} < set(words)
    assert "secret" not in " ".join(words)
    assert "i.secret.pin" in script and "$SLURM_JOB_ID" in script


@pytest.mark.parametrize("given, why", [("", "none is offered"), ("0", "has 2 GPUs, and this allocation has 1")])
def test_a_pilot_does_not_join_without_the_gpus_of_its_instance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, why: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    with pytest.raises(Refused, match=why):
        pilot.main(["--data", str(tmp_path), "--server", "127.0.0.1:1", "--gpus", "sim:4", "--needs", "2"], "i.secret.pin")
    assert list(tmp_path.iterdir()) == []
