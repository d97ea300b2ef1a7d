"""Events are taken: kept, told to those who wait for them, and searched for metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from corral.core import Tx
from corral.decide.emf import MARK
from corral.services.cloudwatch.recording import record_embedded, record_filtered
from corral.services.logs.naming import now_ms
from corral.telemetry import LogStore, Stream

AT_ONCE = 200  # events whose metrics are read in one go, about a millisecond of work


def take(tx: Tx[LogStore], stream: Stream, events: Sequence[tuple[int, str]]) -> None:
    """Metrics in the events are recorded in their own lane, before whoever brought the events is answered."""
    tx.store.append(stream, events, now_ms(tx))
    if events:
        tx.changed(f"stream:{stream.id}")
    embedded = [event for event in events if MARK in event[1]]
    for at in range(0, len(embedded), AT_ONCE):
        tx.hand_over("metrics", partial(record_embedded, region=stream.region, events=embedded[at : at + AT_ONCE]))
    if filters := tx.store.filters_of(stream.group_id):
        _measure(tx, filters, stream.region, events)


def _measure(tx: Tx[LogStore], filters: Sequence[Mapping[str, Any]], region: str, events: Sequence[tuple[int, str]]) -> None:
    from corral.decide.metric_filter import Meter  # only here: few have such filters, and patterns are a language

    meters = [Meter(details, region) for details in filters]
    for at in range(0, len(events), AT_ONCE):
        some, last = events[at : at + AT_ONCE], at + AT_ONCE >= len(events)
        tx.hand_over("metrics", partial(record_filtered, meters=meters, events=some, last=last))
