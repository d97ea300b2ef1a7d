"""Access to the host: which settings of a task definition give it, and which operations ask for `corral:RunOnHost`.

The tests compare tables with botocore's models. So they fail for a new operation, and for a new member of a request, until somebody
has decided whether it can give access to the host, or pass a role.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import orjson
import pytest
from botocore.model import Shape

from corral.access.authorization import may_run_on_host
from corral.access.caller import Caller
from corral.access.passed_roles import PASSED, passed_roles
from corral.access.permissions import HOST_OPERATIONS, Permission
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.agent_protocol import HostOptions
from corral.model.principal import ROOT, role_session, root_user
from corral.model.settings import Settings
from corral.operations.services import SERVICES, needed_permissions
from corral.reconcile.ecs_service_tasks import launch_request
from corral.services.batch import job_launch
from corral.services.batch.environments import find_environment
from corral.services.ecs.host_access import setting_with_host_access
from corral.services.ecs.launch import launch
from corral.services.ecs.run_spec import start_order
from corral.services.ecs.task_capacity import Capacity
from corral.services.ecs.task_spec import spec_of
from corral.store import Store
from corral.template_types.api_calls import call
from each import check_each
from services.host_access_decisions import (
    ASKS_NOT,
    CARRIERS,
    CONTAINER,
    GIVES,
    HARMLESS,
    HARMLESS_IN_BATCH,
    HARMLESS_IN_JOBS,
    OVERRIDES,
    PASSES_NOT,
    READS,
    VOLUME,
)
from wire.oracle import model_of

ACCOUNT, REGION = "123456789012", "us-east-1"
USER = Caller(ACCOUNT, REGION, root_user(ACCOUNT))
TASK = Caller(ACCOUNT, REGION, role_session(ACCOUNT, "train", "me", ROOT), confined=True)
TRUST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}
PLAIN = {"name": "main", "image": "busybox", "memory": 64, "command": ["true"]}
SIZE = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "2048"}]
JOB = {"name": "main", "image": "busybox", "resourceRequirements": SIZE}


def members(shape: Shape, path: str = "", within: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the paths of all members that have a value of their own. `[]` is an element of a list of structures."""
    if shape.type_name == "structure" and shape.name not in within:
        for name, member in shape.members.items():  # type: ignore[attr-defined]
            yield from members(member, f"{path}.{name}".removeprefix("."), within | {shape.name})
    elif shape.type_name == "list" and shape.member.type_name == "structure":  # type: ignore[attr-defined]
        yield from members(shape.member, f"{path}.[]", within)  # type: ignore[attr-defined]
    else:
        yield path


def input_of(service: str, operation: str) -> set[str]:
    model = model_of(service)
    shape = model.operation_model(operation).input_shape if operation in model.operation_names else None
    return set(members(shape)) if shape is not None else set()


def paths(table: dict[str, str]) -> set[str]:
    """The paths of a table such as HARMLESS, without `[]`."""
    return {f"{start}.{name}".replace(".[]", "").removeprefix(".") for start, names in table.items() for name in names.split()}


def given(path: str, value: Any) -> Any:
    """A request with a value at a path."""
    first, _, rest = path.partition(".")
    if not first:
        return value
    inner = given(rest, value)
    return [inner] if first == "[]" else {first: inner}


def definition(path: str, value: Any) -> dict[str, Any]:
    """A task definition with a value at a path."""
    found = {"containerDefinitions": [PLAIN], **given(path, value)}
    found["containerDefinitions"] = [{**PLAIN, **each} for each in found["containerDefinitions"]]
    if "volumes" in found:
        found["volumes"] = [{"name": "v", **each} for each in found["volumes"]]
    return found


DEFINITIONS = [definition(path, value) for path, values in GIVES.items() for value in values]


def new_tx(runtime: str = "docker") -> Tx[Store]:
    settings = Settings(host=HostOptions(runtime=runtime))  # type: ignore[arg-type]
    return Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), settings)


def allow(tx: Tx[Store], *actions: str, role: str = "train") -> None:
    """Create a role with a policy that allows actions. TASK has the role `train`."""
    trust = orjson.dumps(TRUST).decode()
    call(tx, USER, "iam", "CreateRole", {"RoleName": role, "AssumeRolePolicyDocument": trust})
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
    document = orjson.dumps(policy).decode()
    call(tx, USER, "iam", "PutRolePolicy", {"RoleName": role, "PolicyName": "p", "PolicyDocument": document})


def asks(tx: Tx[Store], service: str, operation: str, params: dict[str, Any]) -> bool:
    return "corral:RunOnHost" in [each.action for each in needed_permissions(tx, TASK, service, operation, params)]


def roles_in(needed: list[Permission]) -> list[tuple[str, str]]:
    """The roles that a request passes, each with the service that gets it."""
    return [
        (each.resource.rpartition("/")[2], each.context["iam:passedtoservice"][0].partition(".")[0])
        for each in needed
        if each.action == "iam:PassRole"
    ]


def passed(tx: Tx[Store], service: str, operation: str, params: dict[str, Any]) -> list[tuple[str, str]]:
    return roles_in(needed_permissions(tx, TASK, service, operation, params))


def test_who_may_run_on_the_host() -> None:
    tx = new_tx()
    assert may_run_on_host(tx, USER) and not may_run_on_host(tx, TASK)
    allow(tx, "ecs:*", "corral:RunOnHost")
    assert may_run_on_host(tx, TASK)
    other = new_tx()
    allow(other, "ecs:*", "iam:PassRole")
    assert not may_run_on_host(other, TASK)


def test_every_operation_is_decided() -> None:
    for service, served in SERVICES.items():
        writes = {name for name in served.operations if not READS.match(name)}
        assert writes == HOST_OPERATIONS.get(service, frozenset()) | set(ASKS_NOT[service].split()), service
        assert not HOST_OPERATIONS.get(service, frozenset()) & set(ASKS_NOT[service].split())


DECIDED = paths(HARMLESS) | paths(CARRIERS) | {path.replace(".[]", "") for path in GIVES if path not in CARRIERS}


def test_every_member_of_a_task_definition_is_decided() -> None:
    assert {path.replace(".[]", "") for path in input_of("ecs", "RegisterTaskDefinition")} == DECIDED


def test_every_member_of_a_job_definition_is_decided() -> None:
    """Batch has the members of ECS, in the job definition or in the properties of a task or a container."""
    inside = ("containerProperties.", "container.", "ecsProperties.taskProperties.containers.", "ecsProperties.taskProperties.")
    known = {path.removeprefix("containerDefinitions.") for path in DECIDED} | set(HARMLESS_IN_JOBS.split())
    for path in (each.replace(".[]", "") for each in input_of("batch", "RegisterJobDefinition")):
        own = path.removeprefix("nodeProperties.nodeRangeProperties.")
        start = next((each for each in inside if own.startswith(each)), "?")
        is_refused = "eksProperties" in path  # Corral has no Kubernetes
        assert is_refused or path in paths(HARMLESS_IN_BATCH) or own.removeprefix(start) in known, path


def test_no_override_gives_the_host() -> None:
    known = set(OVERRIDES.split())
    for service, operation in (("ecs", "RunTask"), ("ecs", "StartTask"), ("batch", "SubmitJob")):
        for path in input_of(service, operation):
            if re.search("overrides?[.]", path, re.IGNORECASE) and "eks" not in path:
                names = path.split(".")
                assert any(".".join(names[at:]) in known for at in range(len(names))), f"{operation} {path}"


def test_what_gives_the_host() -> None:
    def check(document: dict[str, Any]) -> None:
        assert setting_with_host_access(document) is not None
        assert asks(new_tx(), "ecs", "RegisterTaskDefinition", {"family": "f", **document})

    check_each(DEFINITIONS, check)
    harmless = [
        {"networkMode": "bridge", "pidMode": "task", "ipcMode": "none", "volumes": [{"name": "v"}, {"name": "w", "host": {}}]},
        definition(f"{VOLUME}.dockerVolumeConfiguration", {"scope": "task", "driver": "local", "driverOpts": {"size": "1g"}}),
        definition(f"{CONTAINER}.linuxParameters.capabilities", {"add": ["CHOWN", "CAP_SYS_NICE"], "drop": ["ALL"]}),
        definition(f"{CONTAINER}.dockerSecurityOptions", ["no-new-privileges"]),
        *(
            definition(f"{CONTAINER}.logConfiguration", {"logDriver": driver, "options": options})
            for driver, options in (
                ("awslogs", {"awslogs-group": "g"}), ("json-file", {"max-size": "1m"}), ("awsfirelens", {}),
                ("syslog", {"syslog-address": "tcp://logs.example.com:514"}), ("fluentd", {"fluentd-address": "10.0.0.7:24224"}),
                ("gelf", {"gelf-address": "udp://[2001:db8::1]:12201"}), ("splunk", {"splunk-url": "https://splunk.example.com"}),
            )
        ),
    ]  # fmt: skip
    check_each(harmless, lambda document: pytest.fail("gives the host") if setting_with_host_access(document) else None)


# Operations on what is stored


class Stored:
    """A state with tasks, services and jobs of one task definition."""

    def __init__(self, document: dict[str, Any], runtime: str = "docker") -> None:
        self.tx = tx = new_tx(runtime)
        call(tx, USER, "ecs", "RegisterTaskDefinition", {"family": "plain", "containerDefinitions": [PLAIN]})
        call(tx, USER, "ecs", "RegisterTaskDefinition", {"family": "own", **document})
        service = {"desiredCount": 0, "taskDefinition": "own", "launchType": "EC2"}
        call(tx, USER, "ecs", "CreateService", {"serviceName": "own", **service})
        call(tx, USER, "ecs", "CreateService", {"serviceName": "left", **service})
        call(tx, USER, "ecs", "UpdateService", {"service": "left", "taskDefinition": "plain"})
        external = {"serviceName": "external", "desiredCount": 0, "deploymentController": {"type": "EXTERNAL"}}
        call(tx, USER, "ecs", "CreateService", external)
        set_ = {"cluster": "default", "service": "external", "taskDefinition": "own", "launchType": "EC2"}
        self.task_set = call(tx, USER, "ecs", "CreateTaskSet", set_)["taskSet"]["id"]
        self.task = call(tx, USER, "ecs", "RunTask", {"taskDefinition": "own", "enableExecuteCommand": True})["tasks"][0]["taskArn"]
        found = call(tx, USER, "ecs", "ListServiceDeployments", {"service": "own"})["serviceDeployments"]
        self.deployment = found[0]["serviceDeploymentArn"]

    def requests(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield requests that start, change or enter tasks of the task definition, for every operation that does."""
        external = {"cluster": "default", "service": "external"}
        yield "ecs", "RunTask", {"taskDefinition": "own"}
        yield "ecs", "RunTask", {"taskDefinition": "own:1", "cluster": "other"}
        arn = f"arn:aws:ecs:{REGION}:{ACCOUNT}:task-definition/own:01"
        yield "ecs", "StartTask", {"taskDefinition": arn, "containerInstances": ["i"]}
        yield "ecs", "ExecuteCommand", {"task": self.task, "command": "sh", "interactive": True}
        yield "ecs", "CreateService", {"serviceName": "new", "taskDefinition": "own"}
        yield "ecs", "CreateTaskSet", {**external, "taskDefinition": "own"}
        for member, value in (("desiredCount", 1), ("forceNewDeployment", True), ("taskDefinition", "plain")):
            yield "ecs", "UpdateService", {"service": "own", member: value}
        yield "ecs", "UpdateService", {"service": f"arn:aws:ecs:{REGION}:{ACCOUNT}:service/default/own"}
        yield "ecs", "UpdateService", {"service": "left", "desiredCount": 1}  # a failed rollout returns to the older deployment
        yield "ecs", "UpdateService", {"service": "external", "desiredCount": 1}
        yield "ecs", "UpdateTaskSet", {**external, "taskSet": self.task_set, "scale": {"value": 50}}
        yield "ecs", "UpdateServicePrimaryTaskSet", {**external, "primaryTaskSet": self.task_set}
        yield "ecs", "StopServiceDeployment", {"serviceDeploymentArn": self.deployment}
        yield "ecs", "ContinueServiceDeployment", {"serviceDeploymentArn": self.deployment, "hookId": "h"}
        target = {"ServiceNamespace": "ecs", "ResourceId": "service/default/own", "ScalableDimension": "ecs:service:DesiredCount"}
        for operation in HOST_OPERATIONS["application-autoscaling"]:
            yield "application-autoscaling", operation, target


STARTS = {"RegisterJobDefinition", "RegisterTaskDefinition", "SubmitJob"}  # other tests check these


def test_operations_on_what_is_stored_ask() -> None:
    def check(document: dict[str, Any]) -> None:
        stored = Stored(document)
        requests = list(stored.requests())
        check_each(requests, lambda each: asks(stored.tx, *each) or pytest.fail("does not ask"))
        done = {(service, operation) for service, operation, _ in requests}
        every = {(service, operation) for service in ("ecs", "application-autoscaling") for operation in HOST_OPERATIONS[service]}
        assert done == {each for each in every if each[1] not in STARTS}

    check_each([definition(path, values[0]) for path, values in GIVES.items()], check)


def test_plain_definitions_ask_only_if_they_run_as_processes() -> None:
    for runtime, expected in (("docker", False), ("process", True), ("auto", True)):
        stored = Stored({"containerDefinitions": [PLAIN]}, runtime)
        for request in stored.requests():
            assert asks(stored.tx, *request) is expected, (runtime, request)
        assert not asks(stored.tx, "ecs", "RegisterTaskDefinition", {"family": "f", "containerDefinitions": [PLAIN]})
    # A service of another region, cluster or name is another service.
    tx = Stored(definition("networkMode", "host")).tx
    assert asks(tx, "ecs", "UpdateService", {"service": "own"})
    assert not asks(tx, "ecs", "UpdateService", {"service": "own", "cluster": "other"})


def test_tasks_whose_role_may_run_on_the_host_ask() -> None:
    """AmazonECS_FullAccess includes iam:PassRole for all roles. With the credentials of such a task, it could take over."""
    plain = {"containerDefinitions": [PLAIN]}
    for given, role in (("strong", "strong"), (f"arn:aws:iam::{ACCOUNT}:role/x/strong", "strong"), (None, "corral-host")):
        document = plain | ({"taskRoleArn": given} if given else {})
        stored = Stored(document)
        assert not any(asks(stored.tx, *request) for request in stored.requests())
        allow(stored.tx, "corral:*", role=role)
        check_each(list(stored.requests()), lambda each: asks(stored.tx, *each) or pytest.fail("does not ask"))  # noqa: B023
        assert asks(stored.tx, "ecs", "RegisterTaskDefinition", {"family": "f", **document})
        job = {"jobDefinitionName": "d", "type": "container", "ecsProperties": {"taskProperties": [{"containers": [JOB]}]}}
        job["ecsProperties"]["taskProperties"][0] |= {"taskRoleArn": given} if given else {}  # type: ignore[index]
        assert asks(stored.tx, "batch", "RegisterJobDefinition", job)
    stored = Stored(plain | {"taskRoleArn": "weak"})
    allow(stored.tx, "corral:RunOnHost", role="strong")
    assert asks(stored.tx, "ecs", "RunTask", {"taskDefinition": "own", "overrides": {"taskRoleArn": "strong"}})
    assert not asks(stored.tx, "ecs", "RunTask", {"taskDefinition": "own"})


def test_jobs_ask() -> None:
    def check(document: dict[str, Any]) -> None:
        container = {
            **JOB,
            **{member: value for member, value in document["containerDefinitions"][0].items() if member != "memory"},
        }
        task = {member: value for member, value in document.items() if member != "containerDefinitions"}
        given = {"containers": [container], **task}
        single = {member: value for member, value in {**container, **task}.items() if member != "name"}
        ranges = [{"targetNodes": "0:1", "container": single}]
        forms: list[dict[str, Any]] = [
            {"type": "container", "ecsProperties": {"taskProperties": [given]}},
            {"type": "multinode", "nodeProperties": {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": ranges}},
            {"type": "container", "containerProperties": single},
        ]
        for form in forms[: 1 if task.keys() - {"volumes"} else 3]:
            assert asks(new_tx(), "batch", "RegisterJobDefinition", {"jobDefinitionName": "d", **form}), form
        tx = new_tx()
        call(tx, USER, "batch", "RegisterJobDefinition", {"jobDefinitionName": "d", **forms[0]})
        for name in ("d", "d:1", f"arn:aws:batch:{REGION}:{ACCOUNT}:job-definition/d:1"):
            assert asks(tx, "batch", "SubmitJob", {"jobName": "j", "jobQueue": "q", "jobDefinition": name})

    known = {path.removeprefix("ecsProperties.taskProperties.[].") for path in input_of("batch", "RegisterJobDefinition")}
    both = [
        definition(path, values[0])
        for path, values in GIVES.items()
        if path != "networkMode"  # RegisterJobDefinition refuses it
        and any(f"{each}.".startswith(f"{path.replace('containerDefinitions', 'containers')}.") for each in known)
    ]
    assert len(both) == 7
    check_each(both, check)
    tx = new_tx("process")
    plain = {"ecsProperties": {"taskProperties": [{"containers": [JOB]}]}}
    call(tx, USER, "batch", "RegisterJobDefinition", {"jobDefinitionName": "d", "type": "container", **plain})
    assert asks(tx, "batch", "SubmitJob", {"jobName": "j", "jobQueue": "q", "jobDefinition": "d"})


# Tasks that a program in a container has started


def test_tasks_of_containers_never_start_as_processes() -> None:
    """With `--runtime auto`, the next start of Corral may find no engine. Then images run as plain processes."""
    tx = Stored({"containerDefinitions": [PLAIN]}).tx
    later = Tx(tx.store, tx.now_s, tx.ids, Settings(host=HostOptions(runtime="auto")))
    allow(tx, "ecs:*", "batch:*")

    def faults(caller: Caller) -> list[bool]:
        """Whether a task of RunTask, and a task of a service, cannot start without an engine."""
        made = call(tx, caller, "ecs", "RunTask", {"taskDefinition": "own"})["tasks"][0]["taskArn"]
        call(tx, caller, "ecs", "UpdateService", {"service": "own", "forceNewDeployment": True})
        task, service = tx.store.tasks.get(made.rpartition("/")[2]), tx.store.ecs_services.get(REGION, "default", "own")
        assert task is not None and service is not None
        launched = launch(tx, launch_request(tx, USER, service, 1, Capacity("EC2", ("hosts:default",), waits=True))).tasks
        tasks = [task, *launched]
        assert all(start_order(tx, each, each.runs[0], spec_of(tx, each)).fault is None for each in tasks)
        return [start_order(later, each, each.runs[0], spec_of(later, each)).fault is not None for each in tasks]

    assert faults(USER) == [False, False]
    assert faults(TASK) == [True, True]
    assert faults(USER) == [False, True]  # the deployment still has the definition of the container
    call(tx, USER, "ecs", "UpdateService", {"service": "own", "taskDefinition": "plain"})
    assert faults(USER) == [False, False]


def test_a_revision_that_appears_after_the_check_does_not_start() -> None:
    """Permissions are checked before the transaction of the request. `call` would check them in the same transaction."""
    tx = Stored(definition("networkMode", "host")).tx
    for caller, expected in ((USER, False), (TASK, True)):
        made = SERVICES["ecs"].operations["RunTask"](tx, {"taskDefinition": "own"}, caller)["tasks"][0]["taskArn"]
        task = tx.store.tasks.get(made.rpartition("/")[2])
        assert task is not None
        fault = start_order(tx, task, task.runs[0], spec_of(tx, task)).fault
        assert ("networkMode: host" in (fault or "")) is expected


def test_jobs_of_containers_never_start_as_processes() -> None:
    tx = new_tx()
    allow(tx, "batch:*", "iam:PassRole")
    subnets = [each["SubnetId"] for each in call(tx, USER, "ec2", "DescribeSubnets", {})["Subnets"]]
    groups = [each["GroupId"] for each in call(tx, USER, "ec2", "DescribeSecurityGroups", {})["SecurityGroups"]]
    resources = {"type": "FARGATE", "maxvCpus": 4, "subnets": subnets[:1], "securityGroupIds": groups[:1]}
    environment = {"computeEnvironmentName": "e", "type": "MANAGED", "computeResources": resources}
    call(tx, USER, "batch", "CreateComputeEnvironment", environment)
    order = {"computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "e"}], "priority": 1}
    call(tx, USER, "batch", "CreateJobQueue", {"jobQueueName": "q", **order})
    plain = {"ecsProperties": {"taskProperties": [{"containers": [JOB], "executionRoleArn": "x"}]}}
    definition = {"jobDefinitionName": "d", "type": "container", "platformCapabilities": ["FARGATE"], **plain}
    call(tx, USER, "batch", "RegisterJobDefinition", definition)
    for caller, expected in ((USER, False), (TASK, True)):
        params = {"jobName": "j", "jobQueue": "q", "jobDefinition": "d"}
        job = tx.store.jobs.get(call(tx, caller, "batch", "SubmitJob", params)["jobId"])
        made = find_environment(tx, REGION, "e")
        assert job is not None and made is not None
        assert job_launch.launch_request(tx, job, made).only_in_docker is expected


# Roles


def test_every_member_that_names_a_role_is_decided() -> None:
    for service, served in SERVICES.items():
        named = set()
        for operation in served.operations:
            for path in input_of(service, operation):
                if re.search("role|profile", path, re.IGNORECASE) and not PASSES_NOT.match(f"{service} {operation} {path}"):
                    named.add(path)
        in_model = {path for path in PASSED.get(service, {}) if not path.startswith("Attributes.")}  # of maps with any key
        assert named == in_model, service


def test_roles_of_requests_are_passed() -> None:
    tx = new_tx()
    call(tx, USER, "iam", "CreateInstanceProfile", {"InstanceProfileName": "r"})
    call(tx, USER, "iam", "CreateRole", {"RoleName": "r", "AssumeRolePolicyDocument": orjson.dumps(TRUST).decode()})
    call(tx, USER, "iam", "AddRoleToInstanceProfile", {"InstanceProfileName": "r", "RoleName": "r"})
    for service, table in PASSED.items():
        for path, receiver in table.items():
            expected = [("r", "ec2" if " " in receiver else receiver)]
            assert roles_in(passed_roles(tx, TASK, service, given(path, "r"))) == expected, (service, path)
    linked = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    assert not passed(tx, "autoscaling", "UpdateAutoScalingGroup", {"ServiceLinkedRoleARN": linked})
    assert passed(tx, "autoscaling", "UpdateAutoScalingGroup", {"ServiceLinkedRoleARN": f"{linked}_own"})
    assert passed(tx, "ecs", "RegisterTaskDefinition", {"taskRoleArn": linked})


def test_roles_of_stored_documents_are_passed() -> None:
    roles = {"taskRoleArn": "t", "executionRoleArn": "e"}
    stored = Stored({"containerDefinitions": [PLAIN], **roles})
    both = [("t", "ecs-tasks"), ("e", "ecs-tasks")]
    for operation in ("RunTask", "StartTask", "CreateService", "CreateTaskSet", "UpdateService"):
        assert passed(stored.tx, "ecs", operation, {"taskDefinition": "own"}) == both, operation
    overrides = {"overrides": {"taskRoleArn": "o"}}
    assert passed(stored.tx, "ecs", "RunTask", {"taskDefinition": "own", **overrides}) == [("e", "ecs-tasks"), ("o", "ecs-tasks")]
    assert not passed(stored.tx, "ecs", "UpdateService", {"service": "own", "desiredCount": 1})
    job = {"jobDefinitionName": "d", "type": "container", "ecsProperties": {"taskProperties": [{"containers": [JOB], **roles}]}}
    call(stored.tx, USER, "batch", "RegisterJobDefinition", job)
    assert passed(stored.tx, "batch", "SubmitJob", {"jobName": "j", "jobQueue": "q", "jobDefinition": "d"}) == both


def test_roles_of_launch_templates_are_passed() -> None:
    tx = new_tx()
    call(tx, USER, "iam", "CreateRole", {"RoleName": "r", "AssumeRolePolicyDocument": orjson.dumps(TRUST).decode()})
    call(tx, USER, "iam", "CreateInstanceProfile", {"InstanceProfileName": "p"})
    call(tx, USER, "iam", "AddRoleToInstanceProfile", {"InstanceProfileName": "p", "RoleName": "r"})
    for name, data in (("with", {"IamInstanceProfile": {"Name": "p"}}), ("without", {"InstanceType": "t3.micro"})):
        call(tx, USER, "ec2", "CreateLaunchTemplate", {"LaunchTemplateName": name, "LaunchTemplateData": data})
    for name, expected in (("with", [("r", "ec2")]), ("without", []), ("missing", [])):
        template = {"LaunchTemplateName": name}
        mixed = {"MixedInstancesPolicy": {"LaunchTemplate": {"LaunchTemplateSpecification": template}}}
        overrides = [{"InstanceType": "t3.micro", "LaunchTemplateSpecification": template}]
        other = {"LaunchTemplateSpecification": {"LaunchTemplateName": "without"}, "Overrides": overrides}
        for service, operation, params in (
            ("ec2", "RunInstances", {"LaunchTemplate": template}),
            ("autoscaling", "CreateAutoScalingGroup", {"LaunchTemplate": template}),
            ("autoscaling", "UpdateAutoScalingGroup", mixed),
            ("autoscaling", "UpdateAutoScalingGroup", {"MixedInstancesPolicy": {"LaunchTemplate": other}}),
            ("autoscaling", "StartInstanceRefresh", {"DesiredConfiguration": {"LaunchTemplate": template}}),
            ("autoscaling", "StartInstanceRefresh", {"DesiredConfiguration": mixed}),
        ):
            assert passed(tx, service, operation, params) == expected, (operation, params)
    assert not passed(tx, "ec2", "CreateLaunchTemplate", {"LaunchTemplateData": {"IamInstanceProfile": {"Name": "p"}}})
