"""What AWS's session-manager-plugin asks of SSM itself; sessions are opened by ECS's ExecuteCommand."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.services.caller import Caller
from corral.store import Store


def resume_session(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """The plugin asks when it has lost its connection. A session ends with that here; an answer without a token says so."""
    return {"SessionId": params["SessionId"]}
