"""Idempotency tokens of EC2: if a request repeats a ClientToken within TOKEN_S seconds, it gets the result of the first request."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Params
from corral.services.ec2.resources import EC2
from corral.store import Store

TOKEN_S = 24 * 3600.0


def recall(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> Any:
    """Return the stored result for the ClientToken of a request, or None if the request has no token or a new one.

    Raise an error if an earlier request used the token with other parameters.
    """
    token = params.get("ClientToken")
    stored = tx.store.tokens.get(_scope(caller, operation), token, tx.now_s) if token else None
    if stored is None:
        return None
    if stored[0] != _digest(params):
        assert EC2.token_reused is not None
        raise EC2.token_reused()
    return orjson.loads(stored[1])


def remember(tx: Tx[Store], caller: Caller, operation: str, params: Params, result: Any) -> None:
    if token := params.get("ClientToken"):
        text = orjson.dumps(result).decode()
        tx.store.tokens.put(_scope(caller, operation), token, _digest(params), text, tx.now_s + TOKEN_S)


def _scope(caller: Caller, operation: str) -> str:
    return f"{caller.region}/ec2/{operation}"


def _digest(params: Params) -> str:
    rest = {key: value for key, value in params.items() if key != "ClientToken"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()
