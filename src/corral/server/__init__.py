"""All the wiring: stores, lanes, hosts and the HTTP port."""
