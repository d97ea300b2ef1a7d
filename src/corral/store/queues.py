"""Queues and their messages: their only SQL."""

from __future__ import annotations

from corral.database import Database


class Queues:
    """A part of the state store: it shares the store's connection, transactions and savepoints."""

    def __init__(self, database: Database) -> None:
        self._database = database
