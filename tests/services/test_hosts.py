"""The hello of a host: runs ordered before are compared with it, and orders that follow from it are new."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from corral.core.commands import Command
from corral.model.agent_protocol import StartOrder
from corral.model.run import Observed
from corral.services.ecs import host_reports
from corral.services.ecs.handlers import HANDLERS
from simulation.clients import CALLER
from simulation.test_claim_queue import Small

POLICY = {"enabled": True, "restartAttemptPeriod": 60}


def container(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "corral/host", "command": ["true"], "memory": 6, **more}


class Told(Small):
    """A core with one host, and the orders that it received."""

    def __init__(self, *containers: dict[str, Any]) -> None:
        super().__init__(2)
        self.orders: list[Any] = []
        self.ask(
            lambda tx: HANDLERS["RegisterTaskDefinition"](tx, {"family": "f", "containerDefinitions": list(containers)}, CALLER)
        )
        task = self.ask(lambda tx: HANDLERS["RunTask"](tx, {"taskDefinition": "f"}, CALLER))["tasks"][0]
        self.task_id = task["taskArn"].rpartition("/")[2]

    def ask(self, handler: Any) -> Any:
        self.clock.advance(0.01)
        outbox = self.core.transact([Command(handler, lambda answer: None)])
        assert not outbox.faults
        self.orders += [order for of_host in outbox.orders.values() for order in (*of_host.start, *of_host.stop, *of_host.check)]
        return outbox.answers[0][1]

    @property
    def runs(self) -> dict[str, Any]:
        task = self.store.tasks.get(self.task_id)
        assert task is not None
        return {run.container: run for run in task.runs}

    def hello_again(self, *seen: Observed, boot: str = "boot") -> None:
        self.orders.clear()
        said = replace(self.hello(0, 2), boot_id=boot, runs=list(seen))
        self.ask(lambda tx: host_reports.hello(tx, said))

    def report(self, *seen: Observed) -> None:
        self.ask(lambda tx: host_reports.report(tx, "h0", list(seen)))

    def started(self) -> set[str]:
        return {order.spec.container for order in self.orders if isinstance(order, StartOrder)}

    def ended(self, name: str, code: int | None = 1) -> Observed:
        return Observed(self.runs[name].attempt_id, 7, self.clock.now_s() - 100, self.clock.now_s(), code)


@pytest.mark.parametrize("boot", ["boot", "another"])
def test_a_run_restarted_by_a_hello_is_not_lost(boot: str) -> None:
    told = Told(container("a", restartPolicy=POLICY), container("b", essential=False))
    told.hello_again(told.ended("a"), boot=boot)
    run = told.runs["a"]
    assert (run.state, run.restarts, run.attempt_id) == ("PENDING", 1, f"{run.id}.1")
    assert "a" in told.started()
    told.hello_again(boot="a third")  # now it was asked before, and is gone with that boot
    assert told.runs["a"].state == "STOPPED" and "restarted" in told.runs["a"].reason


def test_a_run_released_by_a_hello_after_a_reboot_starts() -> None:
    told = Told(
        container("init", essential=False), container("main", dependsOn=[{"containerName": "init", "condition": "SUCCESS"}])
    )
    told.hello_again(told.ended("init", 0), boot="another")
    assert told.started() == {"main"} and not told.runs["main"].waits and told.runs["main"].state == "PENDING"


def test_a_hello_orders_the_health_checks_of_running_containers_only() -> None:
    check = {"command": ["CMD", "true"]}
    told = Told(container("a", healthCheck=check), container("b", healthCheck=check), container("c"))
    living = [Observed(told.runs[name].id, 7, told.clock.now_s()) for name in "ac"]
    told.report(*living)
    told.hello_again(*living)
    checks = [order.container for order in told.orders if not isinstance(order, (StartOrder, str))]
    assert (checks, told.started()) == (["a"], {"b"})  # b comes with its check when it starts


def test_a_late_report_of_an_earlier_attempt_changes_nothing() -> None:
    told = Told(container("a", restartPolicy=POLICY))
    first = told.ended("a")
    told.report(first)
    told.orders.clear()
    before = told.store.tasks.get(told.task_id)
    told.report(first, replace(first, stopped_at_s=None, exit_code=None))
    assert told.store.tasks.get(told.task_id) is before and told.orders == []
