"""The operations of CloudWatch Logs and their handlers."""

from corral.services.logs import event_search, events, groups, metric_filters, streams, tags

HANDLERS = {
    "CreateLogGroup": groups.create_log_group,
    "DeleteLogGroup": groups.delete_log_group,
    "DescribeLogGroups": groups.describe_log_groups,
    "ListLogGroups": groups.list_log_groups,
    "PutRetentionPolicy": groups.put_retention_policy,
    "DeleteRetentionPolicy": groups.delete_retention_policy,
    "PutLogGroupDeletionProtection": groups.put_log_group_deletion_protection,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
    "TagLogGroup": tags.tag_log_group,
    "UntagLogGroup": tags.untag_log_group,
    "ListTagsLogGroup": tags.list_tags_log_group,
    "CreateLogStream": streams.create_log_stream,
    "DeleteLogStream": streams.delete_log_stream,
    "DescribeLogStreams": streams.describe_log_streams,
    "PutLogEvents": events.put_log_events,
    "GetLogEvents": events.get_log_events,
    "FilterLogEvents": event_search.filter_log_events,
    "PutMetricFilter": metric_filters.put_metric_filter,
    "DescribeMetricFilters": metric_filters.describe_metric_filters,
    "DeleteMetricFilter": metric_filters.delete_metric_filter,
    "TestMetricFilter": metric_filters.test_metric_filter,
}

HEAVY = frozenset({"GetLogEvents", "FilterLogEvents", "DescribeLogStreams", "ListLogGroups", "TestMetricFilter"})
OPEN_TO_CONTAINERS = frozenset(
    {
        "CreateLogStream",
        "DescribeLogGroups",
        "DescribeLogStreams",
        "FilterLogEvents",
        "GetLogEvents",
        "ListLogGroups",
        "PutLogEvents",
    }
)
