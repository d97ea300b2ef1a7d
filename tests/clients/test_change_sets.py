"""Change sets, by boto3 and `aws cloudformation deploy`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, WaiterError

import forkserver
from harness import Corral

QUICKLY = {"Delay": 0.1, "MaxAttempts": 300}
EMPTY = "The submitted information didn't contain changes. Submit different information to create a change set."
TEMPLATE = """
Parameters: {Delay: {Type: Number, Default: 1}, Name: {Type: String, Default: changed}}
Resources:
  Q: {Type: AWS::SQS::Queue, Properties: {QueueName: !Ref Name, DelaySeconds: !Ref Delay}}
  T: {Type: AWS::SNS::Topic}
Outputs: {Name: {Value: !GetAtt Q.QueueName}}
"""


@pytest.fixture
def cloudformation(corral: Corral) -> Any:
    return corral.client("cloudformation")


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def wait(cloudformation: Any, name: str, for_: str) -> None:
    cloudformation.get_waiter(f"stack_{for_}_complete").wait(StackName=name, WaiterConfig=QUICKLY)


def status(cloudformation: Any, name: str) -> str:
    return str(cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"])


def changes(described: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    found = [each["ResourceChange"] for each in described["Changes"]]
    return {each["LogicalResourceId"]: (each["Action"], each.get("Replacement")) for each in found}


def test_change_sets(cloudformation: Any) -> None:
    def create(name: str, type_: str = "UPDATE", template: str = TEMPLATE, **values: str) -> Any:
        return cloudformation.create_change_set(
            StackName="planned", ChangeSetName=name, ChangeSetType=type_, TemplateBody=template,
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()],
        )  # fmt: skip

    assert refused(lambda: create("c1")) == ("ValidationError", "Stack [planned] does not exist")
    assert "import" in refused(lambda: create("c1", "IMPORT"))[1]
    made = create("c1", "CREATE")
    cloudformation.get_waiter("change_set_create_complete").wait(ChangeSetName=made["Id"], WaiterConfig=QUICKLY)
    assert status(cloudformation, "planned") == "REVIEW_IN_PROGRESS"
    assert cloudformation.get_template(StackName="planned")["TemplateBody"] == ""
    code, message = refused(lambda: cloudformation.get_template_summary(StackName="planned"))
    assert (code, message) == ("ValidationError", "GetTemplateSummary cannot be called on REVIEW_IN_PROGRESS stacks.")
    assert create("c1", "CREATE")["Id"] == made["Id"], "the same request again"
    assert refused(lambda: create("c1", "CREATE", Delay="3"))[0] == "AlreadyExistsException"
    create("c2", "CREATE", Delay="5")
    described = cloudformation.describe_change_set(StackName="planned", ChangeSetName="c2")
    assert changes(described) == {"Q": ("Add", None), "T": ("Add", None)}
    assert (described["Status"], described["ExecutionStatus"]) == ("CREATE_COMPLETE", "AVAILABLE")
    assert {each["ParameterKey"]: each["ParameterValue"] for each in described["Parameters"]} == {"Delay": "5", "Name": "changed"}
    listed = cloudformation.list_change_sets(StackName="planned")["Summaries"]
    assert [each["ChangeSetName"] for each in listed] == ["c1", "c2"]
    cloudformation.execute_change_set(StackName="planned", ChangeSetName="c2")
    wait(cloudformation, "planned", "create")
    times = [each["Timestamp"] for each in cloudformation.describe_stack_events(StackName="planned")["StackEvents"]]
    assert times == sorted(set(times), reverse=True), "clients sort events by time, so no two events have the same time"
    executed = cloudformation.describe_change_set(ChangeSetName=described["ChangeSetId"])
    assert (executed["Status"], executed["ExecutionStatus"]) == ("CREATE_COMPLETE", "EXECUTE_COMPLETE")
    assert "EXECUTE_COMPLETE" in refused(lambda: cloudformation.execute_change_set(ChangeSetName=executed["ChangeSetId"]))[1]
    assert [each["ChangeSetName"] for each in cloudformation.list_change_sets(StackName="planned")["Summaries"]] == ["c2"]
    assert "already exists and cannot be created again with the changeSet [c3]." in refused(lambda: create("c3", "CREATE"))[1]

    create("same", Delay="5")
    with pytest.raises(WaiterError):
        cloudformation.get_waiter("change_set_create_complete").wait(
            StackName="planned", ChangeSetName="same", WaiterConfig=QUICKLY
        )
    described = cloudformation.describe_change_set(StackName="planned", ChangeSetName="same")
    assert (described["Status"], described["StatusReason"], described["ExecutionStatus"]) == ("FAILED", EMPTY, "UNAVAILABLE")
    code, message = refused(lambda: cloudformation.execute_change_set(StackName="planned", ChangeSetName="same"))
    assert code == "InvalidChangeSetStatus" and message.endswith("cannot be executed in its current status of [FAILED]")

    create("modify", Delay="6")
    create("replace", Delay="6", Name="other", template=TEMPLATE.replace("  T: {Type: AWS::SNS::Topic}\n", ""))
    described = cloudformation.describe_change_set(StackName="planned", ChangeSetName="modify")
    assert changes(described) == {"Q": ("Modify", "False")}
    for detail in described["Changes"][0]["ResourceChange"]["Details"]:
        assert detail["Target"]["Name"] == "DelaySeconds" and detail["Target"]["RequiresRecreation"] == "Never"
    described = cloudformation.describe_change_set(StackName="planned", ChangeSetName="replace")
    assert changes(described) == {"Q": ("Modify", "True"), "T": ("Remove", None)}
    body = cloudformation.get_template(StackName="planned", ChangeSetName="replace")["TemplateBody"]
    assert "SNS" not in body
    cloudformation.delete_change_set(StackName="planned", ChangeSetName="replace")
    cloudformation.delete_change_set(StackName="planned", ChangeSetName="replace")  # no error, as on AWS
    assert refused(lambda: cloudformation.describe_change_set(StackName="planned", ChangeSetName="replace")) == (
        "ChangeSetNotFound", "ChangeSet [replace] does not exist",
    )  # fmt: skip
    cloudformation.update_stack(
        StackName="planned", TemplateBody=TEMPLATE, Parameters=[{"ParameterKey": "Delay", "ParameterValue": "7"}]
    )
    wait(cloudformation, "planned", "update")
    assert "[OBSOLETE]" in refused(lambda: cloudformation.execute_change_set(StackName="planned", ChangeSetName="modify"))[1]
    create("last", Delay="8")
    cloudformation.execute_change_set(StackName="planned", ChangeSetName="last")
    wait(cloudformation, "planned", "update")
    cloudformation.delete_stack(StackName="planned")
    wait(cloudformation, "planned", "delete")


def test_update_stack_does_not_change_the_result_of_an_executed_change_set(cloudformation: Any) -> None:
    def given(delay: int) -> dict[str, Any]:
        return {"TemplateBody": TEMPLATE, "Parameters": [{"ParameterKey": "Delay", "ParameterValue": str(delay)}]}

    def create(name: str, delay: int) -> dict[str, str]:
        cloudformation.create_change_set(StackName="results", ChangeSetName=name, **given(delay))
        return {"StackName": "results", "ChangeSetName": name}

    def result(change_set: dict[str, str]) -> str:
        return str(cloudformation.describe_change_set(**change_set)["ExecutionStatus"])

    def updated(delay: int) -> str:
        cloudformation.update_stack(StackName="results", **given(delay))
        wait(cloudformation, "results", "update" if delay < 900 else "rollback")
        return status(cloudformation, "results")

    cloudformation.create_stack(StackName="results", **given(1))
    wait(cloudformation, "results", "create")
    failing = create("failing", 1000)  # the maximum is 900
    cloudformation.execute_change_set(**failing)
    wait(cloudformation, "results", "rollback")
    assert result(failing) == "EXECUTE_FAILED"
    assert updated(2) == "UPDATE_COMPLETE" and result(failing) == "EXECUTE_FAILED"
    working = create("working", 3)
    cloudformation.execute_change_set(**working)
    wait(cloudformation, "results", "update")
    assert updated(1000) == "UPDATE_ROLLBACK_COMPLETE" and result(working) == "EXECUTE_COMPLETE"
    assert result(create("working", 4)) == "AVAILABLE", "the name of an executed change set is free"
    cloudformation.delete_stack(StackName="results")
    wait(cloudformation, "results", "delete")


def test_a_stack_in_review_can_be_deleted(cloudformation: Any) -> None:
    cloudformation.create_change_set(StackName="review", ChangeSetName="c", ChangeSetType="CREATE", TemplateBody=TEMPLATE)
    cloudformation.delete_stack(StackName="review")
    wait(cloudformation, "review", "delete")


def test_deploy(corral: Corral, cloudformation: Any, tmp_path: Path) -> None:
    """`aws cloudformation deploy` creates, changes nothing, updates, and takes a large template by way of S3."""
    template = tmp_path / "template.yaml"
    template.write_text(TEMPLATE)

    def deploy(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [forkserver.program("aws"), "cloudformation", "deploy", "--stack-name", "deployed"]
        return subprocess.run(
            [*command, "--template-file", str(template), *arguments], env=corral.environment, capture_output=True, text=True
        )

    done = deploy("--parameter-overrides", "Name=deployed", "--tags", "team=red")
    assert done.returncode == 0, done.stderr
    assert status(cloudformation, "deployed") == "CREATE_COMPLETE"
    tags = ("--tags", "team=red")  # without tags, deploy removes the tags of the stack
    done = deploy("--no-fail-on-empty-changeset", *tags)
    assert done.returncode == 0 and "No changes to deploy" in done.stdout + done.stderr
    assert deploy("--fail-on-empty-changeset", *tags).returncode != 0
    corral.client("s3").create_bucket(Bucket="artifacts")
    done = deploy("--parameter-overrides", "Delay=9", "--s3-bucket", "artifacts", "--force-upload")
    assert done.returncode == 0, done.stderr
    assert status(cloudformation, "deployed") == "UPDATE_COMPLETE"
    [queue] = corral.client("sqs").list_queues(QueueNamePrefix="deployed")["QueueUrls"]
    found = corral.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["DelaySeconds"])["Attributes"]
    assert found == {"DelaySeconds": "9"}
    shown = corral.aws(
        "cloudformation", "describe-stacks", "--stack-name", "deployed",
        "--query", "Stacks[0].Outputs[?OutputKey=='Name'].OutputValue | [0]",
    )  # fmt: skip
    assert shown == "deployed"
    corral.aws("cloudformation", "delete-stack", "--stack-name", "deployed")
    corral.aws("cloudformation", "wait", "stack-delete-complete", "--stack-name", "deployed")


def test_package_and_deploy_a_nested_stack(corral: Corral, cloudformation: Any, tmp_path: Path) -> None:
    """`aws cloudformation package` uploads the template of the nested stack, and deploy finds it in Corral's S3."""
    (tmp_path / "child.yaml").write_text(TEMPLATE)
    parent = (
        "Resources: {Child: {Type: AWS::CloudFormation::Stack, Properties: {TemplateURL: child.yaml, Parameters: {Name: packed}}}}"
    )
    (tmp_path / "parent.yaml").write_text(parent)
    corral.client("s3").create_bucket(Bucket="packages")
    packed = str(tmp_path / "packed.yaml")
    for arguments in (
        ("package", "--template-file", str(tmp_path / "parent.yaml"), "--s3-bucket", "packages", "--output-template-file", packed),
        ("deploy", "--template-file", packed, "--stack-name", "packed"),
    ):
        command = [forkserver.program("aws"), "cloudformation", *arguments]
        done = subprocess.run(command, env=corral.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert corral.client("sqs").get_queue_url(QueueName="packed")["QueueUrl"]
    cloudformation.delete_stack(StackName="packed")
    wait(cloudformation, "packed", "delete")
    assert not corral.client("sqs").list_queues(QueueNamePrefix="packed").get("QueueUrls")


def test_members_of_change_sets(cloudformation: Any) -> None:
    """AWS leaves out parameters and tags if there are none, and shows the values of properties only on request."""
    template = """
Parameters: {Name: {Type: String, Default: one}, Secret: {Type: String, NoEcho: true, Default: hush}}
Resources:
  Q: {Type: AWS::SQS::Queue, Properties: {QueueName: !Ref Name, DelaySeconds: 5, FifoQueue: !Ref "AWS::NoValue"}}
  P: {Type: AWS::SSM::Parameter, Metadata: {by: !Ref Name}, Properties: {Type: String, Value: !GetAtt Q.QueueName}}
  S: {Type: AWS::SSM::Parameter, DeletionPolicy: Retain, Properties: {Type: String, Value: !Sub "${Secret}!"}}
  T: {Type: AWS::SNS::Topic, Properties: {DisplayName: !Select [0, !Split ["-", !GetAtt Q.QueueName]]}}
  U: {Type: AWS::SNS::Topic, Properties: {DisplayName: !Sub "${T.TopicName}/${T}"}}
"""

    def plan(name: str, type_: str, text: str, **given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        request = {"StackName": "members", "ChangeSetName": name}
        cloudformation.create_change_set(**request, ChangeSetType=type_, TemplateBody=text, **given)
        plain, full = (cloudformation.describe_change_set(**request, IncludePropertyValues=each) for each in (False, True))
        assert "hush" not in json.dumps(full, default=str)
        found = {each["ResourceChange"]["LogicalResourceId"]: each["ResourceChange"] for each in full["Changes"]}
        assert not any(
            member in json.dumps(plain["Changes"]) for member in ("Context", "BeforeValue", "AfterValue", "_with", "Path")
        )
        return plain, found

    always = {
        "ChangeSetName", "ChangeSetId", "StackId", "StackName", "CreationTime", "ExecutionStatus", "Status", "NotificationARNs",
        "RollbackConfiguration", "Capabilities", "Changes", "IncludeNestedStacks", "ResponseMetadata",
    }  # fmt: skip
    plain, found = plan("add", "CREATE", template)
    assert plain.keys() == always | {"Parameters"}
    assert (plain["NotificationARNs"], plain["Capabilities"], plain["RollbackConfiguration"]) == ([], [], {})
    [queue] = [each for each in plain["Changes"] if each["ResourceChange"]["LogicalResourceId"] == "Q"]
    assert queue == {
        "Type": "Resource",
        "ResourceChange": {
            "Action": "Add", "LogicalResourceId": "Q", "ResourceType": "AWS::SQS::Queue", "Scope": [], "Details": []
        },
    }  # fmt: skip
    later = "{{changeSet:KNOWN_AFTER_APPLY}}"
    contexts = {name: json.loads(each["AfterContext"]) for name, each in found.items()}
    assert contexts == {
        "Q": {"Properties": {"QueueName": "one", "DelaySeconds": "5"}},
        "P": {"Properties": {"Type": "String", "Value": later}, "Metadata": {"by": "one"}},
        "S": {"Properties": {"Type": "String", "Value": "****!"}, "DeletionPolicy": "Retain"},
        "T": {"Properties": {"DisplayName": later}},
        "U": {"Properties": {"DisplayName": f"{later}/{later}"}},
    }
    cloudformation.execute_change_set(StackName="members", ChangeSetName="add")
    wait(cloudformation, "members", "create")

    changed = template.replace("Default: one", "Default: two").replace("DelaySeconds: 5, ", "")
    plain, found = plan("replace", "UPDATE", changed)
    shown = {each["ResourceChange"]["LogicalResourceId"]: each["ResourceChange"] for each in plain["Changes"]}

    def details(change: dict[str, Any]) -> list[Any]:
        return [
            (at["Target"].get("Name", at["Target"]["Attribute"]), at["Target"]["RequiresRecreation"], at["Evaluation"],
             at["ChangeSource"], at.get("CausingEntity"))
            for at in change["Details"]
        ]  # fmt: skip

    causes = (("Static", "ParameterReference", "Name"), ("Dynamic", "DirectModification", None))
    named, metadata = ([(*what, *cause) for cause in causes] for what in (("QueueName", "Always"), ("Metadata", "Never")))
    delayed = ("DelaySeconds", "Never", "Static", "DirectModification", None)
    value = ("Value", "Never", "Static", "ResourceAttribute", "Q.QueueName")
    assert {name: (each["Replacement"], each["Scope"], details(each)) for name, each in shown.items()} == {
        "Q": ("True", ["Properties"], [delayed, *named]),
        "P": ("False", ["Metadata", "Properties"], [value, *metadata]),
        "T": ("False", ["Properties"], [("DisplayName", "Never", "Static", "ResourceAttribute", "Q.QueueName")]),
        "U": ("False", ["Properties"], [("DisplayName", "Never", "Dynamic", "ResourceAttribute", "T.TopicName")]),
    }
    assert shown["Q"]["PolicyAction"] == "ReplaceAndDelete" and shown["Q"]["PhysicalResourceId"].endswith("/one")
    assert details(found["P"]) == [value, ("Value", "Never", "Dynamic", "DirectModification", None), *metadata]
    targets = {at["Target"].get("Name", at["Target"]["Attribute"]): at["Target"] for name in "QP" for at in found[name]["Details"]}
    assert targets == {
        "QueueName": {
            "Attribute": "Properties", "Name": "QueueName", "RequiresRecreation": "Always", "Path": "/Properties/QueueName",
            "BeforeValue": "one", "AfterValue": "two", "AttributeChangeType": "Modify",
        },
        "DelaySeconds": {
            "Attribute": "Properties", "Name": "DelaySeconds", "RequiresRecreation": "Never", "Path": "/Properties/DelaySeconds",
            "BeforeValue": "5", "AttributeChangeType": "Remove",
        },
        "Value": {
            "Attribute": "Properties", "Name": "Value", "RequiresRecreation": "Never", "Path": "/Properties/Value",
            "BeforeValue": "one", "AfterValue": later, "AttributeChangeType": "Modify",
        },
        "Metadata": {
            "Attribute": "Metadata", "RequiresRecreation": "Never", "Path": "/Metadata",
            "BeforeValue": '{"by":"one"}', "AfterValue": '{"by":"two"}', "AttributeChangeType": "Modify",
        },
    }  # fmt: skip
    assert json.loads(found["Q"]["BeforeContext"]) == {"Properties": {"QueueName": "one", "DelaySeconds": "5"}}

    tagged = template.replace("DelaySeconds: 5", "DelaySeconds: 5, Tags: [{Key: own, Value: x}]")
    plain, found = plan("tags", "UPDATE", tagged, Tags=[{"Key": "team", "Value": "red"}])
    assert plain.keys() == always | {"Parameters", "Tags"}
    assert details(found["S"]) == [("Tags", "Never", "Static", "DirectModification", None)] and found["S"]["Scope"] == ["Tags"]
    assert found["Q"]["Scope"] == ["Properties", "Tags"]
    plain, found = plan("less", "UPDATE", template[: template.index("  T:")].replace(", DeletionPolicy: Retain", ""))
    assert {name: (each["Action"], each.get("PolicyAction"), details(each)) for name, each in found.items()} == {
        "S": ("Modify", None, [("DeletionPolicy", "Never", "Static", "DirectModification", None)]),
        "T": ("Remove", "Delete", []),
        "U": ("Remove", "Delete", []),
    }
    cloudformation.delete_stack(StackName="members")
    wait(cloudformation, "members", "delete")
