"""Batch jobs on a virtual clock: hosts that run and end the tasks of jobs as they are told, queues and compute environments."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from corral.core.undo_log import UndoLog
from corral.model.job import Job, JobState
from corral.model.run import Observed
from corral.model.task import Task
from corral.services.batch import job_definitions, queue_requests, resource_requests, scheduling_policies, submit
from corral.services.ecs import clusters, host_reports
from corral.store.fleet import Fleet
from corral.store.job_holdings import JobHoldings
from corral.store.job_lines import JobLines
from store.rows import hello
from virtual_clock.group_world import CALLER, REGION, GroupWorld

CPU_UNITS, MEMORY_MIB = 64 * 1024, 256 * 1024


class JobWorld(GroupWorld):
    """Some hosts with GPUs. `corral:cluster=default` makes the environment `here` use all of them."""

    def __init__(self, gpus: int = 8, machines: int = 1, **more: Any) -> None:
        self.machines = machines
        super().__init__(gpus, **more)
        for number in range(machines):
            name = "h" if number == 0 else f"h{number}"
            options = replace(self.settings.host, address=f"10.0.0.{number + 1}")  # a job that spans hosts needs addresses
            said = hello(name, gpus, cpu_units=CPU_UNITS, memory_mib=MEMORY_MIB, options=options)
            self.run(partial(host_reports.hello, message=said))
        self.run(lambda tx: tx.store.execute("UPDATE host SET seen_at = 1e12") and None)  # the hosts are never silent
        self.environment("here")
        self.batch_call(job_definitions.register_job_definition, **definition("one", gpus=1))

    def run(self, handler: Any) -> Any:
        answer = super().run(handler)
        self.check_derived()
        return answer

    def check_derived(self) -> None:
        """The lines and the sums in memory are those of the rows."""
        fresh = JobLines(self.store, Fleet(UndoLog()))
        fresh.rebuild()
        assert self.store.job_lines.snapshot() == fresh.snapshot()
        assert self.store.job_holdings.snapshot() == JobHoldings(self.store).snapshot()

    def batch_call(self, handler: Any, **params: Any) -> Any:
        return self.run(lambda tx: handler(tx, params, CALLER))

    # Resources

    def environment(
        self, name: str, cluster: str = "default", kind: str = "", state: str = "ENABLED", status: str = "VALID", most: int = 0,
        **resources: Any,
    ) -> None:  # fmt: skip
        """Write the document of a compute environment."""
        if cluster != "default" and self.store.clusters.get(REGION, cluster) is None:
            self.run(lambda tx: clusters.create_cluster(tx, {"clusterName": cluster}, CALLER))
        document = {
            "computeEnvironmentName": name,
            "computeEnvironmentArn": f"arn:aws:batch:{REGION}:123456789012:compute-environment/{name}",
            "uuid": name,
            "type": "MANAGED" if kind else "UNMANAGED",
            "state": state,
            "status": status,
            "ecsClusterArn": f"arn:aws:ecs:{REGION}:123456789012:cluster/{cluster}",
            **({"computeResources": {"type": kind, "maxvCpus": most, **resources}} if kind else {}),
        }

        def write(tx: Any) -> None:
            if not tx.store.stored.add("batch", "compute-environment", REGION, name, document, tx.now_s):
                tx.store.stored.change("batch", "compute-environment", REGION, name, document)
            for queue in tx.store.stored.with_prefix("batch", "job-queue", REGION, ""):
                tx.mark(f"job-queue:{REGION}/{queue[0]}")

        self.run(write)

    def queue(self, name: str = "q", *environments: str, priority: int = 1, policy: str = "", **more: Any) -> None:
        order = [{"order": at, "computeEnvironment": each} for at, each in enumerate(environments or ("here",))]
        given = {"schedulingPolicyArn": policy} if policy else {}
        self.batch_call(
            queue_requests.create_job_queue,
            jobQueueName=name, priority=priority, computeEnvironmentOrder=order, **given, **more,
        )  # fmt: skip

    def policy(self, name: str = "fair", decay_s: int = 600, reservation: int = 0, **weights: float) -> str:
        shares = [{"shareIdentifier": share, "weightFactor": weight} for share, weight in weights.items()]
        rules = {"shareDecaySeconds": decay_s, "computeReservation": reservation, "shareDistribution": shares}
        made = self.batch_call(scheduling_policies.create_scheduling_policy, name=name, fairsharePolicy=rules)
        return str(made["arn"])

    def resource(self, name: str, quantity: int, type_: str = "REPLENISHABLE") -> None:
        self.batch_call(
            resource_requests.create_consumable_resource,
            consumableResourceName=name, totalQuantity=quantity, resourceType=type_,
        )  # fmt: skip

    def define(self, name: str, **more: Any) -> str:
        self.batch_call(job_definitions.register_job_definition, **definition(name, **more))
        return name

    # Jobs

    def submit(self, name: str = "j", definition: str = "one", queue: str = "q", *, gpus: int | None = None, **more: Any) -> str:
        if gpus is not None:
            definition = f"gpus-{gpus}"
            if self.store.job_definitions.get(REGION, definition, None) is None:
                self.define(definition, gpus=gpus)
        made = self.batch_call(submit.submit_job, jobName=name, jobQueue=queue, jobDefinition=definition, **more)
        self.settle()
        return str(made["jobId"])

    def job(self, job_id: str) -> Job:
        found = self.store.jobs.get(job_id)
        assert found is not None
        return found

    def state(self, job_id: str) -> JobState:
        return self.job(job_id).state

    def active(self) -> list[str]:
        """The ids of the jobs that hold capacity."""
        return [job_id for (job_id,) in self.store.execute("SELECT job_id FROM job_holding ORDER BY job_id").fetchall()]

    def finish(self, *job_ids: str, code: int = 0) -> None:
        """The hosts report that the tasks of these jobs have started and ended."""
        for job_id in job_ids:
            sql = "SELECT id FROM task WHERE (started_by = ? OR started_by LIKE ?) AND state != 'STOPPED' ORDER BY rowid"
            for (task_id,) in self.store.execute(sql, (f"batch:{job_id}", f"batch:{job_id}#%")).fetchall():
                task, now_s = self.store.tasks.get(task_id), self.clock.wall_s()
                assert task is not None and task.instance_id is not None
                host = self.store.instances.host_of(task.instance_id)
                runs = [Observed(run.attempt_id, 1, now_s, now_s, code) for run in task.runs]
                self.run(lambda tx, host=host, runs=runs: host_reports.report(tx, host, runs))
        self.settle()

    def gpus_of(self, job_id: str) -> list[str]:
        return [gpu_id for task in self.tasks_of(job_id) for run in task.runs for gpu_id in run.gpu_ids]

    def tasks_of(self, job_id: str) -> list[Task]:
        """The tasks of a job, or of all its nodes, that have not stopped."""
        sql = "SELECT id FROM task WHERE (started_by = ? OR started_by LIKE ?) AND state != 'STOPPED' ORDER BY rowid"
        tasks = [self.store.tasks.get(row[0]) for row in self.store.execute(sql, (f"batch:{job_id}", f"batch:{job_id}#%"))]
        return [task for task in tasks if task is not None]


def definition(
    name: str,
    gpus: int = 0,
    vcpus: int = 1,
    memory: int = 64,
    resources: dict[str, int] | None = None,
    platforms: tuple[str, ...] = ("EC2",),
    **more: Any,
) -> dict[str, Any]:
    """The parameters of RegisterJobDefinition."""
    needs = [{"type": "VCPU", "value": str(vcpus)}, {"type": "MEMORY", "value": str(memory)}]
    needs += [{"type": "GPU", "value": str(gpus)}] if gpus else []
    container = {"image": "corral/host", "command": ["true"], "resourceRequirements": needs, **more}
    given: dict[str, Any] = {"jobDefinitionName": name, "type": "container", "containerProperties": container}
    given["platformCapabilities"] = list(platforms)
    if resources:
        taken = [{"consumableResource": each, "quantity": quantity} for each, quantity in resources.items()]
        given["consumableResourceProperties"] = {"consumableResourceList": taken}
    return given
