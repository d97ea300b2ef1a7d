"""The errors of ECR: one class per error code."""

from corral.errors import api_error

ImageAlreadyExistsException = api_error("ImageAlreadyExistsException")
ImageDigestDoesNotMatchException = api_error("ImageDigestDoesNotMatchException")
ImageNotFoundException = api_error("ImageNotFoundException")
ImageTagAlreadyExistsException = api_error("ImageTagAlreadyExistsException")
InvalidParameterException = api_error("InvalidParameterException")
InvalidTagParameterException = api_error("InvalidTagParameterException")
LayersNotFoundException = api_error("LayersNotFoundException")
LifecyclePolicyNotFoundException = api_error("LifecyclePolicyNotFoundException")
ReferencedImagesNotFoundException = api_error("ReferencedImagesNotFoundException")
RegistryPolicyNotFoundException = api_error("RegistryPolicyNotFoundException")
RepositoryAlreadyExistsException = api_error("RepositoryAlreadyExistsException")
RepositoryNotEmptyException = api_error("RepositoryNotEmptyException")
RepositoryNotFoundException = api_error("RepositoryNotFoundException")
RepositoryPolicyNotFoundException = api_error("RepositoryPolicyNotFoundException")
ScanNotFoundException = api_error("ScanNotFoundException")
TooManyTagsException = api_error("TooManyTagsException")
