"""The folder for databases of tests in which only the process crashes, not the machine: files in memory need no fsync."""

from __future__ import annotations

import os

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # None: the usual folder for temporary files
