"""Tags of ECS resources: the rules for tags, and functions that read and change the tags of a resource by its ARN."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.fleet.clusters import exists_without_row
from corral.model.pause import PAUSED_TAG
from corral.operations.tags import TagRules
from corral.services.ecs import errors
from corral.services.ecs.lookup import REVISION_REQUIRED, arn, find_slot, split_definition
from corral.services.ecs.task_queue import tags_changed
from corral.store import Store

Tag = dict[str, str]
TAG_RULES = TagRules(
    errors.InvalidParameterException,
    texts={"count": "Tags can not have more than {max} elements.", "reserved": "Tags that begin with aws: are reserved: '{key}'."},
    key="key",
    value="value",
    any_character=True,  # characters are not checked here, because aws/constraints/ has checked the pattern
    reserved_values=True,
)


class TaggedResource(Struct, frozen=True):
    tags: list[Tag]
    put: Callable[[list[Tag]], None]


def tag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = _find(tx, caller, params["resourceArn"], errors.ResourceNotFoundException)
    found.put(TAG_RULES.to_list(TAG_RULES.merge(_by_key(found.tags), _read(params["tags"]))))
    return {}


def untag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = _find(tx, caller, params["resourceArn"], errors.ResourceNotFoundException)
    found.put(TAG_RULES.to_list(TAG_RULES.remove(_by_key(found.tags), params["tagKeys"])))
    return {}


def list_tags_for_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": _find(tx, caller, params["resourceArn"], errors.InvalidParameterException).tags}


def set_reserved_tags(tx: Tx[Store], caller: Caller, resource_arn: str, tags: dict[str, str]) -> None:
    """Add tags that begin with `aws:`. Only Corral itself may set them, for example the tags of a stack's resources."""
    if tags:
        found = _find(tx, caller, resource_arn, errors.ResourceNotFoundException)
        found.put(TAG_RULES.to_list({**_by_key(found.tags), **tags}))


def check_tags(tags: list[dict[str, Any]]) -> list[Tag]:
    """Check the tags of a request and return them. A tag without a value gets an empty value."""
    return TAG_RULES.to_list(_read(tags))


def merge_tags(tags: Iterable[Tag], over: Iterable[Tag]) -> list[Tag]:
    """Merge two sets of tags. If both have the same key, the value of `over` is used."""
    return TAG_RULES.to_list({**_by_key(tags), **_by_key(over)})


def _read(tags: list[dict[str, Any]]) -> dict[str, str]:
    read = TAG_RULES.read(tags)
    if PAUSED_TAG in read:
        why = f"The tag {PAUSED_TAG} cannot be set: it is shown while a task is paused. Pass the other tags without it."
        raise errors.InvalidParameterException(why)
    return read


def _by_key(tags: Iterable[Tag]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in tags}


def task_tags(params: dict[str, Any], cluster: str, document: dict[str, Any]) -> list[Tag]:
    """The tags of a new task: tags of its task definition, tags of the request, and ECS's managed tags.

    If the task definition and the request have the same key, the value of the request is used.
    """
    propagate = params.get("propagateTags", "NONE")
    if propagate == "SERVICE":
        raise errors.InvalidParameterException(
            "propagateTags SERVICE applies to tasks of a service only; use TASK_DEFINITION or NONE."
        )
    tags = check_tags(params["tags"]) if params.get("tags") else []
    if propagate == "TASK_DEFINITION":
        tags = merge_tags(document["tags"], tags)
    if params.get("enableECSManagedTags"):
        tags = merge_tags(tags, [{"key": "aws:ecs:clusterName", "value": cluster}])
    return tags


def instance_tags(tx: Tx[Store], region: str, instance_id: str) -> list[Tag]:
    """The tags of a container instance. The own instance of a host (`container_instances.py`) has separate tags in each region."""
    document = tx.store.stored.get("ecs", "container-instance", region, instance_id)
    return document["tags"] if document else []


def _find(tx: Tx[Store], caller: Caller, resource_arn: str, missing: type[ApiError]) -> TaggedResource:
    """Find a resource by its ARN. Only the exact ARN is accepted, because policies are checked for the ARN in the request."""
    parts = resource_arn.split(":", 5)
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "ecs":
        raise errors.InvalidParameterException(f"Invalid resource ARN: {resource_arn}")
    kind, _, name = parts[5].partition("/")
    finder = FINDERS.get(kind)
    if finder is None:
        raise errors.InvalidParameterException(
            f"Corral does not serve tags for this kind of resource: {resource_arn}. Use one of these kinds: {', '.join(FINDERS)}."
        )
    is_here = resource_arn == arn(caller.account, caller.region, f"{kind}/{name}")
    found = finder(tx, caller.region, name) if is_here else None
    if found is None:
        if kind == "cluster":
            raise errors.cluster_not_found()
        raise missing(f"The specified {kind.replace('-', ' ')} was not found: {resource_arn}")
    return found


def _cluster(tx: Tx[Store], region: str, name: str) -> TaggedResource | None:
    found = tx.store.clusters.get(region, name) or (("ACTIVE", {}) if exists_without_row(tx, region, name) else None)
    if found is None or found[0] != "ACTIVE":
        return None
    details = found[1]
    return TaggedResource(
        details.get("tags", []), lambda tags: tx.store.clusters.put(region, name, "ACTIVE", {**details, "tags": tags})
    )


def _definition(tx: Tx[Store], region: str, name: str) -> TaggedResource | None:
    family, revision = split_definition(name)
    if revision is None:
        raise errors.ClientException(REVISION_REQUIRED)
    found = tx.store.definitions.get(region, family, revision)
    if found is None or name != f"{family}:{revision}":
        return None
    _, status, document = found
    return TaggedResource(
        document["tags"], lambda tags: tx.store.definitions.change(region, family, revision, status, {**document, "tags": tags})
    )


def _task(tx: Tx[Store], region: str, name: str) -> TaggedResource | None:
    cluster, _, task_id = name.rpartition("/")
    task = tx.store.tasks.get(task_id)
    if task is None or (task.region, task.cluster) != (region, cluster):
        return None

    before: list[Tag] = task.details.get("tags", [])

    def put(tags: list[Tag]) -> None:
        tags_changed(tx, tx.store.tasks.set_details(task, {**task.details, "tags": tags}), before)

    return TaggedResource(before, put)


def _service(tx: Tx[Store], region: str, name: str) -> TaggedResource | None:
    cluster, _, service_name = name.rpartition("/")
    service = tx.store.ecs_services.get(region, cluster, service_name)
    if service is None or service.status == "INACTIVE":
        return None

    def put(tags: list[Tag]) -> None:
        tx.store.ecs_services.put(service.but(details={**service.details, "tags": tags}))

    return TaggedResource(service.details["tags"], put)


def _instance(tx: Tx[Store], region: str, name: str) -> TaggedResource | None:
    cluster, _, instance_id = name.rpartition("/")
    if not cluster or find_slot(tx, region, cluster, instance_id) is None:
        return None

    def put(tags: list[Tag]) -> None:
        tx.store.stored.put("ecs", "container-instance", region, instance_id, {"tags": tags}, tx.now_s)

    return TaggedResource(instance_tags(tx, region, instance_id), put)


def _provider(tx: Tx[Store], region: str, name: str) -> TaggedResource | None:
    document = tx.store.stored.get("ecs", "capacity-provider", region, name)
    if document is None:
        return None

    def put(tags: list[Tag]) -> None:
        tx.store.stored.change("ecs", "capacity-provider", region, name, {**document, "tags": tags})

    return TaggedResource(document["tags"], put)


FINDERS: dict[str, Callable[[Tx[Store], str, str], TaggedResource | None]] = {
    "cluster": _cluster,
    "task-definition": _definition,
    "task": _task,
    "service": _service,
    "container-instance": _instance,
    "capacity-provider": _provider,
}
