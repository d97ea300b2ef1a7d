"""Passes websockets to the data channel of execute-command (`data_channel.py`).

The first websocket imports the modules of the data channel and opens it, because these modules take memory and few servers ever get
a websocket.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corral.core.clock import Clock
from corral.core.ids import Ids
from corral.model.settings import Settings
from corral.server.agents import Agents
from corral.server.lanes import Lane
from corral.store import Store

if TYPE_CHECKING:
    from corral.server.exec.data_channel import DataChannel
    from corral.server.http.websocket import WebSocket


class WebSocketSessions:
    def __init__(self, folder: Path, settings: Settings, state: Lane[Store], agents: Agents, clock: Clock, ids: Ids) -> None:
        """`folder` is the folder of the node, where the data channel listens for relays."""
        self._open = partial(_open, folder, settings, state, agents, clock, ids, clock.now_s())
        self._opening = asyncio.Lock()
        self._channel: DataChannel | None = None

    async def serve(self, websocket: WebSocket) -> None:
        async with self._opening:
            if self._channel is None:
                self._channel = await self._open()
        await self._channel.serve(websocket)


async def _open(
    folder: Path, settings: Settings, state: Lane[Store], agents: Agents, clock: Clock, ids: Ids, began_s: float
) -> DataChannel:
    from corral.server.exec.data_channel import DataChannel  # imported here, because few servers need it

    channel = DataChannel(settings, state, agents, clock, ids, began_s)
    await channel.listen(folder)
    return channel
