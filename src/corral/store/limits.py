"""SQL of the limits of users and groups. All of them are also in memory, because each placement asks for them."""

from __future__ import annotations

from functools import partial

import msgspec

from corral.core.database import Database
from corral.model.limits import NO_LIMITS, Limits


class StoredLimits:
    """The limits by subject. Readers share the object of the writer, and do not change it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.of: dict[str, Limits] = self.rows()
        self.limits_requests = False  # whether any subject has a limit of requests per second
        self._note()

    def rows(self) -> dict[str, Limits]:
        rows = self._database.execute("SELECT subject, limits FROM subject_limits").fetchall()
        return {subject: msgspec.json.decode(text, type=Limits) for subject, text in rows}

    def put(self, subject: str, limits: Limits) -> None:
        """Replace the limits of a subject. Without any, delete its row."""
        if limits == NO_LIMITS:
            self._database.execute("DELETE FROM subject_limits WHERE subject = ?", (subject,))
        else:
            text = msgspec.json.encode(limits).decode()
            self._database.execute("INSERT OR REPLACE INTO subject_limits VALUES (?, ?)", (subject, text))
        self._database.undo_log.on_rollback(partial(self._set, subject, self.of.get(subject, NO_LIMITS)))
        self._set(subject, limits)

    def _set(self, subject: str, limits: Limits) -> None:
        if limits == NO_LIMITS:
            self.of.pop(subject, None)
        else:
            self.of[subject] = limits
        self._note()

    def _note(self) -> None:
        self.limits_requests = any(each.requests_per_second is not None for each in self.of.values())
