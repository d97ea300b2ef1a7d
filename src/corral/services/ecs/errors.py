"""The errors of ECS: one class per error code, and the texts that several operations share."""

from corral.aws.error_classes import error_classes
from corral.core.errors import ApiError, api_error

__getattr__ = error_classes("ecs", globals())

# The API of the ECS agent responds with this error and the HTTP status 404. The API of ECS itself responds with 400.
TaskNotFound = api_error("ResourceNotFoundException", 404)


def cluster_not_found() -> ApiError:
    return __getattr__("ClusterNotFoundException")("Cluster not found.")
