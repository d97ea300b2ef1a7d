"""Tags of alarms and dashboards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.cloudwatch.naming import InvalidParameterValue
from corral.services.cloudwatch.transitions import name_of
from corral.telemetry import MetricStore

ResourceNotFoundException = api_error("ResourceNotFoundException", 404)
TAGS_MAX = 50
KEY_MAX_CHARACTERS = 128
VALUE_MAX_CHARACTERS = 256


def tag_resource(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    arn = _existing(tx, params, caller)
    _check_tags(params["Tags"])
    merged = tx.store.tags.of(arn) | {tag["Key"]: tag["Value"] for tag in params["Tags"]}
    _check_tags(_listed(merged))
    tx.store.tags.put(arn, merged)
    return {}


def untag_resource(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    arn = _existing(tx, params, caller)
    left = {key: value for key, value in tx.store.tags.of(arn).items() if key not in params["TagKeys"]}
    tx.store.tags.put(arn, left)
    return {}


def list_tags_for_resource(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"Tags": _listed(tx.store.tags.of(_existing(tx, params, caller)))}


def tag_new(tx: Tx[MetricStore], arn: str, params: dict[str, Any]) -> None:
    """The tags that come with something new."""
    tags = params.get("Tags", [])
    _check_tags(tags)
    tx.store.tags.put(arn, {tag["Key"]: tag["Value"] for tag in tags})


def _listed(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


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


def _check_tags(tags: Sequence[Mapping[str, str]]) -> None:
    keys = [tag["Key"] for tag in tags]
    if len(set(keys)) < len(keys):
        raise InvalidParameterValue("Duplicate tag keys found: a resource has each tag key once.")
    if len(keys) > TAGS_MAX:
        raise InvalidParameterValue(f"A resource has at most {TAGS_MAX} tags.")
    for tag in tags:
        if tag["Key"].lower().startswith("aws:"):
            raise InvalidParameterValue(f"The tag key {tag['Key']} is reserved: aws: prefixed tag keys are for AWS.")
        if not 1 <= len(tag["Key"]) <= KEY_MAX_CHARACTERS or len(tag["Value"]) > VALUE_MAX_CHARACTERS:
            raise InvalidParameterValue(
                f"A tag's key has from 1 to {KEY_MAX_CHARACTERS} characters, its value up to {VALUE_MAX_CHARACTERS}: {tag['Key']}"
            )
