"""Requests of Systems Manager."""

from __future__ import annotations

import json

from answers.calls import OTHER, SAME, Calls

EXPIRATION = {"Type": "Expiration", "Version": "1.0", "Attributes": {"Timestamp": "2099-01-01T00:00:00.000Z"}}


def requests(calls: Calls) -> None:
    name = "/answers/a"
    calls.twice(
        "PutParameter", "ParameterAlreadyExists", Name=name, Value="1", Type="String", Description="d", AllowedPattern="[0-9]*"
    )
    calls("PutParameter", Name="/answers/secret", Value="1", Type="SecureString", KeyId="alias/a")
    calls("PutParameter", Name="/answers/until", Value="1", Type="String", Tier="Advanced", Policies=json.dumps([EXPIRATION]))
    calls("GetParameterHistory", Name="/answers/secret")
    calls("GetParameterHistory", Name="/answers/until")
    calls("DescribeParameters")
    calls.twice("PutParameter", OTHER, Name=name, Value="1", Type="String", Overwrite=True)
    calls.twice("LabelParameterVersion", SAME, Name=name, ParameterVersion=1, Labels=["l", "aws-not-valid"])
    calls("GetParameter", Name=f"{name}:l")
    calls("GetParameters", Names=[name, "/answers/none"])
    calls("GetParametersByPath", Path="/answers")
    calls("GetParameterHistory", Name=name)
    calls.twice("UnlabelParameterVersion", OTHER, Name=name, ParameterVersion=1, Labels=["l"])
    resource = {"ResourceType": "Parameter", "ResourceId": name}
    calls.twice("AddTagsToResource", SAME, **resource, Tags=[{"Key": "a", "Value": "b"}])
    calls("ListTagsForResource", **resource)
    calls.twice("RemoveTagsFromResource", SAME, **resource, TagKeys=["a"])
    calls.twice("ResumeSession", SAME, SessionId="none")
    refusals(calls, name)
    calls.twice("DeleteParameter", "ParameterNotFound", Name=name)
    calls("PutParameter", Name=name, Value="1", Type="String")
    calls.twice("DeleteParameters", OTHER, Names=[name])


def refusals(calls: Calls, name: str) -> None:
    calls.all_refused("ParameterNotFound", Name="/answers/none")
    calls.all_refused("ParameterVersionNotFound", "*ParameterVersion", "", Name=name, ParameterVersion=99)
    calls.refused("GetParameter", "ParameterVersionNotFound", Name=f"{name}:99")
    calls.all_refused("InvalidResourceId", ResourceType="Parameter", ResourceId="/answers/none")
    calls.all_refused("InvalidResourceType", ResourceType="Document", ResourceId="none")
    calls.all_refused("InvalidNextToken", NextToken="none", Name=name, Path="/answers")
    wrong_option = [{"Key": "Type", "Option": "Nothing", "Values": ["String"]}]
    calls.all_refused("InvalidFilterOption", Path="/", ParameterFilters=wrong_option)
    calls.all_refused("InvalidFilterValue", Path="/", ParameterFilters=[{"Key": "Type", "Option": "Equals"}])
    calls.refused("GetParametersByPath", "InvalidFilterKey", Path="/", ParameterFilters=[{"Key": "Path", "Values": ["/"]}])
    tags = [{"Key": f"k{number}", "Value": ""} for number in range(51)]
    calls.refused("AddTagsToResource", "TooManyTagsError", ResourceType="Parameter", ResourceId=name, Tags=tags)
    put = {"Name": name, "Value": "1", "Type": "String", "Overwrite": True}
    for code, more in {
        "HierarchyTypeMismatchException": {"Type": "SecureString"},
        "HierarchyLevelLimitExceededException": {"Name": "/a" * 16},
        "InvalidAllowedPatternException": {"AllowedPattern": "("},
        "ParameterPatternMismatchException": {"Value": "a", "AllowedPattern": "[0-9]"},
        "IncompatiblePolicyException": {"Tier": "Advanced", "Policies": json.dumps([EXPIRATION] * 2)},
        "PoliciesLimitExceededException": {"Tier": "Advanced", "Policies": json.dumps([EXPIRATION] * 11)},
        "InvalidPolicyTypeException": {"Tier": "Advanced", "Policies": '[{"Type":"None","Version":"1.0","Attributes":{}}]'},
        "InvalidPolicyAttributeException": {
            "Tier": "Advanced",
            "Policies": '[{"Type":"Expiration","Version":"1.0","Attributes":{}}]',
        },
    }.items():
        calls.refused("PutParameter", code, **put | more)
    calls("LabelParameterVersion", Name=name, Labels=[f"l{number}" for number in range(10)])
    calls.refused("LabelParameterVersion", "ParameterVersionLabelLimitExceeded", Name=name, Labels=["l10"])
