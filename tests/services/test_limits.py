"""Limits of users and groups: which of them hold for an owner, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.fleet.limits import limits_of, weight_of
from corral.model.limits import Limits, SubjectLimits
from corral.model.principal import iam_user
from corral.services.corral.handlers import HANDLERS as OWN
from corral.services.ecs.handlers import HANDLERS as ECS
from corral.services.iam.handlers import HANDLERS as IAM
from services.test_own_instances import CALLER
from services.test_own_runs import World

ANN = "user/ann"


def caller_of(name: str) -> Caller:
    return replace(CALLER, principal=iam_user(CALLER.account, name))


def needing(gpus: int) -> dict[str, Any]:
    required = [{"type": "GPU", "value": str(gpus)}]
    return {"name": "main", "image": "corral/host", "command": ["true"], "memory": 6, "resourceRequirements": required}


class LimitedWorld(World):
    """A core with the users ann and bob, who are members of the group lab."""

    def __init__(self) -> None:
        super().__init__()
        self.iam("CreateGroup", GroupName="lab")
        for name in ("ann", "bob"):
            self.iam("CreateUser", UserName=name)
            self.iam("AddUserToGroup", UserName=name, GroupName="lab")
            for gpus in (1, 2):
                self.as_(name, "RegisterTaskDefinition", family=f"gpus-{gpus}", containerDefinitions=[needing(gpus)])

    def iam(self, operation: str, /, **params: Any) -> Any:
        return self.run(lambda tx: IAM[operation](tx, params, CALLER))

    def as_(self, name: str, operation: str, /, **params: Any) -> Any:
        return self.run(lambda tx: ECS[operation](tx, params, caller_of(name)))

    def limit(self, subject: str, **limits: Any) -> None:
        self.run(lambda tx: OWN["SetLimits"](tx, {"subject": subject, "limits": limits}, CALLER))

    def unlimit(self, subject: str, *names: str) -> None:
        self.run(lambda tx: OWN["SetLimits"](tx, {"subject": subject, "remove": names}, CALLER))


@pytest.mark.parametrize(
    ("given", "holding", "weight"),
    [
        ({}, [], 1.0),
        ({"everyone": {"gpus": 4}}, [(ANN, Limits(gpus=4))], 1.0),
        ({"everyone": {"gpus": 4, "priority": 5}, ANN: {"gpus": 8}}, [(ANN, Limits(gpus=8, priority=5))], 1.0),
        ({"group/lab": {"gpus": 2, "weight": 3}}, [("group/lab", Limits(gpus=2, weight=3))], 3.0),
        ({"group/lab": {"weight": 3}, ANN: {"weight": 2}}, [(ANN, Limits(weight=2)), ("group/lab", Limits(weight=3))], 2.0),
        ({"user/bob": {"gpus": 1}, "root": {"gpus": 3}}, [], 1.0),
    ],
)
def test_limits_of_a_user(given: dict[str, dict[str, Any]], holding: list[tuple[str, Limits]], weight: float) -> None:
    world = LimitedWorld()
    for subject, limits in given.items():
        world.limit(subject, **limits)
    assert world.run(lambda tx: limits_of(tx, ANN)) == [SubjectLimits(*each) for each in holding]
    assert world.run(lambda tx: weight_of(tx, ANN)) == weight
    of_root = world.run(lambda tx: limits_of(tx, "root"))
    assert [each.limits for each in of_root] == [Limits(**given[each]) for each in given if each == "root"], (
        "everyone does not include root"
    )


def test_limits_end_with_their_user_and_group() -> None:
    world = LimitedWorld()
    world.limit(ANN, gpus=1)
    world.limit("group/lab", gpus=2)
    for name in ("ann", "bob"):
        world.iam("RemoveUserFromGroup", UserName=name, GroupName="lab")
    world.iam("DeleteUser", UserName="ann")
    world.iam("DeleteGroup", GroupName="lab")
    assert world.store.limits.of == {} == world.store.limits.rows()


def with_limit(task_gpus: int = 1, **tags: str) -> dict[str, Any]:
    return {"taskDefinition": f"gpus-{task_gpus}", "tags": [{"key": f"corral:{key}", "value": tags[key]} for key in tags]}


TIME = "time-limit"


@pytest.mark.parametrize(
    ("limits", "request_", "why"),
    [
        ({"longestS": 3600.0}, with_limit(**{TIME: "3601"}), "time limit is .* but tasks of user:ann may run for at most"),
        ({"longestS": 3600.0}, with_limit(**{TIME: "3600"}), None),
        ({"priority": 5}, with_limit(priority="6"), "priority is 6, but tasks of user:ann may have at most 5"),
        ({"priority": 5}, with_limit(priority="5"), None),
        ({"gpus": 1}, with_limit(2), "needs 2 GPUs, but user:ann may hold at most 1 at once"),
        ({"gpus": 2}, with_limit(2), None),
        ({"memoryMiB": 5}, with_limit(1), "needs 6 MiB of memory, but user:ann may use at most 5 MiB"),
    ],
)
def test_what_a_limit_never_allows_is_refused(limits: dict[str, Any], request_: dict[str, Any], why: str | None) -> None:
    world = LimitedWorld()
    world.limit(ANN, **limits)
    if why is None:
        assert world.as_("ann", "RunTask", **request_)["tasks"]
        return
    with pytest.raises(ApiError, match=why):
        world.as_("ann", "RunTask", **request_)
    assert world.as_("bob", "RunTask", **request_)["tasks"], "the limits of others do not count"


def test_a_task_without_a_time_limit_gets_the_longest_time() -> None:
    world = LimitedWorld()
    world.limit("group/lab", longestS=60.0)
    [task] = world.as_("ann", "RunTask", taskDefinition="gpus-1")["tasks"]
    [of_root] = world.call("RunTask", taskDefinition="gpus-1")["tasks"]
    found = [world.store.tasks.get(each["taskArn"].rpartition("/")[2]) for each in (task, of_root)]
    assert [each.time_limit_s for each in found if each is not None] == [60.0, None]
