"""AWS Batch: how fast jobs are accepted, and how many of them end per second. The peer is Slurm, in the same run.

Both have more CPUs than the machine, so that the number of CPUs does not limit the jobs: Corral by instances of 96 vCPUs, which
share the machine, Slurm by its configuration. Slurm is measured with several configurations and commands. The best one is compared.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

import slurm
from client import Caller, replay, signed
from launches import TRUE, best_floor
from local import Local, corral
from rows import Bench, Row
from slurm import Settings

GPUS = "sim:1"
QUEUE, DEFINITION, ENVIRONMENT = "bench", "true", "bench"
TYPE, VCPUS = "c5.24xlarge", 192
ACCEPTED_MAX_S = 1.0
CONNECTIONS = 4
ENDED_MAX_S = 300.0
POLL_S = 0.05


def rows(bench: Bench) -> list[Row]:
    children, singles = bench.size(10_000, 500), bench.size(2_000, 200)
    floor, floor_name = best_floor(bench)
    accepted_s, per_s, note = _array(bench, children)
    submitted_per_s, submitted_note = _singles(bench, singles)
    found = [
        Row(f"array of {children:,} jobs: from SubmitJob to its response", accepted_s, "s", None, "", ACCEPTED_MAX_S),
        Row(f"array jobs/s, {children:,} × {TRUE}, until all SUCCEEDED", per_s, "/s", floor, floor_name, None, note),
        Row(f"SubmitJob calls/s, {CONNECTIONS} connections", submitted_per_s, "/s", None, "", None, submitted_note),
    ]
    try:
        peer = _slurm(bench, children)
    except Exception as error:  # Slurm is only a peer
        return [*found, Row("Slurm", None, "", error=f"{type(error).__name__}: {str(error)[:300]}")]
    return [
        *found,
        Row(f"array of {children:,} jobs: from the request to its response", accepted_s, "s", peer.accepted_s, "sbatch --array"),
        Row(f"array jobs/s, {children:,} × {TRUE}, until all have ended", per_s, "/s", peer.per_s, "Slurm", None, peer.note),
        Row("single jobs: submissions/s", submitted_per_s, "/s", peer.submitted_per_s, f"sbatch in {CONNECTIONS} threads"),
    ]


# Corral


def _array(bench: Bench, children: int) -> tuple[float, float, str]:
    """Run one array. Return the seconds until it is accepted, jobs per second, and a note."""
    with corral(bench, "jobs", GPUS) as local:
        call = _prepared(local)
        _until_ended(call, _submit(call, arrayProperties={"size": 50}))  # the first jobs pay for imports and files
        before, began = local.cpu_s(), time.perf_counter()
        job = _submit(call, arrayProperties={"size": children})
        accepted_s = time.perf_counter() - began
        ended = _until_ended(call, job)
        seconds = time.perf_counter() - began
        used = {role: (after - before[role]) / children * 1e6 for role, after in local.cpu_s().items()}
        summary = ended["arrayProperties"]["statusSummary"]
        assert ended["status"] == "SUCCEEDED" and summary.get("SUCCEEDED") == children, json.dumps(summary)
        call.close()
    busy = ", ".join(f"{role} {cpu_us:.0f}" for role, cpu_us in used.items())
    return accepted_s, children / seconds, f"{seconds:.1f} s; CPU µs a job: {busy}"


def _singles(bench: Bench, count: int) -> tuple[float, str]:
    """Submit single jobs. Return calls per second, and a note with the jobs per second until all have ended."""
    with corral(bench, "single-jobs", GPUS) as local:
        call = _prepared(local)
        _until_ended(call, _submit(call))
        job = {"jobQueue": QUEUE, "jobDefinition": DEFINITION}
        requests = [signed(local.port, "batch", "SubmitJob", {"jobName": f"job-{number}", **job}) for number in range(count)]
        before, began = local.cpu_s()["server"], time.perf_counter()
        outcome = replay(local.port, requests, CONNECTIONS, keep=True)
        ids = [json.loads(body)["jobId"] for body in outcome.bodies]
        note = outcome.note()
        for at in range(0, count, 100):
            _until_ended(call, *ids[at : at + 100])
        seconds = time.perf_counter() - began
        cpu_us = (local.cpu_s()["server"] - before) / count * 1e6
        call.close()
    return outcome.per_s, f"{note}; {count / seconds:,.0f} jobs/s until all SUCCEEDED, server CPU {cpu_us:.0f} µs a job"


def _prepared(local: Local) -> Caller:
    """A caller, and a queue with a compute environment whose instances run."""
    call = Caller(local.port)
    subnet = re.findall(r"<subnetId>([^<]+)", call("ec2", "DescribeSubnets").decode())[0]
    security_group = re.findall(r"<groupId>([^<]+)", call("ec2", "DescribeSecurityGroups").decode())[0]
    call("iam", "CreateInstanceProfile", InstanceProfileName="bench")
    resources = {
        "type": "EC2", "minvCpus": VCPUS, "maxvCpus": VCPUS, "instanceTypes": [TYPE], "subnets": [subnet],
        "securityGroupIds": [security_group], "instanceRole": "bench",
    }  # fmt: skip
    call("batch", "CreateComputeEnvironment", computeEnvironmentName=ENVIRONMENT, type="MANAGED", computeResources=resources)
    order = [{"order": 1, "computeEnvironment": ENVIRONMENT}]
    _wait(lambda: _status(call, "DescribeComputeEnvironments", "computeEnvironments") == "VALID", "the compute environment")
    call("batch", "CreateJobQueue", jobQueueName=QUEUE, priority=1, computeEnvironmentOrder=order)
    _wait(lambda: _status(call, "DescribeJobQueues", "jobQueues") == "VALID", "the job queue")
    requirements = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "6"}]
    properties = {"image": "corral/host", "command": [TRUE], "resourceRequirements": requirements}
    call("batch", "RegisterJobDefinition", jobDefinitionName=DEFINITION, type="container", containerProperties=properties)
    return call


def _status(call: Caller, operation: str, member: str) -> str:
    [found] = call("batch", operation)[member]
    if found["status"] == "INVALID":
        raise RuntimeError(found["statusReason"])
    return str(found["status"])


def _submit(call: Caller, **more: Any) -> str:
    return str(call("batch", "SubmitJob", jobName="bench", jobQueue=QUEUE, jobDefinition=DEFINITION, **more)["jobId"])


def _until_ended(call: Caller, *ids: str) -> dict[str, Any]:
    """Wait until all jobs have ended. Return the description of the last one."""
    jobs: Sequence[dict[str, Any]] = ()

    def ended() -> bool:
        nonlocal jobs
        jobs = call("batch", "DescribeJobs", jobs=list(ids))["jobs"]
        return all(job["status"] in ("SUCCEEDED", "FAILED") for job in jobs)

    _wait(ended, f"{len(ids)} jobs")
    return jobs[-1]


def _wait(condition: Any, what: str) -> None:
    until_s = time.monotonic() + ENDED_MAX_S
    while not condition():
        if time.monotonic() > until_s:
            raise RuntimeError(f"{what} did not become ready or end within {ENDED_MAX_S:.0f} s")
        time.sleep(POLL_S)


# Slurm


class Peer:
    """The best figures of Slurm."""

    def __init__(self) -> None:
        self.accepted_s, self.per_s, self.submitted_per_s, self.note = 0.0, 0.0, 0.0, ""


def _slurm(bench: Bench, children: int) -> Peer:
    """Find the best configuration with a short array, and then run the whole array with it."""
    sample, peer, tried = bench.size(500, 100), Peer(), dict[Settings, float]()
    for settings in slurm.SETTINGS[: bench.size(len(slurm.SETTINGS), 2)]:
        with slurm.slurm(bench, settings) as running:
            tried[settings] = sample / running.array(sample)[1]
    best = max(tried, key=lambda settings: tried[settings])
    with slurm.slurm(bench, best) as running:
        peer.accepted_s, seconds = running.array(children)
        accepted_s, single_s = running.single_jobs(sample, CONNECTIONS)
        peer.submitted_per_s = sample / accepted_s
        rates = {
            "sbatch --array": children / seconds,
            "one sbatch per job": sample / single_s,
            "srun per job in one allocation": sample / running.steps(sample, 2 * CONNECTIONS),
        }
        step_per_s = sample / running.one_step(sample)
    name = max(rates, key=lambda each: rates[each])
    peer.per_s = rates[name]
    others = ", ".join(f"{each} {per_s:.0f}/s" for each, per_s in rates.items() if each != name)
    configurations = ", ".join(f"{settings.name} {per_s:.0f}/s" for settings, per_s in tried.items() if settings != best)
    peer.note = (
        f"Slurm's best: {name}, {best.name}; {others}; other configurations: {configurations}; "
        f"tasks of one job step, without a record of each: {step_per_s:.0f}/s"
    )
    return peer
