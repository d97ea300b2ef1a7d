"""SQL of alarms, their metrics and their history. Alarms are part of the metric store.

Each new datapoint needs the alarms that watch its series, and there are few alarms. So all alarms are cached in memory, with an
index by series. The time of an alarm's next evaluation is only in memory, because it can be computed from the alarm and the clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any

from msgspec.structs import replace

from corral.core.database import Database, Row
from corral.model.alarm import Alarm, AlarmState, HistoryItem, ScalingRequest, StoredConfig, Suppression
from corral.model.metric import Metric

COLUMNS = (
    "id, region, name, kind, config, created_s, configured_s, actions_enabled, state, reason, reason_data, updated_s, "
    "transitioned_s, acted_state, suppressed_by, suppressed_until, owner"
)


class Alarms:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.execute
        self.rebuild()

    def rebuild(self) -> None:
        """Build the cache from the rows. Every alarm is evaluated at once, because no row has the time of the last evaluation."""
        self._alarms: dict[int, Alarm] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._metrics: dict[int, list[Metric]] = {}
        self._children: dict[int, list[str]] = {}
        self._parents: dict[tuple[str, str], dict[int, None]] = {}
        self.watching: dict[Metric, dict[int, None]] = {}  # series → ids of the alarms that watch it
        # The watched series whose last datapoint had a resolution of a second. After a start, they are not known yet.
        self.high_resolution: set[Metric] = set()
        self._evaluated_s: dict[int, float] = {}
        self._quiet_from_s: dict[int, float] = {}
        self._wakes: list[tuple[float, int]] = []  # a heap; an entry is stale if `_wake_s` has another time
        self._wake_s: dict[int, float] = {}
        self._requested: dict[int, tuple[ScalingRequest, ...]] = {}
        for row in self._execute(f"SELECT {COLUMNS} FROM alarm"):
            self._cache(_alarm(row))
            self.wake(row[0], 0.0)

    def _reload(self, alarm_id: int) -> None:
        """Read the alarm from its row again after a rollback."""
        self._uncache(alarm_id)
        self._requested.pop(alarm_id, None)
        row = self._execute(f"SELECT {COLUMNS} FROM alarm WHERE id = ?", (alarm_id,)).fetchone()
        if row is not None:
            self._cache(_alarm(row))

    def _cache(self, alarm: Alarm) -> None:
        self._alarms[alarm.id] = alarm
        self._ids[alarm.region, alarm.name] = alarm.id
        rows = self._execute("SELECT namespace, name, dimensions FROM alarm_metric WHERE alarm_id = ?", (alarm.id,))
        metrics = [
            Metric(alarm.region, namespace, name, tuple((key, value) for key, value in json.loads(dimensions)))
            for namespace, name, dimensions in rows
        ]
        self._metrics[alarm.id] = metrics
        for metric in metrics:
            self.watching.setdefault(metric, {})[alarm.id] = None
        children = self._execute("SELECT child FROM alarm_child WHERE alarm_id = ?", (alarm.id,)).fetchall()
        self._children[alarm.id] = [child for (child,) in children]
        for (child,) in children:
            self._parents.setdefault((alarm.region, child), {})[alarm.id] = None

    def _uncache(self, alarm_id: int) -> None:
        alarm = self._alarms.pop(alarm_id, None)
        if alarm is None:
            return
        del self._ids[alarm.region, alarm.name]
        for metric in self._metrics.pop(alarm_id):
            _drop(self.watching, metric, alarm_id)
            if metric not in self.watching:
                self.high_resolution.discard(metric)
        for child in self._children.pop(alarm_id):
            _drop(self._parents, (alarm.region, child), alarm_id)

    # Times of the next evaluation

    def wake(self, alarm_id: int, at_s: float) -> None:
        """Evaluate the alarm at this time. If an earlier time is already set, keep the earlier time."""
        if at_s < self._wake_s.get(alarm_id, at_s + 1):
            self._wake_s[alarm_id] = at_s
            heappush(self._wakes, (at_s, alarm_id))

    def next_wake_s(self) -> float | None:
        while self._wakes and self._wake_s.get(self._wakes[0][1]) != self._wakes[0][0]:
            heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else None

    def take_woken(self, now_s: float, limit: int) -> list[str]:
        """Return the keys of the alarms whose evaluation is due now, and forget the times of these evaluations."""
        found: list[str] = []
        while len(found) < limit and (at_s := self.next_wake_s()) is not None and at_s <= now_s:
            _, alarm_id = heappop(self._wakes)
            del self._wake_s[alarm_id]
            self._database.undo_log.on_rollback(partial(self.wake, alarm_id, at_s))
            found.append(f"alarm:{alarm_id}")
        return found

    def quiet_from_s(self, alarm_id: int) -> float:
        """Return when the last breach of an alarm in ALARM is old enough for an evaluation. Return infinity if it is unknown."""
        return self._quiet_from_s.get(alarm_id, inf)

    def set_quiet_from(self, alarm_id: int, at_s: float | None) -> None:
        """Set the time of `quiet_from_s`, and evaluate the alarm at this time. None: the time is unknown.

        A rollback does not restore the previous time: the next evaluation at the end of a window sets it again.
        """
        self._quiet_from_s.pop(alarm_id, None)
        if at_s is not None:
            self._quiet_from_s[alarm_id] = at_s
            self.wake(alarm_id, at_s)

    def evaluated_s(self, alarm_id: int) -> float:
        """Return the end of the last window (period) that was evaluated. Return 0 if it is unknown."""
        return self._evaluated_s.get(alarm_id, 0.0)

    def set_evaluated(self, alarm_id: int, end_s: float) -> None:
        self._database.undo_log.on_rollback(partial(self._evaluated_s.__setitem__, alarm_id, self.evaluated_s(alarm_id)))
        self._evaluated_s[alarm_id] = end_s

    def note_resolution(self, metric: Metric, resolution_s: int) -> None:
        """Record the resolution of the newest datapoint of a watched series.

        A rollback does not restore the previous resolution: the next datapoint corrects it.
        """
        if resolution_s == 1:
            self.high_resolution.add(metric)
        else:
            self.high_resolution.discard(metric)

    # Alarms

    def get(self, region: str, name: str) -> Alarm | None:
        alarm_id = self._ids.get((region, name))
        return None if alarm_id is None else self._alarms[alarm_id]

    def by_id(self, alarm_id: int) -> Alarm | None:
        return self._alarms.get(alarm_id)

    def parents(self, region: str, name: str) -> list[Alarm]:
        """Return the composite alarms that have this alarm in their rule or as their suppressor."""
        return [self._alarms[alarm_id] for alarm_id in self._parents.get((region, name), ())]

    def watchers(self, metric: Metric) -> list[Alarm]:
        return [self._alarms[alarm_id] for alarm_id in self.watching.get(metric, ())]

    def listed(self, region: str, *, prefix: str = "", after: str = "") -> Iterator[Alarm]:
        """Return the alarms whose names begin with `prefix` and are greater than `after`, sorted by name."""
        rows = self._execute(
            "SELECT id FROM alarm WHERE region = ? AND name > ? AND name >= ? AND name < ? ORDER BY name",
            (region, after, prefix, prefix + "\U0010ffff"),
        )
        return (self._alarms[alarm_id] for (alarm_id,) in rows)

    def add(self, alarm: Alarm, metrics: Iterable[Metric] = (), children: Iterable[tuple[str, bool]] = ()) -> Alarm:
        """Add an alarm, and return it with its id.

        A composite alarm has `children`: the alarms in its rule, and its suppressor. Each child is a pair: the name of an alarm,
        and True if the rule contains this alarm.
        """
        marks = ", ".join("?" * len(COLUMNS.split(",")))
        cursor = self._execute(f"INSERT INTO alarm ({COLUMNS}) VALUES ({marks})", (None, *_values(alarm)))
        alarm = alarm.but(id=cursor.lastrowid)
        self._watch(alarm, metrics, children)
        return alarm

    def change(self, alarm: Alarm, metrics: Iterable[Metric] = (), children: Iterable[tuple[str, bool]] = ()) -> None:
        """Replace the configuration of an alarm, including its metrics and children."""
        self.update(alarm)
        for table in ("alarm_metric", "alarm_child"):
            self._execute(f"DELETE FROM {table} WHERE alarm_id = ?", (alarm.id,))
        self._watch(alarm, metrics, children)

    def update(self, alarm: Alarm) -> None:
        """Write an alarm's row. Its metrics and children do not change."""
        columns = ", ".join(f"{column.strip()} = ?" for column in COLUMNS.split(",")[1:])
        self._execute(f"UPDATE alarm SET {columns} WHERE id = ?", (*_values(alarm), alarm.id))
        if self._alarms[alarm.id].state is not alarm.state:
            self._quiet_from_s.pop(alarm.id, None)
        self._alarms[alarm.id] = alarm
        self._database.undo_log.on_rollback(partial(self._reload, alarm.id))

    def set_owner(self, alarm_id: int, owner: str) -> None:
        self.update(replace(self._alarms[alarm_id], owner=owner))

    def remove(self, alarm: Alarm) -> None:
        self._execute("DELETE FROM alarm WHERE id = ?", (alarm.id,))
        self._uncache(alarm.id)
        self._requested.pop(alarm.id, None)
        self._database.undo_log.on_rollback(partial(self._reload, alarm.id))

    def _watch(self, alarm: Alarm, metrics: Iterable[Metric], children: Iterable[tuple[str, bool]]) -> None:
        rows = {(alarm.id, each.namespace, each.name, json.dumps(each.dimensions, ensure_ascii=False)) for each in metrics}
        self._database.executemany("INSERT INTO alarm_metric VALUES (?, ?, ?, ?)", sorted(rows))
        self._database.executemany(
            "INSERT INTO alarm_child VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET in_rule = max(in_rule, excluded.in_rule)",
            [(alarm.id, child, in_rule) for child, in_rule in children],
        )
        self._uncache(alarm.id)
        self._cache(alarm)
        self._evaluated_s.pop(alarm.id, None)
        self._quiet_from_s.pop(alarm.id, None)
        self._database.undo_log.on_rollback(partial(self._reload, alarm.id))

    def named_in_rules(self, region: str, name: str) -> bool:
        sql = "SELECT 1 FROM alarm_child JOIN alarm ON alarm.id = alarm_id WHERE region = ? AND child = ? AND in_rule LIMIT 1"
        return self._execute(sql, (region, name)).fetchone() is not None

    # Requests to scaling policies

    def requested(self, alarm_id: int) -> tuple[ScalingRequest, ...] | None:
        """Return the last scaling requests of an alarm. Return None if they are unknown, which is so after a restart or a rollback.

        If they are unknown, the alarm sends its requests again. A repeated request has no effect.
        """
        return self._requested.get(alarm_id)

    def set_requested(self, alarm_id: int, requests: Sequence[ScalingRequest]) -> None:
        self._requested[alarm_id] = tuple(requests)
        self._database.undo_log.on_rollback(partial(self._requested.pop, alarm_id, None))

    # Watches. Here, a watcher is a service deployment of ECS, to which the states of some alarms are reported.

    def set_watches(self, watcher: str, region: str, names: Iterable[str]) -> None:
        self._execute("DELETE FROM alarm_watch WHERE watcher = ?", (watcher,))
        for name in dict.fromkeys(names):
            self._execute("INSERT INTO alarm_watch VALUES (?, ?, ?)", (watcher, region, name))

    def watches(self, watcher: str) -> list[str]:
        return [name for (name,) in self._execute("SELECT alarm FROM alarm_watch WHERE watcher = ? ORDER BY alarm", (watcher,))]

    def watchers_of(self, region: str, name: str) -> list[str]:
        rows = self._execute("SELECT watcher FROM alarm_watch WHERE region = ? AND alarm = ?", (region, name))
        return [watcher for (watcher,) in rows.fetchall()]

    # History

    def add_history(self, item: HistoryItem) -> None:
        self._execute(
            "INSERT INTO alarm_history (region, alarm, kind, at_s, item, summary, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (item.region, item.alarm, item.kind, item.at_s, item.item, item.summary, item.data),
        )

    def history(
        self, region: str, *, name: str | None, item: str | None, kinds: Sequence[str], since_s: float, until_s: float,
        after: tuple[float, int] | None, ascending: bool, limit: int,
    ) -> list[tuple[int, HistoryItem]]:  # fmt: skip
        """Return one page of (number, item) pairs. `after` is the time and number of the last item of the previous page."""
        where, values = ["region = ?", "at_s >= ?", "at_s <= ?"], [region, since_s, until_s]  # type: tuple[list[str], list[Any]]
        if name is not None:
            where, values = [*where, "alarm = ?"], [*values, name]
        if item is not None:
            where, values = [*where, "item = ?"], [*values, item]
        where, values = [*where, f"kind IN ({', '.join('?' * len(kinds))})"], [*values, *kinds]
        sign, order = (">", "ASC") if ascending else ("<", "DESC")
        if after is not None:
            where, values = [*where, f"(at_s, id) {sign} (?, ?)"], [*values, *after]
        rows = self._execute(
            f"SELECT id, region, alarm, kind, at_s, item, summary, data FROM alarm_history WHERE {' AND '.join(where)} "
            f"ORDER BY at_s {order}, id {order} LIMIT ?",
            (*values, limit),
        )
        return [(row[0], HistoryItem(*row[1:])) for row in rows]

    def drop_history(self, before_s: float, limit: int) -> int:
        oldest = "SELECT id FROM alarm_history ORDER BY id LIMIT ?"
        return self._execute(f"DELETE FROM alarm_history WHERE id IN ({oldest}) AND at_s < ?", (limit, before_s)).rowcount


def _drop(index: dict[Any, dict[int, None]], key: Any, alarm_id: int) -> None:
    del index[key][alarm_id]
    if not index[key]:
        del index[key]


def _values(alarm: Alarm) -> tuple[Any, ...]:
    """Return the values of an alarm in the order of COLUMNS, without the id."""
    return (
        alarm.region, alarm.name, alarm.kind, alarm.config.text, alarm.created_s, alarm.configured_s, alarm.actions_enabled,
        alarm.state.value, alarm.reason, alarm.reason_data, alarm.updated_s, alarm.transitioned_s, alarm.acted_state.value,
        alarm.suppression.by, alarm.suppression.until_s, alarm.owner,
    )  # fmt: skip


def _alarm(row: Row) -> Alarm:
    return Alarm(
        id=row[0], region=row[1], name=row[2], kind=row[3], config=StoredConfig(row[4]), created_s=row[5], configured_s=row[6],
        actions_enabled=bool(row[7]), state=AlarmState(row[8]), reason=row[9], reason_data=row[10], updated_s=row[11],
        transitioned_s=row[12], acted_state=AlarmState(row[13]), suppression=Suppression(row[14], row[15]), owner=row[16],
    )  # fmt: skip
