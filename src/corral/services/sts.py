"""AWS STS."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.services.caller import Caller


def get_caller_identity(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"UserId": caller.account, "Account": caller.account, "Arn": caller.principal}


HANDLERS = {"GetCallerIdentity": get_caller_identity}
