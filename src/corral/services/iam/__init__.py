"""AWS IAM: roles, policies and instance profiles. The policies of a role are enforced only for tasks in Docker containers."""
