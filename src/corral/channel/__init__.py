"""Interactive sessions with tasks: the messages of the data channel, and the relay that runs the command.

The command line, the hosts and the server all import this package. It imports only the standard library.
"""
