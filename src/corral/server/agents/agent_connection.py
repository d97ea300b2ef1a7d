"""The connection to one agent: its link, the orders to send, and the measurements and sessions that the server has requested."""

from __future__ import annotations

import asyncio
from itertools import count

from corral.model.agent_protocol import Declined, Execute, Hello, HostOrders, Measure, Measured
from corral.node.link import Link
from corral.server.agents.host_scope import HostScope

MEASURE_MAX_S = 5.0  # how long the server waits for a measurement
SESSION_MAX_S = 15.0  # if the host has not started a session within this time, the host is overloaded or lost


class SessionRefused(Exception):
    """Raised with the reason why a session of execute-command was not started."""


class AgentConnection:
    def __init__(self, link: Link, hello: Hello, heard_s: float) -> None:
        self.link = link
        self.hello = hello
        self.heard_s = heard_s
        self.scope: HostScope | None = None  # what the host may report about; None: the agent of this machine, which is trusted
        self.samples_at_once = False  # whether the host was told to send each sample of its GPUs at once
        self.is_current = True  # False: the host has connected anew or is gone
        self.not_upgraded = ""  # why the host has not carried out the last order to upgrade
        self.problem = ""  # the problem of the host's spawner, as the agent reported it
        self.ordered_again: set[str] = set()  # runs that were ordered a second time because an environment file had been replaced
        self.orders: asyncio.Queue[HostOrders] = asyncio.Queue()
        self.sessions: dict[str, asyncio.Future[Link]] = {}  # session id → the link of the session that the host is starting
        self._measuring: dict[int, asyncio.Future[Measured]] = {}
        self._numbers = count()

    async def measure(self, run_ids: list[str]) -> Measured:
        """Return the current usage of these runs. Raise TimeoutError if the agent does not respond."""
        number = next(self._numbers)
        self._measuring[number] = asyncio.get_running_loop().create_future()
        try:
            self.link.send_message({"measure": Measure(number, run_ids)})
            found = await asyncio.wait_for(self._measuring[number], MEASURE_MAX_S)
            now, before = ({run_id: each[run_id] for run_id in run_ids if run_id in each} for each in (found.now, found.before))
            return Measured(number, now, before)
        finally:
            del self._measuring[number]

    def measured(self, measured: Measured) -> None:
        future = self._measuring.get(measured.number)
        if future is not None and not future.done():  # a cancelled caller has cancelled the future
            future.set_result(measured)

    async def execute(self, order: Execute) -> Link:
        opened = self.sessions[order.session_id] = asyncio.get_running_loop().create_future()
        try:
            self.link.send_message({"execute": order})
            return await asyncio.wait_for(opened, SESSION_MAX_S)
        except TimeoutError:
            raise SessionRefused("its host does not respond") from None
        finally:
            del self.sessions[order.session_id]

    def declined(self, declined: Declined) -> None:
        future = self.sessions.get(declined.session_id)
        if future is not None and not future.done():
            future.set_exception(SessionRefused(declined.reason))
