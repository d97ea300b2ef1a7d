"""Writes which tasks and EC2 instances hold GPUs that do nothing, and notifies about them. The metric publisher calls this."""

from __future__ import annotations

from typing import Any

import orjson

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.tasks.lifecycle import duration_text
from corral.model.principal import OF_USER
from corral.services.corral.idle import describe, find_holder, long_idle
from corral.store import Store

NOTIFIED_AT_ONCE = 20


def save_idle(tx: Tx[Store]) -> list[str]:
    """Write the idle times, and notify about new ones. Return why a notification was not sent.

    The notification is published in the transaction that records it, so each idle time of a holder has one.
    """
    tx.store.idle_holders.save(tx.now_s, lambda holder: find_holder(tx, holder) is not None)
    topic = tx.settings.usage.notify
    problems = []
    for holder, since_s, holder_id in list(long_idle(tx, NOTIFIED_AT_ONCE, unnoted=True)) if topic else ():
        tx.store.idle_holders.note(holder_id, tx.now_s)
        row = describe(tx, holder, since_s)
        try:
            tx.attempt(lambda row=row: _publish(tx, topic, row))  # type: ignore[misc]
        except ApiError as refusal:
            problems.append(f"no notification about {holder_id}: {refusal.message}")
    return problems


def _publish(tx: Tx[Store], topic: str, row: dict[str, Any]) -> None:
    from corral.services.sns.publish import deliver  # imported here, so that the server starts faster

    gpus = f"{row['gpus']:.2f}".rstrip("0").rstrip(".")
    what = f"{gpus} GPU{'s' * (gpus != '1')} at 0% for {duration_text((tx.now_s - row['sinceS']) // 60 * 60)}"
    text = f"{row['owner'].removeprefix(OF_USER)} holds {what}: {row.get('taskName') or row.get('instance')}"
    message = {"text": text, **row, "sinceS": tx.steps.wall_s(row["sinceS"])}
    deliver(tx, topic, orjson.dumps(message).decode(), subject="GPUs that do nothing")
