"""Facts about the resources of a request, which policies can test: the owner, the tags and the policy of the resource.

The module `permissions` of a service may have the function `resource_facts(tx, caller, permission)`. `permission.resource` is the
ARN of the resource that the handler will find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from msgspec import Struct, field

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.store import Store

if TYPE_CHECKING:
    from corral.access.permissions import Permission

# The services whose resources may have policies. Their facts are read for every request of a restricted caller.
WITH_POLICIES = frozenset({"ecr", "lambda", "s3", "secretsmanager", "sns", "sqs", "sts"})

FOLDERS = {"lambda": "lambda_"}  # service → its folder, where the names differ


class ResourceFacts(Struct, frozen=True):
    """None as the owner: there is no such resource (yet). Then its owner is the caller, who may create it."""

    owner: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    policy: str | None = None  # the text of the resource's policy


class LateTags(Mapping[str, str]):
    """Tags that are read when a policy asks for them."""

    __slots__ = ("_read", "_tags")

    def __init__(self, read: Callable[[], Mapping[str, str]]) -> None:
        self._read = read
        self._tags: Mapping[str, str] | None = None

    def _found(self) -> Mapping[str, str]:
        if self._tags is None:
            self._tags = self._read()
        return self._tags

    def __getitem__(self, key: str) -> str:
        return self._found()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())


ReadFacts = Callable[[Tx[Store], Caller, "Permission"], ResourceFacts | None]


def facts_of(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts | None:
    """Return the facts of the resource of a permission. Return None if its service does not tell them."""
    read = _reader(permission.action.partition(":")[0])
    return read(tx, caller, permission) if read is not None else None


# The number of entries of both caches is bounded, because the actions are those of `needed_permissions`.
@cache
def may_have_policies(action: str) -> bool:
    """Whether the resources of an action may have policies."""
    return action.partition(":")[0] in WITH_POLICIES


@cache
def _reader(service: str) -> ReadFacts | None:
    folder = FOLDERS.get(service, service.replace("-", ""))
    if find_spec(f"corral.services.{folder}") is None:
        return None
    module = import_module(f"corral.services.{folder}.permissions")
    found: ReadFacts | None = getattr(module, "resource_facts", None)
    return found
