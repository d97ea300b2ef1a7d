"""The life of tasks, services and jobs: what starts, what is retried, what has failed."""
