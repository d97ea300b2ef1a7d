"""The operations of CloudWatch and their handlers."""

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

HANDLERS = {
    "PutMetricData": metric_writes.put_metric_data,
    "GetMetricData": metric_reads.get_metric_data,
    "GetMetricStatistics": metric_reads.get_metric_statistics,
    "ListMetrics": metric_reads.list_metrics,
    "PutDashboard": dashboards.put_dashboard,
    "GetDashboard": dashboards.get_dashboard,
    "ListDashboards": dashboards.list_dashboards,
    "DeleteDashboards": dashboards.delete_dashboards,
    "PutMetricAlarm": metric_alarms.put_metric_alarm,
    "PutCompositeAlarm": composite_alarms.put_composite_alarm,
    "DescribeAlarms": alarms.describe_alarms,
    "DescribeAlarmsForMetric": alarms.describe_alarms_for_metric,
    "DescribeAlarmHistory": alarm_history.describe_alarm_history,
    "DeleteAlarms": alarms.delete_alarms,
    "SetAlarmState": alarms.set_alarm_state,
    "EnableAlarmActions": alarms.enable_alarm_actions,
    "DisableAlarmActions": alarms.disable_alarm_actions,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
}

HEAVY = frozenset({"GetMetricData", "GetMetricStatistics", "ListMetrics", "ListDashboards"})
OPEN_TO_CONTAINERS = frozenset({"GetMetricData", "GetMetricStatistics", "ListMetrics", "PutMetricData"})
