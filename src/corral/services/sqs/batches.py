"""Batches: up to ten entries, each of which succeeds or fails by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.errors import ApiError, api_error

BatchEntryIdsNotDistinct = api_error("BatchEntryIdsNotDistinct")
EmptyBatchRequest = api_error("EmptyBatchRequest")
InvalidBatchEntryId = api_error("InvalidBatchEntryId")
TooManyEntriesInBatchRequest = api_error("TooManyEntriesInBatchRequest")

Entry = dict[str, Any]


def check_ids(entries: list[Entry]) -> None:
    seen = set()
    for entry in entries:
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
