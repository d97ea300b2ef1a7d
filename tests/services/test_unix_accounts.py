"""Users with a Unix account: what needs no `corral:RunOnHost` for them, and which hosts their tasks may use."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.fleet import unix_accounts
from corral.model.agent_protocol import AccountsOrder, Hello, HostOptions
from corral.model.principal import iam_user, role_session, root_user
from corral.model.session import SessionTerms
from corral.model.settings import Settings
from corral.model.task import Task
from corral.operations.services import SERVICES, needed_permissions
from corral.reconcile.ecs_service_tasks import launch_request
from corral.services.corral.people import set_unix_account
from corral.services.ecs.errors import ClientException
from corral.services.ecs.host_reports import hello
from corral.services.ecs.launch import launch
from corral.services.ecs.run_spec import start_order
from corral.services.ecs.task_capacity import Capacity
from corral.services.ecs.task_spec import spec_of
from corral.store import Store

ACCOUNT, REGION = "123456789012", "us-east-1"
ROOT = Caller(ACCOUNT, REGION, root_user(ACCOUNT))
ANN, BOB = (Caller(ACCOUNT, REGION, iam_user(ACCOUNT, name)) for name in ("ann", "bob"))
INSIDE = Caller(ACCOUNT, REGION, role_session(ACCOUNT, "train", "me", "user/ann"), confined=True)
LIMITED = replace(ANN, terms=SessionTerms(is_restricted=True))
PROCESS = {"name": "main", "image": "corral/host", "memory": 64, "command": ["true"]}
IMAGE = {"name": "main", "image": "busybox", "memory": 64, "command": ["true"]}
FOLDER = {"volumes": [{"name": "v", "host": {"sourcePath": "/data"}}]}


class Lab:
    """Two hosts and the users ann and bob. Bob may run on the host."""

    def __init__(self, runtime: str = "docker") -> None:
        settings = Settings(host=HostOptions(runtime=runtime))  # type: ignore[arg-type]
        self.tx = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), settings)
        for host in ("one", "two"):
            hello(self.tx, Hello(host, "boot", host, 4096, 8192, [], [], settings.host, docker="Docker" * (runtime == "docker")))
        for name in ("ann", "bob"):
            self.call("iam", "CreateUser", ROOT, UserName=name)
        self.call("iam", "AttachUserPolicy", ROOT, UserName="bob", PolicyArn="arn:aws:iam::aws:policy/AdministratorAccess")
        self.commit()

    def commit(self) -> None:
        self.tx.store.undo_log.commit()

    def call(self, service: str, operation: str, caller: Caller, /, **params: Any) -> Any:
        """Run the handler, without the check of permissions."""
        return SERVICES[service].operations[operation](self.tx, params, caller)

    def account(self, name: str = "", user: str = "ann") -> None:
        set_unix_account(self.tx, {"user": user, "account": name} if name else {"user": user}, ROOT)
        self.commit()

    def report(self, host: str, *names: str) -> None:
        unix_accounts.report(self.tx, host, dict.fromkeys(names, 1000))

    def asks(self, caller: Caller, service: str, operation: str, **params: Any) -> bool:
        return "corral:RunOnHost" in [each.action for each in needed_permissions(self.tx, caller, service, operation, params)]

    def register(self, family: str, container: dict[str, Any], caller: Caller = ANN, **more: Any) -> None:
        self.call("ecs", "RegisterTaskDefinition", caller, family=family, containerDefinitions=[container], **more)

    def run(self, family: str, caller: Caller = ANN, **more: Any) -> Any:
        return self.call("ecs", "RunTask", caller, taskDefinition=family, **more)

    def task(self, family: str, caller: Caller = ANN, **more: Any) -> Task:
        task = self.tx.store.tasks.get(self.run(family, caller, **more)["tasks"][0]["taskArn"].rpartition("/")[2])
        assert task is not None
        return task

    def order(self, task: Task) -> tuple[str, str | None]:
        order = start_order(self.tx, task, task.runs[0], spec_of(self.tx, task))
        return order.spec.account, order.fault


def test_what_needs_no_permission_with_an_account() -> None:
    lab = Lab()
    lab.register("process", PROCESS)
    lab.register("folder", IMAGE, **FOLDER)
    free = [{"containerDefinitions": [PROCESS]}, {"containerDefinitions": [IMAGE], **FOLDER}]
    strong = [{"containerDefinitions": [{**IMAGE, "privileged": True}], **FOLDER}, {**free[1], "networkMode": "host"}]
    for account in ("", "ann"):
        lab.account(account)
        for caller in (ANN, BOB, INSIDE, LIMITED):
            freed = bool(account) and caller is ANN
            assert all(lab.asks(caller, "ecs", "RegisterTaskDefinition", **each) is not freed for each in free), (account, caller)
            assert all(lab.asks(caller, "ecs", "RunTask", taskDefinition=name) is not freed for name in ("process", "folder"))
        assert all(lab.asks(ANN, "ecs", "RegisterTaskDefinition", **each) for each in strong)
        assert lab.asks(ANN, "lambda", "CreateFunction", FunctionName="f")
        assert lab.asks(ANN, "batch", "RegisterJobDefinition", **job(PROCESS)) is not bool(account)
    lab.report("one", "ann")
    lab.report("two", "ann")
    task = lab.task("process")
    assert [lab.asks(each, "ecs", "ExecuteCommand", task=task.id) for each in (ANN, BOB, INSIDE)] == [False, True, True]


def job(container: dict[str, Any]) -> dict[str, Any]:
    size = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    properties = {"image": container["image"], "command": ["true"], "resourceRequirements": size}
    return {"jobDefinitionName": "j", "type": "container", "containerProperties": properties}


def test_tasks_run_as_the_account_of_their_owner_whoever_starts_them() -> None:
    lab = Lab()
    lab.account("ann")
    lab.report("one")
    lab.report("two", "ann", "other")
    lab.register("process", PROCESS)
    lab.register("image", IMAGE)
    task = lab.task("process")
    assert (lab.order(task), lab.tx.store.instances.get(task.instance_id or "").host_id) == (("ann", None), "two")  # type: ignore[union-attr]
    assert lab.tx.store.hosts.accounts("two") == {"ann"}, "a host cannot report other names"
    lab.call("ecs", "CreateService", ANN, serviceName="s", taskDefinition="process", desiredCount=0)
    capacity = Capacity("EC2", ("hosts:default",), waits=True)
    for caller in (ANN, BOB, ROOT):
        lab.call("ecs", "UpdateService", caller, service="s", forceNewDeployment=True)
        service = lab.tx.store.ecs_services.get(REGION, "default", "s")
        assert service is not None
        [made] = launch(lab.tx, launch_request(lab.tx, ROOT, service, 1, capacity)).tasks
        assert lab.order(made) == ("ann", None), caller
    inside = lab.task("image", INSIDE)
    assert (lab.order(inside), lab.order(lab.task("image"))) == (("", None), ("ann", None))
    lab.account("ann-2")
    assert "account ann of its owner, and the account is ann-2 now" in (lab.order(task)[1] or "")
    [order] = [order for host, order in lab.tx._orders if host == "one" and isinstance(order, AccountsOrder)][-1:]
    assert order == AccountsOrder(["ann-2"])


def test_a_host_without_the_account_is_not_eligible() -> None:
    lab = Lab("process")
    lab.account("ann")
    lab.report("one")
    lab.register("image", IMAGE)
    [failure] = lab.run("image", launchType="EC2")["failures"]
    assert "the Unix account ann (missing on one, two, or Corral does not run as root there)" in failure["detail"]
    lab.report("two")
    with pytest.raises(ClientException, match=r"The task would run as ann, .*\(`useradd ann`\)"):
        lab.run("image")
    lab.report("one", "ann")
    assert lab.task("image", launchType="EC2").instance_id is not None
    lab.register("large", {**IMAGE, "memory": 8000})
    waiting = lab.task("large", capacityProviderStrategy=[{"capacityProvider": "host", "weight": 1}])
    assert waiting.demand.rules is not None and waiting.demand.rules.account == "ann"
    assert lab.tx.store.tasks.get(waiting.id) == waiting
    lab.report("two", "ann")
    [failure] = [lab.run("large", launchType="EC2")["failures"] for _ in range(4)][-1]
    assert "account" not in failure["detail"], "all hosts have the account, so it is not what the task lacks"
