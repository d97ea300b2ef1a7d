"""SQL of scaling requests and of the alarms of scaling policies. A row is the last request of an alarm to a scaling policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from corral.database import Database
from corral.model.alarm import AlarmState, Progress, ScalingRequest

_COLUMNS = "policy, state, period_value, newest_value, peak_value, threshold, since_s, whole"
_ENCODER = msgspec.json.Encoder()
_PROGRESS = msgspec.json.Decoder(Progress)
_GROUP = ":autoScalingGroupName/"


class ScalingRequests:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.execute

    def put(self, alarm: str, requests: Sequence[ScalingRequest], asked_s: float) -> set[tuple[str, str]]:
        """Replace all requests of this alarm. Return the region and the group of each policy with a new or a former request.

        The progress of a policy is kept. It is ignored if the alarm has entered its state again.
        """
        sql = "DELETE FROM scaling_request WHERE alarm = ? RETURNING policy, region, name, progress"
        rows = self._execute(sql, (alarm,)).fetchall()
        groups = {(region, name) for _, region, name, _ in rows}
        known = {policy: progress for policy, _, _, progress in rows}
        for each in requests:
            region, name = group_of_policy(each.policy)
            groups.add((region, name))
            values = (each.period_value, each.newest_value, each.peak_value, each.threshold, each.since_s, each.whole)
            self._execute(
                "INSERT INTO scaling_request VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (each.policy, alarm, region, name, each.state.value, *values, asked_s, known.get(each.policy, "{}")),
            )
        return groups

    def of_policy(self, policy: str) -> dict[str, ScalingRequest]:
        """The requests to a policy, by alarm ARN."""
        rows = self._execute(f"SELECT alarm, {_COLUMNS} FROM scaling_request WHERE policy = ? ORDER BY alarm", (policy,))
        return {alarm: _request(*values) for alarm, *values in rows}

    def of_group(self, region: str, name: str) -> list[tuple[str, ScalingRequest, Progress]]:
        """The requests to the policies of a group, with the ARNs of their alarms. Requests of the same policy are adjacent."""
        rows = self._execute(
            f"SELECT alarm, progress, {_COLUMNS} FROM scaling_request WHERE region = ? AND name = ? ORDER BY policy, alarm",
            (region, name),
        )
        return [(alarm, _request(*values), _PROGRESS.decode(progress)) for alarm, progress, *values in rows]

    def set_progress(self, alarm: str, policy: str, progress: Progress) -> None:
        sql = "UPDATE scaling_request SET progress = ? WHERE policy = ? AND alarm = ?"
        self._execute(sql, (_ENCODER.encode(progress).decode(), policy, alarm))

    def set_policies(self, alarm: str, policies: Iterable[str]) -> None:
        """Replace the policies that the actions of an alarm name."""
        self._execute("DELETE FROM policy_alarm WHERE alarm = ?", (alarm,))
        self._database.executemany("INSERT INTO policy_alarm VALUES (?, ?)", [(policy, alarm) for policy in policies])

    def alarms_of(self, policy: str) -> list[str]:
        """The ARNs of the alarms whose actions name a policy."""
        return [arn for (arn,) in self._execute("SELECT alarm FROM policy_alarm WHERE policy = ? ORDER BY alarm", (policy,))]


def group_of_policy(arn: str) -> tuple[str, str]:
    """Return the region and the group in the ARN of a scaling policy. The group is empty if the policy belongs to no group."""
    region = arn.split(":", 4)[3] if arn.count(":") >= 4 else ""
    return region, arn.partition(_GROUP)[2].partition(":policyName/")[0]


def _request(policy: str, state: str, *values: Any) -> ScalingRequest:
    period, newest, peak, threshold, since_s, whole = values
    return ScalingRequest(policy, AlarmState(state), period, newest, peak, threshold, since_s, bool(whole))
