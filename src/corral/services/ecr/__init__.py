"""Amazon ECR: repositories and images. Docker pushes images to the registry in `server/registry/`, which uses the same tables."""
