"""The operations of CloudWatch Logs and their handlers."""

from corral.aws.handlers import handlers_in
from corral.services.logs import event_search, events, groups, metric_filters, streams, tags

HANDLERS = handlers_in("logs", globals())

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
