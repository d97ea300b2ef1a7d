"""CloudWatch Logs: groups, streams, events, and the output of tasks."""
