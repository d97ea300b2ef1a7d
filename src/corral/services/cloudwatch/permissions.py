"""The permissions that operations of CloudWatch need, and the facts about alarms and dashboards that policies can test.

Metrics have no owner: everybody with the permission can read them.
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, of_other_owner, on_resources, request_tags
from corral.access.resources import ResourceFacts
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.model.principal import ROOT
from corral.operations.listings import Listed
from corral.services.cloudwatch.alarm_actions import ACTION_MEMBERS
from corral.services.cloudwatch.common import alarm_arn, alarm_name
from corral.store import Store
from corral.telemetry import MetricStore

PUT_ALARM = frozenset({"PutCompositeAlarm", "PutMetricAlarm"})


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    alarms = params.get("AlarmNames") or ([params["AlarmName"]] if params.get("AlarmName") else [])
    arns = [alarm_arn(caller.region, caller.account, name) for name in alarms]
    boards = params.get("DashboardNames") or ([params["DashboardName"]] if params.get("DashboardName") else [])
    arns += [f"arn:aws:cloudwatch::{caller.account}:dashboard/{name}" for name in boards]
    arns += [params["ResourceARN"]] if params.get("ResourceARN") else []
    context: Context = {"cloudwatch:namespace": (params["Namespace"],)} if params.get("Namespace") else {}
    actions = _actions(params) if operation in PUT_ALARM else []
    if actions:
        context = {**context, "cloudwatch:alarmactions": tuple(actions)}
    needed = on_resources(f"cloudwatch:{operation}", arns, {**request_tags(params), **context})
    return [*needed, *(each for action in actions for each in _use(tx, caller, action))]


def _actions(params: Params) -> list[str]:
    return list(dict.fromkeys(each for member in ACTION_MEMBERS.values() for each in params.get(member) or ()))


def _use(tx: Tx[Store], caller: Caller, action: str) -> list[Permission]:
    """The permission for what an action of an alarm does with a topic, a group or a service of another owner.

    Nothing checks a permission when the alarm changes its state.
    """
    fields = [*action.split(":", 5), "", "", "", "", ""]
    service, region, rest = fields[2], fields[3], fields[5]
    if service == "sns":
        return of_other_owner(caller, tx.store.stored.owner("sns", "topic", region, rest), "sns:Publish", action)
    if service != "autoscaling":
        return []
    _, _, of_group = rest.partition(":autoScalingGroupName/")
    if of_group:
        group = tx.store.groups.get(region, of_group.partition(":policyName/")[0])
        return of_other_owner(caller, group.owner if group is not None else None, "autoscaling:ExecutePolicy", action)
    target = rest.partition(":resource/ecs/service/")[2].partition(":policyName/")[0]
    scaled = tx.store.ecs_services.get(region, *target.split("/")) if target.count("/") == 1 else None
    arn = f"arn:aws:ecs:{region}:{caller.account}:service/{target}"
    return of_other_owner(caller, scaled.owner if scaled is not None else None, "ecs:UpdateService", arn)


def resource_facts(tx: Tx[Any], caller: Caller, permission: Permission) -> ResourceFacts | None:
    """Return the facts of an alarm or a dashboard, which are in the database of another lane. None: they are unknown here."""
    if permission.action.partition(":")[2] in LISTED:
        return ResourceFacts()

    def read(tx: Tx[MetricStore]) -> ResourceFacts:
        owner = _owner(tx, caller, permission.resource)
        return ResourceFacts(owner, tx.store.tags.of(permission.resource)) if owner is not None else ResourceFacts()

    found: ResourceFacts | None = read(tx) if isinstance(tx.store, MetricStore) else tx.settings.server.read_lane("metrics", read)
    return found


def _owner(tx: Tx[MetricStore], caller: Caller, resource_arn: str) -> str | None:
    if ":dashboard/" in resource_arn:
        board = tx.store.dashboards.get(resource_arn.partition(":dashboard/")[2])
        return board.owner if board is not None else None
    return tx.store.owner_of_alarm(caller.region, alarm_name(resource_arn))


def _owner_of_alarm(tx: Tx[MetricStore], caller: Caller, params: Params, element: Any) -> str | None:
    """Return the owner of an alarm. The history of a deleted alarm belongs to the root user."""
    return tx.store.owner_of_alarm(caller.region, element["AlarmName"]) or ROOT


def _owner_of_dashboard(tx: Tx[MetricStore], caller: Caller, params: Params, element: Any) -> str | None:
    board = tx.store.dashboards.get(element["DashboardName"])
    return board.owner if board is not None else None


LISTED = {
    "DescribeAlarmHistory": Listed(("AlarmHistoryItems",), _owner_of_alarm),
    "DescribeAlarms": Listed(("MetricAlarms", "CompositeAlarms"), _owner_of_alarm),
    "DescribeAlarmsForMetric": Listed(("MetricAlarms",), _owner_of_alarm),
    "ListDashboards": Listed(("DashboardEntries",), _owner_of_dashboard),
}
