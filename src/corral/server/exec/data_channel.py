"""The websocket server of execute-command. It implements the data channel of AWS Session Manager.

The clients are AWS's session-manager-plugin and `corral exec`:

    client ◀─ websocket: channel/messages.py ─▶ server ◀─ sessions.sock: channel/command_relay.py ─▶ relay ─ command

The relay is a process on the host. It runs the command. The host starts the relay after the client has sent its token and has
completed the handshake. When the client disconnects, the server disconnects the relay. When the relay disconnects, the server
disconnects the client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from corral.channel.command_relay import PART_BYTES
from corral.channel.messages import NotAMessage, unpack
from corral.core.clock import Clock
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.model.agent_protocol import Execute
from corral.model.json_documents import read_json
from corral.model.settings import Settings
from corral.node import node_folder
from corral.server.agents import Agents
from corral.server.exec.data_channel_session import DataChannelSession, Disconnected, RelayConnection
from corral.server.lanes import Lane
from corral.services.ecs import execute_command
from corral.services.ecs.errors import TargetNotConnectedException
from corral.services.ecs.execute_command import Permit
from corral.store import Store

if TYPE_CHECKING:
    from corral.server.http.websocket import WebSocket

TOKEN_WITHIN_S = 10.0
RELAY_WITHIN_S = 15.0  # if the host has not started the relay within this time, the host is overloaded or lost
REFUSED_CODE = 1008
TOKEN_REFUSED = "the token is not valid for this session, or was used before"
_PATH = re.compile(r"/v1/data-channel/(ecs-execute-command-[0-9a-f]{17})")

log = logging.getLogger("corral")


class DataChannel:
    def __init__(self, settings: Settings, state: Lane[Store], agents: Agents, clock: Clock, ids: Ids, began_s: float) -> None:
        """`began_s` is the time at which the server started."""
        self._settings = settings
        self._state = state
        self._agents = agents
        self._clock = clock
        self._ids = ids
        self._began_s = began_s
        self._used: dict[str, float] = {}  # session id of each used token → the time when the token expires
        self._expected: dict[str, asyncio.Future[RelayConnection]] = {}  # session id → the relay that the host is starting

    async def listen(self, data: Path) -> None:
        socket = node_folder.listen(data, "sessions.sock")
        self._server = await asyncio.start_unix_server(self._relay_connects, sock=socket, limit=PART_BYTES)

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one websocket. It is accepted only if ExecuteCommand has issued its URL."""
        found = _PATH.fullmatch(websocket.path)
        address = parse_qs(websocket.query).get("cell-number", [""])[0]
        if found is None or not execute_command.is_session_address(self._settings, found[1], address):
            await websocket.refuse()
            return
        await websocket.accept()
        permit = await self._permit(found[1], websocket)
        if permit is None:
            await websocket.close(REFUSED_CODE, TOKEN_REFUSED)
            return
        session = DataChannelSession(permit.session_id, self._clock, self._ids, websocket.send)
        receiving = asyncio.create_task(_receive(websocket, session))
        try:
            await self._run(permit, session)
        except (Disconnected, OSError):
            pass  # the client has disconnected
        except Exception:
            log.exception("the session %s failed", permit.session_id)
        finally:
            receiving.cancel()
            session.disconnected()
            with suppress(OSError):  # the client has already closed the websocket
                await websocket.close(1000)

    async def _permit(self, session_id: str, websocket: WebSocket) -> Permit | None:
        """Read the token in the first message, and return its permit. A token can be used once.

        Return None if there is no valid token within TOKEN_WITHIN_S.
        """
        try:
            message = await asyncio.wait_for(websocket.receive(), TOKEN_WITHIN_S)
            token = str(read_json(message or "")["TokenValue"])
        except (TimeoutError, ValueError, TypeError, KeyError):
            return None
        now_s = self._clock.now_s()
        permit = execute_command.read_permit(self._settings, session_id, token, now_s)
        self._used = {used: until_s for used, until_s in self._used.items() if until_s >= now_s}
        # Tokens that were issued before this server started are refused, because the server does not know which of them were used.
        if permit is None or permit.issued_at_s < self._began_s or permit.session_id in self._used:
            return None
        self._used[permit.session_id] = permit.issued_at_s + execute_command.OPEN_WITHIN_S
        return permit

    async def _run(self, permit: Permit, session: DataChannelSession) -> None:
        await session.handshake(interactive=permit.interactive)
        try:
            host_id, order = await self._state.submit(partial(execute_command.execute_order, permit=permit))
            relay = await self._begin(host_id, order)
        except ApiError as error:
            await session.close(error.message)
            return
        try:
            await session.relay(relay)
        finally:
            relay.close()

    async def _begin(self, host_id: str, order: Execute) -> RelayConnection:
        """Order the host to start the session, and wait until the relay of the session connects.

        Raise TargetNotConnectedException if the host declines the session, or if no relay connects within RELAY_WITHIN_S.
        """
        connected: asyncio.Future[RelayConnection] = asyncio.get_running_loop().create_future()
        self._expected[order.session_id] = connected
        declining = asyncio.create_task(self._agents.execute(host_id, order))
        try:
            either: list[asyncio.Future[Any]] = [connected, declining]
            await asyncio.wait(either, timeout=RELAY_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            if connected.done():
                return connected.result()
            why = declining.result() if declining.done() else "its host does not respond"
            raise TargetNotConnectedException(f"The command was not started: {why}.")
        finally:
            declining.cancel()
            del self._expected[order.session_id]

    async def _relay_connects(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = RelayConnection(reader, writer)
        try:
            session_id = json.loads(await reader.readline())["session"]
            self._expected[session_id].set_result(relay)
        except (ValueError, TypeError, KeyError, OSError, asyncio.InvalidStateError):
            relay.close()  # the session has ended, or its id is unknown


async def _receive(websocket: WebSocket, session: DataChannelSession) -> None:
    """Handle the client's messages until the client disconnects."""
    with suppress(NotAMessage, OSError):
        while (message := await websocket.receive()) is not None:
            await session.received(unpack(message if isinstance(message, bytes) else b""))
    session.disconnected()
