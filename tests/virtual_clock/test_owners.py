"""The owner of each kind of resource: the principal that created it, also through roles, services, groups, Batch and stacks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from random import Random
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from corral.access import sessions
from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.agent_protocol import StartOrder
from corral.model.principal import FEDERATED_USER, ROOT, Principal, role_session, root_user
from corral.model.run import RUN_LOG_GROUP, Observed, RunSpec
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.services.cloudformation.stack_operations import begin_create
from corral.services.ecs import host_reports
from corral.services.ecs.run_spec import log_target
from corral.services.ecs.task_metadata import task_credentials
from corral.services.ecs.task_spec import spec_of as spec_of_task
from corral.services.lambda_.code import CODE, checked_code, inline_zip
from corral.services.lambda_.invocations import invoke, take_invocations
from corral.services.logs.ingestion import open_streams
from corral.services.sts import handlers as sts
from corral.store.task_owners import TaskOwners
from corral.telemetry import LogStore
from stacks.stack_world import World as StackWorld
from stacks.stack_world import spec_of
from virtual_clock.environment_world import EnvironmentWorld
from virtual_clock.group_world import CALLER, GPUS_1
from virtual_clock.service_world import ServiceWorld

ALICE = "user/alice"
USER = replace(CALLER, principal=Principal(CALLER.account, "user", "alice", owner=ALICE))
CONTAINER = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6, "environment": []}
CONTAINER["resourceRequirements"] = [{"type": "GPU", "value": "1"}]
TEMPLATE: dict[str, Any] = {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}, "Bucket": {"Type": "AWS::S3::Bucket"}}}


def call(world: Any, service: str, operation: str, **params: Any) -> Any:
    answer = world.run(lambda tx: SERVICES[service].operations[operation](tx, params, USER))
    world.settle()
    return answer


def run_task(world: ServiceWorld) -> None:
    call(world, "ecs", "RegisterTaskDefinition", family="one", containerDefinitions=[CONTAINER])
    call(world, "ecs", "RunTask", taskDefinition="one", count=2)  # the second task waits


def requeue_task(world: ServiceWorld) -> None:
    call(world, "ecs", "RegisterTaskDefinition", family="one", containerDefinitions=[CONTAINER])
    call(world, "ecs", "RunTask", taskDefinition="one", tags=[{"key": "corral:requeue", "value": "1"}])
    [(task_id,)] = world.store.execute("SELECT id FROM task").fetchall()
    [run] = world.store.tasks.get(task_id).runs  # type: ignore[union-attr]
    world.run(lambda tx: host_reports.report(tx, "h", [Observed(run.attempt_id, 1, 1.0, 2.0, 1)]))
    world.settle()
    assert world.count("1 = 1") == 2


def create_service(world: ServiceWorld) -> None:
    call(world, "ecs", "RegisterTaskDefinition", family="one", containerDefinitions=[CONTAINER])
    call(world, "ecs", "CreateService", serviceName="web", taskDefinition="one", desiredCount=2)
    world.call("UpdateService", "ecs", service="web", desiredCount=3)  # by the root user
    world.settle()
    assert world.count("1 = 1") == 3


def create_group(world: ServiceWorld) -> None:
    world.configuration()
    call(world, "autoscaling", "CreateAutoScalingGroup", AutoScalingGroupName="g", LaunchConfigurationName="lc",
         MinSize=2, MaxSize=2, AvailabilityZones=["us-east-1a"])  # fmt: skip


def run_instances(world: ServiceWorld) -> None:
    call(world, "ec2", "RunInstances", ImageId="ami-1", InstanceType=GPUS_1, MinCount=1, MaxCount=1)


def submit_jobs(world: EnvironmentWorld) -> None:
    world.queue("q")
    for _ in range(2):  # the second job waits
        call(world, "batch", "SubmitJob", jobName="j", jobQueue="q", jobDefinition="one")
    call(world, "batch", "SubmitJob", jobName="a", jobQueue="q", jobDefinition="one", arrayProperties={"size": 2})


def create_environment(world: EnvironmentWorld) -> None:
    resources = world.resources(GPUS_1, least=1)
    call(world, "batch", "CreateComputeEnvironment", computeEnvironmentName="ce", type="MANAGED", computeResources=resources)


def create_stack(world: StackWorld) -> None:
    spec = spec_of("s", TEMPLATE, ssm=world.ssm_value)
    allow = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": ["sqs:*", "s3:*"], "Resource": "*"}}
    alice: dict[str, Any] = {"UserName": "alice", "UserId": "AIDA1", "Path": "/", "Arn": USER.principal.arn}
    alice["_inline"] = {"data": orjson.dumps(allow).decode()}
    world.run(lambda tx: tx.store.stored.put("iam", "user", "", "alice", alice, tx.now_s, ROOT))
    world.run(lambda tx: begin_create(tx, USER, spec))
    world.settle()
    world.update({"Resources": TEMPLATE["Resources"] | {"More": {"Type": "AWS::SQS::Queue"}}})  # by the root user
    assert world.store.execute("SELECT count(*) FROM queue").fetchone() == (2,)


def create_data(world: ServiceWorld) -> None:
    call(world, "sqs", "CreateQueue", QueueName="q")
    call(world, "s3", "CreateBucket", Bucket="bucket")
    code = checked_code(inline_zip("def handler(event, context): pass"))
    function = {"FunctionName": "f", "Runtime": "python3.12", "Handler": "index.handler", "Role": "arn:aws:iam::1:role/r"}
    call(world, "lambda", "CreateFunction", **function, **{CODE: code})
    world.call("UpdateFunctionConfiguration", "lambda", FunctionName="f", Timeout=9)  # by the root user


def create_definitions(world: ServiceWorld) -> None:
    call(world, "ecs", "CreateCluster", clusterName="mine")
    call(world, "ecs", "RegisterTaskDefinition", family="one", containerDefinitions=[CONTAINER])
    container = {"image": "busybox", "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]}
    call(world, "batch", "RegisterJobDefinition", jobDefinitionName="job", type="container", containerProperties=container)
    world.call("UpdateCluster", "ecs", cluster="mine")  # by the root user


# What a user does → the tables that then have rows of this user only
CASES: dict[str, tuple[type[Any], Callable[[Any], None], tuple[str, ...]]] = {
    "tasks": (ServiceWorld, run_task, ("task", "claim")),
    "a requeued task": (ServiceWorld, requeue_task, ("task",)),
    "a service": (ServiceWorld, create_service, ("ecs_service", "task", "claim")),
    "a group": (ServiceWorld, create_group, ("scaling_group", "instance", "claim")),
    "instances": (ServiceWorld, run_instances, ("instance", "instance_usage")),
    "a cluster and definitions": (ServiceWorld, create_definitions, ("cluster", "task_definition", "job_definition")),
    "jobs": (EnvironmentWorld, submit_jobs, ("job", "job_line", "task")),
    "a compute environment": (EnvironmentWorld, create_environment, ("scaling_group", "instance")),
    "a stack": (StackWorld, create_stack, ("stack", "queue", "bucket")),
    "a queue, a bucket and a function": (ServiceWorld, create_data, ("queue", "bucket")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resource_belongs_to_its_creator(case: str) -> None:
    kind, create, tables = CASES[case]
    world = kind(gpus=1)
    create(world)
    for table in tables:
        where = " WHERE region != ''" if table == "instance" else ""  # the host's own instance belongs to the root user
        assert world.store.execute(f"SELECT DISTINCT owner FROM {table}{where}").fetchall() == [(ALICE,)], table
    of_users = world.store.tasks.owners.of_users()
    assert of_users == TaskOwners(world.store, None).of_users() and {*of_users.values()} <= {ALICE}
    claims = list(world.store.fleet.pool("hosts:default").heads())
    assert {claim.owner for claim in claims} <= {ALICE} and bool(claims) == ("claim" in tables or "job_line" in tables)
    if "function" in case:
        assert world.store.stored.owner("lambda", "function", CALLER.region, "f") == ALICE
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        world.store.execute(f"UPDATE {tables[0]} SET owner = ''")


def test_sessions_and_programs_act_for_the_owner() -> None:
    world = ServiceWorld(gpus=1)
    create_data(world)
    run_task(world)
    found: list[Principal] = []

    def collect(tx: Tx[Any]) -> None:
        (task_id,) = tx.store.execute("SELECT id FROM task WHERE state = 'PENDING'").fetchone()
        credentials = task_credentials(tx, task_id)
        assert credentials is not None
        found.append(credentials[1].session.principal)
        role = {"RoleArn": f"arn:aws:iam::{CALLER.account}:role/worker", "RoleSessionName": "s"}
        for issued in (
            sts.assume_role(tx, role, USER),
            sts.get_session_token(tx, {}, USER),
            sts.get_federation_token(tx, {"Name": "bob"}, USER),
        ):
            found.append(read(tx, issued["Credentials"]["AccessKeyId"], issued["Credentials"]["SessionToken"]))
        with pytest.raises(ApiError, match="session credentials"):
            sts.get_session_token(tx, {}, replace(USER, principal=found[-1]))
        invoke(tx, {"FunctionName": "f", "InvocationType": "Event"}, replace(CALLER, request_id="i"))
        [order] = take_invocations(tx, 1)
        found.append(read(tx, order.environment["AWS_ACCESS_KEY_ID"], order.environment["AWS_SESSION_TOKEN"]))

    def read(tx: Tx[Any], access_key_id: str, token: str) -> Principal:
        credentials = sessions.read(tx.settings.session_key, access_key_id, token)
        assert credentials is not None
        return credentials.session.principal

    world.run(collect)
    assert {principal.owner for principal in found} == {ALICE}
    assert [principal.is_root for principal in found] == [False] * 5
    assert [principal.arn.rpartition(":")[2].partition("/")[0] for principal in found] == [
        "assumed-role", "assumed-role", "user", FEDERATED_USER, "assumed-role",
    ]  # fmt: skip


def test_only_the_root_key_is_root() -> None:
    account = CALLER.account
    root = root_user(account)
    assert root.is_root and root.owner == ROOT and root.arn == f"arn:aws:iam::{account}:root"
    for other in (replace(root, session="token"), role_session(account, "r", "s", ROOT), USER.principal):
        assert not other.is_root


def test_a_family_without_a_revision_means_the_newest_of_the_caller() -> None:
    """Otherwise, a user could replace the program of others, who name only the family."""
    world = ServiceWorld(gpus=1)
    world.call("RegisterTaskDefinition", "ecs", family="one", containerDefinitions=[CONTAINER])
    call(world, "ecs", "RegisterTaskDefinition", family="one", containerDefinitions=[CONTAINER])
    call(world, "ecs", "RegisterTaskDefinition", family="hers", containerDefinitions=[CONTAINER])

    def described(caller: Caller, family: str) -> str:
        params = {"taskDefinition": family}
        found = world.run(lambda tx: SERVICES["ecs"].operations["DescribeTaskDefinition"](tx, params, caller))
        return str(found["taskDefinition"]["taskDefinitionArn"].rpartition("/")[2])

    assert [described(CALLER, "one"), described(USER, "one"), described(CALLER, "hers")] == ["one:1", "one:2", "hers:1"]
    world.call("DeregisterTaskDefinition", "ecs", taskDefinition="one:1")
    assert described(CALLER, "one") == "one:2"
    world.call("RegisterTaskDefinition", "ecs", family="one", containerDefinitions=[CONTAINER])
    assert [described(CALLER, "one"), described(USER, "one")] == ["one:3", "one:2"]


def test_the_stream_of_a_task_belongs_to_the_owner_of_the_task() -> None:
    store = LogStore(None)
    logs = Tx(store, 1_700_000_000.0, SeededIds(Random(0)), Settings())
    world = ServiceWorld(gpus=2)
    options = {"awslogs-create-group": "true", "awslogs-stream-prefix": "p", "awslogs-region": CALLER.region}
    for group in ("/hers", RUN_LOG_GROUP):
        container = CONTAINER | {"logConfiguration": {"logDriver": "awslogs", "options": options | {"awslogs-group": group}}}
        call(world, "ecs", "RegisterTaskDefinition", family="one", containerDefinitions=[container])
        call(world, "ecs", "RunTask", taskDefinition="one")
        [*_, (task_id,)] = world.store.execute("SELECT id FROM task ORDER BY created_at").fetchall()
        task = world.store.tasks.get(task_id)
        assert task is not None
        target = world.run(lambda tx, task=task: log_target(task, task.runs[0], spec_of_task(tx, task).containers["c"]))
        assert target is not None
        if group == RUN_LOG_GROUP:  # another owner has created the stream in advance
            store.add_group(CALLER.region, group, {}, 0, ROOT)
            found = store.group(CALLER.region, group)
            assert found is not None
            store.add_stream(found.id, target.stream, 0, "user/bob")
        spec = RunSpec(run_id=task.runs[0].id, task_id=task.id, container="c", image="", command=[], environment={}, gpu_ids=[])
        open_streams(logs, [StartOrder(spec, target)])
    groups = store.execute("SELECT name, owner FROM log_group").fetchall()
    assert sorted(groups) == [(RUN_LOG_GROUP, ROOT), ("/hers", ALICE)]
    assert store.execute("SELECT DISTINCT owner FROM log_stream").fetchall() == [(ALICE,)]
