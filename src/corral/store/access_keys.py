"""SQL of the access keys of IAM users, and of the times when users and roles last called a service."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from corral.core.database import Database
from corral.model.access_key import AccessKey
from corral.store.iam_index import IamIndex

COLUMNS = "id, user, secret, status, created_at, used_at, used_service, used_region"


class ServiceUse(Struct, frozen=True):
    """When an entity (`user/NAME` or `role/NAME`) last called a service."""

    entity: str
    service: str  # as in actions: "s3"
    region: str
    used_at_s: float


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

    def drop(self, key: AccessKey) -> None:
        self._database.execute("DELETE FROM access_key WHERE id = ?", (key.id,))
        self._database.undo_log.on_commit(partial(self._index.changed_key, key.id, None))

    def used(self, key_id: str, service: str, region: str, used_at_s: float) -> None:
        sql = "UPDATE access_key SET used_at = ?, used_service = ?, used_region = ? WHERE id = ?"
        self._database.execute(sql, (used_at_s, service, region, key_id))

    def uses_of(self, entity: str) -> list[ServiceUse]:
        """The services that a user or a role has called, sorted by service."""
        sql = "SELECT entity, service, region, used_at FROM service_use WHERE entity = ? ORDER BY service"
        return [ServiceUse(*row) for row in self._database.execute(sql, (entity,))]

    def put_uses(self, uses: Iterable[ServiceUse]) -> None:
        sql = (
            "INSERT INTO service_use (entity, service, region, used_at) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (entity, service) DO UPDATE SET region = excluded.region, used_at = excluded.used_at"
        )
        self._database.executemany(sql, [(use.entity, use.service, use.region, use.used_at_s) for use in uses])

    def forget_uses(self, entity: str) -> None:
        self._database.execute("DELETE FROM service_use WHERE entity = ?", (entity,))
