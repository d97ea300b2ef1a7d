"""Links to the code of functions, which GetFunction returns as `Code.Location`. A link contains its permission, as on AWS."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from corral.access.caller import Caller
from corral.access.roles import password_epoch
from corral.access.sessions import opened, packed, sealed
from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.store import Store
from corral.store.stored_resources import Document

PATH = "/_corral/functions/"
LIFETIME_S = 600  # the same as on AWS
PURPOSE = "function code"

LinkRefused = api_error("AccessDenied", 403)
NoCode = api_error("NotFound", 404)


class CodeLink(NamedTuple):
    code: int  # the row with the zip file
    expires_at_s: int
    task_id: str | None  # the task that requested the link; when this task is revoked, the link becomes invalid
    epoch: str  # if `SessionValidity` no longer has this epoch, the link is invalid


def code_link(tx: Tx[Store], caller: Caller, document: Document) -> str:
    link = CodeLink(document["_code"], int(tx.wall_s) + LIFETIME_S, caller.task_id, password_epoch(tx, caller))
    address = caller.endpoint_url or tx.settings.endpoint_url
    return f"{address}{PATH}{sealed(tx.settings.session_key, PURPOSE, packed(tuple(link)))}"


def linked_code(tx: Tx[Store], token: str) -> bytes:
    """Return the zip file to which a link leads. Raise an error if the link is not valid, or if the function has other code now."""
    payload = opened(tx.settings.session_key, PURPOSE, token)
    link = CodeLink(*orjson.loads(payload)) if payload is not None else None
    if link is None or not tx.settings.sessions.includes(link.epoch, link.task_id):
        raise LinkRefused("The link to the code is not valid: call GetFunction, and use its Code.Location.")
    if link.expires_at_s <= tx.wall_s:
        raise LinkRefused("Request has expired: call GetFunction again, and use its Code.Location.")
    code = tx.store.functions.code(link.code)
    if code is None:
        raise NoCode("The function was deleted, or has other code now: call GetFunction again, and use its Code.Location.")
    return code
