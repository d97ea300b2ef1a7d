"""Parses the bytes of a request into parameters. On first use, each shape of the model is compiled into a function, its reader."""
