"""Ends the server if its data folder was deleted, or if another folder has replaced it.

Without its folder, the server could not store anything, and no later `corral up` could find its tasks, which would keep their GPUs.
So all tasks are stopped first. The agent and the spawner also find out by themselves that the folder is gone (`node/agent.py`,
`node/spawner.py`). They end the tasks that do not stop in time, and the tasks of a server that has died.
"""

from __future__ import annotations

import asyncio
import logging
import syslog
from contextlib import suppress
from functools import partial
from pathlib import Path

from corral.core.clock import Clock, until_next
from corral.node.node_folder import GONE_CHECK_S, HeldPath
from corral.server.lanes import Lane
from corral.store import Store

EXIT_CODE = 3  # systemd does not restart Corral after this exit code (`cli/server/systemd_unit.py`)
STOP_MAX_S = 2.0
STOP_POLL_S = 0.05
PAUSE_S = 3_600.0

log = logging.getLogger("corral.server")


class FolderDeleted(Exception):
    """The data folder does not exist any more."""


async def until_deleted(data: Path, clock: Clock) -> None:
    """Wait until the data folder, its database or the folder of its agent is deleted or replaced."""
    held = [HeldPath(path) for path in (data, data / "state.db", data / "node")]
    while not any(each.is_gone() for each in held):
        await asyncio.sleep(until_next(clock.wall_s(), GONE_CHECK_S))  # with the timers that wake the server each second


async def stop_tasks(data: Path, state: Lane[Store]) -> str:
    """Stop all tasks, wait at most STOP_MAX_S until they have stopped, and return the message for the user.

    The message is also sent to the system log, because the log of the server is deleted with its folder.
    """
    text = f"the data folder {data} was deleted or replaced, so Corral stops, and ends its tasks."
    log.error(text)
    syslog.openlog("corral")
    syslog.syslog(syslog.LOG_ERR, text)
    with suppress(Exception):  # the database may not work any more; then the agent ends the tasks
        async with asyncio.timeout(STOP_MAX_S):
            await _stop_all(state, f"the data folder {data} was deleted")
    return text


async def _stop_all(state: Lane[Store], reason: str) -> None:
    from corral.services.ecs.stop_all import stop_all

    while (await state.submit(partial(stop_all, reason=reason, pause_s=PAUSE_S)))["running"]:
        await asyncio.sleep(STOP_POLL_S)
