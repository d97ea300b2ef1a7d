"""SQL of client tokens. If a client repeats a request with the same token, it gets the response of the first request."""

from __future__ import annotations

from corral.core.database import Database


class ClientTokens:
    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, scope: str, token: str, now_s: float) -> tuple[str, str] | None:
        """Return the digest of the first request and its response; None if the token is unknown or has expired."""
        row = self._database.execute(
            "SELECT request, reply FROM client_token WHERE scope = ? AND token = ? AND expires_at > ?", (scope, token, now_s)
        ).fetchone()
        return (row[0], row[1]) if row else None

    def put(self, scope: str, token: str, request: str, reply: str, expires_at_s: float) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO client_token VALUES (?, ?, ?, ?, ?)", (scope, token, request, reply, expires_at_s)
        )

    def drop_expired(self, now_s: float, limit: int) -> int:
        return self._database.execute(
            "DELETE FROM client_token WHERE (scope, token) IN "
            "(SELECT scope, token FROM client_token WHERE expires_at <= ? LIMIT ?)",
            (now_s, limit),
        ).rowcount
