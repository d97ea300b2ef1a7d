"""Handlers of AWS Batch: job queues, compute environments, job definitions and jobs."""
