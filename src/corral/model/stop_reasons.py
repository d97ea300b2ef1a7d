"""Reasons why a run ended. The agents of hosts use these texts, and so does the core.

This module imports nothing, because the spawner imports it and must stay small.
"""

OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"
STOPPED_BEFORE_START = "stopped before it was started"
ALLOCATION_OVER = "the lender has taken the machine away: the allocation of the host is over"
FENCED = "the host had no answer from the server for the time of corral:fence-after"
HOST_RESTARTED = "the host was restarted while the task was on it"
HOST_FORGOTTEN = "the host was lost while the task was on it: corral hosts forget"
HOST_LOST_IN_TIME = "the host was lost while the task was on it: it did not report for the {} s of lost_after"
HOST_DRAINED = "the host is drained: corral hosts drain"
