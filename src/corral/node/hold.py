"""The hold on the allocation of this host: a pipe, whose other end a process of the lender has open.

Some lenders, such as Ray, do not end all processes of an allocation, and give its GPUs to others within a second. So a process
that the lender does end has the other end of the pipe. When the pipe is closed, the allocation is over: the agent and the spawner
end all runs at once, the spawner also if the agent is dead.

Other lenders, such as Slurm, send SIGTERM to all processes of an allocation, and SIGKILL after a while. There the pilot has the
other end of the pipe, and its agent leaves in order: the runs have their grace period, and the server gets their exit codes.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

from corral.node.engine import Engine

END_POLL_S = 0.05
LEAVE_MAX_S = 6 * 3600.0  # after the end of the allocation, an agent tries for this time to report the ends of its runs


class Hold:
    def __init__(self, fd: int) -> None:
        """Raise OSError if the descriptor is not open."""
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._is_over = not self._is_open()
        self._changed = asyncio.Event()
        self._leaves = False

    @property
    def is_over(self) -> bool:
        """Whether the allocation is over. This does not wait for the event loop, so that no report is sent that does not say it."""
        self._is_over = self._is_over or not self._is_open()
        return self._is_over

    @property
    def gives_grace(self) -> bool:
        """Whether the allocation is over, and its runs still have their grace period."""
        return self._leaves and self._is_open()

    def leave(self) -> None:
        """Handle SIGTERM of the lender, which ends the allocation soon."""
        self._leaves = self._is_over = True
        self._changed.set()

    def _is_open(self) -> bool:
        return not any(events & (select.POLLHUP | select.POLLNVAL | select.POLLERR) for _, events in self._poll.poll(0))

    async def end_runs(self, engine: Engine, ended: Callable[[], object]) -> None:
        """Wait until the allocation is over, and end all runs. Then call `ended`."""
        loop = asyncio.get_running_loop()
        if not self.is_over:
            loop.add_reader(self._fd, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                loop.remove_reader(self._fd)
        ended()
        while alive := [run_id for run_id, run in engine.observe().items() if run.alive]:
            engine.stop(alive)  # this ends also those that have not started
            if not self.gives_grace:
                engine.signal(alive, "SIGKILL")
            await asyncio.sleep(END_POLL_S)
        ended()
