"""The metric store and the log store: separate databases, so that telemetry never slows down the state."""

from corral.telemetry.logs import LogEvent, LogGroup, LogStore, LogStream, MetricFilter
from corral.telemetry.metrics import MetricStore

__all__ = ["LogEvent", "LogGroup", "LogStore", "LogStream", "MetricFilter", "MetricStore"]
