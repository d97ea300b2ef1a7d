"""Where a task may go, and where it would rather go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """The placement constraints and strategies of a task. Tasks with equal asks and rules wait in one line."""

    scope: str  # region/cluster: whose tasks `task:group` speaks of
    member_of: tuple[str, ...] = ()  # expressions of the cluster query language; all must hold
    distinct: bool = False  # no two tasks of `group` on one host
    strategy: tuple[tuple[str, str], ...] = ()  # (spread, instanceId), (binpack, memory), (random, ""): the first counts most
    group: str = ""  # region/cluster/group of the tasks that `distinct` keeps apart and `spread` counts; empty where neither does
    restless: bool = False  # whether it may fit as soon as a task comes or goes, though no room is made or lost
