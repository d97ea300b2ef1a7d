"""`corral pipeline`."""
