"""The operations of ECR and their handlers."""

from corral.services.ecr import images, policies, registry_settings, repositories

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
    "DescribeRegistry": registry_settings.describe_registry,
    "PutReplicationConfiguration": registry_settings.put_replication_configuration,
    "PutRegistryPolicy": registry_settings.put_registry_policy,
    "GetRegistryPolicy": registry_settings.get_registry_policy,
    "DeleteRegistryPolicy": registry_settings.delete_registry_policy,
    "GetRegistryScanningConfiguration": registry_settings.get_registry_scanning_configuration,
    "PutRegistryScanningConfiguration": registry_settings.put_registry_scanning_configuration,
    "DescribeImageScanFindings": registry_settings.describe_image_scan_findings,
    "GetAccountSetting": registry_settings.get_account_setting,
    "PutAccountSetting": registry_settings.put_account_setting,
    "TagResource": repositories.tag_resource,
    "UntagResource": repositories.untag_resource,
    "ListTagsForResource": repositories.list_tags_for_resource,
}
HEAVY = frozenset({"ListImages", "DescribeImages", "BatchGetImage"})
