"""Functions, permissions and custom resources in templates, with real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from clients.function_help import invoke, zipped
from clients.stack_help import described, ended, events, given, outputs, refused, wait
from eventually import eventually
from harness import Corral

CODE = """
import cfnresponse, json, os
def handler(event, context):
    with open(os.environ["RESULTS"], "a") as file:
        file.write(json.dumps(event) + "\\n")
    properties = event["ResourceProperties"]
    if properties.get("Fails") == event["RequestType"]:
        cfnresponse.send(event, context, cfnresponse.FAILED, {}, reason="it was told to fail")
    elif properties.get("Raises") == "true":
        raise ValueError("no response")
    else:
        data = {"Size": properties["Size"], "Nested": {"Key": "value"}}
        cfnresponse.send(event, context, cfnresponse.SUCCESS, data, properties.get("Id"), properties.get("Silent") == "true")
"""
TEMPLATE = """
Parameters:
  Results: {Type: String}
  Size: {Type: Number, Default: 3}
  Id: {Type: String, Default: first}
  Fails: {Type: String, Default: never}
  Raises: {Type: String, Default: "false"}
  More: {Type: String, Default: "no"}
  Silent: {Type: String, Default: "false"}
Conditions: {HasMore: !Equals [!Ref More, "yes"]}
Resources:
  Role:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument: {Statement: [{Effect: Allow, Principal: {Service: lambda.amazonaws.com}, Action: "sts:AssumeRole"}]}
  Function:
    Type: AWS::Lambda::Function
    Properties:
      Runtime: python3.12
      Handler: index.handler
      Timeout: "60"
      Role: !GetAtt Role.Arn
      Environment: {Variables: {RESULTS: !Ref Results}}
      Tags: [{Key: team, Value: gpu}]
      Code: {ZipFile: !Sub "CODE"}
  Thing:
    Type: Custom::Thing
    Properties:
      ServiceToken: !GetAtt Function.Arn
      Size: !Ref Size
      Id: !Ref Id
      Fails: !Ref Fails
      Raises: !Ref Raises
      Silent: !Ref Silent
      Flag: true
      List: [1, {Inner: false}]
  Later:
    Type: AWS::CloudFormation::CustomResource
    Condition: HasMore
    Properties: {ServiceToken: !GetAtt Function.Arn, Size: !GetAtt Thing.Size, Id: later, Fails: Create}
Outputs:
  Size: {Value: !GetAtt Thing.Size}
  Nested: {Value: !GetAtt Thing.Nested.Key}
  Id: {Value: !Ref Thing}
  Arn: {Value: !GetAtt Function.Arn}
""".replace('!Sub "CODE"', json.dumps(CODE))


@pytest.fixture
def cloudformation(client: Callable[..., Any]) -> Any:
    return client("cloudformation")


def requests_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def create(cloudformation: Any, name: str, template: str = TEMPLATE, **parameters: str) -> str:
    params = {"TemplateBody": template, "Parameters": given(**parameters), "Capabilities": ["CAPABILITY_IAM"]}
    return str(cloudformation.create_stack(StackName=name, **params)["StackId"])


def update(cloudformation: Any, name: str, **parameters: str) -> None:
    params = {"UsePreviousTemplate": True, "Parameters": given(**parameters), "Capabilities": ["CAPABILITY_IAM"]}
    cloudformation.update_stack(StackName=name, **params)


def test_create_update_replace_and_delete(cloudformation: Any, client: Callable[..., Any], tmp_path: Path) -> None:
    results = tmp_path / "results"
    arn = create(cloudformation, "custom", Results=str(results))
    wait(cloudformation, "custom", "create")
    found = outputs(described(cloudformation, "custom"))
    assert (found["Size"], found["Nested"], found["Id"]) == ("3", "value", "first")
    [event] = requests_in(results)
    assert event["RequestType"] == "Create" and event["StackId"] == arn and event["LogicalResourceId"] == "Thing"
    assert event["ResourceType"] == "Custom::Thing" and event["ServiceToken"] == found["Arn"] and "PhysicalResourceId" not in event
    properties = event["ResourceProperties"]
    assert properties["Size"] == "3" and properties["Flag"] == "true" and properties["List"] == ["1", {"Inner": "false"}]
    assert not [name for name in properties if name.startswith("_")]

    update(cloudformation, "custom", Results=str(results), Size="4")
    wait(cloudformation, "custom", "update")
    event = requests_in(results)[1]
    assert (event["RequestType"], event["PhysicalResourceId"]) == ("Update", "first")
    assert (event["OldResourceProperties"]["Size"], event["ResourceProperties"]["Size"]) == ("3", "4")
    assert outputs(described(cloudformation, "custom"))["Size"] == "4"

    update(cloudformation, "custom", Results=str(results), Size="4", Id="second")
    wait(cloudformation, "custom", "update")
    changed, removed = requests_in(results)[2:]
    assert (changed["RequestType"], changed["PhysicalResourceId"]) == ("Update", "first")
    assert (removed["RequestType"], removed["PhysicalResourceId"]) == ("Delete", "first")
    assert removed["ResourceProperties"]["Id"] == "first"
    assert outputs(described(cloudformation, "custom"))["Id"] == "second"

    name = found["Arn"].rpartition(":")[2]
    tags = client("lambda").list_tags(Resource=found["Arn"])["Tags"]
    assert tags["team"] == "gpu" and tags["aws:cloudformation:stack-name"] == "custom"
    cloudformation.delete_stack(StackName="custom")
    wait(cloudformation, arn, "delete")
    assert [(each["RequestType"], each["PhysicalResourceId"]) for each in requests_in(results)[4:]] == [("Delete", "second")]
    listed = [each["FunctionName"] for each in client("lambda").list_functions()["Functions"]]
    assert name not in listed


def test_a_failed_response_fails_the_stack(cloudformation: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    create(cloudformation, "fails", Results=str(results), Fails="Create")
    assert ended(cloudformation, "fails")["StackStatus"] == "ROLLBACK_COMPLETE"
    [reason] = [
        event["ResourceStatusReason"] for event in events(cloudformation, "fails") if event["ResourceStatus"] == "CREATE_FAILED"
    ]
    sent = requests_in(results)
    assert reason == (
        "Received response status [FAILED] from custom resource. Message returned: it was told to fail "
        f"(RequestId: {sent[0]['RequestId']})"
    )
    assert [each["RequestType"] for each in sent] == ["Create", "Delete"]
    assert "[$LATEST]" in sent[1]["PhysicalResourceId"]  # cfnresponse sends the name of the log stream


def test_a_function_that_fails_without_a_response_fails_the_stack(cloudformation: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    params = {"TemplateBody": TEMPLATE, "Parameters": given(Results=str(results), Raises="true"), "OnFailure": "DO_NOTHING"}
    cloudformation.create_stack(StackName="raises", Capabilities=["CAPABILITY_IAM"], **params)
    assert ended(cloudformation, "raises")["StackStatus"] == "CREATE_FAILED"
    reasons = [event.get("ResourceStatusReason", "") for event in events(cloudformation, "raises")]
    assert any("has failed 3 times and sent no response: no response" in reason for reason in reasons), reasons
    assert len(requests_in(results)) == 3


def test_a_failed_update_restores_the_properties(cloudformation: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    create(cloudformation, "restored", Results=str(results))
    wait(cloudformation, "restored", "create")
    update(cloudformation, "restored", Results=str(results), Size="9", More="yes")
    assert ended(cloudformation, "restored")["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    of_thing = [each for each in requests_in(results) if each["LogicalResourceId"] == "Thing"]
    assert [(each["RequestType"], each["ResourceProperties"]["Size"]) for each in of_thing] == [
        ("Create", "3"), ("Update", "9"), ("Update", "3"),
    ]  # fmt: skip
    of_later = [(each["RequestType"], each["ResourceType"]) for each in requests_in(results) if each not in of_thing]
    assert of_later == [(kind, "AWS::CloudFormation::CustomResource") for kind in ("Create", "Delete")]
    assert outputs(described(cloudformation, "restored"))["Size"] == "3"


SILENT = """
Resources:
  Queue: {Type: AWS::SQS::Queue}
  Topic: {Type: AWS::SNS::Topic, Properties: {Subscription: [{Protocol: sqs, Endpoint: !GetAtt Queue.Arn}]}}
  Policy:
    Type: AWS::SQS::QueuePolicy
    Properties:
      Queues: [!Ref Queue]
      PolicyDocument:
        Statement:
          - {Effect: Allow, Principal: {Service: sns.amazonaws.com}, Action: "sqs:SendMessage", Resource: !GetAtt Queue.Arn}
  Thing: {Type: Custom::Thing, DependsOn: Policy, Properties: {ServiceToken: !Ref Topic, ServiceTimeout: TIMEOUT}}
Outputs: {Answer: {Value: !GetAtt Thing.Answer}}
"""


def queue_of(cloudformation: Any, name: str) -> str:
    def found() -> Any:
        resources = cloudformation.describe_stack_resources(StackName=name)["StackResources"]
        states = {each["LogicalResourceId"]: each for each in resources}
        waits = states.get("Thing", {}).get("ResourceStatus") == "CREATE_IN_PROGRESS"
        return states["Queue"]["PhysicalResourceId"] if waits else None

    return str(eventually(found, "the custom resource waits"))


def next_request(sqs: Any, queue: str) -> dict[str, Any]:
    """Take the next request of a custom resource from the queue."""

    def received() -> Any:
        return sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=10).get("Messages")

    [message] = eventually(received, "a request of the custom resource")
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    found: dict[str, Any] = json.loads(json.loads(message["Body"])["Message"])
    return found


def put(url: str, body: bytes) -> int:
    with urlopen(Request(url, body, method="PUT"), timeout=30) as response:
        return int(response.status)


def test_a_topic_gets_the_request_and_any_program_responds(cloudformation: Any, client: Callable[..., Any]) -> None:
    sqs = client("sqs")
    create(cloudformation, "topical", SILENT.replace("TIMEOUT", "3000"))
    queue = queue_of(cloudformation, "topical")
    [message] = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=10)["Messages"]
    envelope = json.loads(message["Body"])
    event = json.loads(envelope["Message"])
    assert envelope["Subject"] == "AWS CloudFormation custom resource request" and event["RequestType"] == "Create"
    with pytest.raises(HTTPError, match="404"):
        put(event["ResponseURL"][:-1] + ("0" if event["ResponseURL"][-1] != "0" else "1"), b"{}")
    with pytest.raises(HTTPError, match="405"):
        urlopen(event["ResponseURL"], timeout=30)
    response = {"Status": "SUCCESS", "PhysicalResourceId": "mine", "Data": {"Answer": "42"}}
    assert put(event["ResponseURL"], json.dumps(response).encode()) == 200
    wait(cloudformation, "topical", "create")
    assert outputs(described(cloudformation, "topical")) == {"Answer": "42"}
    with pytest.raises(HTTPError, match="404"):  # a URL is valid once
        put(event["ResponseURL"], b"{}")


@pytest.mark.parametrize(
    "body, reason",
    [
        (b"no json", "not valid JSON"),
        (b'{"Status": "OK"}', "must be SUCCESS or FAILED"),
        (b'{"Status": "SUCCESS"}', "Invalid PhysicalResourceId"),
        (b'{"Status": "SUCCESS", "PhysicalResourceId": "x", "Data": {"a": "%s"}}' % (b"y" * 5000), "too long"),
    ],
)
def test_wrong_responses(cloudformation: Any, client: Callable[..., Any], body: bytes, reason: str) -> None:
    name = f"wrong-{len(body)}"
    params = {"TemplateBody": SILENT.replace("TIMEOUT", "3000"), "OnFailure": "DO_NOTHING"}
    cloudformation.create_stack(StackName=name, **params)
    [message] = client("sqs").receive_message(QueueUrl=queue_of(cloudformation, name), WaitTimeSeconds=10)["Messages"]
    put(json.loads(json.loads(message["Body"])["Message"])["ResponseURL"], body)
    assert ended(cloudformation, name)["StackStatus"] == "CREATE_FAILED"
    assert any(reason in event.get("ResourceStatusReason", "") for event in events(cloudformation, name))


def test_a_response_that_does_not_arrive(cloudformation: Any, client: Callable[..., Any]) -> None:
    params = {"TemplateBody": SILENT.replace("TIMEOUT", "1"), "OnFailure": "DO_NOTHING"}
    cloudformation.create_stack(StackName="silent", **params)
    assert ended(cloudformation, "silent")["StackStatus"] == "CREATE_FAILED"
    reasons = [event.get("ResourceStatusReason", "") for event in events(cloudformation, "silent")]
    assert any(reason.startswith("CloudFormation did not receive a response") for reason in reasons)
    resources = cloudformation.describe_stack_resources(StackName="silent")["StackResources"]
    [queue] = [each["PhysicalResourceId"] for each in resources if each["LogicalResourceId"] == "Queue"]
    with pytest.raises(HTTPError, match="404"):
        put(next_request(client("sqs"), queue)["ResponseURL"], b"{}")


def test_a_cancelled_step_accepts_no_response(cloudformation: Any, client: Callable[..., Any]) -> None:
    sqs = client("sqs")
    arn = create(cloudformation, "cancelled", SILENT.replace("TIMEOUT", "3000"))
    queue = queue_of(cloudformation, "cancelled")
    created = next_request(sqs, queue)
    cloudformation.delete_stack(StackName="cancelled")
    removed = next_request(sqs, queue)
    assert (created["RequestType"], removed["RequestType"]) == ("Create", "Delete")
    with pytest.raises(HTTPError, match="404"):
        put(created["ResponseURL"], b"{}")
    assert put(removed["ResponseURL"], b'{"Status": "SUCCESS", "PhysicalResourceId": "x"}') == 200
    wait(cloudformation, arn, "delete")


FROM_S3 = """
Resources:
  Function:
    Type: AWS::Lambda::Function
    Properties:
      FunctionName: from-s3
      Runtime: RUNTIME
      Handler: app.main.handle
      Role: arn:aws:iam::123456789012:role/any
      Code: {S3Bucket: assets, S3Key: KEY}
      Layers: [!Ref Layer]
  Layer: {Type: AWS::Lambda::LayerVersion, Properties: {Content: {S3Bucket: assets, S3Key: layer.zip}}}
  Topic: {Type: AWS::SNS::Topic}
  Permission:
    Type: AWS::Lambda::Permission
    Properties:
      FunctionName: !GetAtt Function.Arn
      Action: lambda:InvokeFunction
      Principal: sns.amazonaws.com
      SourceArn: !Ref Topic
  Subscription: {Type: AWS::SNS::Subscription, Properties: {TopicArn: !Ref Topic, Protocol: lambda, Endpoint: !GetAtt Function.Arn}}
"""


def test_code_in_s3_permissions_and_layers(cloudformation: Any, client: Callable[..., Any]) -> None:
    s3, functions = client("s3"), client("lambda")
    s3.create_bucket(Bucket="assets")
    for number in (1, 2):
        body = zipped(f"def handle(event, context): return {number}", "app/main.py")
        s3.put_object(Bucket="assets", Key=f"{number}.zip", Body=body)
    template = FROM_S3.replace("RUNTIME", "python3.11")
    create(cloudformation, "from-s3", template.replace("KEY", "1.zip"))
    wait(cloudformation, "from-s3", "create")
    assert invoke(functions, "from-s3") == 1
    notes = [event.get("ResourceStatusReason", "") for event in events(cloudformation, "from-s3")]
    assert any("they have no effect: Layers" in note for note in notes)
    [statement] = json.loads(functions.get_policy(FunctionName="from-s3")["Policy"])["Statement"]
    assert statement["Principal"] == {"Service": "sns.amazonaws.com"}
    cloudformation.update_stack(StackName="from-s3", TemplateBody=template.replace("KEY", "2.zip"))
    wait(cloudformation, "from-s3", "update")
    assert invoke(functions, "from-s3") == 2
    arn = described(cloudformation, "from-s3")["StackId"]
    cloudformation.delete_stack(StackName="from-s3")
    wait(cloudformation, arn, "delete")


IN_JAVASCRIPT = """
Resources:
  Function:
    Type: AWS::Lambda::Function
    Properties:
      FunctionName: javascript
      Runtime: nodejs20.x
      Handler: index.handler
      Role: arn:aws:iam::123456789012:role/any
      Code: {ZipFile: "exports.handler = async () => {}"}
"""
OF_CDK = f"""{IN_JAVASCRIPT}
  Vpc: {{Type: AWS::EC2::VPC, Properties: {{CidrBlock: 10.0.0.0/16}}}}
  Restriction:
    Type: Custom::VpcRestrictDefaultSG
    Properties:
      ServiceToken: !GetAtt Function.Arn
      DefaultSecurityGroupId: !GetAtt Vpc.DefaultSecurityGroup
      Account: !Ref AWS::AccountId
  Bucket:
    Type: AWS::S3::Bucket
    Properties:
      BucketName: emptied
      VersioningConfiguration: {{Status: Enabled}}
      Tags: [{{Key: "aws-cdk:auto-delete-objects", Value: "true"}}]
  Emptying:
    Type: Custom::S3AutoDeleteObjects
    Properties: {{ServiceToken: !GetAtt Function.Arn, BucketName: !Ref Bucket}}
Outputs: {{Group: {{Value: !GetAtt Vpc.DefaultSecurityGroup}}}}
"""


def test_functions_in_javascript_are_stored_only(cloudformation: Any, client: Callable[..., Any]) -> None:
    custom = "  Thing: {Type: Custom::Other, Properties: {ServiceToken: !GetAtt Function.Arn}}"
    create(cloudformation, "javascript", IN_JAVASCRIPT + custom)
    assert ended(cloudformation, "javascript")["StackStatus"] == "ROLLBACK_COMPLETE"
    reasons = {each.get("ResourceStatusReason", ""): each["LogicalResourceId"] for each in events(cloudformation, "javascript")}
    text = "Corral runs Lambda functions in Python only (python3.x), not in nodejs20.x. Rewrite the function in Python."
    assert reasons[f"Stored only: {text}"] == "Function" and reasons[text] == "Thing"


def test_resources_of_cdk_in_javascript_have_their_effect(cloudformation: Any, client: Callable[..., Any]) -> None:
    ec2, s3, functions = client("ec2"), client("s3"), client("lambda")
    arn = create(cloudformation, "of-cdk", OF_CDK)
    wait(cloudformation, "of-cdk", "create")
    group = outputs(described(cloudformation, "of-cdk"))["Group"]
    [found] = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert found["IpPermissions"] == [] and found["IpPermissionsEgress"] == []
    code, text = refused(lambda: functions.invoke(FunctionName="javascript"))
    assert code == "InvalidParameterValueException" and "not in nodejs20.x" in text
    for number in range(60):
        s3.put_object(Bucket="emptied", Key=f"key{number % 30}", Body=b"x")
    s3.delete_object(Bucket="emptied", Key="key0")
    cloudformation.delete_stack(StackName="of-cdk")
    wait(cloudformation, arn, "delete")
    assert "emptied" not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]


def test_a_custom_resource_survives_a_kill(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral = own_corral().start()
    cloudformation, gate, results = corral.client("cloudformation"), tmp_path / "go", tmp_path / "results"
    waits = f"    import time\n    while not os.path.exists({str(gate)!r}): time.sleep(0.05)\n    properties ="
    template = TEMPLATE.replace(json.dumps(CODE), json.dumps(CODE.replace("    properties =", waits)))
    create(cloudformation, "killed", template, Results=str(results))
    eventually(lambda: requests_in(results), "the function runs")
    corral.kill("corral.server")
    corral.start()
    gate.touch()
    cloudformation = corral.client("cloudformation")
    wait(cloudformation, "killed", "create")
    first, *others = requests_in(results)
    assert others and all(other["RequestId"] == first["RequestId"] for other in others)


def test_the_data_of_a_response_with_no_echo_is_hidden_in_events(cloudformation: Any, tmp_path: Path) -> None:
    arn = create(cloudformation, "silent-data", Results=str(tmp_path / "results"), Size="31415926", More="yes", Silent="true")
    ended(cloudformation, arn)
    [shown] = {each["ResourceProperties"] for each in events(cloudformation, arn) if each["LogicalResourceId"] == "Later"}
    assert json.loads(shown)["Size"] == "****"
