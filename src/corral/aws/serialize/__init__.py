"""From results to bytes: one closure per shape, compiled on first use."""
