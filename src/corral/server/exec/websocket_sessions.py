"""Passes websockets to the data channel of execute-command (`data_channel.py`).

The first websocket imports the modules of the data channel, because these modules take memory and few servers ever get
a websocket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.core.clock import Clock
from corral.core.ids import Ids
from corral.model.settings import Settings
from corral.server.agents.connections import Agents
from corral.server.lanes import Lane
from corral.store import Store

if TYPE_CHECKING:
    from corral.server.exec.data_channel import DataChannel
    from corral.server.http.websocket import WebSocket


class WebSocketSessions:
    def __init__(self, settings: Settings, state: Lane[Store], agents: Agents, clock: Clock, ids: Ids) -> None:
        self._arguments = (settings, state, agents, clock, ids, clock.now_s())
        self._channel: DataChannel | None = None

    async def serve(self, websocket: WebSocket) -> None:
        if self._channel is None:
            from corral.server.exec.data_channel import DataChannel  # imported here, because few servers need it

            self._channel = DataChannel(*self._arguments)
        await self._channel.serve(websocket)
