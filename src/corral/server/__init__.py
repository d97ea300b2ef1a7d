"""The server process: connects stores, lanes, hosts and the HTTP port."""
