"""Faults of ECS services that test_planted_faults.py plants."""

from __future__ import annotations

from dataclasses import replace

from corral.core.transactions import Tx
from corral.model.ecs_service import DAEMON, EcsService, ServiceTask, StoppedTask
from corral.model.run import Observed
from corral.reconcile import STATE
from corral.services.ecs import host_reports
from corral.store import Store
from corral.store.ecs_services import EcsServices
from simulation.lanes import SimStore, with_part
from simulation.plan import Plan
from simulation.world import Parts


def report_forgets_services(tx: Tx[Store], host_id: str, runs: list[Observed]) -> None:
    """A service does not hear of the tasks that end."""
    host_reports.report(tx, host_id, runs)
    for marks in (tx._marks, tx._late_marks):
        for key in [key for key in marks if key.startswith("service:")]:
            del marks[key]


class ForgetsFailures(EcsServices):
    """Tasks that failed are replaced at once, again and again."""

    def newest_stopped(self, service: EcsService, limit: int) -> list[StoppedTask]:
        return []


class HidesWaitingDaemons(EcsServices):
    """A DAEMON does not count the tasks that wait: it starts another one for the same instance."""

    def tasks(self, service: EcsService) -> list[ServiceTask]:
        found = super().tasks(service)
        return [task for task in found if service.strategy != DAEMON or task.instance_id is not None]


class HidesOldDeployments(EcsServices):
    """Tasks of earlier deployments do not count: they are neither stopped nor part of the maximum."""

    def tasks(self, service: EcsService) -> list[ServiceTask]:
        return [task for task in super().tasks(service) if task.deployment == service.primary.id]


class ForgetsStoppingTasks(EcsServices):
    """A deleted service is INACTIVE before its last task has stopped."""

    def still_stopping(self, service: EcsService) -> bool:
        return False


class ForgetsRoamingClaims(SimStore):
    """After a restart a task that waits in one pool gets nothing of the other one."""

    def _compose(self) -> None:
        super()._compose()
        self.claims.roaming.clear()


def many_services(plan: Plan) -> Plan:
    return replace(plan, with_services=0.6)


def failing_services(plan: Plan) -> Plan:
    return replace(plan, with_services=0.6, run_s=0.2, safety_s=60.0)


def services_and_instances(plan: Plan) -> Plan:
    return replace(plan, with_services=0.5, with_instances=0.4)


SERVICE_FAULTS: dict[str, Parts] = {
    "a service does not hear of its tasks": Parts(report=report_forgets_services, tune=many_services),
    "a service replaces failed tasks at once": Parts(store=with_part("ecs_services", ForgetsFailures), tune=failing_services),
    "a daemon ignores its waiting tasks": Parts(store=with_part("ecs_services", HidesWaitingDaemons), tune=many_services),
    "a service ignores its old deployments": Parts(store=with_part("ecs_services", HidesOldDeployments), tune=many_services),
    "a service is inactive before its tasks stop": Parts(store=with_part("ecs_services", ForgetsStoppingTasks), tune=many_services),
    "a daemon does not hear of instances": Parts(
        reconcilers={**STATE, "daemons": lambda tx, pool: None}, tune=services_and_instances
    ),
    "a roaming claim is forgotten at a restart": Parts(store=ForgetsRoamingClaims, tune=services_and_instances),
}
