"""The capacity of a request to run tasks: the pools that its tasks use, and their capacity providers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class Capacity(Struct, frozen=True):
    """The pools (sets of slots) in which the tasks of a request are placed, and whether the tasks wait for free capacity."""

    launch_type: str  # EC2 or FARGATE
    pools: tuple[str, ...]  # tried in this order; a task that finds no free capacity waits in one of them
    waits: bool  # False: a task fails if it does not fit at once
    providers: tuple[str, ...] = ()  # the capacity provider of each task; empty if the request has a launch type
    pool_of: Mapping[str, str] = field(default_factory=dict)  # provider → its pool, which its tasks use instead of `pools`
    group_of: Mapping[str, str] = field(default_factory=dict)  # provider → the Auto Scaling group whose instances its tasks use

    def pools_of_task(self, at: int) -> tuple[str, ...]:
        """The pools that the task with the index `at` in the request may use."""
        return (self.pool_of[self.providers[at]],) if self.pool_of else self.pools

    def group_of_task(self, at: int) -> str:
        """The Auto Scaling group whose instances the task with the index `at` must use. Empty: it may use all instances."""
        return self.group_of.get(self.providers[at], "") if self.group_of else ""
