"""Sends committed orders to the agents of hosts: to start, stop or check runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from corral.blobs import Blobs
from corral.core.clock import Clock
from corral.model.agent_protocol import (
    START_MAX_BYTES,
    AccountsOrder,
    GpuFaultOrder,
    ImagePush,
    PauseOrder,
    SignalOrder,
    StartOrder,
    UpgradeOrder,
)
from corral.model.run import Observed, RunSpec
from corral.server.agents.agent_connection import AgentConnection
from corral.server.agents.environment_files import has_files, with_files, without_files
from corral.server.lanes import Lane
from corral.services.ecs import host_reports
from corral.services.logs.ingestion import open_streams
from corral.store import Store
from corral.telemetry import LogStore

ORDERS_BYTES = 4 * 1024 * 1024  # start orders that have more bytes together are sent in several messages

TOO_LONG = "CannotStartContainerError: the order to start has {} bytes (command, environment, files); at most {} are possible"
NOT_ENCODED = "CannotStartContainerError: the order to start cannot be sent: {}"
NO_FILE = "ResourceInitializationError: failed to download env files: {}"

ONCE = {
    SignalOrder: "signal",
    AccountsOrder: "accounts",
    GpuFaultOrder: "gpu_fault",
    PauseOrder: "pause",
    UpgradeOrder: "upgrade",
}  # the members of messages with orders that are not repeated
log = logging.getLogger("corral")


class OrderSender:
    """Orders are sent in the sequence of their commits. A start order is sent after the log stream of its run has been opened."""

    def __init__(self, state: Lane[Store], logs: Lane[LogStore], blobs: Blobs, clock: Clock) -> None:
        self._state = state
        self._logs = logs
        self._blobs = blobs
        self._clock = clock

    async def run(self, connection: AgentConnection) -> None:
        """Send the orders of a connection until the connection ends."""
        try:
            while True:
                batch = [await connection.orders.get()]
                while not connection.orders.empty():
                    batch.append(connection.orders.get_nowait())
                starts = await self._with_open_streams([start for orders in batch for start in orders.start], connection)
                stops = [run_id for orders in batch for run_id in orders.stop]
                checks = [await self._check_with_files(spec) for orders in batch for spec in orders.check]
                pushed = [image for orders in batch for image in orders.pushed]
                encoded, refused = encode_starts(await self._with_files(starts, connection))
                await self._refuse(refused, connection)
                for message in order_messages(encoded, stops, checks, pushed):
                    connection.link.send_message({"orders": message})
                for order in [order for orders in batch for order in orders.once]:
                    content = order.names if isinstance(order, AccountsOrder) else order
                    connection.link.send_message({ONCE[type(order)]: content})
        except ConnectionResetError:
            pass  # the host has connected anew
        except Exception:
            log.exception("orders for %s could not be sent; its agent will request them again", connection.hello.name)
            connection.link.close("orders could not be sent")

    async def _with_open_streams(self, starts: list[StartOrder], connection: AgentConnection) -> list[RunSpec]:
        """Open the log streams of the runs, and return the runs that can start.

        The other runs are stored as failed.
        """
        refused = {start.spec.run_id: start.fault for start in starts if start.fault is not None}
        logged = [start for start in starts if start.log is not None and start.fault is None]
        if logged:
            as_containers = bool(connection.hello.docker)
            refused |= await self._logs.submit_now(lambda tx: open_streams(tx, logged, as_containers=as_containers))
        if not connection.is_current:
            raise ConnectionResetError  # the next hello of the host requests these orders again
        await self._refuse(refused, connection)
        ordered = [start.spec for start in starts if start.spec.run_id not in refused]
        if connection.scope is not None:
            connection.scope.ordered([spec.run_id for spec in ordered])
        return ordered

    async def _refuse(self, refused: Mapping[str, str], connection: AgentConnection) -> None:
        """Store that runs have failed, because their start cannot be ordered. `refused` maps a run id to the reason."""
        if refused:
            now_s = self._clock.wall_s()
            seen = [Observed(run_id, stopped_at_s=now_s, reason=reason) for run_id, reason in refused.items()]
            await self._state.submit(lambda tx: host_reports.report(tx, connection.hello.host_id, seen))

    async def _with_files(self, starts: list[RunSpec], connection: AgentConnection) -> list[RunSpec]:
        """Add the variables of the environment files to each run. Return the runs that can start.

        If a file has been replaced since the order was made, the run is ordered again, but only once. A run whose file cannot be
        read is stored as failed.
        """
        whole, again, refused = list[RunSpec](), set[str](), dict[str, str]()
        for spec in starts:
            try:
                whole.append(await with_files(spec, self._blobs) if has_files(spec) else spec)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and spec.run_id not in connection.ordered_again:
                    again.add(spec.run_id)
                else:  # a file is unreadable, or missing for the second time
                    refused[spec.run_id] = NO_FILE.format(error)
        await self._refuse(refused, connection)
        if again:
            connection.ordered_again |= again
            await self._state.submit(lambda tx: host_reports.order_again(tx, connection.hello.host_id, again))
        return whole

    async def _check_with_files(self, spec: RunSpec) -> RunSpec:
        try:
            return await with_files(spec, self._blobs)
        except OSError:
            return without_files(spec)  # the run is alive, so check it even without the variables of a missing file


def encode_starts(specs: Iterable[RunSpec]) -> tuple[list[msgspec.Raw], dict[str, str]]:
    """Return the orders as JSON, and the refused orders as a dict from run id to reason.

    An order that is too long, or that cannot be encoded, is refused, because it would break the connection for all runs.
    """
    encoded, refused = list[msgspec.Raw](), dict[str, str]()
    for spec in specs:
        try:
            text = msgspec.json.encode(spec)
        except (ValueError, TypeError, OverflowError) as error:
            refused[spec.run_id] = NOT_ENCODED.format(error)
            continue
        if len(text) > START_MAX_BYTES:
            refused[spec.run_id] = TOO_LONG.format(len(text), START_MAX_BYTES)
        else:
            encoded.append(msgspec.Raw(text))
    return encoded, refused


def order_messages(
    starts: Sequence[msgspec.Raw], stops: list[str], checks: list[RunSpec], pushed: list[ImagePush]
) -> Iterator[dict[str, Any]]:
    """Yield the messages for orders. Start orders are split into messages of about ORDERS_BYTES.

    The last message has all other orders. So the agent gets a stop order after the start order of the same run.
    """
    part, size = list[msgspec.Raw](), 0
    for start in starts:
        if part and size + len(start) > ORDERS_BYTES:
            yield {"start": part}
            part, size = [], 0
        part.append(start)
        size += len(start)
    yield {"start": part, "stop": stops, "check": checks, "pushed": pushed}
