"""Clients of ECS services: they create, update and delete services, stop their tasks and drain their instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.ecs_service import ACTIVE, DAEMON, EcsService
from corral.model.instance import InstanceState
from simulation.clients import FAMILIES, FLEET, RACKS
from simulation.host import ENDLESS

if TYPE_CHECKING:
    from simulation.world import World

NAMES = 3  # services of each cluster
SERVING = ("serve0", "serve1", "serve2")  # families whose tasks run until they are stopped, by their number of GPUs
PERCENTAGES = ((100, 200), (100, 200), (0, 100), (50, 100), (50, 150), (0, 200))


class ServiceClients:
    def __init__(self, world: World) -> None:
        self.world = world
        self._ends: set[str] | None = None  # names of services that are deleted when the faults end
        self._all_end = False

    def begin(self) -> None:
        for gpus, family in enumerate(SERVING):
            container: dict[str, Any] = {
                "name": "c", "image": "corral/host", "command": [ENDLESS], "essential": True, "memory": 6, "stopTimeout": 2,
                "environment": [{"name": "NONCE", "value": family}],
            }  # fmt: skip
            if gpus:
                container["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
            request = self.world.clients.ask("RegisterTaskDefinition", {"family": family, "containerDefinitions": [container]})
            request.notes["nonce"] = family

    def something(self) -> None:
        """One random request."""
        rng = self.world.rng
        dice = rng.random()
        if dice < 0.4:
            self._create()
        elif dice < 0.7:
            self._update()
        elif dice < 0.8:
            force = rng.random() < 0.7
            self._ask("DeleteService", {**self._place(), "service": self._name(), "force": force})
        elif dice < 0.93:
            self._stop_a_task()
        else:
            self._drain_an_instance()

    def calm(self) -> None:
        """Delete some services. Give the others tasks that run until they are stopped. Called again and again after the faults."""
        if self._ends is None:
            self._ends = {name for name in (f"s{number}" for number in range(NAMES)) if self.world.rng.random() < 0.4}
        for service in self.active():
            family = service.primary.definition_arn.rpartition("/")[2].partition(":")[0]
            params = {"cluster": service.cluster, "service": service.name}
            if self._all_end or service.name in self._ends:
                self._ask("DeleteService", {**params, "force": True})
            elif family not in SERVING:
                self._ask("UpdateService", {**params, "taskDefinition": self.world.rng.choice(SERVING)})

    def delete_all(self) -> None:
        self._all_end = True

    def unsettled(self) -> list[str]:
        """Everything that has still to happen before the services have the tasks that they will keep."""
        store = self.world.plane.store
        dead = {host.id for host in self.world.hosts if host.dead}
        moving = store.execute(
            "SELECT task.id, task.state, task.desired, instance.host_id FROM task JOIN instance ON instance.id = task.instance_id "
            "WHERE task.state != 'STOPPED' AND (task.state != 'RUNNING' OR task.desired != 'RUNNING' "
            "OR task.task_group NOT LIKE 'service:%') ORDER BY task.id"
        )
        waiting = store.execute("SELECT key, at FROM due WHERE key LIKE 'service:%' ORDER BY key")
        connected = [host["id"] for host in store.hosts.all() if host["connected"] and host["id"] in dead]
        ends = [service.name for service in self.active() if self._ends is None or service.name in self._ends]
        failing = [
            service.name
            for service in self.active()
            if service.primary.definition_arn.rpartition("/")[2].partition(":")[0] not in SERVING
        ]
        tasks = [(task_id, state, desired) for task_id, state, desired, host_id in moving.fetchall() if host_id not in dead]
        absent = [host.id for host in self.world.hosts if not host.dead and not (store.hosts.get(host.id) or {}).get("connected")]
        return [str(each) for each in (*tasks, *waiting.fetchall(), *connected, *ends, *failing, *absent)]

    def active(self) -> list[EcsService]:
        if not self.world.plan.with_services:
            return []
        store = self.world.plane.store
        rows = store.execute("SELECT region, cluster, name FROM ecs_service ORDER BY region, cluster, name")
        found = [store.ecs_services.get(*row) for row in rows.fetchall()]
        return [service for service in found if service is not None and service.status == ACTIVE]

    def _ask(self, operation: str, params: dict[str, Any]) -> None:
        self.world.clients.ask(operation, params, again=self.world.rng.random() < 0.7)

    def _name(self) -> str:
        return f"s{self.world.rng.randrange(NAMES)}"

    def _place(self) -> dict[str, str]:
        plan = self.world.plan
        fleet = (plan.with_instances or plan.with_groups) and self.world.rng.random() < 0.4
        return {"cluster": FLEET if fleet else DEFAULT_CLUSTER}

    def _definition(self) -> str:
        """A definition whose tasks run on, or one whose tasks end soon."""
        rng = self.world.rng
        return rng.choice(SERVING) if rng.random() < 0.7 else f"f{rng.randrange(FAMILIES)}"

    def _create(self) -> None:
        rng, number = self.world.rng, len(self.world.clients.requests)
        params: dict[str, Any] = {**self._place(), "serviceName": self._name(), "taskDefinition": self._definition()}
        if params["cluster"] == FLEET and rng.random() < 0.5:
            params["capacityProviderStrategy"] = [{"capacityProvider": FLEET, "weight": 1}]
        elif rng.random() < 0.7:
            params["launchType"] = "EC2"
        if rng.random() < 0.35:
            params["schedulingStrategy"] = DAEMON
        else:
            least, most = rng.choice(PERCENTAGES)
            params["deploymentConfiguration"] = {"minimumHealthyPercent": least, "maximumPercent": most}
            params["desiredCount"] = rng.choice((0, 1, 1, 2, 3, 4))
        if rng.random() < 0.2:
            racks = ", ".join(str(rack) for rack in range(rng.randint(1, RACKS - 1)))
            params["placementConstraints"] = [{"type": "memberOf", "expression": f"attribute:rack in [{racks}]"}]
        if rng.random() < 0.5:
            params["clientToken"] = f"token-{number}"
        self._ask("CreateService", params)

    def _update(self) -> None:
        rng = self.world.rng
        params: dict[str, Any] = {**self._place(), "service": self._name()}
        if rng.random() < 0.6:
            params["desiredCount"] = rng.choice((0, 1, 2, 3, 5))
        if rng.random() < 0.4:
            params["taskDefinition"] = self._definition()
        if rng.random() < 0.2:
            params["forceNewDeployment"] = True
        if rng.random() < 0.1:
            least, most = rng.choice(PERCENTAGES)
            params["deploymentConfiguration"] = {"minimumHealthyPercent": least, "maximumPercent": most}
        self._ask("UpdateService", params)

    def _stop_a_task(self) -> None:
        if self.world.plane.up:
            rows = self.world.plane.store.execute(
                "SELECT cluster, id FROM task WHERE desired = 'RUNNING' AND task_group LIKE 'service:%' ORDER BY id"
            ).fetchall()
            if rows:
                cluster, task_id = self.world.rng.choice(rows)
                self._ask("StopTask", {"cluster": cluster, "task": task_id, "reason": "a client stops it"})

    def _drain_an_instance(self) -> None:
        if self.world.plane.up:
            running = [
                each
                for each in self.world.plane.store.instances.all()
                if each.state is InstanceState.RUNNING and each.cluster and not each.is_host
            ]
            if running:
                instance = self.world.rng.choice(running)
                status = self.world.rng.choice(("DRAINING", "DRAINING", "ACTIVE"))
                params = {"cluster": instance.cluster, "containerInstances": [instance.id], "status": status}
                self.world.clients.ask("UpdateContainerInstancesState", params, again=False)
