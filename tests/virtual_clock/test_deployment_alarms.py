"""Alarms that fail the deployment of an ECS service. Service and alarm are in different lanes, with one virtual clock."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from corral.core.commands import Command
from corral.core.handovers import receive
from corral.reconcile.receivers import RECEIVERS
from virtual_clock.rollout_world import RolloutWorld
from virtual_clock.scaling_world import LOAD, ScalingWorld


class AlarmedWorld(ScalingWorld, RolloutWorld):
    def watched(self, names: tuple[str, ...] = ("busy",), *, rolls_back: bool = True, **more: Any) -> None:
        """Start a service whose deployments watch alarms, and complete its first deployment."""
        self.define()
        alarms = {"enable": True, "rollback": rolls_back, "alarmNames": list(names)}
        self.serve(desiredCount=2, deploymentConfiguration={"alarms": alarms, **more})
        self.report()
        self.wait(61)
        assert self.service()["deployments"][0]["rolloutState"] == "COMPLETED"


@pytest.fixture
def world() -> AlarmedWorld:
    world = AlarmedWorld()
    for name in ("busy", "other"):
        world.alarm(name, LOAD)
    return world


def watches(world: AlarmedWorld) -> list[tuple[str, str]]:
    return world.metrics.store.execute("SELECT watcher, alarm FROM alarm_watch").fetchall()


def test_an_alarm_rolls_a_deployment_back(world: AlarmedWorld) -> None:
    world.watched()
    before = set(world.tasks())
    world.update(forceNewDeployment=True)
    bad = world.service()["deployments"][0]["id"]
    assert [alarm for _, alarm in watches(world)] == ["busy"]
    world.set_state("ALARM", name="other")
    assert world.rollouts()[0]["status"] == "IN_PROGRESS"
    world.set_state("ALARM")
    world.report()
    [rollout, first] = world.rollouts()
    assert (rollout["status"], first["status"]) == ("ROLLBACK_SUCCESSFUL", "SUCCESSFUL") and set(world.tasks()) == before
    assert rollout["alarms"] == {"status": "TRIGGERED", "alarmNames": ["busy"], "triggeredAlarmNames": ["busy"]}
    assert f"(deployment {bad}) deployment failed: alarm detected." in world.messages()
    assert not watches(world)


def test_an_alarm_in_the_bake_time_rolls_back(world: AlarmedWorld) -> None:
    world.watched()
    old = world.service()["deployments"][0]["id"]
    world.update(forceNewDeployment=True)
    for _ in range(3):
        world.report()
    assert len(world.service()["deployments"]) == 1 and world.rollouts()[0]["lifecycleStage"] == "BAKE_TIME"
    world.set_state("ALARM")
    for _ in range(3):
        world.report()
    shown = world.service()
    assert [each["id"] for each in shown["deployments"]] == [old] and shown["runningCount"] == 2
    assert world.rollouts()[0]["status"] == "ROLLBACK_SUCCESSFUL"


def test_a_deleted_service_watches_no_alarms(world: AlarmedWorld) -> None:
    world.watched()
    world.update(forceNewDeployment=True)
    assert watches(world)
    world.call("DeleteService", "ecs", service="web", force=True)
    assert not watches(world) and world.rollouts()[0]["status"] == "STOPPED"


def test_without_rollback_the_deployment_fails(world: AlarmedWorld) -> None:
    world.watched(rolls_back=False)
    world.update(forceNewDeployment=True)
    world.set_state("ALARM")
    shown = world.service()["deployments"][0]
    assert (shown["rolloutState"], world.rollouts()[0]["status"]) == ("FAILED", "STOPPED")
    assert "alarm detected (busy)" in shown["rolloutStateReason"]


def test_an_alarm_that_was_in_alarm_before_is_ignored(world: AlarmedWorld) -> None:
    world.watched()
    world.set_state("ALARM")
    world.update(forceNewDeployment=True)
    for _ in range(3):
        world.report()
    world.wait(61)
    assert world.rollouts()[0]["status"] == "SUCCESSFUL"


def test_an_alarm_that_fires_before_the_first_report_arrives_counts(world: AlarmedWorld) -> None:
    world.watched()
    delivered, world.deliver = world.deliver, lambda: None  # type: ignore[method-assign]
    world.update(forceNewDeployment=True)
    take_one(world, "state")  # the metrics lane sends its first report, which waits
    world.set_state("ALARM")
    world.deliver = delivered  # type: ignore[method-assign]
    world.deliver()
    assert world.rollouts()[0]["alarms"]["triggeredAlarmNames"] == ["busy"]


def take_one(world: AlarmedWorld, sender: str) -> None:
    """Deliver the oldest hand-over of one lane, and none of the hand-overs that it causes."""
    lane = world.lanes[sender]
    handover = lane.handed.popleft()
    take = partial(receive, receivers=RECEIVERS[handover.lane], handover=handover, finished=[])
    world.lanes[handover.lane].transact([Command(take, lambda answer: None)])
    lane.delivered.append(handover.id)


def test_a_deployment_waits_for_the_first_report_of_its_alarms(world: AlarmedWorld) -> None:
    """The bake time is the longest window of the alarms, and an alarm that does not exist has none."""
    world.watched(("missing",))
    assert world.rollouts()[0]["alarms"]["status"] == "MONITORING_COMPLETE"
    world.alarm("slow", LOAD, Period=300, EvaluationPeriods=2)
    alarms = {"enable": True, "rollback": True, "alarmNames": ["slow"]}
    world.update(forceNewDeployment=True, deploymentConfiguration={"alarms": alarms})
    for _ in range(3):
        world.report()
    world.wait(590)
    assert world.rollouts()[0]["status"] == "IN_PROGRESS"
    world.wait(15)
    assert world.rollouts()[0]["status"] == "SUCCESSFUL"
