"""CloudWatch: metrics and dashboards."""

from corral.services.cloudwatch import dashboards, listing, putting, querying, statistics
from corral.services.cloudwatch.recording import record

__all__ = ["HANDLERS", "HEAVY", "record"]

HANDLERS = {
    "PutMetricData": putting.put_metric_data,
    "GetMetricData": querying.get_metric_data,
    "GetMetricStatistics": statistics.get_metric_statistics,
    "ListMetrics": listing.list_metrics,
    "PutDashboard": dashboards.put_dashboard,
    "GetDashboard": dashboards.get_dashboard,
    "ListDashboards": dashboards.list_dashboards,
    "DeleteDashboards": dashboards.delete_dashboards,
}

HEAVY = frozenset({"GetMetricData", "GetMetricStatistics", "ListMetrics", "ListDashboards"})
