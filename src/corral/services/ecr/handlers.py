"""The operations of ECR, and who serves them."""

from corral.services.ecr import repositories, tags

HANDLERS = {
    "CreateRepository": repositories.create_repository,
    "DescribeRepositories": repositories.describe_repositories,
    "DeleteRepository": repositories.delete_repository,
    "PutImageTagMutability": repositories.put_image_tag_mutability,
    "PutImageScanningConfiguration": repositories.put_image_scanning_configuration,
    "GetAuthorizationToken": repositories.get_authorization_token,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
}
