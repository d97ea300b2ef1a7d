"""The permissions that operations of Lambda need, and the facts about functions that policies can test."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import (
    Params,
    Permission,
    of_other_owner,
    on_resources,
    read_object,
    request_tags,
    request_values,
    with_tags,
)
from corral.access.resources import ResourceFacts
from corral.core.transactions import Tx
from corral.operations.listings import Listed
from corral.services.lambda_.names import FUNCTION, MAPPING, SERVICE, function_arn, function_with_arn, mapping_arn
from corral.services.lambda_.policies import policy_text
from corral.store import Store
from corral.store.stored_resources import Document

ACTIONS = {"Invoke": "InvokeFunction"}  # operation → action, where their names differ
FUNCTION_KEY = "lambda:functionarn"
KEYS = {  # condition keys → members of requests
    "lambda:functionurlauthtype": "FunctionUrlAuthType",
    "lambda:layer": "Layers",
    "lambda:principal": "Principal",
    "lambda:securitygroupids": "VpcConfig.SecurityGroupIds",
    "lambda:subnetids": "VpcConfig.SubnetIds",
}


LISTED = {
    "ListEventSourceMappings": Listed(
        ("EventSourceMappings",), lambda tx, caller, params, each: _owner(tx, MAPPING, each["EventSourceMappingArn"])
    ),
    "ListFunctions": Listed(("Functions",), lambda tx, caller, params, each: _owner(tx, FUNCTION, each["FunctionArn"])),
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the function, and to read the objects with its code."""
    if operation.endswith(("EventSourceMapping", "EventSourceMappings")):
        return _on_mapping(tx, caller, operation, params)
    given = params.get("FunctionName") or params.get("Resource") or ""
    name = given.removesuffix(":$LATEST").rpartition(":")[2]
    arns = [function_arn(caller.region, caller.account, name)] if name else []
    if f":{MAPPING}:" in given:
        arns = [mapping_arn(caller.region, caller.account, name)]
    context = {**request_tags(params), **request_values(params, KEYS)}
    needed = on_resources(f"lambda:{ACTIONS.get(operation, operation)}", arns, context)
    if operation == "CreateFunction":
        needed += with_tags("lambda:TagResource", arns, params)
    source = params.get("Code", params)
    if source.get("S3Bucket"):
        needed.append(read_object(source["S3Bucket"], source.get("S3Key", ""), source.get("S3ObjectVersion")))
    return needed


def _on_mapping(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission on an event source mapping. A policy can name its function in the condition lambda:FunctionArn.

    A mapping that begins to invoke the function of another owner needs the permission to invoke it.
    """
    arns, functions, context = [], list[str](), request_tags(params)
    needed: list[Permission] = []
    if "UUID" in params:
        arns = [mapping_arn(caller.region, caller.account, params["UUID"])]
        found = tx.store.stored.get(SERVICE, MAPPING, caller.region, params["UUID"])
        functions = [found["FunctionArn"]] if found is not None else []
    if params.get("FunctionName") and not operation.startswith("List"):
        name = params["FunctionName"].removesuffix(":$LATEST").rpartition(":")[2]
        functions = [function_arn(caller.region, caller.account, name)]
        owner = tx.store.stored.owner(SERVICE, FUNCTION, caller.region, name)
        needed = of_other_owner(caller, owner, "lambda:InvokeFunction", functions[0])
    if operation == "CreateEventSourceMapping":
        needed += with_tags("lambda:TagResource", [mapping_arn(caller.region, caller.account, "*")], params)
    if functions:
        context = {**context, FUNCTION_KEY: tuple(functions)}
    return on_resources(f"lambda:{operation}", arns, context) + needed


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    function = function_with_arn(tx, permission.resource)
    if function is not None:
        return ResourceFacts(_owner(tx, FUNCTION, function["FunctionArn"]), function["_tags"], policy_text(function))
    parts = permission.resource.split(":")
    if len(parts) == 7 and parts[5] == MAPPING:
        mapping: Document | None = tx.store.stored.get(SERVICE, MAPPING, parts[3], parts[6])
        if mapping is not None:
            return ResourceFacts(_owner(tx, MAPPING, permission.resource), mapping["_tags"])
    return ResourceFacts()


def _owner(tx: Tx[Store], type_: str, arn: str) -> str:
    parts = arn.split(":")
    return tx.store.stored.owner(SERVICE, type_, parts[3], parts[6])


def gives_host(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> bool:
    """Every function runs as a process of this machine."""
    return True
