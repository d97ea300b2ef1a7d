"""Parts of the server, without a server process."""
