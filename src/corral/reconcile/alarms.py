"""Alarms are judged when a datapoint arrives for them or one of their windows ends; nothing polls.

An alarm sleeps while its windows hold nothing. What arrives for it wakes it at the end of the window that it lies in, and
then it is looked at at the end of every window until all of them are empty again.

Fast out, slow in. An alarm on metrics that Corral makes itself, once a second, is judged on the newest second too. It goes to
ALARM as soon as that or its period breaches; it returns when its period does not, and no second within it did. An alarm on other
metrics may go to ALARM before a window ends (`_spoken_early`); it returns at the end of one. `--alarm-timing aws` always waits for
the ends of windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from corral.core import Tx
from corral.decide.alarm import breaches, conclusive, evaluation_range, is_level, judge, samples_needed
from corral.decide.metric_math import Series
from corral.decide.statistics import value_of
from corral.errors import ApiError
from corral.model.alarm import COMPOSITE, Alarm, AlarmState, Datapoint, Verdict
from corral.model.metric import Summary
from corral.services.cloudwatch.acting import request_scaling, request_scaling_again
from corral.services.cloudwatch.arrivals import may_speak_early
from corral.services.cloudwatch.composites import look_at_composite
from corral.services.cloudwatch.computing import compute
from corral.services.cloudwatch.queries import MetricStat, Query
from corral.services.cloudwatch.reading import newest_second, values
from corral.services.cloudwatch.reasons import newest_second_reason, reason_data, reason_of
from corral.services.cloudwatch.transitions import set_state
from corral.services.cloudwatch.watched import Watched, config_of, watched_by
from corral.telemetry import MetricStore

NEWEST_MAX_AGE_S = 10  # an idle GPU speaks every five seconds
SECONDS_BACK_MAX_S = 3 * 3600  # seconds are kept so long
SPOKE = {
    "": "",
    "period": " Judged on the period of {period_s} seconds.",
    "newestSecond": " Judged on the newest second.",
    "open": " Judged before the end of the window.",
}


def look_at_alarm(tx: Tx[MetricStore], name: str) -> None:
    alarm = tx.store.alarms.by_id(int(name))
    if alarm is None:
        return
    if alarm.kind == COMPOSITE:
        look_at_composite(tx, alarm)
        return
    watched = watched_by(alarm)
    end_s, warm_s = watched.last_end_s(tx.now_s), alarm.created_s + watched.warm_up_s
    if watched.warm_up_whole and tx.now_s < warm_s:
        tx.store.alarms.wake(alarm.id, warm_s)
        return
    if tx.settings.alarm_timing == "fast" and tx.now_s >= warm_s:  # first: or an alarm would calm down and go off at once
        if watched.own:
            alarm = _judge_newest_second(tx, alarm, watched)
        elif may_speak_early(watched):
            alarm = _judge_open_window(tx, alarm, watched, end_s + watched.step_s)
    if tx.store.alarms.judged_s(alarm.id) < end_s:
        _judge_windows(tx, alarm, watched, end_s)


def _judge_windows(tx: Tx[MetricStore], alarm: Alarm, watched: Watched, end_s: int) -> None:
    """Judge the whole windows that end there."""
    windows = _windows(tx, watched, end_s)
    verdict = judge(windows, watched.criteria)
    fast = watched.own and tx.settings.alarm_timing == "fast"
    held = alarm.state is AlarmState.ALARM and verdict.state is not AlarmState.ALARM and _holds(tx, watched, end_s)
    if verdict.state is not alarm.state and not held and _believed(tx, alarm, watched, verdict, end_s):
        alarm = _move(tx, alarm, watched, verdict, "period" if fast else "")
    tx.store.alarms.set_judged(alarm.id, end_s)
    _wake_again(tx, alarm, watched, windows, end_s)
    request_scaling(tx, alarm, windows[-1][1], _newest(tx, watched)[1] if fast else None)


def _believed(tx: Tx[MetricStore], alarm: Alarm, watched: Watched, verdict: Verdict, end_s: int) -> bool:
    """Whether a verdict may change the alarm at all."""
    if verdict.state is None:
        return False
    warm_s = alarm.created_s + watched.warm_up_s
    if verdict.filled and tx.now_s < warm_s:
        tx.store.alarms.wake(alarm.id, warm_s)
        return False
    series = watched.series
    if watched.few_samples != "ignore" or series is None or series.statistic.kind != "p":
        return True
    back_s = watched.period_s * watched.criteria.periods
    known = _summary(tx, series, end_s - back_s, end_s)
    return known is not None and known.count >= samples_needed(series.statistic.high)


def _wake_again(tx: Tx[MetricStore], alarm: Alarm, watched: Watched, windows: Sequence[Datapoint], end_s: int) -> None:
    """At the next window's end while there is anything to judge; what came just now, or for the future, lies ahead."""
    if any(value is not None for _, value in windows):
        tx.store.alarms.wake(alarm.id, end_s + watched.step_s)
        return
    for metric in watched.metrics:
        newest = tx.store.newest(metric, since_s=end_s, now_s=tx.now_s)
        if newest is not None:
            tx.store.alarms.wake(alarm.id, watched.last_end_s(newest[0]) + watched.step_s)


def _judge_newest_second(tx: Tx[MetricStore], alarm: Alarm, watched: Watched) -> Alarm:
    at_s, value = _newest(tx, watched)
    if value is None:
        return alarm
    if alarm.state is not AlarmState.ALARM and breaches(value, watched.criteria):
        verdict = Verdict(AlarmState.ALARM, ((at_s, value),))
        alarm = _move(tx, alarm, watched, verdict, "newestSecond", newest_second_reason(at_s, value, watched.criteria))
    if alarm.state is AlarmState.ALARM:
        request_scaling_again(tx, alarm, value)
    return alarm


def _judge_open_window(tx: Tx[MetricStore], alarm: Alarm, watched: Watched, end_s: int) -> Alarm:
    verdict = _spoken_early(tx, watched, end_s) if alarm.state is not AlarmState.ALARM else None
    if verdict is None:
        return alarm
    alarm = _move(tx, alarm, watched, verdict, "open")
    request_scaling(tx, alarm, verdict.points[-1][1] if verdict.points else None, None)
    return alarm


def _spoken_early(tx: Tx[MetricStore], watched: Watched, end_s: int) -> Verdict | None:
    """The alarm of a window that has not ended yet; None: it is too early to say.

    Some windows will breach whatever else comes. An average may still change; it speaks if it breaches together with the
    window before it too, so that the first datapoint of a busy minute does not speak for all of it.
    """
    assert watched.series is not None
    statistic, period_s, criteria = watched.series.statistic, watched.period_s, watched.criteria
    newest = _summary(tx, watched.series, end_s - period_s, end_s)
    if newest is None or not _breaches(newest, watched):
        return None
    if not conclusive(statistic.kind, criteria, newest.minimum):
        longer = _summary(tx, watched.series, end_s - 2 * period_s, end_s)
        if not is_level(statistic.kind) or longer is None or not _breaches(longer, watched):
            return None
    verdict = judge(_windows(tx, watched, end_s), criteria)
    return verdict if verdict.state is AlarmState.ALARM else None


def _summary(tx: Tx[MetricStore], series: MetricStat, start_s: int, end_s: int) -> Summary | None:
    """All samples of that time together."""
    found = tx.store.read(
        series.metric, start_s=start_s, end_s=end_s, period_s=end_s - start_s, now_s=tx.now_s, unit=series.unit,
        values=series.statistic.needs_values,
    )  # fmt: skip
    return found.get(start_s)


def _breaches(summary: Summary, watched: Watched) -> bool:
    assert watched.series is not None
    value = value_of(summary, watched.series.statistic)
    return value is not None and breaches(value, watched.criteria)


def _holds(tx: Tx[MetricStore], watched: Watched, end_s: int) -> bool:
    """Whether an alarm stays in ALARM though its whole windows would let it go."""
    if tx.settings.alarm_timing != "fast":
        return False
    if watched.own:
        return _breached_lately(tx, watched)
    return may_speak_early(watched) and _spoken_early(tx, watched, end_s + watched.step_s) is not None


def _move(tx: Tx[MetricStore], alarm: Alarm, watched: Watched, verdict: Verdict, window: str, reason: str | None = None) -> Alarm:
    """`window`: which one spoke; nothing where there is no choice."""
    assert verdict.state is not None
    series = watched.series
    data = reason_data(
        verdict,
        watched.criteria,
        now_s=tx.now_s,
        period_s=watched.period_s,
        statistic=series.said if series else None,
        unit=series.unit if series else None,
        **({"window": window} if window else {}),
    )
    reason = reason or reason_of(verdict, watched.criteria, counted="DatapointsToAlarm" in config_of(alarm.config))
    spoke = SPOKE[window].format(period_s=watched.period_s)
    return set_state(tx, alarm, verdict.state, reason + spoke, data)


# What the windows hold


def _windows(tx: Tx[MetricStore], watched: Watched, end_s: int) -> list[Datapoint]:
    """The evaluation range, oldest first."""
    period_s, many = watched.period_s, evaluation_range(watched.criteria.periods)
    start_s = end_s - many * period_s
    found = _values(tx, watched, start_s, end_s, period_s)
    return [(float(at_s), found.get(at_s)) for at_s in range(start_s, end_s, period_s)]


def _values(tx: Tx[MetricStore], watched: Watched, start_s: int, end_s: int, period_s: int) -> Mapping[int, float]:
    if watched.series is not None:
        metric, statistic, unit = watched.series.metric, watched.series.statistic, watched.series.unit
        return values(tx, metric, statistic, start_s=start_s, end_s=end_s, period_s=period_s, unit=unit)
    try:
        found = compute(tx, watched.metrics[0].region, [_by(query, period_s) for query in watched.queries], start_s, end_s)
    except ApiError:  # it was computed when the alarm was made; on some data it cannot be
        return {}
    result = found.results[watched.returned]
    return result.values if isinstance(result, Series) else {}


def _by(query: Query, period_s: int) -> Query:
    """The same query for another period."""
    what = replace(query.what, period_s=period_s) if isinstance(query.what, MetricStat) else query.what
    return replace(query, what=what, period_s=None if query.period_s is None else period_s)


def _newest(tx: Tx[MetricStore], watched: Watched) -> tuple[float, float | None]:
    """The newest second of metrics that come once a second."""
    since_s = int(tx.now_s) - NEWEST_MAX_AGE_S
    if watched.series is not None:
        metric, statistic, unit = watched.series.metric, watched.series.statistic, watched.series.unit
        return newest_second(tx, metric, statistic, since_s=since_s, unit=unit) or (0.0, None)
    found = _values(tx, watched, since_s, int(tx.now_s) + 1, 1)
    return (max(found), found[max(found)]) if found else (0.0, None)


def _breached_lately(tx: Tx[MetricStore], watched: Watched) -> bool:
    """Whether any second of the last period did."""
    now_s = int(tx.now_s) + 1
    found = _values(tx, watched, now_s - min(watched.period_s, SECONDS_BACK_MAX_S), now_s, 1)
    return any(breaches(value, watched.criteria) for value in found.values())
