"""Interactive sessions with tasks: the messages of ExecuteCommand's data channel, and the relay that runs a command.

The command line, the hosts and the server all import this package. It imports only the standard library.
"""
