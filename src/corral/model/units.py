"""Units of CPU and memory. No imports, because the small spawner uses this module."""

CPU_UNITS_PER_CORE = 1024
MIB = 2**20
