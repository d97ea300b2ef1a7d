"""The operations of ECR, and who serves them."""

from corral.services.ecr import images, policies, registries, repositories, tags

HANDLERS = {
    "CreateRepository": repositories.create_repository,
    "DescribeRepositories": repositories.describe_repositories,
    "DeleteRepository": repositories.delete_repository,
    "PutImageTagMutability": repositories.put_image_tag_mutability,
    "PutImageScanningConfiguration": repositories.put_image_scanning_configuration,
    "GetAuthorizationToken": repositories.get_authorization_token,
    "ListImages": images.list_images,
    "DescribeImages": images.describe_images,
    "BatchGetImage": images.batch_get_image,
    "PutImage": images.put_image,
    "BatchDeleteImage": images.batch_delete_image,
    "BatchCheckLayerAvailability": images.batch_check_layer_availability,
    **policies.HANDLERS,
    "DescribeRegistry": registries.describe_registry,
    "PutReplicationConfiguration": registries.put_replication_configuration,
    "PutRegistryPolicy": registries.put_registry_policy,
    "GetRegistryPolicy": registries.get_registry_policy,
    "DeleteRegistryPolicy": registries.delete_registry_policy,
    "GetRegistryScanningConfiguration": registries.get_registry_scanning_configuration,
    "PutRegistryScanningConfiguration": registries.put_registry_scanning_configuration,
    "DescribeImageScanFindings": registries.describe_image_scan_findings,
    "GetAccountSetting": registries.get_account_setting,
    "PutAccountSetting": registries.put_account_setting,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
}
HEAVY = frozenset({"ListImages", "DescribeImages", "BatchGetImage"})
