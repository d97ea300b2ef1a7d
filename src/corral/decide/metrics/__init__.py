"""Statistics, metric math, searches and alarms."""
