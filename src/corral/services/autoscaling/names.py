"""Finds Auto Scaling groups, members and stored documents by name or ARN, and defines the page sizes of the operations."""

from __future__ import annotations

from collections.abc import Iterator

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.group import DELETING, Group, GroupMember
from corral.operations.pagination import Pagination
from corral.services.autoscaling.errors import InvalidNextToken, ValidationError, group_not_found, instance_not_in_group
from corral.store import Store
from corral.store.stored_resources import Document

SERVICE = "autoscaling"
HOOK, POLICY, SCHEDULE, NOTIFICATION = "hook", "policy", "scheduled-action", "notification"
OF_GROUPS = (HOOK, POLICY, SCHEDULE, NOTIFICATION)  # types of stored documents that belong to a group


def _invalid_limit(member: str, limit: int, smallest: int, largest: int) -> ApiError:
    return ValidationError(f"{member} must be between {smallest} and {largest}: {limit} is not valid.")


def _pages(default: int, largest: int) -> Pagination:
    return Pagination(
        InvalidNextToken,
        limit="MaxRecords",
        token="NextToken",
        next_token="NextToken",
        default=default,
        largest=largest,
        invalid_limit=_invalid_limit,
    )


PAGES = _pages(50, 100)
ACTIVITY_PAGES = _pages(100, 100)
SMALL_PAGES = _pages(50, 50)


def find_group(tx: Tx[Store], caller: Caller, name: str) -> Group:
    if name.startswith("arn:"):
        name = name.partition(":autoScalingGroupName/")[2] or name
    group = tx.store.groups.get(caller.region, name)
    if group is None:
        raise group_not_found(name)
    return group


def changeable_group(tx: Tx[Store], caller: Caller, name: str) -> Group:
    """Find a group that a request changes. Refuse a group that is being deleted."""
    group = find_group(tx, caller, name)
    if group.status == DELETING:
        raise ValidationError(f"AutoScalingGroup {group.name} is being deleted and cannot be changed.")
    return group


def find_member(tx: Tx[Store], caller: Caller, instance_id: str, group: Group | None = None) -> GroupMember:
    """Find a member by its EC2 id, in all groups or only in `group`."""
    member = tx.store.groups.member_with_ec2_id(caller.region, instance_id)
    if member is None or (group is not None and member.group != group.name):
        raise instance_not_in_group(instance_id, group.name if group is not None else None)
    return member


# Hooks, policies, scheduled actions and notifications are stored documents of a group. The key of a document is GROUP:NAME.
# A colon cannot be part of a group name, so it separates the two names.


def key_of(group: str, name: str) -> str:
    return f"{group}:{name}"


def documents_of(tx: Tx[Store], region: str, type_: str, group: str) -> Iterator[Document]:
    """Yield the documents of one type that belong to a group, sorted by name."""
    return (document for _, document in _rows_of(tx, region, type_, group))


def _rows_of(tx: Tx[Store], region: str, type_: str, group: str) -> Iterator[tuple[str, Document]]:
    return tx.store.stored.with_prefix(SERVICE, type_, region, key_of(group, ""))


def drop_documents(tx: Tx[Store], region: str, group: str) -> None:
    for type_ in OF_GROUPS:
        for key, _ in list(_rows_of(tx, region, type_, group)):
            tx.store.stored.drop(SERVICE, type_, region, key)


def document_of(tx: Tx[Store], region: str, type_: str, group: str, name: str) -> Document | None:
    return tx.store.stored.get(SERVICE, type_, region, key_of(group, name))


def put_document(tx: Tx[Store], region: str, type_: str, group: str, name: str, document: Document) -> None:
    tx.store.stored.put(SERVICE, type_, region, key_of(group, name), document, tx.now_s)


def drop_document(tx: Tx[Store], region: str, type_: str, group: str, name: str) -> bool:
    return tx.store.stored.drop(SERVICE, type_, region, key_of(group, name))
