"""Commands about people: who may use the server, and how they connect to it."""
