"""Corral's own operations and their handlers."""

from corral.aws.handlers import handlers_in
from corral.services.corral import (
    console,
    gpu_faults,
    history,
    hosts,
    instances,
    joining,
    lenders,
    limits,
    pauses,
    people,
    queue_peek,
    runs,
    server,
    signals,
    status,
    task_output,
    usage,
    waiting_tasks,
)

HANDLERS = handlers_in("corral", globals())
STEPS = {"UpdateWaitingTasks": waiting_tasks.update_waiting_tasks, "SetGpuFault": gpu_faults.set_gpu_fault}
LANES = {"DescribeLogStates": "logs"}
READS_FLEET = frozenset({"GetStatus", "DescribeUsage", "DescribeHosts", "DescribeGpus", "ListRuns", "DescribeInstances"})
HEAVY = READS_FLEET | {"DescribeQueueWorkers", "GetHistory", "ListTaskNames", "GetUsage", "ListOutputFiles", "PeekMessages"}
QUICK = frozenset({"DescribeLogStates", "GetMetricsToken"})
