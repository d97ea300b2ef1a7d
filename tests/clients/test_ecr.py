"""ECR through boto3 and the aws command: repositories, their settings and tags, and passwords for the registry."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from corral.model.principal import root_user
from corral.services.ecr.registry_passwords import RegistryAccess, access_of
from harness import REGION, Corral

ACCOUNT, OTHER_ACCOUNT = "123456789012", "210987654321"


@pytest.fixture(scope="module")
def ecr(corral: Corral) -> Any:
    return corral.client("ecr", parameter_validation=False)  # otherwise botocore itself refuses some invalid requests


def refused(code: str, words: str = "") -> Any:
    return pytest.raises(ClientError, match=rf"\({code}\).*{words}")


def test_a_repository_is_created_described_and_deleted(corral: Corral, ecr: Any, aws: Callable[..., Any]):
    made = aws("ecr", "create-repository", "--repository-name", "team/train.gpu-1__x", "--tags", "Key=cost,Value=low")["repository"]
    port = corral.url.rpartition(":")[2]
    assert made["repositoryArn"] == f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/team/train.gpu-1__x"
    assert made["registryId"] == ACCOUNT
    assert made["repositoryUri"] == f"localhost:{port}/team/train.gpu-1__x"
    assert made["imageTagMutability"] == "MUTABLE" and made["imageScanningConfiguration"] == {"scanOnPush": False}
    assert made["encryptionConfiguration"] == {"encryptionType": "AES256"}
    assert abs(ecr.describe_repositories()["repositories"][0]["createdAt"].timestamp() - time.time()) < 60
    with refused("RepositoryAlreadyExistsException", "team/train.gpu-1__x.*already exists"):
        ecr.create_repository(repositoryName="team/train.gpu-1__x")
    assert ecr.list_tags_for_resource(resourceArn=made["repositoryArn"])["tags"] == [{"Key": "cost", "Value": "low"}]
    [found] = ecr.describe_repositories(repositoryNames=["team/train.gpu-1__x"], registryId=ACCOUNT)["repositories"]
    assert ecr.delete_repository(repositoryName="team/train.gpu-1__x")["repository"] == found
    with refused("RepositoryNotFoundException", f"'team/train.gpu-1__x' does not exist in the registry with id '{ACCOUNT}'"):
        ecr.describe_repositories(repositoryNames=["team/train.gpu-1__x"])


def test_regions_have_repositories_of_their_own(client: Callable[..., Any]):
    for region in ("eu-central-1", "us-west-2"):
        client("ecr", region).create_repository(repositoryName=f"in-{region}")
        names = [each["repositoryName"] for each in client("ecr", region).describe_repositories()["repositories"]]
        assert names == [f"in-{region}"]


@pytest.mark.parametrize("name", ["a", "Capital", "a//b", "/a", "a/", "a..b", "a___b", "-a", "a b", "a" * 257, "ünder"])
def test_invalid_names(ecr: Any, name: str):
    with refused("InvalidParameterException", "repositoryName"):
        ecr.create_repository(repositoryName=name)


def test_requests_for_missing_repositories_and_registries(ecr: Any):
    ecr.create_repository(repositoryName="mine")
    with refused("RepositoryNotFoundException", OTHER_ACCOUNT):
        ecr.describe_repositories(registryId=OTHER_ACCOUNT, repositoryNames=["mine"])
    with refused("RepositoryNotFoundException", OTHER_ACCOUNT):
        ecr.delete_repository(registryId=OTHER_ACCOUNT, repositoryName="mine")
    with refused("RepositoryNotFoundException", OTHER_ACCOUNT):
        ecr.describe_repositories(registryId=OTHER_ACCOUNT)
    with refused("InvalidParameterException", "registryId"):
        ecr.create_repository(registryId=OTHER_ACCOUNT, repositoryName="theirs")
    with refused("InvalidParameterException", "maxResults"):
        ecr.describe_repositories(repositoryNames=["mine"], maxResults=1)
    with refused("InvalidParameterException", "nextToken"):
        ecr.describe_repositories(nextToken="?")
    with refused("InvalidParameterException", "maxResults"):
        ecr.describe_repositories(maxResults=1001)


def test_tags_of_repositories(ecr: Any):
    arn = ecr.create_repository(repositoryName="tagged")["repository"]["repositoryArn"]
    ecr.tag_resource(resourceArn=arn, tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": ""}])
    ecr.tag_resource(resourceArn=arn, tags=[{"Key": "a", "Value": "2"}])
    ecr.untag_resource(resourceArn=arn, tagKeys=["b", "not there"])
    assert ecr.list_tags_for_resource(resourceArn=arn)["tags"] == [{"Key": "a", "Value": "2"}]
    with refused("InvalidTagParameterException", "reserved"):
        ecr.tag_resource(resourceArn=arn, tags=[{"Key": "aws:mine", "Value": ""}])
    with refused("TooManyTagsException"):
        ecr.tag_resource(resourceArn=arn, tags=[{"Key": str(at), "Value": ""} for at in range(50)])
    with refused("InvalidParameterException", "resourceArn"):
        ecr.list_tags_for_resource(resourceArn="arn:aws:s3:::bucket")
    with refused("RepositoryNotFoundException"):
        ecr.list_tags_for_resource(resourceArn=arn + "-not")


def test_tag_mutability(ecr: Any):
    filters = [{"filterType": "WILDCARD", "filter": "dev-*"}]
    made = ecr.create_repository(
        repositoryName="still", imageTagMutability="IMMUTABLE_WITH_EXCLUSION", imageTagMutabilityExclusionFilters=filters
    )["repository"]
    assert made["imageTagMutabilityExclusionFilters"] == filters
    said = ecr.put_image_tag_mutability(repositoryName="still", imageTagMutability="IMMUTABLE")
    assert said["imageTagMutability"] == "IMMUTABLE" and said["repositoryName"] == "still"
    [found] = ecr.describe_repositories(repositoryNames=["still"])["repositories"]
    assert found["imageTagMutability"] == "IMMUTABLE" and "imageTagMutabilityExclusionFilters" not in found
    for wrong in (
        {"imageTagMutability": "SOMETIMES"},
        {"imageTagMutability": "IMMUTABLE_WITH_EXCLUSION"},
        {"imageTagMutability": "IMMUTABLE", "imageTagMutabilityExclusionFilters": filters},
        {"imageTagMutability": "MUTABLE_WITH_EXCLUSION", "imageTagMutabilityExclusionFilters": filters * 6},
        {"imageTagMutability": "MUTABLE_WITH_EXCLUSION", "imageTagMutabilityExclusionFilters": [filters[0] | {"filter": "*a*b*"}]},
        {"imageTagMutability": "MUTABLE_WITH_EXCLUSION", "imageTagMutabilityExclusionFilters": [filters[0] | {"filter": "a b"}]},
    ):
        with refused("InvalidParameterException"):
            ecr.put_image_tag_mutability(repositoryName="still", **wrong)


def meaning(corral: Corral, password: str) -> RegistryAccess:
    """The content of a password, as the registry reads it."""
    key = bytes.fromhex(json.loads((corral.data / "sessions.json").read_text())["key"])
    found = access_of(key, password)
    assert found is not None
    return found


def test_a_password_for_the_registry(corral: Corral, ecr: Any):
    [data] = ecr.get_authorization_token()["authorizationData"]
    assert data["proxyEndpoint"] == f"http://localhost:{corral.url.rpartition(':')[2]}"
    assert 12 * 3600 - 60 < data["expiresAt"].timestamp() - time.time() <= 12 * 3600
    user, _, password = b64decode(data["authorizationToken"]).decode().partition(":")
    assert user == "AWS"
    assert meaning(corral, password)[:4] == (root_user(ACCOUNT), REGION, data["expiresAt"].timestamp(), None)
    aws = Path(sys.executable).with_name("aws")
    said = subprocess.run(
        [sys.executable, aws, "ecr", "get-login-password"], env=corral.environment, capture_output=True, text=True
    )
    assert said.returncode == 0 and meaning(corral, said.stdout.strip())[:2] == meaning(corral, password)[:2]
    assert ecr.get_authorization_token(registryIds=[ACCOUNT])["authorizationData"][0].keys() == data.keys()
    with refused("InvalidParameterException", "registryIds"):
        ecr.get_authorization_token(registryIds=[OTHER_ACCOUNT])


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost:7", "localhost:7"),
        ("127.0.0.1:7", "localhost:7"),
        ("[::1]:7", "localhost:7"),
        ("169.254.170.2:7", "localhost:7"),
        ("gpu-box:7", "gpu-box:7"),
        ("gpu-box", "gpu-box:80"),
        ("[fd00::1]:7", "[fd00::1]:7"),
    ],
)
def test_the_registry_is_where_the_caller_found_corral(corral: Corral, host: str, address: str):
    ecr = corral.new_client("ecr")
    ecr.meta.events.register("before-sign.ecr", lambda request, **_: request.headers.__setitem__("Host", host))
    assert ecr.get_authorization_token()["authorizationData"][0]["proxyEndpoint"] == f"http://{address}"
    name = "at-" + host.translate(str.maketrans("[]:.", "----")).strip("-")
    assert ecr.create_repository(repositoryName=name)["repository"]["repositoryUri"] == f"{address}/{name}"
