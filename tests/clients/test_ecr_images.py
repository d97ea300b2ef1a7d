"""Images of ECR through boto3 and the aws command, and settings that are stored only.

These images are empty indexes or indexes of each other: they need no layers, so no registry.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ClientError

from corral.reconcile.images import ROWS_MAX
from eventually import eventually
from harness import REGION, Corral

ACCOUNT, OTHER_ACCOUNT = "123456789012", "210987654321"
INDEX = "application/vnd.oci.image.index.v1+json"
NOWHERE = f"sha256:{'0' * 64}"
NUMBERS = count()


@pytest.fixture(scope="module")
def ecr(corral: Corral) -> Any:
    return corral.client("ecr", parameter_validation=False)  # otherwise botocore itself refuses some invalid requests


@pytest.fixture
def repository(ecr: Any) -> str:
    name = f"images/{next(NUMBERS)}"
    ecr.create_repository(repositoryName=name)
    return name


def refused(code: str, words: str = "") -> Any:
    return pytest.raises(ClientError, match=rf"\({code}\).*{words}")


def index(*parts: str, **annotations: str) -> str:
    """An index of other images. Different annotations make different indexes of the same images."""
    manifests = [{"mediaType": INDEX, "digest": part, "size": 1} for part in parts]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": annotations})


def digest_of(manifest: str) -> str:
    return f"sha256:{sha256(manifest.encode()).hexdigest()}"


def put(ecr: Any, repository: str, manifest: str, *tags: str) -> str:
    for tag in tags or (None,):
        ecr.put_image(repositoryName=repository, imageManifest=manifest, **({"imageTag": tag} if tag else {}))
    return digest_of(manifest)


def ids(ecr: Any, repository: str, **options: Any) -> list[tuple[str, str | None]]:
    listed = ecr.list_images(repositoryName=repository, **options)["imageIds"]
    return [(each["imageDigest"], each.get("imageTag")) for each in listed]


def test_an_image_is_put_and_described(ecr: Any, repository: str, aws: Callable[..., Any]):
    manifest = index(a="first")
    said = aws("ecr", "put-image", "--repository-name", repository, "--image-tag", "v1", "--image-manifest", manifest)["image"]
    assert said["imageId"] == {"imageDigest": digest_of(manifest), "imageTag": "v1"} and said["imageManifest"] == manifest
    put(ecr, repository, manifest, "latest")
    [found] = ecr.describe_images(repositoryName=repository)["imageDetails"]
    assert found.pop("imagePushedAt").timestamp() > 0
    assert found == {
        "registryId": ACCOUNT, "repositoryName": repository, "imageDigest": digest_of(manifest), "imageTags": ["latest", "v1"],
        "imageSizeInBytes": 0, "imageManifestMediaType": INDEX, "imageStatus": "ACTIVE",
    }  # fmt: skip
    wanted = [{"imageTag": "v1"}, {"imageDigest": digest_of(manifest)}]
    assert len(ecr.describe_images(repositoryName=repository, imageIds=wanted)["imageDetails"]) == 1
    with refused("ImageNotFoundException", "imageDigest:'null', imageTag:'v2'.*does not exist within the repository"):
        ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": "v2"}])
    with refused("InvalidParameterException", "both tag and digest"):
        ecr.describe_images(repositoryName=repository, imageIds=[{}])


def test_invalid_images(ecr: Any, repository: str):
    first, second = index(a="1"), index(a="2")
    put(ecr, repository, first, "v1")
    with refused("ImageAlreadyExistsException", "digest.*and tag 'v1' already exists"):
        put(ecr, repository, first, "v1")
    with refused("ImageAlreadyExistsException", "already exists"):
        put(ecr, repository, first)
    with refused("ImageDigestDoesNotMatchException"):
        ecr.put_image(repositoryName=repository, imageManifest=second, imageDigest=digest_of(first))
    with refused("ReferencedImagesNotFoundException", NOWHERE):
        put(ecr, repository, index(NOWHERE))
    config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": NOWHERE, "size": 2}
    with refused("LayersNotFoundException", NOWHERE):
        put(ecr, repository, json.dumps({"schemaVersion": 2, "config": config, "layers": []}))
    for wrong in ("no", "[]", "{}", '{"schemaVersion": 1}', index(a="3").replace(INDEX, "text/plain"), index("sha256:1"), ""):
        with refused("InvalidParameterException", "imageManifest"):
            put(ecr, repository, wrong)
    odd = json.loads(second) | {"artifactType": ["a"]}
    with refused("InvalidParameterException", "artifactType"):
        put(ecr, repository, json.dumps(odd))
    for tag in (".a", "a b", "-a", "a" * 301):
        with refused("InvalidParameterException", "imageTag"):
            put(ecr, repository, second, tag)
    assert ids(ecr, repository) == [(digest_of(first), "v1")]


def test_a_mutable_tag_moves_and_an_immutable_one_does_not(ecr: Any, repository: str):
    first, second = index(a="1"), index(a="2")
    put(ecr, repository, first, "v1", "dev-1")
    put(ecr, repository, second, "v1")
    assert ids(ecr, repository) == [(digest_of(first), "dev-1"), (digest_of(second), "v1")]
    ecr.put_image_tag_mutability(
        repositoryName=repository,
        imageTagMutability="IMMUTABLE_WITH_EXCLUSION",
        imageTagMutabilityExclusionFilters=[{"filterType": "WILDCARD", "filter": "dev-*"}],
    )
    with refused("ImageTagAlreadyExistsException", "'v1' already exists in the .* repository and cannot be overwritten"):
        put(ecr, repository, first, "v1")
    put(ecr, repository, second, "dev-1")
    assert ids(ecr, repository) == [(digest_of(first), None), (digest_of(second), "dev-1"), (digest_of(second), "v1")]


def test_images_are_listed_by_tags(ecr: Any, repository: str):
    tagged, untagged = index(a="tagged"), index(a="untagged")
    put(ecr, repository, tagged, "b", "a")
    put(ecr, repository, untagged)
    names = {
        "TAGGED": [(digest_of(tagged), "a"), (digest_of(tagged), "b")],
        "UNTAGGED": [(digest_of(untagged), None)],
    }
    names["ANY"] = names["TAGGED"] + names["UNTAGGED"]
    for status, expected in names.items():
        assert ids(ecr, repository, filter={"tagStatus": status}) == expected
        details = ecr.describe_images(repositoryName=repository, filter={"tagStatus": status})["imageDetails"]
        assert [each["imageDigest"] for each in details] == list(dict.fromkeys(digest for digest, _ in expected))
    assert ids(ecr, repository, filter={"imageStatus": "ANY"}) == names["ANY"]
    assert ids(ecr, repository, filter={"imageStatus": "ARCHIVED"}) == []
    assert ecr.describe_images(repositoryName=repository, filter={"imageStatus": "ARCHIVED"})["imageDetails"] == []
    pages = [ids(ecr, repository, maxResults=1)]
    token = ecr.list_images(repositoryName=repository, maxResults=1)["nextToken"]
    pages.append(ids(ecr, repository, maxResults=2, nextToken=token))
    assert [each for page in pages for each in page] == names["ANY"]
    for wrong in (
        {"filter": {"tagStatus": "SOME"}},
        {"maxResults": 0},
        {"nextToken": "eA=="},
        {"nextToken": "OTk5OTk5OTk5OTk5OTk5OTk5OTk="},
    ):
        with refused("InvalidParameterException"):
            ecr.list_images(repositoryName=repository, **wrong)
        with refused("InvalidParameterException"):
            ecr.describe_images(repositoryName=repository, **wrong)
    with refused("InvalidParameterException", "filter"):
        ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": "a"}], filter={"tagStatus": "ANY"})


def test_an_image_gets_another_tag_by_its_manifest(ecr: Any, repository: str, aws: Callable[..., Any]):
    """The steps are those of AWS's user guide."""
    manifest = index(a="ä")
    put(ecr, repository, manifest, "latest")
    got = aws("ecr", "batch-get-image", "--repository-name", repository, "--image-ids", "imageTag=latest")
    aws(
        "ecr",
        "put-image",
        "--repository-name",
        repository,
        "--image-tag",
        "2017",
        "--image-manifest",
        got["images"][0]["imageManifest"],
    )
    [found] = ecr.describe_images(repositoryName=repository)["imageDetails"]
    assert found["imageTags"] == ["2017", "latest"] and found["imageDigest"] == digest_of(manifest)


def test_batch_get_image(ecr: Any, repository: str):
    first, second = index(a="1"), index(a="2")
    put(ecr, repository, first, "v1")
    put(ecr, repository, second)
    wanted = [
        {"imageTag": "v1"},
        {"imageDigest": digest_of(second)},
        {"imageTag": "v2"},
        {"imageDigest": digest_of(second), "imageTag": "v1"},
        {"imageDigest": "sha256:12"},
        {"imageTag": "a b"},
        {},
    ]
    reply = ecr.batch_get_image(repositoryName=repository, imageIds=wanted, acceptedMediaTypes=[INDEX])
    assert [each["imageId"] for each in reply["images"]] == [{"imageTag": "v1", "imageDigest": digest_of(first)}, wanted[1]]
    assert [each["imageManifest"] for each in reply["images"]] == [first, second]
    assert [(each["imageId"], each["failureCode"]) for each in reply["failures"]] == [
        (wanted[2], "ImageNotFound"), (wanted[3], "ImageTagDoesNotMatchDigest"), (wanted[4], "InvalidImageDigest"),
        (wanted[5], "InvalidImageTag"), (wanted[6], "MissingDigestAndTag"),
    ]  # fmt: skip
    docker = "application/vnd.docker.distribution.manifest.v2+json"
    [failure] = ecr.batch_get_image(repositoryName=repository, imageIds=wanted[:1], acceptedMediaTypes=[docker])["failures"]
    assert failure["failureCode"] == "ImageNotFound" and INDEX in failure["failureReason"]
    for ids_ in ([], [{"imageTag": "v1"}] * 101):
        with refused("InvalidParameterException", "imageIds"):
            ecr.batch_get_image(repositoryName=repository, imageIds=ids_)


def test_deleted_by_tag_and_by_digest(ecr: Any, repository: str, aws: Callable[..., Any]):
    first, second = index(a="1"), index(a="2")
    one, two = put(ecr, repository, first, "a", "b", "c"), put(ecr, repository, second, "d")
    reply = aws(
        "ecr", "batch-delete-image", "--repository-name", repository, "--image-ids", "imageTag=a", "imageTag=d", "imageTag=x"
    )
    assert reply["imageIds"] == [{"imageDigest": one, "imageTag": "a"}, {"imageDigest": two, "imageTag": "d"}]
    assert [each["failureCode"] for each in reply["failures"]] == ["ImageNotFound"]
    assert ids(ecr, repository) == [(one, "b"), (one, "c")]
    reply = ecr.batch_delete_image(repositoryName=repository, imageIds=[{"imageDigest": one}, {"imageDigest": one}])
    assert reply["imageIds"] == [{"imageDigest": one, "imageTag": "b"}, {"imageDigest": one, "imageTag": "c"}]
    assert [each["failureCode"] for each in reply["failures"]] == ["ImageNotFound"]
    put(ecr, repository, first)
    assert ecr.batch_delete_image(repositoryName=repository, imageIds=[{"imageDigest": one}])["imageIds"] == [{"imageDigest": one}]
    assert ids(ecr, repository) == []


def test_an_image_of_an_index_cannot_be_deleted(ecr: Any, repository: str):
    part = put(ecr, repository, index(a="part"), "part")
    whole = put(ecr, repository, index(part), "whole")
    for given in ({"imageDigest": part}, {"imageTag": "part"}):
        [failure] = ecr.batch_delete_image(repositoryName=repository, imageIds=[given])["failures"]
        assert failure["failureCode"] == "ImageReferencedByManifestList" and whole in failure["failureReason"]
    assert ids(ecr, repository) == [(part, "part"), (whole, "whole")]
    gone = ecr.batch_delete_image(repositoryName=repository, imageIds=[{"imageDigest": whole}, {"imageDigest": part}])
    assert gone["failures"] == [] and ids(ecr, repository) == []


def test_a_repository_with_images_is_deleted_only_by_force(ecr: Any, repository: str):
    put(ecr, repository, index(a="1"), "v1")
    with refused("RepositoryNotEmptyException", "cannot be deleted because it still contains images"):
        ecr.delete_repository(repositoryName=repository)
    ecr.delete_repository(repositoryName=repository, force=True)
    with refused("RepositoryNotFoundException"):
        ecr.list_images(repositoryName=repository)
    ecr.create_repository(repositoryName=repository)
    assert ids(ecr, repository) == []


def test_a_large_repository_is_deleted_in_steps(ecr: Any, repository: str, corral: Corral):
    for at in range(ROWS_MAX + 10):
        put(ecr, repository, index(at=str(at)), f"tag{at}")
    ecr.delete_repository(repositoryName=repository, force=True)
    ecr.create_repository(repositoryName=repository)
    assert ids(ecr, repository) == []
    kept = [put(ecr, repository, index(a="new"), "v1")]
    others = [each["repositoryName"] for each in ecr.describe_repositories()["repositories"]]

    def rows(table: str) -> int:
        with closing(sqlite3.connect(corral.data / "state.db")) as database:
            return database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    eventually(lambda: rows("repository") == len(others), "the old one is gone")
    listed = [(name, *each) for name in others for each in ids(ecr, name)]
    assert rows("image") == len({(name, digest) for name, digest, _ in listed})
    assert rows("image_tag") == len([tag for _, _, tag in listed if tag is not None])
    assert [digest for digest, _ in ids(ecr, repository)] == kept


def test_missing_layers(ecr: Any, repository: str):
    reply = ecr.batch_check_layer_availability(repositoryName=repository, layerDigests=[NOWHERE, "sha256:1", ""])
    assert reply["layers"] == [{"layerDigest": NOWHERE, "layerAvailability": "UNAVAILABLE"}]
    assert [each["failureCode"] for each in reply["failures"]] == ["InvalidLayerDigest", "MissingLayerDigest"]


def test_no_image_looks_scanned(ecr: Any, repository: str):
    put(ecr, repository, index(a="1"), "v1")
    said = ecr.put_image_scanning_configuration(repositoryName=repository, imageScanningConfiguration={"scanOnPush": True})
    assert said["imageScanningConfiguration"] == {"scanOnPush": True}
    put(ecr, repository, index(a="2"), "v2")
    assert not any("imageScanStatus" in each for each in ecr.describe_images(repositoryName=repository)["imageDetails"])
    with refused("ScanNotFoundException", "imageTag:'v2'.*Corral does not scan images"):
        ecr.describe_image_scan_findings(repositoryName=repository, imageId={"imageTag": "v2"})
    with refused("ImageNotFoundException"):
        ecr.describe_image_scan_findings(repositoryName=repository, imageId={"imageTag": "v3"})
    with pytest.raises(ClientError, match="StartImageScan"):
        ecr.start_image_scan(repositoryName=repository, imageId={"imageTag": "v2"})


def rule(**changes: Any) -> dict[str, Any]:
    selection = {"tagStatus": "untagged", "countType": "sinceImagePushed", "countUnit": "days", "countNumber": 14}
    changed = {**selection, **changes.pop("selection", {})}
    return {
        "rulePriority": 1,
        "selection": {key: value for key, value in changed.items() if value is not None},
        "action": {"type": "expire"},
        **changes,
    }


LATER_TAGGED = rule(rulePriority=2, selection={"tagStatus": "tagged", "tagPatternList": ["v*"]})


@pytest.mark.parametrize(
    "rules",
    [
        [rule(), LATER_TAGGED],
        [rule(description="few", selection={"tagStatus": "any", "countType": "imageCountMoreThan", "countUnit": None})],
        [rule(selection={"tagStatus": "tagged", "tagPrefixList": ["v"], "countType": "sinceImagePulled"})],
        [rule(action={"type": "transition", "targetStorageClass": "archive"})],
    ],
)
def test_lifecycle_policies_are_stored(ecr: Any, repository: str, rules: list[dict[str, Any]]):
    with refused("LifecyclePolicyNotFoundException", "Lifecycle policy does not exist for the repository"):
        ecr.get_lifecycle_policy(repositoryName=repository)
    text = json.dumps({"rules": rules})
    assert ecr.put_lifecycle_policy(repositoryName=repository, lifecyclePolicyText=text)["lifecyclePolicyText"] == text
    found = ecr.get_lifecycle_policy(repositoryName=repository)
    assert found["lifecyclePolicyText"] == text and found["lastEvaluatedAt"].timestamp() == 0
    assert ecr.delete_lifecycle_policy(repositoryName=repository)["lifecyclePolicyText"] == text
    with refused("LifecyclePolicyNotFoundException"):
        ecr.delete_lifecycle_policy(repositoryName=repository)


@pytest.mark.parametrize(
    "policy",
    [
        "no", [], {}, {"rules": []}, {"rules": ["rule"]}, {"rules": [rule()], "more": 1},
        {"rules": [rule(extra=1)]}, {"rules": [{"rulePriority": 1}]}, {"rules": [rule(rulePriority=0)]},
        {"rules": [rule(), rule()]},
        {"rules": [rule(selection={"tagStatus": "any"}), LATER_TAGGED]},
        {"rules": [rule(selection={"tagStatus": "some"})]},
        {"rules": [rule(selection={"tagStatus": "tagged"})]},
        {"rules": [rule(selection={"tagPrefixList": ["v"]})]},
        {"rules": [rule(selection={"tagStatus": "tagged", "tagPrefixList": ["v"], "tagPatternList": ["v"]})]},
        {"rules": [rule(selection={"tagStatus": "tagged", "tagPatternList": ["*a*b*c*d*"]})]},
        {"rules": [rule(selection={"countUnit": None})]}, {"rules": [rule(selection={"countUnit": "hours"})]},
        {"rules": [rule(selection={"countType": "imageCountMoreThan"})]},
        {"rules": [rule(selection={"countNumber": 0})]}, {"rules": [rule(selection={"countNumber": "1"})]},
        {"rules": [rule(action={"type": "keep"})]}, {"rules": [rule(action={"type": "transition"})]},
        {"rules": [rule(action={"type": "expire", "targetStorageClass": None})]},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_invalid_lifecycle_policies(ecr: Any, policies: str, policy: Any):
    with refused(
        "InvalidParameterException", "'LifecyclePolicyText' failed to satisfy constraint: 'Lifecycle policy validation failure"
    ):
        ecr.put_lifecycle_policy(repositoryName=policies, lifecyclePolicyText=json.dumps(policy))


@pytest.fixture(scope="module")
def policies(corral: Corral) -> str:
    corral.client("ecr").create_repository(repositoryName="policies")
    return "policies"


PULL = {"Effect": "Allow", "Principal": "*", "Action": "ecr:BatchGetImage"}


def test_policies_of_repositories_are_stored(ecr: Any, policies: str):
    with refused("RepositoryPolicyNotFoundException", "Repository policy does not exist"):
        ecr.get_repository_policy(repositoryName=policies)
    text = json.dumps({"Version": "2008-10-17", "Statement": [PULL]})
    said = ecr.set_repository_policy(repositoryName=policies, policyText=text)
    assert (said["registryId"], said["repositoryName"], said["policyText"]) == (ACCOUNT, policies, text)
    assert ecr.get_repository_policy(repositoryName=policies)["policyText"] == text
    assert "policyText" not in ecr.describe_repositories(repositoryNames=[policies])["repositories"][0]
    assert ecr.delete_repository_policy(repositoryName=policies)["policyText"] == text
    with refused("RepositoryPolicyNotFoundException"):
        ecr.delete_repository_policy(repositoryName=policies)
    bad = [PULL | {"Effect": "Maybe"}, PULL | {"Actions": "ecr:*"}, {"Effect": "Allow", "Action": "ecr:*"}, "x" * 10_240]
    for wrong in ("no", "{}", *(json.dumps({"Statement": [each]}) for each in bad)):
        with refused("InvalidParameterException", "olicyText"):
            ecr.set_repository_policy(repositoryName=policies, policyText=wrong)


def test_settings_of_the_registry_are_stored(ecr: Any, client: Callable[..., Any]):
    assert ecr.describe_registry()["replicationConfiguration"] == {"rules": []} and ecr.describe_registry()["registryId"] == ACCOUNT
    rules = [{"destinations": [{"region": "eu-west-1", "registryId": ACCOUNT}]}]
    assert (
        ecr.put_replication_configuration(replicationConfiguration={"rules": rules})["replicationConfiguration"]["rules"] == rules
    )
    assert ecr.describe_registry()["replicationConfiguration"] == {"rules": rules}
    here = [{"destinations": [{"region": REGION, "registryId": ACCOUNT}]}]
    with refused("InvalidParameterException", "Replication destination cannot be the same as the source registry"):
        ecr.put_replication_configuration(replicationConfiguration={"rules": here})
    assert client("ecr", "eu-west-1").describe_registry()["replicationConfiguration"] == {"rules": []}

    with refused("RegistryPolicyNotFoundException"):
        ecr.get_registry_policy()
    text = json.dumps({"Version": "2012-10-17", "Statement": [PULL | {"Action": "ecr:ReplicateImage", "Resource": "*"}]})
    ecr.put_registry_policy(policyText=text)
    assert ecr.get_registry_policy()["policyText"] == ecr.delete_registry_policy()["policyText"] == text
    with refused("RegistryPolicyNotFoundException"):
        ecr.delete_registry_policy()
    with refused("InvalidParameterException", "Invalid registry policy provided"):
        ecr.put_registry_policy(policyText="no")

    assert ecr.get_registry_scanning_configuration()["scanningConfiguration"] == {"scanType": "BASIC", "rules": []}
    scan = {"scanFrequency": "SCAN_ON_PUSH", "repositoryFilters": [{"filter": "*", "filterType": "WILDCARD"}]}
    ecr.put_registry_scanning_configuration(scanType="ENHANCED", rules=[scan])
    assert ecr.get_registry_scanning_configuration()["scanningConfiguration"] == {"scanType": "ENHANCED", "rules": [scan]}
    with refused("InvalidParameterException", "scanType"):
        ecr.put_registry_scanning_configuration(scanType="DEEP")

    assert ecr.get_account_setting(name="BASIC_SCAN_TYPE_VERSION")["value"] == "AWS_NATIVE"
    ecr.put_account_setting(name="BASIC_SCAN_TYPE_VERSION", value="CLAIR")
    assert ecr.get_account_setting(name="BASIC_SCAN_TYPE_VERSION")["value"] == "CLAIR"
    with refused("InvalidParameterException", "value"):
        ecr.put_account_setting(name="REGISTRY_POLICY_SCOPE", value="V3")
    with refused("InvalidParameterException", "name"):
        ecr.get_account_setting(name="NONE")


def test_other_registries_are_not_found(ecr: Any, repository: str):
    with refused("RepositoryNotFoundException", OTHER_ACCOUNT):
        ecr.list_images(repositoryName=repository, registryId=OTHER_ACCOUNT)


def test_images_survive_a_crash(own_corral: Callable[..., Corral]):
    corral = own_corral().start()
    corral.client("ecr").create_repository(repositoryName="kept")
    digest = put(corral.client("ecr"), "kept", index(a="1"), "v1", "v2")
    corral.kill("corral.server")
    assert ids(corral.start().client("ecr"), "kept") == [(digest, "v1"), (digest, "v2")]
