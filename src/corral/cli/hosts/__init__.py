"""Commands for several machines: tokens, hosts that join, and the list of hosts."""
