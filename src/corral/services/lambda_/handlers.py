"""The operations of Lambda and their handlers. A program in a container needs a policy for all of them."""

from __future__ import annotations

from corral.operations.services import Fetch, Handler, Prepare
from corral.services.lambda_ import code, functions, invocations, policies

HANDLERS: dict[str, Handler] = {
    "AddPermission": policies.add_permission,
    "CreateFunction": functions.create_function,
    "DeleteFunction": functions.delete_function,
    "GetFunction": functions.describe_function,
    "GetFunctionConfiguration": functions.get_function_configuration,
    "GetPolicy": policies.get_policy,
    "Invoke": invocations.invoke,
    "ListFunctions": functions.list_functions,
    "ListTags": functions.list_tags,
    "RemovePermission": policies.remove_permission,
    "TagResource": functions.tag_resource,
    "UntagResource": functions.untag_resource,
    "UpdateFunctionCode": functions.update_function_code,
    "UpdateFunctionConfiguration": functions.update_function_configuration,
}
FETCH: dict[str, Fetch] = dict.fromkeys(("CreateFunction", "UpdateFunctionCode"), code.fetch)
PREPARE: dict[str, Prepare] = dict.fromkeys(("CreateFunction", "UpdateFunctionCode"), code.prepare)
