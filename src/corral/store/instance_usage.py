"""SQL of the table `instance_usage`, the ledger of instance-hours for `corral cost`.

Each row is a period in which one instance ran and belonged to one Auto Scaling group, or to none.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from corral.core.database import Database
from corral.model.instance import Instance

BILLED_MIN_S = 60.0  # AWS bills Linux instances by the second, and each start for at least a minute
STACK_TAG = "aws:cloudformation:stack-name"


class UsageTotal(Struct, frozen=True):
    """The sums of all instances of one type and one owner in one group or stack."""

    region: str
    name: str  # the name of the group or of the stack; empty: the instances have none
    type: str
    instances: int
    billed_s: float
    spot_s: float  # the part of `billed_s` that spot instances ran
    gpu_s: float  # billed seconds times the number of GPUs
    owner: str


class InstanceUsage:
    """The part of the state store (`Store`) with instance-hours. `store/instances.py` reports each change of an instance."""

    def __init__(self, database: Database) -> None:
        self._execute = database.execute

    def begin(self, instance: Instance, now_s: float) -> None:
        """Begin a period, because an instance starts to run or changes its group."""
        self._execute(
            "INSERT INTO instance_usage (instance_id, region, type, group_name, stack, market, gpus, began_at, owner) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (instance.id, instance.region, instance.type, instance.group, _stack(instance), _market(instance), instance.gpus,
             now_s, instance.owner),
        )  # fmt: skip

    def end(self, instance: Instance, now_s: float) -> None:
        """End the period of an instance that stops running. Do nothing if the period has already ended."""
        self._end(instance, max(now_s, (instance.launched_at_s or 0.0) + BILLED_MIN_S))

    def change(self, instance: Instance, now_s: float) -> None:
        """End the period of a running instance and begin a new one, because its group has changed."""
        self._end(instance, now_s)
        self.begin(instance, now_s)

    def _end(self, instance: Instance, at_s: float) -> None:
        self._execute(
            "UPDATE instance_usage SET billed_until = max(began_at, ?) WHERE instance_id = ? AND billed_until IS NULL",
            (at_s, instance.id),
        )

    def totals(self, by: Literal["group_name", "stack"], since_s: float, now_s: float, owner: str = "") -> list[UsageTotal]:
        """Return the usage since `since_s`: one total for each combination of region, type, owner, and group or stack (`by`).

        With `owner`, only what belongs to this owner.
        """
        rows = self._execute(
            f"SELECT region, {by}, type, count(DISTINCT instance_id), sum(seconds), sum(seconds * (market = 'spot')), "
            f"sum(seconds * gpus), owner FROM ({_SECONDS}) WHERE :owner IN ('', owner) "
            "GROUP BY 1, 2, 3, owner ORDER BY 1, 2, owner, 3",
            {"since_s": since_s, "now_s": now_s, "owner": owner},
        )
        return [UsageTotal(*row) for row in rows.fetchall()]

    def instances(self, since_s: float, now_s: float, owner: str = "") -> int:
        """Return the number of instances that ran after `since_s`."""
        sql = f"SELECT count(DISTINCT instance_id) FROM ({_SECONDS}) WHERE :owner IN ('', owner)"
        (count,) = self._execute(sql, {"since_s": since_s, "now_s": now_s, "owner": owner}).fetchone()
        return int(count)

    def first_s(self, owner: str = "") -> float | None:
        """Return when the oldest period began, or None if the ledger is empty."""
        (first,) = self._execute("SELECT min(began_at) FROM instance_usage WHERE ? IN ('', owner)", (owner,)).fetchone()
        return first if first is None else float(first)

    def drop_before(self, before_s: float, limit: int) -> int:
        """Delete periods that ended before this time. Return how many were deleted."""
        return self._execute(
            "DELETE FROM instance_usage WHERE id IN (SELECT id FROM instance_usage WHERE billed_until < ? LIMIT ?)",
            (before_s, limit),
        ).rowcount


# Selects the periods that end after `since_s`. The column `seconds` has the part of each period after `since_s`. Each half of the
# query uses an index.
_SECONDS = (
    "SELECT *, max(0.0, :now_s - max(began_at, :since_s)) AS seconds FROM instance_usage "
    "WHERE billed_until IS NULL AND :since_s < :now_s "
    "UNION ALL "
    "SELECT *, billed_until - max(began_at, :since_s) AS seconds FROM instance_usage WHERE billed_until > :since_s"
)


def _stack(instance: Instance) -> str:
    tags = instance.details.get("Tags", ())
    return next((str(tag["Value"]) for tag in tags if tag["Key"] == STACK_TAG), "")


def _market(instance: Instance) -> str:
    return "spot" if instance.details.get("InstanceLifecycle") == "spot" else "on-demand"
