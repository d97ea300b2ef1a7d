"""The core and its lanes."""
