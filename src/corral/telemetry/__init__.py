"""Series and log events: files of their own."""

from corral.telemetry.logs import Event, LogStore, Stream

__all__ = ["Event", "LogStore", "Stream"]
