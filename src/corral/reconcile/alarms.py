"""The reconciler `alarm` evaluates metric alarms and composite alarms.

A window is one period of a metric alarm. An open window has not ended. A whole window has ended. A metric alarm is evaluated when a
datapoint arrives and when a window ends. A new datapoint schedules an evaluation at the end of its window. From then on, the alarm
is evaluated at the end of every window, until all its windows are empty.

With `--alarm-timing aws`, every metric alarm changes its state only at the end of a window. With the timing `fast`, there are three
cases:

- A target tracking policy has two alarms. If their statistics are averages or percentiles, the alarm for a scale-out enters ALARM
  as soon as the average of the last seconds is above the target (`_evaluate_recent`), and the alarm for a scale-in changes its
  state only at the end of a window. The windows of the alarm for a scale-in together cover the time in the setting
  `target_tracking_in_s` (`timed_config`). If datapoints have a resolution of a minute, the alarm for a scale-out waits for the end
  of the window, too.
- Another alarm on metrics that Corral itself publishes is also evaluated on the newest second with data. The alarm enters ALARM as
  soon as this second or the whole windows breach the threshold. The alarm leaves ALARM if neither the whole windows nor any second
  of the last period breach the threshold. This is checked at the end of a window, and also when a period has passed since the last
  second that breached. The windows of this check end at that time (`_evaluate_after_breach`).
- Another alarm on other metrics can enter ALARM while a window is open (`_early_evaluation`). It leaves ALARM at the end of a
  window.

A datapoint has a resolution of a second or of a minute. Datapoints of a minute may come from several publishers: the first of them
says little about the average of the minute. So the average of an open window counts only if the last datapoints of all metrics have
the resolution of a second (`_is_high_resolution`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from statistics import fmean

from msgspec.structs import replace

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.metrics.alarm_evaluation import (
    breaches,
    evaluate_windows,
    evaluation_range,
    is_conclusive,
    is_level,
    samples_needed,
)
from corral.decide.metrics.math import Series
from corral.decide.metrics.statistics import value_of
from corral.model.alarm import COMPOSITE, Alarm, AlarmEvaluation, AlarmState, Datapoint
from corral.model.durations import MINUTE_S
from corral.model.metric import RETENTION_S, Summary
from corral.services.cloudwatch.alarm_actions import SCALING, last_period_value, peak_of, request_scaling, update_newest_value
from corral.services.cloudwatch.alarm_config import TRACKS_IN, TRACKS_OUT, AlarmConfig, timed_config
from corral.services.cloudwatch.alarm_state import newest_second_reason, reason_data, reason_of, set_state
from corral.services.cloudwatch.composite_alarms import evaluate_composite
from corral.services.cloudwatch.metric_queries import MetricDataQuery, MetricStat, compute, newest_second, series_values
from corral.telemetry import MetricStore

NEWEST_MAX_AGE_S = 10  # the newest second is not evaluated if it is older; an idle GPU has a sample only every five seconds
WINDOW_TEXTS = {  # a sentence at the end of StateReason: what was evaluated; empty if the alarm is evaluated only on whole windows
    "": "",
    "period": " Evaluated on the period of {period_s} seconds.",
    "newestSecond": " Evaluated on the newest second.",
    "open": " Evaluated before the end of the window.",
    "recent": " Evaluated on the last seconds.",
}


def evaluate_alarm(tx: Tx[MetricStore], name: str) -> None:
    """Evaluate a metric alarm or a composite alarm. `name` is its numeric id."""
    alarm = tx.store.alarms.by_id(int(name))
    if alarm is None:
        return
    if alarm.kind == COMPOSITE:
        evaluate_composite(tx, alarm)
        return
    config = timed_config(alarm, tx.settings)
    end_s, warm_s = config.last_end_s(tx.now_s), alarm.created_s + config.warm_up_s
    if config.warm_up_whole and tx.now_s < warm_s:
        tx.store.alarms.wake(alarm.id, warm_s)
        return
    # The whole windows are evaluated last. In the other order, an alarm could return to OK and enter ALARM again at once.
    if tx.settings.alarm_timing == "fast" and tx.now_s >= warm_s:
        if config.tracks and config.is_level:
            alarm = _evaluate_recent(tx, alarm, config) if _tracks_seconds(tx, config) else alarm
        elif _is_own(tx, config):
            alarm = _evaluate_newest_second(tx, alarm, config)
        elif config.may_alarm_early:
            alarm = _evaluate_open_window(tx, alarm, config, end_s + config.step_s)
    is_quiet = tx.now_s >= tx.store.alarms.quiet_from_s(alarm.id)
    if tx.store.alarms.evaluated_s(alarm.id) < end_s:
        alarm = _evaluate_whole_windows(tx, alarm, config, end_s)
    if is_quiet and alarm.state is AlarmState.ALARM:
        _evaluate_after_breach(tx, alarm, config)


def _is_high_resolution(tx: Tx[MetricStore], config: AlarmConfig) -> bool:
    """Whether the last datapoints of all metrics of the alarm have the resolution of a second."""
    return _is_own(tx, config) or tx.store.alarms.high_resolution.issuperset(config.metrics)


def _tracks_seconds(tx: Tx[MetricStore], config: AlarmConfig) -> bool:
    """Whether the last seconds of the metric decide about a scale-out of a target tracking policy."""
    return config.tracks == TRACKS_OUT and _is_high_resolution(tx, config)


def _is_own(tx: Tx[MetricStore], config: AlarmConfig) -> bool:
    """Whether Corral itself publishes all metrics of the alarm, with the resolution of a second.

    Corral does not write to a series while a collector, such as the CloudWatch agent in a task, writes to it.
    """
    return config.own and not tx.store.is_collected(config.metrics, tx.now_s)


def _evaluate_whole_windows(tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig, end_s: int) -> Alarm:
    windows = _windows(tx, config, end_s)
    evaluation = evaluate_windows(windows, config.criteria)
    tracks = config.tracks if config.is_level else ""
    fast = _is_fast(tx, config)
    leaves_alarm = alarm.state is AlarmState.ALARM and evaluation.state is not AlarmState.ALARM
    held = leaves_alarm and _is_held(tx, config, end_s)
    if evaluation.state is not alarm.state and not held and _is_accepted(tx, alarm, config, evaluation, end_s):
        alarm = _change_state(tx, alarm, config, evaluation, "period" if fast else "")
    tx.store.alarms.set_evaluated(alarm.id, end_s)
    _schedule_next(tx, alarm, config, windows, end_s)
    whole = evaluation.state in (alarm.state, None)
    if tracks == TRACKS_IN:
        request_scaling(tx, alarm, _low_value(tx, config, windows), None, whole=whole, measured_s=windows[-1][0])
        return alarm
    if tracks:
        seconds = _recent(tx, config) if tx.settings.alarm_timing == "fast" and _tracks_seconds(tx, config) else {}
        newest, measured_s = (fmean(seconds.values()), _measured_s(tx, config, seconds)) if seconds else (None, windows[-1][0])
        request_scaling(tx, alarm, windows[-1][1], newest, whole=whole, measured_s=measured_s)
        return alarm
    newest = _newest(tx, config)[1] if fast else None
    peak = _peak(tx, alarm, config) if fast and alarm.state is AlarmState.ALARM else None
    request_scaling(tx, alarm, _period_value(tx, alarm, windows), newest, peak, whole=whole)
    if fast and alarm.state is AlarmState.ALARM:
        _schedule_after_breach(tx, alarm, config)
    return alarm


def _schedule_after_breach(tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig) -> bool:
    """Schedule an evaluation for the time when enough periods have passed since the last second that breached.

    If M of N periods must breach, N - M + 1 periods without a breach are enough. Return False if no second of them breaches.
    """
    quiet_s = config.period_s * (config.criteria.periods - config.criteria.to_alarm + 1)
    if not config.slides or quiet_s > RETENTION_S[1]:
        return True
    breaching = [at_s for at_s, value in _seconds(tx, config, quiet_s + 1).items() if breaches(value, config.criteria)]
    tx.store.alarms.set_quiet_from(alarm.id, max(breaching) + 1 + quiet_s if breaching else None)
    return bool(breaching)


def _evaluate_after_breach(tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig) -> None:
    """Evaluate the windows that end now, unless a second has breached since this evaluation was scheduled.

    If the newest second with data breaches, the metric still has this value, because Corral publishes a value when it changes.
    """
    tx.store.alarms.wake(alarm.id, config.last_end_s(tx.now_s) + config.step_s)
    newest_s = _newest_second(tx, config)
    newest = _values(tx, config, newest_s, newest_s + 1, 1).get(newest_s) if newest_s is not None else None
    is_over = newest is None or not breaches(newest, config.criteria)
    if not _schedule_after_breach(tx, alarm, config) and is_over:
        _evaluate_whole_windows(tx, alarm, config, int(tx.now_s))


def _is_fast(tx: Tx[MetricStore], config: AlarmConfig) -> bool:
    """Whether the alarm is evaluated on single seconds: Corral itself publishes its metrics, and it does not track a target."""
    return _is_own(tx, config) and not (config.tracks and config.is_level) and tx.settings.alarm_timing == "fast"


def _period_value(tx: Tx[MetricStore], alarm: Alarm, windows: Sequence[Datapoint]) -> float | None:
    """Return the value of the newest window with data. Without such a window, return the value of the last scaling request."""
    newest = next((value for _, value in reversed(windows) if value is not None), None)
    return newest if newest is not None else last_period_value(tx, alarm)


def _is_accepted(tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig, evaluation: AlarmEvaluation, end_s: int) -> bool:
    """Whether the evaluation may change the state of the alarm.

    The state does not change if the evaluation has no result, if a window has no data and the warm-up of a new alarm is not over,
    or if a percentile has too few samples and the alarm ignores such percentiles.
    """
    if evaluation.state is None:
        return False
    warm_s = alarm.created_s + config.warm_up_s
    if evaluation.filled and tx.now_s < warm_s:
        tx.store.alarms.wake(alarm.id, warm_s)
        return False
    series = config.series
    if config.few_samples != "ignore" or series is None or series.statistic.kind != "p":
        return True
    back_s = config.period_s * config.criteria.periods
    known = _summary(tx, series, end_s - back_s, end_s)
    return known is not None and known.count >= samples_needed(series.statistic.high)


def _schedule_next(tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig, windows: Sequence[Datapoint], end_s: int) -> None:
    """Schedule the next evaluation at the end of a window.

    If one of the evaluated windows has data, the next evaluation is at the end of the next window. Otherwise it is at the end of
    the window that contains the newest datapoint after `end_s`. Without such a datapoint, no evaluation is scheduled.
    """
    if any(value is not None for _, value in windows):
        tx.store.alarms.wake(alarm.id, config.last_end_s(end_s) + config.step_s)
        return
    for metric in config.metrics:
        newest = tx.store.newest(metric, since_s=end_s, now_s=tx.now_s)
        if newest is not None:
            tx.store.alarms.wake(alarm.id, config.last_end_s(newest[0]) + config.step_s)


def _evaluate_recent(tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig) -> Alarm:
    """Evaluate the alarm for the scale-out of a target tracking policy on the last seconds of its metric."""
    seconds = _recent(tx, config)
    if not seconds:
        return alarm
    at_s, value = max(seconds), fmean(seconds.values())
    if alarm.state is not AlarmState.ALARM and breaches(value, config.criteria):
        evaluation = AlarmEvaluation(AlarmState.ALARM, ((at_s, value),))
        reason = newest_second_reason(at_s, value, config.criteria)
        alarm = _change_state(tx, alarm, config, evaluation, "recent", reason)
    if alarm.state is not AlarmState.ALARM and breaches(seconds[at_s], config.criteria):
        # If no newer value has arrived at this time, the average is the value of the newest second.
        tx.store.alarms.wake(alarm.id, at_s + _recent_seconds(tx))
    tx.store.alarms.wake(alarm.id, config.last_end_s(tx.now_s) + config.step_s)
    if alarm.state is AlarmState.ALARM:
        update_newest_value(tx, alarm, value, _measured_s(tx, config, seconds))
    return alarm


def _evaluate_newest_second(tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig) -> Alarm:
    at_s, value = _newest(tx, config)
    if value is None:
        return alarm
    if alarm.state is not AlarmState.ALARM and breaches(value, config.criteria):
        evaluation = AlarmEvaluation(AlarmState.ALARM, ((at_s, value),))
        reason = newest_second_reason(at_s, value, config.criteria)
        alarm = _change_state(tx, alarm, config, evaluation, "newestSecond", reason)
    if alarm.state is AlarmState.ALARM:
        update_newest_value(tx, alarm, value)
    return alarm


def _evaluate_open_window(tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig, end_s: int) -> Alarm:
    evaluation = _early_evaluation(tx, config, end_s) if alarm.state is not AlarmState.ALARM else None
    if evaluation is None:
        return alarm
    alarm = _change_state(tx, alarm, config, evaluation, "open")
    request_scaling(tx, alarm, evaluation.points[-1][1] if evaluation.points else None, None)
    return alarm


def _early_evaluation(tx: Tx[MetricStore], config: AlarmConfig, end_s: int) -> AlarmEvaluation | None:
    """Return an evaluation with the state ALARM if the open window already counts as a breach. Otherwise return None.

    For the statistics of `is_conclusive`, such as a maximum above the threshold, no later datapoint can undo a breach. An average
    or a percentile can still change. So it counts only for datapoints with the resolution of a second, and it must also breach over
    two windows together: the open window and the window before it. Otherwise the first datapoint of a busy minute would decide.
    """
    assert config.series is not None
    statistic, period_s, criteria = config.series.statistic, config.period_s, config.criteria
    newest = _summary(tx, config.series, end_s - period_s, end_s)
    if newest is None or not _breaches(newest, config):
        return None
    if not is_conclusive(statistic.kind, criteria, newest.minimum):
        if not _is_high_resolution(tx, config):
            return None
        longer = _summary(tx, config.series, end_s - 2 * period_s, end_s)
        if not is_level(statistic.kind) or longer is None or not _breaches(longer, config):
            return None
    evaluation = evaluate_windows(_windows(tx, config, end_s), criteria)
    return evaluation if evaluation.state is AlarmState.ALARM else None


def _summary(tx: Tx[MetricStore], series: MetricStat, start_s: int, end_s: int) -> Summary | None:
    """Return one summary of all samples between the two times."""
    found = tx.store.read(
        series.metric, start_s=start_s, end_s=end_s, period_s=end_s - start_s, now_s=tx.now_s, unit=series.unit,
        values=series.statistic.needs_values,
    )  # fmt: skip
    return found.get(start_s)


def _breaches(summary: Summary, config: AlarmConfig) -> bool:
    assert config.series is not None
    value = value_of(summary, config.series.statistic)
    return value is not None and breaches(value, config.criteria)


def _is_held(tx: Tx[MetricStore], config: AlarmConfig, end_s: int) -> bool:
    """Whether the alarm stays in ALARM although its whole windows do not breach the threshold."""
    if tx.settings.alarm_timing != "fast":
        return False
    if config.tracks and config.is_level:
        seconds = _recent(tx, config) if _tracks_seconds(tx, config) else {}
        return bool(seconds) and breaches(fmean(seconds.values()), config.criteria)
    if _is_own(tx, config):
        return _has_recent_breach(tx, config)
    return config.may_alarm_early and _early_evaluation(tx, config, end_s + config.step_s) is not None


def _change_state(
    tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig, evaluation: AlarmEvaluation, window: str, reason: str | None = None
) -> Alarm:
    """Set the state and its reason. `window` is a key of WINDOW_TEXTS."""
    assert evaluation.state is not None
    series = config.series
    data = reason_data(
        evaluation,
        config.criteria,
        now_s=tx.now_s,
        period_s=config.period_s,
        statistic=series.stat if series else None,
        unit=series.unit if series else None,
        counts=_sample_counts(tx, series, evaluation, config.period_s) if series else {},
        **({"window": window} if window else {}),
    )
    counted = "DatapointsToAlarm" in alarm.config.params
    reason = reason or reason_of(evaluation, config.criteria, counted=counted)
    return set_state(tx, alarm, evaluation.state, reason + WINDOW_TEXTS[window].format(period_s=config.period_s), data)


def _sample_counts(tx: Tx[MetricStore], series: MetricStat, evaluation: AlarmEvaluation, period_s: int) -> dict[float, float]:
    """Return the number of samples of the windows that decided a state, by the start of the window."""
    starts = [int(at_s) for at_s, value in evaluation.deciding if value is not None]
    if not starts:
        return {}
    found = tx.store.read(
        series.metric, start_s=min(starts), end_s=max(starts) + period_s, period_s=period_s, now_s=tx.now_s, unit=series.unit
    )
    return {float(at_s): summary.count for at_s, summary in found.items()}


# Reading the values of windows and seconds


def _windows(tx: Tx[MetricStore], config: AlarmConfig, end_s: int) -> list[Datapoint]:
    """Return the windows of the evaluation range, oldest first.

    A datapoint with a resolution of a minute has the time of the beginning of its minute. So the evaluation range of an alarm with
    a shorter period also contains the minute before its windows: otherwise the alarm would not see a datapoint of the end of a
    minute.
    """
    period_s, many = config.period_s, evaluation_range(config.criteria.periods)
    if period_s < MINUTE_S and not _is_high_resolution(tx, config):
        many = max(many, config.criteria.periods + MINUTE_S // period_s)
    start_s = end_s - many * period_s
    found = _values(tx, config, start_s, end_s, period_s)
    return [(float(at_s), found.get(at_s)) for at_s in range(start_s, end_s, period_s)]


def _values(tx: Tx[MetricStore], config: AlarmConfig, start_s: int, end_s: int, period_s: int) -> Mapping[int, float]:
    if config.series is not None:
        metric, statistic, unit = config.series.metric, config.series.statistic, config.series.unit
        return series_values(tx, metric, statistic, start_s=start_s, end_s=end_s, period_s=period_s, unit=unit)
    try:
        queries = [_with_period(query, period_s) for query in config.queries]
        found = compute(tx, config.metrics[0].region, queries, start_s, end_s, rounds=False)
    except ApiError:  # PutMetricAlarm has accepted the expression, but the expression fails on this data
        return {}
    result = found.results[config.returned]
    return result.values if isinstance(result, Series) else {}


def _with_period(query: MetricDataQuery, period_s: int) -> MetricDataQuery:
    source = replace(query.source, period_s=period_s) if isinstance(query.source, MetricStat) else query.source
    return replace(query, source=source, period_s=None if query.period_s is None else period_s)


def _newest(tx: Tx[MetricStore], config: AlarmConfig) -> tuple[float, float | None]:
    """Return the newest second with data of a metric that Corral itself publishes, and the value of that second.

    The value is None if the last NEWEST_MAX_AGE_S seconds have no data.
    """
    since_s = int(tx.now_s) - NEWEST_MAX_AGE_S
    if config.series is not None:
        metric, statistic, unit = config.series.metric, config.series.statistic, config.series.unit
        return newest_second(tx, metric, statistic, since_s=since_s, unit=unit) or (0.0, None)
    found = _values(tx, config, since_s, int(tx.now_s) + 1, 1)
    return (max(found), found[max(found)]) if found else (0.0, None)


def _recent(tx: Tx[MetricStore], config: AlarmConfig) -> Mapping[int, float]:
    """Return the values of the last `target_tracking_out_s` seconds, by second. Their average decides about a scale-out.

    If these seconds have no data, return only the newest second with data, because Corral does not publish an unchanged value every
    second. Return no values if there is no data since the start of the newest whole window.
    """
    newest_s = _newest_second(tx, config)
    if newest_s is None:
        return {}
    end_s = max(newest_s, int(tx.now_s)) + 1
    start_s = end_s - _recent_seconds(tx)
    if newest_s < start_s:
        start_s, end_s = newest_s, newest_s + 1
    return _values(tx, config, start_s, end_s, 1)


def _measured_s(tx: Tx[MetricStore], config: AlarmConfig, seconds: Mapping[int, float]) -> float | None:
    """Return the start of the time that the values of `_recent` cover. Return None for Corral's own metrics.

    Corral publishes a value of its own metrics when the value changes. So the last value is always up to date.
    """
    return None if _is_own(tx, config) else float(min(seconds))


def _newest_second(tx: Tx[MetricStore], config: AlarmConfig) -> int | None:
    since_s = config.last_end_s(tx.now_s) - config.period_s
    found = [tx.store.newest(metric, since_s=since_s, now_s=tx.now_s) for metric in config.metrics]
    return max((each[0] for each in found if each is not None), default=None)


def _recent_seconds(tx: Tx[MetricStore]) -> int:
    return max(1, ceil(tx.settings.scaling.target_tracking_out_s))


def _low_value(tx: Tx[MetricStore], config: AlarmConfig, windows: Sequence[Datapoint]) -> float | None:
    """Return the value for a scale-in: the largest value of all windows. Return None if the newest window has no data.

    With the timing `fast`, the values of shorter parts of the windows are also compared.
    """
    known = [value for _, value in windows[-config.criteria.periods :] if value is not None]
    if windows[-1][1] is None:
        return None
    if tx.settings.alarm_timing != "fast":
        return max(known)
    end_s = int(windows[-1][0]) + config.period_s
    start_s, step_s = end_s - config.period_s * config.criteria.periods, _recent_seconds(tx) if config.series is not None else 1
    recent = _values(tx, config, start_s, end_s, step_s)
    return max(*known, *recent.values())


def _has_recent_breach(tx: Tx[MetricStore], config: AlarmConfig) -> bool:
    """Whether any second of the last period breaches the threshold."""
    return any(breaches(value, config.criteria) for value in _seconds(tx, config, config.period_s).values())


def _peak(tx: Tx[MetricStore], alarm: Alarm, config: AlarmConfig) -> float | None:
    """Return the value of the second that breaches most in the last period. Return None if the alarm has no scaling policy."""
    return peak_of(list(_seconds(tx, config, config.period_s).values()), alarm) if SCALING in alarm.config.text else None


def _seconds(tx: Tx[MetricStore], config: AlarmConfig, last_s: int) -> Mapping[int, float]:
    """Return the values of the last `last_s` seconds, by second. Values older than RETENTION_S[1] seconds are not stored."""
    now_s = int(tx.now_s) + 1
    return _values(tx, config, now_s - min(last_s, RETENTION_S[1]), now_s, 1)
