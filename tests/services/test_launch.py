"""Task launches from a typed request, as RunTask builds it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from msgspec.structs import fields

from corral.core.commands import Command
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.agent_protocol import StartOrder
from corral.model.instance import host_instance_id, host_pool
from corral.model.run import Observed
from corral.model.settings import Settings
from corral.model.task import TaskState
from corral.services.ecs import host_reports
from corral.services.ecs.errors import InvalidParameterException
from corral.services.ecs.handlers import HANDLERS
from corral.services.ecs.launch import LaunchRequest, LaunchResult, launch
from corral.services.ecs.task_capacity import Capacity
from corral.services.ecs.task_spec import CACHED_SPECS_MAX, spec_of, task_spec
from corral.store import Store
from simulation.clients import CALLER
from simulation.test_claim_queue import Small

MAIN = {
    "name": "main",
    "image": "corral/host",
    "command": ["true"],
    "memory": 6,
    "environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    "resourceRequirements": [{"type": "GPU", "value": "1"}],
}
WAITS = Capacity("EC2", (host_pool("default"),), waits=True, providers=("host",) * 3)
NOW = Capacity("EC2", (host_pool("default"),), waits=False)


class World(Small):
    """A core with one host of two GPUs, and the orders to start that it received."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(2, settings=settings)
        self.started: list[StartOrder] = []
        self.register(MAIN)

    def ask(self, handler: Any) -> Any:
        self.clock.advance(0.01)
        outbox = self.core.transact([Command(handler, lambda answer: None)])
        assert not outbox.faults
        self.started += [start for orders in outbox.orders.values() for start in orders.start]
        answer = outbox.answers[0][1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def register(self, container: dict[str, Any]) -> None:
        params = {"family": "f", "containerDefinitions": [container]}
        self.ask(lambda tx: HANDLERS["RegisterTaskDefinition"](tx, params, CALLER))

    def launch(self, capacity: Capacity, **more: Any) -> LaunchResult:
        return self.ask(lambda tx: launch(tx, request(tx, capacity, **more)))


def request(tx: Tx[Store], capacity: Capacity, **more: Any) -> LaunchRequest:
    definition = tx.store.definitions.document(CALLER.region, "f", 1)
    return LaunchRequest(
        owner="root", region=CALLER.region, cluster="default", definition=definition, revision=1, capacity=capacity, **more
    )


def test_tasks_that_fit_are_started_and_the_others_wait_as_claims() -> None:
    world = World()
    launched = world.launch(WAITS, count=3, group="service:web", started_by="ecs-svc/1", tags=[{"key": "k", "value": "v"}])
    assert [task.state for task in launched.tasks] == [TaskState.PENDING, TaskState.PENDING, TaskState.PROVISIONING]
    assert launched.failures == []
    assert {start.spec.task_id for start in world.started} == {task.id for task in launched.tasks[:2]}
    for task in launched.tasks:
        assert world.store.tasks.get(task.id) == task
        assert (task.group, task.started_by, task.details) == ("service:web", "ecs-svc/1", {"tags": [{"key": "k", "value": "v"}]})


@pytest.mark.parametrize(
    "default, value, expected", [("uuid", None, []), ("uuid", "index", [0]), ("index", None, [0]), ("index", "uuid", [])]
)
def test_a_tag_or_a_setting_selects_indexes_of_gpus(default: str, value: str | None, expected: list[int]) -> None:
    world = World(Settings(gpu_ids=default))
    world.launch(WAITS, tags=[{"key": "corral:gpu-ids", "value": value}] if value else [])
    assert world.started[-1].spec.gpu_indexes == expected and len(world.started[-1].spec.gpu_ids) == 1


def test_a_task_that_does_not_wait_fails_with_a_reason() -> None:
    launched = World().launch(NOW, count=3)
    assert [task.details for task in launched.tasks] == [{"launchType": "EC2"}] * 2
    [failure] = launched.failures
    assert failure.instance_id == host_instance_id("h0") and failure.why is not None and failure.why.resource == "GPU"


def test_on_chosen_instances() -> None:
    launched = World().launch(NOW, instance_ids=[host_instance_id("h0"), "nowhere"])
    assert [task.instance_id for task in launched.tasks] == [host_instance_id("h0")]
    assert [(failure.instance_id, failure.why) for failure in launched.failures] == [("nowhere", None)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"overrides": {"containerOverrides": [{"name": "other"}]}},
        {"overrides": {"containerOverrides": [{"name": "main", "resourceRequirements": [{"type": "GPU", "value": "x"}]}]}},
        {"platform_version": "LATEST"},
        {"network_configuration": {"awsvpcConfiguration": {"subnets": ["s"]}}},
        {"placement_strategy": [{"type": "by chance"}]},
        {"tags": [{"key": "corral:time-limit", "value": "soon"}]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_refused_request_leaves_nothing(wrong: dict[str, Any]) -> None:
    world = World()
    with pytest.raises(ApiError):
        world.launch(WAITS, **wrong)
    assert world.store.fleet.pool(host_pool("default")).free_gpus == 2 and not world.started


def test_equal_tasks_share_one_spec() -> None:
    world = World()
    override = {"name": "main", "command": ["sleep", "1"], "environment": [{"name": "B", "value": "3"}]}
    tasks = [
        *world.launch(WAITS, count=2, overrides={"containerOverrides": [override]}).tasks,
        *world.launch(WAITS, overrides={"containerOverrides": [dict(override)]}).tasks,
    ]
    [spec, *others] = [world.ask(lambda tx, task=task: spec_of(tx, task)) for task in tasks]
    assert all(other is spec for other in others)
    for start in world.started:
        assert start.spec.command == ["sleep", "1"]
        assert start.spec.environment.items() >= {"A": "1", "B": "3"}.items()
    [plain] = world.launch(WAITS).tasks
    assert world.ask(lambda tx: spec_of(tx, plain)).containers["main"].command == ["true"]


def test_no_spec_is_cached_of_a_definition_whose_registration_failed() -> None:
    """Another definition gets the same revision."""
    world = World()

    def register_launch_and_fail(tx: Tx[Store]) -> None:
        params = {"family": "g", "containerDefinitions": [{**MAIN, "command": ["false"]}]}
        HANDLERS["RegisterTaskDefinition"](tx, params, CALLER)
        HANDLERS["RunTask"](tx, {"taskDefinition": "g"}, CALLER)
        raise InvalidParameterException("this command fails")

    with pytest.raises(InvalidParameterException):
        world.ask(register_launch_and_fail)
    assert not world.started
    params = {"family": "g", "containerDefinitions": [MAIN]}
    world.ask(lambda tx: HANDLERS["RegisterTaskDefinition"](tx, params, CALLER))
    answer = world.ask(lambda tx: HANDLERS["RunTask"](tx, {"taskDefinition": "g"}, CALLER))
    assert answer["tasks"][0]["taskDefinitionArn"].endswith("/g:1")
    assert [start.spec.command for start in world.started] == [["true"]]


def test_the_cache_of_specs_is_bounded() -> None:
    document = {"containerDefinitions": [{"cpu": 0, "essential": True, **MAIN}]}
    first = task_spec(document)
    assert task_spec(document) is first
    for number in range(CACHED_SPECS_MAX):
        task_spec(document, {"containerOverrides": [{"name": "main", "cpu": number}]})
    assert task_spec(document) is not first


@pytest.mark.parametrize(
    "override",
    [
        {"command": ["sleep", "1"]},
        {"environment": [{"name": "B", "value": "3"}, {"name": "C"}]},
        {"environment": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]},
        {"environmentFiles": [{"type": "s3", "value": "arn:aws:s3:::b/k.env"}]},
        {"cpu": 512, "memory": 7, "memoryReservation": 5},
        {"resourceRequirements": [{"type": "GPU", "value": "ALL"}]},
        {"resourceRequirements": []},
    ],
    ids=lambda override: next(iter(override)),
)
def test_an_override_equals_a_definition_with_the_same_settings(override: dict[str, Any]) -> None:
    side = {"name": "side", "image": "i", "command": ["true"], "cpu": 1, "essential": False, "environment": [], "privileged": True}
    before = {"cpu": 0, "essential": True, **MAIN}
    said = {**before, **override}
    if "environment" in override:
        pairs = {pair["name"]: pair.get("value", "") for pair in (*before["environment"], *override["environment"])}
        said["environment"] = [{"name": name, "value": value} for name, value in pairs.items()]
    document = {"containerDefinitions": [before, side], "memory": "64"}
    found = task_spec(document, {"containerOverrides": [{"name": "main", **override}], "memory": "128", "taskRoleArn": "r"})
    expected = task_spec({"containerDefinitions": [said, side], "memory": "128", "taskRoleArn": "r"})
    for name in ("cpu", "memory", "demand", "is_plain", "rules", "runs", "role"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.containers.keys() == expected.containers.keys()
    for name, container in expected.containers.items():
        for field in fields(container):
            assert getattr(found.containers[name], field.name) == getattr(container, field.name)


def test_the_description_of_a_stopped_task_is_kept_until_the_task_changes() -> None:
    world = World()
    [task] = world.launch(WAITS, tags=[{"key": "k", "value": "1"}]).tasks
    described = {"tasks": [task.id], "include": ["TAGS"]}
    stopped = Observed(world.started[0].spec.run_id, 1, world.clock.now_s(), world.clock.now_s(), 0)
    world.ask(lambda tx: host_reports.report(tx, "h0", [stopped]))

    def describe(params: dict[str, Any] = described) -> dict[str, Any]:
        [found] = world.ask(lambda tx: HANDLERS["DescribeTasks"](tx, params, CALLER))["tasks"]
        return found

    def tag(tx: Tx[Store]) -> None:
        params = {"resourceArn": describe_in(tx)["taskArn"], "tags": [{"key": "k", "value": "2"}]}
        HANDLERS["TagResource"](tx, params, CALLER)

    def describe_in(tx: Tx[Store]) -> dict[str, Any]:
        return HANDLERS["DescribeTasks"](tx, described, CALLER)["tasks"][0]

    def tag_and_fail(tx: Tx[Store]) -> None:
        tag(tx)
        assert describe_in(tx)["tags"] == [{"key": "k", "value": "2"}]
        raise InvalidParameterException("undo the tag")

    first = describe()
    assert first["lastStatus"] == "STOPPED" and first["tags"] == [{"key": "k", "value": "1"}]
    assert describe() is first and describe({"tasks": [task.id]})["tags"] == []
    with pytest.raises(InvalidParameterException):
        world.ask(tag_and_fail)
    assert describe() == first
    world.ask(tag)
    assert describe() == {**first, "tags": [{"key": "k", "value": "2"}]}
    last = describe()
    world.ask(lambda tx: tx.store.tasks.drop_stopped(tx.now_s, 10))
    assert world.ask(lambda tx: HANDLERS["DescribeTasks"](tx, described, CALLER))["tasks"] == []
    assert sys.getrefcount(last) == 2, "only this test still has the description of the deleted task"
