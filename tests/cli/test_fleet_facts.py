"""What `corral fleet` computes from AWS's responses: the workers over time, crashes, gaps in metrics, and the last scale-out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from corral.cli.fleets import facts as fleet_facts
from corral.cli.fleets import history as fleet_history
from corral.cli.fleets.fleet import frame
from corral.cli.printing.output import console

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
ALARM = "a monitor alarm a in state ALARM triggered policy p"
PROVIDER = "the capacity provider gpus, whose tasks need 2 instances, scaled the group,"
CAUSE = "At 2026-01-01T11:58:00Z {} changing the desired capacity from {} to {}.  At …"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def activity(what: str, ago_s: float, cause: str = "", instance: str = "i-0a", **more: Any) -> dict[str, Any]:
    found = {"Description": f"{what} EC2 instance: {instance}", "StartTime": ago(ago_s), "StatusCode": "Successful", "Cause": cause}
    return found | {"EndTime": ago(ago_s - 1)} | more


def task(created_s: float, started_s: float | None = None, **more: Any) -> dict[str, Any]:
    started = None if started_s is None else ago(started_s)
    found = {"id": "1" * 32, "created": ago(created_s), "started": started, "stopped": None, "joined": None, "instance": "i-0a"}
    return found | {"state": "RUNNING", "stopCode": None, "exitCode": None, "reason": ""} | more


def entered(alarm: str, state: str, before: datetime) -> datetime | None:
    return ago(120.5)


def test_the_number_of_workers_follows_the_activities() -> None:
    activities = [
        activity("Terminating", 60),
        activity("Launching a new", 200, instance="i-0b", StatusCode="Failed"),
        activity("Launching a new", 301, instance="i-0c"),
        activity("Launching a new", 501),
    ]
    history = fleet_history.instance_history(activities, 1, NOW, 10)  # one value a minute, that of now is the last
    assert history == [0, 1, 1, 1, 2, 2, 2, 2, 1, 1]


def test_a_launch_that_was_cancelled_was_no_worker() -> None:
    """The second instance waited for the only GPU of the machine. Its launch was cancelled, and then it was terminated."""
    activities = [
        activity("Terminating", 60),
        activity("Terminating", 60, instance="i-0b"),
        activity("Launching a new", 300, CAUSE.format(ALARM, 1, 2), instance="i-0b", StatusCode="Cancelled"),
        activity("Launching a new", 400, CAUSE.format(ALARM, 0, 1)),
    ]
    assert max(value or 0 for value in fleet_history.instance_history(activities, 0, NOW, 10)) == 1
    found = fleet_history.scale_out_of_group(activities, [task(390, 389)], [], entered)
    assert found is not None and (found["before"], found["after"]) == (1, 2)
    assert [each["text"] for each in found["steps"]] == ["policy p sets 1 → 2", "the launch of instance i-0b was cancelled"]
    activities[2]["StatusCode"] = "WaitingForInstanceId"
    found = fleet_history.scale_out_of_group(activities, [], [], entered)
    assert found is not None and found["steps"][-1]["text"] == "instance i-0b waits"


def test_the_running_tasks_of_a_service() -> None:
    tasks = [task(500, 490, stopped=ago(200), state="STOPPED"), task(300, 290), task(10, None, state="PENDING")]
    assert fleet_history.task_history(tasks, NOW, 10) == [0, 1, 1, 1, 1, 2, 1, 1, 1, 1]


def test_crashes() -> None:
    def stopped(ago_s: float, code: str = "EssentialContainerExited", exit_code: int | None = 1, **more: Any) -> dict[str, Any]:
        return task(900, 890, state="STOPPED", stopped=ago(ago_s), stopCode=code, exitCode=exit_code, **more)

    peaceful = [
        task(5, 4),
        stopped(700),  # too long ago
        stopped(20, exit_code=0),
        stopped(20, "ServiceSchedulerInitiated", 143),
        stopped(20, "UserInitiated", 137),
    ]
    assert fleet_history.crashes(peaceful, NOW) is None
    last = stopped(5, "TaskFailedToStart", None, id="2" * 32, reason="CannotPullContainerError: nothing is there")
    found = fleet_history.crashes([*peaceful, stopped(30, reason="OutOfMemoryError"), last], NOW)
    assert found is not None and (found["count"], found["task"]) == (2, "2" * 32)
    assert found["reason"] == "CannotPullContainerError: nothing is there"
    found = fleet_history.crashes([stopped(30, exit_code=3, reason="Essential container in task exited")], NOW)
    assert found is not None and found["reason"] == "exit code 3: Essential container in task exited"


def test_a_gap_in_a_metric_repeats_the_last_value_for_a_while() -> None:
    assert fleet_facts._filled({20: 4.0, 80: 0.0}, range(0, 100, 10), 3) == [None, None, 4, 4, 4, None, None, None, 0, 0]


WAKES = [{"atMs": 1000 * ago(ago_s).timestamp(), "sender": "s3.amazonaws.com"} for ago_s in (900, 121, 60)]


@pytest.mark.parametrize("before", [0, 1])
def test_the_time_line_of_a_scale_out(before: int) -> None:
    """From zero, it begins with the message. Otherwise it begins with the policy, because the alarm was in its state before."""
    launched = activity("Launching a new", 120, CAUSE.format(ALARM, before, before + 1))
    newer = activity("Launching a new", 10, "At 2026-01-01T11:59:50Z a user request …", instance="i-0d")
    tasks = [task(500, 499, id="2" * 32, instance="i-0c"), task(119, 118)]
    found = fleet_history.scale_out_of_group([newer, launched], tasks, WAKES, entered)
    assert found is not None and (found["before"], found["after"]) == (before, before + 1)
    steps = [(each["step"], each["ms"]) for each in found["steps"]]
    rest = [("policy", 1000), ("instance", 2000), ("task", 2000), ("running", 3000)]
    if before:
        assert steps == [(step, ms - 1000) for step, ms in rest]
    else:
        assert steps == [("message", 0), ("alarm", 500), *rest]


def test_the_time_line_of_a_capacity_provider() -> None:
    launched = activity("Launching a new", 120, CAUSE.format(PROVIDER, 0, 2))
    found = fleet_history.scale_out_of_group([launched], [task(121, 118, joined=ago(118.5))], WAKES, entered)
    assert found is not None and [(each["step"], each["ms"]) for each in found["steps"]] == [
        ("task", 0), ("policy", 1000), ("instance", 2000), ("joined", 2500), ("running", 3000),
    ]  # fmt: skip
    assert found["steps"][1]["text"] == "capacity provider gpus sets 0 → 2"


def test_the_time_line_of_a_service() -> None:
    def setting(count: int, ago_s: float, cause: str = ALARM) -> dict[str, Any]:
        return {
            "Description": f"Setting desired count to {count}.",
            "StartTime": ago(ago_s),
            "StatusCode": "Successful",
            "Cause": cause,
        }

    tasks = [task(119, 118)]
    activities = [setting(0, 30), setting(1, 120), setting(0, 300), setting(2, 400, "minimum capacity was set to 2")]
    found = fleet_history.scale_out_of_service(activities, tasks, WAKES, entered)
    assert found is not None and (found["before"], found["after"]) == (None, 1), "the scale-in is not a scale-out"
    steps = [("message", 0), ("alarm", 500), ("policy", 1000), ("task", 2000), ("running", 3000)]
    assert [(each["step"], each["ms"]) for each in found["steps"]] == steps
    assert fleet_history.scale_out_of_service([setting(0, 30)], tasks, WAKES, entered) is None
    again = fleet_history.scale_out_of_service([setting(1, 20), *activities[1:]], [*tasks, task(20, 19)], [], entered)
    assert again is not None and again["steps"][1]["ms"] == 100_500, "a user has set the count to 0 in between"


def test_a_fleet_of_aws_is_drawn_without_the_facts_of_corral(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    levels = {name: [0.0, 5.0] for name in ("visible", "inFlight", "oldestS", "workers")} | {"gpuUtilizationPercent": [None, None]}
    alarm = {"name": "a\x1b[2J", "state": "ALARM", "since": NOW, "threshold": 10.0, "reason": "", "watches": ["m"]}
    policy = {"name": "p", "adjustment": "ChangeInCapacity", "target": None, "simple": None, "alarms": [alarm]}
    steps = [(None, 0, -1), (0, 50, 1), (50, None, 2)]
    worker = {"id": "1" * 32, "instance": None, "state": "RUNNING", "gpuIds": [], "started": NOW, "created": NOW}
    crashes = {"count": 2, "windowS": 600, "at": ago(7), "task": "3" * 32, "reason": "exit code 1"}
    state = {
        "group": "g", "service": None, "provider": "gpus", "waitingTasks": 1, "crashes": crashes,
        "queue": "q", "cluster": None, "now": NOW, "visible": 30, "inFlight": 2, "oldestS": None, "workers": 5,
        "desired": 6, "gpus": 0, "history": levels, "policies": [policy | {"steps": steps}], "tasks": [worker], "activity": None,
        "scaleOut": None,
    }  # fmt: skip
    console().print(frame(state, 100))
    drawn = capsys.readouterr().out
    assert "\x1b" not in drawn
    for text in (
        "5 of 6",
        "below 10",
        "10 to 60",
        "60 and more",
        "-1",
        "+1",
        "+2",
        "1 task waits for an instance",
        "No scale-out yet by an alarm",
    ):
        assert text in drawn
    assert "2 workers crashed in the last 10 minutes, the last 7s ago: exit code 1 (`corral logs 33333333`" in drawn
    assert "USER" not in drawn
    two = [worker | {"owner": "user/ann"}, worker | {"owner": "root"}]
    console().print(frame(state | {"tasks": two}, 100))
    shown = [line.split()[:3] for line in capsys.readouterr().out.splitlines() if "RUNNING" in line or "USER" in line]
    assert [each[1] for each in shown] == ["USER", "ann", "root"]
    console().print(frame(state | {"queue": None, "visible": None, "inFlight": None}, 100))
    assert "messages waiting" not in capsys.readouterr().out
