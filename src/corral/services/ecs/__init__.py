"""Handlers of Amazon ECS: clusters, task definitions, tasks, services and container instances."""
