"""The constraints of ECS. Some limits are only in ECS's documentation, not in botocore's model. Where the error text of ECS is
known, this table uses it.
"""

from corral.aws.constraints.tables import ConstraintTable, Limit, usual_wording
from corral.model.ecs_service import SERVICE_TASKS_MAX
from corral.model.task import STRATEGIES, UNKNOWN_STRATEGY

CLIENT = "ClientException"
NAME = "[a-zA-Z0-9_-]{1,255}"
INSIGHTS = ("enabled", "disabled", "enhanced")


def _named(subject: str) -> Limit:
    return Limit(
        pattern=NAME,
        code=CLIENT,
        text=f"{subject} contains invalid characters: use up to 255 letters, digits, hyphens and underscores.",
    )


def _setting(least: int, most: int, name: str = "{name}") -> Limit:
    text = f"Invalid '{name}' setting for container. It must be between {{min}} and {{max}}."
    return Limit(min=least, max=most, code=CLIENT, text=text)


def _entries(most: int, name: str = "{name}") -> Limit:
    return Limit(min=1, max=most, text=f"{name} must contain from {{min}} to {{max}} entries.")


CPU = Limit(min=0, code=CLIENT, text="Invalid 'cpu' setting for container: {value}.")
MEMORY = Limit(min=6, code=CLIENT, text="'memory' and 'memoryReservation' of a container must be at least {min} MiB.")
STRATEGY = Limit(max=20, text="A capacity provider strategy can contain at most {max} capacity providers.")
TASKS_OF_SERVICE = Limit(
    min=0, max=SERVICE_TASKS_MAX, text="desiredCount must be between {min} and {max}: a service can have {max} tasks. Use several."
)
STARTED_BY = Limit(max=128, text="startedBy can have up to {max} characters.")
ENVIRONMENT_FILES = Limit(max=10, code=CLIENT, text="A container can have at most {max} environmentFiles.")

TABLE = ConstraintTable(
    usual_wording("InvalidParameterException", {"CreateCapacityProvider": CLIENT, "UpdateCapacityProvider": CLIENT}),
    {
        "*.maxResults": Limit(min=1, max=100, text="maxResults must be between {min} and {max}."),
        "*.tags": Limit(text="Tags can not have more than {max} elements."),
        # Clusters and capacity providers
        "CreateCluster.clusterName": Limit(
            pattern=NAME, text="Invalid cluster name: use up to 255 letters, digits, hyphens and underscores."
        ),
        "DescribeClusters.clusters": Limit(max=100, text="Clusters can not have more than {max} elements."),
        "ClusterSetting.value": Limit(enum=INSIGHTS, text="Invalid cluster setting: containerInsights must be one of {enum}."),
        "CreateCluster.defaultCapacityProviderStrategy": STRATEGY,
        "PutClusterCapacityProviders.defaultCapacityProviderStrategy": STRATEGY,
        "CapacityProviderStrategyItem.weight": Limit(text="A weight must be between {min} and {max}."),
        "CapacityProviderStrategyItem.base": Limit(text="A base must be between {min} and {max}."),
        "CreateCapacityProvider.name": Limit(
            pattern=NAME,
            code=CLIENT,
            text="The specified capacity provider name is invalid: '{value}'. Use up to 255 letters, digits, underscores and "
            "hyphens.",
        ),
        "DescribeCapacityProviders.maxResults": Limit(min=1, max=10, text="maxResults must be between {min} and {max}."),
        "DescribeCapacityProviders.capacityProviders": Limit(
            max=100, text="Capacity providers can not have more than {max} elements."
        ),
        # Container instances
        "DescribeContainerInstances.containerInstances": _entries(100),
        "UpdateContainerInstancesState.containerInstances": _entries(10),
        "UpdateContainerInstancesState.status": Limit(
            enum=("ACTIVE", "DRAINING"), text="Container instance status should be one of [{enum}]."
        ),
        "PutAttributes.attributes": _entries(10),
        "DeleteAttributes.attributes": _entries(10),
        "Attribute.name": Limit(
            pattern=r"[a-zA-Z0-9_./\\-]{1,128}",
            text="Invalid attribute name '{value}': use 1 to 128 letters, digits and - _ . / \\",
        ),
        # Services
        "CreateService.serviceName": Limit(
            pattern=NAME, text="Invalid service name: use up to 255 letters, digits, hyphens and underscores."
        ),
        "DescribeServices.services": (
            Limit(min=1, text="Services cannot be empty."),
            Limit(max=10, text="Services cannot have more than {max} elements."),
        ),
        "DescribeServiceDeployments.serviceDeploymentArns": _entries(20),
        "DescribeServiceRevisions.serviceRevisionArns": _entries(20),
        "CreateService.desiredCount": TASKS_OF_SERVICE,
        "UpdateService.desiredCount": TASKS_OF_SERVICE,
        # Tasks
        "RunTask.count": Limit(min=1, max=10, text="Count must be between {min} and {max}."),
        "RunTask.startedBy": STARTED_BY,
        "RunTask.capacityProviderStrategy": STRATEGY,
        "RunTask.placementStrategy": Limit(max=5, text="A task can have up to {max} placement strategies."),
        "PlacementConstraint.type": Limit(text="constraint.type '{value}' is not supported; use memberOf or distinctInstance."),
        "PlacementStrategy.type": Limit(enum=STRATEGIES, text=UNKNOWN_STRATEGY),
        "StartTask.startedBy": STARTED_BY,
        "StartTask.containerInstances": _entries(10),
        "DescribeTasks.tasks": _entries(100, "Tasks"),
        "GetTaskProtection.tasks": _entries(100, "Tasks"),
        "UpdateTaskProtection.tasks": _entries(10, "Tasks"),
        "UpdateTaskProtection.expiresInMinutes": Limit(min=1, max=2880, text="expiresInMinutes must be between {min} and {max}."),
        "ExecuteCommand.command": Limit(max=16 * 1024, in_bytes=True, text="A command can have up to {max} bytes."),
        "ContainerOverride.cpu": CPU,
        "ContainerOverride.memory": MEMORY,
        "ContainerOverride.memoryReservation": MEMORY,
        "ContainerOverride.environmentFiles": ENVIRONMENT_FILES,
        "EnvironmentFile.type": Limit(code=CLIENT, text="The type of an environment file must be s3, not '{value}'."),
        "EnvironmentFile.value": (
            Limit(
                pattern="arn:aws[a-z-]*:s3:::[^/]+/.+",
                code=CLIENT,
                text="environmentFiles: '{value}' is not the ARN of an S3 object.",
            ),
            Limit(pattern=r".*\.env", code=CLIENT, text="The environment file '{value}' must have the extension .env."),
        ),
        # Task definitions
        "DeleteTaskDefinitions.taskDefinitions": Limit(
            min=1, max=10, text="taskDefinitions must contain from {min} to {max} entries."
        ),
        "RegisterTaskDefinition.family": _named("Family"),
        "RegisterTaskDefinition.containerDefinitions": (
            Limit(min=1, code=CLIENT, text="Container list cannot be empty."),
            Limit(max=10, code=CLIENT, text="A task definition can have at most {max} containers."),
        ),
        "RegisterTaskDefinition.placementConstraints": Limit(
            max=10, code=CLIENT, text="A task definition can have up to {max} placement constraints."
        ),
        "TaskDefinitionPlacementConstraint.type": Limit(code=CLIENT, text="constraint.type '{value}' is not supported."),
        "EphemeralStorage.sizeInGiB": Limit(
            min=21,
            max=200,
            code=CLIENT,
            text="Invalid 'ephemeralStorage' setting for task. 'sizeInGiB' must be between {min} and {max}.",
        ),
        "Volume.name": Limit(
            pattern=NAME, code=CLIENT, text="Volume name should have up to 255 letters, digits, hyphens and underscores."
        ),
        "ContainerDefinition.name": _named("Container.name"),
        "ContainerDefinition.memory": MEMORY,
        "ContainerDefinition.memoryReservation": MEMORY,
        "ContainerDefinition.cpu": CPU,
        "ContainerDefinition.startTimeout": _setting(1, 86_400),
        "ContainerDefinition.stopTimeout": _setting(0, 86_400),
        "ContainerDefinition.environmentFiles": ENVIRONMENT_FILES,
        "ContainerRestartPolicy.restartAttemptPeriod": _setting(60, 1800, "restartPolicy.{name}"),
        "ContainerRestartPolicy.ignoredExitCodes": Limit(
            max=50, code=CLIENT, text="At most {max} ignoredExitCodes are allowed for a container."
        ),
        "HealthCheck.interval": _setting(5, 300, "healthCheck.{name}"),
        "HealthCheck.timeout": _setting(2, 60, "healthCheck.{name}"),
        "HealthCheck.retries": _setting(1, 10, "healthCheck.{name}"),
        "HealthCheck.startPeriod": _setting(0, 300, "healthCheck.{name}"),
        "LinuxParameters.swappiness": _setting(0, 100, "linuxParameters.{name}"),
    },
)
