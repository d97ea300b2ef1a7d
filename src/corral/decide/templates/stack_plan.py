"""Plans stack operations: which resources are next, what an update or a rollback does with a resource, and how operations end."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from corral.decide.templates import TemplateError
from corral.model.durations import HOUR_S, MINUTE_S
from corral.model.numbers import whole_number
from corral.model.stack import ResourceVersion, StackResource, StackStatus

S = StackStatus
DURATION = re.compile(r"PT(?=\d)(?:(\d{1,4})H)?(?:(\d{1,6})M)?(?:(\d{1,7})S)?", re.ASCII)
SIGNALS_TIMEOUT_S = 5.0 * MINUTE_S  # the default of CreationPolicy
STEADY = frozenset({S.CREATE_COMPLETE, S.UPDATE_COMPLETE, S.UPDATE_ROLLBACK_COMPLETE})
CAN_BE_UPDATED = STEADY | {S.UPDATE_FAILED}
CAN_BE_DELETED = frozenset(
    {
        S.REVIEW_IN_PROGRESS, S.CREATE_IN_PROGRESS, S.CREATE_COMPLETE, S.CREATE_FAILED, S.ROLLBACK_COMPLETE, S.ROLLBACK_FAILED,
        S.UPDATE_COMPLETE, S.UPDATE_FAILED, S.UPDATE_ROLLBACK_COMPLETE, S.UPDATE_ROLLBACK_FAILED, S.DELETE_FAILED,
    }
)  # fmt: skip
# The status of a stack while resources are deleted → (the next status if nothing failed, the next status if a deletion failed). A
# failed cleanup does not fail the update: CloudFormation gives the resource up.
DELETING = {
    S.ROLLBACK_IN_PROGRESS: (S.ROLLBACK_COMPLETE, S.ROLLBACK_FAILED),
    S.DELETE_IN_PROGRESS: (S.DELETE_COMPLETE, S.DELETE_FAILED),
    S.UPDATE_COMPLETE_CLEANUP_IN_PROGRESS: (S.UPDATE_COMPLETE, S.UPDATE_COMPLETE),
    S.UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS: (S.UPDATE_ROLLBACK_COMPLETE, S.UPDATE_ROLLBACK_COMPLETE),
}
CLEANUPS = frozenset({S.UPDATE_COMPLETE_CLEANUP_IN_PROGRESS, S.UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS})
# The allowed changes of a stack's status. The reconciler of stacks and the handlers of requests make no others. Tests check this.
MOVES: dict[StackStatus, frozenset[StackStatus]] = {
    S.REVIEW_IN_PROGRESS: frozenset({S.CREATE_IN_PROGRESS, S.DELETE_IN_PROGRESS}),
    S.CREATE_IN_PROGRESS: frozenset({S.CREATE_COMPLETE, S.CREATE_FAILED, S.ROLLBACK_IN_PROGRESS, S.DELETE_IN_PROGRESS}),
    S.CREATE_COMPLETE: frozenset({S.UPDATE_IN_PROGRESS, S.DELETE_IN_PROGRESS}),
    S.CREATE_FAILED: frozenset({S.UPDATE_IN_PROGRESS, S.ROLLBACK_IN_PROGRESS, S.DELETE_IN_PROGRESS}),
    S.ROLLBACK_IN_PROGRESS: frozenset({S.ROLLBACK_COMPLETE, S.ROLLBACK_FAILED}),
    S.ROLLBACK_COMPLETE: frozenset({S.DELETE_IN_PROGRESS}),
    S.ROLLBACK_FAILED: frozenset({S.DELETE_IN_PROGRESS}),
    S.UPDATE_IN_PROGRESS: frozenset(
        {S.UPDATE_COMPLETE_CLEANUP_IN_PROGRESS, S.UPDATE_FAILED, S.UPDATE_ROLLBACK_IN_PROGRESS, S.ROLLBACK_IN_PROGRESS}
    ),
    # The first status is the normal end of a cleanup. The others are for nested stacks: the parent stack updates its nested stack
    # again, rolls back, or is deleted.
    S.UPDATE_COMPLETE_CLEANUP_IN_PROGRESS: frozenset(
        {S.UPDATE_COMPLETE, S.UPDATE_IN_PROGRESS, S.UPDATE_ROLLBACK_IN_PROGRESS, S.DELETE_IN_PROGRESS}
    ),
    S.UPDATE_COMPLETE: frozenset({S.UPDATE_IN_PROGRESS, S.DELETE_IN_PROGRESS}),
    S.UPDATE_FAILED: frozenset({S.UPDATE_IN_PROGRESS, S.UPDATE_ROLLBACK_IN_PROGRESS, S.DELETE_IN_PROGRESS}),
    S.UPDATE_ROLLBACK_IN_PROGRESS: frozenset({S.UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS, S.UPDATE_ROLLBACK_FAILED}),
    S.UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS: frozenset(
        {S.UPDATE_ROLLBACK_COMPLETE, S.UPDATE_IN_PROGRESS, S.DELETE_IN_PROGRESS}
    ),
    S.UPDATE_ROLLBACK_COMPLETE: frozenset({S.UPDATE_IN_PROGRESS, S.DELETE_IN_PROGRESS}),
    S.UPDATE_ROLLBACK_FAILED: frozenset({S.UPDATE_ROLLBACK_IN_PROGRESS, S.DELETE_IN_PROGRESS}),
    S.DELETE_IN_PROGRESS: frozenset({S.DELETE_COMPLETE, S.DELETE_FAILED}),
    S.DELETE_COMPLETE: frozenset(),
    S.DELETE_FAILED: frozenset({S.DELETE_IN_PROGRESS}),
}


class Difference(Enum):
    """The action of an update on a resource."""

    NOTHING = "nothing"
    RECORD = "record"  # only the row is written: the changed attributes have no effect until later, for example DeletionPolicy
    METADATA = "metadata"  # only the metadata changed: it is stored with an event, and the resource stays as it is
    UPDATE = "update"
    REPLACE = "replace"


def difference(old: ResourceVersion, new: ResourceVersion, replacing: Callable[[], Collection[str]]) -> Difference:
    """Compare a resource with its declaration in the new template. `replacing` returns the changes that force a replacement."""
    if old.properties != new.properties:
        return Difference.REPLACE if replacing() else Difference.UPDATE
    if old.revision != new.revision:
        return Difference.UPDATE
    if old.metadata != new.metadata:
        return Difference.METADATA
    recorded = old.but(physical_id=None, attributes={}) != new.but(physical_id=None, attributes={})
    return Difference.RECORD if recorded else Difference.NOTHING


def next_forward(dependencies: Mapping[str, Collection[str]], done: set[str], busy: Collection[str], most: int) -> list[str]:
    """Return resources to create or update now: those whose dependencies are done, in the order of the template."""
    found: list[str] = []
    for logical_id, needed in dependencies.items():
        if logical_id not in done and logical_id not in busy and done.issuperset(needed):
            found.append(logical_id)
            if len(found) == most:
                break
    return found


def next_deleted(
    resources: Mapping[str, StackResource], remaining: Collection[str], busy: Collection[str], failed: Collection[str], most: int
) -> list[str]:
    """Return the keys (`StackResource.key`) of resources to delete now. Resources that depend on a resource are deleted before it.

    `remaining` are the keys of all resources that must be deleted and still exist, also those that are `busy` or have `failed`.
    After updates of the template, two resources can depend on each other: A on B in one version, and B on A in another version. If
    only such resources remain, they are deleted in any order.
    """
    needed: dict[str, int] = {}  # logical id → how many remaining resources depend on it
    for key in remaining:
        for dependency in resources[key].version.dependencies:
            needed[dependency] = needed.get(dependency, 0) + 1
    waiting = [key for key in remaining if key not in busy and key not in failed]
    free = [key for key in waiting if not needed.get(resources[key].logical_id)]
    if not free and not busy and not failed:
        free = waiting
    return free[:most]


class Restoration(Enum):
    """The action on a resource when an update is rolled back."""

    NOTHING = "nothing"
    DELETE = "delete"  # the update has created it
    RECORD = "record"  # only the row is restored: the update has not changed the resource itself
    UPDATE = "update"  # restore the previous properties in place
    SWITCH = "switch"  # go back to the resource that was replaced, which still exists


def restoration(resource: StackResource, is_replaced: Callable[[ResourceVersion, ResourceVersion], bool]) -> Restoration:
    """Return how to roll a resource back. `is_replaced` returns whether two versions are two resources."""
    if resource.is_new:
        return Restoration.DELETE
    before, now = resource.before, resource.version
    if before is None:
        return Restoration.NOTHING
    if is_replaced(before, now):
        return Restoration.SWITCH
    same = (now.properties, now.revision) == (before.properties, before.revision)
    return Restoration.RECORD if same else Restoration.UPDATE


def is_retained(resource: StackResource, *, on_create: bool, except_on_create: bool = False) -> bool:
    """Whether a policy keeps the resource when its stack deletes it.

    `on_create` is True if the operation that created the resource is rolled back. With `except_on_create`, which is a parameter of
    the operation, Retain means RetainExceptOnCreate. A leftover is a resource whose logical id now belongs to another resource.
    If the leftover is the old resource of a replacement, its UpdateReplacePolicy decides. If it is the new resource of a
    replacement that was rolled back, it is not retained.
    """
    if resource.leftover:
        return not resource.is_new and resource.version.update_replace_policy == "Retain"
    policy = resource.version.deletion_policy
    if on_create and except_on_create:
        return False
    return policy == "Retain" or (policy == "RetainExceptOnCreate" and not on_create)


def failed_resources(created: Iterable[str], updated: Iterable[str], deleted: Iterable[str] = ()) -> str:
    """Return CloudFormation's text about failed resources. The names are sorted, so that a restart changes no text."""
    groups = (("create", created), ("update", updated), ("delete", deleted))
    found = [(verb, sorted(names)) for verb, names in groups]
    return "".join(f"The following resource(s) failed to {verb}: [{', '.join(names)}]. " for verb, names in found if names)


class SignalRule(Enum):
    ENOUGH = "enough"
    WAITING = "waiting"
    FAILED = "failed"


class SignalPolicy(Struct, frozen=True):
    """The signals that a resource needs, from its CreationPolicy."""

    count: int = 0
    percent: int = 100
    timeout_s: float = SIGNALS_TIMEOUT_S

    @property
    def needed(self) -> int:
        return -(-self.count * self.percent // 100)  # rounded up


def signal_policy(creation_policy: Mapping[str, Any]) -> SignalPolicy:
    """Read a CreationPolicy. Raise TemplateError if it is not valid. A resource without ResourceSignal needs no signals."""
    if "ResourceSignal" not in creation_policy:
        return SignalPolicy()
    signal, group = (creation_policy.get(name) or {} for name in ("ResourceSignal", "AutoScalingCreationPolicy"))
    for name, value in (("ResourceSignal", signal), ("AutoScalingCreationPolicy", group)):
        if not isinstance(value, Mapping):
            raise TemplateError(f"Invalid CreationPolicy: {name} must be an object.")
    count, percent = signal.get("Count", 1), group.get("MinSuccessfulInstancesPercent", 100)
    counted, counted_percent = whole_number(str(count)), whole_number(str(percent), 100)
    if counted is None:
        raise TemplateError(f"Invalid CreationPolicy: the Count of ResourceSignal must be a whole number: {count}")
    if counted_percent is None:
        raise TemplateError(f"Invalid CreationPolicy: MinSuccessfulInstancesPercent must be a number from 0 to 100: {percent}")
    timeout_s = SIGNALS_TIMEOUT_S
    if "Timeout" in signal:
        given_s = duration_s(str(signal["Timeout"]))
        if given_s is None:
            raise TemplateError(
                "Invalid CreationPolicy: the Timeout of ResourceSignal must be an ISO 8601 duration such as PT15M: "
                f"{signal['Timeout']}"
            )
        timeout_s = given_s or SIGNALS_TIMEOUT_S
    return SignalPolicy(counted, counted_percent, timeout_s)


def count_signals(signals: Mapping[str, str], count: int, percent: int = 100, *, expired: bool = False) -> tuple[SignalRule, str]:
    """Decide whether a resource has enough signals. Also return why it has failed, in CloudFormation's words, or why it waits."""
    successes = sum(status == "SUCCESS" for status in signals.values())
    failures = len(signals) - successes
    needed = -(-count * percent // 100)  # rounded up
    if successes >= needed:
        return SignalRule.ENOUGH, ""
    if failures > count - needed:
        text = f"Received {failures} FAILURE signal(s) out of {count}."
        return SignalRule.FAILED, f"{text} Unable to satisfy {percent}% MinSuccessfulInstancesPercent requirement"
    if expired:
        if successes == failures == 0:
            return SignalRule.FAILED, f"Failed to receive {needed} resource signal(s) within the specified duration"
        text = f"Received {successes} SUCCESS signal(s) out of {count}."
        return SignalRule.FAILED, f"{text} Unable to satisfy {percent}% MinSuccessfulInstancesPercent requirement"
    return SignalRule.WAITING, f"Received {successes} of {needed} resource signal(s)."


def duration_s(text: str) -> float | None:
    """Return the seconds of an ISO 8601 duration such as PT1H30M, or None if it has another form."""
    match = DURATION.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(hours * HOUR_S + minutes * MINUTE_S + seconds)


def timed_out(started_at_s: float, timeout_minutes: int | None, now_s: float) -> bool:
    return timeout_minutes is not None and now_s >= started_at_s + timeout_minutes * MINUTE_S
