"""The websocket server of execute-command. It implements the data channel of AWS Session Manager.

The clients are AWS's session-manager-plugin and `corral exec`:

    client ◀─ websocket: channel/messages.py ─▶ server ◀─ link: channel/command_relay.py ─▶ agent ◀─▶ relay ─ command

The relay is a process on the host. It runs the command. The host starts the relay and opens a link for the session after the client
has sent its token and has completed the handshake. When the client disconnects, the server closes the link. When the link ends, the
server disconnects the client.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from corral.channel.messages import NotAMessage, unpack
from corral.core.clock import Clock
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.model.json_documents import read_json
from corral.model.settings import Settings
from corral.server.agents.agent_connection import SessionRefused
from corral.server.agents.connections import Agents
from corral.server.exec.data_channel_session import DataChannelSession, Disconnected
from corral.server.lanes import Lane
from corral.services.ecs import execute_command
from corral.services.ecs.execute_command import Permit
from corral.store import Store

if TYPE_CHECKING:
    from corral.server.http.websocket import WebSocket

TOKEN_WITHIN_S = 10.0
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
            link = await self._agents.execute(host_id, order)
        except ApiError as error:
            await session.close(error.message)
            return
        except SessionRefused as why:
            await session.close(f"The command was not started: {why}.")
            return
        try:
            await session.relay(link)
        finally:
            link.close("the session has ended")


async def _receive(websocket: WebSocket, session: DataChannelSession) -> None:
    """Handle the client's messages until the client disconnects."""
    with suppress(NotAMessage, OSError):
        while (message := await websocket.receive()) is not None:
            await session.received(unpack(message if isinstance(message, bytes) else b""))
    session.disconnected()
