"""`corral run` and the commands for runs."""
