"""From bytes to parameters: one closure per shape, compiled on first use."""
