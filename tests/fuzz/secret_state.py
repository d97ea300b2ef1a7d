"""Parameters and secrets for fuzzed requests to Systems Manager and Secrets Manager."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[..., Awaitable[Any]]


async def build_parameters(call: Call, example: Callable[..., None], knows: Callable[..., None], mark: str) -> None:
    name = f"/fuzz/{mark}/p"
    for value in ("1", "2", "3"):
        await call("PutParameter", Name=name, Value=value, Type="String", Overwrite=True)
    await call("PutParameter", Name=f"{name}/secret", Value="x", Type="SecureString")
    await call("LabelParameterVersion", Name=name, ParameterVersion=2, Labels=["stable"])
    for operation, params in {
        "GetParameter": {"Name": f"{name}:2"},
        "GetParameters": {"Names": [f"{name}:stable", f"{name}:3", f"{name}/secret"], "WithDecryption": True},
        "GetParameterHistory": {"Name": name, "MaxResults": 1},
        "GetParametersByPath": {
            "Path": f"/fuzz/{mark}",
            "Recursive": True,
            "MaxResults": 1,
            "ParameterFilters": [{"Key": "Type", "Values": ["String"]}],
        },
        "DescribeParameters": {
            "ParameterFilters": [{"Key": "Name", "Option": "BeginsWith", "Values": ["/fuzz"]}],
            "MaxResults": 1,
        },
        "UnlabelParameterVersion": {"Name": name, "ParameterVersion": 2, "Labels": ["stable"]},
    }.items():
        example(operation, params)
    knows(Name=[name, f"{name}:2", f"{name}:stable", f"{name}/secret"], Path=f"/fuzz/{mark}", ResourceId=name)
    knows(ResourceType="Parameter", Key=["Name", "Type", "Path"], Labels="stable", DataType="text")


async def build_secrets(call: Call, example: Callable[..., None], knows: Callable[..., None], mark: str, policy: str) -> None:
    name, tokens = f"fuzz/{mark}", [f"{at:032}" for at in range(3)]
    await call("CreateSecret", Name=name, SecretString='{"a": "b"}', ClientRequestToken=tokens[0])
    await call("PutSecretValue", SecretId=name, SecretString="x", ClientRequestToken=tokens[1])
    await call("CreateSecret", Name=f"{name}/gone", SecretString="x", ClientRequestToken=tokens[2])
    await call("DeleteSecret", SecretId=f"{name}/gone")
    for operation, params in {
        "GetSecretValue": {"SecretId": name, "VersionStage": "AWSPREVIOUS"},
        "BatchGetSecretValue": {"Filters": [{"Key": "name", "Values": ["fuzz/"]}], "MaxResults": 1},
        "ListSecrets": {"Filters": [{"Key": "all", "Values": ["fuzz"]}], "SortBy": "name", "MaxResults": 1},
        "ListSecretVersionIds": {"SecretId": name, "IncludeDeprecated": True, "MaxResults": 1},
        "UpdateSecretVersionStage": {
            "SecretId": name, "VersionStage": "AWSCURRENT", "RemoveFromVersionId": tokens[1], "MoveToVersionId": tokens[0],
        },
        "PutResourcePolicy": {"SecretId": name, "ResourcePolicy": policy},
        "GetRandomPassword": {"PasswordLength": 8, "ExcludeCharacters": "abc", "IncludeSpace": True},
    }.items():  # fmt: skip
        example(operation, params)
    knows(SecretId=[name, f"{name}/gone"], SecretIdList=[name, f"{name}/gone"], Name=name)
    knows(ClientRequestToken=tokens, VersionId=tokens, VersionStage=["AWSCURRENT", "AWSPREVIOUS"])
