"""Event source mappings: queues of SQS that invoke functions. The reconciler `event-source` receives the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.policies.event_filter import read_pattern
from corral.decide.policies.filter_policy import FilterPolicyError
from corral.services.lambda_ import errors
from corral.services.lambda_.event_batches import lacking_permission
from corral.services.lambda_.functions import PAGES, TAG_RULES
from corral.services.lambda_.names import MAPPING, SERVICE, find_function, function_arn, mapping_arn, named_function
from corral.services.sqs.errors import no_such_queue
from corral.services.sqs.queue_names import queue_with_arn
from corral.store import Store
from corral.store.stored_resources import Document

BATCH_USUAL = 10
FILTERS_MAX = 10
# The members of requests that are stored and shown
SETTINGS = ("BatchSize", "FunctionResponseTypes", "MaximumBatchingWindowInSeconds")
OPTIONAL = ("FilterCriteria", "ScalingConfig")  # an empty value removes the member
WITHOUT_EFFECT = ("KMSKeyArn", "LoggingConfig", "MetricsConfig", "ProvisionedPollerConfig")
FOR_STREAMS = (  # AWS also refuses these members for queues
    "AmazonManagedKafkaEventSourceConfig", "BisectBatchOnFunctionError", "DestinationConfig", "DocumentDBEventSourceConfig",
    "MaximumRecordAgeInSeconds", "MaximumRetryAttempts", "ParallelizationFactor", "Queues", "SelfManagedEventSource",
    "SelfManagedKafkaEventSourceConfig", "SourceAccessConfigurations", "StartingPosition", "StartingPositionTimestamp", "Topics",
    "TumblingWindowInSeconds",
)  # fmt: skip
NO_MAPPING = "The resource you requested does not exist."


def is_queue(arn: str) -> bool:
    return arn.split(":")[2:3] == ["sqs"]


def only_queues(arn: str | None) -> str:
    return f"Corral invokes functions with messages of SQS queues only, and not of {arn or 'other sources'}."


def create_event_source_mapping(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    arn = params.get("EventSourceArn")
    if arn is None:
        raise errors.InvalidParameterValueException("Unrecognized event source.")
    if not is_queue(arn):
        raise errors.InvalidParameterValueException(only_queues(arn))
    function = _function(tx, caller, params["FunctionName"])
    tags = TAG_RULES.of_pairs(list(params.get("Tags", {}).items()))
    document = _with_settings({"BatchSize": BATCH_USUAL, "FunctionResponseTypes": [], "MaximumBatchingWindowInSeconds": 0}, params)
    _check(tx, {**document, "EventSourceArn": arn}, function, params)
    _check_conflict(tx, caller, arn, function)
    uuid = tx.ids.uuid()
    document = {
        "UUID": uuid,
        "EventSourceArn": arn,
        "EventSourceMappingArn": mapping_arn(caller.region, caller.account, uuid),
        "FunctionArn": function["FunctionArn"],
        **document,
        "StateTransitionReason": "USER_INITIATED",
        "_enabled": params.get("Enabled", True),
        "_deleted": False,
        "_tags": {**tags, **params.get("_tags", {})},
    }
    _put(tx, caller, document, caller.owner)
    return {**shown(tx, caller.region, document), "State": "Creating"}


def get_event_source_mapping(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return shown(tx, caller.region, find_mapping(tx, caller, params["UUID"]))


def list_event_source_mappings(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    function = None
    if "FunctionName" in params:
        function = function_arn(caller.region, caller.account, named_function(caller, params["FunctionName"]))

    def listed(after: str, limit: int) -> list[tuple[str, Document]]:
        found = [
            (uuid, each)
            for uuid, each in tx.store.stored.listed(SERVICE, MAPPING, caller.region, after)
            if params.get("EventSourceArn") in (None, each["EventSourceArn"]) and function in (None, each["FunctionArn"])
        ]
        return found[:limit] if limit >= 0 else found

    found, more = PAGES.page(params, listed)
    return {"EventSourceMappings": [shown(tx, caller.region, each) for each in found], **more}


def update_event_source_mapping(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    before = find_mapping(tx, caller, params["UUID"])
    _check_use(before, "update")
    function = _function(tx, caller, params.get("FunctionName") or before["FunctionArn"])
    document = {**_with_settings(before, params), "FunctionArn": function["FunctionArn"]}
    _check(tx, document, function, params)
    if document["FunctionArn"] != before["FunctionArn"]:
        _check_conflict(tx, caller, document["EventSourceArn"], function)
    document["_enabled"] = params.get("Enabled", before["_enabled"])
    _put(tx, caller, document)
    changed = document["_enabled"] != before["_enabled"]
    return {
        **shown(tx, caller.region, document),
        "State": "Updating" if not changed else "Enabling" if document["_enabled"] else "Disabling",
    }


def delete_event_source_mapping(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document = find_mapping(tx, caller, params["UUID"])
    _check_use(document, "delete")
    document = {**document, "_deleted": True}
    _put(tx, caller, document)
    return shown(tx, caller.region, document)


def find_mapping(tx: Tx[Store], caller: Caller, uuid: str) -> Document:
    found = tx.store.stored.get(SERVICE, MAPPING, caller.region, uuid)
    if found is None:
        raise errors.ResourceNotFoundException(NO_MAPPING)
    return found


def shown(tx: Tx[Store], region: str, document: Document) -> Document:
    if document["_deleted"]:
        state = "Deleting"
    elif document["_enabled"]:
        state = "Enabled"
    else:
        state = "Disabling" if tx.store.event_batches.count(f"{region}/{document['UUID']}") else "Disabled"
    return {**{member: value for member, value in document.items() if not member.startswith("_")}, "State": state}


def _function(tx: Tx[Store], caller: Caller, given: str) -> Document:
    try:
        return find_function(tx, caller, {"FunctionName": given})
    except errors.ResourceNotFoundException:
        raise errors.InvalidParameterValueException("Function does not exist") from None


def _with_settings(document: Document, params: Mapping[str, Any]) -> Document:
    changed = {member: params[member] for member in (*SETTINGS, *OPTIONAL, *WITHOUT_EFFECT) if member in params}
    removed = [member for member in OPTIONAL if member in changed and not any(changed[member].values())]
    return {member: value for member, value in {**document, **changed}.items() if member not in removed}


def _check(tx: Tx[Store], document: Document, function: Document, params: Mapping[str, Any]) -> None:
    invalid = errors.InvalidParameterValueException
    if unfit := [member for member in FOR_STREAMS if params.get(member)]:
        raise invalid(f"{unfit[0]} is not supported for SQS event sources.")
    arn, size, window_s = document["EventSourceArn"], document["BatchSize"], document["MaximumBatchingWindowInSeconds"]
    if size > BATCH_USUAL and not window_s:
        raise invalid("Maximum batch window in seconds must be greater than 0 if maximum batch size is greater than 10")
    if arn.endswith(".fifo") and window_s:
        raise invalid("Batching window is not supported for FIFO queues")
    filters = document.get("FilterCriteria", {}).get("Filters", [])
    if len(filters) > FILTERS_MAX:
        raise invalid(f"FilterCriteria has at most {FILTERS_MAX} filters.")
    for each in filters:
        try:
            read_pattern(each.get("Pattern", ""))
        except FilterPolicyError:
            raise invalid("Invalid filter pattern definition.") from None
    queue = queue_with_arn(tx, arn)
    if lacking := lacking_permission(tx, function, arn):
        raise invalid(lacking)
    if queue is None:
        missing = no_such_queue()
        raise invalid(
            "Error occurred while ReceiveMessage. SQS Error Code: AWS.SimpleQueueService.NonExistentQueue. "
            f"SQS Error Message: {missing.message}"
        )
    if queue.visibility_ms < 1000 * function["Timeout"]:
        raise invalid(
            f"Queue visibility timeout: {queue.visibility_ms // 1000} seconds is less than Function timeout: "
            f"{function['Timeout']} seconds"
        )


def _check_conflict(tx: Tx[Store], caller: Caller, arn: str, function: Document) -> None:
    for uuid, other in tx.store.stored.listed(SERVICE, MAPPING, caller.region):
        if (other["EventSourceArn"], other["FunctionArn"]) == (arn, function["FunctionArn"]):
            raise errors.ResourceConflictException(
                f'An event source mapping with SQS arn (" {arn} ") and function (" {function["FunctionName"]} ") already exists. '
                f"Please update or delete the existing mapping with UUID {uuid}"
            )


def _check_use(document: Document, verb: str) -> None:
    if document["_deleted"]:
        raise errors.ResourceInUseException(f"Cannot {verb} the event source mapping because it is in use.")


def _put(tx: Tx[Store], caller: Caller, document: Document, owner: str = "") -> None:
    document["LastModified"] = tx.now_s
    tx.store.stored.put(SERVICE, MAPPING, caller.region, document["UUID"], document, tx.now_s, owner)
    tx.mark(f"event-source:{caller.region}/{document['UUID']}")
