"""The only loops: each looks at the present state of one key and writes what should be."""

from importlib import import_module
from typing import Any

from corral.core import Reconciler, Tx
from corral.reconcile.alarm_history import forget_history
from corral.reconcile.hosts import drop_terminated_instances, reconcile_host, reconcile_instance
from corral.reconcile.logs import expire_events, purge_logs, sweep_logs
from corral.reconcile.metrics import roll_up_metrics
from corral.reconcile.scheduler import reconcile_pool
from corral.reconcile.tasks import drop_deleted_definitions, drop_stopped_tasks, reconcile_task


def _once_needed(module: str, name: str) -> Reconciler:
    """A reconciler of a service that many never use: it is imported when it is first needed, not at every start."""

    def look(tx: Tx[Any], key: str) -> None:
        getattr(import_module(f"{__name__}.{module}"), name)(tx, key)

    return look


# The first part of a due or marked key names who looks at it.
STATE: dict[str, Reconciler] = {
    "pool": reconcile_pool,
    "host": reconcile_host,
    "instance": reconcile_instance,
    "terminated": drop_terminated_instances,
    "task": reconcile_task,
    "sweep": drop_stopped_tasks,
    "deletion": drop_deleted_definitions,
    "expiry": _once_needed("objects", "look_at_expiries"),
    "lifecycle": _once_needed("objects", "walk_bucket"),
    "piles": _once_needed("queues", "clear_piles"),
    "retention": _once_needed("queues", "expire_messages"),
    "duplicates": _once_needed("queues", "forget_duplicates"),
    "layers": _once_needed("images", "drop_unused_layers"),
    "repositories": _once_needed("images", "clear_left"),
    "moves": _once_needed("queues", "move_messages"),
}
METRICS: dict[str, Reconciler] = {
    "rollup": roll_up_metrics,
    "history": forget_history,
    "alarm": _once_needed("alarms", "look_at_alarm"),
}
LOGS: dict[str, Reconciler] = {"purge": purge_logs, "expire": expire_events, "sweep": sweep_logs}
