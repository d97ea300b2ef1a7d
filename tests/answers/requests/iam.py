"""Requests of IAM."""

from __future__ import annotations

import json

from answers.calls import ACCOUNT, OTHER, SAME, Calls

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"Service": "ecs.amazonaws.com"}, "Action": "sts:AssumeRole"}],
    }
)
POLICY = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]})
STATEMENT = {"Effect": "Allow", "Action": "s3:*", "Resource": "*", "Condition": {"Bool": {"aws:SecureTransport": "true"}}}
CONDITION = json.dumps({"Version": "2012-10-17", "Statement": [STATEMENT]})
TAGS = [{"Key": "a", "Value": "b"}]


def requests(calls: Calls) -> None:
    arn = f"arn:aws:iam::{ACCOUNT}:policy/answers"
    role, policy, profile = {"RoleName": "answers"}, {"PolicyArn": arn}, {"InstanceProfileName": "answers"}
    given = {"PolicyName": "answers", "PolicyDocument": POLICY, "Description": "d", "Tags": TAGS}
    calls.twice("CreatePolicy", "EntityAlreadyExistsException", **given)
    given = {**role, "AssumeRolePolicyDocument": TRUST, "Description": "d", "Tags": TAGS, "PermissionsBoundary": arn}
    calls.twice("CreateRole", "EntityAlreadyExistsException", **given)
    calls.twice("CreateInstanceProfile", "EntityAlreadyExistsException", **profile, Tags=TAGS)
    calls.twice("AddRoleToInstanceProfile", "LimitExceededException", **profile, **role)
    for kind, named in (("Role", role), ("Policy", policy), ("InstanceProfile", profile)):
        calls.twice(f"Tag{kind}", SAME, **named, Tags=[{"Key": "c", "Value": "d"}])
        calls(f"List{kind}Tags", **named)
        calls.twice(f"Untag{kind}", SAME, **named, TagKeys=["c"])
        calls(f"Get{kind}", **named)
    calls("ListRoles")
    calls("ListPolicies", Scope="Local")
    calls("ListInstanceProfiles")
    calls("ListInstanceProfilesForRole", **role)
    calls.twice("UpdateRole", SAME, **role, Description="e")
    calls.twice("UpdateRoleDescription", SAME, **role, Description="e")
    calls.twice("UpdateAssumeRolePolicy", SAME, **role, PolicyDocument=TRUST)
    calls.twice("PutRolePermissionsBoundary", SAME, **role, PermissionsBoundary=arn)
    calls.twice("DeleteRolePermissionsBoundary", "NoSuchEntityException", **role)
    calls.twice("PutRolePolicy", SAME, **role, PolicyName="p", PolicyDocument=POLICY)
    calls("GetRolePolicy", **role, PolicyName="p")
    calls("ListRolePolicies", **role)
    calls.twice("AttachRolePolicy", SAME, **role, **policy)
    calls("ListAttachedRolePolicies", **role)
    calls("ListEntitiesForPolicy", **policy)
    calls("PutRolePermissionsBoundary", **role, PermissionsBoundary=arn)
    calls.twice("CreatePolicyVersion", OTHER, **policy, PolicyDocument=POLICY)
    calls.twice("SetDefaultPolicyVersion", SAME, **policy, VersionId="v2")
    calls("GetPolicyVersion", **policy, VersionId="v2")
    calls("ListPolicyVersions", **policy)
    source = {"PolicySourceArn": f"arn:aws:iam::{ACCOUNT}:role/answers", "ActionNames": ["s3:GetObject", "s3:PutObject"]}
    calls("SimulatePrincipalPolicy", **source)
    calls("SimulateCustomPolicy", PolicyInputList=[POLICY], ActionNames=["s3:GetObject"])
    simulated = {"PolicyInputList": [POLICY], "PermissionsBoundaryPolicyInputList": [POLICY], "ActionNames": ["s3:GetObject"]}
    calls("SimulateCustomPolicy", **simulated, ResourceArns=["arn:aws:s3:::a"])
    calls.twice("CreateServiceLinkedRole", "InvalidInputException", AWSServiceName="ecs.amazonaws.com", Description="d")
    refusals(calls)
    user_requests(calls)
    calls("CreateServiceLinkedRole", AWSServiceName="batch.amazonaws.com")
    gone = lambda: "AWSServiceRoleForBatch" not in [role["RoleName"] for role in calls.of("iam").list_roles()["Roles"]]  # noqa: E731
    deletion = calls.twice("DeleteServiceLinkedRole", "NoSuchEntityException", gone, RoleName="AWSServiceRoleForBatch")
    wrong = deletion["DeletionTaskId"][:-4] + "0000"
    calls.refused("GetServiceLinkedRoleDeletionStatus", "NoSuchEntityException", DeletionTaskId=wrong)
    calls("GetServiceLinkedRoleDeletionStatus", DeletionTaskId=deletion["DeletionTaskId"])
    calls.refused("DeletePolicy", "DeleteConflictException", **policy)
    calls.refused("DeleteRole", "DeleteConflictException", **role)
    calls.refused("DeleteInstanceProfile", "DeleteConflictException", **profile)
    calls.refused("DeletePolicyVersion", "DeleteConflictException", **policy, VersionId="v2")
    calls.twice("DeletePolicyVersion", "NoSuchEntityException", **policy, VersionId="v1")
    calls.twice("DetachRolePolicy", "NoSuchEntityException", **role, **policy)
    calls.twice("DeleteRolePolicy", "NoSuchEntityException", **role, PolicyName="p")
    calls.twice("RemoveRoleFromInstanceProfile", "NoSuchEntityException", **profile, **role)
    calls.twice("DeleteInstanceProfile", "NoSuchEntityException", **profile)
    calls.twice("DeleteRole", "NoSuchEntityException", **role)
    calls("DeletePolicyVersion", **policy, VersionId="v3")
    calls.twice("DeletePolicy", "NoSuchEntityException", **policy)


def user_requests(calls: Calls) -> None:
    """Users, groups, access keys and the account."""
    user, group = {"UserName": "member"}, {"GroupName": "answers"}
    both, policy = {**user, **group}, {"PolicyArn": f"arn:aws:iam::{ACCOUNT}:policy/members"}
    calls("CreatePolicy", PolicyName="members", PolicyDocument=POLICY)
    calls.twice("CreateGroup", "EntityAlreadyExistsException", **group)
    calls.twice("CreateUser", "EntityAlreadyExistsException", **user, Tags=TAGS, PermissionsBoundary=policy["PolicyArn"])
    calls("GetUser", **user)
    key = calls.twice("CreateAccessKey", OTHER, **user)["AccessKey"]["AccessKeyId"]
    calls.refused("CreateAccessKey", "LimitExceededException", **user)
    calls.twice("UpdateAccessKey", SAME, **user, AccessKeyId=key, Status="Inactive")
    calls.refused("UpdateAccessKey", "InvalidInputException", **user, AccessKeyId=key, Status="Expired")
    calls("ListAccessKeys", **user)
    calls("GetAccessKeyLastUsed", AccessKeyId=key)
    calls.twice("TagUser", SAME, **user, Tags=[{"Key": "c", "Value": "d"}])
    calls("ListUserTags", **user)
    calls.twice("UntagUser", SAME, **user, TagKeys=["c"])
    calls.twice("UpdateUser", SAME, **user, NewPath="/p/")
    calls.twice("UpdateGroup", SAME, **group, NewPath="/p/")
    calls.twice("AddUserToGroup", SAME, **both)
    calls("GetGroup", **group)
    calls("ListGroupsForUser", **user)
    calls("ListUsers", PathPrefix="/p/")
    calls("ListGroups")
    calls.twice("PutUserPermissionsBoundary", SAME, **user, PermissionsBoundary=policy["PolicyArn"])
    for kind, named in (("User", user), ("Group", group)):
        calls.twice(f"Put{kind}Policy", SAME, **named, PolicyName="p", PolicyDocument=POLICY)
        calls(f"Get{kind}Policy", **named, PolicyName="p")
        calls(f"List{kind}Policies", **named)
        calls.twice(f"Attach{kind}Policy", SAME, **named, **policy)
        calls(f"ListAttached{kind}Policies", **named)
        linked = "arn:aws:iam::aws:policy/aws-service-role/AmazonECSServiceRolePolicy"
        calls.refused(f"Attach{kind}Policy", "PolicyNotAttachableException", **named, PolicyArn=linked)
        calls.refused(f"Put{kind}Policy", "MalformedPolicyDocumentException", **named, PolicyName="q", PolicyDocument="{}")
    calls("ListEntitiesForPolicy", **policy)
    arn = f"arn:aws:iam::{ACCOUNT}:user/p/member"
    calls("SimulatePrincipalPolicy", PolicySourceArn=arn, ActionNames=["s3:GetObject"])
    calls("GetContextKeysForPrincipalPolicy", PolicySourceArn=arn, PolicyInputList=[CONDITION])
    calls("GetContextKeysForCustomPolicy", PolicyInputList=[CONDITION])
    calls("ListPoliciesGrantingServiceAccess", Arn=arn, ServiceNamespaces=["s3"])
    job = {"JobId": calls.twice("GenerateServiceLastAccessedDetails", OTHER, Arn=arn)["JobId"]}
    calls("GetServiceLastAccessedDetails", **job)
    calls("GetServiceLastAccessedDetailsWithEntities", **job, ServiceNamespace="s3")
    calls.twice("CreateAccountAlias", "EntityAlreadyExistsException", AccountAlias="answers")
    calls("ListAccountAliases")
    calls.twice("DeleteAccountAlias", "NoSuchEntityException", AccountAlias="answers")
    calls("GetAccountSummary")
    calls("GetAccountAuthorizationDetails")
    calls.refused("DeleteUser", "DeleteConflictException", **user)
    calls.refused("DeleteGroup", "DeleteConflictException", **group)
    for kind, named in (("User", user), ("Group", group)):
        calls.twice(f"Detach{kind}Policy", "NoSuchEntityException", **named, **policy)
        calls.twice(f"Delete{kind}Policy", "NoSuchEntityException", **named, PolicyName="p")
    calls.twice("DeleteUserPermissionsBoundary", "NoSuchEntityException", **user)
    calls.twice("DeleteAccessKey", "NoSuchEntityException", **user, AccessKeyId=key)
    for each in calls.of("iam").list_access_keys(**user)["AccessKeyMetadata"]:
        calls.of("iam").delete_access_key(**user, AccessKeyId=each["AccessKeyId"])
    calls.twice("RemoveUserFromGroup", SAME, **both)
    calls("CreateGroup", GroupName="renamed")
    calls.refused("UpdateGroup", "EntityAlreadyExistsException", **group, NewGroupName="renamed")
    calls.twice("DeleteUser", "NoSuchEntityException", **user)
    calls.twice("DeleteGroup", "NoSuchEntityException", **group)
    calls("DeleteGroup", GroupName="renamed")
    calls("DeletePolicy", **policy)


def refusals(calls: Calls) -> None:
    none = {
        "PolicyArn": f"arn:aws:iam::{ACCOUNT}:policy/none",
        "RoleName": "none",
        "UserName": "none",
        "GroupName": "none",
        "JobId": "0" * 36,
        "InstanceProfileName": "none",
        "VersionId": "v1",
    }
    documents = {"PolicyDocument": POLICY, "PermissionsBoundary": f"arn:aws:iam::{ACCOUNT}:policy/answers"}
    calls.all_refused(
        "NoSuchEntityException",
        "*",
        "UpdateAssume* CreateRole CreatePolicy* Create[UGS]*r* CreateGroup",
        **none,
        **documents,
    )
    calls.refused("CreateUser", "NoSuchEntityException", UserName="bounded", PermissionsBoundary=none["PolicyArn"])
    calls.refused("CreatePolicyVersion", "NoSuchEntityException", PolicyArn=none["PolicyArn"], PolicyDocument=POLICY)
    calls.refused("UpdateAssumeRolePolicy", "NoSuchEntityException", RoleName="none", PolicyDocument=TRUST)
    for arn in (f"arn:aws:iam::{ACCOUNT}:user/none", none["PolicyArn"]):
        calls.refused("GenerateServiceLastAccessedDetails", "NoSuchEntityException", Arn=arn)
    granting = {"Arn": f"arn:aws:iam::{ACCOUNT}:group/none", "ServiceNamespaces": ["s3"]}
    calls.refused("ListPoliciesGrantingServiceAccess", "NoSuchEntityException", **granting)
    granting = {"Arn": f"arn:aws:iam::{ACCOUNT}:role/answers", "ServiceNamespaces": ["none"]}
    calls.refused("ListPoliciesGrantingServiceAccess", "InvalidInputException", **granting)
    calls.refused("GenerateServiceLastAccessedDetails", "InvalidInputException", Arn=granting["Arn"], Granularity="ACTION_LEVEL")
    calls.refused("GetContextKeysForCustomPolicy", "InvalidInputException", PolicyInputList=["{}"])
    calls.refused("GetContextKeysForPrincipalPolicy", "InvalidInputException", PolicySourceArn="arn:aws:iam::1:x/none")
    calls.refused("GetContextKeysForPrincipalPolicy", "NoSuchEntityException", PolicySourceArn=f"arn:aws:iam::{ACCOUNT}:user/none")
    source = f"arn:aws:iam::{ACCOUNT}:role/none"
    calls.refused("SimulatePrincipalPolicy", "NoSuchEntityException", PolicySourceArn=source, ActionNames=["s3:GetObject"])
    wrong = {"PolicyDocument": "{}", "AssumeRolePolicyDocument": "{}"}
    calls.all_refused(
        "MalformedPolicyDocumentException", "*", "Put[UG]*", **wrong, RoleName="answers", PolicyArn=documents["PermissionsBoundary"]
    )
    twice = [{"Key": "a", "Value": "b"}, {"Key": "a", "Value": "c"}]
    given = {"InstanceProfileName": "tagged", "AssumeRolePolicyDocument": TRUST, "PolicyDocument": POLICY, "Tags": twice}
    calls.all_refused("InvalidInputException", "CreateRole CreatePolicy CreateInstanceProfile", "", **given)
    named = {"RoleName": "answers", "PolicyArn": documents["PermissionsBoundary"], "InstanceProfileName": "answers", "Tags": twice}
    calls.all_refused("InvalidInputException", "TagRole TagPolicy TagInstanceProfile", "", **named)
    protected = {"RoleName": "AWSServiceRoleForECS", "PolicyArn": named["PolicyArn"], "PolicyDocument": POLICY, "PolicyName": "p"}
    protected |= {"PermissionsBoundary": named["PolicyArn"]}
    calls.all_refused(
        "UnmodifiableEntityException",
        "*",
        "*InstanceProfile UpdateAssume* UpdateRoleDescription UpdateRole DeleteRolePolicy",
        **protected,
    )
    calls.refused("UpdateAssumeRolePolicy", "UnmodifiableEntityException", RoleName="AWSServiceRoleForECS", PolicyDocument=TRUST)
