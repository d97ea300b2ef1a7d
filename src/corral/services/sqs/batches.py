"""Batches: up to ten entries, each of which succeeds or fails by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from corral.errors import ApiError, api_error

BatchEntryIdsNotDistinct = api_error("BatchEntryIdsNotDistinct")
EmptyBatchRequest = api_error("EmptyBatchRequest")
InvalidBatchEntryId = api_error("InvalidBatchEntryId")
TooManyEntriesInBatchRequest = api_error("TooManyEntriesInBatchRequest")

ENTRIES_MAX = 10
ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")

Entry = dict[str, Any]


def check_batch(entries: list[Entry], entry_name: str) -> None:
    if not entries:
        raise EmptyBatchRequest(f"There should be at least one {entry_name} in the request.")
    if len(entries) > ENTRIES_MAX:
        raise TooManyEntriesInBatchRequest(
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(entries)}."
        )
    seen = set()
    for entry in entries:
        if not ENTRY_ID.fullmatch(entry["Id"]):
            raise InvalidBatchEntryId(
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long."
            )
        if entry["Id"] in seen:
            raise BatchEntryIdsNotDistinct(f"Id {entry['Id']} repeated.")
        seen.add(entry["Id"])


def each_of(entries: list[Entry], do: Callable[[Entry], Entry]) -> dict[str, list[Entry]]:
    """Do something with each entry; `do` refuses before it changes anything."""
    successful, failed = [], []
    for entry in entries:
        try:
            successful.append({"Id": entry["Id"], **do(entry)})
        except ApiError as error:
            failed.append(failure(entry, error))
    return {"Successful": successful, "Failed": failed}


def failure(entry: Entry, error: ApiError) -> Entry:
    return {"Id": entry["Id"], "SenderFault": error.status < 500, "Code": error.code, "Message": error.message}
