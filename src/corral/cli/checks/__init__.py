"""`corral doctor` and its checks."""
