"""SQL of scaling requests, of the alarms of scaling policies, and of the activities of Application Auto Scaling.

A row of `scaling_request` is the current request of an alarm to a scaling policy. The target of a policy is the Auto Scaling group
or the ECS service that the policy scales.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from corral.core.database import Database
from corral.model.alarm import AlarmState, Progress, ScalingRequest

_COLUMNS = "policy, state, period_value, newest_value, peak_value, threshold, since_s, whole, measured_s"
_ENCODER = msgspec.json.Encoder()
NUMBER_MAX = 2**63 - 1  # above the number of every activity
_GROUP, _RESOURCE, _NAME = ":autoScalingGroupName/", ":resource/", ":policyName/"


class ScalingRequests:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.execute

    def put(self, alarm: str, requests: Sequence[ScalingRequest], asked_s: float) -> set[tuple[str, str]]:
        """Replace all requests of this alarm. Return the region and the target of each policy that has or had a request.

        A new request keeps the progress of the old request to the same policy: what the policy has done (`Progress`). The
        reconciler `scaling`, which applies policies, ignores the progress if the alarm has entered its state again.
        """
        sql = "DELETE FROM scaling_request WHERE alarm = ? RETURNING policy, region, target, progress"
        rows = self._execute(sql, (alarm,)).fetchall()
        targets = {(region, target) for _, region, target, _ in rows}
        known = {policy: progress for policy, _, _, progress in rows}
        for each in requests:
            region, target = target_of_policy(each.policy)
            targets.add((region, target))
            values = (each.period_value, each.newest_value, each.peak_value, each.threshold, each.since_s, each.whole)
            self._execute(
                "INSERT INTO scaling_request VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    each.policy, alarm, region, target, each.state.value, *values, each.measured_s, asked_s,
                    known.get(each.policy, "{}"),
                ),
            )  # fmt: skip
        return targets

    def of_target(self, region: str, target: str) -> list[tuple[str, ScalingRequest, Progress]]:
        """The requests to the policies of a target, with the ARNs of their alarms. Requests of the same policy are adjacent."""
        rows = self._execute(
            f"SELECT alarm, progress, {_COLUMNS} FROM scaling_request WHERE region = ? AND target = ? ORDER BY policy, alarm",
            (region, target),
        )
        return [(alarm, _request(*values), msgspec.json.decode(progress, type=Progress)) for alarm, progress, *values in rows]

    def set_progress(self, alarm: str, policy: str, progress: Progress) -> None:
        sql = "UPDATE scaling_request SET progress = ? WHERE policy = ? AND alarm = ?"
        self._execute(sql, (_ENCODER.encode(progress).decode(), policy, alarm))

    def set_policies(self, alarm: str, policies: Iterable[str]) -> None:
        """Replace the policies that the actions of an alarm name."""
        self._execute("DELETE FROM policy_alarm WHERE alarm = ?", (alarm,))
        self._database.executemany("INSERT INTO policy_alarm VALUES (?, ?)", [(policy, alarm) for policy in policies])

    def alarms_of(self, policy: str) -> list[str]:
        return [arn for (arn,) in self._execute("SELECT alarm FROM policy_alarm WHERE policy = ? ORDER BY alarm", (policy,))]

    # Activities of Application Auto Scaling

    def put_activity(self, region: str, activity: dict[str, Any], *, is_scaled: bool = True) -> None:
        """Add an activity, or replace the document of an existing one."""
        document = _ENCODER.encode(activity).decode()
        self._execute(
            "INSERT INTO target_activity VALUES (NULL, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET document = excluded.document",
            (activity["ActivityId"], region, activity["ResourceId"], activity["StartTime"], is_scaled, document),
        )

    def activities(
        self,
        region: str,
        resource: str | None,
        *,
        since_s: float,
        before: int | None = None,
        not_scaled: bool = False,
        limit: int = -1,
    ) -> list[tuple[int, dict[str, Any]]]:
        """The numbers and documents of activities, newest first. A resource of None means all resources of the region.

        With `not_scaled`, activities that only say why nothing was done are included.
        """
        # "+" disables an index on the column. Then the rows are read in the order of their numbers.
        place = ("region = ? AND resource = ?", (region, resource)) if resource is not None else ("+region = ?", (region,))
        rows = self._execute(
            f"SELECT number, document FROM target_activity WHERE {place[0]} AND +started_at >= ? AND number < ? "
            "AND is_scaled >= ? ORDER BY number DESC LIMIT ?",
            (*place[1], since_s, before if before is not None else NUMBER_MAX, not not_scaled, limit),
        )
        return [(number, msgspec.json.decode(document)) for number, document in rows]

    def drop_activities(self, before_s: float, limit: int) -> int:
        """Delete activities that began before this time. Return how many were deleted."""
        sql = "DELETE FROM target_activity WHERE number IN (SELECT number FROM target_activity WHERE started_at < ? LIMIT ?)"
        return self._execute(sql, (before_s, limit)).rowcount

    def oldest_activity_s(self) -> float | None:
        found: float | None = self._execute("SELECT min(started_at) FROM target_activity").fetchone()[0]
        return found


def target_of_policy(arn: str) -> tuple[str, str]:
    """Return the region and the target in the ARN of a scaling policy.

    The target of a policy of an Auto Scaling group is the name of the group. The target of a policy of Application Auto Scaling is
    NAMESPACE:RESOURCE, for example ecs:service/CLUSTER/SERVICE. The name of a group has no colon, so the two kinds cannot be
    confused. The target is empty if the ARN has neither form.
    """
    region = arn.split(":", 4)[3] if arn.count(":") >= 4 else ""
    if _RESOURCE in arn:
        namespace, _, resource = arn.partition(_RESOURCE)[2].partition(_NAME)[0].partition("/")
        return region, f"{namespace}:{resource}" if resource else ""
    return region, arn.partition(_GROUP)[2].partition(_NAME)[0]


def _request(policy: str, state: str, *values: Any) -> ScalingRequest:
    period, newest, peak, threshold, since_s, whole, measured_s = values
    return ScalingRequest(policy, AlarmState(state), period, newest, peak, threshold, since_s, bool(whole), measured_s)
