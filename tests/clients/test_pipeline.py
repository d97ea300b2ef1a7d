"""`corral pipeline` with a real server: run, watch, list, logs, stop and retry. Jobs are processes of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import Cli
from eventually import eventually
from terminal import Terminal

HEAD = "queues: {cpu: cpus, gpu: gpus}\ndefaults: {image: corral/host, vcpus: 1, memory: 64m}\nsteps:\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A Corral whose job queues use this machine."""
    cli = Cli(tmp_path_factory.mktemp("pipelines"))
    cli.home.mkdir(exist_ok=True)
    try:
        cli("config", "set", "cost.gpu_hour", "7200")
        cli("up", "--detach", "--port", "0", "--gpus", "sim:2")
        batch = cli.client("batch")
        batch.create_compute_environment(
            computeEnvironmentName="machine", type="UNMANAGED", state="ENABLED", tags={"corral:cluster": "default"}
        )
        status = lambda: batch.describe_compute_environments(computeEnvironments=["machine"])["computeEnvironments"][0]["status"]  # noqa: E731
        eventually(lambda: status() == "VALID", "the compute environment is valid")
        for name in ("cpus", "gpus"):
            order = [{"order": 1, "computeEnvironment": "machine"}]
            batch.create_job_queue(jobQueueName=name, priority=1, computeEnvironmentOrder=order)
        yield cli
        cli("down", "--stop-tasks")
    finally:
        cli.clear()


def write(lab: Cli, name: str, steps: str, head: str = HEAD) -> str:
    path = lab.home / f"{name}.yaml"
    path.write_text(f"name: {name}\n{head}{steps}")
    return str(path)


def test_a_run_from_dry_run_to_cost(lab: Cli) -> None:
    lab.client("s3").create_bucket(Bucket="lists")
    lab.client("s3").put_object(Bucket="lists", Key="l.txt", Body=b"one\n\ntwo\nthree\n")
    out = lab.home / "out"
    out.mkdir()
    file = write(lab, "whole", f"""
  prepare: {{command: 'echo $ARRAY_SIZE > {out}/p$AWS_BATCH_JOB_ARRAY_INDEX', list: 's3://lists/l.txt'}}
  recon:
    command: 'cat {out}/p$AWS_BATCH_JOB_ARRAY_INDEX && echo on $CUDA_VISIBLE_DEVICES $LIST_FILE_S3_PATH'
    list: s3://lists/l.txt
    gpus: 1
    after: {{each: prepare}}
  report: {{command: [sh, -c, 'ls {out}; echo $CORRAL_PIPELINE_STEP'], after: recon}}
""")  # fmt: skip
    planned = lab.json("pipeline", "run", file, "--dry-run")
    assert [(step["step"], step["size"]) for step in planned["steps"]] == [("prepare", 3), ("recon", 3), ("report", 1)]
    assert planned["steps"][1]["submitJob"]["dependsOn"] == [{"jobId": "JOB-OF-prepare", "type": "N_TO_N"}]
    shown = lab("pipeline", "run", file, "--dry-run")
    assert "nothing was submitted" in shown.stderr and "each prepare" in shown.stdout
    assert lab("pipeline", "list", "whole").stdout.startswith("No runs")

    done = lab("pipeline", "run", file)
    assert "report: SUCCEEDED (1 done)" in done.stdout and "submitted 3 jobs as whole-" in done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["total", "7"]
    again = lab.json("pipeline", "run", file)
    assert again["state"] == "SUCCEEDED" and [step["done"] for step in again["steps"]] == [3, 3, 1]
    assert again["usage"]["jobsRun"] == 7 and again["usage"]["gpuHours"] > 0 and len(again["earlier"]) == 1
    assert again["usage"]["cost"] == pytest.approx(again["usage"]["gpuHours"] * 7200, abs=0.01)  # the tag rounds to 1e-6 hours
    revisions = lab.client("batch").describe_job_definitions(jobDefinitionName="whole-recon")["jobDefinitions"]
    assert [each["revision"] for each in revisions] == [1]  # the second run uses the same revision
    listed = lab.json("pipeline", "list", "whole")
    assert (listed[0]["id"], listed[0]["state"], listed[0]["stepsDone"]) == (again["id"], "SUCCEEDED", 3)
    assert len(listed) == 2 and all(row["gpuHours"] > 0 for row in listed)
    assert "SUCCEEDED" in lab("pipeline", "list").stdout
    assert lab("pipeline", "logs", "recon[2]").stdout.splitlines()[0] == "3"
    assert lab("pipeline", "logs", "recon:1", "--run", again["run"]).stdout.endswith("s3://lists/l.txt\n")
    assert lab("pipeline", "logs", "report", "-f").stdout == "p0\np1\np2\nreport\n"
    assert "is an array with 3 children. Choose one: for example recon[0]" in lab("pipeline", "logs", "recon", code=1).stderr
    assert "has no step 'recno'. Did you mean recon?" in lab("pipeline", "logs", "recno", code=1).stderr
    assert lab.json("pipeline", "watch", "whole")["steps"][0]["state"] == "SUCCEEDED"
    assert "whole-" in lab("pipeline", "watch", "--once").stdout


def test_a_tolerated_failure_and_a_retry(lab: Cli) -> None:
    """Children 1 and 3 fail until the file `fixed` exists. The deferred steps run what they can, and the rest after the retry."""
    fixed = lab.home / "fixed"
    fails = f"echo $AWS_BATCH_JOB_ARRAY_INDEX of $ARRAY_SIZE; case $AWS_BATCH_JOB_ARRAY_INDEX in 1|3) test -e {fixed};; esac"
    file = write(lab, "tolerant", f"""
  first: {{command: {json.dumps(fails)}, array: 5, max_failed: 40%}}
  second: {{command: 'echo $AWS_BATCH_JOB_ARRAY_INDEX', array: 5, after: {{each: first}}}}
  last: {{command: 'true', after: second}}
""")  # fmt: skip
    detached = lab.json("pipeline", "run", file, "--detach")
    assert list(detached["jobs"]) == ["first"] and detached["deferred"] == ["second", "last"]
    run = detached["id"]
    watched = lab("pipeline", "watch", run)
    assert "second: submitted" in watched.stdout and "children that failed, within `max_failed`: first (2 of 5)" in watched.stderr
    state = lab.json("pipeline", "watch", run)
    assert state["state"] == "SUCCEEDED" and [step["state"] for step in state["steps"]] == ["TOLERATED", "SUCCEEDED", "SUCCEEDED"]
    assert [(step["done"], step["failed"]) for step in state["steps"]] == [(3, 2), (3, 0), (1, 0)]
    assert lab("pipeline", "logs", "second[4]", "--run", run).stdout == "4\n"

    fixed.touch()
    retried = lab("pipeline", "retry", "--failed", run)
    assert "submitted first again (2 jobs of 5: 1,3)" in retried.stderr
    state = lab.json("pipeline", "watch", run)
    assert [(step["done"], step["failed"]) for step in state["steps"]] == [(5, 0), (5, 0), (1, 0)] and state["attempt"] == 2
    assert lab("pipeline", "logs", "first[3]", "--run", run).stdout == "3 of 5\n"
    assert lab("pipeline", "logs", "second[1]", "--run", run).stdout == "1\n"
    assert "has nothing to retry" in lab("pipeline", "retry", run, code=1).stderr


def test_a_failed_run_and_its_retry(lab: Cli) -> None:
    fixed = lab.home / "repaired"
    file = write(lab, "failing", f"""
  one: {{command: 'test $AWS_BATCH_JOB_ARRAY_INDEX != 2 || test -e {fixed}', array: 4}}
  two: {{command: 'true', after: one}}
""")  # fmt: skip
    failed = lab("pipeline", "run", file, code=1)
    assert "one: FAILED (3 done, 1 failed): [2] exit code 1\n" in failed.stdout
    assert "two: FAILED (1 failed): not run, because one failed\n" in failed.stdout
    assert "1 job of one failed. Not run: two. Run them again" in failed.stderr
    assert (
        "corral pipeline retry --failed failing-" in failed.stderr
        and "Choose one: for example one[2], which failed." in lab("pipeline", "logs", "one", code=1).stderr
    )
    fixed.touch()
    state = lab.json("pipeline", "retry", "--failed", "failing")
    assert state["state"] == "SUCCEEDED" and [step["done"] for step in state["steps"]] == [4, 1]


def test_a_stopped_run_continues_with_a_retry(lab: Cli) -> None:
    go = lab.home / "go"
    file = write(lab, "stopped", f"""
  long: {{command: 'test -e {go} || exec sleep 600', array: 2}}
  later: {{command: 'true', after: long}}
""")  # fmt: skip
    run = lab("pipeline", "run", file, "--detach").stdout.strip()
    running: Any = lambda: lab.json("pipeline", "watch", run)["steps"][0]["running"] == 2  # noqa: E731
    eventually(running, "both children run")
    refused = lab("pipeline", "retry", run, code=1).stderr
    assert f"{run} is RUNNING. Wait until it has ended, or stop it" in refused
    stopped = lab("pipeline", "stop", run)
    assert stopped.stdout.splitlines() == ["later: cancelled (1 waiting)", "long: terminated (2 running)"]
    eventually(lambda: lab.json("pipeline", "list", "stopped")[0]["state"] == "STOPPED", "the run has stopped")
    assert "has ended already: STOPPED" in lab("pipeline", "stop", run, code=1).stderr
    go.touch()
    assert lab.json("pipeline", "retry", run)["state"] == "SUCCEEDED"


@pytest.mark.parametrize("columns", [80, 160])
def test_a_run_on_a_screen(lab: Cli, tmp_path: Path, columns: int) -> None:
    go = tmp_path / "go"
    steps = f"""
  short: {{command: 'true'}}
  long: {{command: 'while ! test -e {go}; do sleep 0.1; done', array: 3, gpus: 1, after: short}}
  last: {{command: 'true', after: long}}
"""
    file = write(lab, f"screen{columns}", steps)
    screen = Terminal(tmp_path, {**lab.environment, "LC_ALL": "C.UTF-8"}, columns)
    try:
        before = screen.settings()
        screen.type(f"corral pipeline run {file}")
        lines = screen.until("1 waits: long holds 2 of 2 GPUs", "after long")  # two children run
        at = next(at for at, line in enumerate(lines) if line.startswith("STEP "))
        assert (
            re.match(rf"screen{columns}-[0-9a-f]{{8}}  RUNNING  .*\d\d:\d\d:\d\d$", lines[at - 2]) and len(lines[at - 2]) == columns
        )
        assert lines[at].split() == [
            "STEP",
            "DONE",
            "RUN",
            "FAIL",
            "WAIT",
            "STATE",
            "ENDS",
            "IN",
            *(["REASON"] if columns == 160 else []),
        ]
        assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["short", "long", "last"]
        for step, reason in (("long", "1 waits: long holds 2 of 2 GPUs"), ("last", "after long")):
            assert any(re.fullmatch(rf"{step}{' .* ' if columns == 160 else ': '}{reason}", line) for line in lines), lines
        screen.press("q")
        screen.until("continues without this command")
        screen.until_prompt()
        go.touch()
        screen.type(f"clear; corral pipeline watch screen{columns}")
        screen.until("total")
        lines = screen.until_prompt()
        assert any(line.startswith(f"screen{columns}-") and "SUCCEEDED" in line for line in lines)
        assert screen.settings() == before and screen.cursor_is_shown()
    finally:
        go.touch()
        screen.close()


def test_runs_and_steps_are_completed(lab: Cli) -> None:
    def completed(words: str, number: int) -> str:
        return lab(env={"_CORRAL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}).stdout

    assert "plain,whole-" in completed("corral pipeline watch whole", 3)
    assert completed("corral pipeline logs --run whole re", 5).split() == ["plain,recon", "plain,report"]


@pytest.mark.parametrize(
    "head, steps, problem",
    [
        (HEAD.replace("cpu: cpus", "cpu: nothing"), "  a: {}\n", "step a: the job queue 'nothing' does not exist."),
        (HEAD, "  a: {list: 's3://nowhere/list'}\n", "step a: the list s3://nowhere/list does not exist. Upload it"),
        (HEAD, "  a: {job_definition: nothing}\n", "step a: the job definition 'nothing' does not exist, or has no active"),
        (HEAD, "  a: {memroy: 2g}\n", "step a has an unknown key 'memroy'. Did you mean memory?"),
    ],
)
def test_a_refused_run_submits_nothing(lab: Cli, head: str, steps: str, problem: str) -> None:
    assert problem in lab("pipeline", "run", write(lab, "refused", steps, head), code=1).stderr
    assert lab("pipeline", "list", "refused").stdout.startswith("No runs")


def test_an_unknown_run(lab: Cli) -> None:
    assert "no run of a pipeline has the id or the name 'nothing'" in lab("pipeline", "watch", "nothing", code=1).stderr
