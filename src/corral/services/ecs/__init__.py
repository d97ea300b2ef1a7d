"""Amazon ECS."""
