"""Options and settings of the processes."""
