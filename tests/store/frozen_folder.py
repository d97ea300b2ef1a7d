"""A small data folder with rows of every kind, and what its services say about them.

`python -m store.freeze` makes the folder with a real server. `test_migrations.py` opens it with every later version of Corral.
"""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from corral.aws.direct_input import direct_input
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.ids import SeededIds
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.reconcile import LOGS, METRICS, STATE
from corral.store import Store
from corral.telemetry import LogStore, MetricStore
from harness import Corral, container, eventually, wait_stopped
from raw_registry import Registry
from virtual_clock.group_world import CALLER

STORES: dict[str, type[Store | LogStore | MetricStore]] = {"state": Store, "logs": LogStore, "metrics": MetricStore}
TRUST, ALLOW = (
    json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **part}]})
    for part in (
        {"Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"},
        {"Action": "s3:GetObject", "Resource": "*"},
    )
)
TEMPLATE = """
Resources:
  Jobs: {Type: AWS::SQS::Queue, Properties: {QueueName: of-stack, DelaySeconds: 5}}
  Many: {Type: AWS::SSM::Parameter, Properties: {Name: /of/stack, Type: String, Value: !GetAtt Jobs.Arn}}
Outputs:
  Url: {Value: !Ref Jobs, Export: {Name: url}}
"""
IMPORTING = "Resources: {One: {Type: AWS::SSM::Parameter, Properties: {Type: String, Value: !ImportValue url}}}"


def fill(corral: Corral) -> None:
    """Create resources of every service, with tasks and jobs that have ended, run and wait."""
    for part in (_tasks, _jobs, _objects, _messages, _telemetry, _fleets, _others):
        part(corral)


def _tasks(corral: Corral) -> None:
    ecs, iam = corral.client("ecs"), corral.client("iam")
    iam.create_role(RoleName="worker", AssumeRolePolicyDocument=TRUST, Tags=[{"Key": "team", "Value": "vision"}])
    iam.put_role_policy(RoleName="worker", PolicyName="read", PolicyDocument=ALLOW)
    iam.create_policy(PolicyName="shared", PolicyDocument=ALLOW)
    iam.create_instance_profile(InstanceProfileName="profile")
    iam.add_role_to_instance_profile(InstanceProfileName="profile", RoleName="worker")
    ecs.create_cluster(clusterName="lab", tags=[{"key": "room", "value": "5"}])
    said = container(["sh", "-c", "echo frozen"], gpus=1, log_prefix="ended", environment=[{"name": "A", "value": "1"}])
    ecs.register_task_definition(family="ended", containerDefinitions=[said], tags=[{"key": "a", "value": "b"}])
    for family, gpus in (("waits", 1), ("runs", 1), ("large", 8)):
        ecs.register_task_definition(family=family, containerDefinitions=[container(["sleep", "1000"], gpus=gpus)])
    ended = ecs.run_task(taskDefinition="ended", startedBy="fill", enableECSManagedTags=True)["tasks"][0]["taskArn"]
    wait_stopped(ecs, [ended])
    held = ecs.run_task(taskDefinition="waits", tags=_tags(name="held", hold="true", array="sweep 0 1 1"), count=2)["tasks"][0][
        "taskArn"
    ]
    ecs.run_task(taskDefinition="waits", tags=_tags(after=held.rpartition("/")[2], priority="5"))
    ecs.run_task(taskDefinition="large")
    running = ecs.run_task(taskDefinition="runs")["tasks"][0]["taskArn"]
    eventually(lambda: ecs.describe_tasks(tasks=[running])["tasks"][0]["lastStatus"] == "RUNNING")
    ecs.create_service(serviceName="web", taskDefinition="waits", desiredCount=0, cluster="default")
    corral.client("application-autoscaling").register_scalable_target(
        ServiceNamespace="ecs", ResourceId="service/default/web", ScalableDimension="ecs:service:DesiredCount", MinCapacity=0,
        MaxCapacity=2,
    )  # fmt: skip


def _tags(**values: str) -> list[dict[str, str]]:
    return [{"key": f"corral:{key}", "value": value} for key, value in values.items()]


def _jobs(corral: Corral) -> None:
    batch = corral.client("batch")
    batch.create_compute_environment(computeEnvironmentName="host", type="UNMANAGED", tags={"corral:cluster": "default"})
    batch.create_scheduling_policy(
        name="fair", fairsharePolicy={"shareDistribution": [{"shareIdentifier": "a", "weightFactor": 1.0}]}
    )
    batch.create_consumable_resource(consumableResourceName="license", totalQuantity=2)
    [environment] = batch.describe_compute_environments()["computeEnvironments"]
    batch.create_job_queue(
        jobQueueName="line",
        priority=1,
        computeEnvironmentOrder=[{"order": 1, "computeEnvironment": environment["computeEnvironmentArn"]}],
    )
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "16"}]
    properties = {"image": "corral/host", "command": ["true"], "resourceRequirements": needs}
    batch.register_job_definition(jobDefinitionName="job", type="container", containerProperties=properties)
    eventually(lambda: batch.describe_job_queues()["jobQueues"][0]["status"] == "VALID")
    first = batch.submit_job(jobName="first", jobQueue="line", jobDefinition="job", parameters={"x": "1"})["jobId"]
    batch.submit_job(
        jobName="array", jobQueue="line", jobDefinition="job", arrayProperties={"size": 2}, dependsOn=[{"jobId": first}]
    )
    eventually(lambda: batch.describe_jobs(jobs=[first])["jobs"][0]["status"] == "SUCCEEDED")
    batch.submit_job(
        jobName="large", jobQueue="line", jobDefinition="job", arrayProperties={"size": 2},
        containerOverrides={"resourceRequirements": [{"type": "GPU", "value": "8"}]},
    )  # fmt: skip


def _objects(corral: Corral) -> None:
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="models")
    s3.put_bucket_versioning(Bucket="models", VersioningConfiguration={"Status": "Enabled"})
    s3.put_bucket_tagging(Bucket="models", Tagging={"TagSet": [{"Key": "team", "Value": "vision"}]})
    for body in (b"one", b"two"):
        s3.put_object(Bucket="models", Key="weights", Body=body, Metadata={"step": body.decode()}, Tagging="a=b")
    s3.put_object(Bucket="models", Key="large", Body=bytes(70_000))
    s3.delete_object(Bucket="models", Key="large")
    upload = s3.create_multipart_upload(Bucket="models", Key="parts")["UploadId"]
    s3.upload_part(Bucket="models", Key="parts", UploadId=upload, PartNumber=1, Body=b"part")
    ecr = corral.client("ecr")
    ecr.create_repository(repositoryName="trainer", tags=[{"Key": "a", "Value": "b"}])
    Registry(corral).push_image("trainer", "v1", b"layer")


def _messages(corral: Corral) -> None:
    sqs, sns = corral.client("sqs"), corral.client("sns")
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}), "MessageRetentionPeriod": "1209600"}
    plain = sqs.create_queue(QueueName="plain", Attributes=policy, tags={"a": "b"})["QueueUrl"]
    sqs.send_message(QueueUrl=plain, MessageBody="hello", MessageAttributes={"n": {"DataType": "Number", "StringValue": "1"}})
    fifo = sqs.create_queue(QueueName="line.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    for number in range(3):
        sqs.send_message(QueueUrl=fifo, MessageBody=f"m{number}", MessageGroupId="g", MessageDeduplicationId=str(number))
    topic = sns.create_topic(Name="news")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"FilterPolicy": '{"kind":["a"]}'})


def _telemetry(corral: Corral) -> None:
    logs, cloudwatch = corral.client("logs"), corral.client("cloudwatch")
    logs.put_metric_filter(
        logGroupName="/tests", filterName="words", filterPattern="frozen",
        metricTransformations=[{"metricName": "Words", "metricNamespace": "own", "metricValue": "1"}],
    )  # fmt: skip
    cloudwatch.put_metric_data(
        Namespace="own", MetricData=[{"MetricName": "Depth", "Value": 3.0, "Dimensions": [{"Name": "q", "Value": "a"}]}]
    )
    cloudwatch.put_metric_alarm(
        AlarmName="deep", Namespace="own", MetricName="Depth", Statistic="Maximum", Period=60, EvaluationPeriods=1, Threshold=10.0,
        ComparisonOperator="GreaterThanThreshold", Dimensions=[{"Name": "q", "Value": "a"}], Tags=[{"Key": "a", "Value": "b"}],
    )  # fmt: skip
    cloudwatch.put_composite_alarm(AlarmName="any", AlarmRule="ALARM(deep)")
    cloudwatch.put_dashboard(DashboardName="board", DashboardBody='{"widgets":[]}')


def _fleets(corral: Corral) -> None:
    ec2, autoscaling = corral.client("ec2"), corral.client("autoscaling")
    data = {"ImageId": "ami-0123456789abcdef0", "InstanceType": "g5.xlarge"}
    ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
    ec2.create_vpc(CidrBlock="10.9.0.0/16")
    ec2.import_key_pair(
        KeyName="key", PublicKeyMaterial=b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIhz2GK/XCUj4i6Q5yQJNL1MKMY0RxzPV2QrBqfHrDq+ k"
    )
    [instance] = ec2.run_instances(MinCount=1, MaxCount=1, **data)["Instances"]
    autoscaling.create_auto_scaling_group(
        AutoScalingGroupName="fleet", LaunchTemplate={"LaunchTemplateName": "gpu"}, MinSize=0, MaxSize=2, DesiredCapacity=1,
        AvailabilityZones=["us-east-1a"],
        Tags=[{"Key": "team", "Value": "vision", "PropagateAtLaunch": True}],
    )  # fmt: skip
    autoscaling.put_scaling_policy(
        AutoScalingGroupName="fleet",
        PolicyName="out",
        PolicyType="SimpleScaling",
        AdjustmentType="ChangeInCapacity",
        ScalingAdjustment=1,
    )
    autoscaling.put_lifecycle_hook(
        AutoScalingGroupName="fleet", LifecycleHookName="hook", LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING"
    )
    autoscaling.put_scheduled_update_group_action(
        AutoScalingGroupName="fleet", ScheduledActionName="night", Recurrence="0 1 * * *", MinSize=0
    )
    ids = [instance["InstanceId"]]

    def is_in(state: str) -> bool:
        [found] = ec2.describe_instances(InstanceIds=ids)["Reservations"]
        return bool(found["Instances"][0]["State"]["Name"] == state)

    eventually(lambda: is_in("running"))
    ec2.stop_instances(InstanceIds=ids)
    eventually(lambda: is_in("stopped"))


def _others(corral: Corral) -> None:
    ssm, stacks, functions = corral.client("ssm"), corral.client("cloudformation"), corral.client("lambda")
    ssm.put_parameter(Name="/plain", Value="1", Type="String", Tags=[{"Key": "a", "Value": "b"}])
    ssm.put_parameter(Name="/plain", Value="2", Type="String", Overwrite=True)
    ssm.put_parameter(Name="/secret", Value="s", Type="SecureString")
    stacks.create_stack(StackName="stack", TemplateBody=TEMPLATE, Tags=[{"Key": "a", "Value": "b"}])
    eventually(lambda: stacks.describe_stacks(StackName="stack")["Stacks"][0]["StackStatus"] == "CREATE_COMPLETE")
    stacks.create_stack(StackName="importing", TemplateBody=IMPORTING)
    eventually(lambda: stacks.describe_stacks(StackName="importing")["Stacks"][0]["StackStatus"] == "CREATE_COMPLETE")
    changed = TEMPLATE.replace("DelaySeconds: 5", "DelaySeconds: 6")
    stacks.create_change_set(StackName="stack", ChangeSetName="change", TemplateBody=changed)
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("index.py", "def handler(event, context): return event\n")
    role = corral.client("iam").get_role(RoleName="worker")["Role"]["Arn"]
    functions.create_function(
        FunctionName="echo", Runtime="python3.12", Role=role, Handler="index.handler", Code={"ZipFile": code.getvalue()},
        Environment={"Variables": {"MODE": "1"}},
    )  # fmt: skip
    functions.add_permission(FunctionName="echo", StatementId="s", Action="lambda:InvokeFunction", Principal="sns.amazonaws.com")


READS: dict[str, dict[str, dict[str, Any]]] = {  # service → operation → parameters
    "ecs": {
        "DescribeClusters": {"clusters": ["lab", "default"], "include": ["TAGS", "SETTINGS"]},
        "DescribeServices": {"services": ["web"]},
        "DescribeTaskDefinition": {"taskDefinition": "ended", "include": ["TAGS"]},
    },
    "application-autoscaling": {"DescribeScalableTargets": {"ServiceNamespace": "ecs"}},
    "iam": {
        "ListRoles": {}, "GetRolePolicy": {"RoleName": "worker", "PolicyName": "read"}, "ListPolicies": {"Scope": "Local"},
        "ListInstanceProfiles": {},
    },
    "batch": {
        "DescribeComputeEnvironments": {}, "DescribeJobQueues": {}, "DescribeJobDefinitions": {}, "ListConsumableResources": {},
        "ListSchedulingPolicies": {},
    },
    "s3": {
        "ListBuckets": {}, "ListObjectVersions": {"Bucket": "models"}, "GetBucketTagging": {"Bucket": "models"},
        "ListMultipartUploads": {"Bucket": "models"},
    },
    "ecr": {"DescribeRepositories": {}, "DescribeImages": {"repositoryName": "trainer"}},
    "sqs": {"ListQueues": {}},
    "sns": {"ListTopics": {}, "ListSubscriptions": {}},
    "logs": {"DescribeLogGroups": {}, "DescribeMetricFilters": {}, "FilterLogEvents": {"logGroupName": "/tests"}},
    "cloudwatch": {
        "DescribeAlarms": {"AlarmTypes": ["MetricAlarm", "CompositeAlarm"]}, "ListDashboards": {},
        "ListMetrics": {"Namespace": "own"},
    },
    "ec2": {
        "DescribeLaunchTemplates": {}, "DescribeVpcs": {}, "DescribeKeyPairs": {}, "DescribeInstances": {},
        "DescribeLaunchTemplateVersions": {"LaunchTemplateName": "gpu"},
    },
    "autoscaling": {
        "DescribeAutoScalingGroups": {}, "DescribePolicies": {}, "DescribeLifecycleHooks": {"AutoScalingGroupName": "fleet"},
        "DescribeScheduledActions": {}, "DescribeScalingActivities": {},
    },
    "ssm": {"DescribeParameters": {}, "GetParameterHistory": {"Name": "/plain"}},
    "cloudformation": {
        "DescribeStacks": {}, "DescribeStackResources": {"StackName": "stack"}, "GetTemplate": {"StackName": "stack"},
        "ListExports": {},
        "DescribeChangeSet": {"StackName": "stack", "ChangeSetName": "change"}, "DescribeStackEvents": {"StackName": "stack"},
    },
    "lambda": {"ListFunctions": {}, "GetPolicy": {"FunctionName": "echo"}},
}  # fmt: skip


def unpack(frozen: Path, folder: Path) -> Path:
    with tarfile.open(frozen) as tar:
        tar.extractall(folder, filter="tar")
    folder.chmod(0o700)
    return folder


def read(folder: Path, at_s: float) -> dict[str, Any]:
    """Open the databases of a folder, and return what the services say at this time. Later, some of the rows would have expired."""
    cores: dict[str, Core[Any]] = {}
    idle = dict.fromkeys((*STATE, *LOGS, *METRICS), lambda tx, key: None)  # nothing changes by itself
    for lane, kind in STORES.items():
        store = kind(folder / f"{lane}.db")
        cores[lane] = Core(store, settings=Settings(), clock=VirtualClock(at_s), ids=SeededIds(Random(0)), reconcilers=idle)

    def call(service: str, operation: str, params: dict[str, Any]) -> Any:
        handler, given = SERVICES[service].operations[operation], direct_input(service, operation, params)
        outcome = cores[SERVICES[service].lane].transact([Command(lambda tx: handler(tx, given, CALLER), lambda answer: None)])
        assert not outcome.faults, outcome.faults[0]
        [(_, answer)] = outcome.answers
        assert not isinstance(answer, Exception), answer
        return answer

    try:
        found = {
            f"{service}:{name}": call(service, name, params) for service, reads in READS.items() for name, params in reads.items()
        }
        for operation, params in _derived(call):
            found[f"{operation} {sorted(params.values(), key=str)}"] = call(*operation.split(":"), params)
    finally:
        for core in cores.values():
            core.store.close()
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def _derived(call: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield reads whose parameters are ids."""
    for status in ("RUNNING", "STOPPED"):
        for arn in call("ecs", "ListTasks", {"desiredStatus": status})["taskArns"]:
            yield "ecs:DescribeTasks", {"tasks": [arn], "include": ["TAGS"]}
    for url in call("sqs", "ListQueues", {})["QueueUrls"]:
        yield "sqs:GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["All"]}
        yield "sqs:ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
    jobs = call("batch", "ListJobs", {"jobQueue": "line", "filters": [{"name": "JOB_NAME", "values": ["*"]}]})["jobSummaryList"]
    yield "batch:DescribeJobs", {"jobs": [job["jobId"] for job in jobs]}
