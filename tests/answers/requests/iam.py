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
TAGS = [{"Key": "a", "Value": "b"}]


def requests(calls: Calls) -> None:
    arn = f"arn:aws:iam::{ACCOUNT}:policy/answers"
    role, policy, profile = {"RoleName": "answers"}, {"PolicyArn": arn}, {"InstanceProfileName": "answers"}
    given = {"PolicyName": "answers", "PolicyDocument": POLICY, "Description": "d", "Tags": TAGS}
    calls.twice("CreatePolicy", "EntityAlreadyExistsException", **given)
    given = {**role, "AssumeRolePolicyDocument": TRUST, "Description": "d", "Tags": TAGS, "PermissionsBoundary": arn}
    calls.twice("CreateRole", "EntityAlreadyExistsException", **given)
    calls.twice("CreateUser", "EntityAlreadyExistsException", UserName="answers", Tags=TAGS, PermissionsBoundary=arn)
    calls("GetUser", UserName="answers")
    calls.twice("CreateAccessKey", OTHER, UserName="answers")
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


def refusals(calls: Calls) -> None:
    none = {
        "PolicyArn": f"arn:aws:iam::{ACCOUNT}:policy/none",
        "RoleName": "none",
        "UserName": "none",
        "InstanceProfileName": "none",
        "VersionId": "v1",
    }
    documents = {"PolicyDocument": POLICY, "PermissionsBoundary": f"arn:aws:iam::{ACCOUNT}:policy/answers"}
    calls.all_refused(
        "NoSuchEntityException", "*", "UpdateAssume* CreateRole CreatePolicy* CreateUser CreateSer*", **none, **documents
    )
    calls.refused("CreateUser", "NoSuchEntityException", UserName="bounded", PermissionsBoundary=none["PolicyArn"])
    calls.refused("CreatePolicyVersion", "NoSuchEntityException", PolicyArn=none["PolicyArn"], PolicyDocument=POLICY)
    calls.refused("UpdateAssumeRolePolicy", "NoSuchEntityException", RoleName="none", PolicyDocument=TRUST)
    source = f"arn:aws:iam::{ACCOUNT}:role/none"
    calls.refused("SimulatePrincipalPolicy", "NoSuchEntityException", PolicySourceArn=source, ActionNames=["s3:GetObject"])
    wrong = {"PolicyDocument": "{}", "AssumeRolePolicyDocument": "{}"}
    calls.all_refused("MalformedPolicyDocumentException", **wrong, RoleName="answers", PolicyArn=documents["PermissionsBoundary"])
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
