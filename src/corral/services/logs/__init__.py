"""CloudWatch Logs: groups, streams, events, and the output of runs that hosts ship."""
