"""The permissions that an operation needs: IAM actions, and the ARNs of the resources that the request names.

Handlers ignore some parts of an ARN, so different ARNs in requests can refer to the same resource. The permission therefore has
the ARN of the resource that the handler will find. With the ARN of the request, a caller could evade a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from msgspec import Struct, field

from corral.access.caller import Caller
from corral.access.roles import find_role
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import NO_RESOURCE, UNKNOWN_RESOURCE
from corral.operations.stored_resources import get as get_resource
from corral.services.applicationautoscaling.names import SERVICE as SCALABLE
from corral.services.applicationautoscaling.names import find_target
from corral.services.batch.permission_scope import arns_of, tasks_of
from corral.services.cloudformation.stack_descriptions import stack_with_resource
from corral.services.cloudformation.template_sources import addresses
from corral.services.ecs import host_access
from corral.services.ecs import permission_scope as ecs_scope
from corral.services.ecs.lookup import arn as ecs_arn
from corral.services.ecs.lookup import find_definition, short, split_definition
from corral.services.iam.instance_profiles import INSTANCE_PROFILE
from corral.services.logs.common import group_name
from corral.services.sqs.move_tasks import task_with_handle
from corral.services.sqs.queue_names import arn_of as queue_arn_of
from corral.services.sqs.queue_names import queue_with_arn
from corral.services.ssm.parameter_names import arn as parameter_arn
from corral.services.ssm.parameter_names import parse_reference
from corral.store import Store

Params = Mapping[str, Any]

RUN_ON_HOST = "corral:RunOnHost"  # an action that AWS does not have: launch a task or create a function with access to the host
PASS_ROLE = "iam:PassRole"
PASSED_TO_TASKS: Context = {"iam:passedtoservice": ("ecs-tasks.amazonaws.com",)}
PASSED_TO_INSTANCES: Context = {"iam:passedtoservice": ("ec2.amazonaws.com",)}
PASSED_TO_FUNCTIONS: Context = {"iam:passedtoservice": ("lambda.amazonaws.com",)}
PASSED_TO_BATCH: Context = {"iam:passedtoservice": ("batch.amazonaws.com",)}
PASSED_TO_STACKS: Context = {"iam:passedtoservice": ("cloudformation.amazonaws.com",)}


class Permission(Struct, frozen=True):
    action: str  # as in a policy: "ecs:RunTask"
    resource: str  # an ARN, NO_RESOURCE or UNKNOWN_RESOURCE
    context: Context = field(default_factory=dict)  # condition keys and their values; keys are in lower case


def permissions(tx: Tx[Store], caller: Caller, service: str, operation: str, params: Params) -> list[Permission]:
    """All permissions that the caller needs for the operation. `params` are the parameters of the request.

    For S3, `params` has only the parameters in the head of the request, because the body has not arrived yet.
    """
    derive = DERIVATIONS.get(service)
    if derive is None:
        return [Permission(f"{service}:{operation}", UNKNOWN_RESOURCE, _tags(params))]
    return derive(tx, caller, operation, params)


def action_of(service: str, operation: str) -> str:
    """The IAM action of an operation. It has the name of the operation, unless ACTIONS has another name."""
    return f"{service}:{ACTIONS.get(service, {}).get(operation, operation)}"


def _tags(params: Params) -> Context:
    """The condition keys aws:RequestTag/KEY and aws:TagKeys, if the request has tags."""
    given = params.get("tags") or params.get("Tags") or ()
    tags = [{"key": key, "value": value} for key, value in given.items()] if isinstance(given, Mapping) else given
    pairs = {tag.get("key", tag.get("Key", "")): tag.get("value", tag.get("Value", "")) for tag in tags if isinstance(tag, Mapping)}
    if not pairs:
        return {}
    return {"aws:tagkeys": tuple(pairs), **{f"aws:requesttag/{key.lower()}": (str(value),) for key, value in pairs.items()}}


def _each(service: str, operation: str, arns: Iterable[str], context: Context) -> list[Permission]:
    """One permission for each ARN. If there are no ARNs, one permission without a resource."""
    action = action_of(service, operation)
    return [Permission(action, each, context) for each in arns] or [Permission(action, NO_RESOURCE, context)]


# ECS


def _ecs(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    if operation in ("RunTask", "StartTask"):
        return _launch(tx, caller, operation, params)
    arns = ecs_scope.arns_of(caller, operation, params) or [NO_RESOURCE]
    needed = [
        Permission(f"ecs:{operation}", each, _ecs_context(caller, ecs_scope.cluster_in(each, params), params)) for each in arns
    ]
    if operation == "RegisterTaskDefinition":
        return needed + _pass_roles(tx, caller, params, {}) + _host(params)
    if operation in ("CreateService", "CreateTaskSet", "UpdateService") and params.get("taskDefinition"):
        return needed + _host(_definition(tx, caller, params["taskDefinition"])[1])
    return needed


def _ecs_context(caller: Caller, cluster: str, params: Params) -> Context:
    return {"ecs:cluster": (ecs_arn(caller.account, caller.region, f"cluster/{cluster}"),), **_tags(params)}


def _launch(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    name, document = _definition(tx, caller, params.get("taskDefinition", ""))
    definition_arn = ecs_arn(caller.account, caller.region, f"task-definition/{name}")
    context = _ecs_context(caller, ecs_scope.cluster_of(params), params)
    return [
        Permission(f"ecs:{operation}", definition_arn, context),
        *_pass_roles(tx, caller, document, params.get("overrides") or {}),
        *_host(document),
    ]


def _definition(tx: Tx[Store], caller: Caller, given: str) -> tuple[str, Params]:
    """FAMILY:REVISION and the document of the task definition that the handler will find."""
    try:
        revision, _, document = find_definition(tx, caller, given)
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return short(given), {}
    return f"{split_definition(given)[0]}:{revision}", document


def _pass_roles(tx: Tx[Store], caller: Caller, document: Params, overrides: Params) -> list[Permission]:
    """The permissions to pass the task's roles. A task can do what its roles allow, so its creator needs these permissions."""
    given = [overrides.get(member) or document.get(member) for member in ("taskRoleArn", "executionRoleArn")]
    return [Permission(PASS_ROLE, role_arn(tx, caller, role), PASSED_TO_TASKS) for role in dict.fromkeys(given) if role]


def _host(document: Params) -> list[Permission]:
    """The permission to run a task that has access to the host.

    AWS has no such action. There, the host of a task is an instance of the user, and not the machine that runs ECS itself.
    """
    return [Permission(RUN_ON_HOST, NO_RESOURCE)] if host_access.setting_with_host_access(document) is not None else []


def role_arn(tx: Tx[Store], caller: Caller, given: str) -> str:
    """The ARN of the role that the handler will find. The handler finds a role by name only, so the path in `given` is ignored."""
    role = find_role(tx, short(given))
    if role is not None:
        return str(role["Arn"])
    return given if given.startswith("arn:") else f"arn:aws:iam::{caller.account}:role/{given}"


# S3


def _s3(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    bucket, key, version = params.get("Bucket"), params.get("Key"), params.get("VersionId")
    action = action_of("s3", operation)
    if version and action in ("s3:GetObject", "s3:DeleteObject", "s3:GetObjectTagging", "s3:GetObjectAcl"):
        action = {"s3:GetObjectTagging": "s3:GetObjectVersionTagging", "s3:GetObjectAcl": "s3:GetObjectVersionAcl"}.get(
            action, f"{action}Version"
        )
    if bucket is None:
        return [Permission(action, NO_RESOURCE)]
    context: Context = {
        name: (params[member],)
        for name, member in (("s3:prefix", "Prefix"), ("s3:delimiter", "Delimiter"))
        if params.get(member) is not None
    }
    resource = f"arn:aws:s3:::{bucket}" if key is None else f"arn:aws:s3:::{bucket}/{key}"
    needed = [Permission(action, resource, context)]
    if operation in ("CopyObject", "UploadPartCopy") and params.get("CopySource"):
        source, _, source_version = params["CopySource"].partition("?versionId=")
        reads = "s3:GetObjectVersion" if source_version else "s3:GetObject"
        needed.append(Permission(reads, f"arn:aws:s3:::{unquote(source).removeprefix('/')}"))
    return needed


# Other services


def _sqs(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    name = params.get("QueueName") or params.get("QueueUrl", "").rstrip("/").rpartition("/")[2]
    arns = [f"arn:aws:sqs:{caller.region}:{caller.account}:{name}"] if name else []
    if operation == "CancelMessageMoveTask":
        arns = [_moved_queue_arn(tx, params.get("TaskHandle", ""))]
    arns += [_queue_arn(tx, params[member]) for member in ("SourceArn", "DestinationArn") if params.get(member)]  # of move tasks
    return _each("sqs", operation, arns if operation != "ListQueues" else (), _tags(params))


def _queue_arn(tx: Tx[Store], given: str) -> str:
    """The ARN of the queue that the handler will find. The handler ignores the partition in `given`."""
    queue = queue_with_arn(tx, given)
    return given if queue is None else queue_arn_of(tx, queue)


def _moved_queue_arn(tx: Tx[Store], handle: str) -> str:
    try:
        return _queue_arn(tx, task_with_handle(tx, handle).source_arn)
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return UNKNOWN_RESOURCE


def _sns(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission on the topic. As on AWS, operations on one subscription have no resource."""
    if operation == "CreateTopic":
        arns = [f"arn:aws:sns:{caller.region}:{caller.account}:{params.get('Name', '')}"]
    else:
        given = params.get("TopicArn") or params.get("TargetArn") or params.get("ResourceArn")
        arns = [given] if given else []
    return _each("sns", operation, arns, _tags(params))


_STREAMS = frozenset({"DeleteLogStream", "GetLogEvents", "PutLogEvents"})


def _logs(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    given = params.get("logGroupName") or params.get("logGroupIdentifier")
    arns: list[str]
    if given:
        part = f"log-stream:{params['logStreamName']}" if operation in _STREAMS and params.get("logStreamName") else "*"
        arns = [f"arn:aws:logs:{caller.region}:{caller.account}:log-group:{group_name(given)}:{part}"]
    elif given := params.get("resourceArn"):
        is_group = ":log-group:" in given  # the handler ignores the region and the account in this ARN
        arns = [f"arn:aws:logs:{caller.region}:{caller.account}:log-group:{group_name(given)}" if is_group else given]
    else:
        arns = [f"arn:aws:logs:{caller.region}:{caller.account}:log-group:*"] if operation == "DescribeLogGroups" else []
    return _each("logs", operation, arns, _tags(params))


def _ssm(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    if operation == "GetParametersByPath":
        names = [params.get("Path", "/").rstrip("/") or "/*"]
    elif operation in ("AddTagsToResource", "RemoveTagsFromResource", "ListTagsForResource"):
        names = [params.get("ResourceId", "")]
    else:
        names = [*params.get("Names", ()), *([params["Name"]] if params.get("Name") else ())]
    found = [parse_reference(caller, name) for name in names]
    return _each("ssm", operation, [parameter_arn(caller.account, each.region, each.name) for each in found], _tags(params))


def _ecr(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    names = params.get("repositoryNames") or ([params["repositoryName"]] if params.get("repositoryName") else [])
    if operation == "DescribeRepositories" and not names:
        names = ["*"]
    arns = [f"arn:aws:ecr:{caller.region}:{caller.account}:repository/{name}" for name in names]
    return _each("ecr", operation, arns or ([params["resourceArn"]] if params.get("resourceArn") else []), _tags(params))


def _iam(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    path, context = params.get("Path", "/"), _tags(params)
    if params.get("PolicyArn"):
        context = {**context, "iam:policyarn": (params["PolicyArn"],)}
    if "RoleName" in params and operation != "AddRoleToInstanceProfile" and operation != "RemoveRoleFromInstanceProfile":
        name = params["RoleName"]
        created = f"arn:aws:iam::{caller.account}:role{path}{name}"
        arns = [created if operation == "CreateRole" else role_arn(tx, caller, name)]
    elif "PolicyArn" in params:
        arns = [params["PolicyArn"]]
    elif "PolicyName" in params:
        arns = [f"arn:aws:iam::{caller.account}:policy{path}{params['PolicyName']}"]
    elif "InstanceProfileName" in params:
        arns = [UNKNOWN_RESOURCE]
    else:
        arns = [NO_RESOURCE if operation.startswith("List") else UNKNOWN_RESOURCE]
    needed = _each("iam", operation, arns, context)
    if operation == "AddRoleToInstanceProfile":
        needed.append(Permission(PASS_ROLE, role_arn(tx, caller, params["RoleName"]), PASSED_TO_INSTANCES))
    return needed


def _ec2(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission for the operation, and the permission to pass the role of the instance profile that the request names."""
    profile = params.get("IamInstanceProfile") or {}
    name = profile.get("Name") or profile.get("Arn", "").rpartition("/")[2]
    found = get_resource(tx, caller, INSTANCE_PROFILE, name) if name else None
    roles = [role_arn(tx, caller, role) for role in (found["_roles"] if found is not None else ())]
    return [
        Permission(f"ec2:{operation}", UNKNOWN_RESOURCE, _tags(params)),
        *(Permission(PASS_ROLE, role, PASSED_TO_INSTANCES) for role in roles),
    ]


def _sts(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    if operation != "AssumeRole":
        return [Permission(f"sts:{operation}", NO_RESOURCE)]
    return [Permission("sts:AssumeRole", role_arn(tx, caller, params["RoleArn"]), assume_role_context(params))]


def assume_role_context(params: Params) -> Context:
    """The condition keys of AssumeRole. They are used for the caller's policies and for the trust policy of the role."""
    keys = {"sts:externalid": "ExternalId", "sts:rolesessionname": "RoleSessionName", "sts:sourceidentity": "SourceIdentity"}
    return {key: (params[member],) for key, member in keys.items() if params.get(member)}


def _lambda(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the function, to pass its role, to read the objects with its code, and to run code on the host."""
    given = params.get("FunctionName") or params.get("Resource") or ""
    name = given.removesuffix(":$LATEST").rpartition(":")[2]
    arns = [f"arn:aws:lambda:{caller.region}:{caller.account}:function:{name}"] if name else []
    needed = _each("lambda", operation, arns, _tags(params))
    if params.get("Role"):
        needed.append(Permission(PASS_ROLE, role_arn(tx, caller, params["Role"]), PASSED_TO_FUNCTIONS))
    source = params.get("Code", params)
    if source.get("S3Bucket"):
        reads = "s3:GetObjectVersion" if source.get("S3ObjectVersion") else "s3:GetObject"
        needed.append(Permission(reads, f"arn:aws:s3:::{source['S3Bucket']}/{source.get('S3Key', '')}"))
    if operation in ("CreateFunction", "UpdateFunctionCode", "UpdateFunctionConfiguration"):
        needed.append(Permission(RUN_ON_HOST, NO_RESOURCE))
    return needed


def _cloudwatch(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    alarms = params.get("AlarmNames") or ([params["AlarmName"]] if params.get("AlarmName") else [])
    arns = [f"arn:aws:cloudwatch:{caller.region}:{caller.account}:alarm:{name}" for name in alarms]
    boards = params.get("DashboardNames") or ([params["DashboardName"]] if params.get("DashboardName") else [])
    arns += [f"arn:aws:cloudwatch::{caller.account}:dashboard/{name}" for name in boards]
    arns += [params["ResourceARN"]] if params.get("ResourceARN") else []
    namespace: Context = {"cloudwatch:namespace": (params["Namespace"],)} if params.get("Namespace") else {}
    return _each("cloudwatch", operation, arns, {**_tags(params), **namespace})


def _autoscaling(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the groups that a request names, or whose instances it names. Describe operations have no resources."""
    if operation.startswith("Describe"):
        return _each("autoscaling", operation, (), {})
    names = {params.get("AutoScalingGroupName"), *(tag.get("ResourceId") for tag in params.get("Tags", ()))} - {None}
    if (policy := params.get("PolicyName", "")).startswith("arn:"):  # the handler reads the group name from this ARN
        names = {policy.partition(":autoScalingGroupName/")[2].partition(":policyName/")[0]}
    instance = params.get("InstanceId", "") if operation != "CreateAutoScalingGroup" else ""
    member = tx.store.groups.member_with_ec2_id(caller.region, instance)
    names |= {member.group} if member is not None else set()
    arns = []
    for name in sorted(name.rpartition(":autoScalingGroupName/")[2] for name in names):
        group = tx.store.groups.get(caller.region, name)
        uid = group.uid if group is not None else "*"
        arns.append(f"arn:aws:autoscaling:{caller.region}:{caller.account}:autoScalingGroup:{uid}:autoScalingGroupName/{name}")
    return _each("autoscaling", operation, arns or [UNKNOWN_RESOURCE], _tags(params))


def _application_autoscaling(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission on the scalable target. Describe operations have no resources.

    A target gets its ARN when it is registered. For a target without an ARN, a policy must allow the action on all targets.
    """
    keys = {"service-namespace": "ServiceNamespace", "scalable-dimension": "ScalableDimension"}
    context: Context = {f"{SCALABLE}:{key}": (params[member],) for key, member in keys.items() if params.get(member)}
    if operation.startswith("Describe"):
        return _each(SCALABLE, operation, (), context)
    if params.get("ResourceARN"):
        arns = [params["ResourceARN"]]
    else:
        target = find_target(tx, caller.region, params.get("ResourceId", ""))
        any_target = f"arn:aws:{SCALABLE}:{caller.region}:{caller.account}:scalable-target/*"
        arns = [target["ScalableTargetARN"] if target is not None else any_target]
    return _each(SCALABLE, operation, arns, {**context, **_tags(params)})


# Operations on a change set. A request with the ARN of a change set does not need the name of a stack.
_CHANGE_SETS = frozenset({"DeleteChangeSet", "DescribeChangeSet", "ExecuteChangeSet", "GetTemplate"})


def _cloudformation(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the stack that the handler will find, to read the objects of the request, and to pass the stack's role.

    The resources of a stack need their own permissions, which are checked when the stack creates the resources.
    """
    given = params.get("StackName") or ""
    change_set = params.get("ChangeSetName") or ""
    if operation in _CHANGE_SETS and change_set.startswith("arn:"):
        found = tx.store.change_sets.get(change_set)
        given = found.stack_id if found is not None else ""
    arns = []
    if given.startswith("arn:"):
        arns = [given]
    elif given:
        stack = tx.store.stacks.named(caller.region, given)
        arns = [stack.id if stack is not None else f"arn:aws:cloudformation:{caller.region}:{caller.account}:stack/{given}/*"]
    elif operation == "DescribeStackResources":
        arns = [_stack_of_resource(tx, caller, params.get("PhysicalResourceId", ""))]
    context: Context = {
        **_tags(params),
        **{key: (params[member],) for key, member in _CONDITION_MEMBERS.items() if isinstance(params.get(member), str)},
    }
    needed = _each("cloudformation", operation, arns or ([UNKNOWN_RESOURCE] if change_set else []), context)
    needed += [
        Permission("s3:GetObjectVersion" if each.version_id else "s3:GetObject", f"arn:aws:s3:::{each.bucket}/{each.key}")
        for each in addresses(tx, params)
    ]
    if params.get("RoleARN"):
        needed.append(Permission(PASS_ROLE, role_arn(tx, caller, params["RoleARN"]), PASSED_TO_STACKS))
    return needed


def _stack_of_resource(tx: Tx[Store], caller: Caller, physical_id: str) -> str:
    try:
        return stack_with_resource(tx, caller, physical_id).id
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return UNKNOWN_RESOURCE


_CONDITION_MEMBERS = {
    "cloudformation:changesetname": "ChangeSetName",
    "cloudformation:rolearn": "RoleARN",
    "cloudformation:stackpolicyurl": "StackPolicyURL",
    "cloudformation:templateurl": "TemplateURL",
}


def _batch(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the resources, to pass the roles of jobs and compute environments, and to run jobs on the host."""
    share: Context = {"batch:shareidentifier": (params["shareIdentifier"],)} if params.get("shareIdentifier") else {}
    needed = _each("batch", operation, arns_of(tx, caller, operation, params), {**share, **_tags(params)})
    tasks = tasks_of(tx, caller, operation, params)
    for role in dict.fromkeys(role for task in tasks for role in task.roles):
        needed.append(Permission(PASS_ROLE, role_arn(tx, caller, role), PASSED_TO_TASKS))
    if params.get("serviceRole"):
        needed.append(Permission(PASS_ROLE, role_arn(tx, caller, params["serviceRole"]), PASSED_TO_BATCH))
    profile = (params.get("computeResources") or {}).get("instanceRole")
    found = get_resource(tx, caller, INSTANCE_PROFILE, short(profile)) if profile else None
    for role in found["_roles"] if found is not None else ():
        needed.append(Permission(PASS_ROLE, role_arn(tx, caller, role), PASSED_TO_INSTANCES))
    return needed + next((host for task in tasks if (host := _host(task.definition))), [])


def _corral(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    return [Permission(f"corral:{operation}", NO_RESOURCE)]


Derivation = Callable[[Tx[Store], Caller, str, Params], list[Permission]]
DERIVATIONS: dict[str, Derivation] = {
    SCALABLE: _application_autoscaling,
    "autoscaling": _autoscaling,
    "batch": _batch,
    "cloudformation": _cloudformation,
    "cloudwatch": _cloudwatch,
    "corral": _corral,  # Corral's own pages, such as the status page
    "ec2": _ec2,
    "ecr": _ecr,
    "ecs": _ecs,
    "iam": _iam,
    "lambda": _lambda,
    "logs": _logs,
    "s3": _s3,
    "sns": _sns,
    "sqs": _sqs,
    "ssm": _ssm,
    "sts": _sts,
}

ACTIONS: dict[str, dict[str, str]] = {  # service → operation → action, for actions whose name is not the operation's
    "batch": {"CancelJobs": "CancelJob", "TerminateJobs": "TerminateJob"},
    "lambda": {"Invoke": "InvokeFunction"},
    "s3": {
        "CompleteMultipartUpload": "PutObject",
        "CopyObject": "PutObject",
        "CreateMultipartUpload": "PutObject",
        "DeleteBucketAnalyticsConfiguration": "PutAnalyticsConfiguration",
        "DeleteBucketCors": "PutBucketCORS",
        "DeleteBucketEncryption": "PutEncryptionConfiguration",
        "DeleteBucketIntelligentTieringConfiguration": "PutIntelligentTieringConfiguration",
        "DeleteBucketInventoryConfiguration": "PutInventoryConfiguration",
        "DeleteBucketLifecycle": "PutLifecycleConfiguration",
        "DeleteBucketMetricsConfiguration": "PutMetricsConfiguration",
        "DeleteBucketOwnershipControls": "PutBucketOwnershipControls",
        "DeleteBucketReplication": "PutReplicationConfiguration",
        "DeleteBucketTagging": "PutBucketTagging",
        "DeleteObjects": "DeleteObject",
        "DeletePublicAccessBlock": "PutBucketPublicAccessBlock",
        "GetBucketAccelerateConfiguration": "GetAccelerateConfiguration",
        "GetBucketAnalyticsConfiguration": "GetAnalyticsConfiguration",
        "GetBucketCors": "GetBucketCORS",
        "GetBucketEncryption": "GetEncryptionConfiguration",
        "GetBucketIntelligentTieringConfiguration": "GetIntelligentTieringConfiguration",
        "GetBucketInventoryConfiguration": "GetInventoryConfiguration",
        "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
        "GetBucketMetricsConfiguration": "GetMetricsConfiguration",
        "GetBucketNotificationConfiguration": "GetBucketNotification",
        "GetBucketReplication": "GetReplicationConfiguration",
        "GetObjectLockConfiguration": "GetBucketObjectLockConfiguration",
        "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
        "HeadBucket": "ListBucket",
        "HeadObject": "GetObject",
        "ListBucketAnalyticsConfigurations": "GetAnalyticsConfiguration",
        "ListBucketIntelligentTieringConfigurations": "GetIntelligentTieringConfiguration",
        "ListBucketInventoryConfigurations": "GetInventoryConfiguration",
        "ListBucketMetricsConfigurations": "GetMetricsConfiguration",
        "ListBuckets": "ListAllMyBuckets",
        "ListMultipartUploads": "ListBucketMultipartUploads",
        "ListObjectVersions": "ListBucketVersions",
        "ListObjects": "ListBucket",
        "ListObjectsV2": "ListBucket",
        "ListParts": "ListMultipartUploadParts",
        "PostObject": "PutObject",
        "PutBucketAccelerateConfiguration": "PutAccelerateConfiguration",
        "PutBucketAnalyticsConfiguration": "PutAnalyticsConfiguration",
        "PutBucketCors": "PutBucketCORS",
        "PutBucketEncryption": "PutEncryptionConfiguration",
        "PutBucketIntelligentTieringConfiguration": "PutIntelligentTieringConfiguration",
        "PutBucketInventoryConfiguration": "PutInventoryConfiguration",
        "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
        "PutBucketMetricsConfiguration": "PutMetricsConfiguration",
        "PutBucketNotificationConfiguration": "PutBucketNotification",
        "PutBucketReplication": "PutReplicationConfiguration",
        "PutObjectLockConfiguration": "PutBucketObjectLockConfiguration",
        "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
        "UploadPart": "PutObject",
        "UploadPartCopy": "PutObject",
    },
    "sns": {"PublishBatch": "Publish"},
    "sqs": {
        "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
        "DeleteMessageBatch": "DeleteMessage",
        "SendMessageBatch": "SendMessage",
    },
}
