"""Loads the console with its first request or its first link. Only this module of the console is imported at the start."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from corral.core.clock import Clock
from corral.core.ids import Ids
from corral.model.session import ConsoleIdentity
from corral.model.settings import ConsoleAccess, Settings
from corral.process.data_folder import CONSOLE
from corral.server.front_door import FrontDoor
from corral.server.http.server import HttpServer
from corral.server.lanes import Lane
from corral.store.iam_index import IamIndex

if TYPE_CHECKING:
    from corral.server.console.console import Console
    from corral.server.console.sessions import ConsoleSessions


class ConsoleOpener:
    def __init__(
        self,
        data: Path,
        settings: Settings,
        lanes: Mapping[str, Lane[Any]],
        iam: IamIndex,
        ids: Ids,
        clock: Clock,
        port: int,
        names: Sequence[str],
    ) -> None:
        """`names` are names by which browsers reach this machine, besides its host name."""
        self._data = data
        self._settings = settings
        self._lanes = lanes
        self._iam = iam
        self._ids = ids
        self._clock = clock
        self._port = port
        self._names = names
        self._lock = Lock()
        self._sessions: ConsoleSessions | None = None
        self._console: Console | None = None
        self._check_streams: Callable[[], object] = lambda: None  # any thread may call it
        self.access = ConsoleAccess(port, self._create_link, self._end_sessions)

    def __call__(self, front_door: FrontDoor, server: HttpServer) -> Console:
        """Return what serves the port of the console. Call this on the event loop."""
        if self._console is None:
            from corral.server.console.changes import Changes
            from corral.server.console.console import Console
            from corral.server.console.guard import Guard

            changes = Changes(self._lanes, self._settings, self._ids, self._clock)
            server.before_exit.append(changes.close)
            self._check_streams = partial(asyncio.get_running_loop().call_soon_threadsafe, changes.check_sessions)
            guard = Guard((socket.gethostname(), *self._names))
            self._console = Console(front_door, self._open_sessions(), guard, self._settings, changes, self._port)
        return self._console

    def _create_link(self, identity: ConsoleIdentity) -> tuple[str, float]:
        return self._open_sessions().create_link(identity)

    def _end_sessions(self, owner: str) -> int:
        ended = self._open_sessions().end_of_owner(owner)
        self._check_streams()
        return ended

    def _open_sessions(self) -> ConsoleSessions:
        """Return the sessions. Any thread may call this."""
        with self._lock:
            if self._sessions is None:
                from corral.server.console.sessions import ConsoleSessions

                settings = self._settings
                path = self._data / CONSOLE
                self._sessions = ConsoleSessions(path, settings.account, settings.sessions, self._iam, self._clock)
            return self._sessions
