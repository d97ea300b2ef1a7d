"""Dispatches of AWS Batch jobs on simulated hosts: the cost must not grow with the number of queued jobs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from placing import EQUAL_HOST, GROWTH_MAX, GROWTH_NOTE
from rows import Bench, Row
from simulated import GPUS_PER_HOST, Simulated, simulated

HOSTS = 10_000
ARRAY_MAX = 10_000  # children of one array job
DISPATCHES = 1_000
ROUNDS = 5
SHARES = 10
MIB = 2**20


class Measured(NamedTuple):
    wall_s: float  # of 1,000 dispatches with their durable rows
    cpu_s: float
    queued_per_s: float
    grown_mib: float  # memory that the queued jobs add


def rows(bench: Bench) -> list[Row]:
    hosts = bench.size(HOSTS, 1_000)
    sizes = (10_000, 100_000) if bench.quick else (10_000, 100_000, 1_000_000)
    found: list[Row] = []
    measured: dict[int, Measured] = {}
    for jobs in sizes:
        measured[jobs] = each = _measure(bench, hosts, jobs, shares=0)
        note = f"{_cpu(each)}; queued {each.queued_per_s:,.0f} jobs/s, memory +{each.grown_mib:.0f} MiB"
        found.append(
            Row(f"{DISPATCHES:,} job dispatches, {jobs:,} jobs queued, {hosts:,} hosts", each.wall_s * 1e3, "ms", note=note)
        )
    growth = measured[sizes[-1]].cpu_s / measured[sizes[0]].cpu_s
    what = f"job dispatches: CPU with {sizes[-1]:,} jobs queued ÷ with {sizes[0]:,}"
    found.append(Row(what, growth, "×", budget=GROWTH_MAX, note=GROWTH_NOTE))
    fair = _measure(bench, hosts, 100_000, shares=SHARES)
    what = f"{DISPATCHES:,} job dispatches, 100,000 jobs in {SHARES} fair shares, {hosts:,} hosts"
    return [*found, Row(what, fair.wall_s * 1e3, "ms", note=_cpu(fair))]


def _cpu(measured: Measured) -> str:
    return f"CPU {measured.cpu_s / DISPATCHES * 1e6:.0f} µs a job"


def _measure(bench: Bench, hosts: int, jobs: int, *, shares: int) -> Measured:
    """Queue array jobs while the environment is disabled, then enable it and time some rounds of dispatches. Report the best."""
    with simulated(bench, "job-queue") as core:
        core.join([EQUAL_HOST] * hosts)
        _create(core, shares)
        before, began = _resident(), time.perf_counter()
        for number in range(jobs // ARRAY_MAX):
            share = {"shareIdentifier": f"s{number % shares}"} if shares else {}
            params = {"jobName": "j", "jobQueue": "q", "jobDefinition": "d", "arrayProperties": {"size": ARRAY_MAX}, **share}
            core.run([core.call("SubmitJob", params, "batch")])
            core.settle()
        queued_per_s, grown = jobs / (time.perf_counter() - began), _resident() - before
        assert sum(line.count for line in core.store.job_lines.lines_of("us-east-1", "q")) == jobs
        core.run([core.call("UpdateComputeEnvironment", {"computeEnvironment": "e", "state": "ENABLED"}, "batch")])
        rounds = [_dispatch(core) for _ in range(min(ROUNDS, jobs // DISPATCHES - 1, hosts * GPUS_PER_HOST // DISPATCHES - 1))]
    return Measured(min(wall_s for wall_s, _ in rounds), min(cpu_s for _, cpu_s in rounds), queued_per_s, grown / MIB)


def _create(core: Simulated, shares: int) -> None:
    """An environment that takes no jobs yet, a queue and a job definition with one GPU."""
    environment = {"computeEnvironmentName": "e", "type": "UNMANAGED", "state": "DISABLED", "tags": {"corral:cluster": "default"}}
    queue: dict[str, Any] = {
        "jobQueueName": "q",
        "priority": 1,
        "computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "e"}],
    }
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}, {"type": "GPU", "value": "1"}]
    container = {"image": "corral/host", "command": ["/bin/true"], "resourceRequirements": needs}
    core.run([core.call("CreateComputeEnvironment", environment, "batch")])
    if shares:
        rules = {"shareDecaySeconds": 600, "computeReservation": 0, "shareDistribution": []}
        [made] = core.run([core.call("CreateSchedulingPolicy", {"name": "p", "fairsharePolicy": rules}, "batch")])
        queue["schedulingPolicyArn"] = made["arn"]
    core.run([core.call("CreateJobQueue", queue, "batch")])
    definition = {"jobDefinitionName": "d", "type": "container", "containerProperties": container}
    core.run([core.call("RegisterJobDefinition", definition, "batch")])


def _dispatch(core: Simulated) -> tuple[float, float]:
    """Wall and CPU seconds of 1,000 further dispatches."""
    first, began, cpu = len(core.placed), time.perf_counter(), time.process_time()
    while len(core.placed) < first + DISPATCHES:
        before = len(core.placed)
        core.run([lambda tx: tx.mark("pool:hosts:default")])
        assert len(core.placed) > before, "no job was dispatched"
    part = DISPATCHES / (len(core.placed) - first)
    return (time.perf_counter() - began) * part, (time.process_time() - cpu) * part


def _resident() -> int:
    """The resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
