"""The agent's part of pauses: it starts the pause program for each order, and knows the answers.

One program at a time works for a run. An order that arrives meanwhile waits, and replaces one that waits already. If a program ends
before it has carried out its order, the agent starts it again, also after a restart of the agent: the program decides when to give
up (`run_pause.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import asdict

from corral.model.agent_protocol import PauseOrder
from corral.model.run import RunPause
from corral.node import node_folder
from corral.node.engine import Engine, PauseTarget
from corral.node.pause_marks import PauseMark, PauseMarks
from corral.node.procfs import boot_s

POLL_S = 0.05  # how often the agent looks whether a program of an earlier agent has ended
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 5.0

log = logging.getLogger("corral.node")


class Pauses:
    def __init__(self, data: Path, boot_id: str, gpus: str, engine: Engine, changed: Callable[[str], None]) -> None:
        """`gpus` is the kind of this host's GPUs: real, simulated or none. `changed` is called with a run whose pause has changed:
        an order has begun, or there is an answer.
        """
        self._data = data
        self._boot_id = boot_id
        self._gpus = gpus
        self._engine = engine
        self._changed = changed
        self._marks = PauseMarks(data)
        self._of_run: dict[str, PauseMark] = {}
        self._waiting: dict[str, PauseOrder] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        self.answers: dict[str, RunPause] = {}  # run id → the answer to the last order that is done

    def open(self) -> None:
        """Continue the orders of an earlier agent. The engine is open already."""
        known = self._engine.observe()
        for run_id in self._marks.run_ids():
            mark = self._marks.read(run_id)
            if mark is None or mark.boot_id != self._boot_id or run_id not in known or not known[run_id].alive:
                self._marks.forget(run_id)
                continue
            self._of_run[run_id] = mark
            if mark.is_done:
                self.answers[run_id] = answer_of(mark)
            else:
                if mark.answered is not None:
                    self.answers[run_id] = RunPause(**mark.answered)
                self._begin(run_id)

    def holds(self, run_id: str) -> bool:
        """Whether a run is paused, or is being paused or continued."""
        mark = self._of_run.get(run_id)
        return mark is not None and mark.holds

    def paused(self) -> set[str]:
        """Return the runs whose GPUs others may have."""
        return {run_id for run_id, mark in self._of_run.items() if mark.is_paused and mark.is_done}

    def order(self, order: PauseOrder) -> None:
        run_id, mark = order.run_id, self._of_run.get(order.run_id)
        target = self._engine.pause_target(run_id)
        if target is None:
            return  # the end of the run is reported
        waiting = self._waiting.get(run_id)
        last = waiting.number if waiting is not None else mark.number if mark is not None else 0
        if order.number < last:
            return
        if run_id in self._work:
            if mark is not None and order.number > mark.number:
                self._waiting[run_id] = order
        elif mark is not None and order.number == mark.number:
            self._changed(run_id)  # answer again
        else:
            self._carry_out(order, target, mark)

    def _carry_out(self, order: PauseOrder, target: PauseTarget, before: PauseMark | None) -> None:
        known = self._engine.observe()[order.run_id]
        was_paused = before is not None and before.is_paused
        is_complete = was_paused == order.paused and (before is None or not before.why_not)
        fresh = PauseMark(
            run_id=order.run_id,
            number=order.number,
            wanted=order.paused,
            boot_id=self._boot_id,
            gpus=self._gpus if known.gpu_ids else "none",
            engine=target.engine,
            container=target.container,
            sessions=list(target.sessions),
            is_done=bool(target.why_not) or is_complete,
            is_paused=was_paused,
            why_not=target.why_not,
            began_boot_s=boot_s(),
        )
        if before is not None:
            last = self.answers.get(order.run_id)
            fresh = fresh.but(limits=before.limits, answered=None if last is None else asdict(last))
            if was_paused:
                fresh = fresh.but(moved=before.moved, others=before.others, sessions=before.sessions)
        try:
            self._marks.put(fresh)
        except OSError as error:
            fresh = fresh.but(is_done=True, why_not=f"its mark cannot be written: {error.strerror}")
        self._of_run[order.run_id] = fresh
        if fresh.is_done:
            self._answer(fresh)
        else:
            self._changed(order.run_id)
            self._begin(order.run_id)

    def _answer(self, mark: PauseMark) -> None:
        self.answers[mark.run_id] = answer_of(mark)
        if mark.why_not:
            log.warning("%s is not %s: %s", mark.run_id, "paused" if mark.wanted else "continued", mark.why_not)
        self._changed(mark.run_id)

    def _begin(self, run_id: str) -> None:
        self._work[run_id] = asyncio.get_running_loop().create_task(self._run_program(run_id))

    async def _run_program(self, run_id: str) -> None:
        """Run programs until the order is done, or the run is being stopped. Then begin the order that waits."""
        wait_s = RETRY_FIRST_S
        while True:
            while self._marks.has_program(run_id):  # of an earlier agent
                await asyncio.sleep(POLL_S)
            mark = self._marks.read(run_id)
            if mark is None or mark.is_done:
                break
            code = await self._start(run_id)
            mark = self._marks.read(run_id)
            if mark is None or mark.is_done:
                break
            target = self._engine.pause_target(run_id)
            if target is None:
                break
            log.warning("the program that pauses or continues %s has ended with code %s; it is started again", run_id, code)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_MAX_S)
        del self._work[run_id]
        if mark is None:  # the run is being stopped
            self._marks.forget(run_id)
            self._of_run.pop(run_id, None)
            self._waiting.pop(run_id, None)
            self._changed(run_id)
            return
        self._of_run[run_id] = mark
        if mark.is_done:
            self._answer(mark)
        if (waiting := self._waiting.pop(run_id, None)) is not None:
            self.order(waiting)

    async def _start(self, run_id: str) -> int | None:
        """Start the pause program in a session of its own, and wait for its end. It outlives this process."""
        command = [sys.executable, "-P", "-m", "corral.node.pause_program", "--dir", str(self._data), "--run", run_id]
        try:
            with open(self._data / "pauses.log", "ab", opener=node_folder.private) as output:
                program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
            ended = os.pidfd_open(program.pid)
        except OSError as error:
            log.error("the program that pauses %s cannot be started: %s", run_id, error)
            return None
        loop, is_over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(ended, is_over.set)
        try:
            await is_over.wait()
        finally:
            loop.remove_reader(ended)
            os.close(ended)
        return program.poll()

    def ended(self, run_ids: Iterable[str]) -> None:
        """Remove the marks of runs that have ended. Their answers are kept until the runs are forgotten."""
        for run_id in run_ids:
            if self._of_run.pop(run_id, None) is not None:
                self._marks.forget(run_id)

    def forget(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            self.answers.pop(run_id, None)

    async def close(self) -> None:
        """The programs continue."""
        for task in self._work.values():
            task.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)


def answer_of(mark: PauseMark) -> RunPause:
    return RunPause(mark.number, mark.is_paused, mark.why_not, mark.moved_bytes, mark.took_s)
