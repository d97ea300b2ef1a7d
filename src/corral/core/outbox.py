"""Packs the hand-overs of a transaction into rows of the table `outbox`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from corral.core.commands import Command

HANDOVER_MAX_BYTES = 16 * 1024  # payloads share a row of `outbox` up to this size; a larger payload gets its own row

NewHandover = tuple[str, str, str | None, bytes, Command | None]  # lane, kind, key, payload, and the command that sends it


def packed(handed: Iterable[NewHandover]) -> Iterator[NewHandover]:
    """Yield the rows. The payload of a row is a JSON list of payloads.

    A payload with a key has its own row. All other payloads that a command sends to the same receiver share a row of at most
    HANDOVER_MAX_BYTES; if they need more, they get several rows. The receiver handles each row in its own transaction, so that
    it can run other commands in between.
    """
    rows: list[tuple[str, str, str | None, list[bytes], Command | None]] = []
    newest: dict[tuple[str, str, str], int] = {}  # the last row of each key; the earlier rows of the key are not written
    open_rows: dict[tuple[str, str, Command | None], tuple[list[bytes], int]] = {}  # the row to append to, and its size
    for lane, kind, key, payload, command in handed:
        if key is not None:
            newest[lane, kind, key] = len(rows)
            rows.append((lane, kind, key, [payload], command))
            continue
        payloads, size = open_rows.get((lane, kind, command), ([], 0))
        if not payloads or size + len(payload) > HANDOVER_MAX_BYTES:
            payloads, size = [], 0
            rows.append((lane, kind, None, payloads, command))
        payloads.append(payload)
        open_rows[lane, kind, command] = payloads, size + len(payload)
    for at, (lane, kind, key, payloads, command) in enumerate(rows):
        if key is None or newest[lane, kind, key] == at:
            yield lane, kind, key, b"[" + b",".join(payloads) + b"]", command
