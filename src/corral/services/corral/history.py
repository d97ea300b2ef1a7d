"""Records of stopped tasks, newest first, and the hours that tasks and instances have used."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.task_history import PAGE_MAX, history_page
from corral.model.numbers import whole_number
from corral.operations.pagination import Pagination
from corral.services.corral.errors import InvalidRequestException
from corral.store import Store
from corral.store.task_history import HistoryFilter

PAGES = Pagination(InvalidRequestException, limit="limit", largest=PAGE_MAX)
NAMES_SHOWN_MAX = 100


def get_history(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    latest = params.get("latest", False)
    if latest and not params.get("name"):
        raise InvalidRequestException("latest needs a name: pass a name or a glob, for example train*.")
    wanted = HistoryFilter(
        region=caller.region,
        cluster=params.get("cluster", ""),
        name=params.get("name", ""),
        id=params.get("id", "").lower(),
        array=params.get("array", ""),
        failed=params.get("failed", False),
        since_s=_since_s(tx, params) or 0.0,
        before=PAGES.position(params, _number) if "nextToken" in params else None,
    )
    limit = PAGES.limit_of(params)
    assert limit is not None, "there is a default"
    found = history_page(tx, wanted, limit, latest=latest)
    before = found.pop("before")
    return found | PAGES.more(None if before is None else str(before))


def _number(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise ValueError
    return number


def list_task_names(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"names": tx.store.tasks.history.names(caller.region, params.get("prefix", ""), NAMES_SHOWN_MAX)}


def get_usage(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    from corral.fleet.instance_cost import cost_report  # imported here, because it loads EC2's modules

    return cost_report(tx, _since_s(tx, params), reads_tasks=params.get("tasks", True), owner=params.get("owner", ""))


def _since_s(tx: Tx[Store], params: dict[str, Any]) -> float | None:
    """Return the time of `since`, or the time of `last`, a number of seconds before now. Return None if there is neither."""
    last_s: float | None = params.get("last")
    if last_s is not None:
        return max(0.0, tx.now_s - last_s)
    since_s: float | None = params.get("since")
    return tx.steps.steady_s(since_s) if since_s is not None else None
