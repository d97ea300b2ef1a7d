"""Names of repositories and images, and the errors that all of ECR shares."""

from __future__ import annotations

from corral.core import Tx
from corral.errors import api_error
from corral.model.image import Repository
from corral.services.caller import Caller
from corral.store import Store

ImageAlreadyExistsException = api_error("ImageAlreadyExistsException")
ImageDigestDoesNotMatchException = api_error("ImageDigestDoesNotMatchException")
ImageNotFoundException = api_error("ImageNotFoundException")
ImageTagAlreadyExistsException = api_error("ImageTagAlreadyExistsException")
InvalidParameterException = api_error("InvalidParameterException")
LayersNotFoundException = api_error("LayersNotFoundException")
ReferencedImagesNotFoundException = api_error("ReferencedImagesNotFoundException")
RepositoryNotFoundException = api_error("RepositoryNotFoundException")


def find(tx: Tx[Store], caller: Caller, name: str) -> Repository:
    """The repository of this name in the caller's region."""
    found = tx.store.images.repository(caller.region, name)
    if found is None:
        why = f"The repository with name '{name}' does not exist in the registry with id '{caller.account}'"
        raise RepositoryNotFoundException(why)
    return found
