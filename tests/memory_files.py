"""The folder for files of tests in which only processes crash, not the machine: files in memory need no disk."""

from __future__ import annotations

import os

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # None: the usual folder for temporary files
