"""Computes the usage of an execution of a pipeline: wall time, vCPU-hours, GPU-hours, and the price on AWS.

A step of a pipeline is one job or one array job. The cost of a job is the product of three numbers: its time, the on-demand price
of its instance, and the part of the instance that the job needs. This part is the largest of three quotients: vCPUs, memory and
GPUs of the job, each divided by those of the instance. On this machine itself, the cost is the time, multiplied by the GPUs of the
job and by the price of a GPU-hour. The prices are those of `corral cost`. On AWS, there is no `corral cost`, so the report has only
hours.

When a job has ended, `corral pipeline` stores the usage of the job as a tag of the job. So `corral pipeline list` need not read all
children of array jobs again, and the type of an instance is read while ECS still describes the instance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from corral.cli.client.endpoint import Endpoint, call, client, is_aws
from corral.cli.pipelines.estimate import StepTimes
from corral.cli.pipelines.executions import FoundExecution, children, describe_jobs
from corral.cli.pipelines.plan import TAG_USAGE
from corral.cli.pipelines.state import PipelineJob
from corral.cli.printing.errors import CliError

HOUR_S = 3600.0
THIS_MACHINE = "host"  # the capacity provider of this machine's own container instance
NO_PRICE = "none"
_NUMBER = r"([0-9.]+|none)"
_USAGE = re.compile(rf"v2 n={_NUMBER} from={_NUMBER} to={_NUMBER} sum={_NUMBER} vcpu={_NUMBER} gpu={_NUMBER} usd={_NUMBER}")


class StepUsage(NamedTuple):
    """The usage of one job, or of all jobs of a step."""

    jobs: int  # the number of plain jobs and of children of arrays that ran
    started_s: float  # the first start, in seconds since 1970
    stopped_s: float  # the last end
    sum_s: float  # the sum of the times of all jobs
    vcpu_hours: float
    gpu_hours: float
    cost: float | None  # None: no price is known

    @property
    def wall_s(self) -> float:
        return self.stopped_s - self.started_s

    @property
    def times(self) -> StepTimes:
        return StepTimes(self.wall_s, self.sum_s / self.jobs if self.jobs else 0.0)


class ExecutionUsage(NamedTuple):
    execution: str
    wall_s: float
    steps: Mapping[str, StepUsage]

    @property
    def jobs(self) -> int:
        return sum(step.jobs for step in self.steps.values())

    @property
    def vcpu_hours(self) -> float:
        return sum(step.vcpu_hours for step in self.steps.values())

    @property
    def gpu_hours(self) -> float:
        return sum(step.gpu_hours for step in self.steps.values())

    @property
    def cost(self) -> float | None:
        return _sum_of_costs(list(self.steps.values()))


def _sum_of_costs(usages: Sequence[StepUsage]) -> float | None:
    """Add the costs that are known. Return None if jobs ran, but none of them has a price."""
    ran = [each for each in usages if each.jobs]
    known = [each.cost for each in ran if each.cost is not None]
    return sum(known) if known or not ran else None


class InstanceSize(NamedTuple):
    vcpus: float
    memory_mib: float
    gpus: float


@dataclass(slots=True)
class Prices:
    """Prices and sizes of instance types, and the types of container instances. Each is read once."""

    endpoint: Endpoint
    per_hour: dict[str, float] | None = None
    per_gpu_hour: float | None = None  # of this machine; None: it has no price
    sizes: dict[str, InstanceSize | None] = field(default_factory=dict)
    # Container instance ARN -> instance type, or THIS_MACHINE; empty if it is unknown
    types: dict[str, str] = field(default_factory=dict)

    def of_job(self, described: Mapping[str, Any], arn: str) -> float | None:
        """Return the price of one hour of a job on the container instance `arn`, or None if the price is not known."""
        type_, needs = self.types.get(arn, ""), requirements(described)
        price = self._prices().get(type_)
        if type_ == THIS_MACHINE:
            return None if self.per_gpu_hour is None else self.per_gpu_hour * needs.gpus
        size = self._size(type_) if price is not None else None
        if price is None or size is None:
            return None
        pairs = ((needs.vcpus, size.vcpus), (needs.memory_mib, size.memory_mib), (needs.gpus, size.gpus))
        return price * min(1.0, max((used / total for used, total in pairs if total), default=1.0))

    def _prices(self) -> dict[str, float]:
        if self.per_hour is None:
            self.per_hour, self.per_gpu_hour = ({}, None) if is_aws(self.endpoint) else _prices_of_corral(self.endpoint)
        return self.per_hour

    def _size(self, type_: str) -> InstanceSize | None:
        if type_ not in self.sizes:
            ec2 = client(self.endpoint, "ec2")
            try:
                [found] = ec2.describe_instance_types(InstanceTypes=[type_])["InstanceTypes"]
            except (ec2.exceptions.ClientError, ValueError):
                self.sizes[type_] = None
            else:
                gpus = sum(each.get("Count", 0) for each in found.get("GpuInfo", {}).get("Gpus", ()))
                size = (found["VCpuInfo"]["DefaultVCpus"], found["MemoryInfo"]["SizeInMiB"], gpus)
                self.sizes[type_] = InstanceSize(*map(float, size))
        return self.sizes[type_]

    def learn_types(self, arns: Sequence[str]) -> None:
        """Read the instance types of container instances.

        ECS does not describe a terminated instance any more. If its compute environment has only one instance type, use that type.
        Otherwise the type is unknown.
        """
        ecs = client(self.endpoint, "ecs")
        by_cluster: dict[str, list[str]] = {}
        for arn in dict.fromkeys(arns):
            if arn and arn not in self.types:
                self.types[arn] = ""
                by_cluster.setdefault(arn.split("/")[-2] if arn.count("/") > 1 else "default", []).append(arn)
        for cluster, wanted in by_cluster.items():
            for start in range(0, len(wanted), 100):
                try:
                    reply = ecs.describe_container_instances(cluster=cluster, containerInstances=wanted[start : start + 100])
                except ecs.exceptions.ClientError:
                    continue
                for each in reply["containerInstances"]:
                    attributes = {attribute["name"]: attribute.get("value", "") for attribute in each.get("attributes", ())}
                    own = not is_aws(self.endpoint) and each.get("capacityProviderName") == THIS_MACHINE
                    self.types[each["containerInstanceArn"]] = THIS_MACHINE if own else attributes.get("ecs.instance-type", "")
            if any(not self.types[arn] for arn in wanted) and (only := self._only_type(cluster)):
                self.types |= {arn: only for arn in wanted if not self.types[arn]}

    def _only_type(self, cluster: str) -> str:
        """Return the only instance type of the compute environment with this cluster.

        Return "" if the compute environment has several types, or a family of types such as `p3`.
        """
        batch = client(self.endpoint, "batch")
        for page in batch.get_paginator("describe_compute_environments").paginate():
            for each in page["computeEnvironments"]:
                types = each.get("computeResources", {}).get("instanceTypes", [])
                if each.get("ecsClusterArn", "").rpartition("/")[2] == cluster and len(types) == 1 and "." in types[0]:
                    return str(types[0])
        return ""


def _prices_of_corral(endpoint: Endpoint) -> tuple[dict[str, float], float | None]:
    """Return the on-demand price per hour of each instance type that has run, and the price of a GPU-hour of this machine."""
    try:
        report, _ = call(endpoint, "GetUsage", {"tasks": False})
    except CliError:
        return {}, None
    hours: dict[str, float] = {}
    costs: dict[str, float] = {}
    for group in report["groups"]:
        for each in group["types"]:
            if each["onDemand"] is not None and each["hours"]:
                hours[each["type"]] = hours.get(each["type"], 0.0) + each["hours"]
                costs[each["type"]] = costs.get(each["type"], 0.0) + each["onDemand"]
    return {name: costs[name] / hours[name] for name in costs}, report["machine"]["gpuHourPrice"]


def requirements(described: Mapping[str, Any]) -> InstanceSize:
    """Return the vCPUs, the memory and the GPUs that a job asks for."""
    container = described.get("container") or {}
    given = {each["type"]: float(each["value"]) for each in container.get("resourceRequirements", ())}
    return InstanceSize(
        given.get("VCPU", float(container.get("vcpus") or 0)),
        given.get("MEMORY", float(container.get("memory") or 0)),
        given.get("GPU", 0.0),
    )


# Usage


def execution_usage(endpoint: Endpoint, found: FoundExecution, prices: Prices) -> ExecutionUsage:
    """Return the usage of an execution. The usage of jobs that have ended is stored as tags."""
    by_step: dict[str, list[StepUsage]] = {}
    for job in sorted(found.jobs, key=lambda job: (job.created_s, job.id)):
        by_step.setdefault(job.step, []).append(job_usage(endpoint, job, prices))
    ends = [job.stopped_s for job in found.jobs if job.stopped_s]
    wall_s = max(0.0, max(ends, default=found.created_s) - found.created_s)
    return ExecutionUsage(found.execution, wall_s, {name: add_usages(usages) for name, usages in by_step.items()})


def add_usages(usages: Sequence[StepUsage]) -> StepUsage:
    ran = [each for each in usages if each.jobs]
    return StepUsage(
        jobs=sum(each.jobs for each in ran),
        started_s=min((each.started_s for each in ran), default=0.0),
        stopped_s=max((each.stopped_s for each in ran), default=0.0),
        sum_s=sum(each.sum_s for each in ran),
        vcpu_hours=sum(each.vcpu_hours for each in ran),
        gpu_hours=sum(each.gpu_hours for each in ran),
        cost=_sum_of_costs(ran),
    )


def job_usage(endpoint: Endpoint, job: PipelineJob, prices: Prices) -> StepUsage:
    """Return the usage of a job and its children.

    Read it from the tag of the job. Without the tag, compute it, and store it as the tag if the job has ended.
    """
    known = parse_usage(job.tags.get(TAG_USAGE, ""))
    if known is None:
        described = list(_executions(endpoint, job))
        prices.learn_types([arn for each in described for _, _, arn in attempts(each)])
        known = add_usages([_execution_usage(each, prices) for each in described])
        if job.ended:
            client(endpoint, "batch").tag_resource(resourceArn=job.arn, tags={TAG_USAGE: format_usage(known)})
    return known


def _execution_usage(described: Mapping[str, Any], prices: Prices) -> StepUsage:
    """Return the usage of a plain job or of one child: the sum of its attempts that have ended."""
    needs, parts = requirements(described), attempts(described)
    seconds = sum(max(0.0, end_s - start_s) for start_s, end_s, _ in parts)
    known = [
        max(0.0, end_s - start_s) / HOUR_S * price
        for start_s, end_s, arn in parts
        if (price := prices.of_job(described, arn)) is not None
    ]
    return StepUsage(
        jobs=1 if parts else 0,
        started_s=min((start_s for start_s, _, _ in parts), default=0.0),
        stopped_s=max((end_s for _, end_s, _ in parts), default=0.0),
        sum_s=seconds,
        vcpu_hours=seconds * needs.vcpus / HOUR_S,
        gpu_hours=seconds * needs.gpus / HOUR_S,
        cost=sum(known) if known else None,
    )


def _executions(endpoint: Endpoint, job: PipelineJob) -> Iterator[Mapping[str, Any]]:
    """Yield the description of a plain job, or the descriptions of the children of an array that ran and have ended."""
    if not job.is_array:
        yield job.described
        return
    batch = client(endpoint, "batch")
    ids = [each["jobId"] for status in ("SUCCEEDED", "FAILED") for each in children(batch, job, status) if each.get("startedAt")]
    yield from describe_jobs(batch, ids)


def attempts(described: Mapping[str, Any]) -> list[tuple[float, float, str]]:
    """Return the start, the end and the container instance of each attempt that has ended. Times are in seconds since 1970."""
    found = [
        (each["startedAt"] / 1000, each["stoppedAt"] / 1000, (each.get("container") or {}).get("containerInstanceArn", ""))
        for each in described.get("attempts", ())
        if each.get("startedAt") and each.get("stoppedAt")
    ]
    if not found and described.get("startedAt") and described.get("stoppedAt"):
        arn = (described.get("container") or {}).get("containerInstanceArn", "")
        found.append((described["startedAt"] / 1000, described["stoppedAt"] / 1000, arn))
    return found


def format_usage(usage: StepUsage) -> str:
    usd = NO_PRICE if usage.cost is None else f"{usage.cost:.6f}"
    times = f"from={usage.started_s:.3f} to={usage.stopped_s:.3f} sum={usage.sum_s:.3f}"
    return f"v2 n={usage.jobs} {times} vcpu={usage.vcpu_hours:.6f} gpu={usage.gpu_hours:.6f} usd={usd}"


def parse_usage(text: str) -> StepUsage | None:
    """Parse the value of a tag. Return None if `format_usage` did not write it."""
    match = _USAGE.fullmatch(text)
    if match is None or NO_PRICE in match.groups()[:-1]:
        return None
    number, *others = (float(each) for each in match.groups()[:-1])
    started_s, stopped_s, sum_s, vcpu_hours, gpu_hours = others
    cost = None if match[7] == NO_PRICE else float(match[7])
    return StepUsage(int(number), started_s, stopped_s, sum_s, vcpu_hours, gpu_hours, cost)
