"""Whether a composite alarm may act now, or its suppressor keeps it from doing so."""

from __future__ import annotations

from corral.model.alarm import Suppression


def suppress(before: Suppression, *, suppressor_in_alarm: bool, wait_s: float, extension_s: float, now_s: float) -> Suppression:
    """Of an alarm that has actions to take and has not taken them.

    It first waits a while for the suppressor to speak, is silent as long as that is in ALARM, and a while longer.
    """
    if suppressor_in_alarm:
        return Suppression("Alarm")
    if before.by == "Alarm":
        return Suppression("ExtensionPeriod", now_s + extension_s) if extension_s > 0 else Suppression()
    if before.by == "":
        return Suppression("WaitPeriod", now_s + wait_s) if wait_s > 0 else Suppression()
    assert before.until_s is not None
    return before if now_s < before.until_s else Suppression()
