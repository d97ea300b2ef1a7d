"""`corral status` and `corral top`."""
