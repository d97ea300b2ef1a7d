"""The server's connections to the agents of hosts, the orders that they get, and the supervision of the agent on this machine."""
