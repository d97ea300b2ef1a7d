"""Parses request bytes into parameters. Each shape is compiled to a function on first use."""
