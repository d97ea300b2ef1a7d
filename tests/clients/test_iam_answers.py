"""What IAM's responses contain, its errors, and the roles of AWS services."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from each import check_each

TRUSTED = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
TRUST = json.dumps({"Version": "2012-10-17", "Statement": [TRUSTED]})
READ = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::bucket"}
ALLOW = json.dumps({"Version": "2012-10-17", "Statement": [READ]})
TAGS = [{"Key": "team", "Value": "ml"}]
ACCOUNT = "arn:aws:iam::123456789012"
ABSENT = f"{ACCOUNT}:policy/absent"


@pytest.fixture
def iam(client) -> Any:
    return client("iam", parameter_validation=False)


def refused(call: Any, **params: Any) -> tuple[str, str, int]:
    with pytest.raises(ClientError) as error:
        call(**params)
    found = error.value.response
    return found["Error"]["Code"], found["Error"]["Message"], found["ResponseMetadata"]["HTTPStatusCode"]


def test_members_of_roles(iam):
    """Only some responses have the description, the session duration, the last use, the tags and the boundary."""
    boundary = iam.create_policy(PolicyName="limit", PolicyDocument=ALLOW)["Policy"]["Arn"]
    given = {"Description": "d", "MaxSessionDuration": 7200, "Tags": TAGS, "PermissionsBoundary": boundary, "Path": "/shapes/"}
    created = iam.create_role(RoleName="full", AssumeRolePolicyDocument=TRUST, **given)["Role"]
    base = {"Path", "RoleName", "RoleId", "Arn", "CreateDate", "AssumeRolePolicyDocument"}
    assert created.keys() == base | {"Tags", "PermissionsBoundary"}
    assert created["PermissionsBoundary"] == {"PermissionsBoundaryType": "Policy", "PermissionsBoundaryArn": boundary}
    assert iam.create_role(RoleName="plain", AssumeRolePolicyDocument=TRUST, Path="/shapes/")["Role"].keys() == base
    described = base | {"MaxSessionDuration", "RoleLastUsed"}
    assert iam.get_role(RoleName="plain")["Role"].keys() == described
    shown = iam.get_role(RoleName="full")["Role"]
    assert shown.keys() == described | {"Description", "Tags", "PermissionsBoundary"} and shown["RoleLastUsed"] == {}
    listed = {each["RoleName"]: each.keys() for each in iam.list_roles(PathPrefix="/shapes/")["Roles"]}
    assert listed == {"full": base | {"MaxSessionDuration", "Description"}, "plain": base | {"MaxSessionDuration"}}
    changed = iam.update_role_description(RoleName="plain", Description="new")["Role"]
    assert changed.keys() == base | {"Description"}
    iam.untag_role(RoleName="full", TagKeys=["TEAM"])
    assert "Tags" not in iam.get_role(RoleName="full")["Role"]
    assert iam.get_policy(PolicyArn=boundary)["Policy"]["PermissionsBoundaryUsageCount"] == 1
    found = iam.list_entities_for_policy(PolicyArn=boundary, PolicyUsageFilter="PermissionsBoundary")["PolicyRoles"]
    assert [each["RoleName"] for each in found] == ["full"]
    assert refused(iam.delete_policy, PolicyArn=boundary) == ("DeleteConflict", "Cannot delete a policy attached to entities.", 409)


def test_members_of_policies_and_instance_profiles(iam):
    base = {"PolicyName", "PolicyId", "Arn", "Path", "DefaultVersionId", "AttachmentCount", "PermissionsBoundaryUsageCount",
            "IsAttachable", "CreateDate", "UpdateDate"}  # fmt: skip
    created = iam.create_policy(PolicyName="described", PolicyDocument=ALLOW, Description="d", Path="/shapes/")["Policy"]
    assert created.keys() == base
    shown = iam.get_policy(PolicyArn=created["Arn"])["Policy"]
    assert shown.keys() == base | {"Description", "Tags"} and shown["Tags"] == []
    [listed] = iam.list_policies(PathPrefix="/shapes/")["Policies"]
    assert listed.keys() == base
    tagged = iam.create_policy(PolicyName="tagged", PolicyDocument=ALLOW, Tags=[*TAGS, {"Key": "Team", "Value": "other"}])["Policy"]
    assert len(tagged["Tags"]) == 2, "keys of policies differ by case, unlike those of roles"
    for number in (2, 3):
        iam.create_policy_version(PolicyArn=created["Arn"], PolicyDocument=ALLOW, SetAsDefault=number == 2)
    versions = iam.list_policy_versions(PolicyArn=created["Arn"])["Versions"]
    assert [(each["VersionId"], each["IsDefaultVersion"]) for each in versions] == [("v3", False), ("v2", True), ("v1", False)]
    base = {"Path", "InstanceProfileName", "InstanceProfileId", "Arn", "CreateDate", "Roles"}
    assert iam.create_instance_profile(InstanceProfileName="shape")["InstanceProfile"].keys() == base
    iam.create_role(RoleName="profiled", AssumeRolePolicyDocument=TRUST, Description="d", Tags=TAGS)
    iam.add_role_to_instance_profile(InstanceProfileName="shape", RoleName="profiled")
    shown = iam.get_instance_profile(InstanceProfileName="shape")["InstanceProfile"]
    assert shown.keys() == base | {"Tags"} and shown["Tags"] == []
    assert shown["Roles"][0].keys() == {"Path", "RoleName", "RoleId", "Arn", "CreateDate", "AssumeRolePolicyDocument"}
    assert iam.list_instance_profiles()["InstanceProfiles"][0].keys() == base


SERVICE_POLICY = "arn:aws:iam::aws:policy/aws-service-role/AWSEC2SpotFleetServiceRolePolicy"
REFUSALS = [  # operation, parameters, code, text
    ("attach_role_policy", {"PolicyArn": SERVICE_POLICY}, "PolicyNotAttachable",
     "Cannot attach a Service Role Policy to a Customer Role."),
    ("attach_role_policy", {"PolicyArn": ABSENT}, "NoSuchEntity", f"Policy {ABSENT} does not exist or is not attachable."),
    ("attach_role_policy", {"PolicyArn": "longpolicynamebutnoarn"}, "ValidationError", "ARN longpolicynamebutnoarn is not valid."),
    ("detach_role_policy", {"PolicyArn": ABSENT}, "NoSuchEntity", f"Policy {ABSENT} was not found."),
    ("delete_role_policy", {"PolicyName": "none"}, "NoSuchEntity", "The role policy with name none cannot be found."),
    ("get_policy", {"PolicyArn": ABSENT}, "NoSuchEntity", f"Policy {ABSENT} was not found."),
    ("delete_policy", {"PolicyArn": ABSENT}, "NoSuchEntity", f"Policy {ABSENT} was not found."),
    ("tag_policy", {"PolicyArn": ABSENT, "Tags": TAGS}, "NoSuchEntity", f"Policy {ABSENT} was not found."),
    ("set_default_policy_version", {"PolicyArn": ABSENT, "VersionId": "v1"}, "NoSuchEntity",
     f"Policy {ABSENT} version v1 does not exist or is not attachable."),
    ("set_default_policy_version", {"PolicyArn": ABSENT, "VersionId": "1"}, "ValidationError",
     "1 validation error detected: Value at 'versionId' failed to satisfy constraint: Member must satisfy regular expression "
     r"pattern: v[1-9][0-9]*(\.[A-Za-z0-9-]*)?"),
    ("put_role_permissions_boundary", {"PermissionsBoundary": f"{ACCOUNT}:not_a_policy/invalid"}, "InvalidInput",
     f"ARN {ACCOUNT}:not_a_policy/invalid is not valid."),
    ("put_role_permissions_boundary", {"PermissionsBoundary": ABSENT}, "NoSuchEntity",
     f"Scope ARN: {ABSENT} does not exist or is not attachable."),
    ("remove_role_from_instance_profile", {"InstanceProfileName": "empty", "RoleName": "errors"}, "NoSuchEntity",
     "Role errors in Instance Profile empty cannot be found."),
    ("remove_role_from_instance_profile", {"InstanceProfileName": "empty", "RoleName": "none"}, "NoSuchEntity",
     "The role with name none cannot be found."),
    ("tag_role", {"Tags": [{"Key": "a", "Value": "1"}, {"Key": "A", "Value": "2"}]}, "InvalidInput",
     "Duplicate tag keys found. Please note that Tag keys are case insensitive."),
    ("tag_role", {"Tags": [{"Key": "k" * 129, "Value": "1"}]}, "ValidationError",
     "1 validation error detected: Value at 'tags.1.member.key' failed to satisfy constraint: Member must have length less than or "
     "equal to 128"),
    ("untag_role", {"TagKeys": ["k" * 129]}, "ValidationError",
     "1 validation error detected: Value at 'tagKeys' failed to satisfy constraint: Member must satisfy constraint: [Member must "
     "have length less than or equal to 128, Member must have length greater than or equal to 1, Member must satisfy regular "
     r"expression pattern: [\p{L}\p{Z}\p{N}_.:/=+\-@]+, Member must not be null]"),
    ("put_role_policy", {"PolicyName": "p", "PolicyDocument": json.dumps({"Version": "2012-10-17", "Statement": [
        {**READ, "Resource": [f"arn:aws:s3:::bucket/{at:0100}" for at in range(90)]}]})}, "LimitExceeded",
     "Maximum policy size of 10240 bytes exceeded for role errors"),
    ("delete_service_linked_role", {}, "InvalidInput", "The role errors is not a service-linked role: use DeleteRole."),
]  # fmt: skip


def test_texts_of_errors(iam):
    iam.create_role(RoleName="errors", AssumeRolePolicyDocument=TRUST)
    iam.create_instance_profile(InstanceProfileName="empty")

    def check(case: tuple[str, dict[str, Any], str, str]) -> None:
        operation, params, code, text = case
        of_role = {"RoleName": "errors"} if "role" in operation else {}
        assert refused(getattr(iam, operation), **{**of_role, **params})[:2] == (code, text)

    check_each(REFUSALS, check)


def policy(*statements: Any, version: str = "2012-10-17", **more: Any) -> str:
    return json.dumps({"Version": version, "Statement": list(statements), **more})


def read(**changed: Any) -> dict[str, Any]:
    return {key: value for key, value in {**READ, **changed}.items() if value is not None}


SYNTAX, LEGACY = "Syntax errors in policy.", "The policy failed legacy parsing"
ACTIONS = "Policy statement must contain actions."
VENDOR = "Actions/Conditions must be prefaced by a vendor, e.g., iam, sdb, ec2, etc."
OLD = (json.dumps({"Statement": READ}), policy(READ, version="2008-10-17"))
GRAMMAR = [  # policy, text of the error
    ("This is not JSON", SYNTAX),
    *((document, None) for document in OLD),
    (policy(READ, version="2013-10-17"), SYNTAX),
    (policy(), SYNTAX),
    (policy("afd"), SYNTAX),
    (policy(READ, More=1), SYNTAX),
    (policy(read(More=1)), SYNTAX),
    (policy(read(Effect="invalid")), SYNTAX),
    (policy(read(Effect="denY")), LEGACY),
    (policy(read(NotAction="s3:x")), SYNTAX),
    (policy(read(Action="invalid")), VENDOR),
    (policy(read(Action="a a:ListBucket")), "Vendor a a is not valid"),
    (policy(read(Action="s3:List:Bucket")), "Actions/Condition can contain only one colon."),
    (policy(read(Action=None)), ACTIONS),
    (policy(read(Action=[])), ACTIONS),
    (policy(read(Resource=None)), "Policy statement must contain resources."),
    (policy(read(Resource=[])), "Policy statement must contain resources."),
    (policy(read(Action="invalid", Resource=None)), VENDOR),
    (policy(read(Resource="adf")), 'Resource adf must be in ARN format or "*".'),
    (policy(read(Resource="")), 'Resource  must be in ARN format or "*".'),
    (policy(read(Resource="a:b:cadfsdf")), 'Partition "b" is not valid for resource "arn:b:cadfsdf:*:*:*".'),
    (policy(read(Resource="aws:s3:::bucket")), 'Partition "s3" is not valid for resource "arn:s3:::bucket:*".'),
    (policy(read(Resource="arn:aws")), "Resource vendor must be fully qualified and cannot contain regexes."),
    (policy(read(Resource="arn:aws:s3::bucket")), LEGACY),
    (policy(read(Resource="arn:aws::fdsasf")), LEGACY),
    (policy(read(Resource="arn:aws:iam:us-east-1::user/x")),
     "IAM resource arn:aws:iam:us-east-1::user/x cannot contain region information."),
    (policy(read(Resource="arn:aws:s3:us-east-1::b")), "Resource arn:aws:s3:us-east-1::b can not contain region information."),
    (policy(read(Sid="a"), read(Sid="a")), "Statement IDs (SID) in a single policy must be unique."),
    (policy(read(Condition={"x": {"a": "1"}})), SYNTAX),
    (policy(read(Condition=[])), SYNTAX),
    (policy(read(Condition={"DateGreaterThan": {"a": "soon"}})), LEGACY),
    (policy(read(Condition={"DateLessThan": {"a": "2016-12-13T2:00:00.59+1"}})), LEGACY),
    (policy({**TRUSTED, "Resource": "*"}), "Policy document should not specify a principal."),
    (policy(read(Resource=["*", "arn:aws:s3:::bucket"], Sid="")), None),
    (policy(read(Action="*", Resource="arn:aws:fdsasf", Condition={"x": {}})), None),
    (policy(read(Condition={"DateLessThanEquals": {"a": "2016-12-13t2:00:00.593194+23"}})), None),
    (policy(read(Condition={"Bool": {"aws:SecureTransport": True}})), None),
    (policy(read(Resource="arn:aws:s3:us-west-2:123456789012:accesspoint/mine"), READ), None),
    (json.dumps({"Version": "2012-10-17", "Id": "i", "Statement": READ}), None),
]  # fmt: skip
TRUST_GRAMMAR = [
    ('{"Version": "2012-10-17",}', "This policy contains invalid Json"),
    (policy({**TRUSTED, "Resource": "*"}), "Has prohibited field Resource"),
    (policy({**TRUSTED, "Action": "s3:GetObject"}), "AssumeRole policy may only specify STS AssumeRole actions."),
    (policy({key: TRUSTED[key] for key in ("Effect", "Action")}), "Missing required field Principal"),
    (policy({**TRUSTED, "Principal": {"AWS": "joe"}}), 'Invalid principal in policy: "AWS":"joe"'),
    (policy({**TRUSTED, "Action": ["sts:AssumeRole", "sts:TagSession"], "Principal": {"AWS": "123456789012"}}), None),
]


def test_the_grammar_of_policies(iam):
    iam.create_role(RoleName="grammar", AssumeRolePolicyDocument=TRUST)

    def check(case: tuple[str, str | None], call: Any, **given: Any) -> None:
        document, text = case
        if text is None:
            call(PolicyDocument=document, **given)
        else:
            assert refused(call, PolicyDocument=document, **given) == ("MalformedPolicyDocument", text, 400)

    check_each(GRAMMAR, lambda case: check(case, iam.put_role_policy, RoleName="grammar", PolicyName="p"))
    check_each(TRUST_GRAMMAR, lambda case: check(case, iam.update_assume_role_policy, RoleName="grammar"))
    for document in OLD:
        assert refused(iam.create_policy, PolicyName="old", PolicyDocument=document)[:2] == (
            "MalformedPolicyDocument", "Policy document must be version 2012-10-17 or greater.",
        )  # fmt: skip
    large = policy(read(Resource=[f"arn:aws:s3:::bucket/{at:0100}" for at in range(60)]))
    assert refused(iam.create_policy, PolicyName="large", PolicyDocument=large) == (
        "LimitExceeded", "Cannot exceed quota for PolicySize: 6144", 409,
    )  # fmt: skip


def test_service_linked_roles(iam):
    created = iam.create_service_linked_role(AWSServiceName="spotfleet.amazonaws.com", Description="d")["Role"]
    name, path = "AWSServiceRoleForEC2SpotFleet", "/aws-service-role/spotfleet.amazonaws.com/"
    assert (created["RoleName"], created["Path"], created["Arn"]) == (name, path, f"{ACCOUNT}:role{path}{name}")
    assert created["AssumeRolePolicyDocument"]["Statement"] == [
        {"Action": ["sts:AssumeRole"], "Effect": "Allow", "Principal": {"Service": ["spotfleet.amazonaws.com"]}}
    ]
    assert iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"] == [
        {
            "PolicyName": "AWSEC2SpotFleetServiceRolePolicy",
            "PolicyArn": "arn:aws:iam::aws:policy/aws-service-role/AWSEC2SpotFleetServiceRolePolicy",
        }
    ]
    again = refused(iam.create_service_linked_role, AWSServiceName="spotfleet.amazonaws.com")
    assert again[:2] == ("InvalidInput", f"Service role name {name} has been taken in this account, please try a different suffix.")
    suffixed = iam.create_service_linked_role(AWSServiceName="autoscaling.amazonaws.com", CustomSuffix="team")["Role"]
    assert suffixed["RoleName"] == "AWSServiceRoleForAutoScaling_team"
    refusals = [
        ({"AWSServiceName": "batch.amazonaws.com", "CustomSuffix": "x"}, "InvalidInput",
         "Custom suffix is not allowed for batch.amazonaws.com"),
        ({"AWSServiceName": "account.amazonaws.com"}, "AccessDenied",
         "Cannot find Service Linked Role template for account.amazonaws.com"),
    ]  # fmt: skip
    for params, code, text in refusals:
        assert refused(iam.create_service_linked_role, **params)[:2] == (code, text)
    iam.create_instance_profile(InstanceProfileName="of-service")
    iam.update_role(RoleName=name, Description="new")
    protected = f"Cannot perform the operation on the protected role '{name}' - this role is only modifiable by AWS"
    for call, params in (
        (iam.delete_role, {}),
        (iam.attach_role_policy, {"PolicyArn": "arn:aws:iam::aws:policy/ReadOnlyAccess"}),
        (iam.put_role_policy, {"PolicyName": "p", "PolicyDocument": ALLOW}),
        (iam.update_assume_role_policy, {"PolicyDocument": TRUST}),
        (iam.update_role, {"MaxSessionDuration": 7200}),
        (iam.add_role_to_instance_profile, {"InstanceProfileName": "of-service"}),
    ):
        assert refused(call, RoleName=name, **params) == ("UnmodifiableEntity", protected, 400)
    task = iam.delete_service_linked_role(RoleName=name)["DeletionTaskId"]
    assert task.startswith(f"task{path}{name}/")
    assert iam.get_service_linked_role_deletion_status(DeletionTaskId=task)["Status"] == "SUCCEEDED"
    assert refused(iam.get_role, RoleName=name)[0] == refused(iam.delete_service_linked_role, RoleName=name)[0] == "NoSuchEntity"
    assert refused(iam.get_service_linked_role_deletion_status, DeletionTaskId="task/none")[0] == "NoSuchEntity"
    iam.create_service_linked_role(AWSServiceName="spotfleet.amazonaws.com")
