"""SQL of the access keys of IAM users, and of the times when users and roles last called a service."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from corral.core.database import Database
from corral.model.access_key import AccessKey
from corral.store.iam_index import IamIndex, LastUse

COLUMNS = "id, user, secret, status, created_at, used_at, used_service, used_region"


class AccessKeys:
    def __init__(self, database: Database, index: IamIndex) -> None:
        self._database = database
        self._index = index
        if not database.reads_only:
            index.keys = {row[0]: AccessKey(*row) for row in database.execute(f"SELECT {COLUMNS} FROM access_key")}

    def get(self, key_id: str) -> AccessKey | None:
        row = self._database.execute(f"SELECT {COLUMNS} FROM access_key WHERE id = ?", (key_id,)).fetchone()
        return AccessKey(*row) if row else None

    def of_user(self, user: str) -> list[AccessKey]:
        """The access keys of a user, sorted by id."""
        rows = self._database.execute(f"SELECT {COLUMNS} FROM access_key WHERE user = ? ORDER BY id", (user,))
        return [AccessKey(*row) for row in rows]

    def add(self, key: AccessKey) -> None:
        sql = f"INSERT INTO access_key ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._database.execute(
            sql,
            (key.id, key.user, key.secret, key.status, key.created_at_s, key.used_at_s, key.used_service, key.used_region),
        )
        self._database.undo_log.on_commit(partial(self._index.changed_key, key.id, key))

    def set_status(self, key: AccessKey, status: str) -> None:
        self._database.execute("UPDATE access_key SET status = ? WHERE id = ?", (status, key.id))
        self._database.undo_log.on_commit(partial(self._index.changed_key, key.id, replace(key, status=status)))

    def count(self, user: str) -> int:
        return int(self._database.execute("SELECT count(*) FROM access_key WHERE user = ?", (user,)).fetchone()[0])

    def drop(self, key: AccessKey) -> None:
        self._database.execute("DELETE FROM access_key WHERE id = ?", (key.id,))
        self._database.undo_log.on_commit(partial(self._index.changed_key, key.id, None))

    def last_use(self, key: AccessKey) -> LastUse | None:
        noted = self._index.key_uses.get(key.id)
        if noted is not None:
            return noted
        return LastUse(key.used_service, key.used_region, key.used_at_s) if key.used_at_s is not None else None

    def uses_of(self, entity: str) -> dict[str, LastUse]:
        """The services that a user or a role (`entity_of`) has called, with the last use of each."""
        rows = self._database.execute("SELECT service, region, used_at FROM service_use WHERE entity = ?", (entity,))
        return {row[0]: LastUse(*row) for row in rows} | self._index.service_uses.get(entity, {}).copy()

    def store_uses(self, uses: Iterable[tuple[str, str, LastUse]]) -> None:
        """Store what `IamIndex.take_unsaved` has returned."""
        for entity, name, use in uses:
            if entity:
                sql = (
                    "INSERT INTO service_use (entity, service, region, used_at) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (entity, service) DO UPDATE SET region = excluded.region, used_at = excluded.used_at"
                )
                self._database.execute(sql, (entity, name, use.region, use.at_s))
            else:
                sql = "UPDATE access_key SET used_at = ?, used_service = ?, used_region = ? WHERE id = ?"
                self._database.execute(sql, (use.at_s, use.service, use.region, name))

    def forget_uses(self, entity: str) -> None:
        """Forget when a user or a role that is deleted was used."""
        self._database.execute("DELETE FROM service_use WHERE entity = ?", (entity,))
        self._database.undo_log.on_commit(partial(self._index.service_uses.pop, entity, None))
