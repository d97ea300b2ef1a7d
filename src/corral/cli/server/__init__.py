"""Commands that start, stop, configure, save and remove a Corral."""
