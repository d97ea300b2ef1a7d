"""Names and documents of Application Auto Scaling: resource ids, and the stored documents of a scalable target.

A target is a stored document with the resource id as its key. Its policies and scheduled actions are stored documents with the key
RESOURCE|NAME. A resource id contains no bar, so the first bar of a key ends the resource id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.ecs_service import ACTIVE, EcsService
from corral.model.group import scaling_key
from corral.operations.pagination import Pagination
from corral.operations.stored_resources import Params
from corral.services.applicationautoscaling.errors import InvalidNextTokenException, ValidationException, not_found
from corral.store import Store
from corral.store.stored_resources import Document

SERVICE = "application-autoscaling"
TARGET, POLICY, SCHEDULE = "target", "policy", "scheduled-action"
NAMESPACE, DIMENSION = "ecs", "ecs:service:DesiredCount"
PAGES = Pagination(
    InvalidNextTokenException,
    limit="MaxResults",
    token="NextToken",
    next_token="NextToken",
    default=50,
    largest=50,
    invalid_limit=lambda member, limit, smallest, largest: ValidationException(
        f"{member} must be between {smallest} and {largest}: {limit} is not valid."
    ),
)


def check_place(params: Mapping[str, Any]) -> None:
    """Refuse everything that is not the desired count of an ECS service."""
    namespace, dimension = params["ServiceNamespace"], params.get("ScalableDimension", DIMENSION)
    if namespace != NAMESPACE or dimension != DIMENSION:
        given = namespace if namespace != NAMESPACE else dimension
        raise ValidationException(
            f"Corral scales ECS services only: {given} is not served. Use the ServiceNamespace {NAMESPACE} and the "
            f"ScalableDimension {DIMENSION}."
        )


def is_listed(params: Params) -> bool:
    """Whether the list that a request asks for can have elements: only ECS services have scalable targets."""
    resources = params.get("ResourceId") or params.get("ResourceIds")
    if "ScalableDimension" in params and not resources:
        raise ValidationException("If you specify a scalable dimension, you must also specify a resource ID.")
    return bool(params["ServiceNamespace"] == NAMESPACE and params.get("ScalableDimension", DIMENSION) == DIMENSION)


def resource_of(params: Params) -> str:
    """Return the resource id of a request: service/CLUSTER/SERVICE."""
    check_place(params)
    resource: str = params["ResourceId"]
    parts = resource.split("/")
    if len(parts) != 3 or parts[0] != "service" or not all(parts) or "|" in resource:
        raise ValidationException(f"The ResourceId {resource} is not valid: it must have the form service/CLUSTER/SERVICE.")
    return resource


def scaling_target(resource: str) -> str:
    """Return what the policies of a target scale, as `store/scaling_requests.py` names it."""
    return f"{NAMESPACE}:{resource}"


def service_of(tx: Tx[Store], region: str, resource: str) -> EcsService | None:
    _, cluster, name = resource.split("/")
    service = tx.store.ecs_services.get(region, cluster, name)
    return service if service is not None and service.status == ACTIVE else None


def find_target(tx: Tx[Store], region: str, resource: str) -> Document | None:
    return tx.store.stored.get(SERVICE, TARGET, region, resource)


def registered(tx: Tx[Store], caller: Caller, params: Params) -> Document:
    """Return the target that a request names. Raise an error if it is not registered."""
    resource = resource_of(params)
    target = find_target(tx, caller.region, resource)
    if target is None:
        raise not_found("scalable target registered", resource, DIMENSION)
    return target


def put_target(tx: Tx[Store], region: str, target: Document, owner: str = "") -> None:
    """Store a target, and apply its policies again, because its limits or its suspended state may have changed.

    A target that exists keeps its owner.
    """
    tx.store.stored.put(SERVICE, TARGET, region, target["ResourceId"], target, tx.now_s, owner)
    tx.mark(scaling_key(region, scaling_target(target["ResourceId"])))


def documents_of(tx: Tx[Store], region: str, type_: str, resource: str) -> Iterator[Document]:
    """Yield the policies or the scheduled actions of a target, sorted by name."""
    return (document for _, document in tx.store.stored.with_prefix(SERVICE, type_, region, f"{resource}|"))


def key_of(resource: str, name: str) -> str:
    return f"{resource}|{name}"


def listed(
    tx: Tx[Store], caller: Caller, type_: str, chosen: Callable[[Document], bool]
) -> Callable[[str, int], list[tuple[str, Document]]]:
    """Return a function that reads the documents of one type in pages."""

    def candidates(after: str, limit: int) -> list[tuple[str, Document]]:
        found: list[tuple[str, Document]] = []
        for key, document in tx.store.stored.with_prefix(SERVICE, type_, caller.region, "", after):
            if len(found) == limit:
                break
            if chosen(document):
                found.append((key, document))
        return found

    return candidates


def shown(document: Document) -> Document:
    return {member: value for member, value in document.items() if member[0] != "_"}
