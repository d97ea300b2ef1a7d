"""What the policies of users, groups and roles allow, by the documents in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from corral.access import resources
from corral.access.authorization import refusal, sight
from corral.access.caller import Caller
from corral.access.permissions import Permission
from corral.access.principals import policies_of_caller
from corral.access.resources import ResourceFacts
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import iam_user, role_session, root_user
from corral.model.session import SessionTerms
from corral.model.settings import Settings
from corral.operations.listings import Listed, listing_of, visible
from corral.operations.services import SERVICES
from corral.store import Store

ACCOUNT = "123456789012"
ANN = Caller(ACCOUNT, "us-east-1", iam_user(ACCOUNT, "ann"), source_ip="10.0.0.7")
TASK = Caller(ACCOUNT, "us-east-1", role_session(ACCOUNT, "train", "t1", "user/ann"), confined=True, task_id="t1")
ROOTS_TASK = Caller(ACCOUNT, "us-east-1", role_session(ACCOUNT, "train", "t2", "root"), confined=True, task_id="t2")
ASSUMED = Caller(ACCOUNT, "us-east-1", role_session(ACCOUNT, "train", "me", "user/ann"))
QUEUE = f"arn:aws:sqs:us-east-1:{ACCOUNT}:jobs"


@pytest.fixture
def tx() -> Tx[Store]:
    return Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())


def document(*statements: Mapping[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {**allow(action, resource, **more), "Effect": "Deny"}


def put(tx: Tx[Store], kind: str, name: str, *statements: Mapping[str, Any], **more: Any) -> None:
    title = kind.capitalize()
    arn, inline = f"arn:aws:iam::{ACCOUNT}:{kind}/{name}", {"p": document(*statements)} if statements else {}
    found = {f"{title}Name": name, f"{title}Id": f"A{kind.upper()}{name.upper()}", "Arn": arn, "Path": "/", "_inline": inline}
    found |= {"_attached": [], "AssumeRolePolicyDocument": document()} | more
    tx.store.stored.put("iam", kind, "", name, found, tx.now_s, "root")


def put_policy(tx: Tx[Store], name: str, *statements: Mapping[str, Any]) -> str:
    arn = f"arn:aws:iam::{ACCOUNT}:policy/{name}"
    found = {"Arn": arn, "DefaultVersionId": "v1", "_versions": {"v1": {"document": document(*statements)}}}
    tx.store.stored.put("iam", "policy", "", name, found, tx.now_s, "root")
    return arn


def why(tx: Tx[Store], caller: Caller, action: str, resource: str = QUEUE, *, is_open: bool = False, **context: str) -> str | None:
    keys = {name.replace("_", ":"): (value,) for name, value in context.items()}
    return refusal(tx, caller, policies_of_caller(tx, caller), [Permission(action, resource, keys)], is_open=is_open)


def set_facts(monkeypatch: pytest.MonkeyPatch, **by_service: ResourceFacts) -> None:
    monkeypatch.setattr(resources, "_reader", lambda service: (lambda *_: by_service[service]) if service in by_service else None)


def test_who_is_restricted() -> None:
    assert ANN.is_restricted and TASK.is_restricted and ROOTS_TASK.is_restricted and ASSUMED.is_restricted
    assert not Caller(ACCOUNT, "", root_user(ACCOUNT)).is_restricted


def test_a_user_may_do_what_its_policies_and_those_of_its_groups_allow(tx: Tx[Store]) -> None:
    put(tx, "group", "team", allow("sqs:DeleteQueue"))
    attached = put_policy(tx, "look", allow("sqs:List*"))
    put(tx, "user", "ann", allow("sqs:CreateQueue"), _attached=[attached], _groups=["team"])
    assert [why(tx, ANN, f"sqs:{each}") for each in ("CreateQueue", "ListQueues", "DeleteQueue")] == [None] * 3
    assert why(tx, ANN, "sqs:PurgeQueue") == (
        f"User: arn:aws:iam::{ACCOUNT}:user/ann is not authorized to perform: sqs:PurgeQueue on resource: {QUEUE} because no "
        "identity-based policy allows the sqs:PurgeQueue action"
    )


def test_a_user_that_does_not_exist_may_do_nothing(tx: Tx[Store]) -> None:
    assert why(tx, ANN, "sqs:ListQueues") is not None


def test_a_deny_of_a_group_wins(tx: Tx[Store]) -> None:
    put(tx, "group", "team", deny("sqs:*"))
    put(tx, "user", "ann", allow("*"), _groups=["team", "deleted"])
    assert str(why(tx, ANN, "sqs:ListQueues")).endswith("with an explicit deny in an identity-based policy")


def test_a_boundary_limits_a_user(tx: Tx[Store]) -> None:
    boundary = put_policy(tx, "limit", allow("s3:*"))
    put(tx, "user", "ann", allow("*"), PermissionsBoundary=boundary)
    assert str(why(tx, ANN, "sqs:ListQueues")).endswith("because no permissions boundary allows the sqs:ListQueues action")


@pytest.mark.parametrize(
    ("condition", "allowed"),
    [
        ({"StringEquals": {"aws:username": "ann"}}, True),
        ({"StringEquals": {"aws:username": "bob"}}, False),
        ({"StringEquals": {"aws:userid": "AUSERANN"}}, True),
        ({"StringEquals": {"aws:PrincipalType": "User"}}, True),
        ({"ArnEquals": {"aws:PrincipalArn": "arn:aws:iam::123456789012:user/ann"}}, True),
        ({"StringEquals": {"aws:PrincipalTag/Team": "vision"}}, True),
        ({"StringEquals": {"aws:PrincipalTag/team": "audio"}}, False),
        ({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}, True),
        ({"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}, False),
        ({"DateGreaterThan": {"aws:CurrentTime": "2023-01-01T00:00:00Z"}}, True),
        ({"DateLessThan": {"aws:CurrentTime": "2023-01-01T00:00:00Z"}}, False),
        ({"NumericLessThan": {"aws:EpochTime": "1700000001"}}, True),
        ({"Bool": {"aws:ViaAWSService": "false"}}, True),
        ({"Bool": {"aws:PrincipalIsAWSService": "true"}}, False),
        ({"StringEquals": {"aws:RequestedRegion": "us-east-1"}}, True),
        ({"Null": {"aws:MultiFactorAuthPresent": "true"}}, True),
        ({"StringEquals": {"sqs:own": "${aws:username}"}}, True),
        ({"StringEquals": {"sqs:own": "${aws:PrincipalTag/team}"}}, False),
    ],
)
def test_condition_keys_of_every_request(tx: Tx[Store], condition: Mapping[str, Any], allowed: bool) -> None:
    put(tx, "user", "ann", allow("*", Condition=condition), Tags=[{"Key": "Team", "Value": "vision"}])
    assert (why(tx, ANN, "ecs:ListClusters", "*", sqs_own="ann") is None) is allowed


OWN = {"StringEquals": {"corral:Owner": "${corral:Caller}"}}


@pytest.mark.parametrize(("owner", "allowed"), [("user/ann", True), ("user/bob", False), ("root", False), (None, True)])
def test_a_policy_can_name_the_owner_of_the_resource(
    tx: Tx[Store], monkeypatch: pytest.MonkeyPatch, owner: str | None, allowed: bool
) -> None:
    set_facts(monkeypatch, ecs=ResourceFacts(owner, {"Team": "vision"}))
    put(tx, "user", "ann", allow("ecs:*", Condition=OWN))
    assert (why(tx, ANN, "ecs:StopTask") is None) is allowed
    put(tx, "user", "ann", allow("ecs:*", Condition={"StringLike": {"aws:ResourceTag/team": "v*"}}))
    assert why(tx, ANN, "ecs:StopTask") is None
    put(tx, "user", "ann", allow("ecs:*", Condition={"StringLike": {"ecs:ResourceTag/team": "w*"}}))
    assert why(tx, ANN, "ecs:StopTask") is not None


def test_an_unknown_owner_is_not_the_callers(tx: Tx[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch)
    put(tx, "user", "ann", allow("ecs:*", Condition=OWN))
    assert why(tx, ANN, "ecs:StopTask") is not None
    assert why(tx, ANN, "ecs:StopTask", "", corral_owner="user/ann") is not None  # no request can set the key
    assert why(tx, ANN, "ecs:ListTasks", "*") is None  # without a resource, the owner is the caller


def test_a_task_may_do_what_both_its_role_and_its_owner_may(tx: Tx[Store]) -> None:
    put(tx, "role", "train", allow(["sqs:*", "ecs:StopTask"]))
    put(tx, "user", "ann", allow(["sqs:*", "ecs:RunTask"]))
    assert why(tx, TASK, "sqs:ListQueues", "*") is None
    refused = why(tx, TASK, "ecs:StopTask", "*")
    assert refused is not None and "assumed-role/train/t1 is not authorized to perform: ecs:StopTask" in refused
    assert f"It acts for arn:aws:iam::{ACCOUNT}:user/ann" in refused
    assert "because no identity-based policy" in str(why(tx, TASK, "ecs:RunTask", "*"))
    assert why(tx, ROOTS_TASK, "ecs:StopTask", "*") is None  # the root user is not limited
    assert why(tx, ASSUMED, "ecs:StopTask", "*") is None  # as on AWS, a role that a user assumes has its own permissions
    function = replace(ASSUMED, terms=SessionTerms(for_owner=True))
    assert why(tx, function, "sqs:ListQueues", "*") is None and f"It acts for arn:aws:iam::{ACCOUNT}:user/ann" in str(
        why(tx, function, "ecs:StopTask", "*")
    )
    tx.store.stored.drop("iam", "user", "", "ann")
    assert why(tx, TASK, "sqs:ListQueues", "*") is not None


@pytest.mark.parametrize(
    ("caller", "owner", "user_allows", "allowed"),
    [
        (ROOTS_TASK, "root", False, True),
        (ROOTS_TASK, "user/ann", False, False),
        (TASK, "user/ann", True, True),
        (TASK, "user/ann", False, False),
        (TASK, "root", True, False),
        (TASK, "user/bob", True, False),
        (TASK, None, True, True),
    ],
)
def test_open_operations_are_open_for_resources_of_the_same_owner(
    tx: Tx[Store], monkeypatch: pytest.MonkeyPatch, caller: Caller, owner: str | None, user_allows: bool, allowed: bool
) -> None:
    set_facts(monkeypatch, sqs=ResourceFacts(owner))
    put(tx, "user", "ann", allow("sqs:*" if user_allows else "ecs:*"))
    assert (why(tx, caller, "sqs:SendMessage", is_open=True) is None) is allowed


def test_the_policy_of_a_resource_decides_too(tx: Tx[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    named = document({**allow("sqs:SendMessage"), "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:user/ann"}})
    set_facts(monkeypatch, sqs=ResourceFacts("root", policy=named))
    put(tx, "user", "ann")
    assert why(tx, ANN, "sqs:SendMessage") is None
    assert why(tx, ANN, "sqs:ReceiveMessage") is not None
    put(tx, "user", "ann", allow("*"))
    set_facts(monkeypatch, sqs=ResourceFacts("root", policy=document({**deny("sqs:*"), "Principal": "*"})))
    assert str(why(tx, ANN, "sqs:SendMessage")).endswith("with an explicit deny in a resource-based policy")
    assert str(why(tx, ROOTS_TASK, "sqs:SendMessage", is_open=True)).endswith("with an explicit deny in a resource-based policy")


@pytest.mark.parametrize(
    ("condition", "shown"),
    [({}, ["a", "b", "c"]), (OWN, ["b"]), ({"StringEquals": {"corral:Owner": ["root", "user/ann"]}}, ["a", "b"])],
)
def test_a_listing_shows_what_the_caller_may_see(tx: Tx[Store], condition: dict[str, Any], shown: list[str]) -> None:
    put(tx, "user", "ann", allow("ecs:*", Condition=condition))
    owners = {"a": "root", "b": "user/ann", "c": "user/bob"}
    listed = Listed(("found",), lambda tx, caller, params, element: owners[element])
    sees = sight(tx, ANN, policies_of_caller(tx, ANN), [Permission("ecs:ListClusters", "*")], is_open=False)
    assert visible(tx, listed, ANN, {}, {"found": ["a", "b", "c"], "token": "t"}, sees) == {"found": shown, "token": "t"}


def test_a_program_in_a_container_sees_what_belongs_to_its_owner(tx: Tx[Store]) -> None:
    put(tx, "user", "ann", allow("s3:*"))
    needed = [Permission("s3:ListAllMyBuckets", "*")]
    for caller, seen in ((TASK, [False, True, False]), (ROOTS_TASK, [True, False, False])):
        sees = sight(tx, caller, policies_of_caller(tx, caller), needed, is_open=True)
        assert [sees(owner) for owner in ("root", "user/ann", "user/bob")] == seen


def test_a_listing_runs_in_one_command() -> None:
    """The response of an operation in several commands is not filtered."""
    for service, served in SERVICES.items():
        assert not [operation for operation in served.steps if listing_of(service, operation) is not None]
