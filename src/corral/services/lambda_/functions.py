"""Operations on functions: create, read, update, delete and tag them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.pagination import Pagination
from corral.operations.tags import TagRules
from corral.services.lambda_.code import CODE, NO_IMAGES, Code
from corral.services.lambda_.code_links import code_link
from corral.services.lambda_.errors import (
    ISOLATED,
    InvalidParameterValueException,
    ResourceConflictException,
    ValidationException,
)
from corral.services.lambda_.names import (
    FUNCTION,
    LATEST,
    NAME_MAX_CHARACTERS,
    SERVICE,
    change_key,
    find_function,
    function_arn,
    get_function,
    named_function,
    put_function,
    region_of,
)
from corral.store import Store
from corral.store.stored_resources import Document

RUNTIMES = re.compile(r"python3\.\d+")
VARIABLES_MAX_BYTES = 4096
VARIABLE = re.compile(r"[a-zA-Z]\w*", re.ASCII)
RESERVED = frozenset(
    {
        "_HANDLER", "_X_AMZN_TRACE_ID", "AWS_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION", "AWS_EXECUTION_ENV",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_FUNCTION_VERSION",
        "AWS_LAMBDA_INITIALIZATION_TYPE", "AWS_LAMBDA_LOG_GROUP_NAME", "AWS_LAMBDA_LOG_STREAM_NAME", "AWS_LAMBDA_RUNTIME_API",
        "AWS_REGION", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "LAMBDA_RUNTIME_DIR", "LAMBDA_TASK_ROOT",
    }
)  # fmt: skip
# The members of requests that are stored and shown. The members in WITHOUT_EFFECT do not change how the function runs.
SETTINGS = ("Description", "Handler", "MemorySize", "Role", "Runtime", "Timeout")
WITHOUT_EFFECT = (
    "DeadLetterConfig", "EphemeralStorage", "FileSystemConfigs", "KMSKeyArn", "Layers", "SnapStart", "TracingConfig", "VpcConfig",
)  # fmt: skip
PAGES = Pagination(
    InvalidParameterValueException, limit="MaxItems", token="Marker", next_token="NextMarker", default=50, largest=10_000
)
TAG_RULES = TagRules(InvalidParameterValueException)
# A function is active, and its update is successful, as soon as it is stored. As on AWS, responses say that this is in progress.
# Programs then wait with GetFunction.
BEING_CREATED = "The function is being created."
CREATED = {"State": "Pending", "StateReason": BEING_CREATED, "StateReasonCode": "Creating"}
UPDATED = {
    "LastUpdateStatus": "InProgress", "LastUpdateStatusReason": BEING_CREATED, "LastUpdateStatusReasonCode": "Creating",
}  # fmt: skip
UNLISTED = ("State", "LastUpdateStatus")  # ListFunctions does not return these members
NO_HANDLER = "Runtime and Handler are mandatory parameters for functions created with deployment packages."

STACK = "_stack"  # Corral's own member in requests of stacks. Only a stack can store a function that Corral cannot run.
NO_VERSIONS = "Corral has only the version $LATEST of a function: leave out Publish."


def is_run(document: Document) -> bool:
    """Whether Corral can run a function. Stacks also store functions in other languages than Python."""
    return RUNTIMES.fullmatch(document["Runtime"]) is not None


def not_run(runtime: str) -> str:
    return f"Corral runs Lambda functions in Python only (python3.x), not in {runtime}. Rewrite the function in Python."


def create_function(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if tx.settings.isolate and (STACK not in params or RUNTIMES.fullmatch(params.get("Runtime", ""))):
        raise InvalidParameterValueException(ISOLATED)
    name = named_function(caller, params["FunctionName"])
    if len(name) > NAME_MAX_CHARACTERS:  # not in the table of constraints, because a request can also give a longer ARN
        raise ValidationException(
            f"1 validation error detected: Value '{name}' at 'functionName' failed to satisfy constraint: "
            f"Member must have length less than or equal to {NAME_MAX_CHARACTERS}"
        )
    if params.get("PackageType", "Zip") != "Zip":
        raise InvalidParameterValueException(NO_IMAGES)
    if not params.get("Runtime") or not params.get("Handler"):
        raise InvalidParameterValueException(NO_HANDLER)
    _check(params)
    if get_function(tx, caller.region, name) is not None:
        raise ResourceConflictException(f"Function already exist: {name}")
    tags = TAG_RULES.of_pairs(list(params.get("Tags", {}).items()))
    document: Document = {
        "FunctionName": name,
        "FunctionArn": function_arn(caller.region, caller.account, name),
        "Description": "",
        "Timeout": 3,
        "MemorySize": 128,
        "Version": LATEST,
        "TracingConfig": {"Mode": "PassThrough"},
        "PackageType": "Zip",
        "Architectures": params.get("Architectures", ["x86_64"]),
        "EphemeralStorage": {"Size": 512},
        "SnapStart": {"ApplyOn": "None", "OptimizationStatus": "Off"},
        "State": "Active",
        "LastUpdateStatus": "Successful",
        "_tags": {**tags, **params.get("_tags", {})},
        "_policy": [],
    }
    document = _with_code(tx, _with_settings(document, params), params[CODE])
    shown = _shown(_store(tx, document, caller.owner))
    del shown["LastUpdateStatus"]
    return {**shown, **CREATED}


def update_function_code(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document = find_function(tx, caller, params)
    _check(params)
    code: Code = params[CODE]
    if params.get("DryRun"):
        return _shown({**document, "CodeSha256": code.sha256, "CodeSize": code.size})
    if "Architectures" in params:
        document = {**document, "Architectures": params["Architectures"]}
    if code.sha256 != document["CodeSha256"]:
        tx.store.functions.drop_code(document["_code"])
        document = _with_code(tx, document, code)
    return {**_shown(_store(tx, document)), **UPDATED}


def update_function_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document = find_function(tx, caller, params)
    _check(params)
    return {**_shown(_store(tx, _with_settings(document, params))), **UPDATED}


def delete_function(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document = find_function(tx, caller, params)
    tx.store.stored.drop(SERVICE, FUNCTION, region_of(document), document["FunctionName"])
    tx.store.functions.drop_code(document["_code"])
    return {"StatusCode": 204}


def get_function_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _shown(find_function(tx, caller, params))


def describe_function(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe a function for GetFunction, with a link to its code."""
    document = find_function(tx, caller, params)
    tags = {"Tags": document["_tags"]} if document["_tags"] else {}
    code = {"RepositoryType": "S3", "Location": code_link(tx, caller, document)}
    return {"Configuration": _shown(document), "Code": code, **tags}


def list_functions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found, more = PAGES.page(params, lambda after, limit: tx.store.stored.listed(SERVICE, FUNCTION, caller.region, after, limit))
    return {"Functions": [{name: value for name, value in _shown(each).items() if name not in UNLISTED} for each in found], **more}


# The document of a function


def log_group(document: Document) -> str:
    return str(document["LoggingConfig"]["LogGroup"])


def _shown(document: Document) -> Document:
    return {member: value for member, value in document.items() if not member.startswith("_")}


def _with_settings(document: Document, params: Mapping[str, Any]) -> Document:
    changed = {member: params[member] for member in (*SETTINGS, *WITHOUT_EFFECT) if member in params}
    if "Environment" in params:
        changed["Environment"] = {"Variables": params["Environment"].get("Variables", {})}
    if "SnapStart" in changed:
        changed["SnapStart"] = {"ApplyOn": "None", **changed["SnapStart"], "OptimizationStatus": "Off"}
    if "VpcConfig" in changed:
        changed["VpcConfig"] = {"SubnetIds": [], "SecurityGroupIds": [], "VpcId": "", **changed["VpcConfig"]}
    if "Layers" in changed:
        changed["Layers"] = [{"Arn": arn, "CodeSize": 0} for arn in changed["Layers"]]
    if "LoggingConfig" in params or "LoggingConfig" not in document:
        given = params.get("LoggingConfig", {})
        usual = {"LogFormat": "Text", "LogGroup": f"/aws/lambda/{document['FunctionName']}"}
        changed["LoggingConfig"] = {**usual, **given}
    return {**document, **changed}


def _with_code(tx: Tx[Store], document: Document, code: Code) -> Document:
    return {**document, "CodeSha256": code.sha256, "CodeSize": code.size, "_code": tx.store.functions.add_code(code.zip)}


def _store(tx: Tx[Store], document: Document, owner: str = "") -> Document:
    """Store a changed function under a new revision. Processes of earlier revisions serve no further invocations."""
    at = datetime.fromtimestamp(tx.wall_s, UTC)
    document = {**document, "LastModified": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}+0000"}
    document["RevisionId"] = tx.ids.uuid()
    put_function(tx, document, owner)
    tx.changed(change_key(document["FunctionArn"]))
    return document


def _check(params: Mapping[str, Any]) -> None:
    if params.get("Publish") or params.get("PublishTo"):
        raise InvalidParameterValueException(NO_VERSIONS)
    runtime = params.get("Runtime")
    if runtime is not None and not RUNTIMES.fullmatch(runtime) and STACK not in params:
        raise InvalidParameterValueException(not_run(runtime))
    if params.get("LoggingConfig", {}).get("LogFormat", "Text") != "Text":
        raise InvalidParameterValueException("Corral writes the log of a function as text only: LogFormat must be Text.")
    variables = params.get("Environment", {}).get("Variables", {})
    if used := sorted(RESERVED & variables.keys()):
        raise InvalidParameterValueException(
            "Lambda was unable to configure your environment variables because the environment variables you have provided "
            "contains reserved keys that are currently not supported for modification. Reserved keys used in this request: "
            + ", ".join(used)
        )
    for name, value in variables.items():
        if not VARIABLE.fullmatch(name) or "\0" in value:
            raise InvalidParameterValueException(f"The environment variable {name} is not valid.")
    if sum(len(name.encode()) + len(value.encode()) for name, value in variables.items()) > VARIABLES_MAX_BYTES:
        raise InvalidParameterValueException(
            "Lambda was unable to configure your environment variables because the environment variables you have provided "
            f"exceeded the {VARIABLES_MAX_BYTES // 1024}KB limit."
        )
