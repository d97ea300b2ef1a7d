"""Tags of alarms and dashboards."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.cloudwatch.naming import InvalidParameterValue
from corral.services.cloudwatch.transitions import name_of
from corral.services.tags import TagRules
from corral.telemetry import MetricStore

ResourceNotFoundException = api_error("ResourceNotFoundException", 404)
RULES = TagRules(InvalidParameterValue, any_character=True)


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
    """The tags that come with something new."""
    tx.store.tags.put(arn, RULES.read(params.get("Tags", [])))


def _existing(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> str:
    """The ARN that a request names, of something that is there."""
    arn: str = params["ResourceARN"]
    alarms, dashboards = (
        f"arn:aws:cloudwatch:{caller.region}:{caller.account}:alarm:",
        f"arn:aws:cloudwatch::{caller.account}:dashboard/",
    )
    if not arn.startswith("arn:aws:cloudwatch:"):
        raise InvalidParameterValue(f"The ARN {arn} is not that of a CloudWatch resource.")
    there = (
        tx.store.alarms.get(caller.region, name_of(arn)) is not None
        if arn.startswith(alarms)
        else arn.startswith(dashboards) and tx.store.dashboards.get(arn.removeprefix(dashboards)) is not None
    )
    if not there:
        raise ResourceNotFoundException(f"Unknown resource {arn}.", ResourceType="alarm", ResourceId=arn)
    return arn
