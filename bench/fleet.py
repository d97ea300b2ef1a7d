"""Auto Scaling groups, EC2 instances and ECS services: how fast they grow and shrink, and what they cost when nothing happens.

The first rows use real processes on eight simulated GPUs. The last ones run the core in this process, with 125 simulated hosts of
eight GPUs each. There, growth is judged by CPU time, which a busy machine does not spoil.
"""

from __future__ import annotations

import re
import statistics
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

import machine
from client import REGION, Caller
from launches import TRUE
from local import Local, corral, register
from rows import Bench, Row, percentile
from simulated import COMMANDS_PER_TRANSACTION, GPUS_PER_HOST, Simulated, simulated

from corral.model.instance import InstanceState, ec2_id

GPUS = "sim:8"
TYPE = "g5.xlarge"  # has one GPU
MEMBERS = 8
IDLE_RESOURCES = 100
IDLE_MAX_PERCENT, IDLE_MAX_MB = 1.0, 120.0
GIVE_UP_S = 60.0
POLL_S = 0.002
HOST = (GPUS_PER_HOST, 96 * 1024, 2_000_000)  # GPUs, CPU units, MiB
LAUNCHES = 20  # the most that one RunInstances may launch
STEP = 100  # instances or tasks between two measurements
GROWTH_MAX = 1.5
CLUSTER = "fleet"
USER_DATA = b64encode(f"#!/bin/bash\necho ECS_CLUSTER={CLUSTER} >> /etc/ecs/ecs.config\n".encode()).decode()


def rows(bench: Bench) -> list[Row]:
    return [*_with_processes(bench), *_idle(bench), *_many_instances(bench), *_many_tasks(bench), *_many_daemons(bench)]


# --- eight instances with a DAEMON task each --------------------------------------------------------------------------


class TimeLine(NamedTuple):
    """Seconds after UpdateAutoScalingGroup was sent. The client polls for the last two; the others are Corral's timestamps."""

    first_launch: float
    all_joined: float
    first_task: float
    all_running: float
    back_at_zero: float  # after the request to scale in


def _with_processes(bench: Bench) -> list[Row]:
    rounds = bench.size(5, 1)
    with corral(bench, "fleet", GPUS) as local:
        call = Caller(local.port)
        _cluster_with_daemon(call)
        measured = [_scale_out_and_in(call) for _ in range(rounds)]
        call.close()
    middle = TimeLine(*(statistics.median(times) for times in zip(*measured)))
    line = (
        f"time line: first launch {middle.first_launch * 1e3:.0f} ms, all joined {middle.all_joined * 1e3:.0f} ms, "
        f"first task running {middle.first_task * 1e3:.0f} ms, all running {middle.all_running * 1e3:.0f} ms; medians of {rounds}"
    )
    what = f"Auto Scaling group 0 → {MEMBERS}: instances InService and joined, {MEMBERS} DAEMON tasks RUNNING"
    return [
        Row(what, middle.all_running * 1e3, "ms", note=line),
        Row(f"Auto Scaling group {MEMBERS} → 0: tasks stopped, instances terminated", middle.back_at_zero * 1e3, "ms"),
    ]


def _cluster_with_daemon(call: Caller) -> None:
    """A cluster with a DAEMON service, and a group of no instances that join it."""
    call("ecs", "CreateCluster", clusterName=CLUSTER)
    register(call, "daemon", ["/bin/sleep", "3600"], gpus=1)
    call(
        "ecs", "CreateService", cluster=CLUSTER, serviceName="daemon", taskDefinition="daemon", schedulingStrategy="DAEMON",
    )  # fmt: skip
    _template(call)
    _group(call, CLUSTER)


def _template(call: Caller) -> None:
    data = {"ImageId": "ami-1", "InstanceType": TYPE, "UserData": USER_DATA}
    flat = {f"LaunchTemplateData.{name}": value for name, value in data.items()}
    call("ec2", "CreateLaunchTemplate", LaunchTemplateName=CLUSTER, **flat)


def _group(call: Caller, name: str) -> None:
    flat = {"LaunchTemplate.LaunchTemplateName": CLUSTER, "AvailabilityZones.member.1": f"{REGION}a"}
    call("autoscaling", "CreateAutoScalingGroup", AutoScalingGroupName=name, MinSize=0, MaxSize=MEMBERS, **flat)


def _scale_out_and_in(call: Caller) -> TimeLine:
    sent, began = time.time(), time.perf_counter()
    call("autoscaling", "UpdateAutoScalingGroup", AutoScalingGroupName=CLUSTER, DesiredCapacity=MEMBERS)
    _until(lambda: _counts(call) == (MEMBERS, MEMBERS) and _in_service(call) == MEMBERS)
    all_running_s = time.perf_counter() - began
    joined = call("ecs", "ListContainerInstances", cluster=CLUSTER)["containerInstanceArns"]
    about = call("ecs", "DescribeContainerInstances", cluster=CLUSTER, containerInstances=joined)["containerInstances"]
    arns = call("ecs", "ListTasks", cluster=CLUSTER)["taskArns"]
    tasks = call("ecs", "DescribeTasks", cluster=CLUSTER, tasks=arns)["tasks"]
    began = time.perf_counter()
    launched = _first_launch_s(call)
    call("autoscaling", "UpdateAutoScalingGroup", AutoScalingGroupName=CLUSTER, DesiredCapacity=0)
    _until(lambda: _counts(call) == (0, 0) and _members(call) == 0)
    return TimeLine(
        launched - sent,
        max(each["registeredAt"] for each in about) - sent,
        min(task["startedAt"] for task in tasks) - sent,
        all_running_s,
        time.perf_counter() - began,
    )


def _until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while not holds():
        if time.monotonic() > give_up:
            raise RuntimeError(f"the group did not reach its capacity in {GIVE_UP_S:.0f} s")
        time.sleep(POLL_S)  # between two polls


def _counts(call: Caller) -> tuple[int, int]:
    """(container instances, running tasks)"""
    [cluster] = call("ecs", "DescribeClusters", clusters=[CLUSTER])["clusters"]
    return cluster["registeredContainerInstancesCount"], cluster["runningTasksCount"]


def _shown(call: Caller) -> bytes:
    body: bytes = call("autoscaling", "DescribeAutoScalingGroups", **{"AutoScalingGroupNames.member.1": CLUSTER})
    return body


def _in_service(call: Caller) -> int:
    return _shown(call).count(b"<LifecycleState>InService<")


def _members(call: Caller) -> int:
    return _shown(call).count(b"<LifecycleState>")


def _first_launch_s(call: Caller) -> float:
    """When the first of the newest launches began."""
    body = call("autoscaling", "DescribeScalingActivities", AutoScalingGroupName=CLUSTER, MaxRecords=MEMBERS)
    return min(datetime.fromisoformat(text).timestamp() for text in re.findall(r"<StartTime>([^<]+)<", body.decode()))


# --- idle -------------------------------------------------------------------------------------------------------------


class Idle(NamedTuple):
    percent: float  # of a core
    megabytes: float  # PSS of all three processes
    with_one_mb: float  # the same after the first request


def _idle(bench: Bench) -> list[Row]:
    plain = _idle_with(bench, lambda call, number: None)
    found = []
    for what, create in (("Auto Scaling groups of no instances", _create_group), ("services of no tasks", _create_service)):
        idle = _idle_with(bench, create)
        cpu, memory = f"idle CPU with {IDLE_RESOURCES} {what}", f"idle memory (PSS) with {IDLE_RESOURCES} {what}"
        note = f"{idle.with_one_mb:.0f} MB with one of them"
        found += [
            Row(cpu, idle.percent, "% of a core", plain.percent, "without them", IDLE_MAX_PERCENT),
            Row(memory, idle.megabytes, "MB", plain.megabytes, "without them", IDLE_MAX_MB, note),
        ]
    return found


def _idle_with(bench: Bench, create: Callable[[Caller, int], None]) -> Idle:
    for_s = 2.0 if bench.quick else 20.0
    with corral(bench, "idle", GPUS) as local:
        call = Caller(local.port)
        create(call, 0)
        with_one_mb = _memory_mb(local)
        for number in range(1, IDLE_RESOURCES):
            create(call, number)
        call.close()
        time.sleep(1.0 if bench.quick else 2.0)  # what a start and the requests leave to do
        before = sum(local.cpu_s().values())
        time.sleep(for_s)
        return Idle((sum(local.cpu_s().values()) - before) / for_s * 100, _memory_mb(local), with_one_mb)


def _memory_mb(local: Local) -> float:
    return sum(machine.pss_mb(pid) for pid in local.pids.values())


def _create_group(call: Caller, number: int) -> None:
    if number == 0:
        _template(call)
    _group(call, f"idle-{number}")


def _create_service(call: Caller, number: int) -> None:
    if number == 0:
        register(call, "idle", [TRUE])
    call("ecs", "CreateService", serviceName=f"idle-{number}", taskDefinition="idle", desiredCount=0)


# --- a thousand of them on simulated hosts ----------------------------------------------------------------------------


class Cost(NamedTuple):
    """Of some steps through the core."""

    wall_s: float
    cpu_s: float
    batch_s: list[float]

    @property
    def transactions(self) -> str:
        mean, high = statistics.fmean(self.batch_s) * 1e3, percentile(self.batch_s, 95) * 1e3
        return f"transactions: mean {mean:.1f}, p95 {high:.1f}, max {max(self.batch_s) * 1e3:.1f} ms"


def _cost(core: Simulated, step: Callable[[], None]) -> Cost:
    """What a step costs, with all the transactions that follow from it."""
    core.batch_s.clear()
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu, list(core.batch_s))


def _sum(costs: list[Cost]) -> Cost:
    return Cost(
        sum(cost.wall_s for cost in costs),
        sum(cost.cpu_s for cost in costs),
        [batch_s for cost in costs for batch_s in cost.batch_s],
    )


def _two_ways(what: str, count: int, grown: list[Cost], shrunk: list[Cost]) -> list[Row]:
    """Rows of steps of STEP from zero to `count`, and of steps back to zero."""
    found = []
    for verb, costs, empty, full in (("up", grown, grown[0], grown[-1]), ("down", shrunk, shrunk[-1], shrunk[0])):
        every, change = _sum(costs), f"0 → {count:,}" if verb == "up" else f"{count:,} → 0"
        note = f"CPU {every.cpu_s / count * 1e6:.0f} µs each; {every.transactions}"
        found.append(Row(f"{what}, {change}", count / every.wall_s, "/s", note=note))
        growth = (
            f"{what}, {change}: CPU of the {'last' if verb == 'up' else 'first'} {STEP} ÷ the {'first' if verb == 'up' else 'last'}"
        )
        found.append(Row(growth, full.cpu_s / empty.cpu_s, "×", budget=GROWTH_MAX))
    return found


def _sizes(bench: Bench) -> list[int]:
    return list(range(STEP, bench.size(1_000, 200) + 1, STEP))


def _up_and_down(
    bench: Bench, core: Simulated, step: Callable[[Simulated, int], None], what: str, runs: tuple[int, int]
) -> list[Row]:
    """Go up to `count` and back in steps. `runs`: the instances and tasks that run for each unit."""
    sizes = _sizes(bench)
    grown = [_cost(core, lambda size=size: step(core, size)) for size in sizes]
    _assert_size(core, runs[0] * sizes[-1], runs[1] * sizes[-1])
    shrunk = [_cost(core, lambda size=size: step(core, size)) for size in [*sizes[-2::-1], 0]]
    _assert_size(core, 0, 0)
    return _two_ways(what, sizes[-1], grown, shrunk)


def _many_instances(bench: Bench) -> list[Row]:
    count = _sizes(bench)[-1]
    with _fleet_core(bench, "instances", count) as core:
        found = _up_and_down(bench, core, _set_capacity, "instances of one Auto Scaling group through the core (durable)", (1, 0))
        launch = {"LaunchTemplate": {"LaunchTemplateName": CLUSTER}, "MinCount": LAUNCHES, "MaxCount": LAUNCHES}
        launched = _sum([_cost(core, lambda: _call(core, "RunInstances", launch, "ec2")) for _ in range(0, STEP, LAUNCHES)])
        _assert_size(core, STEP, 0)
        ids = [ec2_id(each.id) for each in core.store.instances.slices()]
        ended = _cost(core, lambda: _call(core, "TerminateInstances", {"InstanceIds": ids}, "ec2"))
        _assert_size(core, 0, 0)
    for what, cost in ((f"RunInstances of {LAUNCHES}", launched), (f"TerminateInstances of {STEP}", ended)):
        note = f"{cost.wall_s / STEP * 1e6:.0f} µs an instance"
        found.append(Row(f"{what} through the core (durable): longest transaction", max(cost.batch_s) * 1e3, "ms", note=note))
    return found


def _many_tasks(bench: Bench) -> list[Row]:
    with _fleet_core(bench, "tasks", _sizes(bench)[-1]) as core:
        _call(core, "CreateService", {"serviceName": "web", "taskDefinition": "one", "desiredCount": 0})
        return _up_and_down(
            bench, core, _set_count, "tasks of one service, started and stopped, through the core (durable)", (0, 1)
        )


def _many_daemons(bench: Bench) -> list[Row]:
    with _fleet_core(bench, "daemons", _sizes(bench)[-1]) as core:
        daemon = {"cluster": CLUSTER, "serviceName": "daemon", "taskDefinition": "one", "schedulingStrategy": "DAEMON"}
        _call(core, "CreateService", daemon)
        what = "instances of one group with a DAEMON task each, through the core (durable)"
        return _up_and_down(bench, core, _set_capacity, what, (1, 1))


# --- steps of the core ------------------------------------------------------------------------------------------------


@contextmanager
def _fleet_core(bench: Bench, name: str, count: int) -> Iterator[Simulated]:
    """A core with room for `count` instances of one GPU, a cluster, and a group whose instances join it."""
    with simulated(bench, name) as core:
        core.join([HOST] * (count // GPUS_PER_HOST))
        core.register("one", 1)
        _call(core, "CreateCluster", {"clusterName": CLUSTER})
        data = {"ImageId": "ami-1", "InstanceType": TYPE, "UserData": USER_DATA}
        _call(core, "CreateLaunchTemplate", {"LaunchTemplateName": CLUSTER, "LaunchTemplateData": data}, "ec2")
        group = {
            "AutoScalingGroupName": CLUSTER,
            "MinSize": 0,
            "MaxSize": count,
            "LaunchTemplate": {"LaunchTemplateName": CLUSTER},
            "AvailabilityZones": [f"{REGION}a"],
        }
        _call(core, "CreateAutoScalingGroup", group, "autoscaling")
        yield core


def _call(core: Simulated, operation: str, params: dict[str, object], service: str = "ecs") -> None:
    """One request, and all that is due because of it."""
    core.run([core.call(operation, params, service)])
    core.settle()


def _set_capacity(core: Simulated, size: int) -> None:
    """Set the capacity of the group. The hosts report the start and the end of every task."""
    _call(core, "SetDesiredCapacity", {"AutoScalingGroupName": CLUSTER, "DesiredCapacity": size}, "autoscaling")
    _report(core)


def _set_count(core: Simulated, size: int) -> None:
    """Set the number of tasks of the service. The hosts report the start and the end of every task."""
    _call(core, "UpdateService", {"service": "web", "desiredCount": size})
    _report(core)


def _report(core: Simulated) -> None:
    while core.placed or core.stopping:
        placed, stopping = core.placed[:], list(dict.fromkeys(core.stopping))
        core.placed.clear()
        core.stopping.clear()
        for runs, report in ((placed, core.start), (stopping, core.end)):
            for at in range(0, len(runs), COMMANDS_PER_TRANSACTION):
                report(runs[at : at + COMMANDS_PER_TRANSACTION])
        core.settle()


def _assert_size(core: Simulated, instances: int, tasks: int) -> None:
    running = sum(each.state is InstanceState.RUNNING for each in core.store.instances.slices())
    [(found,)] = core.store.execute("SELECT count(*) FROM task WHERE state = 'RUNNING'").fetchall()
    assert (running, found) == (instances, tasks), f"{running} instances and {found} tasks run"
