"""CloudWatch: metrics, dashboards and alarms."""
