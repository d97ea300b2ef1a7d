"""What a seed decides before anything happens: sizes, latencies, and which faults there are."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

FAULTS = (
    "agent crash",
    "link break",
    "link stall",
    "core crash",
    "crash before commit",
    "crash after commit",
    "crash between steps",
    "disk full",
    "reboot",
    "clock step",
    "failing command",
    "hold",
    "foreign process",
)


LAB = "lab"  # the cluster of some hosts, in some plans


@dataclass(frozen=True, slots=True)
class HostSize:
    gpus: int
    cpu_units: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Plan:
    hosts: tuple[HostSize, ...]
    faults: tuple[str, ...]
    fault_every_s: float  # on average
    safety_s: float
    requests: int
    burst_max: int  # requests at the same instant
    latency_s: float  # of a message, on average
    transaction_delay_s: float  # while the core is busy with something else
    answer_loss: float  # how often a client does not hear the answer
    start_failure: float
    says_failed: float  # it started, died at once, and the engine says that it never started
    lost_exit: float  # ends without an exit code
    hangs_on_stop: float
    log_refusal: float
    forgets_to_forget: float  # the engine tells of an acknowledged end again
    gpu_falls_off: float  # after a reboot
    run_s: float  # on average
    start_s: float
    with_rules: float  # the share of requests with placement constraints or strategies
    with_instances: float  # the share of requests that launch or terminate an instance
    log_requests: int  # of those who write logs with metrics in them, and set alarms on these
    with_services: float  # the share of requests that concern ECS services
    with_groups: float  # the share of requests that concern Auto Scaling groups
    with_alarms: bool  # alarms scale the groups
    with_clusters: bool  # hosts are in two clusters, and move between them
    with_joined: bool = False  # all hosts but the first have joined from other machines
    with_loss: bool = False  # hosts are cut off, forgotten or lost, and return; half of the tasks have a fence
    with_changes: bool = False  # machines are copied, installed again, and join in new folders


def draw(rng: Random, more: Random, cluster: Random) -> Plan:
    """Swarm: most runs have few kinds of faults, so that each kind is seen alone and in every company.

    `more` decides whether there are services and groups, and `cluster` whether hosts are in several clusters. Seeds without them do
    not depend on it.
    """
    hosts = tuple(
        HostSize(rng.choice((0, 1, 2, 4, 8)), rng.choice((2048, 4096, 8192)), rng.choice((2048, 4096, 16384)))
        for _ in range(rng.choice((1, 1, 2, 2, 3, 4)))
    )
    share = rng.choice((0.0, 0.2, 0.4, 1.0))
    often = rng.choice((0.0, 0.1, 0.3))

    def sometimes(rate: float) -> float:
        return rate if rng.random() < 0.4 else 0.0

    return Plan(
        hosts=hosts,
        faults=tuple(fault for fault in FAULTS if rng.random() < share),
        fault_every_s=rng.choice((1.0, 3.0, 8.0)),
        safety_s=rng.choice((15.0, 30.0, 60.0)),
        requests=rng.choice((8, 16, 24)),
        burst_max=rng.choice((1, 3, 8)),
        latency_s=rng.choice((0.001, 0.02, 0.3)),
        transaction_delay_s=rng.choice((0.0, 0.01, 0.2, 1.0)),
        answer_loss=sometimes(often),
        start_failure=sometimes(0.1),
        says_failed=sometimes(0.1),
        lost_exit=sometimes(0.1),
        hangs_on_stop=sometimes(0.5),
        log_refusal=sometimes(0.2),
        forgets_to_forget=sometimes(0.3),
        gpu_falls_off=sometimes(0.3),
        run_s=rng.choice((0.2, 2.0, 8.0)),
        start_s=rng.choice((0.0, 0.02, 0.5)),
        with_rules=rng.choice((0.0, 0.3, 0.8)),
        with_instances=rng.choice((0.0, 0.2, 0.4)),
        log_requests=rng.choice((0, 6, 12)),
        with_services=more.choice((0.0, 0.0, 0.4)),
        with_groups=(groups := more.choice((0.0, 0.0, 0.0, 0.3))),
        with_alarms=bool(groups) and more.random() < 0.5,
        with_clusters=len(hosts) > 1 and cluster.random() < 0.4,
    )
