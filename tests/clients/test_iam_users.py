"""Users, groups and access keys of IAM."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.exceptions import ClientError

TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


@pytest.fixture
def iam(client) -> Any:
    return client("iam")


def client_of(corral: Any, key: dict[str, str], service: str, **options: Any) -> Any:
    """A client that signs its requests with the access key of a user."""
    keys = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    return boto3.client(service, endpoint_url=corral.url, region_name="us-east-1", **keys, **options)


def refused(call: Any, **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        call(**params)
    found = error.value.response["Error"]
    return found["Code"], found["Message"]


def status(url: str, basic: str = "") -> int:
    try:
        with urlopen(Request(url, headers={"Authorization": f"Basic {basic}"} if basic else {})) as response:
            return int(response.status)
    except HTTPError as error:
        return error.code


def allow(*actions: str) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]})


@pytest.fixture
def user(iam) -> Iterator[Callable[..., str]]:
    """Creates users and groups that are deleted after the test."""
    made: list[str] = []

    def create(name: str, *groups: str, **given: Any) -> str:
        iam.create_user(UserName=name, **given)
        made.append(name)
        for group in groups:
            iam.add_user_to_group(GroupName=group, UserName=name)
        return name

    yield create
    for name in made:
        for group in iam.list_groups_for_user(UserName=name)["Groups"]:
            iam.remove_user_from_group(GroupName=group["GroupName"], UserName=name)
        for key in iam.list_access_keys(UserName=name)["AccessKeyMetadata"]:
            iam.delete_access_key(UserName=name, AccessKeyId=key["AccessKeyId"])
        for policy in iam.list_user_policies(UserName=name)["PolicyNames"]:
            iam.delete_user_policy(UserName=name, PolicyName=policy)
        for attached in iam.list_attached_user_policies(UserName=name)["AttachedPolicies"]:
            iam.detach_user_policy(UserName=name, PolicyArn=attached["PolicyArn"])
        iam.delete_user(UserName=name)


def test_a_user_has_two_keys_and_may_do_nothing_without_a_policy(corral, iam, user):
    user("ann", Path="/lab/", Tags=[{"Key": "team", "Value": "ml"}])
    made = iam.get_user(UserName="ann")["User"]
    assert made["Arn"] == "arn:aws:iam::123456789012:user/lab/ann" and made["UserId"].startswith("AIDA")
    assert made["Tags"] == [{"Key": "team", "Value": "ml"}]
    assert iam.get_user()["User"]["Arn"] == "arn:aws:iam::123456789012:root"
    with pytest.raises(iam.exceptions.EntityAlreadyExistsException, match="User with name ann already exists"):
        iam.create_user(UserName="ann")
    key = iam.create_access_key(UserName="ann")["AccessKey"]
    assert (key["UserName"], key["Status"], len(key["AccessKeyId"]), len(key["SecretAccessKey"])) == ("ann", "Active", 20, 40)
    iam.create_access_key(UserName="ann")
    with pytest.raises(iam.exceptions.LimitExceededException, match="Cannot exceed quota for AccessKeysPerUser: 2"):
        iam.create_access_key(UserName="ann")
    with pytest.raises(ClientError, match="user/lab/ann is not authorized to perform: s3:ListAllMyBuckets") as refused:
        client_of(corral, key, "s3").list_buckets()
    assert refused.value.response["Error"]["Code"] == "AccessDenied"
    with pytest.raises(ClientError, match=r"to perform: ecs:RunTask on resource: .* because no identity-based policy"):
        client_of(corral, key, "ecs").run_task(taskDefinition="x")
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client_of(corral, {**key, "SecretAccessKey": "x" * 40}, "sqs").list_queues()


def test_an_inactive_or_deleted_key_ends_at_once(corral, iam, user):
    """Also what the user has made with the key: presigned URLs and passwords of the registry."""
    user("kim")
    iam.put_user_policy(UserName="kim", PolicyName="all", PolicyDocument=allow("s3:*", "ecr:*"))
    key = iam.create_access_key(UserName="kim")["AccessKey"]
    s3, ecr = client_of(corral, key, "s3"), client_of(corral, key, "ecr")
    s3.create_bucket(Bucket="of-kim")
    s3.put_object(Bucket="of-kim", Key="k", Body=b"x")
    url = s3.generate_presigned_url("get_object", {"Bucket": "of-kim", "Key": "k"})
    assert status(url) == 200
    token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    name, _, password = b64decode(token).decode().partition(":")

    def login() -> int:
        return status(f"{corral.url}/v2/", basic=b64encode(f"{name}:{password}".encode()).decode())

    assert login() == 200
    iam.update_access_key(UserName="kim", AccessKeyId=key["AccessKeyId"], Status="Inactive")
    assert refused(s3.list_objects_v2, Bucket="of-kim")[0] == "InvalidAccessKeyId"
    assert refused(ecr.describe_repositories)[0] == "UnrecognizedClientException"
    assert refused(client_of(corral, key, "iam").get_user)[0] == "InvalidClientTokenId"
    assert login() == 403 and status(url) == 403
    iam.update_access_key(UserName="kim", AccessKeyId=key["AccessKeyId"], Status="Active")
    assert login() == 200 and s3.get_object(Bucket="of-kim", Key="k")["Body"].read() == b"x"
    iam.delete_access_key(UserName="kim", AccessKeyId=key["AccessKeyId"])
    assert login() == 403 and status(url) == 403
    assert refused(client_of(corral, key, "iam").get_user)[0] == "InvalidClientTokenId"
    missing = "NoSuchEntity", f"The Access Key with id {key['AccessKeyId']} cannot be found."
    assert refused(iam.delete_access_key, UserName="kim", AccessKeyId=key["AccessKeyId"]) == missing
    corral.client("s3").delete_object(Bucket="of-kim", Key="k")
    corral.client("s3").delete_bucket(Bucket="of-kim")


def test_the_last_use_of_a_key(corral, iam, user):
    user("uma")
    iam.put_user_policy(UserName="uma", PolicyName="own", PolicyDocument=allow("iam:Get*"))
    key = iam.create_access_key(UserName="uma")["AccessKey"]
    unused = iam.get_access_key_last_used(AccessKeyId=key["AccessKeyId"])
    assert (unused["UserName"], unused["AccessKeyLastUsed"]) == ("uma", {"ServiceName": "N/A", "Region": "N/A"})
    assert client_of(corral, key, "iam").get_user()["User"]["UserName"] == "uma"
    used = iam.get_access_key_last_used(AccessKeyId=key["AccessKeyId"])["AccessKeyLastUsed"]
    assert (used["ServiceName"], used["Region"]) == ("iam", "us-east-1") and used["LastUsedDate"] >= key["CreateDate"]
    refused(client_of(corral, key, "sqs").list_queues)
    assert iam.get_access_key_last_used(AccessKeyId=key["AccessKeyId"])["AccessKeyLastUsed"]["ServiceName"] == "sqs"
    assert refused(iam.get_access_key_last_used, AccessKeyId="AKIA0000000000000000")[0] == "AccessDenied"
    assert refused(iam.update_access_key, UserName="uma", AccessKeyId=key["AccessKeyId"], Status="Expired")[0] == "InvalidInput"
    arn = iam.get_user(UserName="uma")["User"]["Arn"]
    job = iam.generate_service_last_accessed_details(Arn=arn)["JobId"]
    report = iam.get_service_last_accessed_details(JobId=job)
    assert (report["JobStatus"], report["JobType"]) == ("COMPLETED", "SERVICE_LEVEL")
    [service] = report["ServicesLastAccessed"]  # the policies of the user allow IAM only
    assert (service["ServiceNamespace"], service["LastAuthenticatedEntity"], service["TotalAuthenticatedEntities"]) == (
        "iam",
        arn,
        1,
    )
    [entity] = iam.get_service_last_accessed_details_with_entities(JobId=job, ServiceNamespace="iam")["EntityDetailsList"]
    assert (entity["EntityInfo"]["Type"], entity["EntityInfo"]["Name"]) == ("USER", "uma")
    [entry] = iam.list_policies_granting_service_access(Arn=arn, ServiceNamespaces=["iam"])["PoliciesGrantingServiceAccess"]
    named = {"PolicyName": "own", "PolicyType": "INLINE", "EntityType": "USER", "EntityName": "uma"}
    assert entry == {"ServiceNamespace": "iam", "Policies": [named]}


def test_last_uses_survive_a_restart(own_corral):
    corral = own_corral().start()
    iam = corral.client("iam")
    iam.create_user(UserName="ann")
    key = iam.create_access_key(UserName="ann")["AccessKey"]
    refused(client_of(corral, key, "sqs").list_queues)
    iam.create_role(RoleName="worker", AssumeRolePolicyDocument=json.dumps(TRUST))
    session = corral.client("sts").assume_role(RoleArn="arn:aws:iam::123456789012:role/worker", RoleSessionName="me")["Credentials"]
    of_role = client_of(corral, session, "sts", aws_session_token=session["SessionToken"])
    of_role.get_caller_identity()
    assert iam.get_role(RoleName="worker")["Role"]["RoleLastUsed"]["Region"] == "us-east-1"
    [role] = iam.get_account_authorization_details(Filter=["Role"])["RoleDetailList"]
    assert role["RoleLastUsed"]["LastUsedDate"]
    before = iam.get_access_key_last_used(AccessKeyId=key["AccessKeyId"])["AccessKeyLastUsed"]
    corral.stop()
    corral.start()
    iam = corral.client("iam")
    assert iam.get_access_key_last_used(AccessKeyId=key["AccessKeyId"])["AccessKeyLastUsed"] == before
    assert iam.get_role(RoleName="worker")["Role"]["RoleLastUsed"]["Region"] == "us-east-1"
    assert refused(client_of(corral, key, "sqs").list_queues)[0] == "AccessDenied"  # the key still is the user's


def test_groups_give_their_policies_to_their_users(corral, iam, user):
    iam.create_group(GroupName="readers", Path="/lab/")
    user("bob", "readers")
    user("eve")
    iam.add_user_to_group(GroupName="readers", UserName="bob")
    iam.remove_user_from_group(GroupName="readers", UserName="eve")  # as on AWS, this is no error
    key = iam.create_access_key(UserName="bob")["AccessKey"]
    sqs = client_of(corral, key, "sqs")
    assert refused(sqs.list_queues)[0] == "AccessDenied"
    iam.put_group_policy(GroupName="readers", PolicyName="list", PolicyDocument=allow("sqs:ListQueues"))
    sqs.list_queues()
    found = iam.get_group(GroupName="readers")
    assert found["Group"]["Arn"] == "arn:aws:iam::123456789012:group/lab/readers" and found["Group"]["GroupId"].startswith("AGPA")
    assert [each["UserName"] for each in found["Users"]] == ["bob"]
    assert [each["GroupName"] for each in iam.list_groups_for_user(UserName="bob")["Groups"]] == ["readers"]
    conflict = "DeleteConflict", "Cannot delete entity, must remove users from group first."
    assert refused(iam.delete_group, GroupName="readers") == conflict and refused(iam.delete_user, UserName="bob") == conflict
    iam.update_group(GroupName="readers", NewGroupName="watchers", NewPath="/")
    sqs.list_queues()
    assert iam.get_group(GroupName="watchers")["Group"]["Arn"] == "arn:aws:iam::123456789012:group/watchers"
    assert refused(iam.get_group, GroupName="readers") == ("NoSuchEntity", "The group with name readers cannot be found.")
    assert [each["GroupName"] for each in iam.list_groups_for_user(UserName="bob")["Groups"]] == ["watchers"]
    iam.create_group(GroupName="other")
    assert refused(iam.update_group, GroupName="other", NewGroupName="watchers")[0] == "EntityAlreadyExists"
    iam.delete_group(GroupName="other")
    iam.remove_user_from_group(GroupName="watchers", UserName="bob")
    assert refused(sqs.list_queues)[0] == "AccessDenied"
    conflict = "DeleteConflict", "Cannot delete entity, must delete policies first."
    assert refused(iam.delete_group, GroupName="watchers") == conflict
    iam.delete_group_policy(GroupName="watchers", PolicyName="list")
    iam.delete_group(GroupName="watchers")


def test_policies_of_users_and_groups(iam, user):
    user("zoe")
    iam.create_group(GroupName="staff")
    policy = iam.create_policy(PolicyName="shared", PolicyDocument=allow("s3:ListBucket"))["Policy"]["Arn"]
    iam.attach_user_policy(UserName="zoe", PolicyArn=policy)
    iam.attach_group_policy(GroupName="staff", PolicyArn=policy)
    iam.put_user_permissions_boundary(UserName="zoe", PermissionsBoundary=policy)
    shown = iam.get_user(UserName="zoe")["User"]["PermissionsBoundary"]
    assert shown == {"PermissionsBoundaryType": "Policy", "PermissionsBoundaryArn": policy}
    described = iam.get_policy(PolicyArn=policy)["Policy"]
    assert (described["AttachmentCount"], described["PermissionsBoundaryUsageCount"]) == (2, 1)
    found = iam.list_entities_for_policy(PolicyArn=policy)
    assert [each["UserName"] for each in found["PolicyUsers"]] == ["zoe"]
    assert [each["GroupName"] for each in found["PolicyGroups"]] == ["staff"] and found["PolicyRoles"] == []
    only = iam.list_entities_for_policy(PolicyArn=policy, EntityFilter="Group")
    assert only["PolicyUsers"] == [] and len(only["PolicyGroups"]) == 1
    first = iam.list_entities_for_policy(PolicyArn=policy, MaxItems=1)
    second = iam.list_entities_for_policy(PolicyArn=policy, MaxItems=1, Marker=first["Marker"])
    assert (len(first["PolicyGroups"]), len(second["PolicyUsers"])) == (1, 1)
    assert refused(iam.delete_policy, PolicyArn=policy)[0] == "DeleteConflict"
    attached = [{"PolicyName": "shared", "PolicyArn": policy}]
    assert iam.list_attached_user_policies(UserName="zoe")["AttachedPolicies"] == attached
    assert iam.list_attached_group_policies(GroupName="staff")["AttachedPolicies"] == attached
    conflict = "DeleteConflict", "Cannot delete entity, must detach all policies first."
    assert refused(iam.delete_user, UserName="zoe") == conflict and refused(iam.delete_group, GroupName="staff") == conflict
    text = allow("s3:GetObject")
    iam.put_user_policy(UserName="zoe", PolicyName="p", PolicyDocument=text)
    assert json.dumps(iam.get_user_policy(UserName="zoe", PolicyName="p")["PolicyDocument"]) == text
    assert refused(iam.get_user_policy, UserName="zoe", PolicyName="q")[1] == "The user policy with name q cannot be found."
    too_large = allow(*(f"s3:Get{number:04d}" for number in range(200)))
    limit = "LimitExceeded", "Maximum policy size of 2048 bytes exceeded for user zoe"
    assert refused(iam.put_user_policy, UserName="zoe", PolicyName="large", PolicyDocument=too_large) == limit
    iam.put_group_policy(GroupName="staff", PolicyName="large", PolicyDocument=too_large)
    iam.delete_group_policy(GroupName="staff", PolicyName="large")
    for number in range(9):
        iam.attach_group_policy(GroupName="staff", PolicyArn=f"arn:aws:iam::aws:policy/Policy{number}")
    limit = "LimitExceeded", "Cannot exceed quota for PoliciesPerGroup: 10"
    assert refused(iam.attach_group_policy, GroupName="staff", PolicyArn="arn:aws:iam::aws:policy/ReadOnlyAccess") == limit
    for number in range(9):
        iam.detach_group_policy(GroupName="staff", PolicyArn=f"arn:aws:iam::aws:policy/Policy{number}")
    iam.detach_group_policy(GroupName="staff", PolicyArn=policy)
    iam.delete_group(GroupName="staff")
    iam.delete_user_permissions_boundary(UserName="zoe")
    iam.detach_user_policy(UserName="zoe", PolicyArn=policy)
    iam.delete_policy(PolicyArn=policy)


def test_limits_of_users(iam, user):
    user("max")
    iam.create_access_key(UserName="max")
    assert refused(iam.delete_user, UserName="max") == ("DeleteConflict", "Cannot delete entity, must delete access keys first.")
    names = [f"group-{number}" for number in range(11)]
    for name in names:
        iam.create_group(GroupName=name)
    for name in names[:10]:
        iam.add_user_to_group(GroupName=name, UserName="max")
    limit = "LimitExceeded", "Cannot exceed quota for GroupsPerUser: 10"
    assert refused(iam.add_user_to_group, GroupName=names[10], UserName="max") == limit
    for name in names:
        iam.remove_user_from_group(GroupName=name, UserName="max")
        iam.delete_group(GroupName=name)
    iam.update_user(UserName="max", NewPath="/lab/")
    assert iam.get_user(UserName="max")["User"]["Arn"] == "arn:aws:iam::123456789012:user/lab/max"
    assert [each["UserName"] for each in iam.list_users(PathPrefix="/lab/")["Users"]] == ["max"]
    assert "cannot rename the user max" in refused(iam.update_user, UserName="max", NewUserName="moritz")[1]
    iam.tag_user(UserName="max", Tags=[{"Key": "a", "Value": "1"}])
    iam.untag_user(UserName="max", TagKeys=["A"])
    assert iam.list_user_tags(UserName="max")["Tags"] == []
    assert refused(iam.create_user, UserName="a b")[0] == "ValidationError"
    assert refused(iam.create_access_key)[0] == "ValidationError"  # the root user has no name


def test_a_user_acts_for_itself_without_its_name(corral, iam, user):
    user("sam", Path="/lab/")
    own = {"Effect": "Allow", "Action": "iam:*AccessKey*", "Resource": "arn:aws:iam::*:user/lab/${aws:username}"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [own]})
    iam.put_user_policy(UserName="sam", PolicyName="own", PolicyDocument=document)
    mine = client_of(corral, iam.create_access_key(UserName="sam")["AccessKey"], "iam")
    made = mine.create_access_key()["AccessKey"]
    assert made["UserName"] == "sam" and len(mine.list_access_keys()["AccessKeyMetadata"]) == 2
    mine.update_access_key(AccessKeyId=made["AccessKeyId"], Status="Inactive")
    mine.delete_access_key(AccessKeyId=made["AccessKeyId"])
    user("tom")
    assert refused(mine.create_access_key, UserName="tom")[0] == "AccessDenied"


def test_simulation_of_users_and_groups(iam, user):
    iam.create_group(GroupName="simulated")
    user("una", "simulated", Tags=[{"Key": "team", "Value": "ml"}])
    tagged = {"StringEquals": {"aws:PrincipalTag/team": "ml", "aws:username": "una"}}
    statement = {"Effect": "Allow", "Action": "sqs:*", "Resource": "arn:aws:sqs:*:*:${aws:username}-*", "Condition": tagged}
    of_group = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_group_policy(GroupName="simulated", PolicyName="queues", PolicyDocument=of_group)
    iam.put_user_policy(UserName="una", PolicyName="buckets", PolicyDocument=allow("s3:*"))
    arn, group = (f"arn:aws:iam::123456789012:{each}" for each in ("user/una", "group/simulated"))
    queue = "arn:aws:sqs:us-east-1:123456789012:una-1"

    def decisions(source: str) -> dict[str, tuple[str, list[str]]]:
        actions, resources = ["s3:GetObject", "sqs:SendMessage", "ec2:RunInstances"], [queue]
        found = iam.simulate_principal_policy(PolicySourceArn=source, ActionNames=actions, ResourceArns=resources)
        return {
            each["EvalActionName"]: (each["EvalDecision"], [by["SourcePolicyId"] for by in each["MatchedStatements"]])
            for each in found["EvaluationResults"]
        }

    nothing = ("implicitDeny", [])
    assert decisions(arn) == {
        "s3:GetObject": ("allowed", ["user_una_buckets"]),
        "sqs:SendMessage": ("allowed", ["group_simulated_queues"]),
        "ec2:RunInstances": nothing,
    }
    assert decisions(group) == dict.fromkeys(("s3:GetObject", "sqs:SendMessage", "ec2:RunInstances"), nothing)
    keys = iam.get_context_keys_for_principal_policy(PolicySourceArn=arn, PolicyInputList=[])["ContextKeyNames"]
    assert keys == ["aws:PrincipalTag/team", "aws:username"]
    assert iam.get_context_keys_for_custom_policy(PolicyInputList=[of_group])["ContextKeyNames"] == keys
    policy = iam.create_policy(PolicyName="limit", PolicyDocument=allow("ec2:*"))["Policy"]["Arn"]
    iam.put_user_permissions_boundary(UserName="una", PermissionsBoundary=policy)
    assert decisions(arn)["s3:GetObject"][0] == "implicitDeny"
    iam.delete_user_permissions_boundary(UserName="una")
    iam.delete_policy(PolicyArn=policy)
    iam.remove_user_from_group(GroupName="simulated", UserName="una")
    iam.delete_group_policy(GroupName="simulated", PolicyName="queues")
    iam.delete_group(GroupName="simulated")


def test_the_account(iam, user):
    iam.create_account_alias(AccountAlias="lab-one")
    assert refused(iam.create_account_alias, AccountAlias="lab-one")[0] == "EntityAlreadyExists"
    iam.create_account_alias(AccountAlias="lab-two")
    assert iam.list_account_aliases()["AccountAliases"] == ["lab-two"]
    assert refused(iam.delete_account_alias, AccountAlias="lab-one")[0] == "NoSuchEntity"
    iam.delete_account_alias(AccountAlias="lab-two")
    iam.create_group(GroupName="all")
    user("pat", "all", Tags=[{"Key": "a", "Value": "b"}])
    iam.put_user_policy(UserName="pat", PolicyName="p", PolicyDocument=allow("s3:*"))
    iam.attach_user_policy(UserName="pat", PolicyArn="arn:aws:iam::aws:policy/ReadOnlyAccess")
    iam.create_role(RoleName="r", AssumeRolePolicyDocument=json.dumps(TRUST))
    iam.create_instance_profile(InstanceProfileName="r")
    iam.add_role_to_instance_profile(InstanceProfileName="r", RoleName="r")
    policy = iam.create_policy(PolicyName="own", PolicyDocument=allow("sqs:*"))["Policy"]["Arn"]
    summary = iam.get_account_summary()["SummaryMap"]
    assert (summary["Users"], summary["Groups"], summary["Policies"], summary["AccessKeysPerUserQuota"]) == (1, 4, 3, 2)
    details = iam.get_account_authorization_details()
    [pat], groups = details["UserDetailList"], {each["GroupName"]: each for each in details["GroupDetailList"]}
    group = groups["all"]
    assert groups.keys() == {"admins", "all", "users", "viewers"}
    assert pat["GroupList"] == ["all"] and pat["UserPolicyList"] == [
        {"PolicyName": "p", "PolicyDocument": json.loads(allow("s3:*"))}
    ]
    assert [each["PolicyName"] for each in pat["AttachedManagedPolicies"]] == ["ReadOnlyAccess"] and group["GroupName"] == "all"
    role = next(each for each in details["RoleDetailList"] if each["RoleName"] == "r")
    assert [each["InstanceProfileName"] for each in role["InstanceProfileList"]] == ["r"]
    assert {each["PolicyName"] for each in details["Policies"]} == {
        "AdministratorAccess",
        "CorralUsers",
        "CorralViewers",
        "ReadOnlyAccess",
        "own",
    }
    pages = iam.get_paginator("get_account_authorization_details").paginate(
        Filter=["User", "Group"], PaginationConfig={"PageSize": 1}
    )
    assert [(len(page["UserDetailList"]), len(page["GroupDetailList"])) for page in pages] == [(1, 0), *[(0, 1)] * 4]
    iam.remove_role_from_instance_profile(InstanceProfileName="r", RoleName="r")
    iam.delete_instance_profile(InstanceProfileName="r")
    iam.delete_role(RoleName="r")
    iam.delete_policy(PolicyArn=policy)
    iam.remove_user_from_group(GroupName="all", UserName="pat")
    iam.delete_group(GroupName="all")


@pytest.mark.parametrize(
    ("operation", "given", "reason"),
    [
        ("list_saml_providers", {}, "has no identity providers"),
        ("list_open_id_connect_providers", {}, "has no identity providers"),
        ("list_mfa_devices", {}, "has no multi-factor authentication"),
        ("list_server_certificates", {}, "and no other credentials"),
        ("list_ssh_public_keys", {}, "and no other credentials"),
        ("get_account_password_policy", {}, "so its users have no passwords"),
        ("get_login_profile", {"UserName": "ann"}, "so its users have no passwords"),
        ("list_organizations_features", {}, "belongs to no organization"),
        ("generate_credential_report", {}, "have the same facts"),
    ],
)
def test_what_is_not_served_has_a_reason(iam, operation, given, reason):
    code, message = refused(getattr(iam, operation), **given)
    assert code == "InvalidAction" and message.startswith("Corral does not serve iam:") and reason in message


def test_reports_name_the_users_and_roles_of_a_policy(corral, iam, user):
    policy = iam.create_policy(PolicyName="used", PolicyDocument=allow("sqs:*", "sns:List*"))["Policy"]["Arn"]
    iam.create_group(GroupName="using")
    iam.attach_group_policy(GroupName="using", PolicyArn=policy)
    for name in ("use-a", "use-b", "use-c"):
        user(name, "using")
    for name in ("use-a", "use-b"):
        client_of(corral, iam.create_access_key(UserName=name)["AccessKey"], "sqs").list_queues()
    job = {"JobId": iam.generate_service_last_accessed_details(Arn=policy)["JobId"]}
    services = {each["ServiceNamespace"]: each for each in iam.get_service_last_accessed_details(**job)["ServicesLastAccessed"]}
    assert {name: each["TotalAuthenticatedEntities"] for name, each in services.items()} == {"sns": 0, "sqs": 2}
    assert "LastAuthenticated" not in services["sns"] and services["sqs"]["LastAuthenticatedRegion"] == "us-east-1"
    page = iam.get_service_last_accessed_details(**job, MaxItems=1)
    assert page["IsTruncated"] and page["ServicesLastAccessed"] == [services["sns"]]
    first = iam.get_service_last_accessed_details_with_entities(**job, ServiceNamespace="sqs", MaxItems=1)
    [newest] = first["EntityDetailsList"]
    assert newest["EntityInfo"]["Arn"] == services["sqs"]["LastAuthenticatedEntity"] and first["IsTruncated"]
    of_group = {"JobId": iam.generate_service_last_accessed_details(Arn="arn:aws:iam::123456789012:group/using")["JobId"]}
    assert iam.get_service_last_accessed_details(**of_group)["ServicesLastAccessed"] == list(services.values())
    iam.detach_group_policy(GroupName="using", PolicyArn=policy)
    iam.delete_policy(PolicyArn=policy)
    for name in ("use-a", "use-b", "use-c"):
        iam.remove_user_from_group(GroupName="using", UserName=name)
    iam.delete_group(GroupName="using")


def test_sessions_of_a_user_end_with_the_user(corral, iam):
    iam.create_user(UserName="tim")
    iam.put_user_policy(UserName="tim", PolicyName="all", PolicyDocument=allow("sts:*", "sqs:ListQueues"))
    key = iam.create_access_key(UserName="tim")["AccessKey"]
    session = client_of(corral, key, "sts").get_session_token()["Credentials"]
    sqs = client_of(corral, session, "sqs", aws_session_token=session["SessionToken"])
    iam.delete_access_key(UserName="tim", AccessKeyId=key["AccessKeyId"])
    sqs.list_queues()  # as on AWS, a session does not end with the key
    iam.delete_user_policy(UserName="tim", PolicyName="all")
    assert refused(sqs.list_queues)[0] == "AccessDenied"
    iam.delete_user(UserName="tim")
    iam.create_user(UserName="tim")  # another user
    iam.put_user_policy(UserName="tim", PolicyName="all", PolicyDocument=allow("sqs:ListQueues"))
    assert refused(sqs.list_queues)[0] in ("ExpiredToken", "ExpiredTokenException")
    iam.delete_user_policy(UserName="tim", PolicyName="all")
    iam.delete_user(UserName="tim")
