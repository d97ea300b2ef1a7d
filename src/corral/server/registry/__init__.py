"""The image registry: OCI's distribution API, version 2, as Docker speaks it. ECR shows the same images (`services/ecr/`)."""
