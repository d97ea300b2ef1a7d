"""Patterns of log events, and the metrics in them."""
