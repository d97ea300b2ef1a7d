"""The sessions of ECS ExecuteCommand on this host. Each session is a relay process that runs the command as its child.

Each session has a link of its own to the server (`node/link.py`). The agent passes the frames of the session on between this link
and the relay (`channel/command_relay.py`), no faster than the other end takes them. The agent starts the relay with the environment
and the folder of the run. When the run ends, the agent ends the session. Every process of a session inherits a lock on a file, so
that the agent can find and kill all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

from corral.model.agent_protocol import Execute
from corral.node import lock_files
from corral.node.link import Connect, Link, attach, pass_on
from corral.node.run_command import lock_of, start_command, uid_of

TERMINAL = "xterm-256color"
KILL_RETRY_FIRST_S = 0.02
KILL_RETRY_MAX_S = 5.0
CLOSE_S = 2.0


class ExecSessions:
    def __init__(self, data: Path) -> None:
        self._data = data
        self._of_run: dict[str, set[str]] = {}  # run id → the lock files of its sessions
        self._relays: dict[str, asyncio.subprocess.Process] = {}  # lock file → the relay of the session
        self._background: set[asyncio.Task[None]] = set()
        self._end_orphans()

    def pids(self) -> set[int]:
        return {relay.pid for relay in self._relays.values()}

    def locks_of(self, run_id: str) -> tuple[str, ...]:
        return tuple(self._of_run.get(run_id, ()))

    async def begin(self, order: Execute, environment: Mapping[str, str], connect: Connect) -> None:
        """Start a session. Raises OSError or ValueError if the relay cannot be started. `connect` opens a link to the server."""
        run_id, lock = order.run.run_id, await lock_of(str(self._data / "sessions" / order.session_id), order.run.account)
        to_server = await connect()
        ours, theirs = socket.socketpair()
        with theirs:
            to_relay = await attach(ours)
            held = lock_files.open_locked(lock)
            self._of_run.setdefault(run_id, set()).add(lock)
            kind = "tty" if order.has_terminal else "pipe"
            words = ["exec", kind, str(theirs.fileno()), "--", *order.command]
            environment = {**({"TERM": TERMINAL} if order.has_terminal else {}), **environment}
            try:
                relay = await start_command(order.run, self._data, words, environment, theirs.fileno(), held, is_relay=True)
                to_server.send_message({"session": order.session_id})
            finally:
                os.close(held)
                self._forget_if_ended(run_id, lock)
                # If the relay was not started, no process has `theirs` open any more, and both links end.
                self._spawn(_pass_output(to_relay, to_server))
                self._spawn(_pass_input(to_server, to_relay))
        self._relays[lock] = relay
        self._spawn(self._wait_for_relay(relay, run_id, lock))
        if run_id not in self._of_run:
            self._kill({lock})  # the run ended while the relay was started

    def end(self, run_ids: Iterable[str]) -> None:
        """End the sessions of runs that have ended."""
        self._kill({lock for run_id in run_ids for lock in self._of_run.pop(run_id, ())})

    async def close(self) -> None:
        self.end(list(self._of_run))
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_S)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _wait_for_relay(self, relay: asyncio.subprocess.Process, run_id: str, lock: str) -> None:
        await relay.wait()
        del self._relays[lock]
        self._forget_if_ended(run_id, lock)

    def _forget_if_ended(self, run_id: str, lock: str) -> None:
        """Forget a session if it has no living process. Background processes of a session can live until the run ends."""
        if lock_files.is_held(lock):
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock)
        left = self._of_run.get(run_id, set()) - {lock}
        if left:
            self._of_run[run_id] = left
        else:
            self._of_run.pop(run_id, None)

    def _kill(self, locks: set[str]) -> None:
        if not locks:
            return
        # Kill relays first; otherwise a relay would report the killed command as a normal end.
        for lock in locks & self._relays.keys():
            with contextlib.suppress(ProcessLookupError):
                self._relays[lock].kill()
        _kill_holders(locks)
        self._spawn(self._kill_until_gone(locks))

    async def _kill_until_gone(self, locks: set[str]) -> None:
        """Kill processes until none holds these locks. One attempt is not enough, because a process may fork during it.

        A process of another account may have got the lock of a session through a socket. After some attempts, it does not count.
        """
        wait_s, held = KILL_RETRY_FIRST_S, locks
        while held := {lock for lock in held if lock_files.is_held(lock)}:
            await asyncio.sleep(wait_s)
            killed = _kill_holders(held)
            held = {lock for lock in held if lock in killed or uid_of(lock) is None or wait_s < KILL_RETRY_MAX_S}
            wait_s = min(2 * wait_s, KILL_RETRY_MAX_S)
        for lock in locks:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(lock)

    def _end_orphans(self) -> None:
        """End the sessions of an agent that was killed."""
        with contextlib.suppress(FileNotFoundError):
            self._kill({entry.path for entry in os.scandir(self._data / "sessions")})


def _kill_holders(locks: Iterable[str]) -> set[str]:
    """Kill the processes that hold the locks. Return the locks that had any."""
    return {lock for lock in locks if lock_files.kill_holders([lock], uid_of(lock))}


async def _pass_output(relay: Link, server: Link) -> None:
    await pass_on(relay, server)
    server.close("the session has ended")
    await relay.abort("the session has ended")


async def _pass_input(server: Link, relay: Link) -> None:
    await pass_on(server, relay)
    await relay.abort("the session has ended")
