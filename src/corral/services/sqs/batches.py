"""Batch requests: up to ten entries. Each entry succeeds or fails independently of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.core.errors import ApiError
from corral.services.sqs.errors import BatchEntryIdsNotDistinct

BatchEntry = dict[str, Any]


def check_ids(entries: list[BatchEntry]) -> None:
    seen = set()
    for entry in entries:
        if entry["Id"] in seen:
            raise BatchEntryIdsNotDistinct(f"Id {entry['Id']} repeated.")
        seen.add(entry["Id"])


def run_batch(entries: list[BatchEntry], run: Callable[[BatchEntry], BatchEntry]) -> dict[str, list[BatchEntry]]:
    """Run each entry and collect the results. If an entry fails, `run` must raise an ApiError before it changes anything."""
    successful, failed = [], []
    for entry in entries:
        try:
            successful.append({"Id": entry["Id"], **run(entry)})
        except ApiError as error:
            failed.append(failure(entry, error))
    return batch_results(successful, failed)


def batch_results(successful: list[BatchEntry], failed: list[BatchEntry]) -> dict[str, list[BatchEntry]]:
    """The response of a batch request. It omits an empty list, as AWS does, although the model requires both."""
    return {name: entries for name, entries in (("Successful", successful), ("Failed", failed)) if entries}


def failure(entry: BatchEntry, error: ApiError) -> BatchEntry:
    return {"Id": entry["Id"], "SenderFault": error.status < 500, "Code": error.code, "Message": error.message}
