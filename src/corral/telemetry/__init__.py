"""Series and log events: files of their own."""

from corral.telemetry.logs import Event, Group, LogStore, MetricFilter, Stream
from corral.telemetry.metrics import MetricStore

__all__ = ["Event", "Group", "LogStore", "MetricFilter", "MetricStore", "Stream"]
