"""Tasks that are paused, on a virtual clock. The test decides when the host has carried out an order, and with which result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from answers.recorder import handled
from corral.core.commands import Command
from corral.core.core import Outcome
from corral.model.agent_protocol import PauseOrder
from corral.model.run import Observed, RunPause
from corral.model.task import Task
from corral.operations.services import SERVICES
from corral.services.ecs import host_reports
from virtual_clock.group_world import CALLER
from virtual_clock.shares_world import SharesWorld

GIB = 2**30


class PauseWorld(SharesWorld):
    """`orders` has the orders to pause and to continue runs that the host has not answered yet."""

    def __init__(self, gpus: int = 2, path: Path | None = None, **users: list[str]) -> None:
        self.orders: list[PauseOrder] = []
        super().__init__(gpus, path=path, **users)

    def transact(self, commands: Sequence[Command]) -> Outcome:
        outcome = super().transact(commands)
        for orders in outcome.orders.values():
            if orders.replaces_earlier:
                self.orders.clear()
            self.orders += [each for each in orders.once if isinstance(each, PauseOrder)]
        return outcome

    def corral(self, operation: str, **params: Any) -> dict[str, Any]:
        handler = SERVICES["corral"].operations[operation]
        found: dict[str, Any] = handled("corral", operation, lambda: self.run(lambda tx: handler(tx, params, CALLER)))
        self.settle()
        return found

    def pause(self, task_id: str) -> dict[str, Any]:
        return self.corral("PauseTask", task=task_id)

    def resume(self, task_id: str) -> dict[str, Any]:
        return self.corral("ResumeTask", task=task_id)

    def answer(self, why_not: str = "", moved_bytes: int = 0, took_s: float = 1.0) -> list[PauseOrder]:
        """The host carries out all orders, or none of them can be carried out."""
        orders, self.orders = self.orders, []
        for order in orders:
            paused = order.paused if not why_not else not order.paused
            pause = RunPause(order.number, paused, why_not, moved_bytes if order.paused else 0, took_s)
            self.report_pause(order.run_id, pause)
        self.started()
        return orders

    def report_pause(self, run_id: str, pause: RunPause) -> None:
        observed = Observed(run_id, 1, self.clock.now_s(), pause=pause)
        self.transact([Command(lambda tx: host_reports.report(tx, "h", [observed]), lambda answer: None)])
        self.settle()

    def phase(self, task_id: str) -> str:
        task: Task = self.task(task_id)
        return task.pause.phase.value if task.pause is not None else "running"

    def leases(self) -> dict[str, str]:
        """GPU id → the task that has it."""
        rows = self.store.execute("SELECT gpu_id, run.task_id FROM lease JOIN run ON run.id = lease.run_id").fetchall()
        return {str(gpu_id): str(task_id) for gpu_id, task_id in rows}
