"""The signals that a client can send to a run, which is one container of a task on a host.

SIGSTOP and SIGCONT are not among them, because a host pauses and resumes runs that print too fast (`node/output_guard.py`).

This module imports nothing, because the spawner imports it and must stay small.
"""

SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM")
