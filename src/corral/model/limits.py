"""Limits of users and groups: how much of the machine they may use, and with which weight they share it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from corral.model.placement import Claim
from corral.model.principal import ROOT, USER
from corral.model.task import ALL_GPUS, Demand

GROUP = "group"
EVERYONE = "everyone"  # the subject whose limits hold for each user who has no value of their own
SUBJECTS = f"`{USER}/NAME`, `{GROUP}/NAME`, `{EVERYONE}` or `{ROOT}`"
WEIGHT_DEFAULT = 1.0
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1_000_000.0
PART_OF_GPU = 0.001  # a task that shares a GPU needs at least this much of it; how much depends on the GPU that it gets
PRIORITY_MAX = 1_000  # as the tag corral:priority


class Limits(Struct, frozen=True, omit_defaults=True):
    """The limits of one subject. None: the subject has no such limit."""

    gpus: int | None = None  # held at once, by tasks and instances
    waiting_gpus: int | None = None  # that tasks and instance launches wait for
    gpu_hours_per_week: float | None = None  # in the last seven days
    longest_s: float | None = None  # the longest time limit of a task
    memory_mib: int | None = None  # that tasks reserve at once
    priority: int | None = None  # the highest
    stored_bytes: int | None = None  # of objects and image layers
    requests_per_second: float | None = None
    weight: float | None = None  # not a limit: the share of the machine, see `decide/shares.py`

    def problem(self) -> str | None:
        """Return why a value is not valid, or None."""
        for name, least, most in RANGES:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                return f"{name} {value:.15g} is not valid: use a number from {least:.15g} to {most:.15g}."
        return None


# Name, least and greatest value
RANGES: tuple[tuple[str, float, float], ...] = (
    ("gpus", 0, 1_000_000),
    ("waiting_gpus", 0, 100_000_000),
    ("gpu_hours_per_week", 0, 1_000_000_000),
    ("longest_s", 1, 10 * 365 * 86_400),
    ("memory_mib", 1, 2**40),
    ("priority", 0, PRIORITY_MAX),
    ("stored_bytes", 0, 2**60),
    ("requests_per_second", 0.1, 1_000_000),
    ("weight", WEIGHT_MIN, WEIGHT_MAX),
)
NO_LIMITS = Limits()


def shown_subject(subject: str) -> str:
    """Return a subject as `corral limits` shows it."""
    return subject.replace("/", ":", 1)


class SubjectLimits(Struct, frozen=True):
    """Limits that hold for an owner, and the subject whose use they count: the owner alone, or a group together."""

    subject: str  # as an owner: `root` or `user/NAME`; or `group/NAME`
    limits: Limits


class Allowance(NamedTuple):
    """What the limits of an owner allow it to take now. Infinite: there is no limit."""

    gpus: float  # as many more GPUs
    memory_mib: float
    most_gpus: float  # the limits themselves: what it may hold at once
    most_memory_mib: float
    # Claims at this place in the line (priority, level and claim) and after it may take no GPUs: a claim of a member of the same
    # group waits there for the limit of the group.
    until: tuple[float, float, Claim] | None = None

    def of_lender(self) -> Allowance:
        """Return what it allows tasks on EC2 instances of the owner: they do not wait for GPUs, which the owner holds already."""
        return self._replace(gpus=math.inf, most_gpus=math.inf, until=None)


def limited_amounts(demand: Demand, all_gpus: int = 1) -> tuple[float, int]:
    """Return the GPUs and the memory in MiB that a demand needs at least, of all nodes together.

    `all_gpus` is the number of GPUs that a demand for all GPUs of a host can get.
    """
    nodes = demand.nodes or ((demand, 1),)
    gpus = 0.0
    for node, count in nodes:
        whole = all_gpus if node.gpus == ALL_GPUS else node.gpus
        gpus += (PART_OF_GPU if node.gpu_memory_mib else whole) * count
    return gpus, sum([node.memory_mib * count for node, count in nodes])


def opened(allowance: Allowance, demands: Sequence[Demand], all_gpus: int = 1) -> list[bool]:
    """Whether each of an owner's demands may start, if only the earlier ones of them could start before it.

    What an earlier demand waits for is kept for it, because later ones could otherwise keep it waiting for ever. A demand that is
    larger than the limit keeps no other waiting.
    """
    found, gpus, memory_mib = [], allowance.gpus, allowance.memory_mib
    for demand in demands:
        needs_gpus, needs_mib = limited_amounts(demand, all_gpus)
        lacks_gpus, lacks_memory = needs_gpus > max(gpus, 0.0), needs_mib > max(memory_mib, 0.0)
        if needs_gpus <= allowance.most_gpus and needs_mib <= allowance.most_memory_mib:
            gpus, memory_mib = 0.0 if lacks_gpus else gpus, 0.0 if lacks_memory else memory_mib
        found.append(not lacks_gpus and not lacks_memory)
    return found
