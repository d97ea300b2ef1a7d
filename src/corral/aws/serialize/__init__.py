"""Serializes results to the bytes of a response. On first use, each shape of the model is compiled into a function, its writer."""
