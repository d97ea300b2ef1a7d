"""Exports of stacks, the stacks that import them, and the limits of the account."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.pagination import among
from corral.services.cloudformation.errors import ValidationError
from corral.services.cloudformation.stack_descriptions import PAGE
from corral.services.cloudformation.stack_quotas import ACCOUNT_LIMITS
from corral.store import Store


def list_exports(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    def candidates(after: str, limit: int) -> list[tuple[str, dict[str, str]]]:
        return [
            (name, {"ExportingStackId": stack_id, "Name": name, "Value": value})
            for name, value, stack_id in tx.store.stacks.exports(caller.region, after, limit)
        ]

    exports, more = PAGE.page(params, candidates)
    return {"Exports": exports, **more}


def list_imports(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    importers = tx.store.stacks.importers(caller.region, params["ExportName"])
    if not importers:
        raise ValidationError(f"Export '{params['ExportName']}' is not imported by any stack.")
    names, more = PAGE.page(params, among({name: name for name in importers}))
    return {"Imports": names, **more}


def describe_account_limits(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"AccountLimits": [{"Name": name, "Value": value} for name, value in ACCOUNT_LIMITS.items()]}
