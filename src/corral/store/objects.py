"""Buckets, objects and uploads: their only SQL. The bytes themselves are files (`blobs/`)."""

from __future__ import annotations

from corral.database import Database


class Objects:
    """A part of the state store: it shares the store's connection, transactions and savepoints."""

    def __init__(self, database: Database) -> None:
        self._database = database
