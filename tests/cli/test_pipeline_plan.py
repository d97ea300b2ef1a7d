"""What a pipeline submits, the state that follows from its jobs, and the screen, without a server."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from corral.cli.pipelines.dry_run import print_plan
from corral.cli.pipelines.estimate import StepTimes, with_estimates
from corral.cli.pipelines.file import parse_pipeline
from corral.cli.pipelines.plan import (
    RESTORE_INDEX,
    JobRequest,
    PipelinePlan,
    SubmittedJob,
    format_indexes,
    job_requests,
    make_plan,
    parse_indexes,
    submit_request,
)
from corral.cli.pipelines.reasons import short_job_reason, with_reasons
from corral.cli.pipelines.screen import bar_columns, frame, step_line
from corral.cli.pipelines.state import Execution, PipelineJob, execution_state, read_job, wanted_again, wanted_now
from corral.cli.pipelines.watch import failed_text
from corral.cli.pipelines.yaml_reader import PipelineFileError

RUN = "0a1b2c3d"
THREE = """
  prepare: {command: prepare, array: 100}
  recon: {command: recon, gpus: 1, array: 100, after: {each: prepare}}
  report: {command: [report], after: recon}
"""
TOLERANT = """
  prepare: {command: prepare, array: 100, max_failed: 5%}
  recon: {command: recon, gpus: 1, array: 100, after: {each: prepare}}
  other: {command: other}
  report: {command: [report], after: [recon, other]}
"""


def planned(
    steps: str, counts: dict[str, int] | None = None, definitions: dict[str, Any] | None = None, top: str = ""
) -> PipelinePlan:
    queues = top or "queues: {cpu: small, gpu: large, rules: [{match: 'calib*', queue: special}]}\n"
    text = f"name: p\n{queues}defaults: {{image: lab/image}}\nsteps:{steps}"
    return make_plan(parse_pipeline("p.yaml", text, {}), RUN, counts or {}, definitions or {})


def everything(plan: PipelinePlan) -> dict[str, list[int]]:
    return {each.name: list(range(each.size)) for each in plan.steps if not each.deferred_by}


def job(step: str, status: str, attempt: int = 1, size: int | None = None, at: float = 0.0, **more: Any) -> PipelineJob:
    """A job as DescribeJobs describes it. `more`: counts by status, `indexes`, `started`, `stopped`, `reason`."""
    tags = {
        "corral:pipeline": "p", "corral:pipeline:run": RUN, "corral:pipeline:step": step, "corral:pipeline:attempt": str(attempt),
        **more.pop("tags", {}),
    }  # fmt: skip
    indexes = more.pop("indexes", None)
    environment = [{"name": "CORRAL_ARRAY_INDEXES", "value": format_indexes(indexes)}] if indexes else []
    described: dict[str, Any] = {
        "jobId": f"{step}-{attempt}-{at:g}",
        "jobQueue": "arn:aws:batch:us-east-1:123456789012:job-queue/small",
        "status": status,
        "createdAt": int(at * 1000) or attempt,
        "startedAt": int(more.pop("started", 0) * 1000),
        "stoppedAt": int(more.pop("stopped", 0) * 1000),
        "statusReason": more.pop("reason", ""),
        "container": {"environment": environment},
        "tags": tags,
    }
    if size is not None:
        described["arrayProperties"] = {"size": size, "statusSummary": more}
    found = read_job(described)
    assert found is not None
    return found


# Queues and requests


def test_the_queue_is_named_or_chosen_by_a_rule_or_by_gpus() -> None:
    plan = planned("""
  named: {queue: mine, gpus: 1}
  short: {queue: cpu, gpus: 1}
  calibrate: {gpus: 1}
  cpus: {}
  gpus: {gpus: 2}
  existing: {job_definition: d}
""", definitions={"d": {"containerProperties": {"resourceRequirements": [{"type": "GPU", "value": "1"}]}}})  # fmt: skip
    queues = {each.name: each.queue for each in plan.steps}
    assert queues == {
        "named": "mine",
        "short": "small",
        "calibrate": "special",
        "cpus": "small",
        "gpus": "large",
        "existing": "large",
    }


def test_a_step_without_a_queue_is_refused() -> None:
    with pytest.raises(PipelineFileError) as caught:
        planned("\n  one: {gpus: 1}", top="queues: {cpu: small}\n")
    assert caught.value.lines() == [
        "p.yaml:5: step one needs 1 GPUs, but `queues:` has no `gpu:`. Add it, or write `queue:` in the step."
    ]


def test_a_step_is_an_array_job_with_its_variables() -> None:
    plan = planned(
        "\n  recon: {command: [recon], vcpus: 2, memory: 1g, gpus: 1, list: 's3://data/l.txt', retries: 2, timeout: 2m}",
        {"recon": 40},
    )
    [request] = job_requests(plan, everything(plan), {})
    sent = submit_request(plan, request, "p-recon:3", 1, "record:1", {})
    assert (sent["jobName"], sent["jobQueue"], sent["arrayProperties"]) == (f"p-{RUN}-recon", "large", {"size": 40})
    assert {each["name"]: each["value"] for each in sent["containerOverrides"]["environment"]} == {
        "ARRAY_SIZE": "40", "LIST_FILE_S3_PATH": "s3://data/l.txt",
        "CORRAL_PIPELINE": "p", "CORRAL_PIPELINE_RUN": RUN, "CORRAL_PIPELINE_STEP": "recon",
    }  # fmt: skip
    assert "command" not in sent["containerOverrides"] and "dependsOn" not in sent
    definition = plan.steps[0].definition
    assert definition is not None and definition["jobDefinitionName"] == "p-recon"
    assert definition["containerProperties"] == {
        "image": "lab/image",
        "command": ["recon"],
        "resourceRequirements": [
            {"type": "VCPU", "value": "2"},
            {"type": "MEMORY", "value": "1024"},
            {"type": "GPU", "value": "1"},
        ],
    }
    assert definition["retryStrategy"] == {"attempts": 3} and definition["timeout"] == {"attemptDurationSeconds": 120}
    assert sent["tags"] | {"corral:pipeline:file": ""} == {
        "corral:pipeline": "p", "corral:pipeline:run": RUN, "corral:pipeline:step": "recon", "corral:pipeline:attempt": "1",
        "corral:pipeline:file": "", "corral:pipeline:record": "record:1",
    }  # fmt: skip


def test_equal_steps_have_equal_hashes() -> None:
    first, second, third = (planned(f"\n  a: {{command: {text}}}").steps[0].definition for text in ("x", "x", "y"))
    assert first is not None and second is not None and third is not None
    assert first["tags"] == second["tags"] != third["tags"]


def test_a_list_with_one_line_is_a_plain_job() -> None:
    plan = planned("\n  a: {list: 's3://data/list'}", {"a": 1})
    [request] = job_requests(plan, everything(plan), {})
    assert "arrayProperties" not in submit_request(plan, request, "d", 1, "r", {})


def test_an_existing_definition_is_overridden() -> None:
    step = "\n  a: {job_definition: d, command: [x], memory: 2g, retries: 1, timeout: 5m, environment: {A: b}}"
    plan = planned(step, definitions={"d": {"containerProperties": {"command": ["y"]}}})
    [request] = job_requests(plan, everything(plan), {})
    sent = submit_request(plan, request, "d:2", 1, "r", {})
    assert sent["containerOverrides"]["command"] == ["x"]
    assert sent["containerOverrides"]["resourceRequirements"] == [{"type": "MEMORY", "value": "2048"}]
    assert {"name": "A", "value": "b"} in sent["containerOverrides"]["environment"]
    assert sent["retryStrategy"] == {"attempts": 2} and sent["timeout"] == {"attemptDurationSeconds": 300}
    assert plan.steps[0].definition is None


# Dependencies


def test_each_is_n_to_n_and_other_steps_wait_for_whole_jobs() -> None:
    plan = planned(THREE)
    requests = job_requests(plan, everything(plan), {})
    assert [(each.step, each.waits_for) for each in requests] == [
        ("prepare", ()), ("recon", (("prepare", 0, True),)), ("report", (("recon", 1, False),)),
    ]  # fmt: skip
    ids = {0: "id0", 1: "id1"}
    assert submit_request(plan, requests[1], "d", 1, "r", ids)["dependsOn"] == [{"jobId": "id0", "type": "N_TO_N"}]
    assert submit_request(plan, requests[2], "d", 1, "r", ids)["dependsOn"] == [{"jobId": "id1"}]


def test_steps_after_a_tolerant_step_are_deferred(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(TOLERANT)
    assert {each.name: each.deferred_by for each in plan.steps} == {
        "prepare": (), "recon": ("prepare",), "other": (), "report": ("recon",),
    }  # fmt: skip
    monkeypatch.setenv("COLUMNS", "120")
    print_plan(plan)
    shown = {line.split()[0]: re.split(r"  +", line.strip())[-1] for line in capsys.readouterr().out.splitlines()}
    assert shown == {
        "STEP": "SUBMITTED", "prepare": "at once", "recon": "after the end of prepare", "other": "at once", "report": "after recon",
    }  # fmt: skip
    strict = planned(TOLERANT.replace("100", "10"))  # 5% of ten children are none
    assert not strict.deferred


def test_lists_of_different_lengths_cannot_be_each() -> None:
    steps = "\n  a: {list: 's3://data/a'}\n  b: {list: 's3://data/b', after: {each: a}}"
    with pytest.raises(PipelineFileError, match=r"b has 4 children and a has 3\. Give both the same `array:`"):
        planned(steps, {"a": 3, "b": 4})


# Retries


def test_a_retry_runs_failed_children_and_what_depends_on_them() -> None:
    plan = planned(THREE)
    again = wanted_again(plan, {"prepare": frozenset({3, 7}), "recon": frozenset({3, 7, 50}), "report": frozenset({0})})
    assert again == {"prepare": [3, 7], "recon": [3, 7, 50], "report": [0]}
    requests = job_requests(plan, again, {})
    assert [(each.step, each.indexes, each.waits_for) for each in requests] == [
        ("prepare", (3, 7), ()),
        ("recon", (3, 7), (("prepare", 0, True),)),  # the same indexes: child N waits for child N
        ("recon", (50,), ()),  # its input exists already
        ("report", (0,), (("recon", 1, False), ("recon", 2, False))),
    ]
    sent = submit_request(plan, requests[1], "d", 2, "r", {0: "id0"})
    environment = {each["name"]: each["value"] for each in sent["containerOverrides"]["environment"]}
    assert environment["CORRAL_ARRAY_INDEXES"] == "3,7" and environment["ARRAY_SIZE"] == "100"
    assert sent["containerOverrides"]["command"][:3] == ["/bin/sh", "-c", RESTORE_INDEX]
    assert sent["containerOverrides"]["command"][4:] == ["/bin/sh", "-c", "recon"]
    assert "command" not in submit_request(plan, requests[1], "d", 2, "r", {0: "id0"}, wraps=False)["containerOverrides"]
    single = submit_request(plan, requests[2], "d", 2, "r", {})
    assert "arrayProperties" not in single  # Batch has no array with one child


def test_a_retry_leaves_deferred_steps_to_watch() -> None:
    plan = planned(TOLERANT)
    assert wanted_again(plan, {"prepare": frozenset({1})}) == {"prepare": [1]}
    assert wanted_again(plan, {"recon": frozenset({1})}) == {"recon": [1]}  # report is after the deferred step recon


def test_many_scattered_indexes_become_several_jobs() -> None:
    plan = planned("\n  a: {array: 10000}\n  b: {array: 10000, after: {each: a}}")
    odd = frozenset(range(1, 10_000, 2))
    requests = job_requests(plan, wanted_again(plan, {"a": odd, "b": odd}), {})
    assert {index for each in requests if each.step == "b" for index in each.indexes} == odd
    firsts = {number: each.indexes for number, each in enumerate(requests) if each.step == "a"}
    for each in requests:
        if each.step == "b":
            [(_, number, n_to_n)] = each.waits_for
            assert n_to_n and firsts[number] == each.indexes  # type: ignore[index]


@pytest.mark.parametrize("indexes, text", [((3,), "3"), ((3, 7, 12, 13, 14), "3,7,12-14"), ((0, 1), "0-1")])
def test_indexes_as_text(indexes: tuple[int, ...], text: str) -> None:
    assert format_indexes(indexes) == text and parse_indexes(text) == indexes


@pytest.mark.parametrize("child, index", [("0", "3"), ("1", "7"), ("2", "12"), ("4", "14"), (None, "3")])
def test_the_command_sees_its_original_index(child: str | None, index: str) -> None:
    environment = {"PATH": os.environ["PATH"], "CORRAL_ARRAY_INDEXES": "3,7,12-14", "ARRAY_SIZE": "20"}
    environment |= {"AWS_BATCH_JOB_ARRAY_INDEX": child, "AWS_BATCH_JOB_ARRAY_SIZE": "5"} if child else {}
    script = 'echo "$AWS_BATCH_JOB_ARRAY_INDEX of $AWS_BATCH_JOB_ARRAY_SIZE ${CORRAL_ARRAY_INDEXES-none} $1"; exit 5'
    command = ["/bin/sh", "-c", RESTORE_INDEX, "corral-pipeline", "/bin/sh", "-c", script, "x", "a * b"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f"{index} of 20 none a * b\n", 5)


def test_a_child_without_an_index_fails() -> None:
    environment = {"CORRAL_ARRAY_INDEXES": "3,7", "AWS_BATCH_JOB_ARRAY_INDEX": "2"}
    done = subprocess.run(["/bin/sh", "-c", RESTORE_INDEX, "x", "true"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "no index for child 0 in CORRAL_ARRAY_INDEXES\n")


# States


def states(state: Execution) -> dict[str, str]:
    return {step.name: step.state for step in state.steps}


def nothing(step: str) -> frozenset[int]:
    raise AssertionError(f"the children of {step} are not needed")


def test_counts_of_a_running_array() -> None:
    plan = planned(THREE)
    jobs = [
        job("prepare", "PENDING", size=100, SUCCEEDED=60, RUNNING=10, STARTING=2, RUNNABLE=20, started=5),
        job("recon", "PENDING", size=100, SUCCEEDED=10),
        job("report", "PENDING"),
    ]
    state = execution_state(plan, jobs)
    counts = state.step("prepare").counts
    assert (counts.done, counts.running, counts.failed, counts.waiting) == (60, 12, 0, 28)  # eight children do not exist yet
    assert state.state == "RUNNING" and states(state) == {"prepare": "RUNNING", "recon": "RUNNING", "report": "WAITING"}
    assert state.step("report").reason == "after recon"


@pytest.mark.parametrize(
    "failed, expected, ready",
    [(5, "TOLERATED", ("recon",)), (6, "FAILED", ()), (0, "SUCCEEDED", ("recon",))],
)
def test_a_deferred_step_is_ready_within_the_tolerance(failed: int, expected: str, ready: tuple[str, ...]) -> None:
    plan = planned(TOLERANT)
    status = "FAILED" if failed else "SUCCEEDED"
    jobs = [
        job("prepare", status, size=100, SUCCEEDED=100 - failed, FAILED=failed, stopped=9),
        job("other", "SUCCEEDED", stopped=9),
    ]
    state = execution_state(plan, jobs)
    assert states(state)["prepare"] == expected and state.ready == ready
    assert state.state == ("WAITING" if ready else "FAILED")
    if not ready:
        assert state.step("recon").reason == "not run: prepare has failed (6 failed, max_failed is 5%)"
        return
    good = frozenset(range(failed, 100))
    wanted, existing = wanted_now(plan, state, lambda step: good if step == "prepare" else frozenset())
    assert wanted == {"recon": sorted(good)} and not existing


def test_a_step_after_a_deferred_step_follows_it() -> None:
    plan = planned(TOLERANT)
    waiting = execution_state(plan, [job("prepare", "RUNNING", size=100, RUNNING=100), job("other", "RUNNING")])
    assert waiting.step("recon").reason == "`watch` submits it when prepare has ended with at most 5% failed"
    assert waiting.step("report").reason == "`watch` submits it as soon as recon has been submitted"
    before = [job("prepare", "SUCCEEDED", size=100, SUCCEEDED=100), job("other", "RUNNING")]
    state = execution_state(plan, [*before, job("recon", "PENDING", size=100)])
    assert state.ready == ("report",)
    wanted, existing = wanted_now(plan, state, nothing)
    assert wanted == {"report": [0]} and set(existing) == {"other", "recon"}
    [request] = job_requests(plan, wanted, existing)
    assert request.waits_for == (("recon", "recon-1-0", False), ("other", "other-1-0", False))
    done = execution_state(plan, [*before, job("recon", "PENDING", size=100), job("report", "PENDING")])
    assert done.ready == () and done.state == "RUNNING"


def test_a_stopped_run_submits_nothing() -> None:
    plan = planned(TOLERANT)
    jobs = [job("prepare", "SUCCEEDED", size=100, tags={"corral:pipeline:stopped": "now"}), job("other", "SUCCEEDED")]
    state = execution_state(plan, jobs)
    assert state.state == "STOPPED" and state.ready == ()


def test_a_retry_replaces_what_failed() -> None:
    plan = planned(THREE)
    jobs = [
        job("prepare", "FAILED", size=100, SUCCEEDED=97, FAILED=3),
        job("prepare", "PENDING", attempt=2, size=3, indexes=(1, 5, 9), SUCCEEDED=2, RUNNING=1, at=9),
        job("recon", "FAILED", size=100, FAILED=100),
        job("recon", "PENDING", attempt=2, size=100, at=9),
        job("report", "FAILED"),
        job("report", "PENDING", attempt=2, at=9),
    ]
    state = execution_state(plan, jobs)
    assert state.step("prepare").counts.done == 99 and state.step("prepare").counts.failed == 0
    assert state.step("recon").counts.waiting == 100 and state.step("report").counts.total == 1
    assert state.attempt == 2 and state.state == "RUNNING"


def test_a_retried_tolerant_step_makes_later_steps_ready_again() -> None:
    plan = planned(TOLERANT)
    jobs = [
        job("prepare", "FAILED", size=100, SUCCEEDED=98, FAILED=2),
        job("prepare", "FAILED", attempt=2, size=2, indexes=(1, 5), SUCCEEDED=1, FAILED=1, at=9),
        job("other", "SUCCEEDED"),
        job("recon", "SUCCEEDED", size=98, indexes=tuple(i for i in range(100) if i not in (1, 5)), SUCCEEDED=98),
        job("report", "SUCCEEDED"),
    ]
    state = execution_state(plan, jobs)
    assert state.ready == ("recon",)
    bad = {"prepare": {5}, "recon": {1, 5}}
    wanted, _ = wanted_now(plan, state, lambda step: frozenset(range(100)) - bad[step])
    assert wanted == {"recon": [1]}
    assert execution_state(plan, jobs, frozenset({"recon"})).ready == ()  # if there is nothing to run, the run has ended


def test_an_ended_array_with_a_late_summary() -> None:
    found = job("a", "SUCCEEDED", size=10, SUCCEEDED=7, RUNNING=3)
    assert (found.counts.done, found.counts.running) == (10, 0)
    assert job("a", "FAILED", size=10, SUCCEEDED=7).counts.failed == 3


def test_a_job_of_another_program_is_left_out() -> None:
    assert read_job({"jobId": "x", "status": "RUNNING", "tags": {"corral:pipeline": "p"}}) is None


# Estimates and screens


def running(now_s: float = 100.0) -> Execution:
    plan = planned(THREE)
    jobs = [
        job("prepare", "SUCCEEDED", size=100, SUCCEEDED=100, started=1, stopped=50),
        job("recon", "PENDING", size=100, SUCCEEDED=40, FAILED=2, RUNNING=10, RUNNABLE=48, started=20),
        job("report", "PENDING"),
    ]
    return with_estimates(execution_state(plan, jobs), now_s, {"recon": 10.0}, {"report": StepTimes(30.0, 30.0)})


def test_estimates_add_up_along_the_dependencies() -> None:
    state = running()
    assert state.step("recon").ends_in_s == pytest.approx((10 / 2 + 48) * 10.0 / 10)
    assert state.step("report").ends_in_s == pytest.approx(53.0 + 30.0) and state.ends_in_s == pytest.approx(83.0)
    unknown = with_estimates(state, 100.0, {}, {})
    assert unknown.ends_in_s is None and unknown.step("report").ends_in_s is None


def drawn(state: Execution, width: int, height: int | None = None) -> list[str]:
    out = Console(width=width, file=StringIO(), color_system=None)
    with out.capture() as captured:
        out.print(frame(state, 100.0, width, height))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [80, 160])
def test_a_screen(width: int) -> None:
    lines = drawn(running(), width)
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith(f"p-{RUN}  RUNNING  1m 40s  ends in about 1m 23s") and len(lines[0]) == width
    assert lines[2].split()[:7] == ["STEP", "DONE", "RUN", "FAIL", "WAIT", "STATE", "ENDS"]
    prepare, recon, report = lines[3:6]
    assert "█" * 10 in prepare and "SUCCEEDED" in prepare and prepare.split()[2:6] == ["100/100", "0", "0", "0"]
    assert recon.split()[2:6] == ["40/100", "10", "2", "48"] and "53s" in recon
    assert re.fullmatch("█+×▒+░+", recon.split()[1])  # the parts differ without colours, too
    if width == 160:
        assert report.endswith("after recon") and len(lines) == 6
    else:
        assert lines[6:] == ["report: after recon"]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_long_reason_is_shown_as_a_whole(width: int) -> None:
    reason = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - " + " ".join(f"word{number}" for number in range(12))
    lines = drawn(execution_state(planned("\n  a: {gpus: 4}"), [job("a", "RUNNABLE", reason=reason)]), width)
    assert " ".join(line.strip() for line in lines[4:]) == f"a: {reason}" and len(lines[4]) <= width


class Children:
    """ListJobs of Batch: the children of arrays by the id of the array and their status."""

    def __init__(self, **statuses: list[dict[str, Any]]) -> None:
        self._statuses = statuses

    def list_jobs(self, *, arrayJobId: str, jobStatus: str, maxResults: int) -> dict[str, Any]:
        return {"jobSummaryList": self._statuses.get(jobStatus, [])[:maxResults]}


def child(index: int, reason: str = "", **more: Any) -> dict[str, Any]:
    return {"arrayProperties": {"index": index}, "statusReason": reason, **more}


def explained(plan: PipelinePlan, jobs: list[PipelineJob], batch: Any = None) -> dict[str, str]:
    steps = with_reasons(batch or Children(), "p", execution_state(plan, jobs).steps)
    return {step.name: step.reason for step in steps}


HELD = "Environment here: {} hold 2 of 2 GPUs; needs 1 GPU; place 2 in line behind job x; held by tasks a; first in line"


def test_reasons_of_waiting_jobs_are_short() -> None:
    """A screen has the short answer. Children with the same answer are counted together, and those after other steps, too."""
    plan = planned("\n  a: {gpus: 1}\n  b: {gpus: 1, array: 9, after: {each: c}}\n  c: {array: 9}")
    jobs = [
        job("a", "RUNNABLE", reason=HELD.format("x and batch-p-b")),
        job("b", "PENDING", size=9, RUNNABLE=4, PENDING=3, RUNNING=2),
        job("c", "PENDING", size=9, RUNNING=3, SUCCEEDED=6),
    ]
    waiting = [child(index, HELD.format(f"x{index // 3}") + f"; {index} jobs with the same needs before it") for index in range(4)]
    assert explained(plan, jobs, Children(RUNNABLE=waiting)) == {
        "a": "x and b hold 2 of 2 GPUs",
        "c": "",
        "b": "3 wait: x0 hold 2 of 2 GPUs; 1 waits: x1 hold 2 of 2 GPUs; 3 after c",
    }
    code = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - "
    texts = {
        f"{code}Environment here: the largest host has only 2 GPUs; needs 8 GPUs; first in line": (
            "cannot start: the largest host has only 2 GPUs; needs 8 GPUs"
        ),
        "Environment a: 0 of 2 GPUs free; needs 1 GPU; environment b: tried next": (
            "Environment a: 0 of 2 GPUs free; environment b: tried next"
        ),
        f"{code}The job resource requirement is higher": "cannot start: The job resource requirement is higher",
        "ACTION_REQUIRED - The job queue q does not exist": "The job queue q does not exist",
    }
    assert {text: short_job_reason(text, "p") for text in texts} == texts


def test_reasons_of_failed_jobs_and_of_jobs_that_did_not_run() -> None:
    plan = planned("""
  a: {array: 300}
  b: {array: 2, after: {each: d}}
  c: {after: a}
  d: {array: 2}
  e: {after: c}
""")
    not_run = {"reason": "Dependent Job failed"}
    jobs = [
        job("a", "FAILED", size=300, SUCCEEDED=100, FAILED=200),
        job("d", "FAILED", size=2, SUCCEEDED=1, FAILED=1, reason="Array Child Job failed"),
        job("b", "FAILED", size=2, FAILED=2),
        job("c", "FAILED", **not_run),
        job("e", "FAILED", **not_run),
    ]
    exited = {"startedAt": 1, "container": {"exitCode": 3, "reason": "Essential container in task exited"}}

    class ByArray(Children):
        def list_jobs(self, *, arrayJobId: str, **more: Any) -> dict[str, Any]:
            failed = {
                jobs[0].id: [child(at, "late", startedAt=1) if at == 7 else child(at, **exited) for at in range(200)],
                jobs[1].id: [child(1, **exited)],
                jobs[2].id: [child(0, "killed", startedAt=1), child(1, not_run["reason"])],
            }[arrayJobId]
            return Children(FAILED=failed).list_jobs(arrayJobId=arrayJobId, **more)

    assert explained(plan, jobs, ByArray()) == {
        "a": "[0-6,8-99] and 100 more exit code 3; [7] late",
        "d": "[1] exit code 3",
        "b": "[0] killed; [1] not run, because d failed",
        "c": "not run, because a failed",
        "e": "not run, because a failed",
    }
    state = execution_state(plan, jobs)
    state = state._replace(steps=with_reasons(ByArray(), "p", state.steps))
    assert failed_text(state) == "202 jobs of a, d, b failed. Not run: 1 more job of them, c, e."


def test_a_short_screen_leaves_out_ended_steps() -> None:
    lines = drawn(running(), 160, 7)
    assert not any(line.startswith("prepare") for line in lines) and "and 1 step more" in lines
    assert any(line.startswith("recon") for line in lines)


@pytest.mark.parametrize("numbers", [(0, 0, 0, 7), (1, 1, 9998, 0), (3, 3, 3, 1), (10_000, 0, 0, 0), (1, 0, 0, 9999)])
def test_a_bar_shows_every_kind(numbers: Sequence[int]) -> None:
    shares = bar_columns(numbers, sum(numbers), 20)
    assert sum(shares) == 20 and all((share > 0) == (number > 0) for share, number in zip(shares, numbers))


def test_a_line_of_text() -> None:
    assert step_line(running().step("recon")) == "recon: RUNNING (40 done, 10 running, 2 failed, 48 waiting, ends in about 53s)"
    assert step_line(running().step("report")).endswith("): after recon")


def test_unfinished_jobs_know_their_indexes() -> None:
    plan = planned("\n  a: {array: 4}\n  b: {array: 4, after: {each: a}}")
    [request] = job_requests(plan, {"b": [1, 3]}, {"a": [SubmittedJob("x", (1, 3))]})
    assert request == JobRequest("b", (1, 3), (("a", "x", True),))
    [request] = job_requests(plan, {"b": [1, 3]}, {"a": [SubmittedJob("x", (0, 1, 2, 3))]})
    assert request == JobRequest("b", (1, 3), (("a", "x", False),))  # another index at the same position: wait for the whole job
