"""Objects with the variables of runs, on a virtual clock: who can read them, and when they are deleted."""

from __future__ import annotations

from typing import Any

import pytest

from corral.access.caller import Caller
from corral.core.commands import Command
from corral.core.errors import ApiError
from corral.model.blob import MD5, StoredBlob
from corral.model.principal import ROOT, role_session
from corral.model.private_environment import BUCKET, UNUSED_S, UPLOADED_S
from corral.model.run import Observed
from corral.operations.services import SERVICES, needed_permissions
from corral.services.ecs import host_reports
from corral.services.s3 import handlers as s3
from virtual_clock.group_world import CALLER, REGION
from virtual_clock.service_world import ServiceWorld

SESSION = Caller(CALLER.account, REGION, role_session(CALLER.account, "r", "s", ROOT))
TASK = Caller(CALLER.account, REGION, role_session(CALLER.account, "r", "t", ROOT), task_id="0" * 32)


class World(ServiceWorld):
    def __init__(self) -> None:
        super().__init__(gpus=1)
        self.define(gpus=1)
        self.s3("CreateBucket")

    def s3(self, operation: str, caller: Caller = CALLER, **params: Any) -> Any:
        params = {"Bucket": BUCKET, **params}

        def handler(tx: Any) -> Any:
            admit = s3.ADMIT.get(operation)
            admitted = dict(admit(tx, params, caller).params) if admit is not None else {}
            return s3.HANDLERS[operation](tx, params | admitted, caller)

        return self.run(handler)

    def upload(self, key: str, caller: Caller = CALLER) -> None:
        blob = StoredBlob(f"{self.store.objects.next_number():032x}", 1, {MD5: b"m" * 16, "CRC64NVME": b"c" * 8})
        self.s3("PutObject", caller, Key=key, Body=blob, ContentLength=1)

    def launch(self, key: str, count: int = 1, caller: Caller = CALLER, **more: Any) -> list[str]:
        overrides = {"containerOverrides": [{"name": "c", "environmentFiles": files(key)}]}
        params = {"taskDefinition": "one", "overrides": overrides, "count": count, **more}
        reply = self.run(lambda tx: SERVICES["ecs"].operations["RunTask"](tx, params, caller))
        return [task["taskArn"].rpartition("/")[2] for task in reply["tasks"]]

    def stop(self, *task_ids: str) -> None:
        for task_id in task_ids:
            self.call("StopTask", "ecs", task=task_id)
        self.report()

    def fail(self) -> None:
        """End the program of the running task with exit code 1."""
        [(task_id,)] = self.store.execute("SELECT id FROM task WHERE state IN ('PENDING', 'RUNNING')").fetchall()
        task, now_s = self.store.tasks.get(task_id), self.clock.now_s()
        assert task is not None
        ended = [Observed(run.attempt_id, 1, task.started_at_s or now_s, now_s, 1) for run in task.runs]
        self.run(lambda tx: host_reports.report(tx, "h", ended))
        self.settle()

    def objects(self) -> list[str]:
        return [each["Key"] for each in self.s3("ListObjectsV2").get("Contents", [])]


def files(key: str, partition: str = "aws") -> list[dict[str, str]]:
    return [{"type": "s3", "value": f"arn:{partition}:s3:::{BUCKET}/{key}"}]


def test_an_object_is_deleted_after_its_last_task_has_ended() -> None:
    world = World()
    world.upload("a.env")
    running, waiting, other = world.launch("a.env", 3)  # one GPU: one runs, two wait
    world.report()
    world.wait(2 * UPLOADED_S)
    world.stop(other)
    world.wait(2 * UNUSED_S)
    assert world.objects() == ["a.env"]
    world.stop(running)  # the second task starts
    world.report()
    world.wait(2 * UNUSED_S)
    assert world.objects() == ["a.env"]
    world.stop(waiting)
    assert world.objects() == ["a.env"]
    world.wait(UNUSED_S + 1)
    assert world.objects() == [] and world.store.private_environments.get("a.env") is None


def test_a_task_that_replaces_a_failed_one_keeps_the_object() -> None:
    world = World()
    world.upload("a.env")
    [task_id] = world.launch("a.env")
    world.report()
    for _ in range(3):
        world.stop(task_id)
        world.wait(UNUSED_S - 1)
        [task_id] = world.launch("a.env")
        world.report()
        world.wait(UNUSED_S + 1)
        assert world.objects() == ["a.env"]
    world.stop(task_id)
    world.wait(UNUSED_S / 2)
    [task_id] = world.launch("a.env")
    world.report()
    world.stop(task_id)  # the first due time comes before a minute has passed since this end
    world.wait(UNUSED_S - 5)
    assert world.objects() == ["a.env"]
    world.wait(6)
    assert world.objects() == []


def test_a_requeued_task_keeps_the_object() -> None:
    world = World()
    world.upload("a.env")
    world.launch("a.env", tags=[{"key": "corral:requeue", "value": "1"}])
    world.report()
    world.fail()
    world.wait(10 * UNUSED_S)  # a requeued task may wait before it starts again
    assert world.objects() == ["a.env"]
    world.fail()
    assert world.objects() == ["a.env"]
    world.wait(UNUSED_S + 1)
    assert world.objects() == []


def test_an_object_that_no_task_uses_is_deleted_after_an_hour() -> None:
    world = World()
    world.upload("left.env")
    world.wait(UPLOADED_S - 1)
    assert world.objects() == ["left.env"]
    world.wait(2)
    assert world.objects() == []


def test_only_the_root_user_can_read_the_bucket() -> None:
    world = World()
    world.upload("a.env", SESSION)
    assert world.objects() == ["a.env"] and "Body" in world.s3("GetObject", Key="a.env")
    source = {"CopySource": {"Bucket": BUCKET, "Key": "a.env"}, "Key": "b.env"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("GetObject", {"Key": "a.env"}), ("HeadObject", {"Key": "a.env"}), ("ListObjectsV2", {}), ("ListObjects", {}),
        ("ListObjectVersions", {}), ("DeleteObject", {"Key": "a.env"}), ("DeleteBucket", {}), ("GetBucketPolicy", {}),
        ("CopyObject", source),
    ]  # fmt: skip
    for caller in (SESSION, TASK):
        for operation, params in calls:
            with pytest.raises(ApiError) as refused:
                world.s3(operation, caller, **params)
            assert refused.value.code == "AccessDenied" and "Only the root user" in refused.value.message, operation
    assert world.objects() == ["a.env"]
    with pytest.raises(ApiError, match="can replace"):
        world.upload("a.env", TASK)
    world.upload("a.env")


def test_a_container_creates_the_bucket_without_a_policy_but_not_its_settings() -> None:
    def needed(**params: Any) -> list[str]:
        permissions = World().run(lambda tx: needed_permissions(tx, TASK, "s3", "CreateBucket", params))
        return [each.action for each in permissions]

    assert needed(Bucket=BUCKET) == [] and needed(Bucket="other") == ["s3:CreateBucket"]
    assert needed(Bucket=BUCKET, ACL="public-read") == ["s3:CreateBucket", "s3:PutBucketAcl"]


def test_a_task_gets_only_the_variables_that_its_caller_has_uploaded() -> None:
    world = World()
    world.upload("root.env")
    world.upload("task.env", TASK)
    for key, caller in (("root.env", TASK), ("task.env", SESSION), ("unknown.env", TASK)):
        with pytest.raises(ApiError, match="another caller") as refused:
            world.launch(key, caller=caller)
        assert refused.value.code == "AccessDeniedException"
    assert world.launch("task.env", caller=TASK) and world.launch("task.env") and world.launch("root.env")


@pytest.mark.parametrize("partition", ["aws", "aws-cn"])
def test_a_task_definition_cannot_name_an_object_with_variables(partition: str) -> None:
    world = World()
    world.upload("root.env")
    container: dict[str, Any] = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6}
    container["environmentFiles"] = files("root.env", partition)
    world.call("RegisterTaskDefinition", "ecs", family="reader", containerDefinitions=[container])
    command = Command(lambda tx: SERVICES["ecs"].operations["RunTask"](tx, {"taskDefinition": "reader"}, TASK), lambda answer: None)
    [order] = world.transact([command]).orders["h"].start
    assert not order.spec.environment_files
    assert order.fault is not None and "Only the overrides of RunTask can name objects" in order.fault
