"""Which slot and which GPUs a task or an instance gets, what waits, and when it can start."""
