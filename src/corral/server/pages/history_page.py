"""The page `/_corral/history`: the records of stopped tasks, newest first.

`region` is required. The other parameters are optional. `cluster`, `name` (a name or a glob), `id` (the beginning of an id),
`array` (the id of an array) and `failed=1` select tasks. `since` is a time in seconds since 1970, and `last` is a number of seconds
before now. `limit` is the maximum number of tasks in the response. If more tasks match, the member `before` of the response is the
parameter `before` of the next request; otherwise it is null. `latest=1` selects the newest task of each matching name. With
`names`, the response has no tasks, only the names in the region that begin with the value of `names`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from msgspec.structs import replace

from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.fleet.task_history import PAGE_MAX, history_page
from corral.model.numbers import whole_number
from corral.store import Store
from corral.store.task_history import HistoryFilter

InvalidHistoryQuery = api_error("InvalidQuery", 400)
PARAMETERS = ("region", "cluster", "name", "id", "array", "failed", "since", "last", "limit", "before", "latest", "names")
DEFAULT_LIMIT = 100
TEXT_MAX = 256  # characters of a parameter
NAMES_SHOWN_MAX = 100


def history_content(query: str) -> Callable[[Tx[Store]], dict[str, Any]]:
    """Check the parameters of a request. Return a function that reads the content of the page."""
    given = parse_qs(query, keep_blank_values=True)
    for name, values in given.items():
        if name not in PARAMETERS:
            raise InvalidHistoryQuery(f"The parameter '{name[:TEXT_MAX]}' is not known: use {', '.join(PARAMETERS)}.")
        if len(values) > 1 or len(values[0]) > TEXT_MAX:
            raise InvalidHistoryQuery(f"{name} is not valid: pass it once, with at most {TEXT_MAX} characters.")
    texts = {name: values[0] for name, values in given.items()}
    if not texts.get("region"):
        raise InvalidHistoryQuery("region is missing: name the region of the tasks, as in /_corral/history?region=us-east-1.")
    if "names" in texts:
        return lambda tx: {"names": tx.store.tasks.history.names(texts["region"], texts["names"], NAMES_SHOWN_MAX)}
    since_s, last_s = _number(texts, "since"), _number(texts, "last")
    limit = _number(texts, "limit")
    limit = DEFAULT_LIMIT if limit is None else limit
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidHistoryQuery(f"limit {limit} is not valid: pass a number from 1 to {PAGE_MAX}.")
    latest = _flag(texts, "latest")
    if latest and not texts.get("name"):
        raise InvalidHistoryQuery("latest=1 needs a name: pass a name or a glob, as in name=train*.")
    wanted = HistoryFilter(
        region=texts["region"],
        cluster=texts.get("cluster", ""),
        name=texts.get("name", ""),
        id=texts.get("id", "").lower(),
        array=texts.get("array", ""),
        failed=_flag(texts, "failed"),
        since_s=since_s or 0,
        before=_number(texts, "before"),
    )

    def read(tx: Tx[Store]) -> dict[str, Any]:
        chosen = wanted
        if last_s is not None:
            chosen = replace(wanted, since_s=max(0.0, tx.now_s - last_s))
        return history_page(tx, chosen, limit, latest=latest)

    return read


def _number(texts: Mapping[str, str], name: str) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    number = whole_number(text)
    if number is None:
        raise InvalidHistoryQuery(f"{name} '{text}' is not valid: pass a whole number.")
    return number


def _flag(texts: Mapping[str, str], name: str) -> bool:
    text = texts.get(name, "0")
    if text not in ("0", "1"):
        raise InvalidHistoryQuery(f"{name} '{text}' is not valid: pass 0 or 1.")
    return text == "1"
