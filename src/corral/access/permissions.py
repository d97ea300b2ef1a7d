"""Permissions: IAM actions, and the ARNs of the resources that a request names.

The module `permissions` of each service lists the permissions that its operations need (`operations/services.py` loads it).
Handlers ignore some parts of an ARN, so different ARNs in requests can refer to the same resource. The permission therefore has the
ARN of the resource that the handler will find. With the ARN of the request, a caller could evade a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from corral.access.caller import Caller
from corral.access.roles import find_role
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import NO_RESOURCE
from corral.store import Store

Params = Mapping[str, Any]  # the parameters of a request


class Permission(Struct, frozen=True):
    action: str  # as in a policy: "ecs:RunTask"
    resource: str  # an ARN, NO_RESOURCE or UNKNOWN_RESOURCE
    context: Context = field(default_factory=dict)  # condition keys and their values; keys are in lower case


class LateContext(Mapping[str, Sequence[str]]):
    """Condition keys that are computed when a policy asks for one, because most policies ask for none."""

    __slots__ = ("_compute", "_found")

    def __init__(self, compute: Callable[[], Context]) -> None:
        self._compute = compute
        self._found: Context | None = None

    @property
    def found(self) -> Context:
        if self._found is None:
            self._found = self._compute()
        return self._found

    def get(self, key: str, default: Any = None) -> Any:
        return self.found.get(key, default)

    def __getitem__(self, key: str) -> Sequence[str]:
        return self.found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


# The permission to decide what runs on the host. AWS has no such action: there, the host of a task is an instance of the user, and
# not the machine that runs ECS itself.
RUN_ON_HOST = Permission("corral:RunOnHost", NO_RESOURCE)
# The operations that need this permission if they define, start, change or enter something with access to the host. For each of
# them, the function `gives_host` of the service's module `permissions` decides whether the request does. No other operation does:
# user data is only read, and messages, parameters and the input of functions are data.
HOST_OPERATIONS: Mapping[str, frozenset[str]] = {
    "application-autoscaling": frozenset({"PutScalingPolicy", "PutScheduledAction", "RegisterScalableTarget"}),
    "batch": frozenset({"RegisterJobDefinition", "SubmitJob"}),
    "ecs": frozenset(
        {"ContinueServiceDeployment", "CreateService", "CreateTaskSet", "ExecuteCommand", "RegisterTaskDefinition", "RunTask",
         "StartTask", "StopServiceDeployment", "UpdateService", "UpdateServicePrimaryTaskSet", "UpdateTaskSet"}
    ),
    "lambda": frozenset({"CreateFunction", "UpdateFunctionCode", "UpdateFunctionConfiguration"}),
}  # fmt: skip


def on_resources(action: str, arns: Iterable[str], context: Context) -> list[Permission]:
    """One permission for each ARN. If there are no ARNs, one permission without a resource."""
    return [Permission(action, each, context) for each in arns] or [Permission(action, NO_RESOURCE, context)]


def request_tags(params: Params) -> Context:
    """The condition keys aws:RequestTag/KEY and aws:TagKeys, if the request has tags, or aws:TagKeys, if it removes tags."""
    given = params.get("tags") or params.get("Tags")
    if not given:
        removed = params.get("tagKeys") or params.get("TagKeys")
        return {"aws:tagkeys": tuple(removed)} if removed else {}
    tags = [{"key": key, "value": value} for key, value in given.items()] if isinstance(given, Mapping) else given
    pairs = {tag.get("key", tag.get("Key", "")): tag.get("value", tag.get("Value", "")) for tag in tags if isinstance(tag, Mapping)}
    if not pairs:
        removed = params.get("tagKeys") or params.get("TagKeys")
        return {"aws:tagkeys": tuple(removed)} if removed else {}
    return {"aws:tagkeys": tuple(pairs), **{f"aws:requesttag/{key.lower()}": (str(value),) for key, value in pairs.items()}}


def with_tags(action: str, arns: Iterable[str], params: Params, context: Context | None = None) -> list[Permission]:
    """The permissions to tag what a request creates. If the request has no tags, it needs none."""
    tags = request_tags(params)
    return [Permission(action, each, {**tags, **(context or {})}) for each in arns] if tags else []


def of_other_owner(caller: Caller, owner: str | None, action: str, arn: str) -> list[Permission]:
    """The permission for what a request makes a service do with a resource, if it belongs to another owner.

    AWS, where an account has no owners, does not require this permission.
    """
    return [Permission(action, arn)] if owner and owner != caller.owner else []


def request_values(params: Params, keys: Mapping[str, str]) -> Context:
    """The condition keys whose values are members of the request. `keys` maps each condition key to its member: `Settings.Size`."""
    found: dict[str, tuple[str, ...]] = {}
    for key, path in keys.items():
        value: Any = params
        for member in path.split("."):
            value = value.get(member) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            found[key] = (str(value).lower(),)
        elif isinstance(value, str | int | float):
            found[key] = (str(value),)
        elif isinstance(value, list) and value:
            found[key] = tuple(str(each) for each in value)
    return found


def read_object(bucket: str, key: str, version: str | None = None) -> Permission:
    """The permission to read an S3 object to which a request refers."""
    return Permission("s3:GetObjectVersion" if version else "s3:GetObject", f"arn:aws:s3:::{bucket}/{key}")


def pass_role(tx: Tx[Store], caller: Caller, role: str, service: str, resource: str = "") -> Permission:
    """The permission to let a service act with a role. What the role allows, the creator of a task or a function can do with it.

    `resource` is the ARN of the resource that gets the role, if it is known.
    """
    context = {"iam:passedtoservice": (f"{service}.amazonaws.com",)}
    if resource.startswith("arn:"):
        context["iam:associatedresourcearn"] = (resource,)
    return Permission("iam:PassRole", role_arn(tx, caller, role), context)


def pass_profile(tx: Tx[Store], caller: Caller, profile: str, resource: str = "") -> list[Permission]:
    """The permissions to pass the roles of an instance profile, given by its name or its ARN."""
    found = tx.store.stored.get("iam", "instance-profile", "", profile.rpartition("/")[2])
    return [pass_role(tx, caller, role, "ec2", resource) for role in (found["_roles"] if found is not None else ())]


def role_arn(tx: Tx[Store], caller: Caller, given: str) -> str:
    """The ARN of the role that the handler will find. The handler finds a role by name only, so the path in `given` is ignored."""
    role = find_role(tx, given.rpartition("/")[2])
    if role is not None:
        return str(role["Arn"])
    return given if given.startswith("arn:") else f"arn:aws:iam::{caller.account}:role/{given}"


def assume_role_context(params: Params) -> Context:
    """The condition keys of AssumeRole. They are used for the caller's policies and for the trust policy of the role."""
    keys = {"sts:externalid": "ExternalId", "sts:rolesessionname": "RoleSessionName", "sts:sourceidentity": "SourceIdentity"}
    return {key: (params[member],) for key, member in keys.items() if params.get(member)}
