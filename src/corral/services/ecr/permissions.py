"""The permissions that operations of ECR need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.transactions import Tx
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    repository = f"arn:aws:ecr:{caller.region}:{caller.account}:repository/"
    names = params.get("repositoryNames") or ([params["repositoryName"]] if params.get("repositoryName") else [])
    if operation == "DescribeRepositories" and not names:
        names = ["*"]
    arns = [f"{repository}{name}" for name in names]
    needed = on_resources(
        f"ecr:{operation}", arns or ([params["resourceArn"]] if params.get("resourceArn") else []), request_tags(params)
    )
    # A request to the registry can take a layer from another repository. The caller must be allowed to read it there.
    return needed + [Permission("ecr:GetDownloadUrlForLayer", f"{repository}{name}") for name in params.get("mountedFrom") or ()]
