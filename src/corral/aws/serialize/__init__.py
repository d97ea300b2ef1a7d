"""Serializes results to response bytes. Each shape is compiled to a function on first use."""
