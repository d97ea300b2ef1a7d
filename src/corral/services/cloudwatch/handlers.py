"""The operations of CloudWatch, and who serves them."""

from corral.services.cloudwatch import (
    alarms,
    composites,
    dashboards,
    history,
    listing,
    metric_alarms,
    putting,
    querying,
    statistics,
    tagging,
)

HANDLERS = {
    "PutMetricData": putting.put_metric_data,
    "GetMetricData": querying.get_metric_data,
    "GetMetricStatistics": statistics.get_metric_statistics,
    "ListMetrics": listing.list_metrics,
    "PutDashboard": dashboards.put_dashboard,
    "GetDashboard": dashboards.get_dashboard,
    "ListDashboards": dashboards.list_dashboards,
    "DeleteDashboards": dashboards.delete_dashboards,
    "PutMetricAlarm": metric_alarms.put_metric_alarm,
    "PutCompositeAlarm": composites.put_composite_alarm,
    "DescribeAlarms": alarms.describe_alarms,
    "DescribeAlarmsForMetric": alarms.describe_alarms_for_metric,
    "DescribeAlarmHistory": history.describe_alarm_history,
    "DeleteAlarms": alarms.delete_alarms,
    "SetAlarmState": alarms.set_alarm_state,
    "EnableAlarmActions": alarms.enable_alarm_actions,
    "DisableAlarmActions": alarms.disable_alarm_actions,
    "TagResource": tagging.tag_resource,
    "UntagResource": tagging.untag_resource,
    "ListTagsForResource": tagging.list_tags_for_resource,
}

HEAVY = frozenset({"GetMetricData", "GetMetricStatistics", "ListMetrics", "ListDashboards"})
