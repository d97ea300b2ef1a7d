"""Computes the GPU-hours of tasks that ran on this machine itself, and their cost. `corral cost` shows this report.

Tasks on EC2 instances are left out, because `instance_cost.py` reports the hours of instances. A task uses its GPUs from its
placement until it has stopped, except while it is paused. If a task shares a GPU, it uses a part of the GPU: its memory divided by
the GPU's memory. The price is the setting `cost.gpu_hour` of corral.toml.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from corral.core.transactions import Tx
from corral.store import Store

HOUR_S = 3600.0
COST_DIGITS = 6  # decimal digits of a cost in dollars, enough for one second of a small instance
STEP_EVERY = 1_000  # tasks


class TaskTime(Struct, frozen=True):
    """A task on this machine that has or had GPUs. Its time is limited to the time of the report."""

    region: str
    name: str
    began_s: float
    seconds: float
    gpus: float  # less than 1 if the task shares a GPU
    owner: str


class NameTotal(Struct):
    """The sums of all tasks with one name."""

    tasks: int = 0
    seconds: float = 0.0
    gpu_s: float = 0.0

    def add(self, task: TaskTime) -> None:
        self.tasks += 1
        self.seconds += task.seconds
        self.gpu_s += task.seconds * task.gpus


def machine_report(tx: Tx[Store], since_s: float | None, *, reads_tasks: bool, owner: str = "") -> dict[str, Any]:
    """Report the GPU-hours since `since_s`, by the names and owners of tasks. Without a time: as far back as `corral history` goes.

    With `owner`, report only the tasks of this owner. Without `reads_tasks`, report only the price.
    """
    price = tx.settings.gpu_hour_price or None
    total, by_name = NameTotal(), dict[tuple[str, str, str], NameTotal]()
    first_s: float | None = None
    for task in _tasks(tx, since_s or 0.0) if reads_tasks else ():
        if owner not in ("", task.owner):
            continue
        first_s = task.began_s if first_s is None else min(first_s, task.began_s)
        total.add(task)
        by_name.setdefault((task.region, task.name, task.owner), NameTotal()).add(task)
    largest_first = sorted(by_name.items(), key=lambda item: (-item[1].gpu_s, item[0]))
    return {
        "fromS": since_s if since_s is not None else first_s,
        "gpuHourPrice": price,
        "names": [
            {"name": name, "region": region, "owner": of, **_sums(sums, price)} for (region, name, of), sums in largest_first
        ],
        "total": _sums(total, price),
    }


def _sums(total: NameTotal, price: float | None) -> dict[str, Any]:
    gpu_hours = total.gpu_s / HOUR_S
    return {
        "tasks": total.tasks,
        "hours": total.seconds / HOUR_S,
        "gpuHours": gpu_hours,
        "cost": round(gpu_hours * price, COST_DIGITS) if price is not None else None,
    }


def _tasks(tx: Tx[Store], since_s: float) -> Iterator[TaskTime]:
    """Yield the tasks that have stopped since the time, and those that have not stopped."""
    memory_mib = tx.store.hosts.gpu_memory()

    def gpus(gpu_ids: set[str], shared_mib: int) -> float:
        return sum(min(1.0, shared_mib / (memory_mib.get(gpu_id) or shared_mib)) if shared_mib else 1.0 for gpu_id in gpu_ids)

    for at, (region, name, record) in enumerate(tx.store.tasks.history.stopped_since(since_s)):
        if at % STEP_EVERY == 0:
            tx.step()
        gpu_ids = {gpu_id for container in record.containers for gpu_id in container.gpu_ids}
        if record.on_host and gpu_ids and record.placed_at_s is not None:
            began_s = max(record.placed_at_s, since_s)
            seconds = _seconds(record.placed_at_s, began_s, record.stopped_at_s, record.paused_s)
            yield TaskTime(region, name, began_s, seconds, gpus(gpu_ids, record.gpu_memory_mib), record.owner)
    for task in tx.store.tasks.with_gpus_of_hosts():
        placed_s = task.placed_at_s or tx.now_s
        began_s = max(placed_s, since_s)
        gpu_ids = {gpu_id for run in task.runs for gpu_id in run.gpu_ids}
        seconds = _seconds(placed_s, began_s, tx.now_s, task.pause.lost_s(tx.now_s) if task.pause is not None else 0.0)
        yield TaskTime(task.region, task.name, began_s, seconds, gpus(gpu_ids, task.demand.gpu_memory_mib), task.owner)


def _seconds(placed_s: float, began_s: float, until_s: float, paused_s: float) -> float:
    """Return how long a task had its GPUs since `began_s`. If it was placed before, its pauses count in proportion."""
    whole_s, seconds = until_s - placed_s, until_s - began_s
    if seconds <= 0 or whole_s <= 0:
        return 0.0
    return max(0.0, seconds - paused_s * seconds / whole_s)
