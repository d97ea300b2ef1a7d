"""The reconcilers of each lane.

A reconciler handles a key, for example `task:ID`. It reads the current state of the thing that the key names, and writes what must
change.
"""

from importlib import import_module
from typing import Any

from corral.core.transactions import OncePerTransaction, Reconciler, Together, Tx
from corral.reconcile.hosts import end_drain, find_silent_hosts, reconcile_host
from corral.reconcile.instances import drop_terminated_instances, reconcile_daemons, reconcile_instance
from corral.reconcile.logs import expire_events, purge_logs, sweep_shipments
from corral.reconcile.metrics import expire_alarm_history, roll_up_metrics
from corral.reconcile.scheduler import reconcile_allowances, reconcile_pool
from corral.reconcile.tasks import drop_deleted_definitions, drop_stopped_tasks, evict_task, reconcile_task


def _once_needed(module: str, name: str) -> Reconciler:
    """Return a reconciler that imports its module on the first call. So the server loads no module that it never needs."""

    found: Reconciler | None = None

    def reconcile(tx: Tx[Any], key: str) -> None:
        nonlocal found
        if found is None:
            found = getattr(import_module(f"{__name__}.{module}"), name)
        found(tx, key)

    return reconcile


# One table for each lane. The part of a key before the colon selects the reconciler, and the reconciler gets the part after the
# colon. `core/transactions.py` describes `OncePerTransaction` and `Together`.
STATE: dict[str, Reconciler] = {
    "pool": reconcile_pool,
    "allowances": OncePerTransaction(reconcile_allowances),
    "priorities": OncePerTransaction(_once_needed("priorities", "lower_priorities")),
    "host": reconcile_host,
    "silence": find_silent_hosts,
    "drain": end_drain,
    "instance": reconcile_instance,
    "terminated": drop_terminated_instances,
    "task": reconcile_task,
    "eviction": evict_task,
    "queued-task": Together(_once_needed("task_queue", "reconcile_queued_task")),
    "end-notice": _once_needed("task_queue", "reconcile_end"),
    "task-array": _once_needed("task_queue", "reconcile_array"),
    "start-times": _once_needed("task_queue", "admit_by_time"),
    "old-arrays": _once_needed("task_queue", "drop_ended_arrays"),
    "sweep": drop_stopped_tasks,
    "deletion": drop_deleted_definitions,
    "service": OncePerTransaction(_once_needed("ecs_services", "reconcile_service")),
    "services": _once_needed("ecs_services", "drop_inactive_services"),
    "daemons": OncePerTransaction(reconcile_daemons),
    "expiry": _once_needed("object_expiry", "expire_due"),
    "private-environment": _once_needed("private_environments", "delete_unused_object"),
    "lifecycle": _once_needed("object_expiry", "rescan_bucket"),
    "piles": _once_needed("queues", "clear_piles"),
    "secret": _once_needed("secrets", "delete_secret"),
    "retention": _once_needed("queues", "expire_messages"),
    "duplicates": _once_needed("queues", "forget_duplicates"),
    "layers": _once_needed("images", "drop_unused_layers"),
    "repositories": _once_needed("images", "clear_deleted_repositories"),
    "moves": _once_needed("queues", "move_messages"),
    "group": OncePerTransaction(_once_needed("groups", "reconcile_group")),
    "capacity-provider": OncePerTransaction(_once_needed("capacity_providers", "reconcile_provider")),
    "allocation": _once_needed("allocations", "end_unused_allocation"),
    "spot-interruption": _once_needed("spot_interruptions", "end_interrupted_instance"),
    "environment": OncePerTransaction(_once_needed("compute_environments", "reconcile_environment")),
    "scaling": OncePerTransaction(_once_needed("scaling", "reconcile_scaling")),
    "schedule": _once_needed("groups", "run_scheduled_actions"),
    "stack": OncePerTransaction(_once_needed("stacks", "reconcile_stack")),
    "step": _once_needed("stacks", "reconcile_step"),
    "stacks": _once_needed("stacks", "drop_deleted_stacks"),
    "activities": _once_needed("groups", "drop_old_activities"),
    "event-source": OncePerTransaction(_once_needed("event_sources", "reconcile_mapping")),
    "invocations": _once_needed("functions", "drop_ended_invocations"),
    "job-queue": _once_needed("job_queues", "reconcile_queue"),
    "job": Together(_once_needed("jobs", "reconcile_job")),
    "job-limits": OncePerTransaction(_once_needed("job_limits", "reconcile_limits")),
    "job-array": _once_needed("jobs", "reconcile_array"),
    "job-dependents": _once_needed("jobs", "reconcile_dependents"),
    "jobs": _once_needed("jobs", "drop_ended_jobs"),
    "target-schedule": _once_needed("service_scaling", "run_scheduled_actions"),
    "passing": _once_needed("passing", "pass_state"),
    "wall-clock": _once_needed("wall_clock", "wall_clock_set"),
    "target-activity": OncePerTransaction(_once_needed("service_scaling", "follow_activity")),
    "target-activities": _once_needed("service_scaling", "drop_old_activities"),
}
METRICS: dict[str, Reconciler] = {
    "rollup": roll_up_metrics,
    "history": expire_alarm_history,
    "passing": _once_needed("passing", "pass_telemetry"),
    "alarm": _once_needed("alarms", "evaluate_alarm"),
}
LOGS: dict[str, Reconciler] = {
    "purge": purge_logs,
    "expire": expire_events,
    "sweep": sweep_shipments,
    "passing": _once_needed("passing", "pass_telemetry"),
}
