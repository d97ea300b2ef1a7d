"""Amazon ECR: repositories and images. Docker pushes to the registry (`server/registry/`), which works on the same rows."""
