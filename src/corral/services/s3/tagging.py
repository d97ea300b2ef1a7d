"""Tags of objects."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.model.objects import Bucket, Version
from corral.services.caller import Caller
from corral.services.s3.details import TAGS, tag_set, tags_from_document
from corral.services.s3.naming import existing_bucket, existing_version, shown_id
from corral.store import Store


def put_object_tagging(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set(tx, params, caller, tags_from_document(params["Tagging"]))


def delete_object_tagging(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set(tx, params, caller, {})


def get_object_tagging(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, version = _tagged(tx, params, caller)
    return {"TagSet": tag_set(version.details.get(TAGS, {})), **shown_id(bucket, version)}


def _set(tx: Tx[Store], params: dict[str, Any], caller: Caller, tags: dict[str, str]) -> dict[str, Any]:
    bucket, version = _tagged(tx, params, caller)
    others = {name: value for name, value in version.details.items() if name != TAGS}
    tx.store.objects.set_details(version.number, others | ({TAGS: tags} if tags else {}))
    return shown_id(bucket, version)


def _tagged(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[Bucket, Version]:
    bucket = existing_bucket(tx, params, caller)
    return bucket, existing_version(tx, bucket, params["Key"], params.get("VersionId"))
