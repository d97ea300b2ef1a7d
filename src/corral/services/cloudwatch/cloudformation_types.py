"""CloudWatch resource types of CloudFormation templates: alarms, composite alarms and dashboards."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.cloudwatch.common import alarm_arn, dashboard_arn
from corral.telemetry import MetricStore
from corral.template_types.api_types import Params, Tagging, api_type
from corral.template_types.resource_types import Properties, TemplateType


def _request(caller: Caller, properties: Properties) -> Params:
    return {name: value for name, value in properties.items() if name[0] != "_" and name != "Tags"}


def _alarm_arn(caller: Caller, name: str) -> str:
    return alarm_arn(caller.region, caller.account, name)


def _add_tags(tx: Tx[MetricStore], arn: str, tags: dict[str, str]) -> None:
    tx.store.tags.put(arn, {**tx.store.tags.of(arn), **tags})


def _alarm_type(name: str, operation: str) -> TemplateType:
    return api_type(
        name,
        "cloudwatch",
        identity="AlarmName",
        target=lambda identity, properties: {"AlarmNames": [identity]},
        create=operation,
        request=_request,
        delete="DeleteAlarms",
        missing=("ResourceNotFound",),
        exists=lambda tx, caller, properties: tx.store.alarms.get(caller.region, properties["AlarmName"]) is not None,
        update=operation,
        tagging=Tagging("TagResource", "UntagResource", lambda caller, identity: {"ResourceARN": _alarm_arn(caller, identity)}),
        system_tags=lambda tx, caller, identity, tags: _add_tags(tx, _alarm_arn(caller, identity), tags),
        attributes=lambda tx, caller, identity: {"Arn": _alarm_arn(caller, identity)},
        name_property="AlarmName",
        lane="metrics",
    )


TEMPLATE_TYPES = (
    _alarm_type("AWS::CloudWatch::Alarm", "PutMetricAlarm"),
    _alarm_type("AWS::CloudWatch::CompositeAlarm", "PutCompositeAlarm"),
    api_type(
        "AWS::CloudWatch::Dashboard",
        "cloudwatch",
        identity="DashboardName",
        target=lambda identity, properties: {"DashboardNames": [identity]},
        create="PutDashboard",
        request=_request,
        delete="DeleteDashboards",
        missing=("DashboardNotFoundError",),
        exists=lambda tx, caller, properties: tx.store.dashboards.get(properties["DashboardName"]) is not None,
        update="PutDashboard",
        tagging=Tagging("TagResource", "UntagResource", lambda caller, identity: {"ResourceARN": dashboard_arn(caller, identity)}),
        system_tags=lambda tx, caller, identity, tags: _add_tags(tx, dashboard_arn(caller, identity), tags),
        name_property="DashboardName",
        lane="metrics",
    ),
)
