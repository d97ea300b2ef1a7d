"""The operations of Lambda and their handlers. A program in a container needs a policy for all of them."""

from __future__ import annotations

from corral.aws.handlers import handlers_in
from corral.operations.services import Fetch, Handler, Prepare
from corral.services.lambda_ import code, event_source_mappings, functions, invocations, policies, tags

HANDLERS: dict[str, Handler] = handlers_in("lambda", globals()) | {
    "GetFunction": functions.describe_function,
}
FETCH: dict[str, Fetch] = dict.fromkeys(("CreateFunction", "UpdateFunctionCode"), code.fetch)
PREPARE: dict[str, Prepare] = dict.fromkeys(("CreateFunction", "UpdateFunctionCode"), code.prepare)
