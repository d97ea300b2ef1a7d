"""What the two ends of a person's session with a task share: the messages of the data channel, and the relay at the command's end.

Everyone may import this room, and it imports nothing but the standard library: the command line and the hosts use it as well as the
server.
"""
