"""SQL of hosts that have joined from other machines, and of the tokens with which hosts join."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec
import orjson

from corral.core.database import Database, Row
from corral.model.joined_host import JoinedHost, JoinToken

_TOKEN = "id, digest, uses, used, cluster, rack, created_at, expires_at"
_HOST = (
    "id, name, key_digest, token_id, serial, earlier_serial, cluster, rack, address, version, joined_at, revoked_at, machine, "
    "refused, refused_address, forgotten_at"
)


class JoinedHosts:
    """The writer also has all joined hosts in memory: `get` needs no query, and any thread may call it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.close_connections: Callable[[str], object] = lambda host_id: None  # called after a commit; closes those of a host
        rows = [] if database.reads_only else database.execute(f"SELECT {_HOST} FROM joined_host")
        self._by_id: dict[str, JoinedHost] = {row[0]: _joined(row) for row in rows}

    # -- hosts ---------------------------------------------------------------------------------------------------

    def get(self, host_id: str) -> JoinedHost | None:
        """Return a joined host, as of the last commit. Only the writer's store has them."""
        return self._by_id.get(host_id)

    def all(self) -> dict[str, JoinedHost]:
        """Return all joined hosts by id, also revoked ones."""
        return {row[0]: _joined(row) for row in self._database.execute(f"SELECT {_HOST} FROM joined_host ORDER BY id")}

    def find(self, host_id: str) -> JoinedHost | None:
        """Return a joined host, as the rows of this transaction say."""
        row = self._database.execute(f"SELECT {_HOST} FROM joined_host WHERE id = ?", (host_id,)).fetchone()
        return None if row is None else _joined(row)

    def is_revoked(self, host_id: str) -> bool:
        sql = "SELECT 1 FROM joined_host WHERE id = ? AND revoked_at IS NOT NULL"
        return self._database.execute(sql, (host_id,)).fetchone() is not None

    def revoked_among(self, host_ids: Iterable[str]) -> set[str]:
        sql = "SELECT id FROM joined_host WHERE revoked_at IS NOT NULL AND id IN (SELECT value FROM json_each(?))"
        return {host_id for (host_id,) in self._database.execute(sql, (orjson.dumps(list(host_ids)).decode(),))}

    def named(self, name: str) -> JoinedHost | None:
        """Return the joined host with this name that is neither revoked nor forgotten, or else the one that was so last."""
        ended = "max(ifnull(revoked_at, 0), ifnull(forgotten_at, 0))"
        sql = f"SELECT {_HOST} FROM joined_host WHERE name = ? ORDER BY {ended} > 0, {ended} DESC LIMIT 1"
        row = self._database.execute(sql, (name,)).fetchone()
        return None if row is None else _joined(row)

    def with_key(self, key_digest: str) -> JoinedHost | None:
        row = self._database.execute(f"SELECT {_HOST} FROM joined_host WHERE key_digest = ?", (key_digest,)).fetchone()
        return None if row is None else _joined(row)

    def is_name_taken(self, name: str, host_id: str) -> bool:
        """Whether another host that is neither revoked nor forgotten has this name."""
        sql = (
            "SELECT 1 FROM joined_host WHERE name = ?1 AND id != ?2 AND revoked_at IS NULL AND forgotten_at IS NULL UNION ALL "
            "SELECT 1 FROM host WHERE name = ?1 AND id != ?2 AND id NOT IN (SELECT id FROM joined_host)"
        )
        return self._database.execute(sql, (name, host_id)).fetchone() is not None

    def put(self, host: JoinedHost) -> None:
        members = (
            host.id, host.name, host.key_digest, host.token_id, host.serial, host.earlier_serial, host.cluster, host.rack,
            host.address, host.version, host.joined_at_s, host.revoked_at_s, _dumps(host.machine), _dumps(host.refused),
            host.refused_address, host.forgotten_at_s,
        )  # fmt: skip
        self._database.execute(f"INSERT OR REPLACE INTO joined_host ({_HOST}) VALUES ({', '.join('?' * len(members))})", members)
        self._database.undo_log.on_commit(partial(self._committed, host))

    def _committed(self, host: JoinedHost) -> None:
        self._by_id[host.id] = host
        if host.revoked_at_s is not None:
            self.close_connections(host.id)

    def drop(self, host_ids: Iterable[str]) -> None:
        """Delete hosts that never return. Their certificates are not valid any more."""
        for host_id in host_ids:
            self._database.execute("DELETE FROM joined_host WHERE id = ?", (host_id,))
            self._database.undo_log.on_commit(partial(self._by_id.pop, host_id, None))

    def cut_off(self, host_id: str) -> None:
        """Close all connections of a host after the commit. It may connect again."""
        self._database.undo_log.on_commit(partial(self._close, host_id))

    def _close(self, host_id: str) -> None:
        self.close_connections(host_id)

    # -- tokens --------------------------------------------------------------------------------------------------

    def add_token(self, token: JoinToken) -> None:
        self._database.execute(
            f"INSERT INTO join_token ({_TOKEN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (token.id, token.digest, token.uses, token.used, token.cluster, token.rack, token.created_at_s, token.expires_at_s),
        )

    def token(self, token_id: str) -> JoinToken | None:
        row = self._database.execute(f"SELECT {_TOKEN} FROM join_token WHERE id = ?", (token_id,)).fetchone()
        return None if row is None else JoinToken(*row)

    def tokens(self) -> list[JoinToken]:
        return [JoinToken(*row) for row in self._database.execute(f"SELECT {_TOKEN} FROM join_token ORDER BY created_at, id")]

    def use_token(self, token_id: str) -> None:
        self._database.execute("UPDATE join_token SET used = used + 1 WHERE id = ?", (token_id,))

    def drop_token(self, token_id: str) -> bool:
        return bool(self._database.execute("DELETE FROM join_token WHERE id = ?", (token_id,)).rowcount)

    def drop_tokens_expired_before(self, at_s: float) -> None:
        self._database.execute("DELETE FROM join_token WHERE expires_at < ?", (at_s,))


def _joined(row: Row) -> JoinedHost:
    machine, refused = (msgspec.json.decode(text, type=dict[str, str]) for text in row[12:14])
    return JoinedHost(*(*row[:12], machine, refused, *row[14:]))


def _dumps(fingerprint: dict[str, str]) -> str:
    return msgspec.json.encode(fingerprint).decode()
