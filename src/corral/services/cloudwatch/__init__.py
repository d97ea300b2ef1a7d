"""CloudWatch: metrics and dashboards."""

from corral.services.cloudwatch import putting
from corral.services.cloudwatch.recording import record

__all__ = ["HANDLERS", "HEAVY", "record"]

HANDLERS = {
    "PutMetricData": putting.put_metric_data,
}

HEAVY: frozenset[str] = frozenset({"GetMetricData", "GetMetricStatistics", "ListMetrics"})
