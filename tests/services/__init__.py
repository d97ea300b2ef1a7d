"""Handlers on a core with a virtual clock, without a server."""
