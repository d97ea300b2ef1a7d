"""An alarm changes its state: it is written, told in its history, and acted upon, and those above it are looked at."""

from __future__ import annotations

from corral.core import Tx
from corral.decide.alarm import suppress
from corral.model.alarm import METRIC, Alarm, AlarmState, Suppression
from corral.services.cloudwatch.acting import act
from corral.services.cloudwatch.history import say_state
from corral.services.cloudwatch.watched import config_of
from corral.telemetry import MetricStore


def set_state(tx: Tx[MetricStore], alarm: Alarm, state: AlarmState, reason: str, data: str) -> Alarm:
    """In another state than before, or in the same for another reason."""
    changed = state is not alarm.state
    transitioned_s = tx.now_s if changed else alarm.transitioned_s
    after = alarm.but(state=state, reason=reason, reason_data=data, updated_s=tx.now_s, transitioned_s=transitioned_s)
    tx.store.alarms.update(after)
    if not changed:
        return after
    say_state(tx, alarm, after)
    for parent in tx.store.alarms.parents(alarm.region, alarm.name):
        tx.mark(f"alarm:{parent.id}")
    if alarm.kind == METRIC:
        act(tx, after)
        return after
    waited = after.suppression.by == "WaitPeriod"  # for the state before
    return settle(tx, after.but(suppression=Suppression()) if waited else after)


def settle(tx: Tx[MetricStore], alarm: Alarm) -> Alarm:
    """A composite alarm acts, unless it did so for this state already or its suppressor keeps it from doing so."""
    if alarm.acted_state is alarm.state:
        return _write(tx, alarm, alarm.but(suppression=Suppression()))
    config = config_of(alarm.config)
    suppression = Suppression()
    if "ActionsSuppressor" in config:
        suppressor = tx.store.alarms.get(alarm.region, name_of(config["ActionsSuppressor"]))
        suppression = suppress(
            alarm.suppression,
            suppressor_in_alarm=suppressor is not None and suppressor.state is AlarmState.ALARM,
            wait_s=config["ActionsSuppressorWaitPeriod"],
            extension_s=config["ActionsSuppressorExtensionPeriod"],
            now_s=tx.now_s,
        )
    if suppression.by:
        if suppression.until_s is not None:
            tx.store.alarms.wake(alarm.id, suppression.until_s)
        return _write(tx, alarm, alarm.but(suppression=suppression))
    act(tx, alarm)
    return _write(tx, alarm, alarm.but(suppression=suppression, acted_state=alarm.state))


def _write(tx: Tx[MetricStore], before: Alarm, after: Alarm) -> Alarm:
    if after != before:
        tx.store.alarms.update(after)
    return after


def name_of(alarm: str) -> str:
    """A name, or the name in an ARN."""
    return alarm.split(":", 6)[6] if alarm.startswith("arn:") and alarm.count(":") >= 6 else alarm
