"""Tags of AWS Batch's resources: the operations that read and change the tags of a resource by its ARN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.job import JobKind
from corral.operations.stored_resources import Params
from corral.operations.tags import Tags
from corral.services.batch.errors import ClientException, missing
from corral.services.batch.job_definitions import split_definition
from corral.services.batch.names import DEFINITION, ENVIRONMENT, JOB, POLICY, QUEUE, RESOURCE, SERVICE, TAGS, arn
from corral.store import Store


class TaggedByBatch(Struct, frozen=True):
    tags: Tags
    put: Callable[[Tags], None]


def tag_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found = _find(tx, caller, params["resourceArn"])
    TAGS.check(params["tags"])
    found.put(TAGS.merge(found.tags, params["tags"]))
    return {}


def untag_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found = _find(tx, caller, params["resourceArn"])
    found.put(TAGS.remove(found.tags, params["tagKeys"]))
    return {}


def list_tags_for_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return {"tags": _find(tx, caller, params["resourceArn"]).tags}


def set_reserved_tags(tx: Tx[Store], caller: Caller, resource_arn: str, tags: Tags) -> None:
    """Add tags that begin with `aws:`. Only Corral itself may set them, for example the tags of a stack's resources."""
    if tags:
        found = _find(tx, caller, resource_arn)
        found.put({**found.tags, **tags})


def _find(tx: Tx[Store], caller: Caller, resource_arn: str) -> TaggedByBatch:
    """Find a resource by its ARN.

    No other spelling of the ARN is accepted, because Corral checks the caller's permissions for the ARN as it is in the request.
    """
    parts = resource_arn.split(":", 5)
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != SERVICE:
        raise ClientException(f"resourceArn {resource_arn!r} is not valid: pass the ARN of a resource of AWS Batch.")
    kind, _, name = parts[5].partition("/")
    finder = FINDERS.get(kind)
    if finder is None:
        raise ClientException(
            f"Corral does not serve tags for this kind of resource: {resource_arn}. Use one of these kinds: {', '.join(FINDERS)}."
        )
    is_here = resource_arn == arn(caller.account, caller.region, f"{kind}/{name}")
    found = finder(tx, caller.region, name) if is_here else None
    if found is None:
        raise missing(kind, resource_arn)
    return found


def _stored(kind: str) -> Callable[[Tx[Store], str, str], TaggedByBatch | None]:
    """Return the finder for a kind of resource that is a stored document with its tags in the member `tags`."""

    def find(tx: Tx[Store], region: str, name: str) -> TaggedByBatch | None:
        document = tx.store.stored.get(SERVICE, kind, region, name)
        if document is None:
            return None
        return TaggedByBatch(document.get("tags", {}), lambda tags: _put(tx, kind, region, name, {**document, "tags": tags}))

    return find


def _put(tx: Tx[Store], kind: str, region: str, name: str, document: dict[str, Any]) -> None:
    tx.store.stored.change(SERVICE, kind, region, name, document)


def _definition(tx: Tx[Store], region: str, name: str) -> TaggedByBatch | None:
    family, revision = split_definition(region, name)
    found = tx.store.job_definitions.get(region, family, revision) if revision is not None else None
    if found is None or revision is None or name != f"{family}:{revision}":
        return None
    _, status, document = found
    return TaggedByBatch(
        document.get("tags", {}),
        lambda tags: tx.store.job_definitions.change(region, family, revision, status, {**document, "tags": tags}),
    )


def _job(tx: Tx[Store], region: str, name: str) -> TaggedByBatch | None:
    job = tx.store.jobs.get(name)
    if job is None or job.region != region:
        return None
    if job.kind in (JobKind.CHILD, JobKind.NODE):
        raise ClientException(
            f"The job {name} belongs to another job and has no tags of its own: use the ARN of the job {job.parent_id}."
        )
    return TaggedByBatch(dict(job.spec.tags), lambda tags: tx.store.jobs.set_tags(job, tags))


FINDERS: dict[str, Callable[[Tx[Store], str, str], TaggedByBatch | None]] = {
    ENVIRONMENT: _stored(ENVIRONMENT),
    JOB: _job,
    DEFINITION: _definition,
    QUEUE: _stored(QUEUE),
    POLICY: _stored(POLICY),
    RESOURCE: _stored(RESOURCE),
}
