"""`corral fleet`."""
