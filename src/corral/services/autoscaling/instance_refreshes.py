"""Operations on instance refreshes: start, cancel, roll back, describe. The reconciler `group` replaces the instances."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.scaling.group_capacity import COUNTED
from corral.decide.scaling.instance_refresh import (
    ACTIVE,
    CANCELLED,
    CANCELLING,
    PENDING,
    ROLLING_BACK,
    SUCCESSFUL,
    percentage_complete,
)
from corral.model.group import Group, GroupMember, InstanceRefresh, LifecycleState
from corral.operations.stored_resources import Params
from corral.services.autoscaling import errors
from corral.services.autoscaling.activities import SHOWN_S, why_waiting
from corral.services.autoscaling.launch_sources import SOURCES, checked_sources, current_source
from corral.services.autoscaling.names import PAGES, changeable_group, find_group
from corral.store import Store

ROLLING = "Rolling"
ONGOING_READ = 20  # `_reason` reads at most this many activities in progress


def start_instance_refresh(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    if params.get("Strategy", ROLLING) != ROLLING:
        raise errors.ValidationError(
            f"The strategy {params['Strategy']} is not supported: instances have no root volume. Use {ROLLING}."
        )
    if tx.store.groups.active_refresh(group.region, group.name) is not None:
        raise errors.InstanceRefreshInProgressFault(
            "An Instance Refresh is already in progress and blocks the execution of this Instance Refresh."
        )
    wishes = _checked(group, params.get("Preferences", {}))
    configuration: dict[str, Any] = {}
    if params.get("DesiredConfiguration"):
        configuration = checked_sources(tx, caller, params["DesiredConfiguration"])
    own = {member: group.settings[member] for member in SOURCES if member in group.settings}
    if wishes.get("AutoRollback"):
        _check_reversible(configuration, own)
    members = [
        member
        for member in tx.store.groups.members(group.region, group.name)
        if member.state in COUNTED or member.state is LifecycleState.STANDBY
    ]
    if wishes.get("SkipMatching"):
        wanted = current_source(tx, group.region, configuration or own)
        members = [member for member in members if not matches_source(member, wanted, configuration or own)]
    tx.store.groups.drop_refreshes(group.region, group.name, tx.now_s - SHOWN_S)
    refresh = InstanceRefresh(
        id=tx.ids.uuid(),
        region=group.region,
        group=group.name,
        status=PENDING,
        started_at_s=tx.now_s,
        total=len(members),
        remaining=tuple(member.instance_id for member in members),
        preferences=wishes,
        configuration=configuration,
        previous=own,
    )
    tx.store.groups.put_refresh(refresh)
    tx.store.groups.put(group.but(failures=0, retry_at_s=None))
    tx.mark(group.key)
    return {"InstanceRefreshId": refresh.id}


def _checked(group: Group, wishes: Params) -> dict[str, Any]:
    """Check the preferences of a request. Take missing percentages from the group's InstanceMaintenancePolicy."""
    policy = group.settings.get("InstanceMaintenancePolicy", {})
    found = {
        **{member: policy[member] for member in ("MinHealthyPercentage", "MaxHealthyPercentage") if policy.get(member, -1) >= 0},
        **wishes,
    }
    least, most = found.get("MinHealthyPercentage", 90), found.get("MaxHealthyPercentage", 100)
    if "MaxHealthyPercentage" in wishes and "MinHealthyPercentage" not in wishes:
        raise errors.ValidationError("MaxHealthyPercentage requires MinHealthyPercentage.")
    if most - least > 100:
        raise errors.ValidationError("The difference between MaxHealthyPercentage and MinHealthyPercentage must not exceed 100.")
    points = found.get("CheckpointPercentages", [])
    if points != sorted(set(points)):
        raise errors.ValidationError("CheckpointPercentages must be unique and in ascending order.")
    if "CheckpointDelay" in found and not points:
        raise errors.ValidationError("CheckpointDelay requires CheckpointPercentages.")
    return found


def matches_source(member: GroupMember, wanted: Any, settings: dict[str, Any]) -> bool:
    """Return whether an instance already has the wanted launch source, version and type, so that SkipMatching skips it."""
    if member.source != wanted:
        return False
    overrides = settings.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", ())
    return not overrides or member.type in [each.get("InstanceType") for each in overrides]


def cancel_instance_refresh(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Cancel a refresh. New instances stay. By default, replacements in progress are completed first."""
    group, refresh = _active(tx, params, caller, "cancel")
    if params.get("WaitForTransitioningInstances", True):
        refresh = refresh.but(status=CANCELLING, reason="Cancelled by a user request.")
    else:
        refresh = refresh.but(status=CANCELLED, reason="Cancelled by a user request.", ended_at_s=tx.now_s)
    tx.store.groups.put_refresh(refresh)
    tx.mark(group.key)
    return {"InstanceRefreshId": refresh.id}


def rollback_instance_refresh(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Roll back a refresh: replace its new instances by instances of the previous launch source."""
    group, refresh = _active(tx, params, caller, "roll back")
    _check_reversible(refresh.configuration, refresh.previous)
    if refresh.status != ROLLING_BACK:
        tx.store.groups.put_refresh(rolled_back(tx, refresh, "Rolled back by a user request."))
    tx.mark(group.key)
    return {"InstanceRefreshId": refresh.id}


def rolled_back(tx: Tx[Store], refresh: InstanceRefresh, reason: str) -> InstanceRefresh:
    """Return the refresh as a rollback, which replaces the instances that the refresh has launched."""
    wanted = current_source(tx, refresh.region, refresh.configuration)
    new = [
        member.instance_id
        for member in tx.store.groups.members(refresh.region, refresh.group)
        if member.state in COUNTED and member.source == wanted and member.created_at_s >= refresh.started_at_s
    ]
    details = {
        "RollbackReason": reason,
        "RollbackStartTime": tx.now_s,
        "PercentageCompleteOnRollback": percentage_complete(refresh),
        "InstancesToUpdateOnRollback": len(refresh.remaining),
    }
    wishes = {member: value for member, value in refresh.preferences.items() if not member.startswith("Checkpoint")}
    return refresh.but(
        status=ROLLING_BACK, reason=reason, total=len(new), remaining=tuple(new), rollback=details, preferences=wishes,
        checkpoints_passed=0, resumes_at_s=None, blocked_since_s=None,
    )  # fmt: skip


def _check_reversible(configuration: dict[str, Any], previous: dict[str, Any]) -> None:
    if not configuration:
        raise errors.IrreversibleInstanceRefreshFault(
            "The instance refresh has no desired configuration, so it cannot be rolled back."
        )
    template = previous.get("LaunchTemplate") or previous.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get(
        "LaunchTemplateSpecification", {}
    )
    if template.get("Version", "$Default" if template else "1").startswith("$"):
        raise errors.IrreversibleInstanceRefreshFault(
            "The group uses $Latest or $Default of its launch template, so the instance refresh cannot be rolled back: use a "
            "version number."
        )


def _active(tx: Tx[Store], params: Params, caller: Caller, what: str) -> tuple[Group, InstanceRefresh]:
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    refresh = tx.store.groups.active_refresh(group.region, group.name)
    if refresh is None or refresh.status == CANCELLING:
        raise errors.ActiveInstanceRefreshNotFoundFault(
            f"No in progress or pending Instance Refresh found to {what} for {group.name}."
        )
    return group, refresh


def describe_instance_refreshes(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, ids = find_group(tx, caller, params["AutoScalingGroupName"]), params.get("InstanceRefreshIds")
    every = tx.store.groups.refreshes(group.region, group.name)
    chosen = [refresh for refresh in every if not ids or refresh.id in ids]

    def candidates(after: str, limit: int) -> list[tuple[str, InstanceRefresh]]:
        ids = [refresh.id for refresh in chosen]
        found = chosen[ids.index(after) + 1 :] if after in ids else chosen
        return [(refresh.id, refresh) for refresh in found][: None if limit < 0 else limit]

    found, more = PAGES.page(params, candidates)
    return {"InstanceRefreshes": [_view(refresh, _reason(tx, refresh)) for refresh in found], **more}


def _reason(tx: Tx[Store], refresh: InstanceRefresh) -> str:
    """Return the reason of a refresh's status. If an active refresh has none, return why an activity of its group waits."""
    if refresh.reason or refresh.status not in ACTIVE:
        return refresh.reason
    ongoing = tx.store.groups.activities(refresh.region, refresh.group, ended=False, limit=ONGOING_READ)
    return next((why for _, activity in ongoing if (why := why_waiting(tx, activity))), "")


def _view(refresh: InstanceRefresh, reason: str) -> dict[str, Any]:
    done = refresh.status == SUCCESSFUL
    view: dict[str, Any] = {
        "InstanceRefreshId": refresh.id,
        "AutoScalingGroupName": refresh.group,
        "Status": refresh.status,
        "StartTime": refresh.started_at_s,
        "PercentageComplete": percentage_complete(refresh),
        "InstancesToUpdate": 0 if done else len(refresh.remaining),
        "Preferences": refresh.preferences,
        "Strategy": ROLLING,
    }
    if refresh.ended_at_s is not None:
        view["EndTime"] = refresh.ended_at_s
    if reason:
        view["StatusReason"] = reason
    if refresh.configuration:
        view["DesiredConfiguration"] = refresh.configuration
    if refresh.rollback:
        view["RollbackDetails"] = refresh.rollback
    assert done or refresh.ended_at_s is not None or refresh.status in ACTIVE
    return view
