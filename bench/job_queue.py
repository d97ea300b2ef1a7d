"""Dispatches of AWS Batch jobs on simulated hosts: the cost must not grow with the number of queued jobs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from placing import EQUAL_HOST, GROWTH_MAX, GROWTH_NOTE
from rows import Bench, Row
from simulated import Simulated, simulated

HOSTS = 10_000
ARRAY_MAX = 10_000  # children of one array job
DISPATCHES = 1_000
ROUNDS = 5
SHARES = 10
MIB = 2**20


def rows(bench: Bench) -> list[Row]:
    hosts = bench.size(HOSTS, 1_000)
    sizes = (10_000, 100_000) if bench.quick else (10_000, 100_000, 1_000_000)
    found: list[Row] = []
    cost_s: dict[int, float] = {}
    for jobs in sizes:
        cost_s[jobs], queued_per_s, grown_mib = _cost_s(bench, hosts, jobs, shares=0)
        note = f"{cost_s[jobs] / DISPATCHES * 1e6:.0f} µs each; queued {queued_per_s:,.0f} jobs/s, memory +{grown_mib:.0f} MiB"
        found.append(Row(f"{DISPATCHES:,} job dispatches, {jobs:,} jobs queued, {hosts:,} hosts", cost_s[jobs] * 1e3, "ms", note=note))
    growth = cost_s[sizes[-1]] / cost_s[sizes[0]]
    what = f"job dispatches: cost with {sizes[-1]:,} queued ÷ with {sizes[0]:,}"
    found.append(Row(what, growth, "×", budget=GROWTH_MAX, note=GROWTH_NOTE))
    fair_s, _, _ = _cost_s(bench, hosts, 100_000, shares=SHARES)
    note = f"{fair_s / DISPATCHES * 1e6:.0f} µs each"
    found.append(Row(f"{DISPATCHES:,} job dispatches, 100,000 jobs in {SHARES} fair shares", fair_s * 1e3, "ms", note=note))
    return found


def _cost_s(bench: Bench, hosts: int, jobs: int, *, shares: int) -> tuple[float, float, float]:
    """Wall seconds of 1,000 dispatches (the best round), queued jobs per second, and MiB that the queued jobs add."""
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
        rounds = [_dispatch(core) for _ in range(min(ROUNDS, jobs // DISPATCHES - 1))]
    return min(rounds), queued_per_s, grown / MIB


def _create(core: Simulated, shares: int) -> None:
    """An environment that takes no jobs yet, a queue and a job definition with one GPU."""
    environment = {"computeEnvironmentName": "e", "type": "UNMANAGED", "state": "DISABLED", "tags": {"corral:cluster": "default"}}
    queue: dict[str, Any] = {"jobQueueName": "q", "priority": 1, "computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "e"}]}
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


def _dispatch(core: Simulated) -> float:
    """Wall seconds until 1,000 further jobs are dispatched."""
    wanted, began = len(core.placed) + DISPATCHES, time.perf_counter()
    while len(core.placed) < wanted:
        before = len(core.placed)
        core.run([lambda tx: tx.mark("pool:hosts")])
        assert len(core.placed) > before, "no job was dispatched"
    return (time.perf_counter() - began) * DISPATCHES / (DISPATCHES + len(core.placed) - wanted)


def _resident() -> int:
    """The resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
