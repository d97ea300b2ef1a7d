"""The one-time links and the sessions of the console.

A session has two secrets: a cookie, and a second one that the page sends in a header. Cookies are shared by all ports of a host
name, so the cookie alone permits nothing. Corral stores only digests of both, in a file that only the owner of the data folder can
read, so sessions survive a restart. Links are in memory, and end with the server. A session ends early with what ends the temporary
credentials of its identity (`SessionValidity`): the removal of the user or of its access key, a new root key, and
`corral revoke --all`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from threading import Lock

import msgspec
from msgspec import Struct

from corral import aws
from corral.core.clock import Clock
from corral.core.errors import api_error
from corral.model.principal import ROOT, Principal, iam_user, root_user
from corral.model.session import ConsoleIdentity, SessionValidity
from corral.server.key_files import write_private
from corral.store.iam_index import IamIndex

LINK_S = 300.0
SESSION_S = 12 * 3600.0
OF_IDENTITY_MAX = 20  # links, and sessions, of one identity; a new one above this number ends the oldest

SessionEnded = api_error("SessionEnded", 401)
NO_SESSION = "This session of the console has ended: run `corral console` for a new link."
NO_LINK = "This link has been used, or has expired: run `corral console` for a new one."


class ConsoleLink(Struct, frozen=True):
    identity: ConsoleIdentity
    expires_at_s: float


class ConsoleSession(Struct, frozen=True):
    identity: ConsoleIdentity
    secret_digest: str
    expires_at_s: float


class NewSession(Struct, frozen=True):
    """The two secrets of a new session, which only the browser keeps."""

    cookie: str
    secret: str
    session: ConsoleSession


class Stored(Struct, frozen=True):
    sessions: dict[str, ConsoleSession]  # digest of the cookie → session, the oldest first


class ConsoleSessions:
    """Any thread may call the methods."""

    def __init__(self, path: Path, account: str, validity: SessionValidity, iam: IamIndex, clock: Clock) -> None:
        self._path = path
        self._account = account
        self._validity = validity
        self._iam = iam
        self._clock = clock
        self._lock = Lock()
        self._links: dict[str, ConsoleLink] = {}  # digest of the code → link, the oldest first
        self._sessions = _stored_sessions(path)

    def create_link(self, identity: ConsoleIdentity) -> tuple[str, float]:
        """Return the code of a new link, and when it expires."""
        code, expires_at_s = secrets.token_urlsafe(24), self._clock.wall_s() + LINK_S
        with self._lock:
            self._links = {name: link for name, link in self._links.items() if link.expires_at_s > self._clock.wall_s()}
            _keep_newest(self._links, identity.owner)
            self._links[_digest(code)] = ConsoleLink(identity, expires_at_s)
        return code, expires_at_s

    def redeem(self, code: str) -> NewSession:
        """Begin a session with the code of a link, which is used up. Raise SessionEnded if the code is not valid."""
        with self._lock:
            link = self._links.pop(_digest(code), None)
        now_s = self._clock.wall_s()
        if link is None or link.expires_at_s <= now_s or self.principal_of(link.identity) is None:
            raise SessionEnded(NO_LINK)
        cookie, secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        session = ConsoleSession(link.identity, _digest(secret), now_s + SESSION_S)

        def add(sessions: dict[str, ConsoleSession]) -> None:
            _keep_newest(sessions, link.identity.owner)
            sessions[_digest(cookie)] = session

        self._change(add)
        return NewSession(cookie, secret, session)

    def find(self, cookie: str, secret: str) -> tuple[ConsoleSession, aws.Identity]:
        """Return the session with these two secrets, and its identity. Raise SessionEnded if there is none."""
        session = self._sessions.get(_digest(cookie))
        if session is None or not compare_digest(session.secret_digest, _digest(secret)):
            raise SessionEnded(NO_SESSION)
        return session, self.identity_of(session)

    def identity_with_cookie(self, cookie: str) -> aws.Identity:
        """Return the identity of the session with this cookie, for a request that has another proof than the second secret."""
        session = self._sessions.get(_digest(cookie))
        if session is None:
            raise SessionEnded(NO_SESSION)
        return self.identity_of(session)

    def identity_of(self, session: ConsoleSession) -> aws.Identity:
        """Return the caller of the calls of a session. Raise SessionEnded if it has ended."""
        principal = self.principal_of(session.identity)
        if principal is None or session.expires_at_s <= self._clock.wall_s():
            raise SessionEnded(NO_SESSION)
        return aws.Identity(session.identity.access_key_id, principal, session.identity.region, "")

    def is_open(self, cookie: str, session: ConsoleSession) -> bool:
        is_known = self._sessions.get(_digest(cookie)) == session
        return is_known and session.expires_at_s > self._clock.wall_s() and self.principal_of(session.identity) is not None

    def end(self, cookie: str) -> None:
        self._change(lambda sessions: sessions.pop(_digest(cookie), None))

    def end_of_owner(self, owner: str) -> int:
        """End all sessions and links of an identity. Return the number of sessions."""
        ended: list[str] = []

        def remove(sessions: dict[str, ConsoleSession]) -> None:
            ended.extend(name for name, each in sessions.items() if each.identity.owner == owner)
            for name in ended:
                del sessions[name]

        with self._lock:
            self._links = {name: link for name, link in self._links.items() if link.identity.owner != owner}
        self._change(remove)
        return len(ended)

    def principal_of(self, identity: ConsoleIdentity) -> Principal | None:
        """Return the principal of an identity. Return None if its sessions have ended, because its user or its key is gone."""
        if not self._validity.includes(identity.epoch, None):
            return None
        if identity.owner == ROOT:
            return root_user(self._account)
        key = self._iam.keys.get(identity.access_key_id)
        user = self._iam.users.get(key.user) if key is not None else None
        return iam_user(self._account, user.name, user.path) if user is not None else None

    def _change(self, change: Callable[[dict[str, ConsoleSession]], object]) -> None:
        """Change the sessions, first on disk, then in memory. Sessions that have ended are removed as well."""
        with self._lock:
            now_s = self._clock.wall_s()
            sessions = {
                name: each
                for name, each in self._sessions.items()
                if each.expires_at_s > now_s and self.principal_of(each.identity) is not None
            }
            change(sessions)
            if sessions != self._sessions:
                write_private(self._path, msgspec.to_builtins(Stored(sessions)))
                self._sessions = sessions


def _stored_sessions(path: Path) -> dict[str, ConsoleSession]:
    """Return the sessions of the last server. A file that cannot be read has none: people ask for new links."""
    try:
        return msgspec.convert(json.loads(path.read_text()), Stored).sessions
    except (OSError, ValueError):
        return {}


def _keep_newest(known: dict[str, ConsoleLink] | dict[str, ConsoleSession], owner: str) -> None:
    """Remove the oldest links or sessions of an owner, so that there is room for one more."""
    same = [name for name, each in known.items() if each.identity.owner == owner]
    for name in same[: max(0, len(same) + 1 - OF_IDENTITY_MAX)]:
        del known[name]


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "replace")).hexdigest()
