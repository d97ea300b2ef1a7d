"""Deployments of ECS services: circuit breaker, health checks, alarms, bake time, pauses, and their end."""

from __future__ import annotations

import pytest

from corral.model.run import Observed
from corral.services.ecs import host_reports
from virtual_clock.group_world import refused
from virtual_clock.rollout_world import BREAKER, RolloutWorld


@pytest.fixture
def world() -> RolloutWorld:
    return RolloutWorld()


def serving(world: RolloutWorld, desired: int = 2, **configuration: object) -> None:
    """A service whose first deployment is complete."""
    world.define()
    world.serve(desiredCount=desired, deploymentConfiguration={**BREAKER, **configuration})
    world.report()
    world.wait(10)
    assert world.service()["deployments"][0]["rolloutState"] == "COMPLETED"


def test_a_deployment_whose_tasks_crash_is_rolled_back(world: RolloutWorld) -> None:
    serving(world)
    good = world.service()["deployments"][0]["id"]
    before = set(world.tasks())
    world.define()
    world.update(taskDefinition="one")
    bad = world.service()["deployments"][0]["id"]
    world.crash()
    shown = world.service()
    assert [each["id"] for each in shown["deployments"]] == [good]
    assert shown["taskDefinition"].endswith("one:1") and set(world.tasks()) == before, "the old tasks run on"
    assert shown["deployments"][0]["rolloutState"] == "COMPLETED"
    events = world.messages()
    failed = events.index(f"(deployment {bad}) deployment failed: tasks failed to start.")
    assert events[failed + 1] == f"rolling back to deployment {good}."
    assert events[-2:] == [f"(deployment {good}) deployment completed.", "has reached a steady state."]
    newest, first = world.rollouts()
    assert (newest["status"], first["status"]) == ("ROLLBACK_SUCCESSFUL", "SUCCESSFUL")
    assert newest["deploymentCircuitBreaker"] == {"status": "TRIGGERED", "failureCount": 3, "threshold": 3}
    assert newest["rollback"]["serviceRevisionArn"] == first["targetServiceRevision"]["arn"]
    assert newest["rollback"]["reason"] == "ECS deployment circuit breaker: tasks failed to start."


def test_the_states_during_a_rollback(world: RolloutWorld) -> None:
    serving(world, minimumHealthyPercent=0, maximumPercent=100)
    world.define()
    world.update(taskDefinition="one")
    world.report()
    while world.rollouts()[0]["status"] == "IN_PROGRESS":
        if not world.fail_all("state IN ('PENDING', 'RUNNING') AND desired = 'RUNNING'"):
            world.wait(1.0)
    shown = world.service()
    first, second = shown["deployments"]
    assert (first["status"], first["rolloutState"]) == ("PRIMARY", "IN_PROGRESS")
    assert first["rolloutStateReason"] == f"ECS deployment circuit breaker: rolling back to deploymentId {first['id']}."
    assert (second["status"], second["rolloutState"]) == ("ACTIVE", "FAILED")
    assert second["rolloutStateReason"] == "ECS deployment circuit breaker: tasks failed to start."
    assert second["failedTasks"] >= 3 and world.rollouts()[0]["status"] == "ROLLBACK_IN_PROGRESS"
    world.report()
    world.wait(10)
    assert world.rollouts()[0]["status"] == "ROLLBACK_SUCCESSFUL"


def test_a_first_deployment_that_fails_starts_no_more_tasks(world: RolloutWorld) -> None:
    world.define()
    world.serve(desiredCount=1, deploymentConfiguration=BREAKER)
    world.crash()
    [deployment] = world.service()["deployments"]
    assert deployment["rolloutState"] == "FAILED" and world.count("1") == 3
    assert world.rollouts()[0]["status"] == "STOPPED"
    world.wait(3600)
    assert world.count("1") == 3
    world.update(forceNewDeployment=True)
    world.report()
    world.wait(10)
    assert world.service()["deployments"][0]["rolloutState"] == "COMPLETED"


def test_a_rollback_that_fails_ends(world: RolloutWorld) -> None:
    serving(world, minimumHealthyPercent=0, maximumPercent=100)
    world.define()
    world.update(taskDefinition="one")
    world.crash(300)
    assert world.rollouts()[0]["status"] == "ROLLBACK_FAILED"
    assert world.service()["deployments"][0]["rolloutState"] == "FAILED" and not world.tasks()


def test_without_a_breaker_the_crash_loop_slows_down(world: RolloutWorld) -> None:
    world.define()
    world.serve(desiredCount=1)
    world.crash(300)
    assert 5 < world.count("1") < 15


def test_a_healthy_task_resets_the_failures(world: RolloutWorld) -> None:
    for resets, state in ((True, "IN_PROGRESS"), (False, "FAILED")):
        world = RolloutWorld()
        world.define_checked()
        breaker = {"enable": True, "rollback": False, "resetOnHealthyTask": resets}
        world.serve(desiredCount=2, deploymentConfiguration={"deploymentCircuitBreaker": breaker})
        world.fail_all()
        good, bad = world.tasks()
        world.observe(good)
        world.observe(good, health="HEALTHY")
        world.observe(bad)
        world.observe(bad, exit_code=1)
        world.wait(5)
        assert world.service()["deployments"][0]["rolloutState"] == state


@pytest.mark.parametrize(
    ("threshold", "failures"),
    [({"type": "COUNT", "value": 1}, 1), ({"type": "UNBOUNDED_PERCENT", "value": 100}, 2), (None, 3)],
)
def test_thresholds(world: RolloutWorld, threshold: dict[str, object] | None, failures: int) -> None:
    world.define()
    breaker = {"enable": True, "rollback": False, **({"thresholdConfiguration": threshold} if threshold else {})}
    world.serve(desiredCount=2, deploymentConfiguration={"deploymentCircuitBreaker": breaker})
    world.report()
    while world.service()["deployments"][0]["rolloutState"] == "IN_PROGRESS":
        task_id = next(iter(world.tasks("desired = 'RUNNING'")), None)
        if task_id is None:
            world.wait(1.0)
        else:
            world.observe(task_id)
            world.observe(task_id, exit_code=1)
    shown = world.rollouts()[0]["deploymentCircuitBreaker"]
    assert shown == {"status": "TRIGGERED", "failureCount": failures, "threshold": failures}


# Health checks


def test_old_tasks_stay_until_the_new_ones_are_healthy(world: RolloutWorld) -> None:
    world.define_checked()
    world.serve(desiredCount=2)
    world.report()
    world.wait(600)
    assert world.service()["deployments"][0]["rolloutState"] == "IN_PROGRESS", "the health is unknown"
    for task_id in world.tasks():
        world.observe(task_id, health="HEALTHY")
    assert world.service()["deployments"][0]["rolloutState"] == "COMPLETED"
    old = world.tasks()
    world.update(forceNewDeployment=True)
    world.report()
    assert set(old) < set(world.tasks()) and len(world.tasks()) == 4
    one, other = (task_id for task_id in world.tasks() if task_id not in old)
    world.observe(one, health="HEALTHY")
    assert len(world.tasks()) == 3
    world.observe(other, health="HEALTHY")
    assert set(world.tasks()) == {one, other}


def test_an_unhealthy_task_is_replaced(world: RolloutWorld) -> None:
    world.define_checked()
    world.serve(desiredCount=1)
    world.report()
    [task_id] = world.tasks()
    world.observe(task_id, health="HEALTHY")
    world.observe(task_id, health="UNHEALTHY")
    world.settle()
    world.report()
    old, new = world.tasks()
    assert old == task_id, "it stops when its replacement is healthy"
    world.observe(new, health="HEALTHY")
    assert world.tasks() == [new] and f"(task {task_id}) failed container health checks." in world.messages()
    task = world.store.tasks.get(task_id)
    assert task is not None and task.stopped_reason == "Task failed container health checks"
    world.wait(61)
    assert world.messages()[-1] == "has reached a steady state."


def test_an_unhealthy_task_stops_at_once_if_its_replacement_waits_for_its_gpus(world: RolloutWorld) -> None:
    world.define_checked(gpus=8)
    world.serve(desiredCount=1)
    world.report()
    [task_id] = world.tasks()
    world.observe(task_id, health="UNHEALTHY")
    [new] = world.tasks()
    assert new != task_id and f"(task {task_id}) failed container health checks." in world.messages()
    world.report()
    world.report()
    assert world.tasks("state = 'RUNNING'") == [new]


def test_the_grace_period_ignores_unhealthy_tasks(world: RolloutWorld) -> None:
    world.define_checked()
    world.serve(desiredCount=1, healthCheckGracePeriodSeconds=60)
    world.report()
    [task_id] = world.tasks()
    world.observe(task_id, health="UNHEALTHY")
    world.wait(59)
    assert world.tasks() == [task_id]
    world.wait(2)
    assert len(world.tasks()) == 2
    world.report()
    world.observe(world.tasks()[1], health="HEALTHY")
    assert task_id not in world.tasks(), "it stops when its replacement is healthy"


def test_unhealthy_tasks_trip_the_breaker(world: RolloutWorld) -> None:
    world.define_checked()
    world.serve(desiredCount=1, deploymentConfiguration=BREAKER)
    world.report()
    [task_id] = world.tasks()
    world.observe(task_id, health="HEALTHY")
    world.define_checked()
    world.update(taskDefinition="one")
    while world.rollouts()[0]["status"] == "IN_PROGRESS":
        world.report()
        for each in set(world.tasks()) - {task_id}:
            world.observe(each, health="UNHEALTHY")
        world.wait(1.0)
    world.report()
    assert world.tasks() == [task_id] and world.rollouts()[0]["status"] == "ROLLBACK_SUCCESSFUL"


# Stops, pauses and the bake time


def test_a_user_rolls_a_deployment_back(world: RolloutWorld) -> None:
    serving(world)
    before = set(world.tasks())
    world.update(forceNewDeployment=True)
    rollout = world.rollouts()[0]
    world.call("StopServiceDeployment", "ecs", serviceDeploymentArn=rollout["serviceDeploymentArn"])
    world.report()
    assert set(world.tasks()) == before and world.rollouts()[0]["status"] == "ROLLBACK_SUCCESSFUL"
    error = refused(
        lambda: world.call("StopServiceDeployment", "ecs", serviceDeploymentArn=rollout["serviceDeploymentArn"])
    )  # fmt: skip
    assert "already ended" in str(error)


def test_a_user_aborts_a_deployment(world: RolloutWorld) -> None:
    serving(world)
    world.update(forceNewDeployment=True)
    arn = world.rollouts()[0]["serviceDeploymentArn"]
    world.call("StopServiceDeployment", "ecs", serviceDeploymentArn=arn, stopType="ABORT")
    shown = world.service()["deployments"][0]
    assert (shown["rolloutState"], world.rollouts()[0]["status"]) == ("FAILED", "STOPPED")


def test_an_aborted_deployment_keeps_the_old_tasks(world: RolloutWorld) -> None:
    """Without new tasks, the minimum of 0 percent must not stop the old ones."""
    serving(world, minimumHealthyPercent=0, maximumPercent=200)
    world.call("UpdateService", "ecs", service="web", forceNewDeployment=True, deploymentConfiguration=hook("PRE_SCALE_UP"))
    before = set(world.tasks())
    arn = world.rollouts()[0]["serviceDeploymentArn"]
    world.call("StopServiceDeployment", "ecs", serviceDeploymentArn=arn, stopType="ABORT")
    world.wait(3600)
    assert set(world.tasks()) == before and world.rollouts()[0]["status"] == "STOPPED"


def test_a_failed_service_with_unhealthy_tasks_can_be_scaled_to_zero(world: RolloutWorld) -> None:
    world.define_checked()
    world.serve(desiredCount=1, deploymentConfiguration=BREAKER)
    while world.rollouts()[0]["status"] == "IN_PROGRESS":
        world.report()
        for each in world.tasks("state = 'RUNNING' AND desired = 'RUNNING'"):
            world.observe(each, health="UNHEALTHY")
        world.wait(1.0)
    world.report()
    for each in world.tasks():
        world.observe(each, health="UNHEALTHY")
    assert world.service()["deployments"][0]["rolloutState"] == "FAILED"
    world.update(desiredCount=0)
    world.report()
    assert not world.tasks("state != 'STOPPED'")


def test_a_rollback_writes_its_row_only_when_it_changes(world: RolloutWorld) -> None:
    serving(world, minimumHealthyPercent=0, maximumPercent=100)
    world.define()
    world.update(taskDefinition="one")
    world.report()
    while world.rollouts()[0]["status"] == "IN_PROGRESS":
        if not world.fail_all("state IN ('PENDING', 'RUNNING') AND desired = 'RUNNING'"):
            world.wait(1.0)
    assert world.rollouts()[0]["status"] == "ROLLBACK_IN_PROGRESS"
    before = world.rollouts()[0]["updatedAt"]
    world.clock.advance(1.0)
    world.run(lambda tx: tx.mark("service:us-east-1/default/web"))
    [rollout, _] = world.rollouts()
    assert rollout["updatedAt"] == before and rollout["deploymentCircuitBreaker"]["failureCount"] >= 3


def test_deployments_without_tasks_are_dropped_when_a_new_one_begins(world: RolloutWorld) -> None:
    world.define()
    world.serve(desiredCount=1)
    for _ in range(5):
        world.crash(5.0)
        world.update(forceNewDeployment=True)
        assert len(world.service()["deployments"]) <= 3


@pytest.mark.parametrize("checked", [False, True])
def test_tasks_that_start_without_failures_cause_no_query_of_all_tasks(world: RolloutWorld, checked: bool) -> None:
    """A start of a large service with a circuit breaker must not read its other tasks."""
    if checked:
        world.define_checked()
    else:
        world.define()
    world.serve(desiredCount=4, deploymentConfiguration=BREAKER)
    first, second, third, _ = world.tasks()
    statements: list[str] = []
    world.store.connection.set_trace_callback(statements.append)
    for task_id in (first, second):
        world.run(lambda tx, task_id=task_id: host_reports.report(tx, "h", [started(world, task_id)]))
    world.store.connection.set_trace_callback(None)
    of_all = [each for each in statements if ("JOIN run" in each and "task.started_by" in each) or "min(started_at)" in each]
    assert not of_all
    world.observe(third, exit_code=1)
    assert world.rollouts()[0]["deploymentCircuitBreaker"]["failureCount"] == 1


def test_a_health_report_reads_no_list_of_all_tasks(world: RolloutWorld) -> None:
    world.define_checked()
    world.serve(desiredCount=3)
    world.report()
    statements: list[str] = []
    world.store.connection.set_trace_callback(statements.append)
    for task_id in world.tasks():
        assert world.service()["deployments"][0]["rolloutState"] == "IN_PROGRESS"
        world.observe(task_id, health="HEALTHY")
    world.store.connection.set_trace_callback(None)
    assert not [each for each in statements if each.startswith("SELECT task.id, run.container")]
    assert world.service()["deployments"][0]["rolloutState"] == "COMPLETED"


def started(world: RolloutWorld, task_id: str) -> Observed:
    task = world.store.tasks.get(task_id)
    assert task is not None
    return Observed(task.runs[0].attempt_id, 1, world.clock.now_s(), None, None)


def test_a_first_deployment_cannot_be_rolled_back(world: RolloutWorld) -> None:
    world.define()
    world.serve(desiredCount=1)
    arn = world.rollouts()[0]["serviceDeploymentArn"]
    assert "no completed deployment" in str(refused(lambda: world.call("StopServiceDeployment", "ecs", serviceDeploymentArn=arn)))


def test_a_newer_deployment_stops_the_older_one(world: RolloutWorld) -> None:
    world.define()
    world.serve(desiredCount=1)
    world.update(forceNewDeployment=True)
    assert [each["status"] for each in world.rollouts()] == ["IN_PROGRESS", "STOPPED"]


def test_the_bake_time(world: RolloutWorld) -> None:
    world.define()
    world.serve(desiredCount=1, deploymentConfiguration={"bakeTimeInMinutes": 5})
    world.report()
    world.wait(299)
    [rollout] = world.rollouts()
    assert (rollout["status"], rollout["lifecycleStage"]) == ("IN_PROGRESS", "BAKE_TIME")
    world.wait(2)
    assert world.rollouts()[0]["status"] == "SUCCESSFUL"
    assert world.service()["deployments"][0]["rolloutState"] == "COMPLETED"


def hook(stage: str, **more: object) -> dict[str, object]:
    return {"lifecycleHooks": [{"targetType": "PAUSE", "lifecycleStages": [stage], **more}]}


@pytest.mark.parametrize("stage", ["PRE_SCALE_UP", "POST_SCALE_UP"])
@pytest.mark.parametrize("action", ["CONTINUE", "ROLLBACK"])
def test_a_pause(world: RolloutWorld, stage: str, action: str) -> None:
    serving(world)
    before = set(world.tasks())
    world.update(forceNewDeployment=True, deploymentConfiguration=hook(stage))
    world.report()
    world.wait(3600)
    assert (set(world.tasks()) == before) is (stage == "PRE_SCALE_UP")
    [rollout, _] = world.rollouts()
    [paused] = rollout["lifecycleHookDetails"]
    assert (rollout["lifecycleStage"], paused["status"], paused["timeoutAction"]) == (stage, "AWAITING_ACTION", "ROLLBACK")
    arn = rollout["serviceDeploymentArn"]
    assert "not paused" in str(
        refused(lambda: world.call("ContinueServiceDeployment", "ecs", serviceDeploymentArn=arn, hookId="other"))
    )
    world.call("ContinueServiceDeployment", "ecs", serviceDeploymentArn=arn, hookId=paused["hookId"], action=action)
    for _ in range(3):
        world.report()
    world.wait(10)
    assert world.rollouts()[0]["status"] == ("SUCCESSFUL" if action == "CONTINUE" else "ROLLBACK_SUCCESSFUL")


def test_a_paused_deployment_keeps_the_old_tasks_running(world: RolloutWorld) -> None:
    serving(world)
    old = world.service()["deployments"][0]["id"]
    first, second = world.tasks()
    world.update(forceNewDeployment=True, deploymentConfiguration=hook("PRE_SCALE_UP"))
    world.clock.advance(100)
    world.observe(first, exit_code=1)
    world.settle()
    world.report()
    world.wait(3600)
    shown = world.service()
    assert [(each["id"] == old, each["runningCount"]) for each in shown["deployments"]] == [(False, 0), (True, 2)]
    assert second in world.tasks() and world.messages().count("has reached a steady state.") == 1
    world.update(desiredCount=1)
    world.report()
    assert len(world.tasks()) == 1
    [rollout, _] = world.rollouts()
    [paused] = rollout["lifecycleHookDetails"]
    assert paused["status"] == "AWAITING_ACTION"
    arn = rollout["serviceDeploymentArn"]
    world.call("ContinueServiceDeployment", "ecs", serviceDeploymentArn=arn, hookId=paused["hookId"])
    for _ in range(3):
        world.report()
        world.wait(10)
    assert world.rollouts()[0]["status"] == "SUCCESSFUL" and world.service()["runningCount"] == 1


def test_hooks_apply_to_later_deployments_only(world: RolloutWorld) -> None:
    serving(world)
    world.update(forceNewDeployment=True)
    world.update(deploymentConfiguration=hook("PRE_SCALE_UP"))
    assert world.rollouts()[0]["lifecycleHookDetails"] == [] and world.rollouts()[0]["lifecycleStage"] == "SCALE_UP"
    world.update(forceNewDeployment=True)
    assert [each["status"] for each in world.rollouts()[0]["lifecycleHookDetails"]] == ["AWAITING_ACTION"]


@pytest.mark.parametrize(("action", "status"), [("CONTINUE", "SUCCESSFUL"), ("ROLLBACK", "ROLLBACK_SUCCESSFUL")])
def test_a_pause_that_times_out(world: RolloutWorld, action: str, status: str) -> None:
    serving(world)
    timeout = {"timeoutConfiguration": {"timeoutInMinutes": 10, "action": action}}
    world.update(forceNewDeployment=True, deploymentConfiguration=hook("PRE_SCALE_UP", **timeout))
    world.wait(601)
    for _ in range(3):
        world.report()
    world.wait(10)
    assert world.rollouts()[0]["status"] == status
    assert world.rollouts()[0]["lifecycleHookDetails"][0]["status"] == "TIMED_OUT"
