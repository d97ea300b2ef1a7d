"""What users see of paused tasks: descriptions, lists, the status, the history, hours and metrics."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.fleet.machine_cost import machine_report
from corral.fleet.own_metrics import paused_points, paused_tasks
from corral.model.run import Observed
from corral.services.ecs import host_reports
from virtual_clock.pause_world import GIB, PauseWorld
from virtual_clock.shares_world import HOUR_S
from virtual_clock.test_pauses import PREEMPTIBLE, URGENT, turns


def named(name: str) -> list[dict[str, str]]:
    return [{"key": "corral:name", "value": name}]


def paused_world() -> tuple[PauseWorld, str]:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann", tags=named("train"))
    world.pause(task_id)
    world.answer(moved_bytes=3 * GIB)
    return world, task_id


def described(world: PauseWorld, task_id: str) -> dict[str, Any]:
    [found] = world.call("DescribeTasks", "ecs", tasks=[task_id], include=["TAGS"])["tasks"]
    return dict(found)


def rows(world: PauseWorld) -> dict[str, list[dict[str, Any]]]:
    found = world.corral("ListRuns")
    return {name: found[name] for name in ("running", "waiting")}


def attributes(world: PauseWorld, task_id: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in described(world, task_id)["attributes"]}


def test_a_description_says_that_the_task_is_paused() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann", tags=named("train"))
    before = described(world, task_id)
    assert "corral.paused" not in attributes(world, task_id)
    world.corral("PauseTask", task=task_id, reason="lunch")
    assert attributes(world, task_id)["corral.pause-phase"] == "pausing"
    world.answer()
    found = described(world, task_id)
    assert attributes(world, task_id) | {"corral.paused": "user", "corral.pause-phase": "paused"} == attributes(world, task_id)
    assert (found["lastStatus"], found["desiredStatus"]) == ("RUNNING", "RUNNING")
    assert found["tags"] == [*named("train"), {"key": "corral:paused", "value": "lunch"}]
    assert world.call("ListTagsForResource", "ecs", resourceArn=found["taskArn"])["tags"] == named("train")
    [without] = world.call("DescribeTasks", "ecs", tasks=[task_id])["tasks"]
    assert without["tags"] == []
    world.resume(task_id)
    assert attributes(world, task_id)["corral.pause-phase"] == "resuming"
    world.answer()
    after = described(world, task_id)
    assert after["tags"] == before["tags"] and after["attributes"] == before["attributes"]


def test_requests_cannot_set_the_tag_of_paused_tasks() -> None:
    world = PauseWorld(1, ann=[])
    tags = [{"key": "corral:paused", "value": "yes"}]
    with pytest.raises(ApiError, match="corral:paused cannot be set"):
        world.submit("ann", tags=tags)
    [task_id] = world.submit("ann")
    arn = described(world, task_id)["taskArn"]
    with pytest.raises(ApiError, match="corral:paused cannot be set"):
        world.call("TagResource", "ecs", resourceArn=arn, tags=tags)


def test_the_list_has_a_paused_task_once() -> None:
    world, task_id = paused_world()
    [row] = rows(world)["running"]
    assert (row["state"], row["gpuIds"], row["hostMemoryMiB"]) == ("PAUSED", [], 3072)
    assert row["reason"].startswith("paused by ") and row["reason"].endswith("; 3 GiB in the memory of the host")
    assert row["sinceS"] == world.task(task_id).pause.since_s  # type: ignore[union-attr]
    [other] = world.submit("ann", tags=named("other"))
    [waiting] = world.submit("ann")
    world.resume(task_id)
    found = rows(world)
    states = {row["task"]: row["state"] for row in found["running"]}
    assert states == {task_id: "PAUSED", other: "RUNNING"} and [row["task"] for row in found["waiting"]] == [waiting]
    paused = next(row for row in found["running"] if row["task"] == task_id)
    assert "waits to continue: its GPU is held by other; first in line" in paused["reason"]
    assert (paused["place"], paused["startsAtS"]) == (1, None)
    assert found["waiting"][0]["place"] == 2
    world.end(other)
    assert {row["task"]: row["state"] for row in rows(world)["running"]} == {task_id: "RESUMING"}
    world.answer()
    assert {row["task"]: row["state"] for row in rows(world)["running"]} == {task_id: "RUNNING"}


def test_a_task_that_waits_for_its_first_turn_is_listed() -> None:
    world = PauseWorld(1, ann=[])
    world.submit("ann", hours=100, tags=turns(60))
    others = world.submit("ann", hours=100, count=5, tags=turns(60))
    found = rows(world)["waiting"]
    assert {row["task"] for row in found} == set(others)
    assert any("4 tasks take turns on each GPU already" in row["reason"] for row in found)
    status = world.corral("GetStatus")
    assert {row["task"] for row in status["waiting"]} == set(others) and status["tasks"]["PROVISIONING"] == 5


def test_the_status_has_paused_tasks() -> None:
    world, task_id = paused_world()
    [other] = world.submit("ann", tags=named("other"))
    world.resume(task_id)
    status = world.corral("GetStatus")
    [row] = status["paused"]
    assert (row["task"], row["state"], row["hostMemoryMiB"]) == (task_id, "PAUSED", 3072)
    assert "its GPU is held by other" in row["reason"]
    assert status["waiting"] == [] and "PROVISIONING" not in status["tasks"]
    [gpu] = [gpu for host in status["hosts"] for gpu in host["gpus"]]
    assert gpu["task"] == other and gpu["reservedFor"] is None


def test_a_gpu_is_reserved_for_the_paused_task_that_waits_for_another_one() -> None:
    world = PauseWorld(2, ann=[])
    [task_id] = world.submit("ann", gpus=2, tags=named("train"))
    world.pause(task_id)
    world.answer()
    [other] = world.submit("ann", tags=named("other"))
    world.resume(task_id)
    gpus = [gpu for host in world.corral("GetStatus")["hosts"] for gpu in host["gpus"]]
    assert [(gpu["task"], (gpu["reservedFor"] or {}).get("task")) for gpu in gpus] == [(other, None), (None, task_id)]


def test_a_paused_task_that_returns_leaves_the_starts_of_others_unknown() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann", tags=named("train"))
    world.pause(task_id)
    world.answer()
    limit = [{"key": "corral:time-limit", "value": "600"}]
    world.submit("ann", tags=limit)
    [waiting] = world.submit("ann", tags=limit)
    assert rows(world)["waiting"][0]["startsAtS"] is not None
    world.resume(task_id)
    [row] = rows(world)["waiting"]
    assert (row["task"], row["place"], row["startsAtS"]) == (waiting, 2, None)


def test_why_a_task_was_paused_for_another() -> None:
    world = PauseWorld(1, ann=[], bob=[])
    [lender] = world.submit("ann", tags=PREEMPTIBLE)
    world.submit("bob", tags=[*URGENT, *named("urgent")])
    world.settle()
    assert rows(world)["running"][0]["state"] == "PAUSING"
    world.answer(moved_bytes=GIB)
    row = next(row for row in rows(world)["running"] if row["task"] == lender)
    assert row["reason"].startswith(
        "urgent has a higher priority; 1 GiB in the memory of the host; waits to continue: its GPU is held"
    )


def test_no_command_runs_in_a_paused_task() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann", tags=named("train"), enableExecuteCommand=True)
    world.pause(task_id)
    world.answer()
    with pytest.raises(ApiError, match=r"The task is paused, .*`corral resume train`"):
        world.call("ExecuteCommand", "ecs", task=task_id, command="ls", interactive=True)


def test_the_health_of_a_paused_task_is_not_judged() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann")

    def report(health: str) -> str | None:
        seen = [Observed(world.task(task_id).runs[0].attempt_id, 1, world.clock.now_s(), health=health)]
        world.run(lambda tx: host_reports.report(tx, "h", seen))
        return world.task(task_id).runs[0].health

    assert report("HEALTHY") == "HEALTHY"
    world.pause(task_id)
    assert report("UNHEALTHY") == "HEALTHY"
    world.answer()
    assert report("UNHEALTHY") == "HEALTHY"
    world.resume(task_id)
    world.answer()
    assert report("UNHEALTHY") == "UNHEALTHY"


def test_the_hours_of_a_task_do_not_contain_its_pauses() -> None:
    world, task_id = paused_world()
    gpu_hours = lambda: world.run(lambda tx: machine_report(tx, None, reads_tasks=True))["total"]["gpuHours"]  # noqa: E731
    world.wait(2 * HOUR_S)
    assert gpu_hours() == pytest.approx(0.0, abs=0.01)
    world.resume(task_id)
    world.answer()
    world.wait(HOUR_S)
    assert gpu_hours() == pytest.approx(1.0, abs=0.01)
    world.end(task_id)
    assert gpu_hours() == pytest.approx(1.0, abs=0.01)
    [ended] = world.corral("GetHistory")["tasks"]
    assert ended["pausedSeconds"] == pytest.approx(2 * HOUR_S, abs=1)
    assert ended["wallSeconds"] == pytest.approx(3 * HOUR_S, abs=1)


def test_the_metric_of_paused_seconds() -> None:
    world, task_id = paused_world()
    found = world.run(paused_tasks)
    assert found == {("us-east-1", "default", ""): 1, ("us-east-1", "default", task_id): 1}
    [point] = paused_points(1, ("us-east-1", "default", task_id), 100.0, 30.0)
    assert (point.metric.name, point.sample) == ("PausedSeconds", [(1.0, 30.0)])
    world.resume(task_id)
    world.answer()
    assert world.run(paused_tasks) == {}


def test_orders_that_come_too_early_are_refused() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann")
    world.pause(task_id)
    assert world.pause(task_id)["phase"] == "pausing", "a repeated request changes nothing"
    with pytest.raises(ApiError, match="is still being paused"):
        world.resume(task_id)
    world.answer()
    world.resume(task_id)
    with pytest.raises(ApiError, match="is about to continue"):
        world.pause(task_id)
