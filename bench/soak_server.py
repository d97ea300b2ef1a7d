"""`bench/soak_server.py corral.server SECONDS [OPTION…]`: the server of `bench/soak.py`, which keeps what has ended for SECONDS.

Each name in SHORTER is how long something is kept after its end, or how often it is looked for. In a soak of an hour these times
must be short, so that what is kept stays the same.
"""

from __future__ import annotations

import importlib
import runpy
import sys

SHORTER = {
    "corral.fleet.instances": ("SHOWN_S", "USAGE_SHOWN_S"),
    "corral.model.private_environment": ("UPLOADED_S",),
    "corral.reconcile.ecs_services": ("INACTIVE_SHOWN_S",),
    "corral.reconcile.jobs": ("SWEEP_EVERY_S",),
    "corral.reconcile.logs": ("SHIPMENT_RETENTION_S", "EXPIRE_EVERY_S"),
    "corral.reconcile.metrics": ("HISTORY_RETENTION_S", "EXPIRE_HISTORY_EVERY_S"),
    "corral.reconcile.stacks": ("RETENTION_S",),
    "corral.reconcile.task_queue": ("ARRAYS_KEPT_S", "SWEEP_EVERY_S"),
    "corral.reconcile.tasks": ("STOPPED_TASKS_S",),
    "corral.server.blob_gc": ("QUARANTINE_S",),
    "corral.services.applicationautoscaling.activities": ("SHOWN_S",),
    "corral.services.autoscaling.activities": ("SHOWN_S",),
    "corral.services.batch.job_progress": ("SHOWN_S",),
    "corral.services.batch.resource_requests": ("TOKEN_VALID_S",),
    "corral.services.cloudformation.stack_requests": ("TOKEN_S",),
    "corral.services.ec2.client_tokens": ("TOKEN_S",),
    "corral.services.ecs.tasks": ("CLIENT_TOKEN_S",),
    "corral.services.lambda_.invocations": ("KEPT_S",),
    "corral.telemetry.rollup": ("SERIES_RETENTION_S",),
}
METRICS = ("corral.model.metric", "RETENTION_S")  # resolution → seconds
HISTORY_DAYS = 30  # the default of `corral history`


def shorten(seconds: float) -> None:
    """Set these constants, also where another module has imported them by name."""
    found = {(module, name): getattr(importlib.import_module(module), name) for module, names in SHORTER.items() for name in names}
    for module in [module for name, module in sys.modules.items() if name.startswith("corral.")]:
        for (_, name), value in found.items():
            if vars(module).get(name) is value:
                setattr(module, name, min(value, seconds))
    importlib.import_module("corral.reconcile.tasks").DAY_S = seconds / HISTORY_DAYS
    kept = getattr(importlib.import_module(METRICS[0]), METRICS[1])
    kept.update(dict.fromkeys(kept, seconds))


if __name__ == "__main__":
    _, program, seconds, *options = sys.argv
    sys.argv = [program, *options]
    importlib.import_module("corral.server.service_calls")  # brings the modules of all services
    shorten(float(seconds))
    runpy.run_module(program, run_name="__main__", alter_sys=True)
