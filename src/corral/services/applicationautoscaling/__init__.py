"""Application Auto Scaling of ECS services."""
