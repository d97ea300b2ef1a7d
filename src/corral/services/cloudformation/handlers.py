"""The operations of CloudFormation and their handlers."""

from __future__ import annotations

from corral.operations.services import Fetch, Handler, Prepare, Settle
from corral.services.cloudformation import (
    change_sets,
    exports,
    stack_descriptions,
    stack_requests,
    template_requests,
    template_sources,
)

HANDLERS: dict[str, Handler] = {
    "CancelUpdateStack": stack_requests.cancel_update_stack,
    "ContinueUpdateRollback": stack_requests.continue_update_rollback,
    "CreateChangeSet": change_sets.create_change_set,
    "CreateStack": stack_requests.create_stack,
    "DeleteChangeSet": change_sets.delete_change_set,
    "DeleteStack": stack_requests.delete_stack,
    "DescribeAccountLimits": exports.describe_account_limits,
    "DescribeChangeSet": change_sets.describe_change_set,
    "DescribeStackEvents": stack_descriptions.describe_stack_events,
    "DescribeStackResource": stack_descriptions.describe_stack_resource,
    "DescribeStackResources": stack_descriptions.describe_stack_resources,
    "DescribeStacks": stack_descriptions.describe_stacks,
    "ExecuteChangeSet": change_sets.execute_change_set,
    "GetStackPolicy": stack_requests.get_stack_policy,
    "GetTemplate": template_requests.get_template,
    "GetTemplateSummary": template_requests.get_template_summary,
    "ListChangeSets": change_sets.list_change_sets,
    "ListExports": exports.list_exports,
    "ListImports": exports.list_imports,
    "ListStackResources": stack_descriptions.list_stack_resources,
    "ListStacks": stack_descriptions.list_stacks,
    "RollbackStack": stack_requests.rollback_stack,
    "SetStackPolicy": stack_requests.set_stack_policy,
    "SignalResource": stack_requests.signal_resource,
    "UpdateStack": stack_requests.update_stack,
    "UpdateTerminationProtection": stack_requests.update_termination_protection,
    "ValidateTemplate": template_requests.validate_template,
}

_WITH_TEMPLATE = ("CreateChangeSet", "CreateStack", "GetTemplateSummary", "UpdateStack", "ValidateTemplate")
FETCH: dict[str, Fetch] = dict.fromkeys((*_WITH_TEMPLATE, "SetStackPolicy"), template_sources.fetch)
PREPARE: dict[str, Prepare] = dict.fromkeys((*_WITH_TEMPLATE, "SetStackPolicy"), template_requests.prepare)
# The responses to these requests wait a short time for the end of the stack operation, because many stacks are complete within a
# second. Without this wait, `aws cloudformation deploy` would check the stack again only after 30 seconds.
SETTLE: dict[str, Settle] = {
    **dict.fromkeys(("CreateStack", "UpdateStack", "DeleteStack"), stack_requests.wait_for_operation),
    "ExecuteChangeSet": change_sets.wait_for_execution,
}
