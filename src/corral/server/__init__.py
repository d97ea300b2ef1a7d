"""The server process. It connects the databases, the agents of hosts and the HTTP port."""
