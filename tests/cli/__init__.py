"""Commands, without a server."""
