"""The operations of CloudFormation and their handlers."""

from __future__ import annotations

from functools import partial

from corral.aws.handlers import handlers_in
from corral.operations.services import Fetch, Handler, Prepare, Settle
from corral.services.cloudformation import (
    change_sets,
    exports,
    stack_descriptions,
    stack_requests,
    template_requests,
    template_sources,
)

HANDLERS: dict[str, Handler] = handlers_in("cloudformation", globals())

_WITH_TEMPLATE = ("CreateChangeSet", "CreateStack", "GetTemplateSummary", "UpdateStack", "ValidateTemplate")
FETCH: dict[str, Fetch] = {
    **dict.fromkeys((*_WITH_TEMPLATE, "SetStackPolicy"), template_sources.fetch),
    **dict.fromkeys(("GetTemplateSummary", "ValidateTemplate"), partial(template_sources.fetch, is_obeyed=False)),
}
PREPARE: dict[str, Prepare] = dict.fromkeys((*_WITH_TEMPLATE, "SetStackPolicy"), template_requests.prepare)
# The responses to these requests wait a short time for the end of the stack operation, because many stacks are complete within a
# second. Without this wait, `aws cloudformation deploy` would check the stack again only after 30 seconds.
SETTLE: dict[str, Settle] = {
    **dict.fromkeys(("CreateStack", "UpdateStack", "DeleteStack"), stack_requests.wait_for_operation),
    "ExecuteChangeSet": change_sets.wait_for_execution,
}
