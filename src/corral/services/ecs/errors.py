"""The errors of ECS: one class per error code."""

from corral.errors import api_error

AccessDeniedException = api_error("AccessDeniedException")
AttributeLimitExceededException = api_error("AttributeLimitExceededException")
ClientException = api_error("ClientException")
ClusterContainsContainerInstancesException = api_error("ClusterContainsContainerInstancesException")
ClusterContainsServicesException = api_error("ClusterContainsServicesException")
ClusterContainsTasksException = api_error("ClusterContainsTasksException")
ClusterNotFoundException = api_error("ClusterNotFoundException")
ConflictException = api_error("ConflictException")
InvalidParameterException = api_error("InvalidParameterException")
LimitExceededException = api_error("LimitExceededException")
PlatformUnknownException = api_error("PlatformUnknownException")
ResourceInUseException = api_error("ResourceInUseException")
ResourceNotFoundException = api_error("ResourceNotFoundException")
ServiceDeploymentNotFoundException = api_error("ServiceDeploymentNotFoundException")
ServiceNotActiveException = api_error("ServiceNotActiveException")
ServiceNotFoundException = api_error("ServiceNotFoundException")
TargetNotConnectedException = api_error("TargetNotConnectedException")
TargetNotFoundException = api_error("TargetNotFoundException")
# The API of the ECS agent responds with this error and the HTTP status 404. The API of ECS itself responds with 400.
TaskNotFound = api_error("ResourceNotFoundException", 404)
TaskSetNotFoundException = api_error("TaskSetNotFoundException")
UnsupportedFeatureException = api_error("UnsupportedFeatureException")
