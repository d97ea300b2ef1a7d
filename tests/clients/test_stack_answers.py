"""What the operations of CloudFormation answer: members that are there or not, error texts, and second calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clients.stack_help import CUSTOM, described, ended, events, given, refused, wait
from each import check_each
from harness import Corral

TOPIC = "Resources: {T: {Type: AWS::SNS::Topic}}"
QUEUE = "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {DelaySeconds: 5}}}"
ALARM = "arn:aws:cloudwatch:us-east-1:123456789012:alarm:high"
ALWAYS = {
    "StackId", "StackName", "CreationTime", "RollbackConfiguration", "StackStatus", "DisableRollback", "NotificationARNs", "Tags",
    "DriftInformation",
}  # fmt: skip
NOT_CHECKED = {"StackResourceDriftStatus": "NOT_CHECKED"}


@pytest.fixture
def cloudformation(corral: Corral) -> Any:
    return corral.client("cloudformation")


def delete(cloudformation: Any, *names: str) -> None:
    for name in names:
        cloudformation.delete_stack(StackName=name)
        wait(cloudformation, name, "delete")


def trust(principal: Any, effect: str = "Allow") -> str:
    return json.dumps({"Statement": [{"Effect": effect, "Principal": principal, "Action": "sts:AssumeRole"}]})


def test_members_of_stacks(cloudformation: Any) -> None:
    """A stack by CreateStack, a stack by a change set, an update, a deletion, and a rolled back creation."""
    arn = cloudformation.create_stack(StackName="plain", TemplateBody=TOPIC)["StackId"]
    wait(cloudformation, "plain", "create")
    stack = described(cloudformation, "plain")
    assert stack.keys() == ALWAYS | {"EnableTerminationProtection"}
    assert (stack["RollbackConfiguration"], stack["Tags"], stack["NotificationARNs"]) == ({}, [], [])
    [listed] = [each for each in cloudformation.list_stacks()["StackSummaries"] if each["StackId"] == arn]
    assert listed.keys() == {"StackId", "StackName", "CreationTime", "StackStatus", "DriftInformation"}
    happened = events(cloudformation, "plain")
    shown = [(event["LogicalResourceId"], event["PhysicalResourceId"] != "", event.get("ResourceProperties")) for event in happened]
    assert shown == [("plain", True, None), ("T", False, "{}"), ("T", True, "{}"), ("T", True, "{}"), ("plain", True, None)]
    at = happened[1]["Timestamp"].strftime("%Y-%m-%dT%H:%M:%S.") + f"{happened[1]['Timestamp'].microsecond // 1000:03}Z"
    assert happened[1]["EventId"] == f"T-CREATE_IN_PROGRESS-{at}"
    [resource] = cloudformation.describe_stack_resources(StackName="plain")["StackResources"]
    assert resource.keys() == {
        "StackName", "StackId", "LogicalResourceId", "PhysicalResourceId", "ResourceType", "Timestamp", "ResourceStatus",
        "DriftInformation",
    }  # fmt: skip
    delete(cloudformation, "plain")
    gone = described(cloudformation, arn)
    assert gone.keys() == ALWAYS | {"DeletionTime"} and gone["StackStatus"] == "DELETE_COMPLETE"

    made = cloudformation.create_change_set(StackName="planned", ChangeSetName="c", ChangeSetType="CREATE", TemplateBody=TOPIC)
    reviewed = described(cloudformation, "planned")
    assert reviewed.keys() == ALWAYS | {"EnableTerminationProtection", "StackStatusReason"}
    cloudformation.execute_change_set(ChangeSetName=made["Id"])
    wait(cloudformation, "planned", "create")
    stack = described(cloudformation, "planned")
    assert stack.keys() == ALWAYS | {"EnableTerminationProtection", "ChangeSetId", "LastUpdatedTime"}
    cloudformation.update_stack(StackName="planned", TemplateBody=QUEUE)
    wait(cloudformation, "planned", "update")
    assert described(cloudformation, "planned").keys() == ALWAYS | {"EnableTerminationProtection", "LastUpdatedTime"}
    delete(cloudformation, "planned")
    assert described(cloudformation, made["StackId"]).keys() == ALWAYS | {"DeletionTime", "LastUpdatedTime"}
    kept = cloudformation.describe_change_set(ChangeSetName=made["Id"])
    assert (kept["Status"], kept["ExecutionStatus"]) == ("CREATE_COMPLETE", "EXECUTE_COMPLETE"), "also after the deletion"

    cloudformation.create_stack(StackName="failing", TemplateBody=CUSTOM)
    stack = ended(cloudformation, "failing")
    assert stack["StackStatus"] == "ROLLBACK_COMPLETE" and stack["DeletionTime"] >= stack["CreationTime"]
    assert "LastUpdatedTime" not in stack
    delete(cloudformation, "failing")


def test_create_stack_creates_a_stack_in_review(cloudformation: Any) -> None:
    made = cloudformation.create_change_set(StackName="review", ChangeSetName="c", ChangeSetType="CREATE", TemplateBody=QUEUE)
    assert cloudformation.create_stack(StackName="review", TemplateBody=TOPIC)["StackId"] == made["StackId"]
    wait(cloudformation, "review", "create")
    assert [each["ResourceType"] for each in cloudformation.describe_stack_resources(StackName="review")["StackResources"]] == [
        "AWS::SNS::Topic"
    ]
    assert cloudformation.describe_change_set(ChangeSetName=made["Id"])["ExecutionStatus"] == "OBSOLETE"
    text = refused(lambda: cloudformation.execute_change_set(ChangeSetName=made["Id"]))
    assert text == (
        "InvalidChangeSetStatus",
        f"ChangeSet [{made['Id']}] cannot be executed in its current execution status of [OBSOLETE]",
    )
    assert refused(lambda: cloudformation.create_stack(StackName="review", TemplateBody=TOPIC))[0] == "AlreadyExistsException"
    delete(cloudformation, "review")
    text = refused(
        lambda: cloudformation.create_change_set(
            StackName=made["StackId"], ChangeSetName="again", ChangeSetType="CREATE", TemplateBody=TOPIC
        )
    )
    assert text == (
        "ValidationError", f"Stack [{made['StackId']}] already exists and cannot be created again with the changeSet [again].",
    )  # fmt: skip


def test_updates_that_change_only_settings(cloudformation: Any, corral: Corral) -> None:
    iam = corral.client("iam")
    role = iam.create_role(RoleName="deployer", AssumeRolePolicyDocument=trust({"Service": "cloudformation.amazonaws.com"}))
    corral.client("cloudwatch").put_metric_alarm(
        AlarmName="high", MetricName="m", Namespace="n", Statistic="Sum", Period=60, EvaluationPeriods=1, Threshold=1,
        ComparisonOperator="GreaterThanThreshold",
    )  # fmt: skip
    topic = corral.client("sns").create_topic(Name="news")["TopicArn"]
    cloudformation.create_stack(StackName="set", TemplateBody=QUEUE)
    wait(cloudformation, "set", "create")
    triggers = [{"Arn": ALARM, "Type": "AWS::CloudWatch::Alarm"}]
    no_updates = ("ValidationError", "No updates are to be performed.")

    def update(**settings: Any) -> Any:
        return cloudformation.update_stack(StackName="set", UsePreviousTemplate=True, **settings)

    shown = {}
    for settings in (
        {"RollbackConfiguration": {"RollbackTriggers": triggers}},
        {"RollbackConfiguration": {"RollbackTriggers": []}},
        {"Tags": [{"Key": "team", "Value": "red"}]},
        {"NotificationARNs": [topic]},
        {"RoleARN": role["Role"]["Arn"]},
    ):
        update(**settings)
        assert ended(cloudformation, "set")["StackStatus"] == "UPDATE_COMPLETE"
        shown |= settings
        assert described(cloudformation, "set").items() >= {
            **shown, "RollbackConfiguration": {name: each for name, each in shown["RollbackConfiguration"].items() if each}
        }.items()  # fmt: skip
        assert refused(lambda settings=settings: update(**settings)) == no_updates
    assert refused(update) == no_updates
    created = cloudformation.create_change_set(
        StackName="set", ChangeSetName="c", UsePreviousTemplate=True, RollbackConfiguration={"RollbackTriggers": triggers}
    )
    found = cloudformation.describe_change_set(ChangeSetName=created["Id"])
    assert (found["Status"], found["RollbackConfiguration"]) == ("CREATE_COMPLETE", {"RollbackTriggers": triggers})
    nested = "Resources: {N: {Type: AWS::CloudFormation::Stack, Properties: {TemplateURL: '%s'}}}"
    corral.client("s3").create_bucket(Bucket="nested-roles")
    corral.client("s3").put_object(Bucket="nested-roles", Key="t", Body=QUEUE.encode())
    iam.delete_role(RoleName="deployer")  # the stack keeps the role, and so do its nested stacks
    cloudformation.update_stack(StackName="set", TemplateBody=nested % f"{corral.url}/nested-roles/t")
    assert ended(cloudformation, "set")["StackStatus"] == "UPDATE_COMPLETE"
    delete(cloudformation, "set")


def test_settings_that_are_refused(cloudformation: Any, corral: Corral) -> None:
    iam = corral.client("iam")
    roles = {
        "denied": trust({"Service": "cloudformation.amazonaws.com"}, "Deny"), "other": trust({"Service": "ec2.amazonaws.com"}),
    }  # fmt: skip
    arns = [iam.create_role(RoleName=name, AssumeRolePolicyDocument=text)["Role"]["Arn"] for name, text in roles.items()]
    cloudformation.create_stack(StackName="kept", TemplateBody=QUEUE)
    wait(cloudformation, "kept", "create")

    def trigger(arn: str, type_: str = "AWS::CloudWatch::Alarm") -> dict[str, Any]:
        return {"RollbackConfiguration": {"RollbackTriggers": [{"Arn": arn, "Type": type_}]}}

    def statement(**members: Any) -> dict[str, Any]:
        allow = {"Effect": "Allow", "Principal": "*", "Action": "Update:*", "Resource": "*"}
        return {"StackPolicyBody": json.dumps({"Statement": [allow | members]})}

    bad_arn = "RelativeId of a Rollback Trigger's ARN is incorrect"
    policy = "Error validating stack policy: Invalid stack policy"
    cases = [
        (trigger("x", "Another"), "Rollback Trigger Type not supported"),
        (trigger("arn:aws:cloudwatch:us-east-1:123456789012:example-name"), bad_arn),
        (trigger("x"), bad_arn),
        *(({"RoleARN": arn}, f"Role {arn} is invalid or cannot be assumed") for arn in (*arns, arns[0] + "x")),
        ({"StackPolicyBody": "{"}, policy),
        (statement(Principal="me"), policy),
        (statement(Action="Delete:*"), policy),
        (statement(Effect="Maybe"), policy),
    ]
    before = described(cloudformation, "kept")

    def check(case: tuple[dict[str, Any], str]) -> None:
        settings, text = case
        assert refused(lambda: cloudformation.create_stack(StackName="new", TemplateBody=QUEUE, **settings)) == (
            "ValidationError",
            text,
        )
        update = {"StackName": "kept", "TemplateBody": TOPIC, **settings}
        assert refused(lambda: cloudformation.update_stack(**update)) == ("ValidationError", text)
        if "StackPolicyBody" in settings:
            assert refused(lambda: cloudformation.set_stack_policy(StackName="kept", **settings)) == ("ValidationError", text)
        else:
            assert refused(lambda: cloudformation.create_change_set(ChangeSetName="c", **update)) == ("ValidationError", text)

    check_each(cases, check)
    assert described(cloudformation, "kept") == before and cloudformation.list_change_sets(StackName="kept")["Summaries"] == []
    assert refused(lambda: cloudformation.delete_stack(StackName="kept", RoleARN=arns[0]))[1].endswith("cannot be assumed")
    both = {"StackPolicyBody": "{}", "StackPolicyURL": f"{corral.url}/a/b"}
    text = "You cannot specify both StackPolicyURL and StackPolicyBody"
    assert refused(lambda: cloudformation.set_stack_policy(StackName="kept", **both)) == ("ValidationError", text)
    cloudformation.set_stack_policy(StackName="kept", StackPolicyBody="{}")
    assert cloudformation.get_stack_policy(StackName="kept")["StackPolicyBody"] == "{}"
    delete(cloudformation, "kept")


def test_texts_about_stacks_that_do_not_exist(cloudformation: Any) -> None:
    with_id, bracketed = "Stack with id none does not exist", "Stack [none] does not exist"
    change_set = {"ChangeSetName": "c"}
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("describe_stacks", with_id, {}),
        ("describe_stack_resources", with_id, {}),
        ("list_stack_resources", with_id, {}),
        ("get_template", with_id, {}),
        ("get_template_summary", with_id, {}),
        ("describe_stack_resource", "Stack 'none' does not exist", {"LogicalResourceId": "x"}),
        ("describe_stack_events", bracketed, {}),
        ("update_stack", bracketed, {"TemplateBody": TOPIC}),
        ("cancel_update_stack", bracketed, {}),
        ("continue_update_rollback", bracketed, {}),
        ("rollback_stack", bracketed, {}),
        ("signal_resource", bracketed, {"LogicalResourceId": "x", "UniqueId": "y", "Status": "SUCCESS"}),
        ("set_stack_policy", bracketed, {"StackPolicyBody": "{}"}),
        ("get_stack_policy", bracketed, {}),
        ("update_termination_protection", bracketed, {"EnableTerminationProtection": True}),
        ("create_change_set", bracketed, {**change_set, "TemplateBody": TOPIC}),
        ("describe_change_set", bracketed, change_set),
        ("execute_change_set", bracketed, change_set),
        ("delete_change_set", bracketed, change_set),
        ("list_change_sets", bracketed, {}),
    ]

    def check(case: tuple[str, str, dict[str, Any]]) -> None:
        operation, text, params = case
        assert refused(lambda: getattr(cloudformation, operation)(StackName="none", **params)) == ("ValidationError", text)

    check_each(cases, check)
    cloudformation.delete_stack(StackName="none")
    required = ("ValidationError", "StackName is a required parameter.")
    assert refused(cloudformation.get_template) == required
    assert refused(lambda: cloudformation.get_template(ChangeSetName="c")) == required
    absent = "arn:aws:cloudformation:us-east-1:123456789012:changeSet/c/d065e78c"
    not_found = ("ChangeSetNotFound", f"ChangeSet [{absent}] does not exist")
    assert refused(lambda: cloudformation.get_template(ChangeSetName=absent)) == not_found
    assert refused(lambda: cloudformation.describe_change_set(ChangeSetName=absent)) == not_found
    cloudformation.delete_change_set(ChangeSetName=absent)


def test_template_urls(corral: Corral) -> None:
    """A URL without a port means port 80, also if a client reaches Corral at port 80 by way of a proxy."""
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="urls")
    s3.put_object(Bucket="urls", Key="a/t.yaml", Body=TOPIC.encode())
    port = corral.url.rpartition(":")[2]
    direct, proxied = corral.client("cloudformation"), corral.new_client("cloudformation")
    proxied.meta.events.register(
        "before-sign.cloudformation", lambda request, **_: request.headers.__setitem__("Host", "127.0.0.1")
    )
    unsupported = "TemplateURL must be a supported URL."
    cases = [
        (direct, f"http://127.0.0.1:{port}/urls/a/t.yaml", ""),
        (direct, f"http://localhost:{port}/urls/a/t.yaml", ""),
        (direct, f"http://urls.localhost:{port}/a/t.yaml", ""),
        (direct, "https://s3.amazonaws.com/urls/a/t.yaml", ""),
        (direct, "https://s3.eu-west-1.amazonaws.com/urls/a/t.yaml", ""),
        (direct, "https://urls.s3-eu-west-1.amazonaws.com/a/t.yaml", ""),
        (direct, "https://urls.s3.dualstack.eu-west-1.amazonaws.com/a/t.yaml", ""),
        (direct, "http://127.0.0.1/urls/a/t.yaml", unsupported),
        (direct, "https://example.com/urls/a/t.yaml", unsupported),
        (direct, f"ftp://127.0.0.1:{port}/urls/a/t.yaml", unsupported),
        (direct, "http://127.0.0.1:x/urls/a/t.yaml", unsupported),
        (direct, "s3://urls/a/t.yaml", "S3 error: Domain name specified in urls is not a valid S3 domain"),
        (proxied, "http://127.0.0.1/urls/a/t.yaml", ""),
        (proxied, "http://127.0.0.1:80/urls/a/t.yaml", ""),
        (proxied, f"http://127.0.0.1:{port}/urls/a/t.yaml", ""),
        (proxied, "http://example.com/urls/a/t.yaml", unsupported),
        (proxied, "https://127.0.0.1/urls/a/t.yaml", unsupported),
    ]

    def check(case: tuple[Any, str, str]) -> None:
        client, url, text = case
        if text:
            assert refused(lambda: client.get_template_summary(TemplateURL=url)) == ("ValidationError", text)
        else:
            assert client.get_template_summary(TemplateURL=url)["ResourceTypes"] == ["AWS::SNS::Topic"]

    check_each(cases, check)


def test_a_parameter_without_a_value_removes_a_property(cloudformation: Any, corral: Corral) -> None:
    template = """
Parameters: {Delay: {Type: String, Default: "AWS::NoValue"}}
Conditions: {IsNone: !Equals [!Ref Delay, "AWS::NoValue"]}
Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: without, DelaySeconds: !Ref Delay}}}
Outputs: {None: {Value: !If [IsNone, "yes", "no"]}}
"""
    cloudformation.create_stack(StackName="without", TemplateBody=template)
    wait(cloudformation, "without", "create")
    stack = described(cloudformation, "without")
    assert stack["Outputs"] == [{"OutputKey": "None", "OutputValue": "yes"}]
    sqs = corral.client("sqs")
    url = sqs.get_queue_url(QueueName="without")["QueueUrl"]
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["DelaySeconds"])["Attributes"] == {"DelaySeconds": "0"}
    cloudformation.update_stack(StackName="without", UsePreviousTemplate=True, Parameters=given(Delay="7"))
    wait(cloudformation, "without", "update")
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["DelaySeconds"])["Attributes"] == {"DelaySeconds": "7"}
    delete(cloudformation, "without")


def test_summaries_of_templates(cloudformation: Any) -> None:
    both = TOPIC.replace("}}", "}, U: {Type: AWS::SNS::Topic}, Q: {Type: AWS::SQS::Queue}}").replace("Topic}}, ", "Topic}, ")
    summary = cloudformation.get_template_summary(TemplateBody=both)
    assert summary["Parameters"] == []
    assert summary["ResourceIdentifierSummaries"] == [
        {"ResourceType": "AWS::SNS::Topic", "LogicalResourceIds": ["T", "U"], "ResourceIdentifiers": ["TopicArn"]},
        {"ResourceType": "AWS::SQS::Queue", "LogicalResourceIds": ["Q"], "ResourceIdentifiers": ["QueueUrl"]},
    ]
    assert {"Description", "Version", "Metadata", "Capabilities", "DeclaredTransforms"}.isdisjoint(summary)
    assert cloudformation.validate_template(TemplateBody=both).keys() == {"Parameters", "ResponseMetadata"}


def test_requests_with_the_same_token(cloudformation: Any) -> None:
    """A client that retries a request gets the first answer. The same token with other parameters is refused."""

    def again(operation: str, other: dict[str, Any], **params: Any) -> None:
        call, token = getattr(cloudformation, operation), operation.replace("_", "-")
        first, second = (call(ClientRequestToken=token, **params) for _ in range(2))
        assert {**first, "ResponseMetadata": None} == {**second, "ResponseMetadata": None}
        refusal = refused(lambda: call(ClientRequestToken=token, **{**params, **other}))
        assert refusal == ("TokenAlreadyExistsException", f"Token {token} already exists.")

    name = {"StackName": "tokens"}
    again("create_stack", {"TemplateBody": QUEUE}, **name, TemplateBody=TOPIC)
    wait(cloudformation, "tokens", "create")
    again("update_stack", {"TemplateBody": TOPIC}, **name, TemplateBody=QUEUE)
    wait(cloudformation, "tokens", "update")
    cloudformation.create_change_set(**name, ChangeSetName="c", TemplateBody=TOPIC)
    again("execute_change_set", {"ChangeSetName": "d"}, **name, ChangeSetName="c")
    wait(cloudformation, "tokens", "update")
    again("delete_stack", {"StackName": "other"}, **name)
    states = {
        "cancel_update_stack": "CancelUpdateStack cannot be called from current stack status",
        "continue_update_rollback": "is in CREATE_COMPLETE state and can not continue update rollback.",
        "rollback_stack": "is in CREATE_COMPLETE state and can not be rolled back.",
    }
    cloudformation.create_stack(StackName="states", TemplateBody=TOPIC)
    wait(cloudformation, "states", "create")
    for operation, text in states.items():
        code, message = refused(lambda operation=operation: getattr(cloudformation, operation)(StackName="states"))
        assert code == "ValidationError" and message.endswith(text)
    for protected in (True, True, False):
        cloudformation.update_termination_protection(StackName="states", EnableTerminationProtection=protected)
    delete(cloudformation, "states")
    assert refused(lambda: cloudformation.get_template_summary(StackSetName="none")) == (
        "StackSetNotFoundException", "StackSet none not found",
    )  # fmt: skip
