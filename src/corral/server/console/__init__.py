"""The console: a web page on a port of its own, and what it calls (docs/console.md).

The server listens on the port of the console from its start. The other modules of this folder, and the page in `corral/console/`,
are loaded with the first request or the first link. The page calls AWS operations and operations of `services/corral` in JSON. Each
call is the exchange of a session's identity (`calls.py`), and takes the same way through the server as a request to the API.
"""
