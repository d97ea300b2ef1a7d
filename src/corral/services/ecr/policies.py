"""Texts that a repository or the registry keeps: policies. They are checked and shown, and nobody acts on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.services.caller import Caller
from corral.services.ecr import lifecycle
from corral.services.ecr.naming import identity, meant, violated
from corral.store import Store

LifecyclePolicyNotFoundException = api_error("LifecyclePolicyNotFoundException")
RepositoryPolicyNotFoundException = api_error("RepositoryPolicyNotFoundException")

Handler = Callable[[Tx[Store], dict[str, Any], Caller], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Text:
    """One kind of text of a repository, and the operations that put, show and remove it."""

    member: str  # of requests and replies, and of what is kept
    put: str
    get: str
    delete: str
    check: Callable[[str], None]
    word: str  # "Repository policy": in messages
    missing: type[ApiError]


def check_policy(text: str, word: str) -> None:
    """Refuse what is not a JSON object. What it allows is not enforced: whoever has this Corral's keys may do everything."""
    try:
        policy = orjson.loads(text)
    except orjson.JSONDecodeError:
        policy = None
    if not isinstance(policy, dict) or "Statement" not in policy:
        raise violated("PolicyText", f"Invalid {word} policy provided")


TEXTS = (
    Text(
        "lifecyclePolicyText", "PutLifecyclePolicy", "GetLifecyclePolicy", "DeleteLifecyclePolicy",
        lifecycle.check, "Lifecycle policy", LifecyclePolicyNotFoundException,
    ),
    Text(
        "policyText", "SetRepositoryPolicy", "GetRepositoryPolicy", "DeleteRepositoryPolicy",
        lambda text: check_policy(text, "repository"), "Repository policy", RepositoryPolicyNotFoundException,
    ),
)  # fmt: skip


def handlers(text: Text) -> dict[str, Handler]:
    def put(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        repository, given = meant(tx, params, caller), params[text.member]
        text.check(given)
        tx.store.images.set_repository(replace(repository, about={**repository.about, text.member: given}))
        return {**identity(caller, repository), text.member: given}

    def get(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        repository = meant(tx, params, caller)
        if text.member not in repository.about:
            raise text.missing(
                f"{text.word} does not exist for the repository with name '{repository.name}' in the registry with id "
                f"'{caller.account}'"
            )
        return {**identity(caller, repository), text.member: repository.about[text.member]}

    def delete(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        reply = get(tx, params, caller)
        repository = meant(tx, params, caller)
        left = {key: value for key, value in repository.about.items() if key != text.member}
        tx.store.images.set_repository(replace(repository, about=left))
        return reply

    return {text.put: put, text.get: get, text.delete: delete}


HANDLERS = {operation: handler for text in TEXTS for operation, handler in handlers(text).items()}
