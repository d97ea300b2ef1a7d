"""What sessions may do: session policies, tags, source identities, and the roles that users may assume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from corral.access import sessions
from corral.access.authorization import refusal
from corral.access.caller import Caller
from corral.access.principals import policies_of_caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.model.stack import Stack, StackStatus, StackVersion
from corral.operations.services import needed_permissions
from corral.services.cloudformation.stack_events import caller_of, stored_caller
from corral.services.sts import handlers as sts
from corral.store import Store
from services.test_authorization import ACCOUNT, ANN, allow, deny, document, put, put_policy, tx, why

__all__ = ["tx"]
ROOT = Caller(ACCOUNT, "us-east-1", root_user(ACCOUNT))
ROLE = f"arn:aws:iam::{ACCOUNT}:role/train"
CLOUDFORMATION = "cloudformation.amazonaws.com"
CLOUDFORMATION = "cloudformation.amazonaws.com"
UNTRUSTED = "because no role trust policy allows the sts:AssumeRole action"
ACCOUNT_TRUSTED = {"Effect": "Allow", "Principal": {"AWS": ACCOUNT}, "Action": ["sts:AssumeRole", "sts:TagSession"]}


def role(tx: Tx[Store], *statements: Mapping[str, Any], trust: Mapping[str, Any] = ACCOUNT_TRUSTED) -> None:
    put(tx, "role", "train", *statements, AssumeRolePolicyDocument=document(trust))


def refused(tx: Tx[Store], caller: Caller, operation: str, **params: Any) -> str | None:
    needed = needed_permissions(tx, caller, "sts", operation, params)
    return refusal(tx, caller, policies_of_caller(tx, caller), needed, is_open=False)


def session(tx: Tx[Store], caller: Caller, operation: str = "AssumeRole", **given: Any) -> Caller:
    """Create a session, and return the caller that has its credentials."""
    params = {"RoleArn": ROLE, "RoleSessionName": "me", **given} if operation == "AssumeRole" else given
    if caller.is_restricted and operation != "GetSessionToken":  # which needs no permission
        assert refused(tx, caller, operation, **params) is None
    made = sts.HANDLERS[operation](tx, params, caller)["Credentials"]
    found = sessions.read(tx.settings.session_key, made["AccessKeyId"], made["SessionToken"])
    assert found is not None and len(made["SessionToken"]) <= sessions.TOKEN_MAX
    return Caller(ACCOUNT, "us-east-1", found.session.principal, terms=found.session.terms)


def test_the_root_user_limits_a_session_by_session_policies_only(tx: Tx[Store]) -> None:
    """CDK's roles could not publish assets without TLS, because the policy of the bucket for assets denies this."""
    assert not session(tx, ROOT).is_restricted
    role(tx, allow("ecs:ListTasks"))
    assert not session(tx, ROOT).is_restricted
    limited = session(tx, ROOT, Policy=document(allow("ecs:*")))
    assert why(tx, limited, "ecs:ListTasks", "*") is None and why(tx, limited, "ecs:StopTask", "*") is not None
    tx.store.stored.drop("iam", "role", "", "train")
    assert why(tx, limited, "ecs:ListTasks", "*") is not None


@pytest.mark.parametrize("has_role", [False, True])
def test_session_policies_limit_a_session(tx: Tx[Store], has_role: bool) -> None:
    if has_role:
        role(tx, allow(["ecs:*", "sqs:*"]))
    arn = put_policy(tx, "queues", allow("sqs:List*"))
    limited = session(tx, ROOT, Policy=document(allow(["ecs:ListTasks", "ssm:*"])), PolicyArns=[{"arn": arn}])
    assert [why(tx, limited, each, "*") for each in ("ecs:ListTasks", "sqs:ListQueues")] == [None, None]
    assert str(why(tx, limited, "ecs:StopTask", "*")).endswith("because no session policy allows the ecs:StopTask action")
    assert (why(tx, limited, "ssm:GetParameter", "*") is None) is not has_role
    denied = session(tx, ROOT, Policy=document(allow("*"), deny("ecs:*")))
    assert str(why(tx, denied, "ecs:ListTasks", "*")).endswith("with an explicit deny in a session policy")


def test_a_session_that_a_limited_session_creates_is_limited_by_its_role(tx: Tx[Store]) -> None:
    role(tx, allow("ecs:ListTasks"))
    limited = session(tx, ROOT, Policy=document(allow("sts:AssumeRole")))
    assert refused(tx, limited, "AssumeRole", RoleArn=ROLE) is not None  # the role itself may not
    role(tx, allow(["ecs:ListTasks", "sts:AssumeRole"]))
    chained = session(tx, limited)
    assert why(tx, chained, "ecs:ListTasks", "*") is None and why(tx, chained, "ecs:StopTask", "*") is not None
    missing = f"arn:aws:iam::{ACCOUNT}:role/missing"
    assert "because no role trust policy allows" in str(refused(tx, limited, "AssumeRole", RoleArn=missing))


@pytest.mark.parametrize(
    ("trust", "own", "reason"),
    [
        ({"AWS": f"arn:aws:iam::{ACCOUNT}:user/ann"}, [], None),
        ({"AWS": ACCOUNT}, [allow("sts:AssumeRole", ROLE)], None),
        ({"AWS": ACCOUNT}, [], "because no identity-based policy allows the sts:AssumeRole action"),
        (
            {"AWS": f"arn:aws:iam::{ACCOUNT}:user/bob"},
            [allow("*")],
            "because no role trust policy allows the sts:AssumeRole action",
        ),
        ({"Service": "ecs-tasks.amazonaws.com"}, [allow("*")], "because no role trust policy allows the sts:AssumeRole action"),
        ({"AWS": ACCOUNT}, [allow("*"), deny("sts:*")], "with an explicit deny in an identity-based policy"),
    ],
)
def test_a_user_assumes_the_roles_that_trust_it(
    tx: Tx[Store], trust: Mapping[str, Any], own: list[dict[str, Any]], reason: str | None
) -> None:
    put(tx, "user", "ann", *own)
    role(tx, allow("ecs:*"), trust={"Effect": "Allow", "Principal": trust, "Action": "sts:AssumeRole"})
    found = refused(tx, ANN, "AssumeRole", RoleArn=ROLE, RoleSessionName="me")
    assert found is None if reason is None else str(found).endswith(reason)
    if reason is None:
        assumed = session(tx, ANN)
        assert assumed.owner == "user/ann" and why(tx, assumed, "ecs:StopTask", "*") is None
        assert why(tx, assumed, "sqs:ListQueues", "*") is not None


def test_a_trust_policy_with_a_deny_and_with_conditions(tx: Tx[Store]) -> None:
    put(tx, "user", "ann", allow("sts:*"))
    asked = {"RoleArn": ROLE, "RoleSessionName": "ann", "ExternalId": "partner"}
    for condition, allowed in (
        ({"StringEquals": {"sts:ExternalId": "partner"}}, True),
        ({"StringEquals": {"sts:ExternalId": "other"}}, False),
        ({"StringLike": {"sts:RoleSessionName": "${aws:username}"}}, True),
        ({"Bool": {"aws:MultiFactorAuthPresent": "true"}}, False),
    ):
        role(tx, trust={**ACCOUNT_TRUSTED, "Condition": condition})
        assert (refused(tx, ANN, "AssumeRole", **asked) is None) is allowed
    role(tx, trust={**ACCOUNT_TRUSTED, "Effect": "Deny"})
    assert str(refused(tx, ANN, "AssumeRole", **asked)).endswith("with an explicit deny in the role trust policy")


def test_session_tags_need_a_permission_and_pass_to_the_next_session(tx: Tx[Store]) -> None:
    put(tx, "user", "ann", allow("sts:AssumeRole"))
    role(tx, allow(["sts:*", "ecs:*"], Condition={"StringEquals": {"aws:PrincipalTag/team": "blue"}}))
    given: dict[str, Any] = {"Tags": [{"Key": "Team", "Value": "blue"}, {"Key": "x", "Value": "y"}], "TransitiveTagKeys": ["Team"]}
    assert "sts:TagSession" in str(refused(tx, ANN, "AssumeRole", RoleArn=ROLE, RoleSessionName="me", **given))
    condition = {"ForAllValues:StringEquals": {"aws:TagKeys": ["Team", "x"], "sts:TransitiveTagKeys": ["Team"]}}
    put(tx, "user", "ann", allow("sts:AssumeRole"), allow("sts:TagSession", ROLE, Condition=condition))
    first = session(tx, ANN, **given)
    assert why(tx, first, "ecs:ListTasks", "*") is None
    second = session(tx, first)
    assert second.terms is not None and second.terms.tags == (("Team", "blue"),)  # not x, which is not transitive
    assert why(tx, second, "ecs:ListTasks", "*") is None
    with pytest.raises(ApiError, match="conflicts with a transitive tag"):
        sts.assume_role(tx, {"RoleArn": ROLE, "RoleSessionName": "me", "Tags": [{"Key": "team", "Value": "red"}]}, second)


def test_a_source_identity_stays(tx: Tx[Store]) -> None:
    trust = {**ACCOUNT_TRUSTED, "Action": ["sts:AssumeRole", "sts:SetSourceIdentity"]}
    role(tx, allow("sts:*"), allow("ecs:*", Condition={"StringEquals": {"aws:SourceIdentity": "ann"}}), trust=trust)
    put(tx, "user", "ann", allow("sts:AssumeRole"))
    asked = {"RoleArn": ROLE, "RoleSessionName": "me", "SourceIdentity": "ann"}
    assert "sts:SetSourceIdentity" in str(refused(tx, ANN, "AssumeRole", **asked))
    put(tx, "user", "ann", allow("sts:*", Condition={"StringEqualsIfExists": {"sts:SourceIdentity": "${aws:username}"}}))
    assert refused(tx, ANN, "AssumeRole", **{**asked, "SourceIdentity": "bob"}) is not None
    first = session(tx, ANN, SourceIdentity="ann")
    assert why(tx, first, "ecs:ListTasks", "*") is None
    assert why(tx, session(tx, first), "ecs:ListTasks", "*") is None
    with pytest.raises(ApiError, match="can't be changed"):
        sts.assume_role(tx, {**asked, "SourceIdentity": "bob"}, first)


def test_a_federated_user_may_do_what_both_its_policy_and_its_creator_may(tx: Tx[Store]) -> None:
    put(tx, "user", "ann", allow(["ecs:*", "sts:GetFederationToken"]))
    without = session(tx, ANN, "GetFederationToken", Name="guest")
    assert why(tx, without, "ecs:ListTasks", "*") is not None
    limited = session(tx, ANN, "GetFederationToken", Name="guest", Policy=document(allow(["ecs:ListTasks", "sqs:*"])))
    assert limited.owner == "user/ann"
    assert [why(tx, limited, each, "*") is None for each in ("ecs:ListTasks", "ecs:StopTask", "sqs:ListQueues")] == [
        True,
        False,
        False,
    ]
    put(tx, "user", "ann", allow("ecs:*"))
    assert "federated-user/guest" in str(refused(tx, ANN, "GetFederationToken", Name="guest"))
    assert not session(tx, ROOT, "GetFederationToken", Name="guest").is_restricted
    of_root = session(tx, ROOT, "GetFederationToken", Name="guest", Policy=document(allow("ecs:ListTasks")))
    assert why(tx, of_root, "ecs:ListTasks", "*") is None and why(tx, of_root, "ecs:StopTask", "*") is not None


def test_a_session_of_a_user_has_its_permissions(tx: Tx[Store]) -> None:
    put(tx, "user", "ann", allow("ecs:*", Condition={"StringEquals": {"aws:username": "ann"}}), allow("sqs:*", Condition=PRESENT))
    mine = session(tx, ANN, "GetSessionToken")
    assert mine.principal.arn == ANN.principal.arn and why(tx, mine, "ecs:ListTasks", "*") is None
    assert why(tx, mine, "sqs:ListQueues", "*") is None and why(tx, ANN, "sqs:ListQueues", "*") is not None
    tx.store.stored.drop("iam", "user", "", "ann")
    assert why(tx, mine, "ecs:ListTasks", "*") is not None


PRESENT = {"Bool": {"aws:MultiFactorAuthPresent": "false"}, "DateLessThan": {"aws:TokenIssueTime": "2024-01-01T00:00:00Z"}}


@pytest.mark.parametrize("owner", ["root", "user/bob"])
def test_the_steps_of_a_stack_have_the_permissions_of_its_caller_or_its_role(tx: Tx[Store], owner: str) -> None:
    put(tx, "user", "ann", allow("ecs:ListTasks", Condition={"ForAnyValue:StringEquals": {"aws:CalledVia": CLOUDFORMATION}}))
    stack = Stack("arn", "us-east-1", "s", StackStatus.UPDATE_IN_PROGRESS, stored_caller(ANN), StackVersion(1), 0.0, owner)
    step = caller_of(stack)
    assert step.owner == owner and step.is_restricted  # the owner gives no permissions
    assert why(tx, step, "ecs:ListTasks", "*") is None and why(tx, step, "ecs:StopTask", "*") is not None
    assert why(tx, ANN, "ecs:ListTasks", "*") is not None
    role(tx, allow("ecs:StopTask"))
    with_role = caller_of(stack.but(version=StackVersion(1, role_arn=ROLE)))
    assert with_role.principal.arn == f"arn:aws:sts::{ACCOUNT}:assumed-role/train/AWSCloudFormation"
    assert why(tx, with_role, "ecs:StopTask", "*") is None and why(tx, with_role, "ecs:ListTasks", "*") is not None
    by_root = caller_of(stack.but(caller=stored_caller(ROOT), version=StackVersion(1, role_arn=ROLE)))
    assert by_root.owner == owner and not by_root.is_restricted
    limited = session(tx, ROOT, Policy=document(allow("ecs:ListTasks")))
    by_limited = caller_of(stack.but(caller=stored_caller(limited)))
    assert why(tx, by_limited, "ecs:StopTask", "*") is not None


def test_policies_of_a_session_that_are_refused(tx: Tx[Store]) -> None:
    asked = {"RoleArn": ROLE, "RoleSessionName": "me"}
    for given, code, words in (
        ({"Policy": json.dumps({"Version": "2012-10-17", "Statement": []})}, "MalformedPolicyDocument", "Syntax errors"),
        ({"Policy": document({"Effect": "Allow", "Action": "*"})}, "MalformedPolicyDocument", "must contain resources"),
        ({"PolicyArns": [{"arn": f"arn:aws:iam::{ACCOUNT}:policy/missing"}]}, "ValidationError", "does not exist"),
        ({"ProvidedContexts": [{"ProviderArn": "a", "ContextAssertion": "b"}]}, "ValidationError", "ProvidedContexts"),
    ):
        with pytest.raises(ApiError, match=words) as caught:
            sts.assume_role(tx, {**asked, **given}, ROOT)
        assert caught.value.code == code
