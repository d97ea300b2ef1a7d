"""The permissions that operations of CloudFormation need, and the facts about stacks that policies can test."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, read_object, request_tags, request_values, with_tags
from corral.access.resources import ResourceFacts
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.operations.listings import Listed
from corral.services.cloudformation.stack_descriptions import stack_with_resource
from corral.services.cloudformation.template_sources import addresses
from corral.store import Store

# Operations on a change set. A request with the ARN of a change set does not need the name of a stack.
CHANGE_SETS = frozenset({"DeleteChangeSet", "DescribeChangeSet", "ExecuteChangeSet", "GetTemplate"})
CREATE_TAGS = frozenset({"CreateChangeSet", "CreateStack", "UpdateStack"})
CONDITION_MEMBERS = {
    "cloudformation:changesetname": "ChangeSetName",
    "cloudformation:resourcetypes": "ResourceTypes",
    "cloudformation:rolearn": "RoleARN",
    "cloudformation:stackpolicyurl": "StackPolicyURL",
    "cloudformation:templateurl": "TemplateURL",
}


def _owner(tx: Tx[Store], caller: Caller, params: Params, element: Params) -> str:
    stack = tx.store.stacks.get(element.get("StackId") or element.get("ExportingStackId") or "")
    return stack.owner if stack is not None else ""


def _owner_of_importer(tx: Tx[Store], caller: Caller, params: Params, name: str) -> str:
    stack = tx.store.stacks.named(caller.region, name)
    return stack.owner if stack is not None else ""


LISTED = {
    "DescribeStacks": Listed(("Stacks",), _owner),
    "ListExports": Listed(("Exports",), _owner),
    "ListImports": Listed(("Imports",), _owner_of_importer),
    "ListStacks": Listed(("StackSummaries",), _owner),
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the stack that the handler will find, and to read the objects of the request.

    The resources of a stack need their own permissions, which are checked when the stack creates the resources.
    """
    given = params.get("StackName") or ""
    change_set = params.get("ChangeSetName") or ""
    if operation in CHANGE_SETS and change_set.startswith("arn:"):
        found = tx.store.change_sets.get(change_set)
        given = found.stack_id if found is not None else ""
    arns = []
    if given.startswith("arn:"):
        arns = [given]
    elif given:
        stack = tx.store.stacks.named(caller.region, given)
        arns = [stack.id if stack is not None else f"arn:aws:cloudformation:{caller.region}:{caller.account}:stack/{given}/*"]
    elif operation == "DescribeStackResources":
        arns = [_stack_of_resource(tx, caller, params.get("PhysicalResourceId", ""))]
    context: Context = {**request_tags(params), **request_values(params, CONDITION_MEMBERS)}
    if imported := [each["ResourceType"] for each in params.get("ResourcesToImport") or () if each.get("ResourceType")]:
        context = {**context, "cloudformation:importresourcetypes": tuple(dict.fromkeys(imported))}
    needed = on_resources(f"cloudformation:{operation}", arns or ([UNKNOWN_RESOURCE] if change_set else []), context)
    if operation in CREATE_TAGS:
        needed += with_tags("cloudformation:TagResource", arns, params, {"cloudformation:createaction": (operation,)})
    if operation == "UpdateStack" and {"StackPolicyBody", "StackPolicyURL"} & params.keys():
        needed += on_resources("cloudformation:SetStackPolicy", arns, context)
    return needed + [read_object(each.bucket, each.key, each.version_id) for each in addresses(tx, caller, params)]


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    stack = tx.store.stacks.get(permission.resource)
    return ResourceFacts(stack.owner, stack.version.tags) if stack is not None else ResourceFacts()


def _stack_of_resource(tx: Tx[Store], caller: Caller, physical_id: str) -> str:
    try:
        return stack_with_resource(tx, caller, physical_id).id
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return UNKNOWN_RESOURCE
