"""The queue of claims: two wrong orders that the simulation found, as small tests."""

from __future__ import annotations

from itertools import count
from typing import Any

from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.model.agent_protocol import Hello
from corral.model.gpu import GpuDevice
from corral.model.run import Observed
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.services.ecs import host_reports
from corral.services.ecs.handlers import HANDLERS
from corral.store import Store
from simulation.clients import CALLER


class FallingIds:
    """Each id is smaller than the one before it, so a later claim sorts first."""

    def __init__(self) -> None:
        self._numbers = count(10**9, -1)

    def hex32(self) -> str:
        return f"{next(self._numbers):016x}" * 2

    def hex32_by_time(self, now_s: float) -> str:
        return self.hex32()

    def uuid(self) -> str:
        return self.hex32()


class Small:
    """A core with hosts that never speak unless they are told to."""

    def __init__(self, *gpus: int, settings: Settings | None = None) -> None:
        core_clock = VirtualClock()
        self.store = Store(None)
        settings = settings or Settings()
        self.core: Core[Store] = Core(self.store, settings=settings, clock=core_clock, ids=FallingIds(), reconcilers=STATE)
        self.clock = core_clock
        self.transact(*(lambda tx, at=at, has=has: host_reports.hello(tx, self.hello(at, has)) for at, has in enumerate(gpus)))
        for asked in (1, 8):
            self.transact(lambda tx, asked=asked: HANDLERS["RegisterTaskDefinition"](tx, definition(asked), CALLER))

    @staticmethod
    def hello(number: int, gpus: int) -> Hello:
        shown = [GpuDevice(f"GPU-{number}-{at}", at, "Simulated", 1) for at in range(gpus)]
        return Hello(f"h{number}", "boot", f"h{number}", 4096, 4096, shown, [])

    def transact(self, *handlers: Any) -> list[Any]:
        self.clock.advance(0.01)
        return [answer for _, answer in self.core.transact([Command(handler, lambda answer: None) for handler in handlers]).answers]

    def state(self, task: dict[str, Any]) -> str:
        found = self.store.tasks.get(task["taskArn"].rpartition("/")[2])
        assert found is not None
        return found.state.value


def definition(gpus: int) -> dict[str, Any]:
    needs = [{"type": "GPU", "value": str(gpus)}]
    container = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6, "resourceRequirements": needs}
    return {"family": f"needs-{gpus}", "containerDefinitions": [container]}


def run_task(gpus: int) -> Any:
    return lambda tx: HANDLERS["RunTask"](tx, {"taskDefinition": f"needs-{gpus}"}, CALLER)


def ends(task: dict[str, Any]) -> Any:
    instance_id = task["containerInstanceArn"].rpartition("/")[2]
    run_id = task["containers"][0]["containerArn"].rpartition("/")[2]
    return lambda tx: host_reports.report(tx, tx.store.instances.host_of(instance_id), [Observed(run_id, 1, tx.now_s, tx.now_s, 0)])


def test_a_new_task_does_not_overtake_a_claim_with_the_same_demand() -> None:
    """Both GPUs are freed in the transaction of the new task: they belong to the two waiting tasks."""
    small = Small(1, 1)
    holders = [small.transact(run_task(1))[0]["tasks"][0] for _ in range(2)]
    waiting = [small.transact(run_task(1))[0]["tasks"][0] for _ in range(2)]
    newcomer = small.transact(*(ends(task) for task in holders), run_task(1))[-1]["tasks"][0]
    assert [small.state(task) for task in waiting] == ["PENDING", "PENDING"]
    assert small.state(newcomer) == "PROVISIONING"


def test_the_first_claim_that_fits_does_not_wait() -> None:
    """The large claim is added first and reserves the host. The small claim of the same time sorts before it and fits."""
    small = Small(8)
    small.transact(run_task(1))
    large, little = (answer["tasks"][0] for answer in small.transact(run_task(8), run_task(1)))
    first = small.store.fleet.pool("hosts").heads()[0].id
    assert small.state(large) == "PROVISIONING"
    assert first == large["taskArn"].rpartition("/")[2] or small.state(little) == "PENDING"
