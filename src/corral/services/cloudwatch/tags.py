"""Tags of alarms and dashboards."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.tags import TagRules
from corral.services.cloudwatch.common import alarm_arn, alarm_name, dashboard_arn
from corral.services.cloudwatch.errors import InvalidParameterValueException, ResourceNotFoundException
from corral.telemetry import MetricStore

RULES = TagRules(InvalidParameterValueException, any_character=True)


def tag_resource(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    arn = _existing(tx, params, caller)
    tx.store.tags.put(arn, RULES.merge(tx.store.tags.of(arn), RULES.read(params["Tags"])))
    return {}


def untag_resource(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    arn = _existing(tx, params, caller)
    tx.store.tags.put(arn, RULES.remove(tx.store.tags.of(arn), params["TagKeys"]))
    return {}


def list_tags_for_resource(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"Tags": RULES.to_list(tx.store.tags.of(_existing(tx, params, caller)))}


def tag_new(tx: Tx[MetricStore], arn: str, params: dict[str, Any]) -> None:
    """Store the tags in a request that creates a resource."""
    tx.store.tags.put(arn, RULES.read(params.get("Tags", [])))


def _existing(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> str:
    """Return the ARN in a request. Raise an error if the alarm or dashboard does not exist."""
    arn: str = params["ResourceARN"]
    if not arn.startswith("arn:aws:cloudwatch:"):
        raise InvalidParameterValueException(f"The ARN {arn} is not the ARN of a CloudWatch resource.")
    dashboards = dashboard_arn(caller, "")
    if arn.startswith(alarm_arn(caller.region, caller.account, "")):
        exists = tx.store.alarms.get(caller.region, alarm_name(arn)) is not None
    else:
        exists = arn.startswith(dashboards) and tx.store.dashboards.get(arn.removeprefix(dashboards)) is not None
    if not exists:
        raise ResourceNotFoundException(f"Unknown resource {arn}.", ResourceType="alarm", ResourceId=arn)
    return arn
