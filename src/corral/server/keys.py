"""Whose access key is it: the root's, which the data folder keeps, or that of a session."""

from __future__ import annotations

from collections.abc import Container

from corral.aws import Secret
from corral.services import sessions

ENDED_S = 0.0  # when the sessions of a stopped task have expired: long ago


class Keys:
    """The lookup of every request, so it asks nobody."""

    def __init__(self, root_key_id: str, root: Secret, session_key: bytes, live_tasks: Container[str]) -> None:
        self._root_key_id = root_key_id
        self._root = root
        self._session_key = session_key
        self._live_tasks = live_tasks

    def __call__(self, access_key_id: str, token: str | None) -> Secret | None:
        if access_key_id == self._root_key_id:
            return self._root
        found = sessions.read(self._session_key, access_key_id, token) if token else None
        if found is None:
            return None
        session = found.session
        lives = session.task_id is None or session.task_id in self._live_tasks
        expires_at_s = session.expires_at_s if lives else ENDED_S
        return Secret(found.secret_key, token, expires_at_s, session.principal, session.task_id)
