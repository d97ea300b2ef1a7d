"""What `corral fleet` computes from AWS's responses: the number of workers over time, gaps in metrics, and the last scale-out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from corral.cli import fleet_facts
from corral.cli.endpoint import Endpoint
from corral.cli.fleet import frame
from corral.cli.output import console

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
CAUSE = (
    "At 2026-01-01T11:58:00Z a monitor alarm a in state ALARM triggered policy p changing the desired capacity from {} to {}.  At …"
)


def activity(what: str, ago_s: float, cause: str = "", **more: Any) -> dict[str, Any]:
    at = NOW - timedelta(seconds=ago_s)
    found = {"Description": f"{what} EC2 instance: i-0a", "StartTime": at, "StatusCode": "Successful", "Cause": cause}
    return found | {"EndTime": at + timedelta(seconds=1)} | more


def test_the_number_of_workers_follows_the_activities() -> None:
    activities = [
        activity("Terminating", 60),
        activity("Launching a new", 200, StatusCode="Failed"),
        activity("Launching a new", 301),
        activity("Launching a new", 501),
    ]
    history = fleet_facts._instance_history(activities, 1, NOW, 10)  # one value a minute, that of now is the last
    assert history == [0, 1, 1, 1, 2, 2, 2, 2, 1, 1]


def test_a_gap_in_a_metric_repeats_the_last_value_for_a_while() -> None:
    assert fleet_facts._filled({20: 4.0, 80: 0.0}, range(0, 100, 10), 3) == [None, None, 4, 4, 4, None, None, None, 0, 0]


@pytest.mark.parametrize("before", [0, 1])
def test_the_time_line_of_a_scale_out(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From zero, it begins with the message. Otherwise it begins with the policy, because the alarm was in its state before."""
    monkeypatch.setattr(fleet_facts, "_alarm_change", lambda *_: NOW - timedelta(seconds=120.5))
    launched = activity("Launching a new", 120, CAUSE.format(before, before + 1))
    newer = activity("Launching a new", 10, "At 2026-01-01T11:59:50Z a user request …")
    task = {"id": "1" * 32, "created": NOW - timedelta(seconds=119), "started": NOW - timedelta(seconds=118), "joined": None}
    older = task | {"id": "2" * 32, "created": NOW - timedelta(seconds=500)}
    wakes = [
        {"atMs": 1000 * ((NOW - timedelta(seconds=ago_s)).timestamp()), "sender": "s3.amazonaws.com"} for ago_s in (900, 121, 60)
    ]
    found = fleet_facts._scale_out(Endpoint(), [newer, launched], [older, task], wakes)
    assert found is not None and (found["before"], found["after"]) == (before, before + 1)
    steps = [(each["step"], each["ms"]) for each in found["steps"]]
    rest = [("policy", 1000), ("instance", 2000), ("task", 2000), ("running", 3000)]
    if before:
        assert steps == [(step, ms - 1000) for step, ms in rest]
    else:
        assert steps == [("message", 0), ("alarm", 500), *rest]


def test_a_fleet_of_aws_is_drawn_without_the_facts_of_corral(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    levels = {name: [0.0, 5.0] for name in ("visible", "inFlight", "oldestS", "workers")} | {"gpuUtilizationPercent": [None, None]}
    alarm = {"name": "a\x1b[2J", "state": "ALARM", "since": NOW, "threshold": 10.0, "reason": "", "watches": ["m"]}
    policy = {"name": "p", "adjustment": "ChangeInCapacity", "target": None, "simple": None, "alarms": [alarm]}
    steps = [(None, 0, -1), (0, 50, 1), (50, None, 2)]
    task = {"id": "1" * 32, "instance": None, "state": "RUNNING", "gpuIds": [], "started": NOW, "created": NOW}
    state = {
        "group": "g", "queue": "q", "cluster": None, "now": NOW, "visible": 30, "inFlight": 2, "oldestS": None, "workers": 5,
        "desired": 6, "gpus": 0, "history": levels, "policies": [policy | {"steps": steps}], "tasks": [task], "activity": None,
        "scaleOut": None,
    }  # fmt: skip
    console().print(frame(state, 100))
    drawn = capsys.readouterr().out
    assert "\x1b" not in drawn
    for text in ("5 of 6", "below 10", "10 to 60", "60 and more", "-1", "+1", "+2", "No scale-out by an alarm yet."):
        assert text in drawn
