"""The operations of CloudWatch and their handlers."""

from corral.aws.handlers import handlers_in
from corral.services.cloudwatch import (
    alarm_history,
    alarms,
    composite_alarms,
    dashboards,
    metric_alarms,
    metric_reads,
    metric_writes,
    tags,
)

HANDLERS = handlers_in("cloudwatch", globals())

HEAVY = frozenset({"GetMetricData", "GetMetricStatistics", "ListMetrics", "ListDashboards"})
OPEN_TO_CONTAINERS = frozenset({"GetMetricData", "GetMetricStatistics", "ListMetrics", "PutMetricData"})
