"""Each fault planted here is caught by a checker within some seeds, and the unmodified world passes the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from corral.core.commands import Command, ParkedCommands
from corral.core.core import Core, Outcome
from corral.core.database import Handover
from corral.core.handovers import Delivery, PendingDelivery
from corral.core.transactions import Tx
from corral.core.undo_log import UndoLog
from corral.decide.placement.place import place, room_for_claim
from corral.fleet import hosts, instances
from corral.model.agent_protocol import Hello, HostOrders, Report, StartOrder
from corral.model.instance import Instance, InstanceState
from corral.model.placement import TASK, Claim, Placement, Slot
from corral.model.run import Observed, RunSpec
from corral.model.task import Run, Task
from corral.reconcile import STATE
from corral.reconcile.scheduler import GRANTS
from corral.services.ecs import host_reports
from corral.services.ecs.gpu_assignment import share_gpus
from corral.services.ecs.handlers import HANDLERS
from corral.services.ecs.task_progress import host_of, start_runs
from corral.services.ecs.task_spec import spec_of
from corral.store import HOLD_PREFIX, Store
from corral.store.instances import Instances
from corral.store.tasks import Tasks
from simulation.agenda import Steps, Stuck
from simulation.checkers import Violation, everything
from simulation.first_seeds import FIRST_SEEDS
from simulation.group_faults import GROUP_FAULTS
from simulation.history_checkers import HISTORY_FAULTS
from simulation.host import Engine
from simulation.joined_hosts import hello_of_a_revoked_host, revoking_frees, with_joined_hosts
from simulation.lanes import SimMetricStore, SimStore, with_part
from simulation.loss_faults import LOSS_FAULTS
from simulation.plan import Plan
from simulation.plane import AgentLink, Plane
from simulation.service_faults import SERVICE_FAULTS
from simulation.test_simulation import SEEDS, SEEDS_USUAL, START
from simulation.world import Parts, simulate

SEEDS_MAX = 240

# A lease that ends too early


def stop_frees(tx: Tx[Store], params: dict[str, Any], caller: Any) -> dict[str, Any]:
    """StopTask gives the GPUs back at once, while the processes still end."""
    answer = HANDLERS["StopTask"](tx, params, caller)
    task = tx.store.tasks.get(answer["task"]["taskArn"].rpartition("/")[2])
    assert task is not None
    for run in task.runs:
        if tx.store.execute("DELETE FROM lease WHERE run_id = ?", (run.id,)).rowcount:
            assert task.instance_id is not None
            tx.store.fleet.give(task.pool, task.instance_id, run.gpu_ids, 0, 0)
    tx.mark(f"pool:{task.pool}")
    return answer


def silence_ends_runs(tx: Tx[Store], host_id: str) -> None:
    """A host that is not heard of is taken for dead."""
    STATE["host"](tx, host_id)
    host = tx.store.hosts.get(host_id)
    if host is not None and not host["connected"]:
        for task in tx.store.tasks.on_host(host_id):
            host_reports.report(tx, host_id, [Observed(run.id, stopped_at_s=tx.now_s, reason="silent") for run in task.runs])


# An index that does not follow the rows


class KeepsIndexOfFailedCommands(SimStore):
    def rollback_to_savepoint(self) -> None:
        undo_log, self.undo_log = self.undo_log, UndoLog()
        super().rollback_to_savepoint()
        self.undo_log = undo_log


class KeepsIndexOfFailedTransactions(SimStore):
    def rollback(self) -> None:
        undo_log, self.undo_log = self.undo_log, UndoLog()
        super().rollback()
        self.undo_log = undo_log
        undo_log._inverses.clear()
        undo_log._effects.clear()


# Withheld GPUs that are offered


class OffersWhatIsHeld(Instances):
    def attributes(self, instance_id: str) -> dict[str, str]:
        return {name: value for name, value in super().attributes(instance_id).items() if not name.startswith(HOLD_PREFIX)}


class OffersWhatOthersUse(Tasks):
    def _change_run(self, task: Task, was: Run, run: Run) -> tuple[str, ...]:
        """A GPU is free when its lease ends, even if a foreign process uses it."""
        positions = self._fleet.pool(task.pool).slot(task.instance_id or "").positions
        positions.update({gpu_id: 0 for gpu_id in run.gpu_ids if gpu_id not in positions})
        return super()._change_run(task, was, run)


# A line that is not one


def grant(tx: Tx[Store], pool_name: str, claim: Claim) -> None:
    found = place(tx.store.fleet.pool(pool_name), claim.demand)
    if isinstance(found, Placement) and claim.kind != TASK:
        instances.grant(tx, claim, found)
        return
    task = tx.store.tasks.get(claim.id)
    if isinstance(found, Placement) and task is not None:
        start_runs(tx, tx.store.tasks.place(task, found, share_gpus(task.runs, found.gpu_ids), tx.now_s), spec_of(tx, task))


def all_claims(tx: Tx[Store], pool_name: str) -> list[Claim]:
    return list(tx.store.fleet.pool(pool_name).in_order())


def youngest_first(tx: Tx[Store], pool_name: str) -> None:
    for claim in reversed(all_claims(tx, pool_name)):
        grant(tx, pool_name, claim)


def nothing_kept(tx: Tx[Store], pool_name: str) -> None:
    """Oldest first, but a claim that fits overtakes one that does not."""
    for claim in all_claims(tx, pool_name):
        grant(tx, pool_name, claim)


def reserved_slots_are_open(tx: Tx[Store], pool_name: str) -> None:
    """Each claim may use a reserved slot before its opening, whatever its own time limit is."""
    pool = tx.store.fleet.pool(pool_name)
    for claim in all_claims(tx, pool_name):
        waits = tx.store.claims.get(claim.kind, claim.id) == claim
        found = room_for_claim(pool, claim._replace(id="", longest_s=0.0), tx.now_s) if waits else None
        if found is not None:
            GRANTS[claim.kind](tx, claim, found)
    STATE["pool"](tx, pool_name)


# Starting and stopping across crashes


class ForgetsWithItsAgent(Engine):
    """An engine that does not outlive its agent in what it knows."""

    def agent_died(self) -> None:
        self.runs = {}


def hello_ignores_boots(tx: Tx[Store], said: Hello) -> None:
    """What was given to a host before it was restarted is given to it again."""
    before = tx.store.hosts.get(said.host_id)
    host_reports.hello(tx, structs.replace(said, boot_id=before["boot_id"]) if before else said)


def hello_starts_all_again(tx: Tx[Store], said: Hello) -> None:
    """Whatever the host knows, and it knows best."""
    host_reports.hello(tx, structs.replace(said, runs=[]))


def hello_stops_nothing(tx: Tx[Store], said: Hello) -> None:
    """A stop that was on its way when the connection broke is lost."""
    host_reports.hello(tx, said)
    tx._orders[:] = [(host_id, order) for host_id, order in tx._orders if not isinstance(order, str)]


def hello_starts_nothing(tx: Tx[Store], said: Hello) -> None:
    host_reports.hello(tx, said)
    tx._orders[:] = [(host_id, order) for host_id, order in tx._orders if not isinstance(order, StartOrder)]


class SendsWhatWasOrderedBeforeHello(Plane):
    class Link(AgentLink):
        def put(self, orders: HostOrders) -> None:
            super().put(structs.replace(orders, replaces_earlier=False))

    link = Link


class GivesUpRunsOfAnOldConnection(Plane):
    """A log stream could not be opened; meanwhile the host has said hello anew and was told to start the run."""

    def _may_still_refuse(self, connection: AgentLink) -> bool:
        return True


def many_refusals(plan: Plan) -> Plan:
    """It takes a log stream that cannot be opened, a connection that breaks meanwhile, and a group that is made just then."""
    return replace(plan, faults=("link break",), fault_every_s=0.5, log_refusal=0.5, transaction_delay_s=1.0)


def reboots_and_breaks(plan: Plan) -> Plan:
    """It takes orders that wait to be sent while their host is restarted."""
    return replace(plan, faults=("reboot", "link break"), fault_every_s=1.0, transaction_delay_s=1.0)


class AcknowledgesBeforeTheCommit(Plane):
    def _read_reports(self, connection: AgentLink, host_id: str, gpus_elsewhere: list[str] | None = None) -> Steps:
        while (message := (yield connection.read())) is not None:
            report: Report = message["report"]
            self.submit(lambda tx, runs=report.runs: host_reports.report(tx, host_id, runs))
            self.submit(lambda tx: hosts.heartbeats(tx, [host_id]))
            connection.down.send({"ack": {}})


# Several containers


def hello_orders_no_checks(tx: Tx[Store], said: Hello) -> None:
    """A restarted agent gets no order to check health, so dependent containers never start."""
    host_reports.hello(tx, said)
    tx._orders[:] = [(host_id, order) for host_id, order in tx._orders if not isinstance(order, RunSpec)]


def many_reboots(plan: Plan) -> Plan:
    """It takes a host that is restarted between an order and the word that it was obeyed."""
    return replace(plan, faults=("reboot",), fault_every_s=1.0)


def many_agents(plan: Plan) -> Plan:
    """It takes an agent that dies between a start and the first verdict."""
    return replace(plan, faults=("agent crash",), fault_every_s=0.5)


class IgnoresDependencies(Tasks):
    def place(self, task: Task, placement: Placement, runs: Sequence[Run], now_s: float) -> Task:
        return super().place(task, placement, [run.but(waits=False) for run in runs], now_s)


class ForgetsWhoStartedAgain(Tasks):
    """After a restart of the core a container is at its first attempt again."""

    def _change_run(self, task: Task, was: Run, run: Run) -> tuple[str, ...]:
        return super()._change_run(task, was, run.but(restarts=0))


class FreesOnRestart(Tasks):
    def _change_run(self, task: Task, was: Run, run: Run) -> tuple[str, ...]:
        freed = super()._change_run(task, was, run)
        if run.restarts > was.restarts and self._execute("DELETE FROM lease WHERE run_id = ?", (run.id,)).rowcount:
            assert task.instance_id is not None
            self._fleet.give(task.pool, task.instance_id, run.gpu_ids, 0, 0)
        return freed


def stops_all_at_once(tx: Tx[Store], params: dict[str, Any], caller: Any) -> dict[str, Any]:
    answer = HANDLERS["StopTask"](tx, params, caller)
    task = tx.store.tasks.get(answer["task"]["taskArn"].rpartition("/")[2])
    assert task is not None
    if task.instance_id is not None:
        for run in task.runs:
            tx.stop(host_of(tx, task), run.attempt_id)
    return answer


# Wake-ups


def report_wakes_no_pool(tx: Tx[Store], host_id: str, runs: list[Observed]) -> None:
    before = dict(tx._marks)
    host_reports.report(tx, host_id, runs)
    tx._marks.clear()
    tx._marks.update(before)


class NothingExpires(ParkedCommands):
    def take_expired(self, now_s: float) -> list[Command]:
        return []


class LetsWaitersWait(Core[Any]):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._parked = NothingExpires()


class SleepsUntilACommandComes(Core[Any]):
    def transact(self, commands: Any) -> Outcome:
        return super().transact(commands) if commands else Outcome()


# What leaves, and when


class AnswersBeforeTheCommit(Core[Any]):
    def _failed(self, error: Exception, commands: Any, outcome: Outcome) -> Outcome:
        super()._failed(error, commands, outcome)
        return outcome


class OrdersBeforeTheCommit(Core[Any]):
    def _run(self, tx: Tx[Any], command: Command, outcome: Outcome) -> None:
        super()._run(tx, command, outcome)
        self._ordered = [(host_id, order) for host_id, order in tx._orders if isinstance(order, StartOrder)]

    def _failed(self, error: Exception, commands: Any, outcome: Outcome) -> Outcome:
        failed = super()._failed(error, commands, outcome)
        for host_id, start in self._ordered:
            failed.orders.setdefault(host_id, HostOrders()).start.append(start)
        return failed


class KeepsOrdersOfFailedCommands(Core[Any]):
    def _undo(self, tx: Tx[Any], sizes: tuple[int, int, int]) -> None:
        self.store.rollback_to_savepoint()


def run_forgets_tokens(tx: Tx[Store], params: dict[str, Any], caller: Any) -> dict[str, Any]:
    return HANDLERS["RunTask"](tx, {key: value for key, value in params.items() if key != "clientToken"}, caller)


def report_says_all_went_well(tx: Tx[Store], host_id: str, runs: list[Observed]) -> None:
    host_reports.report(tx, host_id, [structs.replace(seen, exit_code=0) if seen.exit_code else seen for seen in runs])


def no_host_is_silent(tx: Tx[Store], host_id: str) -> None:
    tx.due(f"host:{host_id}", tx.now_s + 15.0)


# Placement rules that are not applied


def rules_are_for_newcomers(tx: Tx[Store], pool_name: str) -> None:
    """The oldest who waits goes wherever there is room."""
    STATE["pool"](tx, pool_name)
    for claim in all_claims(tx, pool_name)[:1]:
        grant(tx, pool_name, claim._replace(demand=structs.replace(claim.demand, rules=None)))


class IgnoresDraining(Instances):
    def _slot(self, instance: Instance) -> Slot:
        return structs.replace(super()._slot(instance), draining=False)


def stop_wakes_no_pool(tx: Tx[Store], params: dict[str, Any], caller: Any) -> dict[str, Any]:
    """A task that is asked to stop leaves its group; those who wait for that do not hear of it."""
    answer = HANDLERS["StopTask"](tx, params, caller)
    for key in [key for key in tx._marks if key.startswith("pool:")]:
        del tx._marks[key]
    return answer


# Instances that end


def terminated_with_tasks_on_it(tx: Tx[Store], instance_id: str) -> None:
    """An instance that shuts down does not wait for its tasks."""
    instance = tx.store.instances.get(instance_id)
    if instance is not None and instance.state is InstanceState.SHUTTING_DOWN:
        tx.store.instances.terminate(instance, tx.now_s)


def termination_wakes_no_pool(tx: Tx[Store], instance_id: str) -> None:
    """Claims do not hear of the GPUs that an instance gives back."""
    STATE["instance"](tx, instance_id)
    for key in [key for key in tx._marks if key.startswith("pool:")]:
        del tx._marks[key]


def report_forgets_instances(tx: Tx[Store], host_id: str, runs: list[Observed]) -> None:
    """The end of its last task does not end an instance that shuts down."""
    host_reports.report(tx, host_id, runs)
    for key in [key for key in tx._marks if key.startswith("instance:")]:
        del tx._marks[key]


def many_instances(plan: Plan) -> Plan:
    return replace(plan, with_instances=0.4)


# Hand-overs between lanes


class DeliversNothingAgain(Delivery):
    """What a crash left in an outbox stays there."""

    def start(self) -> None:
        pass


class RemovesBeforeItIsReceived(Delivery):
    """Lost, if the process dies between the removal and the receiver's commit."""

    def _begin(self, handover: Handover, command: Command | None) -> None:
        super()._begin(handover, command)
        self._core.delivered.append(handover.id)
        self._remove_soon()


class TriesOnce(Delivery):
    def _try_again(self, sending: PendingDelivery, error: BaseException) -> None:
        pass


class TriesWhatWasReplaced(Delivery):
    """An older value comes after a newer one."""

    def _try(self, sending: PendingDelivery, command: Command | None = None) -> None:
        self._send(sending.handover, [], partial(self._tried, sending, command, []))


class NotesNothing(SimMetricStore):
    """What is delivered a second time is done a second time."""

    def note_received(self, handover: Handover) -> bool:
        return True


class HandsOverBeforeTheCommit(Core[Any]):
    def _failed(self, error: Exception, commands: Any, outcome: Outcome) -> Outcome:
        return structs.replace(super()._failed(error, commands, outcome), handed=outcome.handed)


class HandsOverForFailedCommands(Core[Any]):
    def _undo(self, tx: Tx[Any], sizes: tuple[int, int, int, int, int]) -> None:
        super()._undo(tx, (*sizes[:4], len(tx._handed)))


def many_logs(plan: Plan) -> Plan:
    """It takes a crash, a full disk or a failing command between the steps of one hand-over."""
    faults = ("crash before commit", "crash after commit", "crash between steps", "disk full", "failing command")
    return replace(plan, faults=faults, fault_every_s=1.0, log_requests=40)


def full_disks(plan: Plan) -> Plan:
    """It takes a receiver that fails, and no crash after which all is delivered again anyway."""
    return replace(plan, faults=("disk full",), fault_every_s=0.5, log_requests=40)


PLANTED: dict[str, Parts] = {
    "an instance ends before its tasks": Parts(reconcilers={**STATE, "instance": terminated_with_tasks_on_it}, tune=many_instances),
    "the GPUs of an ended instance are not offered": Parts(
        reconcilers={**STATE, "instance": termination_wakes_no_pool}, tune=many_instances
    ),
    "an instance never ends": Parts(report=report_forgets_instances, tune=many_instances),
    "what a crash left is not handed over": Parts(delivery=DeliversNothingAgain),
    "a hand-over is lost": Parts(delivery=RemovesBeforeItIsReceived, tune=many_logs),
    "a hand-over is done twice": Parts(metric_store=NotesNothing, tune=many_logs),
    "a hand-over is delivered before the commit": Parts(core=HandsOverBeforeTheCommit, tune=many_logs),
    "a failed command hands over": Parts(core=HandsOverForFailedCommands, tune=many_logs),
    "a hand-over is tried once": Parts(delivery=TriesOnce, tune=full_disks),
    "an older hand-over comes after a newer one": Parts(delivery=TriesWhatWasReplaced, tune=full_disks),
    "waiting tasks ignore their placement rules": Parts(reconcilers={**STATE, "pool": rules_are_for_newcomers}),
    "a draining host gets new tasks": Parts(store=with_part("instances", IgnoresDraining)),
    "a task that leaves its group wakes no claim": Parts(handlers={**HANDLERS, "StopTask": stop_wakes_no_pool}),
    "a lease is freed by StopTask": Parts(handlers={**HANDLERS, "StopTask": stop_frees}),
    "a lease is freed by silence": Parts(reconcilers={**STATE, "host": silence_ends_runs}),
    "the index is not rolled back with the savepoint": Parts(store=KeepsIndexOfFailedCommands),
    "the index is not rolled back after a failed commit": Parts(store=KeepsIndexOfFailedTransactions),
    "what is held is offered": Parts(store=with_part("instances", OffersWhatIsHeld)),
    "what others use is offered when its lease ends": Parts(store=with_part("tasks", OffersWhatOthersUse)),
    "the youngest claim first": Parts(reconcilers={**STATE, "pool": youngest_first}),
    "a reserved slot is open to each claim": Parts(reconcilers={**STATE, "pool": reserved_slots_are_open}),
    "no slot is reserved for a large claim": Parts(reconcilers={**STATE, "pool": nothing_kept}),
    "the engine forgets with its agent": Parts(engine=ForgetsWithItsAgent),
    "hello ignores boots": Parts(hello=hello_ignores_boots, tune=many_reboots),
    "hello starts again what runs": Parts(hello=hello_starts_all_again),
    "hello forgets to stop": Parts(hello=hello_stops_nothing),
    "hello forgets to start": Parts(hello=hello_starts_nothing),
    "orders from before a hello are sent after it": Parts(plane=SendsWhatWasOrderedBeforeHello, tune=reboots_and_breaks),
    "a refusal for an old connection": Parts(plane=GivesUpRunsOfAnOldConnection, tune=many_refusals),
    "a report is acknowledged before the commit": Parts(plane=AcknowledgesBeforeTheCommit),
    "a release wakes no claim": Parts(report=report_wakes_no_pool),
    "a long poll is never over": Parts(core=LetsWaitersWait),
    "what is due waits for a command": Parts(core=SleepsUntilACommandComes),
    "answers leave before the commit": Parts(core=AnswersBeforeTheCommit),
    "orders leave before the commit": Parts(core=OrdersBeforeTheCommit, tune=full_disks),
    "a failed command's orders leave": Parts(core=KeepsOrdersOfFailedCommands),
    "client tokens are forgotten": Parts(handlers={**HANDLERS, "RunTask": run_forgets_tokens}),
    "exit codes are embellished": Parts(report=report_says_all_went_well),
    "a restarted agent gets no health checks": Parts(hello=hello_orders_no_checks, tune=many_agents),
    "containers do not wait for their dependencies": Parts(store=with_part("tasks", IgnoresDependencies)),
    "restarts are forgotten": Parts(store=with_part("tasks", ForgetsWhoStartedAgain)),
    "a restart frees the GPUs": Parts(store=with_part("tasks", FreesOnRestart)),
    "all containers are stopped at once": Parts(handlers={**HANDLERS, "StopTask": stops_all_at_once}),
    "time limits are not checked": Parts(reconcilers={**STATE, "task": lambda tx, task_id: None}),
    "no host is ever silent": Parts(reconcilers={**STATE, "host": no_host_is_silent}),
    "a revoked host may return": Parts(hello=hello_of_a_revoked_host, tune=with_joined_hosts),
    "revoking a host frees its GPUs": Parts(handlers={**HANDLERS, "RevokeHost": revoking_frees}, tune=with_joined_hosts),
    "a host whose network is cut loses its leases": Parts(reconcilers={**STATE, "host": silence_ends_runs}, tune=with_joined_hosts),
    **SERVICE_FAULTS,
    **LOSS_FAULTS,
    **GROUP_FAULTS,
    **HISTORY_FAULTS,
}


def caught_at(parts: Parts, first: int) -> tuple[int, str]:
    """(the seed that caught it, who objected)"""
    for seed in (*range(first, SEEDS_MAX), *range(first)):
        try:
            simulate(seed, everything(), parts)
        except (Violation, Stuck) as objection:
            return seed, f"{type(objection).__name__}: {str(objection)[:200]}"
    raise AssertionError(f"not caught within {SEEDS_MAX} seeds")


def first_seed(fault: str) -> int:
    return FIRST_SEEDS.get(fault, 0)


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_caught(fault: str) -> None:
    seed, objection = caught_at(PLANTED[fault], first_seed(fault))
    print(f"{fault}: seed {seed}, {objection}")


def test_the_unmodified_world_passes_the_same_seeds() -> None:
    """Those that test_simulation.py does not run, and those with a tuned plan, once each: a third of them, or all in long runs."""
    run_there = range(START, START + SEEDS)
    runs = dict.fromkeys((first_seed(fault), parts.tune) for fault, parts in PLANTED.items())
    found = [(seed, tune) for seed, tune in runs if tune is not Parts.tune or seed not in run_there]
    for seed, tune in found if SEEDS > SEEDS_USUAL else found[::3]:
        simulate(seed, everything(), Parts(tune=tune))
