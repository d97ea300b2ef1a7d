"""What each person owns before the attempts begin: one of everything, named after its owner."""

from __future__ import annotations

import io
import json
import ssl
import time
import zipfile
from http.client import HTTPSConnection
from typing import Any

from eventually import eventually
from harness import REGION
from people.attempts import ACCOUNT, Actor, Names, ended
from raw_registry import Registry, digest_of, password_of

ARN = f"arn:aws:{{}}:{REGION}:{ACCOUNT}:{{}}"
ANY_SERVICE = ["ecs-tasks", "lambda", "s3", "cloudformation", "batch", "ec2", "autoscaling", "sns", "ecs", "spotfleet"]
CODE = "import os\ndef main(event, context):\n    return dict(os.environ)\n"
DEFINITION = {"Family": "nested", "TaskRoleArn": {"Ref": "Role"}, "ContainerDefinitions": [
    {"Name": "main", "Image": "corral/host", "Memory": 64, "Command": ["true"]}]}  # fmt: skip
# Templates of nested stacks, by their key
NESTED = {
    "user": {"Resources": {"R": {"Type": "AWS::IAM::User"}}},
    "role": {"Parameters": {"Role": {"Type": "String"}}, "Resources": {"R": {"Type": "AWS::ECS::TaskDefinition",
        "Properties": DEFINITION}}},
}  # fmt: skip
QUEUE = {"Type": "AWS::SQS::Queue", "Properties": {}}


def zipped(text: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("code.py", text)
    return data.getvalue()


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def make_role(root: Actor, name: str) -> None:
    """The role and the instance profile of a person, which may do everything. Nothing but PassRole protects it."""
    iam = root.client("iam")
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": [f"{each}.amazonaws.com" for each in ANY_SERVICE]},
        "Action": "sts:AssumeRole",
    }
    iam.create_role(RoleName=f"{name}-role", AssumeRolePolicyDocument=document(trust))
    everything = document({"Effect": "Allow", "Action": "*", "Resource": "*"})
    iam.put_role_policy(RoleName=f"{name}-role", PolicyName="all", PolicyDocument=everything)
    iam.create_instance_profile(InstanceProfileName=f"{name}-profile")
    iam.add_role_to_instance_profile(InstanceProfileName=f"{name}-profile", RoleName=f"{name}-role")


def trust_with(root: Actor, name: str) -> None:
    """Let a person run processes on the host, and pass their own role: tasks here are processes."""
    allowed = [
        {"Effect": "Allow", "Action": "corral:RunOnHost", "Resource": "*"},
        {"Effect": "Allow", "Action": "iam:PassRole", "Resource": f"arn:aws:iam::{ACCOUNT}:role/{name}-role"},
    ]
    root.client("iam").put_user_policy(UserName=name, PolicyName="trusted", PolicyDocument=document(*allowed))


def build(actor: Actor) -> Names:
    """Make one of everything, and return the ids by the names of their placeholders."""
    me, names = actor.name, Names()
    for part in (_data, _messages, _texts, _functions, _tasks, _machines, _images, _stacks):
        names |= part(actor, me)
    return names


def _data(actor: Actor, me: str) -> Names:
    s3 = actor.client("s3")
    bucket = {"Bucket": f"{me}-data"}
    s3.create_bucket(**bucket)
    s3.put_bucket_versioning(**bucket, VersioningConfiguration={"Status": "Enabled"})
    for key in ("k", "k.env", "spare"):
        made = s3.put_object(**bucket, Key=key, Body=f"secret of {me}".encode(), Tagging="a=b")
    upload = s3.create_multipart_upload(**bucket, Key="big")["UploadId"]
    for key, template in NESTED.items():
        s3.put_object(**bucket, Key=key, Body=json.dumps(template))
    long, short = (s3.generate_presigned_url("get_object", Params={**bucket, "Key": "k"}, ExpiresIn=time_s) for time_s in (3600, 1))
    return {"version": made["VersionId"], "upload": upload, "url_of_k": long, "expired_url": short}


def _messages(actor: Actor, me: str) -> Names:
    sqs, sns = actor.client("sqs"), actor.client("sns")
    dead = sqs.create_queue(QueueName=f"{me}-dead")["QueueUrl"]
    redrive = json.dumps({"deadLetterTargetArn": ARN.format("sqs", f"{me}-dead"), "maxReceiveCount": 5})
    queue = sqs.create_queue(QueueName=f"{me}-jobs", Attributes={"RedrivePolicy": redrive, "VisibilityTimeout": "30"})["QueueUrl"]
    for url in (queue, dead):
        sqs.send_message(QueueUrl=url, MessageBody=f"message of {me}")
    handle = sqs.receive_message(QueueUrl=queue)["Messages"][0]["ReceiptHandle"]
    topic = sns.create_topic(Name=f"{me}-news")["TopicArn"]
    subscribed = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN.format("sqs", f"{me}-dead"), ReturnSubscriptionArn=True)
    names = {"queue": queue, "dead": dead, "handle": handle, "topic": topic, "subscription": subscribed["SubscriptionArn"]}
    return {**names, "queue_arn": ARN.format("sqs", f"{me}-jobs"), "dead_arn": ARN.format("sqs", f"{me}-dead")}


def _texts(actor: Actor, me: str) -> Names:
    actor.client("ssm").put_parameter(Name=f"/{me}/rate", Value=f"secret of {me}", Type="SecureString")
    actor.client("ssm").put_parameter(Name=f"/{me}/plain", Value=f"secret of {me}", Type="String")
    secret = actor.client("secretsmanager").create_secret(Name=f"{me}-secret", SecretString=f"secret of {me}")["ARN"]
    logs, stream = actor.client("logs"), {"logGroupName": f"/{me}/log", "logStreamName": "s"}
    logs.create_log_group(logGroupName=f"/{me}/log")
    logs.create_log_stream(**stream)
    logs.put_log_events(**stream, logEvents=[{"timestamp": int(time.time() * 1000), "message": f"secret of {me}"}])
    logs.put_metric_filter(
        logGroupName=f"/{me}/log", filterName=f"{me}-filter", filterPattern="x",
        metricTransformations=[{"metricName": "m", "metricNamespace": me, "metricValue": "1"}],
    )  # fmt: skip
    metrics = actor.client("cloudwatch")
    metrics.put_metric_alarm(
        AlarmName=f"{me}-alarm", MetricName="m", Namespace=me, Statistic="Sum", Period=60, EvaluationPeriods=1, Threshold=1,
        ComparisonOperator="GreaterThanThreshold",
    )  # fmt: skip
    metrics.put_dashboard(DashboardName=f"{me}-board", DashboardBody=json.dumps({"widgets": []}))
    return {"secret": secret}


def _functions(actor: Actor, me: str) -> Names:
    lambda_ = actor.client("lambda")
    made = lambda_.create_function(
        FunctionName=f"{me}-fn", Runtime="python3.11", Handler="code.main", Role=f"arn:aws:iam::{ACCOUNT}:role/{me}-role",
        Code={"ZipFile": zipped(CODE)}, Environment={"Variables": {"SECRET": f"secret of {me}"}},
    )  # fmt: skip
    lambda_.invoke(FunctionName=f"{me}-fn")  # its log group exists from now on
    mapping = lambda_.create_event_source_mapping(
        FunctionName=f"{me}-fn", EventSourceArn=ARN.format("sqs", f"{me}-dead"), Enabled=False
    )
    return {"function": made["FunctionArn"], "mapping": mapping["UUID"]}


def task_container(me: str, command: str) -> dict[str, Any]:
    options = {
        "awslogs-group": f"/{me}/tasks",
        "awslogs-region": REGION,
        "awslogs-stream-prefix": "x",
        "awslogs-create-group": "true",
    }
    return {
        "name": "main", "image": "corral/host", "memory": 64, "command": ["sh", "-c", command],
        "environment": [{"name": "SECRET", "value": f"secret of {me}"}],
        "logConfiguration": {"logDriver": "awslogs", "options": options},
    }  # fmt: skip


def _tasks(actor: Actor, me: str) -> Names:
    ecs, batch = actor.client("ecs"), actor.client("batch")
    ecs.create_cluster(clusterName=f"{me}-cluster")
    container = task_container(me, "env; exec sleep 600")
    made = ecs.register_task_definition(
        family=f"{me}-task", taskRoleArn=f"arn:aws:iam::{ACCOUNT}:role/{me}-role", containerDefinitions=[container]
    )
    # Two tasks: one is only looked at, the other is stopped by a control.
    tasks = ecs.run_task(
        taskDefinition=f"{me}-task", count=2, enableExecuteCommand=True, tags=[{"key": "corral:name", "value": me}]
    )
    one, other = (each["taskArn"].rpartition("/")[2] for each in tasks["tasks"])
    ecs.create_service(serviceName=f"{me}-service", taskDefinition=f"{me}-task", desiredCount=0)
    service = ecs.list_service_deployments(service=f"{me}-service")["serviceDeployments"][0]
    [host] = ecs.list_container_instances()["containerInstanceArns"]
    actor.client("application-autoscaling").register_scalable_target(
        ServiceNamespace="ecs", ResourceId=f"service/default/{me}-service", ScalableDimension="ecs:service:DesiredCount",
        MinCapacity=0, MaxCapacity=1,
    )  # fmt: skip
    batch.register_job_definition(
        jobDefinitionName=f"{me}-job", type="container",
        containerProperties={
            "image": "corral/host", "command": ["sleep", "600"], "environment": [{"name": "SECRET", "value": f"secret of {me}"}],
            "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}],
        },
    )  # fmt: skip
    batch.create_consumable_resource(consumableResourceName=f"{me}-licences", totalQuantity=5)
    jobs = [batch.submit_job(jobName=f"{me}-job", jobQueue="line", jobDefinition=f"{me}-job")["jobId"] for _ in range(2)]
    lines = eventually(lambda: _environment_of(actor, me, one))
    return {
        "definition": made["taskDefinition"]["taskDefinitionArn"], "task": one, "spare_task": other, "job": jobs[0],
        "spare_job": jobs[1], "deployed": service["serviceDeploymentArn"], "revision": service["targetServiceRevisionArn"],
        "host": host.rpartition("/")[2], "metadata": lines["ECS_CONTAINER_METADATA_URI_V4"],
        "credentials": lines["AWS_CONTAINER_CREDENTIALS_FULL_URI"], "token": lines["AWS_CONTAINER_AUTHORIZATION_TOKEN"],
    }  # fmt: skip


def _environment_of(actor: Actor, me: str, task: str) -> dict[str, str] | None:
    """The variables that a task has printed."""
    logs = actor.client("logs")
    try:
        found = logs.get_log_events(logGroupName=f"/{me}/tasks", logStreamName=f"x/main/{task}", startFromHead=True)["events"]
    except logs.exceptions.ResourceNotFoundException:
        return None
    lines = dict(each["message"].partition("=")[::2] for each in found)
    return lines if "AWS_CONTAINER_AUTHORIZATION_TOKEN" in lines and "ECS_CONTAINER_METADATA_URI_V4" in lines else None


def _machines(actor: Actor, me: str) -> Names:
    ec2, autoscaling = actor.client("ec2"), actor.client("autoscaling")
    ec2.create_key_pair(KeyName=f"{me}-key")
    template = ec2.create_launch_template(
        LaunchTemplateName=f"{me}-template", LaunchTemplateData={"InstanceType": "t3.nano", "UserData": "c2VjcmV0"}
    )["LaunchTemplate"]["LaunchTemplateId"]
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName=f"{me}-ports", Description="x", VpcId=vpc)["GroupId"]
    autoscaling.create_launch_configuration(
        LaunchConfigurationName=f"{me}-launch", ImageId="ami-0123456789abcdef0", InstanceType="t3.nano"
    )
    autoscaling.create_auto_scaling_group(
        AutoScalingGroupName=f"{me}-group",
        LaunchConfigurationName=f"{me}-launch",
        AvailabilityZones=[f"{REGION}a"],
        MinSize=0,
        MaxSize=2,
    )
    found = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[f"{me}-group"])["AutoScalingGroups"][0]
    autoscaling.put_warm_pool(AutoScalingGroupName=f"{me}-group", MinSize=0)
    instance = ec2.run_instances(ImageId="ami-0123456789abcdef0", InstanceType="t3.nano", MinCount=1, MaxCount=1)
    return {
        "template": template, "vpc": vpc, "subnet": subnet, "ports": group, "group_arn": found["AutoScalingGroupARN"],
        "instance": instance["Instances"][0]["InstanceId"],
    }  # fmt: skip


def registry_of(actor: Actor, password: str | None = None) -> Registry:
    """A client of the registry with the password that `docker login` would send for this person."""
    made = Registry(actor, password_of(actor) if password is None else password)  # type: ignore[arg-type]
    if made.address.scheme == "https":
        context = ssl.create_default_context(cafile=actor.ca_bundle)
        made.connection = HTTPSConnection(made.address.hostname or "", made.address.port, timeout=30, context=context)
    return made


def _images(actor: Actor, me: str) -> Names:
    actor.client("ecr").create_repository(repositoryName=f"{me}/app")
    layer = f"a layer of {me}".encode()
    manifest = registry_of(actor).push_image(f"{me}/app", "v1", layer)
    return {"layer": digest_of(layer), "digest": digest_of(manifest), "manifest": manifest.decode()}


def _stacks(actor: Actor, me: str) -> Names:
    client = actor.client("cloudformation")
    template = {
        "Resources": {"Q": QUEUE, "Wait": {"Type": "AWS::CloudFormation::WaitConditionHandle"}},
        "Outputs": {"Out": {"Value": f"secret of {me}", "Export": {"Name": f"{me}-export"}}},
    }
    found = client.create_stack(StackName=f"{me}-stack", TemplateBody=json.dumps(template))
    assert ended(actor, f"{me}-stack") == "CREATE_COMPLETE"
    more = {**template, "Resources": {**template["Resources"], "More": QUEUE}}
    change = client.create_change_set(StackName=f"{me}-stack", ChangeSetName=f"{me}-change", TemplateBody=json.dumps(more))
    client.get_waiter("change_set_create_complete").wait(ChangeSetName=change["Id"], WaiterConfig={"Delay": 1})
    return {"stack": found["StackId"], "change": change["Id"]}


def names_for(me: str, them: str, worlds: dict[str, Names]) -> Names:
    """The placeholders for the attempts of a person on what belongs to another."""
    mine = {f"my_{name}": value for name, value in worlds[me].items()}
    owner = them if them == "root" else f"user/{them}"
    secret = worlds[me]["metadata"].rpartition("-")[2]
    return {**worlds[them], **mine, "me": me, "them": them, "owner": owner, "my_address_secret": secret}
