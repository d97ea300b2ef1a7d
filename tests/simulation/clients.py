"""Clients: they run and stop tasks, lose responses, and retry with the same token."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.fleet import hosts, instances
from corral.fleet.instances import InstanceRequest
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.instance import host_instance_id
from corral.model.principal import root_user
from corral.services.autoscaling import handlers as autoscaling
from corral.services.cloudwatch import handlers as cloudwatch
from corral.services.ecs.task_spec import FENCE_TAG
from corral.services.logs import handlers as logs
from corral.store import HOLD_PREFIX, Store
from simulation.host import ENDLESS
from simulation.plan import LAB

if TYPE_CHECKING:
    from simulation.world import World

HANDLERS = {"logs": logs.HANDLERS, "cloudwatch": cloudwatch.HANDLERS, "autoscaling": autoscaling.HANDLERS}
LANE_OF = {"ecs": "state", "autoscaling": "state", "logs": "logs", "cloudwatch": "metrics"}
CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
AGAIN_S = 1.0
FAMILIES = 6
NEEDS = "NEEDS"  # in a container's environment: what it depends on, for who watches it start
RACKS = 3
FLEET = "fleet"  # the cluster that instances join
CLUSTERS = (DEFAULT_CLUSTER, FLEET)
NEVER = "never"  # said in requests that are taken back: no row may say it


@dataclass(eq=False, slots=True)
class Request:
    number: int
    operation: str
    params: dict[str, Any]
    caller: Caller = CALLER
    again: bool = True  # ask until there is an answer
    service: str = "ecs"
    sent: int = 0
    answer: Any = None
    waits_since: float | None = None
    life: int = 0  # of the core that was asked last
    notes: dict[str, Any] = field(default_factory=dict)


def definition(rng: Random, family: str, nonce: str) -> dict[str, Any]:
    """One to three containers, at least one essential, some of which depend on others or start again; with 0 to 8 GPUs among
    them, or all, or whatever is free."""
    containers: list[dict[str, Any]] = []
    whole = rng.random() < 0.1
    count = rng.choice((1, 1, 1, 2, 3, 3))
    chosen = rng.randrange(count)
    for at in range(count):
        container: dict[str, Any] = {
            "name": f"c{at}",
            "image": "corral/host",
            "command": [ENDLESS if rng.random() < 0.1 else "work"],
            "essential": at == chosen or rng.random() < 0.3,
            "cpu": rng.choice((0, 0, 256, 1024)),
            "memory": rng.choice((6, 128, 1024)),
            "stopTimeout": rng.choice((0, 2, 30)),
            "environment": [{"name": "NONCE", "value": nonce}],
        }
        if rng.random() < 0.3:
            container["healthCheck"] = {"command": ["CMD", "true"]}
            if rng.random() < 0.5:
                container["command"] = [ENDLESS]
        if rng.random() < 0.15:
            container["restartPolicy"] = {"enabled": True, "ignoredExitCodes": [0], "restartAttemptPeriod": 60}
        if rng.random() < 0.2:
            container["startTimeout"] = rng.choice((2, 20))
        needs = [_need(rng, other) for other in containers if rng.random() < 0.5]
        if needs:
            container["dependsOn"] = needs
            named = " ".join(f"{need['containerName']}:{need['condition']}" for need in needs)
            container["environment"].append({"name": NEEDS, "value": named})
        gpus = rng.choice((0, 0, 1, 1, 2, 4, 8)) if at == 0 else rng.choice((0, 0, 1))
        if whole:
            gpus = at == 0
        if gpus:
            container["resourceRequirements"] = [{"type": "GPU", "value": "ALL" if whole else str(gpus)}]
        elif rng.random() < 0.1:
            container["privileged"] = True  # gets free GPUs without a requirement
        if rng.random() < 0.3:
            container["logConfiguration"] = {"logDriver": "awslogs", "options": {"awslogs-group": "g"}}
        containers.append(container)
    return {"family": family, "containerDefinitions": containers}


def _need(rng: Random, other: dict[str, Any]) -> dict[str, str]:
    conditions = ["START"]
    if not other["essential"]:
        conditions += ["COMPLETE", "SUCCESS"]
    if "healthCheck" in other:
        conditions.append("HEALTHY")
    return {"containerName": other["name"], "condition": rng.choice(conditions)}


class Clients:
    def __init__(self, world: World) -> None:
        self.world = world
        self.requests: list[Request] = []
        self._unanswered: list[Request] = []  # those that are sent again, including some that are answered by now
        self.task_ids: list[str] = []  # those that an answer named
        self._cluster_of: dict[str, str] = {}
        self._instance_ids: list[str] = []

    def ask(self, operation: str, params: dict[str, Any], **more: Any) -> Request:
        request = Request(len(self.requests), operation, params, **more)
        self.requests.append(request)
        self._unanswered.append(request)
        self._send(request)
        return request

    def all_answered(self) -> bool:
        self._unanswered = [request for request in self._unanswered if request.again and request.answer is None]
        return not self._unanswered

    def register(self, family: str) -> Request:
        nonce = f"{self.world.rng.getrandbits(32):08x}"
        request = self.ask("RegisterTaskDefinition", definition(self.world.rng, family, nonce))
        request.notes["nonce"] = nonce
        return request

    def something(self) -> None:
        """One random request."""
        rng, plan = self.world.rng, self.world.plan
        if plan.with_services and rng.random() < plan.with_services:
            self.world.service_clients.something()
            return
        if plan.with_groups and rng.random() < plan.with_groups:
            self.world.group_clients.something()
            return
        if rng.random() < plan.with_instances:
            self._change_instances()
            return
        dice = rng.random()
        if dice < 0.55 or not self.task_ids:
            self._run_task()
        elif dice < 0.75:
            task = rng.choice(self.task_ids[-rng.choice((1, 3, 100)) :]) if rng.random() < 0.95 else "f" * 32
            cluster = self._cluster_of.get(task, DEFAULT_CLUSTER)
            self.ask("StopTask", {"cluster": cluster, "task": task, "reason": f"request {len(self.requests)}"})
        elif dice < 0.85:
            caller = Caller(CALLER.account, CALLER.region, CALLER.principal, wait_s=rng.choice((0.0, 2.0, 20.0)))
            tasks = rng.sample(self.task_ids, min(len(self.task_ids), rng.randint(1, 3)))
            self.ask("DescribeTasks", {"cluster": self._cluster_of[tasks[0]], "tasks": tasks}, caller=caller, again=False)
        elif dice < 0.88:
            self.ask("RunTask", {"taskDefinition": "unknown-family"}, again=False)
        elif dice < 0.92:
            self._change_a_host()
        else:
            self.register(f"f{rng.randrange(FAMILIES)}")

    def fail_on_purpose(self) -> None:
        """A command of ours that breaks after it has changed rows, marks, orders and the index."""
        rng = self.world.rng
        family, how = f"f{rng.randrange(FAMILIES)}", rng.choice((RuntimeError, KeyError, ApiError))
        stop = rng.choice(self.task_ids) if self.task_ids and rng.random() < 0.5 else None

        def broken(tx: Tx[Store]) -> None:
            handlers = self.world.parts.handlers
            if tx.store.definitions.get(CALLER.region, family, None) is not None:
                handlers["RunTask"](tx, {"taskDefinition": family, "count": 3, "startedBy": NEVER, "clientToken": NEVER}, CALLER)
                if self.world.plan.with_services:
                    service = {"serviceName": NEVER, "taskDefinition": family, "desiredCount": 2, "launchType": "EC2"}
                    handlers["CreateService"](tx, service, CALLER)
            if stop is not None:
                handlers["StopTask"](tx, {"cluster": self._cluster_of[stop], "task": stop, "reason": NEVER}, CALLER)
            tx.changed(f"task:{stop}")
            handlers["RegisterTaskDefinition"](tx, definition(Random(0), family, NEVER), CALLER)
            instances.launch(
                tx,
                InstanceRequest(owner="root", region=CALLER.region, cluster=FLEET, type=NEVER, gpus=1, cpu_units=1, memory_mib=1),
            )
            raise how("on purpose")

        if self.world.plane.up:
            self.world.plane.submit(broken)

    def hold(self, host_id: str, gpu_id: str) -> None:
        """A user holds a GPU or releases it."""

        def toggle(tx: Tx[Store]) -> None:
            own_id = host_instance_id(host_id)
            if tx.store.hosts.get(host_id) is not None:
                self.world.withheld_changes += 1
                if not tx.store.instances.drop_attribute(own_id, HOLD_PREFIX + gpu_id):
                    tx.store.instances.put_attribute(own_id, HOLD_PREFIX + gpu_id, "a person says so")
                hosts.wake_pools(tx, host_id)

        if self.world.plane.up:
            self.world.plane.submit(toggle)

    def release_all(self) -> None:
        """Nothing is held any longer."""

        def release(tx: Tx[Store]) -> None:
            for host in tx.store.hosts.all():
                own_id = host_instance_id(host["id"])
                for gpu_id in tx.store.instances.holds(own_id):
                    self.world.withheld_changes += 1
                    tx.store.instances.drop_attribute(own_id, HOLD_PREFIX + gpu_id)
                hosts.wake_pools(tx, host["id"])

        self.world.plane.submit(release)

    def put_rack(self, host_id: str) -> None:
        rack = {
            "name": "rack",
            "value": str(self.world.rng.randrange(RACKS)),
            "targetId": host_instance_id(host_id),
            "targetType": "container-instance",
        }
        self.ask("PutAttributes", {"attributes": [rack]}, again=False)

    def create_fleet(self) -> None:
        """A cluster whose tasks wait for the instances that join it. With groups, a capacity provider launches such instances."""
        scales = bool(self.world.plan.with_groups)
        source, user_data = {"LaunchConfigurationName": FLEET}, f"#!/bin/bash\necho ECS_CLUSTER={FLEET} >> /etc/ecs/ecs.config\n"
        launch = {"ImageId": "ami-1", "InstanceType": "g3.8xlarge", "UserData": b64encode(user_data.encode()).decode()}
        sizes = {"MinSize": 0, "MaxSize": 3 if scales else 0, "AvailabilityZones": ["us-east-1a"]}
        group = {
            "autoScalingGroupArn": FLEET,
            "managedScaling": {"status": "ENABLED" if scales else "DISABLED", "targetCapacity": 70},
            "managedTerminationProtection": "ENABLED" if scales else "DISABLED",
        }
        strategy = [{"capacityProvider": FLEET, "weight": 1}]
        cluster = {"clusterName": FLEET, "capacityProviders": [FLEET], "defaultCapacityProviderStrategy": strategy}
        self._in_turn(
            ("autoscaling", "CreateLaunchConfiguration", {**source, **launch}),
            ("autoscaling", "CreateAutoScalingGroup",
             {"AutoScalingGroupName": FLEET, **source, **sizes, "NewInstancesProtectedFromScaleIn": True}),
            ("ecs", "CreateCapacityProvider", {"name": FLEET, "autoScalingGroupProvider": group}),
            ("ecs", "CreateCluster", cluster),
        )  # fmt: skip

    def _in_turn(self, *steps: tuple[str, str, dict[str, Any]]) -> None:
        """Send each request after the answer to the one before it."""
        if steps:
            service, operation, params = steps[0]
            self.ask(operation, params, service=service).notes["then"] = lambda: self._in_turn(*steps[1:])

    def _change_instances(self) -> None:
        rng = self.world.rng
        if rng.random() < 0.6 or not self._instance_ids:
            request = InstanceRequest(
                owner="root", region=CALLER.region, cluster=self._cluster_to_join(), type="p3.2xlarge",
                gpus=rng.choice((0, 1, 1, 2, 4)),
                cpu_units=rng.choice((2048, 8192)), memory_mib=rng.choice((2048, 16384)),
            )  # fmt: skip

            def launch(tx: Tx[Store]) -> None:
                self._instance_ids.append(instances.launch(tx, request).id)

            if self.world.plane.up:
                self.world.plane.submit(launch)
        else:
            self.terminate(rng.choice(self._instance_ids))

    def _cluster_to_join(self) -> str:
        """The cluster of the hosts has services, whose tasks can use instances too."""
        return DEFAULT_CLUSTER if self.world.plan.with_services and self.world.rng.random() < 0.4 else FLEET

    def terminate(self, instance_id: str) -> None:
        def end(tx: Tx[Store]) -> None:
            instance = tx.store.instances.get(instance_id)
            if instance is not None:  # else its launch was never committed
                instances.terminate(tx, instance, "a client terminated it")

        if self.world.plane.up:
            self.world.plane.submit(end)

    def _change_a_host(self) -> None:
        rng = self.world.rng
        host = rng.choice(self.world.hosts)
        if rng.random() < 0.6:
            self.put_rack(host.id)
        else:
            status = rng.choice(("ACTIVE", "DRAINING"))
            self.ask(
                "UpdateContainerInstancesState", {"containerInstances": [host_instance_id(host.id)], "status": status}, again=False
            )

    def _run_task(self) -> None:
        rng, number = self.world.rng, len(self.requests)
        params: dict[str, Any] = {
            "taskDefinition": f"f{rng.randrange(FAMILIES)}",
            "count": rng.choice((1, 1, 2, 5, 10)),
            "startedBy": f"r{number}",
        }
        if rng.random() < 0.3:
            params["launchType"] = "EC2"
        if (self.world.plan.with_instances or self.world.plan.with_groups) and rng.random() < 0.5:
            params["cluster"] = FLEET
        if (
            self.world.plan.with_clusters
            and number % 2
            and self.world.plane.up
            and LAB in self.world.plane.store.instances.clusters_of_hosts()
        ):
            params["cluster"] = LAB
        if rng.random() < 0.1:
            limit_s = rng.choice((0.5, 5)) * (1 if number % 3 else 20)  # some limits are long enough for short tasks before them
            params["tags"] = [{"key": "corral:time-limit", "value": str(limit_s)}]
        if rng.random() < self.world.plan.with_rules:
            params |= _rules(rng)
            self.world.note("client", number, "rules", params["placementConstraints"], params["placementStrategy"])
        again = rng.random() < 0.7
        if again:
            params["clientToken"] = f"token-{number}"
        if self.world.plan.with_loss and rng.random() < 0.5:
            params["tags"] = [{"key": FENCE_TAG, "value": str(rng.choice((10, 20)))}]
        self.ask("RunTask", params, again=again)

    def _send(self, request: Request) -> None:
        world = self.world
        request.sent += 1
        if not world.plane.up:
            self._unheard(request)
            return
        life = request.life = world.plane.life
        handler = (world.parts.handlers if request.service == "ecs" else HANDLERS[request.service])[request.operation]
        answer = world.plane.submit(lambda tx: handler(tx, dict(request.params), request.caller), LANE_OF[request.service])
        if request.caller.wait_s:
            request.waits_since = world.clock.now_s()
        answer.then(partial(self._answered, request))
        if request.again:  # if the core dies, there is no response: the client times out
            world.agenda.after(5 * AGAIN_S, lambda: self._unheard(request) if life != world.plane.life else None)

    def _answered(self, request: Request, answer: Any) -> None:
        world = self.world
        request.waits_since = None
        world.note("client", request.number, request.operation, _short(answer))
        lost = world.faulty and world.rng.random() < world.plan.answer_loss
        failed = isinstance(answer, ApiError) and answer.status >= 500
        if lost or (failed and request.again):
            world.agenda.after(AGAIN_S, partial(self._unheard, request))
            return
        request.answer = answer
        world.tell("answered", request, answer)
        if "then" in request.notes:
            request.notes["then"]()
        if request.operation == "RunTask" and isinstance(answer, dict):
            ids = [task["taskArn"].rpartition("/")[2] for task in answer["tasks"]]
            self.task_ids += ids
            self._cluster_of |= dict.fromkeys(ids, request.params.get("cluster", DEFAULT_CLUSTER))

    def _unheard(self, request: Request) -> None:
        if request.again and request.answer is None:
            delay_s = AGAIN_S * self.world.rng.random()
            self.world.agenda.after(delay_s, lambda: self._send(request) if request.answer is None else None)


def _rules(rng: Random) -> dict[str, Any]:
    """Placement constraints and strategies, and a group that several requests share."""
    found: dict[str, Any] = {"group": f"g{rng.randrange(3)}"}
    racks = ", ".join(sorted(str(rack) for rack in rng.sample(range(RACKS), rng.randint(1, RACKS - 1))))
    member_of = {"type": "memberOf", "expression": f"attribute:rack in [{racks}]"}
    constraints = rng.choice(([], [member_of], [{"type": "distinctInstance"}], [member_of, {"type": "distinctInstance"}]))
    strategies = ("spread", "instanceId"), ("spread", "attribute:rack"), ("binpack", "memory"), ("binpack", "cpu"), ("random", "")
    steps = [{"type": kind, "field": field} for kind, field in rng.sample(strategies, rng.choice((0, 0, 1, 2)))]
    return {**found, "placementConstraints": constraints, "placementStrategy": steps}


def _short(answer: Any) -> str:
    if isinstance(answer, Exception):
        return f"{type(answer).__name__}: {answer}"
    if "service" in answer:
        service = answer["service"]
        counts = service["desiredCount"], service["runningCount"], service["pendingCount"]
        return f"{service['serviceName']} {service['status']} {counts} {service['taskDefinition'].rpartition('/')[2]}"
    tasks = [(task["taskArn"][-8:], task["lastStatus"], task["desiredStatus"]) for task in answer.get("tasks", ())]
    return f"{tasks} {[failure['reason'] for failure in answer.get('failures', ())]}"
