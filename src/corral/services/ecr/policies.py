"""Lifecycle policies and access policies of repositories. Corral checks, stores and returns them, but does not enforce them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.policy import PolicyError, read_policy
from corral.services.ecr.errors import LifecyclePolicyNotFoundException, RepositoryPolicyNotFoundException
from corral.services.ecr.lifecycle_policies import check_lifecycle_policy
from corral.services.ecr.repository_names import identity, requested_repository, violated
from corral.store import Store

PolicyHandler = Callable[[Tx[Store], dict[str, Any], Caller], dict[str, Any]]


class PolicyKind(Struct, frozen=True):
    """A kind of policy that a repository can have, and the operations that put, get and delete it."""

    member: str  # the name of the member in requests, in responses and in the stored settings
    put: str
    get: str
    delete: str
    check: Callable[[str], None]
    title: str  # for error messages, for example "Repository policy"
    missing: type[ApiError]
    # Members of the responses of Get and Delete operations that have the same value for each policy.
    others: Mapping[str, Any] = MappingProxyType({})


def check_policy(text: str, owner: str) -> None:
    """Raise an error if the policy of a repository or of the registry is not valid. `owner` says which of the two it is."""
    try:
        is_valid = all(statement.principals is not None for statement in read_policy(text).statements)
    except PolicyError:
        is_valid = False
    if not is_valid:
        raise violated("PolicyText", f"Invalid {owner} policy provided")


NOT_EVALUATED = MappingProxyType({"lastEvaluatedAt": 0.0})  # the time that AWS gives for a policy that it has not evaluated yet
POLICY_KINDS = (
    PolicyKind(
        "lifecyclePolicyText", "PutLifecyclePolicy", "GetLifecyclePolicy", "DeleteLifecyclePolicy",
        check_lifecycle_policy, "Lifecycle policy", LifecyclePolicyNotFoundException, NOT_EVALUATED,
    ),
    PolicyKind(
        "policyText", "SetRepositoryPolicy", "GetRepositoryPolicy", "DeleteRepositoryPolicy",
        lambda text: check_policy(text, "repository"), "Repository policy", RepositoryPolicyNotFoundException,
    ),
)  # fmt: skip


def handlers(kind: PolicyKind) -> dict[str, PolicyHandler]:
    def put(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        repository, given = requested_repository(tx, params, caller), params[kind.member]
        kind.check(given)
        tx.store.images.set_repository(replace(repository, about={**repository.about, kind.member: given}))
        return {**identity(caller, repository), kind.member: given}

    def get(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        repository = requested_repository(tx, params, caller)
        if kind.member not in repository.about:
            raise kind.missing(
                f"{kind.title} does not exist for the repository with name '{repository.name}' in the registry with id "
                f"'{caller.account}'"
            )
        return {**identity(caller, repository), kind.member: repository.about[kind.member], **kind.others}

    def delete(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        response = get(tx, params, caller)
        repository = requested_repository(tx, params, caller)
        left = {key: value for key, value in repository.about.items() if key != kind.member}
        tx.store.images.set_repository(replace(repository, about=left))
        return response

    return {kind.put: put, kind.get: get, kind.delete: delete}


HANDLERS = {operation: handler for kind in POLICY_KINDS for operation, handler in handlers(kind).items()}
