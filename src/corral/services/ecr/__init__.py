"""Amazon ECR: repositories and images. The registry that Docker pushes to is `server/registry.py`; both work on the same rows."""
