"""An alarm: the states it can be in, and what it is judged by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class AlarmState(StrEnum):
    OK = "OK"
    ALARM = "ALARM"
    INSUFFICIENT_DATA = "INSUFFICIENT_DATA"


class Missing(StrEnum):
    """What a window without data counts as."""

    BREACHING = "breaching"
    NOT_BREACHING = "notBreaching"
    IGNORE = "ignore"
    MISSING = "missing"


Datapoint = tuple[float, float | None]  # where its window begins, in seconds; its value, or None where there is no data


@dataclass(frozen=True, slots=True)
class Criteria:
    """M of N: so many of the last `periods` windows must breach."""

    comparison: str  # as CloudWatch names it: GreaterThanThreshold...
    threshold: float
    periods: int  # N
    to_alarm: int  # M
    missing: Missing = Missing.MISSING


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an alarm should be, and what said so."""

    state: AlarmState | None  # None: as it is
    points: tuple[tuple[float, float], ...] = ()  # the datapoints that were counted, oldest first
    filled: int = 0  # windows without data that had to be counted too


@dataclass(frozen=True, slots=True)
class Suppression:
    """Why a composite alarm does not act now, and until when. With neither: it acts."""

    by: str = ""  # "Alarm", "WaitPeriod", "ExtensionPeriod"
    until_s: float | None = None  # None: until the suppressor speaks


METRIC, COMPOSITE = "MetricAlarm", "CompositeAlarm"


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm as its row is."""

    id: int
    region: str
    name: str
    kind: str  # METRIC or COMPOSITE
    config: str  # JSON, as PutMetricAlarm or PutCompositeAlarm gave it
    created_s: float
    configured_s: float
    actions_enabled: bool = True
    state: AlarmState = AlarmState.INSUFFICIENT_DATA
    reason: str = "Unchecked: Initial alarm creation"
    reason_data: str = ""
    updated_s: float = 0.0  # when the state, or what is said of it, was last written
    transitioned_s: float = 0.0
    acted_state: AlarmState = AlarmState.INSUFFICIENT_DATA  # the state whose actions a composite alarm took last
    suppression: Suppression = Suppression()

    def but(self, **changes: Any) -> Alarm:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class HistoryItem:
    region: str
    alarm: str
    kind: str
    at_s: float
    item: str  # ConfigurationUpdate, StateUpdate, Action
    summary: str
    data: str  # JSON


@dataclass(frozen=True, slots=True)
class ScalingRequest:
    """What an alarm asks of a scaling policy now. The policy takes whichever value asks for more capacity."""

    policy: str  # ARN
    state: AlarmState
    period_value: float | None  # of the newest whole window
    newest_value: float | None  # of the newest second, where Corral makes the metric itself
