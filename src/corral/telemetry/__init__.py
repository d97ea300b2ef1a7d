"""The metric store and the log store. They are separate databases, so that metrics and logs never delay the state store."""

from corral.telemetry.logs import LogEvent, LogGroup, LogStore, LogStream, MetricFilter
from corral.telemetry.metrics import MetricStore

__all__ = ["LogEvent", "LogGroup", "LogStore", "LogStream", "MetricFilter", "MetricStore"]
