"""The websocket between a person and a command beside a task: Session Manager's data channel, which AWS's stock plugin speaks.

    plugin ◀─ websocket: messages (channel/messages.py) ─▶ here ◀─ sessions.sock: frames (channel/terminal.py) ─▶ relay ─ command

The relay is started on the host when the client has shown its token and shaken hands. Whichever end closes, the other is closed
too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from corral.channel.messages import NotAMessage, unpack
from corral.channel.terminal import PART_BYTES
from corral.clock import Clock
from corral.errors import ApiError
from corral.ids import Ids
from corral.model.run import Execute
from corral.model.settings import Settings
from corral.node import folder
from corral.server.agents import Agents
from corral.server.lanes import Lane
from corral.server.session import Ended, Relay, Session
from corral.services.ecs import execute_command
from corral.services.ecs.execute_command import Permit
from corral.store import Store

MESSAGE_MAX_BYTES = 1024 * 1024
TOKEN_WITHIN_S = 10.0
CALLED_WITHIN_S = 15.0  # a host that has not begun by then is too busy, or gone
REFUSED_CODE = 1008
_PATH = re.compile(r"/v1/data-channel/(ecs-execute-command-[0-9a-f]{17})")

log = logging.getLogger("corral")


def websocket(**given: Any) -> Any:
    """uvicorn's websocket protocol, imported when the first one comes. It would log addresses, which are half a secret."""
    from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

    protocol = WSProtocol(**given)
    protocol.logger = logging.getLogger("corral.channel")
    protocol.logger.setLevel(logging.WARNING)
    return protocol


class Channel:
    def __init__(self, settings: Settings, state: Lane[Store], agents: Agents, clock: Clock, ids: Ids) -> None:
        self._settings = settings
        self._state = state
        self._agents = agents
        self._clock = clock
        self._ids = ids
        self._began_s = clock.now_s()
        self._used: dict[str, float] = {}  # session → until when its token would have been good
        self._called: dict[str, asyncio.Future[Relay]] = {}  # sessions whose relay is expected

    async def listen(self, data: Path) -> None:
        socket = folder.listen(data, "sessions.sock")
        self._server = await asyncio.start_unix_server(self._relay_calls, sock=socket, limit=PART_BYTES)

    async def serve(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One websocket. Without an address that we gave out it is not even opened."""
        assert (await receive())["type"] == "websocket.connect"
        found = _PATH.fullmatch(scope["path"])
        address = parse_qs(scope["query_string"].decode("latin-1")).get("cell-number", [""])[0]
        if found is None or not execute_command.is_session_address(self._settings, found[1], address):
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept"})
        permit = await self._permit(found[1], receive)
        if permit is None:
            await send({"type": "websocket.close", "code": REFUSED_CODE, "reason": "this token does not open this session"})
            return
        session = Session(permit.session_id, self._clock, self._ids, send)
        hearing = asyncio.create_task(_hear(receive, session))
        try:
            await self._converse(permit, session)
        except (Ended, OSError):
            pass  # the person has gone
        except Exception:
            log.exception("the session %s failed", permit.session_id)
        finally:
            hearing.cancel()
            session.gone()
            with suppress(OSError, RuntimeError):  # closed already, from the other end
                await send({"type": "websocket.close", "code": 1000})

    async def _permit(self, session_id: str, receive: Any) -> Permit | None:
        """What the first message's token permits, once."""
        try:
            said = await asyncio.wait_for(receive(), TOKEN_WITHIN_S)
            token = str(json.loads(said["text"])["TokenValue"])
        except (TimeoutError, ValueError, TypeError, KeyError):
            return None
        now_s = self._clock.now_s()
        permit = execute_command.read_permit(self._settings, session_id, token, now_s)
        self._used = {used: until_s for used, until_s in self._used.items() if until_s >= now_s}
        # What was used before we began we do not know: a token from then opens nothing.
        if permit is None or permit.issued_at_s < self._began_s or permit.session_id in self._used:
            return None
        self._used[permit.session_id] = permit.issued_at_s + execute_command.OPEN_WITHIN_S
        return permit

    async def _converse(self, permit: Permit, session: Session) -> None:
        await session.shake_hands(interactive=permit.interactive)
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

    async def _begin(self, host_id: str, order: Execute) -> Relay:
        """Have the host begin, and wait until its relay calls."""
        called: asyncio.Future[Relay] = asyncio.get_running_loop().create_future()
        self._called[order.session_id] = called
        declining = asyncio.create_task(self._agents.execute(host_id, order))
        try:
            either: list[asyncio.Future[Any]] = [called, declining]
            await asyncio.wait(either, timeout=CALLED_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            if called.done():
                return called.result()
            why = declining.result() if declining.done() else "its host does not answer"
            raise execute_command.TargetNotConnectedException(f"The command was not started: {why}.")
        finally:
            declining.cancel()
            del self._called[order.session_id]

    async def _relay_calls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = Relay(reader, writer)
        try:
            session_id = json.loads(await reader.readline())["session"]
            self._called[session_id].set_result(relay)
        except (ValueError, TypeError, KeyError, OSError, asyncio.InvalidStateError):
            relay.close()  # nobody waits for it


async def _hear(receive: Any, session: Session) -> None:
    """Messages of the client, until it goes."""
    with suppress(NotAMessage, OSError):
        while (said := await receive())["type"] == "websocket.receive":
            await session.heard(unpack(said.get("bytes") or b""))
    session.gone()
