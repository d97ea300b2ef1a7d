"""IAM: roles, policies and instance profiles, which are stored only, and their attachments."""

from __future__ import annotations

import json
from typing import Any

import pytest

TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
ALLOW = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}]}
EXECUTION = "arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"  # the group `admins` has it


def role(iam: Any, name: str, **more: Any) -> dict[str, Any]:
    return iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST), **more)["Role"]


def policy(iam: Any, name: str, **more: Any) -> dict[str, Any]:
    return iam.create_policy(PolicyName=name, PolicyDocument=json.dumps(ALLOW), **more)["Policy"]


@pytest.fixture
def iam(client) -> Any:
    return client("iam")


def test_a_role_from_end_to_end(iam):
    made = role(iam, "task", Path="/team/", Description="d", MaxSessionDuration=7200, Tags=[{"Key": "a", "Value": "b"}])
    assert made["Arn"] == "arn:aws:iam::123456789012:role/team/task"
    assert made["RoleId"].startswith("AROA") and len(made["RoleId"]) == 21
    iam.get_waiter("role_exists").wait(RoleName="task", WaiterConfig={"Delay": 1, "MaxAttempts": 2})
    shown = iam.get_role(RoleName="task")["Role"]
    assert shown["AssumeRolePolicyDocument"] == TRUST, "stored as given, sent encoded, read by botocore"
    assert (shown["Description"], shown["MaxSessionDuration"], shown["Tags"]) == ("d", 7200, [{"Key": "a", "Value": "b"}])
    assert [each["RoleName"] for each in iam.list_roles(PathPrefix="/team/")["Roles"]] == ["task"]
    iam.update_role(RoleName="task", Description="other", MaxSessionDuration=3600)
    assert iam.update_role_description(RoleName="task", Description="third")["Role"]["Description"] == "third"
    changed = {**TRUST, "Statement": [{**TRUST["Statement"][0], "Principal": {"Service": "ec2.amazonaws.com"}}]}
    iam.update_assume_role_policy(RoleName="task", PolicyDocument=json.dumps(changed))
    shown = iam.get_role(RoleName="task")["Role"]
    assert (shown["AssumeRolePolicyDocument"], shown["MaxSessionDuration"]) == (changed, 3600)
    iam.put_role_permissions_boundary(RoleName="task", PermissionsBoundary="arn:aws:iam::aws:policy/ReadOnlyAccess")
    shown = iam.get_role(RoleName="task")["Role"]
    assert shown["PermissionsBoundary"]["PermissionsBoundaryArn"] == "arn:aws:iam::aws:policy/ReadOnlyAccess"
    iam.delete_role_permissions_boundary(RoleName="task")
    assert "PermissionsBoundary" not in iam.get_role(RoleName="task")["Role"]
    with pytest.raises(iam.exceptions.NoSuchEntityException, match="The role with name task has no permissions boundary"):
        iam.delete_role_permissions_boundary(RoleName="task")
    with pytest.raises(iam.exceptions.EntityAlreadyExistsException, match="Role with name task already exists"):
        role(iam, "task")
    iam.delete_role(RoleName="task")
    with pytest.raises(iam.exceptions.NoSuchEntityException, match="The role with name task cannot be found"):
        iam.get_role(RoleName="task")


def test_a_session_has_the_id_of_its_role(iam, client):
    made, sts = role(iam, "assumed"), client("sts")
    session = sts.assume_role(RoleArn=made["Arn"], RoleSessionName="me")
    assert session["AssumedRoleUser"]["AssumedRoleId"] == f"{made['RoleId']}:me"
    with pytest.raises(sts.exceptions.ClientError, match="exceeds the MaxSessionDuration set for this role"):
        sts.assume_role(RoleArn=made["Arn"], RoleSessionName="me", DurationSeconds=7200)


def test_iam_has_no_regions(client):
    role(client("iam"), "everywhere")
    assert client("iam", "eu-west-1").get_role(RoleName="everywhere")["Role"]["RoleName"] == "everywhere"


def test_tags(iam):
    role(iam, "tagged")
    iam.tag_role(RoleName="tagged", Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
    iam.tag_role(RoleName="tagged", Tags=[{"Key": "a", "Value": "3"}])
    iam.untag_role(RoleName="tagged", TagKeys=["b"])
    assert iam.list_role_tags(RoleName="tagged")["Tags"] == [{"Key": "a", "Value": "3"}]
    made = policy(iam, "tagged")
    iam.tag_policy(PolicyArn=made["Arn"], Tags=[{"Key": "a", "Value": "1"}])
    assert iam.list_policy_tags(PolicyArn=made["Arn"])["Tags"] == [{"Key": "a", "Value": "1"}]
    iam.create_instance_profile(InstanceProfileName="tagged", Tags=[{"Key": "a", "Value": "1"}])
    iam.untag_instance_profile(InstanceProfileName="tagged", TagKeys=["a"])
    assert iam.list_instance_profile_tags(InstanceProfileName="tagged")["Tags"] == []
    with pytest.raises(iam.exceptions.InvalidInputException, match="Duplicate"):
        iam.tag_role(RoleName="tagged", Tags=[{"Key": "a", "Value": "1"}, {"Key": "A", "Value": "2"}])
    with pytest.raises(iam.exceptions.LimitExceededException):
        iam.tag_role(RoleName="tagged", Tags=[{"Key": f"k{at}", "Value": ""} for at in range(50)])


def test_inline_policies(iam):
    role(iam, "inline")
    iam.put_role_policy(RoleName="inline", PolicyName="read", PolicyDocument=json.dumps(ALLOW))
    iam.put_role_policy(RoleName="inline", PolicyName="read", PolicyDocument=json.dumps({**ALLOW, "Id": "second"}))
    assert iam.get_role_policy(RoleName="inline", PolicyName="read")["PolicyDocument"] == {**ALLOW, "Id": "second"}
    assert iam.list_role_policies(RoleName="inline")["PolicyNames"] == ["read"]
    with pytest.raises(iam.exceptions.DeleteConflictException, match="must delete policies first"):
        iam.delete_role(RoleName="inline")
    iam.delete_role_policy(RoleName="inline", PolicyName="read")
    for refused in (iam.get_role_policy, iam.delete_role_policy):
        with pytest.raises(iam.exceptions.NoSuchEntityException):
            refused(RoleName="inline", PolicyName="read")
    iam.delete_role(RoleName="inline")


def test_managed_policies_and_their_versions(iam):
    made = policy(iam, "managed", Path="/team/", Description="d")
    assert made["Arn"] == "arn:aws:iam::123456789012:policy/team/managed" and made["PolicyId"].startswith("ANPA")
    iam.get_waiter("policy_exists").wait(PolicyArn=made["Arn"], WaiterConfig={"Delay": 1, "MaxAttempts": 2})
    second = {**ALLOW, "Id": "second"}
    version = iam.create_policy_version(PolicyArn=made["Arn"], PolicyDocument=json.dumps(second))["PolicyVersion"]
    assert (version["VersionId"], version["IsDefaultVersion"]) == ("v2", False)
    assert iam.get_policy_version(PolicyArn=made["Arn"], VersionId="v2")["PolicyVersion"]["Document"] == second
    with pytest.raises(iam.exceptions.DeleteConflictException, match="more than one version"):
        iam.delete_policy(PolicyArn=made["Arn"])
    iam.set_default_policy_version(PolicyArn=made["Arn"], VersionId="v2")
    assert iam.get_policy(PolicyArn=made["Arn"])["Policy"]["DefaultVersionId"] == "v2"
    with pytest.raises(iam.exceptions.DeleteConflictException):
        iam.delete_policy_version(PolicyArn=made["Arn"], VersionId="v2")
    iam.delete_policy_version(PolicyArn=made["Arn"], VersionId="v1")
    for number in range(3, 7):
        made_version = iam.create_policy_version(PolicyArn=made["Arn"], PolicyDocument=json.dumps(ALLOW), SetAsDefault=True)
        assert made_version["PolicyVersion"]["VersionId"] == f"v{number}", "numbers are not used again"
    with pytest.raises(iam.exceptions.LimitExceededException):
        iam.create_policy_version(PolicyArn=made["Arn"], PolicyDocument=json.dumps(ALLOW))
    for number in range(2, 6):
        iam.delete_policy_version(PolicyArn=made["Arn"], VersionId=f"v{number}")
    assert [each["VersionId"] for each in iam.list_policy_versions(PolicyArn=made["Arn"])["Versions"]] == ["v6"]
    with pytest.raises(iam.exceptions.EntityAlreadyExistsException):
        policy(iam, "managed")
    for wrong in ("arn:aws:iam::123456789012:policy/managed", "arn:aws:iam::123456789012:policy/team/other"):
        with pytest.raises(iam.exceptions.NoSuchEntityException):
            iam.get_policy(PolicyArn=wrong)
    with pytest.raises(iam.exceptions.ClientError, match="not authorized to perform: iam:DeletePolicy on resource: policy"):
        iam.delete_policy(PolicyArn="arn:aws:iam::aws:policy/managed")
    iam.delete_policy(PolicyArn=made["Arn"])
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.get_policy(PolicyArn=made["Arn"])


def test_attachments(iam):
    own = policy(iam, "attached")["Arn"]
    role(iam, "holder")
    for arn in (own, EXECUTION, EXECUTION):
        iam.attach_role_policy(RoleName="holder", PolicyArn=arn)
    listed = iam.list_attached_role_policies(RoleName="holder")["AttachedPolicies"]
    assert {each["PolicyArn"]: each["PolicyName"] for each in listed} == {
        own: "attached",
        EXECUTION: "AmazonECSTaskExecutionRolePolicy",
    }
    narrowed = iam.list_attached_role_policies(RoleName="holder", PathPrefix="/service-role/")["AttachedPolicies"]
    assert [each["PolicyArn"] for each in narrowed] == [EXECUTION]
    assert iam.get_policy(PolicyArn=own)["Policy"]["AttachmentCount"] == 1
    assert [each["RoleName"] for each in iam.list_entities_for_policy(PolicyArn=EXECUTION)["PolicyRoles"]] == ["holder"]
    assert iam.list_entities_for_policy(PolicyArn=EXECUTION, EntityFilter="User")["PolicyRoles"] == []
    by_scope = {scope: {each["Arn"] for each in iam.list_policies(Scope=scope)["Policies"]} for scope in ("All", "AWS", "Local")}
    assert (
        by_scope["AWS"] == {EXECUTION, ADMINISTRATOR}
        and own in by_scope["Local"]
        and by_scope["All"] == by_scope["AWS"] | by_scope["Local"]
    )
    of_groups = {ADMINISTRATOR, *(f"arn:aws:iam::123456789012:policy/corral/Corral{name}" for name in ("Users", "Viewers"))}
    assert {each["Arn"] for each in iam.list_policies(OnlyAttached=True)["Policies"]} == {own, EXECUTION, *of_groups}
    with pytest.raises(iam.exceptions.DeleteConflictException):
        iam.delete_policy(PolicyArn=own)
    with pytest.raises(iam.exceptions.DeleteConflictException, match="must detach all policies first"):
        iam.delete_role(RoleName="holder")
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.attach_role_policy(RoleName="holder", PolicyArn="arn:aws:iam::123456789012:policy/never")
    for arn in (own, EXECUTION):
        iam.detach_role_policy(RoleName="holder", PolicyArn=arn)
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.detach_role_policy(RoleName="holder", PolicyArn=own)
    iam.delete_role(RoleName="holder")
    iam.delete_policy(PolicyArn=own)


def test_simulation_shows_the_decision_of_the_boundary_alone(iam):
    boundary = {**ALLOW, "Statement": [{"Effect": "Allow", "Action": ["s3:*", "sqs:*"], "Resource": "*"}]}
    found = iam.simulate_custom_policy(
        PolicyInputList=[json.dumps({**ALLOW, "Statement": [{"Effect": "Allow", "Action": ["s3:*", "ec2:*"], "Resource": "*"}]})],
        PermissionsBoundaryPolicyInputList=[json.dumps(boundary)],
        ActionNames=["s3:GetObject", "sqs:SendMessage", "ec2:RunInstances"],
    )["EvaluationResults"]
    assert [each["EvalDecision"] for each in found] == ["allowed", "implicitDeny", "implicitDeny"]
    details = [each["PermissionsBoundaryDecisionDetail"] for each in found]
    assert [each["AllowedByPermissionsBoundary"] for each in details] == [True, True, False]


def test_simulation_shows_the_statements_that_decide(iam):
    statements = [
        {"Effect": "Allow", "Action": "s3:*", "Resource": "*"},
        {"Effect": "Deny", "Action": "s3:Put*", "Resource": "*", "Condition": {"StringEquals": {"aws:PrincipalTag/Team": "a"}}},
    ]
    document = {"Version": "2012-10-17", "Statement": statements}
    text, line = json.dumps(document, indent=4), json.dumps(document)
    actions = {"ActionNames": ["s3:GetObject", "s3:PutObject", "sqs:SendMessage"]}
    team = [{"ContextKeyName": "aws:principaltag/team", "ContextKeyValues": ["a"], "ContextKeyType": "string"}]

    def place(start, end):
        return {"StartPosition": dict(zip(("Line", "Column"), start)), "EndPosition": dict(zip(("Line", "Column"), end))}

    found = iam.simulate_custom_policy(PolicyInputList=[text, line], ContextEntries=team, **actions)["EvaluationResults"]
    first, second = ({"SourcePolicyId": f"PolicyInputList.{at}", "SourcePolicyType": "IAM Policy"} for at in (1, 2))
    end = len(line.partition("}")[0]) + 2
    allows = [first | place((3, 19), (8, 10)), second | place((1, 41), (1, end))]
    denies = [first | place((8, 10), (18, 10)), second | place((1, end), (1, len(line) - 1))]
    assert [each["MatchedStatements"] for each in found] == [allows, denies, []]
    assert [each["MissingContextValues"] for each in found] == [[]] * 3
    role(iam, "simulated")
    iam.put_role_policy(RoleName="simulated", PolicyName="own", PolicyDocument=text)
    iam.attach_role_policy(RoleName="simulated", PolicyArn="arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess")
    source = {"PolicySourceArn": "arn:aws:iam::123456789012:role/simulated"}
    [shown, *_] = iam.simulate_principal_policy(**source, **actions)["EvaluationResults"]
    assert [each["SourcePolicyId"] for each in shown["MatchedStatements"]] == ["role_simulated_own", "AmazonS3ReadOnlyAccess"]
    assert shown["MissingContextValues"] == ["aws:PrincipalTag/Team"] and "ResourceSpecificResults" not in shown
    [shown, *_] = iam.simulate_principal_policy(**source, **actions, ResourceArns=["arn:aws:s3:::a/b"])["EvaluationResults"]
    [specific] = shown["ResourceSpecificResults"]
    assert shown["MissingContextValues"] == [] and specific["MissingContextValues"] == ["aws:PrincipalTag/Team"]
    assert (specific["EvalResourceName"], specific["EvalResourceDecision"]) == ("arn:aws:s3:::a/b", "allowed")
    assert specific["MatchedStatements"] == shown["MatchedStatements"]
    [shown] = iam.simulate_custom_policy(
        PolicyInputList=[json.dumps({"Statement": statements[0], "Version": "2012-10-17"})], ActionNames=["s3:GetObject"]
    )["EvaluationResults"]
    assert shown["MatchedStatements"][0]["StartPosition"] == {"Line": 1, "Column": 14}


def test_instance_profiles(iam):
    made = iam.create_instance_profile(InstanceProfileName="gpu", Path="/team/")["InstanceProfile"]
    assert made["InstanceProfileId"].startswith("AIPA") and made["Roles"] == []
    iam.get_waiter("instance_profile_exists").wait(InstanceProfileName="gpu", WaiterConfig={"Delay": 1, "MaxAttempts": 2})
    role(iam, "instance")
    iam.add_role_to_instance_profile(InstanceProfileName="gpu", RoleName="instance")
    [held] = iam.get_instance_profile(InstanceProfileName="gpu")["InstanceProfile"]["Roles"]
    assert held["RoleName"] == "instance" and held["AssumeRolePolicyDocument"] == TRUST
    listed = iam.list_instance_profiles_for_role(RoleName="instance")["InstanceProfiles"]
    assert [each["InstanceProfileName"] for each in listed] == ["gpu"]
    with pytest.raises(iam.exceptions.LimitExceededException):
        iam.add_role_to_instance_profile(InstanceProfileName="gpu", RoleName="instance")
    for refused in (lambda: iam.delete_role(RoleName="instance"), lambda: iam.delete_instance_profile(InstanceProfileName="gpu")):
        with pytest.raises(iam.exceptions.DeleteConflictException):
            refused()
    iam.remove_role_from_instance_profile(InstanceProfileName="gpu", RoleName="instance")
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.remove_role_from_instance_profile(InstanceProfileName="gpu", RoleName="instance")
    iam.delete_role(RoleName="instance")
    iam.delete_instance_profile(InstanceProfileName="gpu")
    with pytest.raises(iam.exceptions.NoSuchEntityException, match="Instance Profile gpu cannot be found"):
        iam.get_instance_profile(InstanceProfileName="gpu")


def test_service_linked_role(iam):
    made = iam.create_service_linked_role(AWSServiceName="ecs.amazonaws.com")["Role"]
    assert made["Arn"] == "arn:aws:iam::123456789012:role/aws-service-role/ecs.amazonaws.com/AWSServiceRoleForECS"
    with pytest.raises(iam.exceptions.InvalidInputException, match="has been taken in this account"):
        iam.create_service_linked_role(AWSServiceName="ecs.amazonaws.com")


@pytest.mark.parametrize("document", ["not json", "[]", "{}"])
def test_malformed_documents(iam, document):
    with pytest.raises(iam.exceptions.MalformedPolicyDocumentException):
        iam.create_role(RoleName="malformed", AssumeRolePolicyDocument=document)
    with pytest.raises(iam.exceptions.MalformedPolicyDocumentException):
        iam.create_policy(PolicyName="malformed", PolicyDocument=document)


@pytest.mark.parametrize("wrong", [{"RoleName": "sp ace"}, {"Path": "no-slashes"}, {"MaxSessionDuration": 43_201}])
def test_invalid_names_and_sizes(iam, wrong):
    with pytest.raises(iam.exceptions.ClientError) as refused:
        iam.create_role(**{"RoleName": "wrong", "AssumeRolePolicyDocument": json.dumps(TRUST), **wrong})
    assert refused.value.response["Error"]["Code"] == "ValidationError"


def test_roles_survive_a_restart(own_corral):
    corral = own_corral().start()
    role(corral.client("iam"), "kept")
    corral.kill("corral.server")
    corral.start()
    assert corral.client("iam").get_role(RoleName="kept")["Role"]["RoleName"] == "kept"


def test_with_the_aws_command(aws, tmp_path):
    trust = tmp_path / "trust.json"
    trust.write_text(json.dumps(TRUST))
    aws("iam", "create-role", "--role-name", "cli", "--assume-role-policy-document", f"file://{trust}")
    aws("iam", "attach-role-policy", "--role-name", "cli", "--policy-arn", EXECUTION)
    aws("iam", "wait", "role-exists", "--role-name", "cli")
    assert aws("iam", "get-role", "--role-name", "cli")["Role"]["AssumeRolePolicyDocument"] == TRUST
    listed = aws("iam", "list-attached-role-policies", "--role-name", "cli")["AttachedPolicies"]
    assert listed == [{"PolicyName": "AmazonECSTaskExecutionRolePolicy", "PolicyArn": EXECUTION}]
