"""Opens the door when the server starts with --door, or when the first token is created.

The module of the door is imported with that, because it needs the cryptography package, and most servers have one machine.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from corral.configuration.file import store_settings
from corral.configuration.settings import UP
from corral.core.clock import Clock
from corral.node.link import Link
from corral.server.http.server import HttpServer
from corral.server.lanes import Lane
from corral.server.upgrade_files import UpgradeFiles
from corral.store import Store

if TYPE_CHECKING:
    from corral.server.door.door import Door

DAY_S = 86_400.0


class DoorOpener:
    def __init__(
        self, data: Path, state: Lane[Store], store: Store, clock: Clock, port: int, account: str, certificate_days: float,
        opened: Callable[[Link], object], gateways: HttpServer, upgrade_files: UpgradeFiles,
    ) -> None:  # fmt: skip
        """`port` is the port of the API. `opened` and `gateways`: see `Door`."""
        self._data = data
        self._state = state
        self._store = store
        self._clock = clock
        self._port = port
        self._account = account
        self._certificate_s = certificate_days * DAY_S
        self._loop = asyncio.get_running_loop()
        self._door: Door | None = None
        self._opening = asyncio.Lock()
        self._opened = opened
        self._gateways = gateways
        self._upgrade_files = upgrade_files

    async def open(self, listener: socket.socket | None = None) -> dict[str, str]:
        """Open the door, unless it is open. Without `listener`, listen on the default port, and remember it. Raise Refused."""
        from corral.node.server_access import DOOR_PORT
        from corral.server.door.authority import Authority
        from corral.server.door.door import Door, listen_for_hosts
        from corral.server.door.joining import Joiner
        from corral.server.lenders.pilot_files import PilotFiles

        async with self._opening:
            if self._door is None:
                if listener is None:
                    listener = listen_for_hosts(self._data, str(DOOR_PORT))
                    await asyncio.to_thread(store_settings, self._data, {f"{UP}.door": str(DOOR_PORT)})
                folder = self._data / "door"
                folder.mkdir(mode=0o700, exist_ok=True)
                authority = Authority(folder, self._clock.wall_s())
                authority.issue_server(self._clock.wall_s())
                joiner = Joiner(
                    authority,
                    self._state,
                    self._clock,
                    self._port,
                    self._account,
                    self._certificate_s,
                    PilotFiles(self._upgrade_files),
                )
                door = Door(self._data, listener, self._store, authority, joiner, self._opened, self._gateways)
                door.open()
                self._door = door
            return {"address": self._door.address, "pin": self._door.pin}

    def open_from_thread(self) -> dict[str, str]:
        return asyncio.run_coroutine_threadsafe(self.open(), self._loop).result()

    def close(self) -> None:
        if self._door is not None:
            self._door.close()
