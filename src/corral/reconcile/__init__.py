"""The only loops: each looks at the present state of one key and writes what should be."""

from importlib import import_module
from typing import Any

from corral.core import Reconciler, Tx
from corral.reconcile.metrics import forget_history, roll_up_metrics
from corral.reconcile.queues import clear_piles, expire_messages, forget_duplicates
from corral.reconcile.scheduler import look_at_pool
from corral.reconcile.sweep import expire_events, finish_deletions, purge_logs, sweep_logs, sweep_state
from corral.services.ecs.following import look_at_task
from corral.services.hosts import look_at_host


def _once_needed(module: str, name: str) -> Reconciler:
    """A reconciler of a service that many never use: it is imported with its service, not at every start."""

    def look(tx: Tx[Any], key: str) -> None:
        getattr(import_module(module), name)(tx, key)

    return look


# The first part of a due or marked key names who looks at it.
STATE: dict[str, Reconciler] = {
    "pool": look_at_pool,
    "host": look_at_host,
    "task": look_at_task,
    "sweep": sweep_state,
    "deletion": finish_deletions,
    "expiry": _once_needed("corral.reconcile.expiry", "look_at_expiries"),
    "lifecycle": _once_needed("corral.reconcile.expiry", "walk_bucket"),
    "piles": clear_piles,
    "retention": expire_messages,
    "duplicates": forget_duplicates,
    "layers": _once_needed("corral.services.ecr.pushing", "drop_unused_layers"),
    "repositories": _once_needed("corral.services.ecr.pushing", "clear_left"),
    "moves": _once_needed("corral.services.sqs.moving", "move_messages"),
}
METRICS: dict[str, Reconciler] = {
    "rollup": roll_up_metrics,
    "history": forget_history,
    "alarm": _once_needed("corral.services.cloudwatch.judging", "look_at_alarm"),
}
LOGS: dict[str, Reconciler] = {"purge": purge_logs, "expire": expire_events, "sweep": sweep_logs}
