"""The errors of ECS: one class per error code."""

from corral.errors import api_error

AttributeLimitExceededException = api_error("AttributeLimitExceededException")
ClientException = api_error("ClientException")
ClusterContainsContainerInstancesException = api_error("ClusterContainsContainerInstancesException")
ClusterContainsServicesException = api_error("ClusterContainsServicesException")
ClusterContainsTasksException = api_error("ClusterContainsTasksException")
ClusterNotFoundException = api_error("ClusterNotFoundException")
ConflictException = api_error("ConflictException")
InvalidParameterException = api_error("InvalidParameterException")
PlatformUnknownException = api_error("PlatformUnknownException")
ResourceInUseException = api_error("ResourceInUseException")
ResourceNotFoundException = api_error("ResourceNotFoundException")
ServiceNotActiveException = api_error("ServiceNotActiveException")
ServiceNotFoundException = api_error("ServiceNotFoundException")
TargetNotConnectedException = api_error("TargetNotConnectedException")
TargetNotFoundException = api_error("TargetNotFoundException")
TaskNotFound = api_error("ResourceNotFoundException", 404)  # the agent's API has HTTP status 404 for it, ECS's API has 400
UnsupportedFeatureException = api_error("UnsupportedFeatureException")
