"""Checkers of ECS services: how many tasks they have, when they start them, and what is left of them in the end."""

from __future__ import annotations

from math import ceil, log2
from typing import Any, NamedTuple

import orjson

from corral.core.core import Outcome
from corral.decide.placement.place import room_for_newcomer
from corral.model.task import Demand
from corral.services.ecs.task_spec import task_spec
from corral.store.deployment_counts import DeploymentCounts
from simulation.checkers import Checker, Rows, TaskRow, Violation, matches_all, read_rows
from simulation.clients import CALLER, NEVER

EVENTS_MAX = 100
STUCK = "was unable to stop or start tasks during a deployment because of the service deployment configuration"


class ServiceRow(NamedTuple):
    region: str
    cluster: str
    name: str
    status: str
    strategy: str
    document: dict[str, Any]

    @property
    def key(self) -> str:
        return f"{self.region}/{self.cluster}/{self.name}"

    @property
    def primary(self) -> str:
        return str(self.document["deployments"][0]["id"])

    @property
    def desired(self) -> int:
        return int(self.document["desired"])

    @property
    def most(self) -> int:
        """The largest number of tasks that should run at the same time."""
        percent = self.document["details"]["deploymentConfiguration"]["maximumPercent"]
        return max(self.desired, self.desired * int(percent) // 100)

    @property
    def expressions(self) -> list[str]:
        constraints = self.document["details"].get("placementConstraints", ())
        return [constraint["expression"] for constraint in constraints if constraint["type"] == "memberOf"]


class ServiceChecker(Checker):
    """The base class of those that look at services and their tasks."""

    def services(self) -> list[ServiceRow]:
        rows = self.world.plane.store.execute("SELECT region, cluster, name, status, strategy, document FROM ecs_service")
        return [ServiceRow(*row[:5], orjson.loads(row[5])) for row in rows.fetchall()]

    def rows_seen(self, rows: Rows) -> None:
        if self.world.plan.with_services:
            of_group: dict[tuple[str, str], list[TaskRow]] = {}
            for task in rows.tasks.values():
                if task.group.startswith("service:"):
                    of_group.setdefault((task.cluster, task.group), []).append(task)
            for service in self.services():
                self.service_seen(rows, service, of_group.get((service.cluster, f"service:{service.name}"), []))

    def service_seen(self, rows: Rows, service: ServiceRow, tasks: list[TaskRow]) -> None: ...

    def eligible(self, rows: Rows, service: ServiceRow, tasks: list[TaskRow]) -> dict[str, set[str]]:
        """Pool → the slots that get a task of a DAEMON service: those that take tasks, match, and are large enough or have one."""
        found: dict[str, set[str]] = {f"hosts:{service.cluster}": set(), f"{service.region}/{service.cluster}": set()}
        demand = self._demand(service)
        for instance_id, size in rows.sizes.items():
            instance = rows.instances[instance_id]
            large = (
                size.gpus >= demand.least_gpus and size.cpu_units >= demand.cpu_units and size.memory_mib >= demand.memory_mib
            ) or any(task.instance_id == instance_id for task in tasks)
            takes = instance.cluster == service.cluster and instance_id not in rows.draining
            if takes and large and matches_all(service.expressions, rows.attributes.get(instance_id, {})):
                found[instance.slot_pool].add(instance_id)
        return found

    def _demand(self, service: ServiceRow) -> Demand:
        family, _, revision = service.document["deployments"][0]["definition_arn"].rpartition("/")[2].partition(":")
        found = self.world.plane.store.definitions.get(service.region, family, int(revision))
        assert found is not None
        return task_spec(found[2], {}).demand


def _should_run(tasks: list[TaskRow]) -> list[TaskRow]:
    return [task for task in tasks if task.desired == "RUNNING"]


class WithinThePercentages(ServiceChecker):
    """No service starts a task above its maximumPercent. Only a smaller count or percentage can leave more tasks for a while."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def service_seen(self, rows: Rows, service: ServiceRow, tasks: list[TaskRow]) -> None:
        count = len(_should_run(tasks))
        if service.strategy == "REPLICA" and count > max(service.most, self._before.get(service.key, 0)):
            raise Violation(f"{service.key} has {count} tasks that should run, and at most {service.most} may: {tasks}")
        self._before[service.key] = count


class OneDaemonEach(ServiceChecker):
    """A DAEMON service never has two tasks that should run on one instance, nor more waiting tasks than instances."""

    def service_seen(self, rows: Rows, service: ServiceRow, tasks: list[TaskRow]) -> None:
        if service.strategy != "DAEMON":
            return
        active = _should_run(tasks)
        places = [task.instance_id for task in active if task.instance_id is not None]
        if len(places) != len(set(places)):
            raise Violation(f"two daemon tasks of {service.key} are on one instance: {active}")
        waiting = sum(task.instance_id is None for task in active)
        if waiting > len(rows.instances):
            raise Violation(f"{service.key} has {waiting} waiting tasks for {len(rows.instances)} instances")


class ServicesAreReconciled(ServiceChecker):
    """After a transaction a service that lacks tasks has started them, or a due row says when it will."""

    def __init__(self) -> None:
        self._rows: Rows | None = None
        self._life = -1

    def transaction_done(self, outcome: Outcome) -> None:
        if self._rows is not None and not outcome.faults:
            super().rows_seen(self._rows)

    def rows_seen(self, rows: Rows) -> None:
        self._rows = rows

    def service_seen(self, rows: Rows, service: ServiceRow, tasks: list[TaskRow]) -> None:
        if service.status == "INACTIVE" or self._is_due(service):
            return
        active = _should_run(tasks)
        if service.status == "DRAINING":
            if active or all(task.state == "STOPPED" for task in tasks):
                raise Violation(f"{service.key} was deleted and is not reconciled: {tasks}")
        elif service.strategy == "REPLICA":
            self._check_replica(rows, service, active)
        else:
            self._check_daemon(rows, service, active)

    def _check_replica(self, rows: Rows, service: ServiceRow, active: list[TaskRow]) -> None:
        own = [task for task in active if task.started_by == service.primary and task.instance_id not in rows.draining]
        unhealthy = self._unhealthy()
        current = [task for task in own if task.state != "RUNNING" or task.id not in unhealthy]
        if len(current) > service.desired:
            raise Violation(f"{service.key} should have {service.desired} tasks and has {current}")
        if len(current) < service.desired and len(active) < service.most:
            raise Violation(f"{service.key} lacks tasks and starts none: {service.desired} are desired, there are {active}")
        if len(current) < len(own) and any(task.state == "PROVISIONING" for task in current):
            raise Violation(f"{service.key} keeps an unhealthy task, and another one waits for capacity: {own}")

    def _unhealthy(self) -> set[str]:
        """The tasks with an unhealthy essential container. Their replacements start before they stop, if there is room."""
        sql = "SELECT task_id FROM run WHERE health = 'UNHEALTHY' AND state != 'STOPPED' AND essential"
        return {task_id for (task_id,) in self.world.plane.store.execute(sql)}

    def _check_daemon(self, rows: Rows, service: ServiceRow, active: list[TaskRow]) -> None:
        for pool, eligible in self.eligible(rows, service, active).items():
            vacant = eligible - {task.instance_id for task in active if task.pool == pool}
            waiting = [task for task in active if task.instance_id is None and task.pool == pool]
            if len(waiting) != len(vacant) and not self._replaces_old_ones(service, active):
                raise Violation(f"{service.key} has no task on {vacant} of {pool}, and for them wait {waiting}")

    def _replaces_old_ones(self, service: ServiceRow, active: list[TaskRow]) -> bool:
        return any(task.started_by != service.primary for task in active)

    def _is_due(self, service: ServiceRow) -> bool:
        found = self.world.plane.store.execute("SELECT 1 FROM due WHERE key = ?", (f"service:{service.key}",))
        return found.fetchone() is not None


class ServicesReachTheirCount(ServiceChecker):
    """Without faults each service has its tasks in the end; or those that it lacks wait and say why, or an event says why."""

    def services_settled(self) -> None:
        rows = read_rows(self.world.plane.store.execute)
        super().rows_seen(rows)

    def rows_seen(self, rows: Rows) -> None:
        pass

    def service_seen(self, rows: Rows, service: ServiceRow, tasks: list[TaskRow]) -> None:
        dead = {host.id for host in self.world.hosts if host.dead}
        on_dead = {each.id for each in rows.instances.values() if each.host_id in dead}
        left = [task for task in tasks if task.state != "STOPPED" and task.instance_id not in on_dead]
        if service.status != "ACTIVE":
            if left:
                raise Violation(f"{service.key} is {service.status} and has {left}")
            return
        for task in left:
            if task.state == "PROVISIONING":
                self._check_reason(task)
        if service.strategy == "DAEMON":
            self._check_daemon(rows, service, left)
        else:
            self._check_replica(service, _should_run(tasks), left)

    def _check_replica(self, service: ServiceRow, active: list[TaskRow], left: list[TaskRow]) -> None:
        current = [task for task in active if task.started_by == service.primary]
        waiting = [task for task in current if task.state == "PROVISIONING"]
        stuck = any(STUCK in event for event in self._events(service))
        if len(current) != service.desired and not waiting and not stuck:
            raise Violation(f"{service.key} should have {service.desired} tasks and has {active}")
        old = [task for task in left if task.started_by != service.primary]
        never_up = any(task.state == "PENDING" for task in current)  # on a host that died, or the services would not be settled
        if old and not waiting and not never_up and not stuck:
            raise Violation(f"{service.key} has all its tasks and keeps {old}")

    def _check_daemon(self, rows: Rows, service: ServiceRow, left: list[TaskRow]) -> None:
        for pool, eligible in self.eligible(rows, service, left).items():
            there = {task.instance_id: task for task in left if task.pool == pool and task.instance_id is not None}
            waiting = [task for task in left if task.pool == pool and task.instance_id is None]
            if there.keys() - eligible:
                raise Violation(f"{service.key} has tasks on {there.keys() - eligible}, which should have none")
            if len(eligible - there.keys()) != len(waiting):
                raise Violation(f"{service.key} has no task on {eligible - there.keys()}, and waiting are {waiting}")
            if not waiting and any(task.started_by != service.primary for task in there.values()):
                raise Violation(f"{service.key} keeps old tasks: {there}")

    def _check_reason(self, task: TaskRow) -> None:
        tx = self.world.reading()
        shown = self.world.parts.handlers["DescribeTasks"](tx, {"cluster": task.cluster, "tasks": [task.id]}, CALLER)["tasks"][0]
        if not all("needs " in container.get("reason", "") for container in shown["containers"]):
            raise Violation(f"{task} waits and does not say why")

    def _events(self, service: ServiceRow) -> list[str]:
        sql = "SELECT message FROM ecs_service_event WHERE region = ? AND cluster = ? AND name = ?"
        return [text for (text,) in self.world.plane.store.execute(sql, (service.region, service.cluster, service.name))]


class ServicesEnd(ServiceChecker):
    """In the end every deleted service is INACTIVE and has no tasks, unless these are on a host that died."""

    def finished(self) -> None:
        super().rows_seen(read_rows(self.world.plane.store.execute))
        for name, count in self.world.plane.store.execute(
            "SELECT name, count(*) FROM ecs_service_event GROUP BY region, cluster, name"
        ):
            if count > EVENTS_MAX:
                raise Violation(f"service {name} has {count} events")

    def rows_seen(self, rows: Rows) -> None:
        if self.world.plan.with_services and any(service.name == NEVER for service in self.services()):
            raise Violation("a command that failed left a service")

    def service_seen(self, rows: Rows, service: ServiceRow, tasks: list[TaskRow]) -> None:
        dead = {host.id for host in self.world.hosts if host.dead}
        left = [task for task in tasks if task.state != "STOPPED"]
        held = [task for task in left if task.instance_id and rows.instances[task.instance_id].host_id in dead]
        if left != held or service.status != ("DRAINING" if held else "INACTIVE"):
            raise Violation(f"{service.key} is {service.status} and has {left}")


class FailuresSlowDown(ServiceChecker):
    """A service whose tasks fail starts them less and less often: their number grows with the logarithm of the time."""

    SHORT_S = 60.0

    def __init__(self) -> None:
        self._desired: dict[str, int] = {}  # deployment → the largest number of tasks that it should have had

    def service_seen(self, rows: Rows, service: ServiceRow, tasks: list[TaskRow]) -> None:
        count = max(service.desired, len(rows.instances) if service.strategy == "DAEMON" else 1)
        self._desired[service.primary] = max(count, self._desired.get(service.primary, 0))

    def finished(self) -> None:
        for deployment, desired in self._desired.items():
            ends = self.world.plane.store.execute(
                "SELECT created_at, stopped_at, coalesce(stopped_at - started_at, 0) FROM task WHERE started_by = ? "
                "AND stop_code IN ('EssentialContainerExited', 'TaskFailedToStart') AND stopped_at IS NOT NULL",
                (deployment,),
            ).fetchall()
            if not ends or any(lived_s >= self.SHORT_S for _, _, lived_s in ends):
                continue
            lasted_s = max(end[1] for end in ends) - min(end[0] for end in ends)
            if len(ends) > desired * ceil(5 + 2 * log2(lasted_s + 1)):
                raise Violation(f"{deployment} had {len(ends)} failed tasks in {lasted_s} s, of {desired} that it should have")


class ServiceIndexesAreDerived(Checker):
    """The index of claims that may use two pools, and the counts of tasks of deployments, are what the rows say."""

    def transaction_done(self, outcome: Outcome) -> None:
        if not self.world.plan.with_services:
            return
        store = self.world.plane.store
        rows = store.execute("SELECT pool, id FROM claim WHERE roams ORDER BY pool, id").fetchall()
        kept = store.claims.roaming
        found = sorted((pool, claim.id) for pool, claims in kept.items() for claim in claims)
        if found != rows or any(claims != sorted(claims) for claims in kept.values()):
            raise Violation(f"{kept} roam in the index, and {rows} in the rows")
        counts, derived = store.tasks.deployment_counts._counts, DeploymentCounts(store)._counts
        if counts != derived:
            raise Violation(f"the tasks of deployments are counted as {counts}, and the rows say {derived}")

    def finished(self) -> None:
        self.transaction_done(Outcome())


class RoamingClaimsAreServed(Checker):
    """After a transaction no claim waits in one pool while another one that it may use has room for it."""

    def transaction_done(self, outcome: Outcome) -> None:
        store = self.world.plane.store
        hosts = [f"hosts:{cluster}" for cluster in store.instances.clusters_of_hosts()]
        roaming = [(pool, claim) for pool, claims in store.claims.roaming.items() for claim in claims]
        for source, claim in roaming if not outcome.faults else ():
            task = store.tasks.get(claim.id)
            for pool in hosts if task is None else (f"hosts:{task.cluster}", f"{task.region}/{task.cluster}"):
                due = store.execute("SELECT 1 FROM due WHERE key = ? AND at <= ?", (f"pool:{pool}", self.world.clock.now_s()))
                now_s, longest_s = self.world.clock.now_s(), claim.longest_s
                room = room_for_newcomer(store.fleet.pool(pool), claim.demand, now_s, seed=claim.id, longest_s=longest_s)
                if pool != source and room is not None and due.fetchone() is None:
                    raise Violation(f"{claim} waits in {source}, and {pool} has room for it: {room}")


def service_checkers() -> list[Checker]:
    return [
        WithinThePercentages(), OneDaemonEach(), ServicesAreReconciled(), ServicesReachTheirCount(), ServicesEnd(),
        FailuresSlowDown(), ServiceIndexesAreDerived(), RoamingClaimsAreServed(),
    ]  # fmt: skip
