"""Event source mappings: queues of SQS that invoke functions of Lambda, through boto3 and with real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from clients.function_help import create
from clients.stack_help import ended, events, outputs
from each import check_each
from eventually import eventually
from harness import Corral

POLLER = "arn:aws:iam::123456789012:role/poller"
QUEUE_ARN = "arn:aws:sqs:us-east-1:123456789012:"
SQS_POLICY = "arn:aws:iam::aws:policy/service-role/AWSLambdaSQSQueueExecutionRole"
# Writes each event to a file. A message whose body has `raise` fails the batch, one with `fail` is reported as failed; each of
# them only once if its body also has `once`. A message with `wait` waits for a file.
RECORDING = """
import json, os, time
def handler(event, context):
    bodies = [record["body"] for record in event["Records"]]
    seen = open(os.environ["RESULTS"]).read() if os.path.exists(os.environ["RESULTS"]) else ""
    with open(os.environ["RESULTS"], "a") as file:
        file.write(json.dumps(event) + "\\n")
    while any("wait" in body for body in bodies) and not os.path.exists(os.environ["RESULTS"] + ".go"):
        time.sleep(0.02)
    failing = [r for r in event["Records"] if not ("once" in r["body"] and r["body"] in seen)]
    if any("raise" in record["body"] for record in failing):
        raise ValueError("the batch fails")
    return {"batchItemFailures": [{"itemIdentifier": r["messageId"]} for r in failing if "fail" in r["body"]]}
"""


class World:
    """A function that records its events, with a role that may read queues."""

    def __init__(self, corral: Corral, results: Path) -> None:
        self.lambda_, self.sqs = corral.client("lambda"), corral.client("sqs")
        self.results = results
        trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
        iam = corral.client("iam")
        try:
            iam.create_role(RoleName="poller", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}))
        except iam.exceptions.EntityAlreadyExistsException:
            return
        iam.attach_role_policy(RoleName="poller", PolicyArn=SQS_POLICY)

    def function(self, name: str, timeout_s: int = 1) -> None:
        variables = {"Variables": {"RESULTS": str(self.results)}}
        create(self.lambda_, name, RECORDING, Role=POLLER, Timeout=timeout_s, Environment=variables)

    def queue(self, name: str, visibility_s: int = 1, **attributes: str) -> str:
        given = {"VisibilityTimeout": str(visibility_s), **attributes}
        return str(self.sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"])

    def map(self, function: str, queue: str, **params: Any) -> str:
        made = self.lambda_.create_event_source_mapping(FunctionName=function, EventSourceArn=QUEUE_ARN + queue, **params)
        assert made["State"] == "Creating"
        return str(made["UUID"])

    def send(self, queue: str, *bodies: str) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=queue, MessageBody=body)

    def records(self) -> list[list[dict[str, Any]]]:
        """The records of each event, in the order of the invocations."""
        return [json.loads(line)["Records"] for line in self.results.read_text().splitlines()] if self.results.exists() else []

    def bodies(self) -> list[str]:
        return [record["body"] for records in self.records() for record in records]

    def counts(self, queue: str) -> tuple[int, int]:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])


@pytest.fixture
def world(corral: Corral, tmp_path: Path) -> World:
    return World(corral, tmp_path / "results")


def test_a_message_becomes_an_event_and_is_deleted(world: World) -> None:
    world.function("receiving")
    url = world.queue("received")
    world.map("receiving", "received")
    attributes = {
        "text": {"DataType": "String", "StringValue": "a"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x01"},
    }
    sent = world.sqs.send_message(QueueUrl=url, MessageBody="hello", MessageAttributes=attributes)
    [[record]] = eventually(world.records, "the event")
    assert list(record) == [
        "messageId", "receiptHandle", "body", "attributes", "messageAttributes", "md5OfMessageAttributes", "md5OfBody",
        "eventSource", "eventSourceARN", "awsRegion",
    ]  # fmt: skip
    assert (record["messageId"], record["body"]) == (sent["MessageId"], "hello")
    assert (record["md5OfBody"], record["md5OfMessageAttributes"]) == (sent["MD5OfMessageBody"], sent["MD5OfMessageAttributes"])
    assert (record["eventSource"], record["eventSourceARN"]) == ("aws:sqs", QUEUE_ARN + "received")
    system = {"SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"}
    assert record["attributes"].keys() == system and record["attributes"]["ApproximateReceiveCount"] == "1"
    lists = {"stringListValues": [], "binaryListValues": []}
    assert record["messageAttributes"] == {
        "text": {"stringValue": "a", **lists, "dataType": "String"},
        "bytes": {"binaryValue": "AQ==", **lists, "dataType": "Binary"},
    }
    eventually(lambda: world.counts(url) == (0, 0), "the message is deleted")
    world.sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    eventually(lambda: world.bodies()[1:] == ["later"], "the delayed message invokes the function, too")


def test_failed_messages_become_visible_again_and_move_to_the_dead_letter_queue(world: World) -> None:
    world.function("failing")
    dead = world.queue("failing-dead")
    redrive = json.dumps({"deadLetterTargetArn": QUEUE_ARN + "failing-dead", "maxReceiveCount": 2})
    url = world.queue("failing", RedrivePolicy=redrive)
    world.send(url, "good", "fail", "fail once")
    uuid = world.map("failing", "failing", FunctionResponseTypes=["ReportBatchItemFailures"])
    assert sorted(record["body"] for record in eventually(world.records, "the first event")[0]) == ["fail", "fail once", "good"]
    [letter] = eventually(lambda: world.sqs.receive_message(QueueUrl=dead).get("Messages"), "a dead letter")
    assert letter["Body"] == "fail" and world.counts(url) == (0, 0)
    assert sorted(world.bodies()) == ["fail", "fail", "fail once", "fail once", "good"]
    world.sqs.delete_message(QueueUrl=dead, ReceiptHandle=letter["ReceiptHandle"])
    world.lambda_.update_event_source_mapping(UUID=uuid, FunctionResponseTypes=[], BatchSize=1)
    world.send(url, "raise", "fail is ignored")
    [letter] = eventually(lambda: world.sqs.receive_message(QueueUrl=dead).get("Messages"), "the dead letter of an exception")
    assert letter["Body"] == "raise" and world.counts(url) == (0, 0)
    assert world.bodies().count("raise") == 2 and world.bodies().count("fail is ignored") == 1


def test_the_groups_of_a_fifo_queue_keep_their_order(world: World) -> None:
    world.function("ordered")
    url = world.queue("ordered.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for body in ("a1", "a2 raise once", "a3", "b1", "b2"):
        world.sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=body[0])
    world.map("ordered", "ordered.fifo", BatchSize=1)
    eventually(lambda: world.counts(url) == (0, 0), "all messages are processed")
    assert [body for body in world.bodies() if body[0] == "a"] == ["a1", "a2 raise once", "a2 raise once", "a3"]
    assert [body for body in world.bodies() if body[0] == "b"] == ["b1", "b2"]
    assert {"MessageGroupId", "MessageDeduplicationId", "SequenceNumber"} <= world.records()[0][0]["attributes"].keys()


def test_windows_filters_and_concurrency(world: World) -> None:
    world.function("windowed", timeout_s=30)
    url = world.queue("windowed", visibility_s=30)
    patterns = [{"body": {"kind": ["a", {"prefix": "wait"}]}}, {"messageAttributes": {"x": {"stringValue": ["y"]}}}]
    uuid = world.map(
        "windowed", "windowed", MaximumBatchingWindowInSeconds=2, BatchSize=3, ScalingConfig={"MaximumConcurrency": 2},
        FilterCriteria={"Filters": [{"Pattern": json.dumps(each)} for each in patterns]},
    )  # fmt: skip
    world.send(url, '{"kind": "a"}', '{"kind": "b"}')
    world.sqs.send_message(QueueUrl=url, MessageBody="text", MessageAttributes={"x": {"DataType": "String", "StringValue": "y"}})
    [records] = eventually(world.records, "a full batch")
    assert sorted(each["body"] for each in records) == ["text", '{"kind": "a"}']
    eventually(lambda: world.counts(url) == (0, 0), "the message that no filter accepts is deleted, too")
    world.send(url, '{"kind": "a", "n": 2}')
    eventually(lambda: len(world.records()) == 2, "the window ends")
    world.lambda_.update_event_source_mapping(UUID=uuid, BatchSize=1)
    for number in range(4):
        world.send(url, json.dumps({"kind": "wait", "n": number}))
    eventually(lambda: world.counts(url) == (2, 2), "two batches run, and two messages wait")
    assert world.lambda_.update_event_source_mapping(UUID=uuid, Enabled=False)["State"] == "Disabling"
    world.results.with_suffix(".go").touch()
    eventually(lambda: world.lambda_.get_event_source_mapping(UUID=uuid)["State"] == "Disabled", "both invocations end")
    assert world.counts(url) == (2, 0)
    assert world.lambda_.update_event_source_mapping(UUID=uuid, Enabled=True, FilterCriteria={})["State"] == "Enabling"
    eventually(lambda: world.counts(url) == (0, 0), "the other messages")
    assert "FilterCriteria" not in world.lambda_.get_event_source_mapping(UUID=uuid)


def test_a_deleted_queue_and_function_come_back(world: World) -> None:
    world.function("returning")
    url = world.queue("returning")
    uuid = world.map("returning", "returning")
    world.lambda_.delete_function(FunctionName="returning")
    world.send(url, "one")
    found = eventually(lambda: world.lambda_.get_event_source_mapping(UUID=uuid).get("LastProcessingResult"), "the problem")
    assert found == "PROBLEM: The function does not exist."
    world.function("returning")
    eventually(lambda: world.bodies() == ["one"], "the new function gets the message")
    world.sqs.delete_queue(QueueUrl=url)
    found = eventually(lambda: world.lambda_.get_event_source_mapping(UUID=uuid).get("LastProcessingResult"), "the problem")
    assert found == "PROBLEM: The queue does not exist."
    world.send(world.queue("returning"), "two")
    eventually(lambda: world.bodies() == ["one", "two"], "a message of the new queue")
    assert "LastProcessingResult" not in world.lambda_.get_event_source_mapping(UUID=uuid)


def test_answers(world: World) -> None:
    world.function("answering")
    create(world.lambda_, "without-role", RECORDING, Timeout=1)
    url = world.queue("answering")
    world.queue("answering.fifo", FifoQueue="true")
    world.queue("short", visibility_s=0)
    uuid = world.map("answering", "answering", Tags={"a": "b"})
    world.function("answering-too")
    second = world.map("answering-too", "answering", Enabled=False)
    create_, update = world.lambda_.create_event_source_mapping, world.lambda_.update_event_source_mapping
    arn, invalid = QUEUE_ARN + "answering", "InvalidParameterValueException"
    missing = ("ResourceNotFoundException", "The resource you requested does not exist.")
    role = "The provided execution role does not have permissions to call ReceiveMessage on SQS"
    twice = (
        f'An event source mapping with SQS arn (" {arn} ") and function (" answering ") already exists. '
        f"Please update or delete the existing mapping with UUID {uuid}"
    )
    no_queue = (
        "Error occurred while ReceiveMessage. SQS Error Code: AWS.SimpleQueueService.NonExistentQueue. "
        "SQS Error Message: The specified queue does not exist."
    )
    shorter = "Queue visibility timeout: 0 seconds is less than Function timeout: 1 seconds"
    window = "Maximum batch window in seconds must be greater than 0 if maximum batch size is greater than 10"
    other = "0" * 8 + "-0000-0000-0000-" + "0" * 12
    cases: dict[str, tuple[Callable[[], Any], str, str]] = {
        "twice": (lambda: create_(FunctionName="answering", EventSourceArn=arn), "ResourceConflictException", twice),
        "update to twice": (lambda: update(UUID=second, FunctionName="answering"), "ResourceConflictException", twice),
        "role": (lambda: create_(FunctionName="without-role", EventSourceArn=arn), invalid, role),
        "function": (lambda: create_(FunctionName="absent", EventSourceArn=arn), invalid, "Function does not exist"),
        "source": (lambda: create_(FunctionName="answering"), invalid, "Unrecognized event source."),
        "queue": (lambda: create_(FunctionName="answering", EventSourceArn=QUEUE_ARN + "absent"), invalid, no_queue),
        "timeout": (lambda: create_(FunctionName="answering", EventSourceArn=QUEUE_ARN + "short"), invalid, shorter),
        "fifo window": (
            lambda: create_(
                FunctionName="answering", EventSourceArn=QUEUE_ARN + "answering.fifo", MaximumBatchingWindowInSeconds=1
            ),
            invalid,
            "Batching window is not supported for FIFO queues",
        ),
        "window": (lambda: update(UUID=uuid, BatchSize=11), invalid, window),
        "pattern": (
            lambda: update(UUID=uuid, FilterCriteria={"Filters": [{"Pattern": '{"body": "x"}'}]}),
            invalid,
            "Invalid filter pattern definition.",
        ),
        "get": (lambda: world.lambda_.get_event_source_mapping(UUID=other), *missing),
        "update": (lambda: update(UUID=other), *missing),
        "delete": (lambda: world.lambda_.delete_event_source_mapping(UUID=other), *missing),
    }

    def check(name: str) -> None:
        call, code, text = cases[name]
        with pytest.raises(ClientError) as caught:
            call()
        refusal = caught.value.response
        assert (refusal["Error"]["Code"], refusal["Error"]["Message"], refusal["Type"]) == (code, text, "User")

    check_each(cases, check)
    [listed] = world.lambda_.list_event_source_mappings(EventSourceArn=arn, FunctionName="answering")["EventSourceMappings"]
    assert (listed["UUID"], listed["State"], listed["StateTransitionReason"]) == (uuid, "Enabled", "USER_INITIATED")
    assert (listed["BatchSize"], listed["MaximumBatchingWindowInSeconds"], listed["FunctionResponseTypes"]) == (10, 0, [])
    assert listed["EventSourceMappingArn"] == f"arn:aws:lambda:us-east-1:123456789012:event-source-mapping:{uuid}"
    assert world.lambda_.list_event_source_mappings(FunctionName="absent")["EventSourceMappings"] == []
    world.lambda_.tag_resource(Resource=listed["EventSourceMappingArn"], Tags={"c": "d"})
    world.lambda_.untag_resource(Resource=listed["EventSourceMappingArn"], TagKeys=["a"])
    assert world.lambda_.list_tags(Resource=listed["EventSourceMappingArn"])["Tags"] == {"c": "d"}
    world.send(url, "wait")
    eventually(world.records, "the function runs")
    deleted = world.lambda_.delete_event_source_mapping(UUID=uuid)
    assert (deleted["State"], deleted["ResponseMetadata"]["HTTPStatusCode"]) == ("Deleting", 202)
    with pytest.raises(world.lambda_.exceptions.ResourceInUseException, match="Cannot delete the event source mapping"):
        world.lambda_.delete_event_source_mapping(UUID=uuid)
    world.results.with_suffix(".go").touch()
    eventually(
        lambda: not world.lambda_.list_event_source_mappings(FunctionName="answering")["EventSourceMappings"], "it is deleted"
    )


def test_no_message_is_lost_when_corral_is_killed(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral = own_corral().start()
    world = World(corral, tmp_path / "results")
    world.function("surviving", timeout_s=900)
    url = world.queue("surviving", visibility_s=900)
    uuid = world.map("surviving", "surviving", BatchSize=2)
    world.send(url, "wait 1", "wait 2", "wait 3")
    eventually(lambda: len(world.bodies()) == 3, "all batches run")
    corral.kill("corral.server")
    corral.start()
    eventually(lambda: len(world.bodies()) >= 6, "the messages of the lost invocations are visible at once")
    world.results.with_suffix(".go").touch()
    eventually(lambda: world.counts(url) == (0, 0), "they are deleted")
    assert set(world.bodies()) == {"wait 1", "wait 2", "wait 3"}
    assert {each["attributes"]["ApproximateReceiveCount"] for records in world.records() for each in records} == {"1", "2"}
    assert corral.client("lambda").get_event_source_mapping(UUID=uuid)["State"] == "Enabled"


TEMPLATE = """
Parameters: {Enabled: {Type: String, Default: "true"}}
Resources:
  Role:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument:
        Statement: [{Effect: Allow, Principal: {Service: lambda.amazonaws.com}, Action: "sts:AssumeRole"}]
      ManagedPolicyArns: [%(policy)s]
  Function:
    Type: AWS::Lambda::Function
    Properties:
      Runtime: python3.12
      Handler: index.handler
      Role: !GetAtt Role.Arn
      Code: {ZipFile: "def handler(event, context): open('%(results)s', 'a').write(event['Records'][0]['body'])"}
  Queue: {Type: AWS::SQS::Queue}
  Mapping:
    Type: AWS::Lambda::EventSourceMapping
    Properties:
      EventSourceArn: !GetAtt Queue.Arn
      FunctionName: !Ref Function
      Enabled: !Ref Enabled
      Tags: [{Key: a, Value: b}]
  Stream:
    Type: AWS::Lambda::EventSourceMapping
    Properties:
      EventSourceArn: "arn:aws:kinesis:us-east-1:123456789012:stream/s"
      FunctionName: !Ref Function
      StartingPosition: LATEST
Outputs: {Queue: {Value: !Ref Queue}, Mapping: {Value: !Ref Mapping}, Arn: {Value: !GetAtt Mapping.EventSourceMappingArn}}
"""


def test_mappings_of_a_stack(corral: Corral, tmp_path: Path) -> None:
    stacks, functions, results = corral.client("cloudformation"), corral.client("lambda"), tmp_path / "results"
    body = TEMPLATE % {"policy": SQS_POLICY, "results": results}
    stacks.create_stack(StackName="mapped", TemplateBody=body, Capabilities=["CAPABILITY_IAM"])
    stack = ended(stacks, "mapped")
    assert stack["StackStatus"] == "CREATE_COMPLETE", events(stacks, "mapped")
    made = outputs(stack)
    corral.client("sqs").send_message(QueueUrl=made["Queue"], MessageBody="from a stack")
    eventually(lambda: results.exists() and results.read_text() == "from a stack", "the function runs")
    assert functions.list_tags(Resource=made["Arn"])["Tags"]["a"] == "b"
    assert any(
        "Stored only: Corral invokes functions with" in event.get("ResourceStatusReason", "") for event in events(stacks, "mapped")
    )
    parameters = [{"ParameterKey": "Enabled", "ParameterValue": "false"}]
    stacks.update_stack(StackName="mapped", UsePreviousTemplate=True, Parameters=parameters, Capabilities=["CAPABILITY_IAM"])
    assert ended(stacks, "mapped")["StackStatus"] == "UPDATE_COMPLETE"
    assert functions.get_event_source_mapping(UUID=made["Mapping"])["State"] == "Disabled"
    stacks.delete_stack(StackName="mapped")
    stacks.get_waiter("stack_delete_complete").wait(StackName="mapped", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300})
    with pytest.raises(functions.exceptions.ResourceNotFoundException):
        functions.get_event_source_mapping(UUID=made["Mapping"])
