"""Requests of ECR."""

from __future__ import annotations

import json
from base64 import b64decode

from answers.calls import ACCOUNT, NOW, OTHER, SAME, Calls
from harness import REGION
from raw_registry import OCI_IMAGE, OCI_INDEX, Registry, digest_of

RULE = {
    "rulePriority": 1,
    "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 5},
    "action": {"type": "expire"},
}
POLICY = json.dumps({"Version": "2012-10-17", "Statement": [{"Sid": "a", "Effect": "Allow", "Principal": "*", "Action": "ecr:*"}]})
REGISTRY_POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Sid": "a", "Effect": "Allow", "Principal": "*", "Action": "ecr:ReplicateImage", "Resource": "*"}],
    }
)
TAGS = [{"Key": "a", "Value": "b"}]


def requests(calls: Calls) -> None:
    name = {"repositoryName": "answers"}
    scanning = {"imageScanningConfiguration": {"scanOnPush": True}, "encryptionConfiguration": {"encryptionType": "AES256"}}
    filters = [{"filterType": "WILDCARD", "filter": "dev-*"}]
    given = {"imageTagMutability": "MUTABLE_WITH_EXCLUSION", "imageTagMutabilityExclusionFilters": filters, "tags": TAGS}
    made = calls.twice("CreateRepository", "RepositoryAlreadyExistsException", **name, **scanning, **given)
    calls("CreateRepository", repositoryName="other", encryptionConfiguration={"encryptionType": "KMS", "kmsKey": "a"})
    resource = {"resourceArn": made["repository"]["repositoryArn"]}
    calls("DescribeRepositories")
    [token] = calls.twice("GetAuthorizationToken", NOW)["authorizationData"]
    calls.twice(
        "PutImageTagMutability",
        SAME,
        **name,
        imageTagMutability="MUTABLE_WITH_EXCLUSION",
        imageTagMutabilityExclusionFilters=filters,
    )
    calls.twice("PutImageScanningConfiguration", SAME, **name, imageScanningConfiguration={"scanOnPush": True})
    calls.twice("TagResource", SAME, **resource, tags=[{"Key": "c", "Value": "d"}])
    calls("ListTagsForResource", **resource)
    calls.twice("UntagResource", SAME, **resource, tagKeys=["c"])
    manifest = Registry(calls.corral, b64decode(token["authorizationToken"]).decode().partition(":")[2]).push_image(
        "answers", "v1", b"layer"
    )
    images(calls, manifest)
    for what, more in (("Lifecycle", {"lifecyclePolicyText": json.dumps({"rules": [RULE]})}),):
        calls.twice(f"Put{what}Policy", SAME, **name, **more)
        calls(f"Get{what}Policy", **name)
        calls.twice(f"Delete{what}Policy", f"{what}PolicyNotFoundException", **name)
    calls.twice("SetRepositoryPolicy", SAME, **name, policyText=POLICY)
    calls("GetRepositoryPolicy", **name)
    calls.twice("DeleteRepositoryPolicy", "RepositoryPolicyNotFoundException", **name)
    calls.twice("PutRegistryPolicy", SAME, policyText=REGISTRY_POLICY)
    calls("GetRegistryPolicy")
    calls.twice("DeleteRegistryPolicy", "RegistryPolicyNotFoundException")
    rules = [{"scanFrequency": "SCAN_ON_PUSH", "repositoryFilters": [{"filter": "*", "filterType": "WILDCARD"}]}]
    calls.twice("PutRegistryScanningConfiguration", SAME, scanType="BASIC", rules=rules)
    calls("GetRegistryScanningConfiguration")
    destinations = [{"region": "eu-west-1", "registryId": "123456789012"}]
    prefix = [{"filter": "aa", "filterType": "PREFIX_MATCH"}]
    replication = {"rules": [{"destinations": destinations, "repositoryFilters": prefix}]}
    calls.twice("PutReplicationConfiguration", SAME, replicationConfiguration=replication)
    calls("DescribeRegistry")
    calls.twice("PutAccountSetting", SAME, name="BASIC_SCAN_TYPE_VERSION", value="AWS_NATIVE")
    calls("GetAccountSetting", name="BASIC_SCAN_TYPE_VERSION")
    here = [{"destinations": [{"region": REGION, "registryId": ACCOUNT}]}]
    calls.refused("PutReplicationConfiguration", "InvalidParameterException", replicationConfiguration={"rules": here})
    refusals(calls, resource["resourceArn"], manifest)
    calls.twice("DeleteRepository", "RepositoryNotFoundException", **name, force=True)


def images(calls: Calls, manifest: bytes) -> None:
    name, v1 = {"repositoryName": "answers"}, [{"imageTag": "v1"}]
    calls("ListImages", **name)
    calls("DescribeImages", **name)
    calls("BatchGetImage", **name, imageIds=[*v1, {"imageTag": "none"}])
    calls("BatchCheckLayerAvailability", **name, layerDigests=[digest_of(b"layer"), digest_of(b"none")])
    referrer = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [], "artifactType": "a/b"}
    subject = {"mediaType": OCI_IMAGE, "digest": digest_of(manifest), "size": len(manifest)}
    calls("PutImage", **name, imageManifest=json.dumps(referrer | {"subject": subject}))
    calls("DescribeImages", **name)
    calls.twice("PutImage", "ImageAlreadyExistsException", **name, imageManifest=manifest.decode(), imageTag="v2")
    calls.twice_refused("DescribeImageScanFindings", "ScanNotFoundException", **name, imageId={"imageTag": "v1"})
    calls.twice("BatchDeleteImage", OTHER, **name, imageIds=[{"imageTag": "v2"}])


def refusals(calls: Calls, arn: str, manifest: bytes) -> None:
    calls.all_refused("RepositoryNotFoundException", "*", "DescribeRepos* Put* Set* *Tag* *Findings", repositoryName="none")
    calls.refused("DescribeRepositories", "RepositoryNotFoundException", repositoryNames=["none"])
    calls.all_refused("RepositoryNotFoundException", "PutImageScan* *Findings", repositoryName="none", imageId={"imageTag": "a"})
    calls.refused("PutImage", "RepositoryNotFoundException", repositoryName="none", imageManifest=manifest.decode())
    calls.refused("PutImageTagMutability", "RepositoryNotFoundException", repositoryName="none", imageTagMutability="MUTABLE")
    text = json.dumps({"rules": [RULE]})
    calls.refused("PutLifecyclePolicy", "RepositoryNotFoundException", repositoryName="none", lifecyclePolicyText=text)
    calls.refused("SetRepositoryPolicy", "RepositoryNotFoundException", repositoryName="none", policyText=POLICY)
    calls.all_refused("RepositoryNotFoundException", "*Resource", resourceArn=arn.replace("answers", "none"), tags=TAGS)
    calls.refused("DeleteRepository", "RepositoryNotEmptyException", repositoryName="answers")
    for operation in ("DescribeImages", "DescribeImageScanFindings"):
        image = {"imageIds": [{"imageTag": "none"}], "imageId": {"imageTag": "none"}}
        calls.all_refused("ImageNotFoundException", operation, repositoryName="answers", **image)
    calls.all_refused("InvalidParameterException", repositoryName="A", resourceArn="none", registryId="a", policyText="{")
    many = [{"Key": f"k{number}", "Value": ""} for number in range(51)]
    calls.refused("TagResource", "TooManyTagsException", resourceArn=arn, tags=many)
    calls.refused("CreateRepository", "TooManyTagsException", repositoryName="many", tags=many)
    calls.refused("TagResource", "InvalidTagParameterException", resourceArn=arn, tags=[{"Key": "aws:a", "Value": ""}])
    calls.refused("CreateRepository", "InvalidTagParameterException", repositoryName="many", tags=[{"Key": "aws:a", "Value": ""}])
    calls.refused("UntagResource", "InvalidTagParameterException", resourceArn=arn, tagKeys=["aws:a"])
    digest = {"imageDigest": digest_of(b"none")}
    calls.refused(
        "PutImage", "ImageDigestDoesNotMatchException", repositoryName="answers", imageManifest=manifest.decode(), **digest
    )
    calls.refused("PutImage", "LayersNotFoundException", repositoryName="other", imageManifest=manifest.decode())
    calls.refused("GetLifecyclePolicy", "LifecyclePolicyNotFoundException", repositoryName="other")
    calls.refused("GetRepositoryPolicy", "RepositoryPolicyNotFoundException", repositoryName="other")
    calls.refused("GetRegistryPolicy", "RegistryPolicyNotFoundException")
    calls.refused("DescribeImageScanFindings", "ScanNotFoundException", repositoryName="answers", imageId={"imageTag": "v1"})
