"""CloudWatch Logs resource types of CloudFormation templates: log groups, log streams and metric filters."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.logs.common import existing_group, group_arn
from corral.telemetry import LogStore
from corral.template_types.api_types import Params, Setting, Tagging, api_type, camel_case
from corral.template_types.resource_types import Properties

MISSING = ("ResourceNotFoundException",)


def _add_system_tags(tx: Tx[LogStore], caller: Caller, name: str, tags: dict[str, str]) -> None:
    group = existing_group(tx, caller, name)
    tx.store.set_details(group.id, group.details | {"tags": {**group.details.get("tags", {}), **tags}})


def _stream(identity: str, properties: Properties) -> Params:
    return {"logGroupName": properties["LogGroupName"], "logStreamName": identity}


def _filter(identity: str, properties: Properties) -> Params:
    return {"logGroupName": properties["LogGroupName"], "filterName": identity}


def _filter_request(caller: Caller, properties: Properties) -> Params:
    request = camel_case({name: value for name, value in properties.items() if name[0] != "_"})
    for transformation in request["metricTransformations"]:
        if "dimensions" in transformation:
            transformation["dimensions"] = {each["key"]: each["value"] for each in transformation["dimensions"]}
    return dict(request)


def _filter_exists(tx: Tx[LogStore], caller: Caller, properties: Properties) -> bool:
    found = tx.store.metric_filters(caller.region, properties["LogGroupName"], properties["FilterName"])
    return any(known.name == properties["FilterName"] for known in found)


TEMPLATE_TYPES = (
    api_type(
        "AWS::Logs::LogGroup",
        "logs",
        identity="LogGroupName",
        target="logGroupName",
        create="CreateLogGroup",
        request=lambda caller, properties: {
            "logGroupName": properties["LogGroupName"],
            "logGroupClass": properties.get("LogGroupClass"),
            "kmsKeyId": properties.get("KmsKeyId"),
        },
        delete="DeleteLogGroup",
        missing=MISSING,
        settings={
            "RetentionInDays": Setting("PutRetentionPolicy", lambda days: {"retentionInDays": days}, "DeleteRetentionPolicy"),
            "DeletionProtectionEnabled": Setting(
                "PutLogGroupDeletionProtection",
                lambda enabled: {"deletionProtectionEnabled": enabled},
                default=False,
                target=lambda identity: {"logGroupIdentifier": identity},
            ),
        },
        tagging=Tagging(
            "TagResource",
            "UntagResource",
            lambda caller, identity: {"resourceArn": group_arn(caller, identity)},
            tags="tags",
            keys="tagKeys",
            shape=dict,
        ),
        system_tags=_add_system_tags,
        attributes=lambda tx, caller, identity: {"Arn": f"{group_arn(caller, identity)}:*"},
        without_effect=(
            "KmsKeyId",
            "DataProtectionPolicy",
            "FieldIndexPolicies",
            "ResourcePolicyDocument",
            "BearerTokenAuthenticationEnabled",
        ),
        name_property="LogGroupName",
        lane="logs",
    ),
    api_type(
        "AWS::Logs::LogStream",
        "logs",
        identity="LogStreamName",
        target=_stream,
        create="CreateLogStream",
        request=lambda caller, properties: _stream(properties["LogStreamName"], properties),
        delete="DeleteLogStream",
        missing=MISSING,
        name_property="LogStreamName",
        name_scope=("LogGroupName",),
        lane="logs",
    ),
    api_type(
        "AWS::Logs::MetricFilter",
        "logs",
        identity="FilterName",
        target=_filter,
        create="PutMetricFilter",
        request=_filter_request,
        delete="DeleteMetricFilter",
        missing=MISSING,
        exists=_filter_exists,
        update="PutMetricFilter",
        name_property="FilterName",
        name_scope=("LogGroupName",),
        lane="logs",
    ),
)
