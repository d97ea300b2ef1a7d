"""Lambda resource types of CloudFormation templates: functions, permissions and event source mappings.

A stack only stores all other types of Lambda.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.lambda_.code import CODE as CHECKED_CODE
from corral.services.lambda_.code import inline_code, object_code
from corral.services.lambda_.event_source_mappings import BATCH_USUAL, is_queue, only_queues
from corral.services.lambda_.functions import RUNTIMES, STACK, not_run
from corral.services.lambda_.names import MAPPING, SERVICE, deletion_key, function_arn, mapping_arn
from corral.store import Store
from corral.template_types.api_calls import authorize, call, request_of
from corral.template_types.api_types import Params, Tagging, api_type, changed, note_of, tag_values
from corral.template_types.resource_types import (
    Properties,
    ResourceStep,
    TemplateType,
    Waiting,
    forgiving,
)
from corral.template_types.schemas import ValidationError

FUNCTION, PERMISSION = "AWS::Lambda::Function", "AWS::Lambda::Permission"
EVENT_SOURCE = "AWS::Lambda::EventSourceMapping"
MISSING = "ResourceNotFoundException"
REMOVED: dict[str, Any] = {  # property → the value that an update sets if the template does not have the property
    "DeadLetterConfig": {},
    "Description": "",
    "Environment": {"Variables": {}},
    "EphemeralStorage": {"Size": 512},
    "FileSystemConfigs": [],
    "KMSKeyArn": "",
    "Layers": [],
    "LoggingConfig": {},
    "MemorySize": 128,
    "SnapStart": {"ApplyOn": "None"},
    "Timeout": 3,
    "TracingConfig": {"Mode": "PassThrough"},
    "VpcConfig": {"SubnetIds": [], "SecurityGroupIds": []},
}
TAGGING = Tagging(
    "TagResource",
    "UntagResource",
    lambda caller, name: {"Resource": function_arn(caller.region, caller.account, name)},
    shape=dict,
)
CODE = ("Code", "Architectures")  # the properties that UpdateFunctionCode sets
# Properties that are not sent, because the operations of Corral do not accept them
UNSENT = (
    "CapacityProviderConfig", "CodeSigningConfigArn", "DurableConfig", "FunctionScalingConfig", "ImageConfig",
    "PublishToLatestPublished", "RecursiveLoop", "ReservedConcurrentExecutions", "RuntimeManagementConfig", "TenancyConfig",
)  # fmt: skip
# Properties without effect. The events of the stack mention them.
NOTED = (
    *UNSENT, "DeadLetterConfig", "EphemeralStorage", "FileSystemConfigs", "Layers", "SnapStart", "TracingConfig", "VpcConfig",
)  # fmt: skip


def _create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    source = _source(tx, caller, properties)
    given = request_of("lambda", "CreateFunction", _sent(properties, but=("Code",)))
    own = {name: value for name, value in source.items() if name.startswith("_")}
    code = {name: value for name, value in source.items() if name not in own}
    tags = {"Tags": tag_values(properties.get("Tags"))}
    own |= {"_tags": dict(properties.get("_tags", {})), STACK: True}
    call(tx, caller, "lambda", "CreateFunction", {**given, **tags, "Code": code, **own})
    return str(properties["FunctionName"])


def _update(tx: Tx[Store], caller: Caller, name: str, old: Properties, new: Properties) -> None:
    target, names = {"FunctionName": name}, changed(old, new)
    if set(CODE) & set(names):
        architectures = {"Architectures": new["Architectures"]} if "Architectures" in new else {}
        call(tx, caller, "lambda", "UpdateFunctionCode", {**target, **_source(tx, caller, new), **architectures})
    if [each for each in names if each not in (*CODE, *UNSENT, "Tags")]:
        given = request_of("lambda", "UpdateFunctionConfiguration", _sent(new, but=(*CODE, "FunctionName", "PackageType")))
        removed = {each: value for each, value in REMOVED.items() if each not in given}
        call(tx, caller, "lambda", "UpdateFunctionConfiguration", {**target, **removed, **given, STACK: True})
    TAGGING.change(tx, caller, "lambda", name, old, new)


def _delete(tx: Tx[Store], caller: Caller, name: str, properties: Properties) -> None:
    call(tx, caller, "lambda", "DeleteFunction", {"FunctionName": name})


def _sent(properties: Properties, but: tuple[str, ...]) -> Properties:
    return {name: value for name, value in properties.items() if not name.startswith("_") and name not in (*but, *UNSENT, "Tags")}


def _source(tx: Tx[Store], caller: Caller, properties: Properties) -> Params:
    """Return the members of a request that contain or name the code. Code in the template itself becomes a zip file."""
    code: Mapping[str, Any] = properties["Code"]
    if "ZipFile" in code:
        file = "index.js" if str(properties.get("Runtime", "")).startswith("nodejs") else "index.py"
        return {CHECKED_CODE: inline_code(tx, str(code["ZipFile"]), file)}
    given = {name: code[name] for name in ("S3Bucket", "S3Key", "S3ObjectVersion") if name in code}
    if "S3Bucket" not in given:
        if "ImageUri" in code:
            return {"ImageUri": code["ImageUri"]}
        raise ValidationError("Code must have ZipFile, or S3Bucket and S3Key.")
    named = {"Bucket": given["S3Bucket"], "Key": given.get("S3Key", ""), "VersionId": given.get("S3ObjectVersion")}
    authorize(tx, caller, "s3", "GetObject", named)
    return {**given, CHECKED_CODE: object_code(tx, caller, given)}


def _attributes(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any]:
    snapshots = {"ApplyOn": "None", "OptimizationStatus": "Off"}
    return {"Arn": function_arn(caller.region, caller.account, name), "SnapStartResponse": snapshots}


def _settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Add notes about properties without effect, and about a function that Corral does not run, because it is not in Python."""
    runtime = str(step.properties.get("Runtime", ""))
    if not RUNTIMES.fullmatch(runtime):
        step.notes.append(f"Stored only: {not_run(runtime)}")
    return note_of(FUNCTION, NOTED)(tx, caller, step)


FUNCTION_TYPE = TemplateType(
    FUNCTION,
    _create,
    _attributes,
    _update,
    forgiving(_delete, MISSING),
    name_property="FunctionName",
    settled=_settled,
    checks_permissions=True,
)
PERMISSION_TYPE = api_type(
    PERMISSION,
    "lambda",
    generated="StatementId",
    target=lambda identity, properties: {"FunctionName": properties["FunctionName"], "StatementId": identity},
    create="AddPermission",
    delete="RemovePermission",
    missing=(MISSING,),
    attributes=lambda tx, caller, identity: {"Id": identity},
)


# Event source mappings. A mapping of another source than a queue is only stored in the stack.


def _create_mapping(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    if not _invokes(properties):
        return tx.ids.uuid()
    given = request_of("lambda", "CreateEventSourceMapping", _sent(properties, but=()))
    tags = {"Tags": tag_values(properties.get("Tags")), "_tags": dict(properties.get("_tags", {}))}
    made: str = call(tx, caller, "lambda", "CreateEventSourceMapping", {**given, **tags})["UUID"]
    return made


def _update_mapping(tx: Tx[Store], caller: Caller, uuid: str, old: Properties, new: Properties) -> None:
    if not _invokes(new):
        return
    if [each for each in changed(old, new) if each != "Tags"]:
        given = request_of("lambda", "UpdateEventSourceMapping", _sent(new, but=("EventSourceArn",)))
        call(tx, caller, "lambda", "UpdateEventSourceMapping", {"UUID": uuid, **REMOVED_FROM_MAPPING, **given})
    MAPPING_TAGGING.change(tx, caller, "lambda", uuid, old, new)


def _delete_mapping(tx: Tx[Store], caller: Caller, uuid: str, properties: Properties) -> None:
    if _invokes(properties):
        call(tx, caller, "lambda", "DeleteEventSourceMapping", {"UUID": uuid})


def _invokes(properties: Properties) -> bool:
    return is_queue(str(properties.get("EventSourceArn", "")))


def _mapping_settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    if not _invokes(step.properties):
        step.notes.append(f"Stored only: {only_queues(step.properties.get('EventSourceArn'))}")
    return None


def _mapping_gone(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Wait until the invocations of a deleted mapping have ended."""
    if tx.store.stored.get(SERVICE, MAPPING, caller.region, step.physical_id) is None:
        return None
    return Waiting((deletion_key(step.physical_id),), "The function still runs with messages of the queue.")


def _mapping_attributes(tx: Tx[Store], caller: Caller, uuid: str) -> dict[str, Any]:
    return {"Id": uuid, "EventSourceMappingArn": mapping_arn(caller.region, caller.account, uuid)}


REMOVED_FROM_MAPPING: dict[str, Any] = {  # property → the value that an update sets if the template does not have the property
    "BatchSize": BATCH_USUAL,
    "Enabled": True,
    "FilterCriteria": {},
    "FunctionResponseTypes": [],
    "MaximumBatchingWindowInSeconds": 0,
    "ScalingConfig": {},
}
MAPPING_TAGGING = replace(TAGGING, resource=lambda caller, uuid: {"Resource": mapping_arn(caller.region, caller.account, uuid)})
MAPPING_TYPE = TemplateType(
    EVENT_SOURCE,
    _create_mapping,
    _mapping_attributes,
    _update_mapping,
    forgiving(_delete_mapping, MISSING),
    settled=_mapping_settled,
    gone=_mapping_gone,
    checks_permissions=True,
)
TEMPLATE_TYPES = (FUNCTION_TYPE, PERMISSION_TYPE, MAPPING_TYPE)
