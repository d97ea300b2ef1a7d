"""The one-time links of the console, and the end of its sessions. `server/console/sessions.py` keeps both."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.principal import USER
from corral.model.session import ConsoleIdentity
from corral.services.corral.errors import AccessDeniedException
from corral.store import Store


def create_console_link(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Create a link for the caller. Its session ends with the user, and with the access key that has signed this request."""
    _require_own_key(caller)
    valid, epoch = tx.settings.sessions, tx.settings.sessions.of_root
    if caller.principal.kind == USER:
        epoch = valid.of_user(tx.store.iam.users[caller.principal.name].id, caller.access_key_id)
    console = tx.settings.server.console
    identity = ConsoleIdentity(caller.owner, caller.access_key_id, epoch, caller.region)
    code, expires_at_s = console.create_link(identity)
    return {"url": _url(caller.endpoint_url or tx.settings.endpoint_url, console.port), "code": code, "expiresAtS": expires_at_s}


def end_console_sessions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _require_own_key(caller)
    return {"sessions": tx.settings.server.console.end_sessions(caller.owner)}


def _require_own_key(caller: Caller) -> None:
    """Raise AccessDeniedException for temporary credentials: a session of the console can do all that its user may."""
    if not caller.principal.has_own_key:
        raise AccessDeniedException(
            "Temporary credentials have no console: sign the request with the root key (`corral env`) or the key of a user."
        )


def _url(endpoint_url: str, port: int) -> str:
    """Return the URL of the console at the host name of a URL of the API."""
    parts = urlsplit(endpoint_url)
    name = parts.hostname or "127.0.0.1"
    return f"{parts.scheme}://{f'[{name}]' if ':' in name else name}:{port}/"
