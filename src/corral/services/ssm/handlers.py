"""The operations of Systems Manager and their handlers."""

from typing import Any

from corral.access.caller import Caller
from corral.aws.handlers import handlers_in
from corral.core.transactions import Tx
from corral.services.ssm import listing, parameters
from corral.store import Store


def resume_session(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Answer the session-manager-plugin, which has lost its connection and wants a new token.

    The session ended with the connection, so the response has no token.
    """
    return {"SessionId": params["SessionId"]}


HANDLERS = handlers_in("ssm", globals()) | {
    "ResumeSession": resume_session,
}
