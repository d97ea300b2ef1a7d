"""Units of CPU and memory.

This module imports nothing, because the spawner imports it and must stay small.
"""

CPU_UNITS_PER_CORE = 1024
MIB = 2**20
