"""Names of AWS Batch: ARNs, the kinds of resources, and the rules that several operations share.

The kind of a resource is a part of its ARN: `job-queue` in `arn:aws:batch:REGION:ACCOUNT:job-queue/NAME`. Job queues, compute
environments, scheduling policies and consumable resources are stored as JSON documents. The store finds a document by kind, region
and name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.pagination import Pagination
from corral.operations.tags import TagRules
from corral.services.batch.errors import ClientException, refused
from corral.store import Store
from corral.store.stored_resources import Document

SERVICE = "batch"
QUEUE, ENVIRONMENT, DEFINITION, JOB = "job-queue", "compute-environment", "job-definition", "job"
POLICY, RESOURCE = "scheduling-policy", "consumable-resource"

ENABLED, DISABLED = "ENABLED", "DISABLED"
CREATING, UPDATING, DELETING, VALID, INVALID = "CREATING", "UPDATING", "DELETING", "VALID", "INVALID"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
NAME_RULE = "a name must have 1 to 128 letters, digits, hyphens and underscores, and begin with a letter or digit."
PAGES = Pagination(ClientException, default=100, largest=100)
TAGS = TagRules(ClientException)


def arn(account: str, region: str, resource: str) -> str:
    """Return the ARN of a resource such as `job-queue/NAME`, `job/ID` or `job-definition/NAME:REVISION`."""
    return f"arn:aws:batch:{region}:{account}:{resource}"


def queue_key(region: str, name: str) -> str:
    """Return the key of the reconciler of a job queue. Mark it after each change of the queue, its policy or its environments."""
    return f"job-queue:{region}/{name}"


def short(kind: str, region: str, given: str) -> str:
    """Return the name in a name or an ARN. Return "" for an ARN of another kind or another region."""
    if not given.startswith("arn:"):
        return given
    parts = given.split(":", 5)
    if len(parts) != 6 or parts[2:4] != [SERVICE, region]:
        return ""
    found, _, name = parts[5].partition("/")
    return name if found == kind else ""


def check_name(member: str, name: str) -> str:
    """Return the name of a new resource. Raise an error if it breaks the rule for names."""
    if not NAME.fullmatch(name):
        raise refused(member, name, NAME_RULE)
    return name


def milliseconds(at_s: float) -> int:
    """Return a time as Batch's responses show it: in milliseconds since 1970."""
    return int(at_s * 1000)


def shown(document: Document) -> Document:
    """Return a document as responses show it: without the members that begin with "_"."""
    return {member: value for member, value in document.items() if member[0] != "_"}


def listed(
    tx: Tx[Store], caller: Caller, kind: str, chosen: Callable[[Document], bool] = lambda document: True
) -> Callable[[str, int], list[tuple[str, Document]]]:
    """Return a function that reads the stored documents of one kind in pages. It skips documents for which `chosen` is False."""

    def candidates(after: str, limit: int) -> list[tuple[str, Document]]:
        found: list[tuple[str, Document]] = []
        for name, document in tx.store.stored.with_prefix(SERVICE, kind, caller.region, "", after):
            if len(found) == limit:
                break
            if chosen(document):
                found.append((name, document))
        return found

    return candidates


def checked_tags(params: dict[str, Any]) -> dict[str, str]:
    """Return the tags of a request that creates a resource. Raise an error if one of them breaks a rule."""
    tags: dict[str, str] = params.get("tags") or {}
    TAGS.check(tags)
    return tags
