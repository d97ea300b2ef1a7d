"""Commands that a person runs beside a process run: each is a relay (`channel/command_relay.py`) with the command as its child.

The relay talks to the core by itself, so nothing of a session passes through the agent. The agent starts it where the run lives,
with what the run has, and sees to it that nothing of it outlives the run: every process of a session inherits a lock, by which it
is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from corral.channel import command_relay
from corral.model.run import Execute
from corral.node import node_folder, process_launch

TERMINAL = "xterm-256color"
SEE_OFF_FIRST_S = 0.02
SEE_OFF_MAX_S = 5.0
CLOSE_S = 2.0


class Sessions:
    def __init__(self, data: Path) -> None:
        self._data = data
        self._of_run: dict[str, set[str]] = {}  # run → locks of what may still live beside it
        self._relays: dict[str, asyncio.subprocess.Process] = {}  # by lock
        self._attending: set[asyncio.Task[None]] = set()
        self._end_leftovers()

    def pids(self) -> set[int]:
        return {relay.pid for relay in self._relays.values()}

    async def begin(self, order: Execute, environment: Mapping[str, str]) -> None:
        """OSError or ValueError when it cannot be started."""
        run_id, lock = order.run.run_id, str(self._data / "sessions" / order.session_id)
        with node_folder.connect(self._data, "sessions.sock") as link:
            link.sendall(msgspec.json.encode({"session": order.session_id}) + b"\n")
            held = process_launch.open_output(lock)
            self._of_run.setdefault(run_id, set()).add(lock)
            kind = "tty" if order.has_terminal else "pipe"
            try:
                relay = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", command_relay.__file__, "beside", kind, str(link.fileno()), "--", *order.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    env={**({"TERM": TERMINAL} if order.has_terminal else {}), **environment},
                    cwd=order.run.working_directory or self._data / "work" / run_id,
                    start_new_session=True,
                    pass_fds=(link.fileno(), held),
                )  # fmt: skip
            finally:
                os.close(held)
                self._let_go(run_id, lock)
        self._relays[lock] = relay
        self._keep(self._attend(relay, run_id, lock))
        if run_id not in self._of_run:
            self._kill({lock})  # the run has ended meanwhile

    def end(self, run_ids: Iterable[str]) -> None:
        """These runs are over, and so is everything beside them."""
        self._kill({lock for run_id in run_ids for lock in self._of_run.pop(run_id, ())})

    async def close(self) -> None:
        """Nobody is left to look after them."""
        self.end(list(self._of_run))
        if self._attending:
            await asyncio.wait(self._attending, timeout=CLOSE_S)

    def _keep(self, attending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(attending)
        self._attending.add(task)
        task.add_done_callback(self._attending.discard)

    async def _attend(self, relay: asyncio.subprocess.Process, run_id: str, lock: str) -> None:
        await relay.wait()
        del self._relays[lock]
        self._let_go(run_id, lock)

    def _let_go(self, run_id: str, lock: str) -> None:
        """Forget a session of which nothing lives. What it left in the background stays with the run."""
        if process_launch.is_held(lock):
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
        for lock in locks & self._relays.keys():  # first: it would tell how its command ended, as if by itself
            with contextlib.suppress(ProcessLookupError):
                self._relays[lock].kill()
        process_launch.kill_holders(locks)
        self._keep(self._see_off(locks))

    async def _see_off(self, locks: set[str]) -> None:
        """Until nothing holds these locks: whoever was starting another process when we looked may have got away."""
        wait_s = SEE_OFF_FIRST_S
        while held := [lock for lock in locks if process_launch.is_held(lock)]:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, SEE_OFF_MAX_S)
            process_launch.kill_holders(held)
        for lock in locks:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(lock)

    def _end_leftovers(self) -> None:
        """Of an agent that was killed."""
        with contextlib.suppress(FileNotFoundError):
            self._kill({entry.path for entry in os.scandir(self._data / "sessions")})
