"""Stacks on a virtual clock: the three lanes with one simulated host, without HTTP. The lanes can crash between two batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from answers.recorder import handled
from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.database import Database, Handover
from corral.core.errors import ApiError
from corral.core.handovers import Delivery, Done, forget_finished, receive
from corral.core.ids import SeededIds
from corral.decide.templates import compile_template, parameter_values
from corral.decide.templates.stack_plan import MOVES
from corral.model.instance import InstanceState
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.model.stack import Stack, StackResource, StackStatus
from corral.operations.services import SERVICES
from corral.reconcile import LOGS, METRICS, STATE
from corral.reconcile.receivers import RECEIVERS
from corral.services.cloudformation import stack_operations
from corral.services.cloudformation.stack_operations import StackSpec
from corral.services.ecs import host_reports
from corral.store import Store
from corral.telemetry import LogStore, MetricStore
from store.rows import derived_fleet, hello

REGION = "us-east-1"
CALLER = Caller("123456789012", REGION, root_user("123456789012"), endpoint_url="http://localhost:4566")
STORES: dict[str, type[Database]] = {"state": Store, "logs": LogStore, "metrics": MetricStore}
RECONCILERS = {"state": STATE, "logs": LOGS, "metrics": METRICS}


class World:
    """`crashes(number)` says whether the process dies after this batch. Then `folder` must be given."""

    def __init__(self, folder: Path | None = None, *, gpus: int = 8, crashes: Callable[[int], bool] = lambda number: False) -> None:
        self.folder, self.crashes = folder, crashes
        self.clock = VirtualClock(1_767_225_600.0)  # 2026-01-01T00:00:00Z
        self.ids = SeededIds(Random(7))
        self.batches = self.restarts = 0
        self.seen: dict[str, StackStatus] = {}  # stack → its last status
        self._start()
        self.run(lambda tx: host_reports.hello(tx, hello("h", gpus)))
        self.run(lambda tx: tx.store.execute("UPDATE host SET seen_at = 1e12") and None)

    def _start(self) -> None:
        self.queues: dict[str, deque[Command]] = {lane: deque() for lane in STORES}
        self.cores: dict[str, Core[Any]] = {}
        self.deliveries: dict[str, Delivery] = {}
        for lane, kind in STORES.items():
            store: Any = kind(self.folder / f"{lane}.db" if self.folder else None)  # type: ignore[call-arg, arg-type]
            self.cores[lane] = Core(store, settings=Settings(), clock=self.clock, ids=self.ids, reconcilers=RECONCILERS[lane])
            self.deliveries[lane] = Delivery(self.cores[lane], self._send, lambda s, call: None, lambda: None)
        self.store: Store = self.cores["state"].store
        forget_finished([core.store for core in self.cores.values()])
        for delivery in self.deliveries.values():
            delivery.start()

    def restart(self) -> None:
        """Reopen the files as after kill -9: only committed rows are left."""
        self.restarts += 1
        for core in self.cores.values():
            core.store.close()
        self._start()

    def _send(self, handover: Handover, finished: list[Handover], done: Done) -> None:
        take = partial(receive, receivers=RECEIVERS[handover.lane], handover=handover, finished=finished)
        self.queues[handover.lane].append(Command(take, done))

    def _batch(self, lane: str, commands: list[Command]) -> list[Any]:
        outcome = self.cores[lane].transact(commands)
        assert not outcome.faults, outcome.faults[0]
        answers = [answer for _, answer in outcome.answers]
        self.batches += 1
        self._check_moves()
        if self.folder and self.crashes(self.batches):
            self.restart()
            return answers
        for command, answer in self.deliveries[lane].deliver(outcome):
            command.done(answer)
        return answers

    def _check_moves(self) -> None:
        """The status of a stack only makes the moves of the plan. A batch may make several."""
        for (record,) in self.store.execute("SELECT id FROM stack").fetchall():
            stack = self.store.stacks.get(record)
            assert stack is not None
            assert _reaches(self.seen.get(stack.id), stack.status), (self.seen.get(stack.id), stack.status)
            self.seen[stack.id] = stack.status

    def run(self, handler: Callable[[Any], Any]) -> Any:
        answer = self._batch("state", [Command(handler, lambda answer: None)])[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def call(self, service: str, operation: str, /, **params: Any) -> Any:
        return handled(service, operation, lambda: self._call(service, operation, params))

    def _call(self, service: str, operation: str, params: dict[str, Any]) -> Any:
        handler = SERVICES[service].operations[operation]
        if SERVICES[service].lane == "state":
            return self.run(lambda tx: handler(tx, params, CALLER))
        answer = self._batch(SERVICES[service].lane, [Command(lambda tx: handler(tx, params, CALLER), lambda answer: None)])[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def step(self, within_s: float = 0.005) -> bool:
        """Run one batch in each lane that has something queued or due. Return False if there is none."""
        is_busy = False
        for lane, queue in self.queues.items():
            due_s = self.cores[lane].store.next_due_s()
            is_due = due_s is not None and due_s <= self.clock.now_s() + within_s
            if not queue and not is_due:
                continue
            is_busy = True
            if is_due and due_s is not None:
                self.clock.advance(max(0.0, due_s - self.clock.now_s()) + 1e-6)
            commands = list(queue)
            queue.clear()
            self._batch(lane, commands)
        return is_busy

    def settle(self, most: int = 5000) -> None:
        """Run what is queued or due now: large operations are continued in later transactions."""
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("work is due again and again")

    def wait(self, seconds: float) -> None:
        """Let time pass, and run what becomes due in the state lane on the way."""
        end_s = self.clock.now_s() + seconds
        self.settle()
        while (due_s := self.store.next_due_s()) is not None and due_s <= end_s:
            self.clock.advance(max(0.0, due_s - self.clock.now_s()) + 1e-6)
            self.settle()
        self.clock.advance(max(0.0, end_s - self.clock.now_s()))
        self.settle()

    # Stacks

    def ssm_value(self, name: str) -> str:
        """The value of an SSM parameter. Parameters that do not exist have their names as values."""
        try:
            return str(self.call("ssm", "GetParameter", Name=name)["Parameter"]["Value"])
        except ApiError:
            return name

    def create(self, template: Mapping[str, Any], name: str = "s", *, settle: bool = True, **more: Any) -> Stack:
        spec = spec_of(name, template, ssm=self.ssm_value, **more)
        return self._then(self.run(lambda tx: stack_operations.begin_create(tx, CALLER, spec)), settle)

    def update(self, template: Mapping[str, Any], name: str = "s", *, settle: bool = True, **more: Any) -> Stack:
        spec = spec_of(name, template, ssm=self.ssm_value, **more)
        return self._then(self.run(lambda tx: stack_operations.begin_update(tx, CALLER, self.stack(name), spec)), settle)

    def delete(self, name: str = "s", retain: tuple[str, ...] = (), *, settle: bool = True) -> Stack:
        stack = self.stack(name)
        return self._then(self.run(lambda tx: stack_operations.begin_delete(tx, CALLER, stack, retain)), settle)

    def _then(self, stack: Stack, settle: bool) -> Stack:
        if settle:
            self.settle()
        return self.by_id(stack.id)

    def stack(self, name: str = "s") -> Stack:
        stack = self.store.stacks.named(REGION, name)
        assert stack is not None, f"there is no stack {name}"
        return stack

    def by_id(self, stack_id: str) -> Stack:
        stack = self.store.stacks.get(stack_id)
        assert stack is not None
        return stack

    def rows(self, stack: Stack) -> dict[str, StackResource]:
        return dict(self.store.stacks.resources(stack.id))

    def row(self, logical_id: str, name: str = "s") -> StackResource:
        row = self.store.stacks.resource(self.stack(name).id, logical_id)
        assert row is not None
        return row

    def events(self, stack: Stack, logical_id: str | None = None) -> list[tuple[str, str, str]]:
        """Return (logical id, status, reason) of the events, oldest first."""
        found = [event for _, event in reversed(self.store.stacks.events(stack.id))]
        return [(e.logical_id, e.status, e.reason) for e in found if logical_id is None or e.logical_id == logical_id]

    def statuses(self, stack: Stack, logical_id: str) -> list[str]:
        return [status for _, status, _ in self.events(stack, logical_id)]

    def check(self) -> None:
        """What must hold whenever no operation is in progress."""
        assert self.store.fleet.snapshot() == derived_fleet(self.store).snapshot()
        assert self.store.stacks._resources == {} and self.store.stacks.computed == {}
        assert self.store.execute("SELECT count(*) FROM watch").fetchone() == (0,)
        for core in self.cores.values():
            assert core.store.undelivered() == [] or core.delivered

    def free_gpus(self) -> int:
        """The GPUs that the host itself owns: no instance has them."""
        return int(
            self.store.execute(
                "SELECT count(*) FROM gpu JOIN instance ON gpu.instance_id = instance.id WHERE instance.region = ''"
            ).fetchone()[0]
        )

    def running(self) -> int:
        return sum(each.state is InstanceState.RUNNING and not each.is_host for each in self.store.instances.all())


def _reaches(old: StackStatus | None, new: StackStatus) -> bool:
    """Whether a few moves lead from one status to the other."""
    if old is None or old is new:
        return True
    seen, waiting = {old}, [old]
    while waiting:
        for following in MOVES[waiting.pop()] - seen:
            seen.add(following)
            waiting.append(following)
    return new in seen


def spec_of(
    name: str,
    template: Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    ssm: Callable[[str], str] = lambda name: name,
    **more: Any,
) -> StackSpec:
    text = orjson.dumps(template).decode()
    values = parameter_values(compile_template(orjson.loads(text)), parameters or {}, {}, ssm)
    return StackSpec(name, text, text, values, **more)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.message
