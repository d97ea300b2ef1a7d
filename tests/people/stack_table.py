"""Attempts by stacks: a template does what its caller may not do, and stacks of another owner."""

from __future__ import annotations

import json
from typing import Any

from people.attempts import ACCOUNT, Params, api, listing, stack

ROLE = f"arn:aws:iam::{ACCOUNT}:role/<them>-role"
USER = f"arn:aws:iam::{ACCOUNT}:user/<me>"
ALICE = f"arn:aws:iam::{ACCOUNT}:user/alice"
ADMIN = "arn:aws:iam::aws:policy/AdministratorAccess"
EVERYTHING: Params = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
TRUST: Params = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"AWS": USER}, "Action": "sts:AssumeRole"}],
}
OPEN: Params = {
    "Version": "2012-10-17",
    "Statement": [{"Sid": "s", "Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}],
}
NAMED = ["CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
STACK = "stack/<them>-stack/"
STACK_NAME: Params = {"StackName": "<them>-stack"}
SIMPLE = json.dumps({"Resources": {"Q": {"Type": "AWS::SQS::Queue"}}})
CONTAINER: Params = {"Name": "main", "Image": "corral/host", "Memory": 64, "Command": ["true"]}


def one(type_: str, **properties: Any) -> Params:
    return {"R": {"Type": type_, "Properties": properties}}


def dynamic(reference: str) -> Params:
    """A parameter that gets the value of a secret."""
    return one("AWS::SSM::Parameter", Type="String", Value=f"{{{{resolve:{reference}}}}}")


def inside(resources: Params) -> str:
    return json.dumps({"Resources": resources})


BY_ROOT: Params = {"control": "root"}
ESCALATIONS = (
    stack("make a user", one("AWS::IAM::User", UserName="<me>-x"), "iam:CreateUser", **BY_ROOT),
    stack("make an access key of root's user", one("AWS::IAM::AccessKey", UserName="alice"), "iam:CreateAccessKey", "user/alice",
          **BY_ROOT),
    stack("make an administrator of a role", one("AWS::IAM::Role", RoleName="<me>-x", AssumeRolePolicyDocument=TRUST,
          ManagedPolicyArns=[ADMIN]), "iam:CreateRole", **BY_ROOT),
    stack("give oneself a policy", one("AWS::IAM::UserPolicy", UserName="bob", PolicyName="x", PolicyDocument=EVERYTHING),
          "iam:PutUserPolicy", "user/bob", control=""),
    stack("give a role a policy", one("AWS::IAM::RolePolicy", RoleName="<them>-role", PolicyName="x", PolicyDocument=EVERYTHING),
          "iam:PutRolePolicy", "role/<them>-role", **BY_ROOT),
    stack("attach a policy to oneself", one("AWS::IAM::ManagedPolicy", ManagedPolicyName="<me>-x", PolicyDocument=EVERYTHING,
          Users=["bob"]), "iam:CreatePolicy", control=""),
    stack("join the administrators", one("AWS::IAM::UserToGroupAddition", GroupName="admins", Users=["bob"]), "iam:AddUserToGroup",
          "group/admins", control=""),
    stack("make a group", one("AWS::IAM::Group", GroupName="<me>-x"), "iam:CreateGroup", **BY_ROOT),
    stack("make an instance profile", one("AWS::IAM::InstanceProfile", InstanceProfileName="<me>-x", Roles=["<them>-role"]),
          "iam:CreateInstanceProfile", **BY_ROOT),
    stack("make a service-linked role", one("AWS::IAM::ServiceLinkedRole", AWSServiceName="batch.amazonaws.com"),
          "iam:CreateServiceLinkedRole", control=""),
    stack("pass a role to a task definition", one("AWS::ECS::TaskDefinition", Family="<me>-x", TaskRoleArn=ROLE,
          ContainerDefinitions=[CONTAINER]), "iam:PassRole", ROLE),
    stack("pass a role to a function", one("AWS::Lambda::Function", Runtime="python3.11", Handler="index.main", Role=ROLE,
          Code={"ZipFile": "x = 1"}), "iam:PassRole", ROLE),
    stack("pass a role to a job definition", one("AWS::Batch::JobDefinition", Type="container", ContainerProperties={
          "Image": "corral/host", "Command": ["true"], "JobRoleArn": ROLE, "ResourceRequirements": [
              {"Type": "VCPU", "Value": "1"}, {"Type": "MEMORY", "Value": "64"}]}), "iam:PassRole", ROLE),
    stack("pass a role to an instance", one("AWS::AutoScaling::LaunchConfiguration", ImageId="ami-0123456789abcdef0",
          InstanceType="t3.nano", IamInstanceProfile="<them>-profile"), "iam:PassRole", ROLE),
    stack("pass a role to the replication of a bucket", one("AWS::S3::Bucket", VersioningConfiguration={"Status": "Enabled"},
          ReplicationConfiguration={"Role": ROLE, "Rules": [{"Id": "r", "Status": "Enabled", "Prefix": "", "Destination": {
              "Bucket": "arn:aws:s3:::<me>-data"}}]}), "iam:PassRole", ROLE),
    stack("run a process by a service", one("AWS::ECS::Service", TaskDefinition="<them>-task:1", DesiredCount=0), "ecs:RunTask",
          "task-definition/<them>-task:1"),
    stack("open the queue of another", one("AWS::SQS::QueuePolicy", Queues=["<queue>"], PolicyDocument=OPEN),
          "sqs:SetQueueAttributes", "<them>-jobs"),
    stack("open the topic of another", one("AWS::SNS::TopicPolicy", Topics=["<topic>"], PolicyDocument=OPEN),
          "sns:SetTopicAttributes", "<topic>"),
    stack("subscribe to the topic of another", one("AWS::SNS::Subscription", TopicArn="<topic>", Protocol="sqs",
          Endpoint="<my_queue_arn>"), "sns:Subscribe", "<topic>"),
    stack("open the bucket of another", one("AWS::S3::BucketPolicy", Bucket="<them>-data", PolicyDocument={"Statement": [
          {"Effect": "Allow", "Principal": {"AWS": USER}, "Action": "s3:*", "Resource": "arn:aws:s3:::<them>-data/*"}]}),
          "s3:PutBucketPolicy", "<them>-data", control=""),
    stack("open the secret of another", one("AWS::SecretsManager::ResourcePolicy", SecretId="<secret>", ResourcePolicy={
          "Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": USER}, "Resource": "*",
                                                  "Action": "secretsmanager:GetSecretValue"}]}), "secretsmanager:PutResourcePolicy",
          "<secret>"),
    stack("rotate the secret of another", one("AWS::SecretsManager::RotationSchedule", SecretId="<secret>",
          RotationLambdaARN="<my_function>", RotationRules={"AutomaticallyAfterDays": 30}), "secretsmanager:DescribeSecret",
          "<secret>",
          control=""),
    stack("open the function of another", one("AWS::Lambda::Permission", FunctionName="<them>-fn", Principal="*",
          Action="lambda:InvokeFunction"), "lambda:AddPermission", "function:<them>-fn"),
    stack("let one's queue invoke another's function", one("AWS::Lambda::EventSourceMapping", FunctionName="<them>-fn",
          EventSourceArn="<my_queue_arn>", Enabled=False), "lambda:InvokeFunction", "function:<them>-fn", control=""),
    stack("scale the group of another", one("AWS::AutoScaling::ScalingPolicy", AutoScalingGroupName="<them>-group",
          AdjustmentType="ExactCapacity", ScalingAdjustment=0), "autoscaling:PutScalingPolicy", "<them>-group"),
    stack("schedule the group of another", one("AWS::AutoScaling::ScheduledAction", AutoScalingGroupName="<them>-group", MinSize=0,
          Recurrence="0 0 2 2 *"), "autoscaling:PutScheduledUpdateGroupAction", "<them>-group"),
    stack("add a hook to the group of another", one("AWS::AutoScaling::LifecycleHook", AutoScalingGroupName="<them>-group",
          LifecycleTransition="autoscaling:EC2_INSTANCE_LAUNCHING"), "autoscaling:PutLifecycleHook", "<them>-group"),
    stack("scale the service of another", one("AWS::ApplicationAutoScaling::ScalingPolicy", PolicyName="p",
          PolicyType="StepScaling", ServiceNamespace="ecs", ResourceId="service/default/<them>-service",
          ScalableDimension="ecs:service:DesiredCount", StepScalingPolicyConfiguration={"AdjustmentType": "ExactCapacity",
          "StepAdjustments": [{"ScalingAdjustment": 0, "MetricIntervalLowerBound": 0}]}),
          "application-autoscaling:PutScalingPolicy"),
    stack("count what is in the log of another", one("AWS::Logs::MetricFilter", LogGroupName="/<them>/log", FilterPattern="secret",
          MetricTransformations=[{"MetricName": "m", "MetricNamespace": "x", "MetricValue": "1"}]), "logs:PutMetricFilter",
          "/<them>/log"),
    stack("add a stream to the log of another", one("AWS::Logs::LogStream", LogGroupName="/<them>/log"), "logs:CreateLogStream",
          "/<them>/log"),
    stack("let an alarm publish to the topic of another", one("AWS::CloudWatch::Alarm", MetricName="m", Namespace="x", Period=60,
          Statistic="Sum", EvaluationPeriods=1, Threshold=1, ComparisonOperator="GreaterThanThreshold", AlarmActions=["<topic>"]),
          "sns:Publish", "<topic>"),
    stack("use the dead-letter queue of another", one("AWS::SQS::Queue", RedrivePolicy={"deadLetterTargetArn": "<dead_arn>",
          "maxReceiveCount": 3}), "sqs:SendMessage", "<them>-dead"),
    stack("take the name of a parameter", one("AWS::SSM::Parameter", Name="/<them>/rate", Type="String", Value="x"),
          "ssm:PutParameter", "/<them>/rate", control=""),
    stack("resolve a secret", dynamic("secretsmanager:<them>-secret"), "secretsmanager:GetSecretValue", "<secret>"),
    stack("resolve a parameter", dynamic("ssm:/<them>/plain"), "ssm:GetParameter", "/<them>/plain"),
    stack("take a parameter as a value", one("AWS::SSM::Parameter", Type="String", Value={"Ref": "P"}), "ssm:GetParameter",
          "/<them>/plain", parameters={"Parameters": {"P": {"Type": "AWS::SSM::Parameter::Value<String>",
                                                           "Default": "/<them>/plain"}}}),
    stack("take code from the bucket of another", one("AWS::Lambda::Function", Runtime="python3.11", Handler="index.main",
          Role=f"arn:aws:iam::{ACCOUNT}:role/<me>-role", Code={"S3Bucket": "<them>-data", "S3Key": "k"}), "s3:GetObject",
          "<them>-data/k", control=""),
    stack("nest a template of another", one("AWS::CloudFormation::Stack", TemplateURL="https://<them>-data.s3.amazonaws.com/k"),
          "s3:GetObject", "<them>-data/k", control=""),
    stack("call the function of another", one("AWS::CloudFormation::CustomResource", ServiceToken="<function>"),
          "lambda:InvokeFunction", "function:<them>-fn", control=""),
    stack("call the topic of another", one("AWS::CloudFormation::CustomResource", ServiceToken="<topic>"), "sns:Publish", "<topic>",
          control=""),
    stack("make a user in a nested stack", one("AWS::CloudFormation::Stack", TemplateURL="https://<me>-data.s3.amazonaws.com/user"),
          "iam:CreateUser", control=""),
    stack("pass a role in a nested stack", one("AWS::CloudFormation::Stack", TemplateURL="https://<me>-data.s3.amazonaws.com/role",
          Parameters={"Role": ROLE}), "iam:PassRole", ROLE),
    stack("get the secret of a key", {**one("AWS::IAM::AccessKey", UserName="alice"), "P": {"Type": "AWS::SSM::Parameter",
          "Properties": {"Type": "String", "Value": {"Fn::GetAtt": ["R", "SecretAccessKey"]}}}}, "iam:CreateAccessKey", ALICE,
          control=""),
)  # fmt: skip

STACKS = (
    api("read the template of a stack", "cloudformation.get_template", STACK_NAME, STACK),
    api("describe a stack", "cloudformation.describe_stacks", STACK_NAME, STACK),
    listing("list the stacks", "cloudformation.list_stacks", {"StackStatusFilter": ["CREATE_COMPLETE"]}, "<them>-stack"),
    listing("describe all stacks", "cloudformation.describe_stacks", {}, "<them>-stack"),
    api("see the events of a stack", "cloudformation.describe_stack_events", STACK_NAME, STACK),
    api("see the resources of a stack", "cloudformation.describe_stack_resources", STACK_NAME, STACK),
    api("list the resources of a stack", "cloudformation.list_stack_resources", STACK_NAME, STACK),
    api("describe a resource of a stack", "cloudformation.describe_stack_resource", {**STACK_NAME, "LogicalResourceId": "Q"},
        STACK),
    api("see the policy of a stack", "cloudformation.get_stack_policy", STACK_NAME, STACK),
    listing("list the exports", "cloudformation.list_exports", {}, "<them>-export"),
    stack("import the export of another", one("AWS::SSM::Parameter", Type="String", Value={"Fn::ImportValue": "<them>-export"}),
          "cloudformation:DescribeStacks", STACK),
    api("update a stack", "cloudformation.update_stack", {**STACK_NAME, "TemplateBody": SIMPLE}, STACK),
    api("set the policy of a stack", "cloudformation.set_stack_policy", {**STACK_NAME, "StackPolicyBody": json.dumps({"Statement": [
        {"Effect": "Allow", "Action": "Update:*", "Principal": "*", "Resource": "*"}]})}, STACK),
    api("make a change set of a stack", "cloudformation.create_change_set", {**STACK_NAME, "ChangeSetName": "x",
        "TemplateBody": SIMPLE},
        STACK),
    api("see a change set", "cloudformation.describe_change_set", {"ChangeSetName": "<change>"}, STACK),
    api("see it by its name", "cloudformation.describe_change_set", {**STACK_NAME, "ChangeSetName": "<them>-change"}, STACK),
    api("execute a change set", "cloudformation.execute_change_set", {"ChangeSetName": "<change>"}, STACK, control=""),
    api("delete a change set", "cloudformation.delete_change_set", {"ChangeSetName": "<change>"}, STACK, is_last=True),
    api("signal a stack", "cloudformation.signal_resource", {**STACK_NAME, "LogicalResourceId": "Q", "UniqueId": "x",
        "Status": "SUCCESS"}, STACK, control=""),
    api("cancel an update", "cloudformation.cancel_update_stack", STACK_NAME, STACK, control=""),
    api("roll a stack back", "cloudformation.rollback_stack", STACK_NAME, STACK, control=""),
    api("protect a stack", "cloudformation.update_termination_protection", {**STACK_NAME, "EnableTerminationProtection": False},
        STACK),
    api("pass a role to a stack", "cloudformation.create_stack", {"StackName": "<me>-r", "TemplateBody": SIMPLE, "RoleARN": ROLE},
        ROLE, action="iam:PassRole"),
    api("pass a role to a change set", "cloudformation.create_change_set", {"StackName": "<me>-s", "ChangeSetName": "x",
        "ChangeSetType": "CREATE", "TemplateBody": SIMPLE, "RoleARN": ROLE}, ROLE, action="iam:PassRole"),
    api("take a template from the bucket of another", "cloudformation.create_stack", {"StackName": "<me>-t",
        "TemplateURL": "https://<them>-data.s3.amazonaws.com/k"}, "<them>-data/k", action="s3:GetObject", control=""),
    api("take the name of a stack", "cloudformation.create_stack", {**STACK_NAME, "TemplateBody": SIMPLE}, STACK, control=""),
    api("delete a stack", "cloudformation.delete_stack", STACK_NAME, STACK, is_last=True),
)  # fmt: skip

ATTEMPTS = (*ESCALATIONS, *STACKS)
