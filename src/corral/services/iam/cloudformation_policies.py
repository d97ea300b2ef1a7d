"""Policies of IAM in CloudFormation templates, and the policies that users, groups and roles have as properties."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import gmtime, strftime
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.iam.errors import NoSuchEntityException
from corral.services.iam.policies import VERSIONS_MAX
from corral.store import Store
from corral.template_types.api_calls import call
from corral.template_types.api_types import Params, api_type, changed, json_text
from corral.template_types.resource_types import Properties, TemplateType

MISSING = (NoSuchEntityException.code,)
DOCUMENTS = ("AssumeRolePolicyDocument", "PolicyDocument")
PRINCIPALS = ("Role", "User", "Group")  # a property such as Roles has the names of the principals with a policy


def members(properties: Properties, *names: str) -> Params:
    """Return these properties for a request. Policy documents become text."""
    given = {name: properties[name] for name in names if name in properties}
    return {name: json_text(value) if name in DOCUMENTS else value for name, value in given.items()}


def difference(old: Properties, new: Properties, member: str) -> tuple[list[Any], list[Any]]:
    """Return the elements that were removed from a list property, and the elements that were added."""
    before, after = old.get(member) or [], new.get(member) or []
    return [each for each in before if each not in after], [each for each in after if each not in before]


# Inline and attached policies of a principal. `_detach` and `_delete_inline` ignore a missing policy or principal, because a client
# may have deleted it already.


def _attach(tx: Tx[Store], caller: Caller, word: str, name: str, arn: str) -> None:
    call(tx, caller, "iam", f"Attach{word}Policy", {f"{word}Name": name, "PolicyArn": arn})


def _detach(tx: Tx[Store], caller: Caller, word: str, name: str, arn: str) -> None:
    with suppress(NoSuchEntityException):
        call(tx, caller, "iam", f"Detach{word}Policy", {f"{word}Name": name, "PolicyArn": arn})


def _put_inline(tx: Tx[Store], caller: Caller, word: str, name: str, policy: Properties) -> None:
    call(tx, caller, "iam", f"Put{word}Policy", {f"{word}Name": name, **members(policy, "PolicyName", "PolicyDocument")})


def _delete_inline(tx: Tx[Store], caller: Caller, word: str, name: str, policy: str) -> None:
    with suppress(NoSuchEntityException):
        call(tx, caller, "iam", f"Delete{word}Policy", {f"{word}Name": name, "PolicyName": policy})


def set_policies(tx: Tx[Store], caller: Caller, word: str, name: str, old: Properties, new: Properties) -> None:
    """Change the policies of a user, a group or a role to those of its properties ManagedPolicyArns and Policies."""
    gone, added = difference(old, new, "ManagedPolicyArns")
    for arn in gone:
        _detach(tx, caller, word, name, arn)
    for arn in added:
        _attach(tx, caller, word, name, arn)
    gone, added = difference(old, new, "Policies")
    for policy in gone:
        _delete_inline(tx, caller, word, name, policy["PolicyName"])
    for policy in added:
        _put_inline(tx, caller, word, name, policy)


def _named(properties: Properties) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each principal that has a policy."""
    return ((word, name) for word in PRINCIPALS for name in properties.get(f"{word}s") or ())


# Managed policies


def _policy_arn(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return f"arn:aws:iam::{caller.account}:policy{properties.get('Path', '/')}{properties['ManagedPolicyName']}"


def _set_managed(tx: Tx[Store], caller: Caller, arn: str, old: Properties, new: Properties) -> None:
    """Store a changed document as the new default version. If there is no room for it, first delete the oldest other version."""
    if old and "PolicyDocument" in changed(old, new):
        others = _other_versions(tx, caller, arn)
        if len(others) + 1 >= VERSIONS_MAX:
            call(tx, caller, "iam", "DeletePolicyVersion", {"PolicyArn": arn, "VersionId": others[0]})
        version = {"PolicyArn": arn, "SetAsDefault": True, **members(new, "PolicyDocument")}
        call(tx, caller, "iam", "CreatePolicyVersion", version)
    for word in PRINCIPALS:
        gone, added = difference(old, new, f"{word}s")
        for name in gone:
            _detach(tx, caller, word, name, arn)
        for name in added:
            _attach(tx, caller, word, name, arn)


def _other_versions(tx: Tx[Store], caller: Caller, arn: str) -> list[str]:
    """Return the versions that are not the default version, the oldest first."""
    found = call(tx, caller, "iam", "ListPolicyVersions", {"PolicyArn": arn})["Versions"]
    return [each["VersionId"] for each in reversed(found) if not each["IsDefaultVersion"]]


def _empty_managed(tx: Tx[Store], caller: Caller, arn: str, properties: Properties) -> None:
    for word, name in _named(properties):
        _detach(tx, caller, word, name, arn)
    for version in _other_versions(tx, caller, arn):
        call(tx, caller, "iam", "DeletePolicyVersion", {"PolicyArn": arn, "VersionId": version})


def _managed_attributes(tx: Tx[Store], caller: Caller, arn: str) -> dict[str, Any]:
    policy = call(tx, caller, "iam", "GetPolicy", {"PolicyArn": arn})["Policy"]
    names = ("PolicyId", "DefaultVersionId", "IsAttachable", "PermissionsBoundaryUsageCount", "AttachmentCount")
    dates = {name: strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(tx.steps.wall_s(policy[name]))) for name in ("CreateDate", "UpdateDate")}
    return {"PolicyArn": arn, **{name: policy[name] for name in names}, **dates}


# Inline policies. An AWS::IAM::Policy can belong to several principals, an AWS::IAM::RolePolicy belongs to one role.


def _create_policy(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    _update_policy(tx, caller, properties["PolicyName"], {}, properties)
    return str(properties["PolicyName"])


def _update_policy(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    kept = set(_named(new)) if old.get("PolicyName") == new["PolicyName"] else set()
    for word, name in _named(old):
        if (word, name) not in kept:
            _delete_inline(tx, caller, word, name, old["PolicyName"])
    for word, name in _named(new):
        _put_inline(tx, caller, word, name, new)


def _delete_policy(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    for word, name in _named(properties):
        _delete_inline(tx, caller, word, name, properties["PolicyName"])


def _policy_of(word: str) -> TemplateType:
    """Return AWS::IAM::RolePolicy, AWS::IAM::UserPolicy or AWS::IAM::GroupPolicy."""
    name = f"{word}Name"
    return api_type(
        f"AWS::IAM::{word}Policy",
        "iam",
        identity=lambda tx, caller, properties: f"{properties['PolicyName']}|{properties[name]}",
        target=lambda identity, properties: members(properties, name, "PolicyName"),
        create=f"Put{word}Policy",
        request=lambda caller, properties: members(properties, name, "PolicyName", "PolicyDocument"),
        delete=f"Delete{word}Policy",
        missing=MISSING,
        update=f"Put{word}Policy",
    )


POLICY_TYPES = (
    api_type(
        "AWS::IAM::ManagedPolicy",
        "iam",
        identity=_policy_arn,
        target="PolicyArn",
        create="CreatePolicy",
        request=lambda caller, properties: {
            "PolicyName": properties["ManagedPolicyName"],
            **members(properties, "Path", "PolicyDocument", "Description"),
        },
        delete="DeletePolicy",
        before_delete=_empty_managed,
        missing=MISSING,
        applies=("PolicyDocument", "Roles", "Users", "Groups"),
        apply=_set_managed,
        attributes=_managed_attributes,
        name_property="ManagedPolicyName",
    ),
    TemplateType(
        "AWS::IAM::Policy",
        _create_policy,
        lambda tx, caller, name: {"Id": name},
        _update_policy,
        _delete_policy,
        checks_permissions=True,
    ),
    *map(_policy_of, PRINCIPALS),
)
