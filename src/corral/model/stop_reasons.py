"""Reasons for the end of a run that both hosts and the core report. No imports, because the small spawner uses this module."""

OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"
STOPPED_BEFORE_START = "stopped before it was started"
HOST_RESTARTED = "the host was restarted while the task was on it"
