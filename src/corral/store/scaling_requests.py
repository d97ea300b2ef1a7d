"""SQL of scaling requests. A row is the last request of an alarm to a scaling policy."""

from __future__ import annotations

from collections.abc import Sequence

from corral.database import Database
from corral.model.alarm import AlarmState, ScalingRequest


class ScalingRequests:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.execute

    def put(self, alarm: str, requests: Sequence[ScalingRequest], asked_s: float) -> None:
        """Replace all requests of this alarm."""
        self._execute("DELETE FROM scaling_request WHERE alarm = ?", (alarm,))
        self._database.executemany(
            "INSERT INTO scaling_request VALUES (?, ?, ?, ?, ?, ?)",
            [(each.policy, alarm, each.state.value, each.period_value, each.newest_value, asked_s) for each in requests],
        )

    def of_policy(self, policy: str) -> dict[str, ScalingRequest]:
        """The requests to a policy, by alarm ARN."""
        rows = self._execute(
            "SELECT alarm, state, period_value, newest_value FROM scaling_request WHERE policy = ? ORDER BY alarm", (policy,)
        )
        return {alarm: ScalingRequest(policy, AlarmState(state), period, newest) for alarm, state, period, newest in rows}
