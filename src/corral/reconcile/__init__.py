"""The only loops: each looks at the present state of one key and writes what should be."""

from corral.core import Reconciler
from corral.reconcile.expiry import look_at_expiries, walk_bucket
from corral.reconcile.metrics import forget_history, roll_up_metrics
from corral.reconcile.queues import clear_piles, expire_messages, forget_duplicates
from corral.reconcile.scheduler import look_at_pool
from corral.reconcile.sweep import expire_events, finish_deletions, purge_logs, sweep_logs, sweep_state
from corral.services.cloudwatch import look_at_alarm
from corral.services.ecs.following import look_at_task
from corral.services.hosts import look_at_host
from corral.services.sqs.moving import move_messages

# The first part of a due or marked key names who looks at it.
STATE: dict[str, Reconciler] = {
    "pool": look_at_pool,
    "host": look_at_host,
    "task": look_at_task,
    "sweep": sweep_state,
    "deletion": finish_deletions,
    "expiry": look_at_expiries,
    "lifecycle": walk_bucket,
    "piles": clear_piles,
    "retention": expire_messages,
    "duplicates": forget_duplicates,
    "moves": move_messages,
}
METRICS: dict[str, Reconciler] = {"rollup": roll_up_metrics, "history": forget_history, "alarm": look_at_alarm}
LOGS: dict[str, Reconciler] = {"purge": purge_logs, "expire": expire_events, "sweep": sweep_logs}
