"""The queue of claims: wrong orders and lost wake-ups that the simulation found, as small tests."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.transactions import Tx
from corral.fleet import instances
from corral.fleet.instances import InstanceRequest
from corral.model.agent_protocol import Hello
from corral.model.gpu import GpuDevice
from corral.model.instance import Instance, InstanceState
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

    def __init__(self, *gpus: int, settings: Settings | None = None, store: Store | None = None) -> None:
        core_clock = VirtualClock()
        self.store = store or Store(None)
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


def definition(gpus: int, family: str = "", **more: int) -> dict[str, Any]:
    needs = [{"type": "GPU", "value": str(gpus)}] if gpus else []
    container = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6, "resourceRequirements": needs, **more}
    return {"family": family or f"needs-{gpus}", "containerDefinitions": [container]}


def run_task(family: int | str) -> Any:
    name = family if isinstance(family, str) else f"needs-{family}"
    return lambda tx: HANDLERS["RunTask"](tx, {"taskDefinition": name}, CALLER)


def start_task(family: str, instance_id: str) -> Any:
    return lambda tx: HANDLERS["StartTask"](tx, {"taskDefinition": family, "containerInstances": [instance_id]}, CALLER)


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
    """One command adds two claims of the same rank. The large one is added first and reserves the host.

    The small one sorts before it, because of its id, and fits.
    """
    small = Small(8)
    small.transact(run_task(1))
    answers = small.transact(lambda tx: [run_task(8)(tx), run_task(1)(tx)])[0]
    large, little = (answer["tasks"][0] for answer in answers)
    assert [small.state(task) for task in (large, little)] == ["PROVISIONING", "PENDING"]


def start_again(tx: Tx[Store], instance: Instance) -> None:
    stopped = tx.store.instances.get(instance.id)
    assert stopped is not None and stopped.state is InstanceState.STOPPED
    instances.start(tx, stopped, "")


@pytest.mark.parametrize("newcomer", ("RunTask", "StartTask", "launch", "start", "image that asks for GPUs"))
def test_a_newcomer_that_moves_a_reservation_wakes_the_claims_behind_it(newcomer: str) -> None:
    """The oldest claim lacks only CPU, and reserves the first host, which has fewer free GPUs. A newcomer takes GPUs of the second.

    Then the second host has fewer, so the oldest claim reserves it, and the younger claim fits on the first host.
    """
    small = Small(3, 4)
    for family, gpus, more in (
        ("busy", 1, {"cpu": 4096}), ("large", 1, {"cpu": 4096, "memory": 1024}), ("crowd", 0, {"memory": 2048}),
        ("young", 2, {"memory": 3000}), ("two", 2, {}), ("asks", 0, {}),
    ):  # fmt: skip
        made = definition(gpus, family, **more)
        small.transact(lambda tx, made=made: HANDLERS["RegisterTaskDefinition"](tx, made, CALLER))
    request = InstanceRequest(owner="root", region=CALLER.region, cluster="", type="t", gpus=2, cpu_units=1, memory_mib=1)
    stopped = small.transact(lambda tx: instances.launch(tx, request))[0]
    small.transact(lambda tx: instances.stop(tx, stopped, ""))
    _, second = (small.transact(run_task("busy"))[0]["tasks"][0]["containerInstanceArn"].rpartition("/")[2] for _ in range(2))
    small.transact(start_task("crowd", second))
    asks = small.transact(start_task("asks", second))[0]["tasks"][0]["containers"][0]["containerArn"].rpartition("/")[2]
    free = ",".join(small.store.fleet.pool("hosts:default").slot(second).gpus[:2])
    waiting = [small.transact(run_task(family))[0]["tasks"][0] for family in ("large", "young")]
    assert [small.state(task) for task in waiting] == ["PROVISIONING", "PROVISIONING"]
    takes = {
        "RunTask": run_task("two"),
        "StartTask": start_task("two", second),
        "launch": lambda tx: instances.launch(tx, request),
        "start": lambda tx: start_again(tx, stopped),
        "image that asks for GPUs": lambda tx: host_reports.report(tx, "h1", [Observed(asks, asks_gpus=free)]),
    }
    small.transact(takes[newcomer])
    assert len(small.store.fleet.pool("hosts:default").slot(second).gpus) == 1
    assert [small.state(task) for task in waiting] == ["PROVISIONING", "PENDING"]
