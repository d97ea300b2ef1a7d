"""Builds the state on which fuzzed requests act, and the examples from which they are made.

There are uploads under way, versions, alarms with metric math, running tasks, pushed images, FIFO queues with messages in flight,
topics, parameters with labels, log streams with events, a network, instances, stacks, and roles with policies.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from corral.aws import Response
from fuzz.batch_state import build_jobs
from fuzz.composer import Knowledge, Params, serialized
from fuzz.deep_instances import make_instances
from fuzz.group_state import build_groups
from fuzz.secret_state import build_parameters, build_secrets
from fuzz.stack_state import build_stacks
from fuzz.target_state import build_targets
from fuzz.topic_state import build_topics
from harness import Corral, container
from raw_aws import Connection
from raw_registry import Registry, digest_of
from wire.oracle import protocols_of, read_by_botocore

Examples = dict[tuple[str, str], list[Params]]
POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "a",
                "Effect": "Allow",
                "Principal": "*",
                "Action": "*",
                "Resource": "*",
                "Condition": {"DateLessThan": {"aws:CurrentTime": "2030-01-01T00:00:00Z"}, "NumericEquals": {"s3:max-keys": "10"}},
            }
        ],
    }
)
ROLE_POLICY = POLICY.replace('"Principal": "*", ', "")  # a role's policy names no principal
TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"Service": "a.amazonaws.com"}, "Action": "sts:AssumeRole"}],
    }
)
IMAGE_RULES = json.dumps(
    {
        "rules": [
            {
                "rulePriority": 1,
                "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 50},
                "action": {"type": "expire"},
            }
        ]
    }
)
DASHBOARD = json.dumps({"widgets": [{"type": "text", "x": 0, "y": 0, "width": 3, "height": 3, "properties": {"markdown": "a"}}]})
EXPRESSIONS = (
    "m1 + m2 / 2", "SUM(METRICS()) * 100", "IF(m1 > 5, m1, 0)", "SEARCH('{F,d} MetricName=\"m\"', 'Sum', 60)",
    "ANOMALY_DETECTION_BAND(m1)",
    "FILL(m1, 0) - RATE(m2)", 'SELECT AVG(m) FROM SCHEMA("F", d) GROUP BY d ORDER BY MAX() DESC LIMIT 5', "RUNNING_SUM(m1)[0]",
    "TIME_SERIES(1e3)", "SLICE(m1, 0, 1)", "DATAPOINT_COUNT(m1)", "m1 ^ 2", "SORT(METRICS(), AVG, DESC, 3)",
)  # fmt: skip
PATTERNS = (
    "", "ERROR", '{ $.a = 1 && $.b[0] != "x" }', "[ip, user, size > 100, ...]", "%a+[0-9]{2,3}%", "?a ?b -c",
    "{ $.x IS NULL }", "{ $.a = 1e9 }",
)  # fmt: skip
RULES = (
    'ALARM("{0}") AND NOT OK({0})',
    "AT_LEAST(1, ALARM, ({0}, {1}))",
    "AT_LEAST(50%, OK, ({0}))",
    "TRUE OR INSUFFICIENT_DATA({1})",
)
QUERIES = (
    "attribute:ecs.os-type == linux",
    "task:group in [a, b]",
    "agentVersion >= 1.2.3",
    "registeredAt > 2020-01-01",
    "(runningTasksCount == 0)",
)


class DeepState:
    """One state with names of its own, so that several can exist in one Corral."""

    def __init__(self, corral: Corral, knowledge: Knowledge, mark: str) -> None:
        self._corral = corral
        self._known = knowledge
        self._mark = mark
        self._account = ""
        self._connection = Connection(corral)
        self.examples: Examples = {}
        self.repository = self.password = ""
        self.bucket = f"fuzz-{mark}"

    async def build(self) -> Examples:
        self._account = (await self._caller("sts")("GetCallerIdentity"))["Account"]
        for part in (self._objects, self._queues, self._logs, self._metrics, self._tasks, self._images, self._network,
                     self._roles):  # fmt: skip
            await part()
        await make_instances(self._caller("ec2"), partial(self._example, "ec2"), partial(self._knows, "ec2"), self._mark)
        await build_parameters(self._caller("ssm"), partial(self._example, "ssm"), partial(self._knows, "ssm"), self._mark)
        await build_secrets(
            self._caller("secretsmanager"), partial(self._example, "secretsmanager"), partial(self._knows, "secretsmanager"),
            self._mark, POLICY,
        )  # fmt: skip
        await build_topics(self._caller("sns"), self._knows, self._account, self._mark, POLICY)
        await build_groups(self._caller("autoscaling"), self._knows, self._mark)
        await build_targets(self._caller("ecs"), self._caller("application-autoscaling"), self._knows, self._mark)
        await build_jobs(self._caller("batch"), self._knows, self._mark)
        await build_stacks(self._caller("cloudformation"), self._knows, self._mark)
        await self._connection.close()
        return self.examples

    def _caller(self, service: str) -> Callable[..., Awaitable[Any]]:
        """A function that calls an operation, and keeps its parameters as an example."""
        protocol = protocols_of(service)[0]

        async def call(operation: str, /, **params: Any) -> Any:
            self._example(service, operation, params)
            answer = await self._connection(serialized(service, protocol, operation, params))
            assert answer.status < 300, f"{service}:{operation} {params}: {answer}"
            return read_by_botocore(
                service, protocol, operation, Response(answer.status, list(answer.headers.items()), answer.body)
            )

        return call

    def _example(self, service: str, operation: str, params: Params) -> None:
        if not any(isinstance(value, bytes) for value in params.values()):
            self.examples.setdefault((service, operation), []).append(params)

    def _knows(self, service: str, **values: Any) -> None:
        for name, value in values.items():
            for each in value if isinstance(value, list | tuple) else [value]:
                self._known.know(service, name, each)

    async def _objects(self) -> None:
        call, bucket, target = self._caller("s3"), self.bucket, f"fuzz-{self._mark}-other"
        for name in (bucket, target):
            await call("CreateBucket", Bucket=name)
        await call("PutBucketVersioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        for key in ("a", "a", "folder/b c+d", "größe/²", "line\nbreak"):
            await call(
                "PutObject",
                Bucket=bucket,
                Key=key,
                Body=b"0123456789" * 3,
                Metadata={"a": "b"},
                Tagging="a=b",
                ContentType="text/x",
            )
        await call("PutObject", Bucket=target, Key="plain", Body=b"x" * 5000)
        await call("DeleteObject", Bucket=bucket, Key="a")
        uploads = [(await call("CreateMultipartUpload", Bucket=bucket, Key=key))["UploadId"] for key in ("big", "big", "huge")]
        part = await call("UploadPart", Bucket=bucket, Key="big", UploadId=uploads[0], PartNumber=1, Body=b"y" * 100)
        await call("UploadPart", Bucket=bucket, Key="huge", UploadId=uploads[2], PartNumber=7, Body=b"z" * 10)
        rule = {"ID": "r1", "Filter": {"Prefix": "a"}, "Status": "Enabled", "Expiration": {"Days": 3}}
        rule |= {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}, "NoncurrentVersionExpiration": {"NoncurrentDays": 4}}
        await call("PutBucketLifecycleConfiguration", Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
        cors = {"AllowedMethods": ["GET"], "AllowedOrigins": ["http://example.com"], "ExposeHeaders": ["x-a"], "MaxAgeSeconds": 5}
        await call("PutBucketCors", Bucket=bucket, CORSConfiguration={"CORSRules": [cors]})
        await call("PutBucketTagging", Bucket=bucket, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
        await call("PutObjectTagging", Bucket=target, Key="plain", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
        here = {"Bucket": bucket, "Key": "a"}
        for operation, params in {
            "GetObject": {"Bucket": target, "Key": "plain", "Range": "bytes=1-5"},
            "HeadObject": {"Bucket": target, "Key": "plain", "PartNumber": 1},
            "GetObjectAttributes": {"Bucket": target, "Key": "plain", "ObjectAttributes": ["ETag", "ObjectParts"], "MaxParts": 1},
            "CopyObject": {"Bucket": target, "Key": "copy", "CopySource": f"{target}/plain", "MetadataDirective": "REPLACE"},
            "UploadPartCopy": {
                "Bucket": bucket,
                "Key": "big",
                "UploadId": uploads[0],
                "PartNumber": 2,
                "CopySource": f"{target}/plain",
                "CopySourceRange": "bytes=0-99",
            },
            "CompleteMultipartUpload": {
                "Bucket": bucket,
                "Key": "big",
                "UploadId": uploads[1],
                "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
            },
            "DeleteObjects": {"Bucket": bucket, "Delete": {"Objects": [{"Key": "a"}, {"Key": "none", "VersionId": "null"}]}},
            "ListParts": {"Bucket": bucket, "Key": "big", "UploadId": uploads[0], "MaxParts": 1, "PartNumberMarker": "0"},
            "ListObjectVersions": {"Bucket": bucket, "MaxKeys": 2, "KeyMarker": "a", "VersionIdMarker": "null"},
            "ListObjectsV2": {"Bucket": bucket, "MaxKeys": 1, "Delimiter": "/", "StartAfter": "A"},
            "PutBucketPolicy": {"Bucket": bucket, "Policy": POLICY},
            "GetObjectTagging": here,
        }.items():
            self._example("s3", operation, params)
        queue = f"arn:aws:sqs:us-east-1:{self._account}:fuzz-{self._mark}"
        notified = {
            "QueueArn": queue,
            "Events": ["s3:ObjectCreated:*"],
            "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "a"}]}},
        }
        self._example(
            "s3",
            "PutBucketNotificationConfiguration",
            {"Bucket": target, "NotificationConfiguration": {"QueueConfigurations": [notified]}},
        )
        self._knows(
            "s3", Bucket=[bucket, target], Key=["a", "plain", "big", "folder/b c+d"], UploadId=uploads, PartNumber=["1", "7"]
        )
        self._knows(
            "s3", CopySource=[f"{target}/plain", f"{bucket}/folder/b%20c%2Bd"], Range="bytes=0-3", Policy=POLICY, VersionId="null"
        )
        self._knows("s3", ExpectedBucketOwner=self._account, PartNumberMarker="1", ContinuationToken="YQ==", Tagging="a=b&c=d")

    async def _queues(self) -> None:
        call, urls = self._caller("sqs"), []
        for name, attributes in ((f"fuzz-{self._mark}", {}), (f"fuzz-{self._mark}.fifo", {"FifoQueue": "true"})):
            urls.append(
                (await call("CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": "300", **attributes}))["QueueUrl"]
            )
        plain, fifo = urls
        arns = [f"arn:aws:sqs:us-east-1:{self._account}:{url.rpartition('/')[2]}" for url in urls]
        redrive = json.dumps({"deadLetterTargetArn": arns[0], "maxReceiveCount": 3})
        source = (await call("CreateQueue", QueueName=f"fuzz-{self._mark}-source", Attributes={"RedrivePolicy": redrive}))[
            "QueueUrl"
        ]
        sent = {"a": {"DataType": "Number.x", "StringValue": "12"}, "b": {"DataType": "String", "StringValue": "c"}}
        for number in range(5):
            await call("SendMessage", QueueUrl=plain, MessageBody=f"m{number}", MessageAttributes=sent, DelaySeconds=0)
            await call(
                "SendMessage", QueueUrl=fifo, MessageBody="m", MessageGroupId=f"g{number % 2}", MessageDeduplicationId=str(number)
            )
        entries = [{"Id": "a", "MessageBody": "b", "DelaySeconds": 1}, {"Id": "b", "MessageBody": "b"}]
        await call("SendMessageBatch", QueueUrl=plain, Entries=entries)
        handles = []
        for url in urls:
            got = await call(
                "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=2, AttributeNames=["All"], MessageAttributeNames=["a", "b.*"]
            )
            handles += [message["ReceiptHandle"] for message in got["Messages"]]
        for operation, params in {
            "DeleteMessage": {"QueueUrl": plain, "ReceiptHandle": handles[0]},
            "ChangeMessageVisibility": {"QueueUrl": fifo, "ReceiptHandle": handles[-1], "VisibilityTimeout": 10},
            "DeleteMessageBatch": {"QueueUrl": plain, "Entries": [{"Id": "1", "ReceiptHandle": handles[1]}]},
            "ChangeMessageVisibilityBatch": {
                "QueueUrl": plain,
                "Entries": [{"Id": "1", "ReceiptHandle": handles[1], "VisibilityTimeout": 3}],
            },
            "SetQueueAttributes": {"QueueUrl": source, "Attributes": {"RedrivePolicy": redrive, "DelaySeconds": "1"}},
            "StartMessageMoveTask": {"SourceArn": arns[0], "MaxNumberOfMessagesPerSecond": 5},
            "AddPermission": {"QueueUrl": plain, "Label": "l", "AWSAccountIds": [self._account], "Actions": ["SendMessage"]},
        }.items():
            self._example("sqs", operation, params)
        self._knows("sqs", QueueUrl=[plain, fifo, source], ReceiptHandle=handles, SourceArn=arns[0], DestinationArn=arns[1])
        self._knows("sqs", QueueName=[url.rpartition("/")[2] for url in urls], Policy=POLICY)

    async def _logs(self) -> None:
        call, group = self._caller("logs"), f"/fuzz/{self._mark}"
        await call("CreateLogGroup", logGroupName=group, tags={"a": "b"})
        for stream in ("s1", "s2"):
            await call("CreateLogStream", logGroupName=group, logStreamName=stream)
            events = [{"timestamp": 1_790_000_000_000 + number, "message": f"ERROR {number}"} for number in range(3)]
            await call("PutLogEvents", logGroupName=group, logStreamName=stream, logEvents=events)
        change = {"metricName": "m", "metricNamespace": "F", "metricValue": "$.size", "defaultValue": 1.0, "unit": "Bytes"}
        await call(
            "PutMetricFilter", logGroupName=group, filterName="f", filterPattern="{ $.size > 1 }", metricTransformations=[change]
        )
        arn = f"arn:aws:logs:us-east-1:{self._account}:log-group:{group}"
        for operation, params in {
            "FilterLogEvents": {
                "logGroupName": group,
                "logStreamNames": ["s1"],
                "filterPattern": "ERROR",
                "limit": 1,
                "startTime": 0,
            },
            "GetLogEvents": {"logGroupName": group, "logStreamName": "s1", "limit": 1, "startFromHead": True},
            "DescribeLogStreams": {"logGroupName": group, "orderBy": "LastEventTime", "limit": 1},
            "DescribeLogGroups": {"logGroupNamePrefix": "/fuzz", "limit": 1},
            "TestMetricFilter": {"filterPattern": "{ $.a = 1 }", "logEventMessages": ['{"a": 1, "b": [1e400]}', "x"]},
            "PutRetentionPolicy": {"logGroupName": group, "retentionInDays": 7},
            "ListTagsForResource": {"resourceArn": arn},
            "TagResource": {"resourceArn": arn, "tags": {"a": "b"}},
        }.items():
            self._example("logs", operation, params)
        self._knows("logs", logGroupName=group, logStreamName=["s1", "s2"], filterPattern=PATTERNS, resourceArn=arn, filterName="f")
        self._knows("logs", logGroupIdentifier=[group, arn], logEventMessages=['{"a": 1}', "ERROR 12"])

    async def _metrics(self) -> None:
        call, name = self._caller("cloudwatch"), f"fuzz-{self._mark}"
        metric = {"Namespace": "F", "MetricName": "m", "Dimensions": [{"Name": "d", "Value": self._mark}]}
        datum = {"MetricName": "m", "Dimensions": metric["Dimensions"], "Values": [1.0, 5.0], "Counts": [1.0, 2.0], "Unit": "Count"}
        await call("PutMetricData", Namespace="F", MetricData=[datum, {"MetricName": "n", "Value": 3.0, "StorageResolution": 1}])
        usual = {"EvaluationPeriods": 2, "Threshold": 5.0, "ComparisonOperator": "GreaterThanThreshold"}
        await call("PutMetricAlarm", AlarmName=name, Period=60, Statistic="Sum", DatapointsToAlarm=1, **metric, **usual)
        metrics = [
            {"Id": "m1", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "p99.9"}, "ReturnData": False},
            {"Id": "m2", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}, "ReturnData": False},
            {"Id": "e1", "Expression": "m1 / m2 * 100", "Label": "${LAST} ${PROP('Dim.d')}", "ReturnData": True},
        ]
        await call("PutMetricAlarm", AlarmName=f"{name}-math", Metrics=metrics, **usual)
        rules = [rule.format(name, f"{name}-math") for rule in RULES]
        await call("PutCompositeAlarm", AlarmName=f"{name}-both", AlarmRule=rules[0], ActionsSuppressor=name,
             ActionsSuppressorWaitPeriod=5, ActionsSuppressorExtensionPeriod=5)  # fmt: skip
        await call("PutDashboard", DashboardName=name, DashboardBody=DASHBOARD)
        await call("SetAlarmState", AlarmName=name, StateValue="ALARM", StateReason="fuzz", StateReasonData="{}")
        window = {"StartTime": 1_790_000_000.0, "EndTime": 1_790_003_600.0}
        for expression in EXPRESSIONS:
            queries = [*metrics[:2], {"Id": "e1", "Expression": expression, "Period": 60}]
            self._example("cloudwatch", "GetMetricData", {"MetricDataQueries": queries, **window, "MaxDatapoints": 10})
        for operation, params in {
            "GetMetricStatistics": {
                **metric,
                **window,
                "Period": 60,
                "Statistics": ["Sum"],
                "ExtendedStatistics": ["p50", "tm(1%:9%)"],
            },
            "DescribeAlarmHistory": {"AlarmName": name, "MaxRecords": 1},
            "DescribeAlarms": {"AlarmNamePrefix": "fuzz", "MaxRecords": 1, "ChildrenOfAlarmName": f"{name}-both"},
            "ListMetrics": {**metric, "RecentlyActive": "PT3H"},
        }.items():
            self._example("cloudwatch", operation, params)
        self._example("cloudwatch", "DescribeAlarms", {"MaxRecords": 1})
        self._knows(
            "cloudwatch", AlarmName=[name, f"{name}-math", f"{name}-both"], Namespace="F", MetricName=["m", "n"], AlarmRule=rules
        )
        self._knows(
            "cloudwatch", Expression=EXPRESSIONS, Stat=["Sum", "p99", "tm(10%:90%)", "PR(1:2)", "wm50"], DashboardName=name, Id="m1"
        )
        self._knows(
            "cloudwatch", ExtendedStatistic="p90.5", DashboardBody=DASHBOARD, Label="${MAX} ${DATAPOINT_COUNT}", Timezone="+0130"
        )
        arn = f"arn:aws:cloudwatch:us-east-1:{self._account}:alarm:{name}"
        self._knows("cloudwatch", ResourceARN=arn, AlarmActions=["arn:aws:sns:us-east-1:123456789012:t"])

    async def _tasks(self) -> None:
        call, family = self._caller("ecs"), f"fuzz-{self._mark}"
        await call("CreateCluster", clusterName=family)
        sleeping = container(["sleep", "20"], cpu=10, environment=[{"name": "A", "value": "b"}])
        gpu = container(["sleep", "20"], gpus=1, log_prefix="fuzz", healthCheck={"command": ["CMD-SHELL", "true"], "interval": 5})
        for definition in (sleeping, gpu):
            made = await call("RegisterTaskDefinition", family=family, containerDefinitions=[definition], cpu="256", memory="512")
        definition = f"{family}:2"
        over = {"containerOverrides": [{"name": "main", "environment": [{"name": "C", "value": "d"}], "cpu": 20, "memory": 64}]}
        ran = await call("RunTask", taskDefinition=f"{family}:1", count=2, startedBy="fuzz", group="family:x", overrides=over)
        tasks = [task["taskArn"] for task in ran["tasks"]]
        instances = (await call("ListContainerInstances"))["containerInstanceArns"]
        await call(
            "UpdateContainerInstancesState", containerInstances=instances[:10], status="ACTIVE"
        )  # a request may have drained it
        await call("PutAttributes", attributes=[{"name": "stack", "value": "fuzz", "targetId": instances[0]}])
        for operation, params in {
            "RunTask": {
                "taskDefinition": definition,
                "count": 1,
                "launchType": "EC2",
                "overrides": over,
                "enableExecuteCommand": True,
                "placementConstraints": [{"type": "memberOf", "expression": "attribute:stack == fuzz"}],
                "placementStrategy": [{"type": "spread", "field": "attribute:stack"}],
                "tags": [{"key": "a", "value": "b"}],
            },
            "StartTask": {"taskDefinition": f"{family}:1", "containerInstances": instances},
            "DescribeTasks": {"tasks": tasks, "include": ["TAGS"]},
            "StopTask": {"task": tasks[1], "reason": "fuzz"},
            "DescribeTaskDefinition": {"taskDefinition": definition, "include": ["TAGS"]},
            "ListTaskDefinitions": {"familyPrefix": family, "maxResults": 1, "sort": "DESC"},
            "ListTasks": {"family": family, "maxResults": 1},
            "DeregisterTaskDefinition": {"taskDefinition": f"{family}:9"},
            "DeleteTaskDefinitions": {"taskDefinitions": [f"{family}:9"]},
            "ListAttributes": {"targetType": "container-instance", "attributeName": "stack", "maxResults": 1},
            "UpdateTaskProtection": {"tasks": tasks[:1], "protectionEnabled": True, "expiresInMinutes": 5},
            "ListTagsForResource": {"resourceArn": tasks[0]},
            "DescribeContainerInstances": {"containerInstances": instances, "include": ["TAGS", "CONTAINER_INSTANCE_HEALTH"]},
            "ExecuteCommand": {"task": tasks[0], "command": "true", "interactive": True, "container": "main"},
        }.items():
            self._example("ecs", operation, params)
        arn = made["taskDefinition"]["taskDefinitionArn"]
        self._knows(
            "ecs", taskDefinition=[definition, f"{family}:1", family, arn], family=family, task=tasks, cluster=["default", family]
        )
        self._knows(
            "ecs", containerInstance=instances, resourceArn=[tasks[0], arn], expression=QUERIES, container="main", command=["true"]
        )
        self._knows(
            "ecs", image="corral/host", targetId=instances, entryPoint="sleep", value="1", cpu="256", memory="512", user="0"
        )

    async def _images(self) -> None:
        call, name = self._caller("ecr"), f"fuzz/{self._mark}"
        await call("CreateRepository", repositoryName=name, imageTagMutability="MUTABLE")
        [token] = (await call("GetAuthorizationToken"))["authorizationData"]
        self.repository, self.password = name, b64decode(token["authorizationToken"]).decode().partition(":")[2]
        registry = Registry(self._corral, self.password)
        manifest = registry.push_image(name, "v1", b"a layer")
        registry.push_image(name, "v2", b"another layer")
        digest = digest_of(manifest)
        for operation, params in {
            "DescribeImages": {"repositoryName": name, "imageIds": [{"imageTag": "v1"}]},
            "BatchGetImage": {"repositoryName": name, "imageIds": [{"imageDigest": digest}, {"imageTag": "v2"}]},
            "PutImage": {"repositoryName": name, "imageManifest": manifest.decode(), "imageTag": "v3"},
            "ListImages": {"repositoryName": name, "maxResults": 1},
            "PutLifecyclePolicy": {"repositoryName": name, "lifecyclePolicyText": IMAGE_RULES},
            "BatchCheckLayerAvailability": {"repositoryName": name, "layerDigests": [digest_of(b"a layer")]},
        }.items():
            self._example("ecr", operation, params)
        arn = f"arn:aws:ecr:us-east-1:{self._account}:repository/{name}"
        self._knows("ecr", repositoryName=name, imageTag=["v1", "v2"], imageDigest=digest, layerDigest=digest_of(b"a layer"))
        self._knows("ecr", lifecyclePolicyText=IMAGE_RULES, policyText=POLICY, resourceArn=arn, imageManifest=manifest.decode())
        self._knows("ecr", registryId=self._account)

    async def _network(self) -> None:
        call = self._caller("ec2")
        vpc = (await call("CreateVpc", CidrBlock="10.7.0.0/16"))["Vpc"]["VpcId"]
        subnet = (await call("CreateSubnet", VpcId=vpc, CidrBlock="10.7.1.0/24"))["Subnet"]["SubnetId"]
        group = (await call("CreateSecurityGroup", GroupName=f"fuzz-{self._mark}", Description="d", VpcId=vpc))["GroupId"]
        access = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 23, "IpRanges": [{"CidrIp": "10.0.0.0/8", "Description": "x"}]}
        made = await call("AuthorizeSecurityGroupIngress", GroupId=group, IpPermissions=[access])
        rule = made["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        table = (await call("CreateRouteTable", VpcId=vpc))["RouteTable"]["RouteTableId"]
        gateway = (await call("CreateInternetGateway"))["InternetGateway"]["InternetGatewayId"]
        await call("AttachInternetGateway", InternetGatewayId=gateway, VpcId=vpc)
        await call("CreateRoute", RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
        await call("AssociateRouteTable", RouteTableId=table, SubnetId=subnet)
        acl = (await call("CreateNetworkAcl", VpcId=vpc))["NetworkAcl"]["NetworkAclId"]
        await call("CreateNetworkAclEntry", NetworkAclId=acl, RuleNumber=100, Protocol="6", RuleAction="allow", Egress=False,
             CidrBlock="10.0.0.0/8", PortRange={"From": 1, "To": 2})  # fmt: skip
        address = (await call("AllocateAddress", Domain="vpc"))["AllocationId"]
        await call("CreateKeyPair", KeyName=f"fuzz-{self._mark}")
        for kind in (
            "Vpcs",
            "Subnets",
            "SecurityGroups",
            "RouteTables",
            "NetworkAcls",
            "Addresses",
            "KeyPairs",
            "SecurityGroupRules",
        ):
            params = {"Filters": [{"Name": "vpc-id", "Values": [vpc, "*"]}]}
            self._example("ec2", f"Describe{kind}", params if kind == "Addresses" else {**params, "MaxResults": 5})
        rules = [
            {
                "SecurityGroupRuleId": rule,
                "SecurityGroupRule": {"IpProtocol": "udp", "FromPort": 1, "ToPort": 2, "CidrIpv4": "10.0.0.0/8"},
            }
        ]
        self._example("ec2", "ModifySecurityGroupRules", {"GroupId": group, "SecurityGroupRules": rules})
        self._example("ec2", "RevokeSecurityGroupIngress", {"GroupId": group, "IpPermissions": [access]})
        self._example("ec2", "CreateTags", {"Resources": [vpc], "Tags": [{"Key": "a", "Value": "b"}]})
        self._knows(
            "ec2", VpcId=vpc, SubnetId=subnet, GroupId=group, RouteTableId=table, GatewayId=gateway, InternetGatewayId=gateway
        )
        self._knows(
            "ec2",
            NetworkAclId=acl,
            AllocationId=address,
            CidrBlock=["10.7.2.0/24", "10.7.0.0/16"],
            DestinationCidrBlock="0.0.0.0/0",
        )
        self._knows("ec2", IpProtocol=["tcp", "6", "-1"], Protocol=["6", "-1"], SecurityGroupRuleId=rule, Resources=[vpc, group])
        self._knows(
            "ec2",
            AvailabilityZone="us-east-1a",
            ServiceName="com.amazonaws.us-east-1.s3",
            CidrIp="10.0.0.0/8",
            PolicyDocument=ROLE_POLICY,
        )

    async def _roles(self) -> None:
        call, name = self._caller("iam"), f"fuzz-{self._mark}"
        await call("CreateRole", RoleName=name, AssumeRolePolicyDocument=TRUST)
        await call("PutRolePolicy", RoleName=name, PolicyName="p", PolicyDocument=ROLE_POLICY)
        arn = (await call("CreatePolicy", PolicyName=name, PolicyDocument=ROLE_POLICY))["Policy"]["Arn"]
        await call("CreatePolicyVersion", PolicyArn=arn, PolicyDocument=ROLE_POLICY, SetAsDefault=True)
        await call("AttachRolePolicy", RoleName=name, PolicyArn=arn)
        await call("CreateInstanceProfile", InstanceProfileName=name)
        await call("AddRoleToInstanceProfile", InstanceProfileName=name, RoleName=name)
        self._knows("iam", RoleName=name, PolicyArn=arn, PolicyName=["p", name], InstanceProfileName=name, VersionId=["v1", "v2"])
        self._knows(
            "iam", PolicyDocument=ROLE_POLICY, AssumeRolePolicyDocument=TRUST, AWSServiceName="ecs.amazonaws.com", PathPrefix="/"
        )
        role = f"arn:aws:iam::{self._account}:role/{name}"
        self._example("sts", "AssumeRole", {"RoleArn": role, "RoleSessionName": "fuzz", "DurationSeconds": 900, "Policy": POLICY})
        self._knows("sts", RoleArn=role, RoleSessionName="fuzz", Policy=POLICY, Name="fuzz", PolicyArns=arn)
