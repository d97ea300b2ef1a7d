"""A stack of data services: its resources act, a failed update restores them, and a bucket with objects is not deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eventually import eventually
from harness import Corral

QUICKLY = {"Delay": 0.1, "MaxAttempts": 300}
TEMPLATE = """
Parameters:
  Days: {Type: Number, Default: 7}
  Threshold: {Type: Number, Default: 5}
  Broken: {Type: String, Default: "no"}
  UseKey: {Type: String, Default: "yes"}
Conditions:
  IsBroken: !Equals [!Ref Broken, "yes"]
  HasKey: !Equals [!Ref UseKey, "yes"]
Resources:
  Key:
    Type: AWS::KMS::Key
    Condition: HasKey
    Properties: {KeyPolicy: {Version: "2012-10-17", Statement: []}}
  KeyAlias:
    Type: AWS::KMS::Alias
    Condition: HasKey
    Properties: {AliasName: alias/data, TargetKeyId: !Ref Key}
  Queue:
    Type: AWS::SQS::Queue
    Properties: {VisibilityTimeout: !If [IsBroken, 99, 0]}
  QueuePolicy:
    Type: AWS::SQS::QueuePolicy
    Properties:
      Queues: [!Ref Queue]
      PolicyDocument:
        Statement:
          - Effect: Allow
            Principal: {Service: s3.amazonaws.com}
            Action: sqs:SendMessage
            Resource: !GetAtt Queue.Arn
            Condition: {ArnLike: {"aws:SourceArn": !Sub "arn:${AWS::Partition}:s3:::${AWS::StackName}-*"}}
  Bucket:
    Type: AWS::S3::Bucket
    DependsOn: QueuePolicy
    Properties:
      BucketEncryption:
        ServerSideEncryptionConfiguration:
          - ServerSideEncryptionByDefault:
              SSEAlgorithm: aws:kms
              KMSMasterKeyID: !If [HasKey, !GetAtt Key.Arn, !Ref "AWS::NoValue"]
      NotificationConfiguration:
        QueueConfigurations: [{Event: "s3:ObjectCreated:*", Queue: !GetAtt Queue.Arn}]
      LifecycleConfiguration: {Rules: [{Id: old, Status: Enabled, ExpirationInDays: !Ref Days}]}
  BucketPolicy:
    Type: AWS::S3::BucketPolicy
    Properties:
      Bucket: !Ref Bucket
      PolicyDocument:
        Statement:
          - {Effect: Deny, Principal: "*", Action: "s3:DeleteBucketPolicy", Resource: !GetAtt Bucket.Arn}
  Logs:
    Type: AWS::Logs::LogGroup
    Properties: {RetentionInDays: !Ref Days}
  Stream:
    Type: AWS::Logs::LogStream
    Properties: {LogGroupName: !Ref Logs, LogStreamName: main}
  Errors:
    Type: AWS::Logs::MetricFilter
    Properties:
      LogGroupName: !Ref Logs
      FilterPattern: ERROR
      MetricTransformations: [{MetricName: Errors, MetricNamespace: !Ref "AWS::StackName", MetricValue: "1"}]
  Alarm:
    Type: AWS::CloudWatch::Alarm
    Properties:
      MetricName: Errors
      Namespace: !Ref AWS::StackName
      Statistic: Sum
      Period: 60
      EvaluationPeriods: 1
      Threshold: !Ref Threshold
      ComparisonOperator: GreaterThanThreshold
  Both:
    Type: AWS::CloudWatch::CompositeAlarm
    Properties: {AlarmRule: !Sub "ALARM(${Alarm})"}
  Board:
    Type: AWS::CloudWatch::Dashboard
    Properties: {DashboardBody: !Sub '{"widgets": [], "start": "-P${Days}D"}'}
  Repository:
    Type: AWS::ECR::Repository
    Properties: {ImageTagMutability: IMMUTABLE}
  Parameter:
    Type: AWS::SSM::Parameter
    Properties: {Type: String, Value: !Sub "${Days}", Name: !Sub "/${AWS::StackName}/days"}
  Role:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument:
        Statement: [{Effect: Allow, Principal: {Service: ecs-tasks.amazonaws.com}, Action: "sts:AssumeRole"}]
      ManagedPolicyArns: [!Ref ReadBucket]
      Policies:
        - PolicyName: days
          PolicyDocument:
            Statement:
              - Effect: Allow
                Action: "ssm:GetParameter"
                Resource: !Sub "arn:${AWS::Partition}:ssm:${AWS::Region}:${AWS::AccountId}:parameter${Parameter}"
  ReadBucket:
    Type: AWS::IAM::ManagedPolicy
    Properties:
      PolicyDocument:
        Version: "2012-10-17"  # IAM refuses managed policies of the older version, which is the default
        Statement: [{Effect: Allow, Action: "s3:GetObject", Resource: !Sub "${Bucket.Arn}/*"}]
  SendMessages:
    Type: AWS::IAM::Policy
    Properties:
      PolicyName: send
      PolicyDocument: {Statement: [{Effect: Allow, Action: "sqs:SendMessage", Resource: !GetAtt Queue.Arn}]}
      Roles: [!Ref Role]
      Users: [!Ref Ann]
  Ann: {Type: AWS::IAM::User}
  Profile:
    Type: AWS::IAM::InstanceProfile
    Properties: {Roles: [!Ref Role]}
  Failing:
    Type: AWS::SQS::Queue
    Condition: IsBroken
    DependsOn: [Alarm, Board, Logs, Bucket, Parameter, Queue]
    Properties: {RedrivePolicy: {deadLetterTargetArn: "arn:aws:sqs:us-east-1:123456789012:missing", maxReceiveCount: 1}}
Outputs:
  Bucket: {Value: !Ref Bucket}
  Queue: {Value: !Ref Queue}
  Uri: {Value: !GetAtt Repository.RepositoryUri}
  Role: {Value: !GetAtt Role.Arn}
  Logs: {Value: !Ref Logs}
  Alarm: {Value: !Ref Alarm}
  Days: {Value: !GetAtt Parameter.Value}
"""


def settled(cloudformation: Any, name: str) -> dict[str, Any]:
    """The stack, when no operation is in progress."""

    def look() -> dict[str, Any] | None:
        [stack] = cloudformation.describe_stacks(StackName=name)["Stacks"]
        return None if stack["StackStatus"].endswith("_IN_PROGRESS") else stack

    return eventually(look)


def outputs(stack: dict[str, Any]) -> dict[str, str]:
    return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}


def state(corral: Corral, found: dict[str, str]) -> list[Any]:
    """What the services return about the resources that an update changes."""
    [alarm] = corral.client("cloudwatch").describe_alarms(AlarmNames=[found["Alarm"]])["MetricAlarms"]
    [group] = corral.client("logs").describe_log_groups(logGroupNamePrefix=found["Logs"])["logGroups"]
    rules = corral.client("s3").get_bucket_lifecycle_configuration(Bucket=found["Bucket"])["Rules"]
    queue = corral.client("sqs").get_queue_attributes(QueueUrl=found["Queue"], AttributeNames=["VisibilityTimeout"])["Attributes"]
    board = [
        corral.client("cloudwatch").get_dashboard(DashboardName=each["DashboardName"])["DashboardBody"]
        for each in corral.client("cloudwatch").list_dashboards(DashboardNamePrefix="data-")["DashboardEntries"]
    ]
    parameter = corral.client("ssm").get_parameter(Name="/data/days")["Parameter"]["Value"]
    return [alarm["Threshold"], group["retentionInDays"], rules[0]["Expiration"]["Days"], queue, board, parameter]


@pytest.fixture
def deployed(corral: Corral) -> dict[str, str]:
    cloudformation = corral.client("cloudformation")
    cloudformation.create_stack(StackName="data", TemplateBody=TEMPLATE, Capabilities=["CAPABILITY_NAMED_IAM"])
    stack = settled(cloudformation, "data")
    events = cloudformation.describe_stack_events(StackName="data")["StackEvents"]
    failed = [
        f"{each['LogicalResourceId']}: {each['ResourceStatusReason']}" for each in events if "FAILED" in each["ResourceStatus"]
    ]
    assert stack["StackStatus"] == "CREATE_COMPLETE", "\n".join(failed)
    return outputs(stack)


def test_a_stack_of_data_services(corral: Corral, deployed: dict[str, str]) -> None:
    cloudformation, s3, sqs = corral.client("cloudformation"), corral.client("s3"), corral.client("sqs")
    resources = cloudformation.describe_stack_resources(StackName="data")["StackResources"]
    stored_only = {each["LogicalResourceId"] for each in resources if "Stored only" in each.get("ResourceStatusReason", "")}
    assert stored_only == {"Key", "KeyAlias"}

    s3.put_object(Bucket=deployed["Bucket"], Key="photo.jpg", Body=b"x")
    bodies = list[str]()

    def received() -> bool:
        messages = sqs.receive_message(QueueUrl=deployed["Queue"], MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
        bodies.extend(message["Body"] for message in messages)
        return any("ObjectCreated:Put" in body for body in bodies)

    eventually(received)
    assert deployed["Uri"].rpartition("/")[2].startswith("data-repository-"), "repository names are in lower case"
    attached = corral.client("iam").list_attached_role_policies(RoleName=deployed["Role"].rpartition("/")[2])["AttachedPolicies"]
    assert len(attached) == 1
    before = state(corral, deployed)
    assert before == [5.0, 7, 7, {"VisibilityTimeout": "0"}, ['{"widgets": [], "start": "-P7D"}'], "7"]

    changed = [
        {"ParameterKey": key, "ParameterValue": value} for key, value in (("Days", "14"), ("Threshold", "9"), ("Broken", "yes"))
    ]
    cloudformation.update_stack(StackName="data", UsePreviousTemplate=True, Parameters=changed, Capabilities=["CAPABILITY_IAM"])
    stack = settled(cloudformation, "data")
    assert stack["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE" and outputs(stack) == deployed
    assert state(corral, deployed) == before

    cloudformation.update_stack(StackName="data", UsePreviousTemplate=True, Parameters=changed[:2], Capabilities=["CAPABILITY_IAM"])
    stack = settled(cloudformation, "data")
    assert stack["StackStatus"] == "UPDATE_COMPLETE" and outputs(stack) == {**deployed, "Days": "14"}
    assert state(corral, deployed) == [9.0, 14, 14, {"VisibilityTimeout": "0"}, ['{"widgets": [], "start": "-P14D"}'], "14"]

    cloudformation.delete_stack(StackName="data")
    stack = settled(cloudformation, "data")
    assert stack["StackStatus"] == "DELETE_FAILED" and "[Bucket]" in stack["StackStatusReason"]
    events = cloudformation.describe_stack_events(StackName="data")["StackEvents"]
    assert any("The bucket you tried to delete is not empty" in each.get("ResourceStatusReason", "") for each in events)
    s3.delete_object(Bucket=deployed["Bucket"], Key="photo.jpg")
    cloudformation.delete_stack(StackName="data")
    cloudformation.get_waiter("stack_delete_complete").wait(StackName="data", WaiterConfig=QUICKLY)
    left = [
        s3.list_buckets(Prefix="data-")["Buckets"],
        sqs.list_queues(QueueNamePrefix="data-").get("QueueUrls", []),
        corral.client("logs").describe_log_groups(logGroupNamePrefix="data-")["logGroups"],
        corral.client("cloudwatch").describe_alarms(AlarmNamePrefix="data-")["MetricAlarms"],
        corral.client("cloudwatch").list_dashboards(DashboardNamePrefix="data-")["DashboardEntries"],
        [each for each in corral.client("ecr").describe_repositories()["repositories"] if "data-" in each["repositoryName"]],
        corral.client("ssm").get_parameters(Names=["/data/days"])["Parameters"],
        [each for each in corral.client("iam").list_roles()["Roles"] if each["RoleName"].startswith("data-")],
    ]
    assert left == [[]] * len(left), json.dumps(left, default=str)
