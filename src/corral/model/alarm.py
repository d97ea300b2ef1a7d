"""CloudWatch alarms: states, criteria, evaluations, history items and requests to scaling policies."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.model.principal import ROOT


class AlarmState(StrEnum):
    OK = "OK"
    ALARM = "ALARM"
    INSUFFICIENT_DATA = "INSUFFICIENT_DATA"


class MissingData(StrEnum):
    """How to treat a window without data (TreatMissingData). A window is one period that the alarm evaluates."""

    BREACHING = "breaching"
    NOT_BREACHING = "notBreaching"
    IGNORE = "ignore"
    MISSING = "missing"


Datapoint = tuple[float, float | None]  # (start of the window in seconds, value); the value is None if the window has no data


class Criteria(Struct, frozen=True):
    """The alarm is in state ALARM if at least `to_alarm` of the last `periods` windows breach the threshold ("M out of N")."""

    comparison: str  # a ComparisonOperator of CloudWatch, such as GreaterThanThreshold
    threshold: float
    periods: int  # N
    to_alarm: int  # M
    missing: MissingData = MissingData.MISSING


class AlarmEvaluation(Struct, frozen=True):
    """The state that an alarm should have, and the datapoints from which this state was computed."""

    state: AlarmState | None  # None: the state does not change
    points: tuple[tuple[float, float], ...] = ()  # the evaluated datapoints, oldest first
    filled: int = 0  # number of windows without data that got a value by the rule of `MissingData`
    deciding: tuple[Datapoint, ...] = ()  # the newest windows that suffice for the state, newest first


class Suppression(Struct, frozen=True):
    """Why the actions of a composite alarm are suppressed, and until when. If `by` is empty, they are not suppressed."""

    by: str = ""  # "Alarm", "WaitPeriod", "ExtensionPeriod"
    until_s: float | None = None  # None: until the state of the suppressor changes


METRIC, COMPOSITE = "MetricAlarm", "CompositeAlarm"


class StoredConfig:
    """The stored parameters of PutMetricAlarm or PutCompositeAlarm, and what is parsed from them.

    An alarm has the same object until its configuration changes. So a configuration is parsed once, and not in each evaluation.
    """

    __slots__ = ("params", "parsed", "text", "timed")

    def __init__(self, text: str) -> None:
        self.text = text  # JSON
        self.params: dict[str, Any] = json.loads(text)
        self.parsed: Any = (
            None  # metric alarms: an AlarmConfig (`services/cloudwatch/alarm_config.py`); composite alarms: an AlarmRule
        )
        self.timed: Any = None  # alarms for scale-ins: the seconds that all windows cover together, and the AlarmConfig for them

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredConfig) and self.text == other.text

    __hash__ = None  # type: ignore[assignment]


class Alarm(Struct, frozen=True):
    """A row of the table `alarm`."""

    id: int
    region: str
    name: str
    kind: str  # METRIC or COMPOSITE
    config: StoredConfig
    created_s: float
    configured_s: float
    actions_enabled: bool = True
    state: AlarmState = AlarmState.INSUFFICIENT_DATA
    reason: str = "Unchecked: Initial alarm creation"
    reason_data: str = ""
    updated_s: float = 0.0  # when the state or its reason was last written
    transitioned_s: float = 0.0
    acted_state: AlarmState = AlarmState.INSUFFICIENT_DATA  # composite alarms: the state whose actions ran last
    suppression: Suppression = Suppression()
    owner: str = ROOT

    def but(self, **changes: Any) -> Alarm:
        return replace(self, **changes)


class HistoryItem(Struct, frozen=True):
    region: str
    alarm: str
    kind: str
    at_s: float
    item: str  # ConfigurationUpdate, StateUpdate, Action
    summary: str
    data: str  # JSON


class ScalingRequest(Struct, frozen=True):
    """The current request of an alarm to a scaling policy. It stays until the alarm leaves its state."""

    policy: str  # ARN
    state: AlarmState
    period_value: float | None  # value of the newest window that has ended; scale-in of target tracking: of the highest window
    newest_value: float | None  # value of the newest second; target tracking: the average of the newest seconds; None: not known
    peak_value: float | None = None  # value of the second that breaches most in the last period; None: not known
    threshold: float = 0.0
    since_s: float = 0.0  # when the alarm entered its state
    whole: bool = True  # False if only single seconds have caused the state: the complete windows would give another state
    # Target tracking: the start of the time that the value covers. None if the newest value is always up to date, as the values of
    # Corral's own metrics are.
    measured_s: float | None = None


class Progress(Struct, frozen=True):
    """What a scaling policy has done with a request.

    A policy is applied once in each interval of a minute. Within the interval, a new value changes the adjustment of the interval,
    and does not add to it. So `out_base` and `in_base` are capacities at the beginning of the interval.
    """

    since_s: float | None = None  # `since_s` of the request; None if the request is new
    at_s: float | None = None  # the beginning of the interval; None if the policy was not applied yet
    out_base: int = 0  # the capacity that a scale-out is added to
    in_base: int = 0  # the capacity that a scale-in is subtracted from
    told: str | None = None  # what the alarm's history says about the request: an error, empty for a success, None: nothing yet
    noted: str = ""  # the code of the last scaling activity that says why nothing was done
