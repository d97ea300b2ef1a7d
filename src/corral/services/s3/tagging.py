"""Tags of objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from corral.core import Tx
from corral.model.objects import Bucket, Version
from corral.services.caller import Caller
from corral.services.s3.details import OBJECT_TAGS, TAGS, tags_from_document
from corral.services.s3.events import tags_changed
from corral.services.s3.naming import existing_bucket, existing_version, shown_id
from corral.store import Store


def put_object_tagging(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set(tx, params, caller, tags_from_document(params["Tagging"]), "Put")


def delete_object_tagging(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set(tx, params, caller, {}, "Delete")


def get_object_tagging(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, version = _tagged(tx, params, caller)
    return {"TagSet": OBJECT_TAGS.to_list(version.details.get(TAGS, {})), **shown_id(bucket, version)}


def _set(tx: Tx[Store], params: dict[str, Any], caller: Caller, tags: dict[str, str], event_name: str) -> dict[str, Any]:
    bucket, version = _tagged(tx, params, caller)
    details = {name: value for name, value in version.details.items() if name != TAGS} | ({TAGS: tags} if tags else {})
    tx.store.objects.set_details(version.number, details)
    tags_changed(tx, bucket, replace(version, details=details), event_name, caller)
    return shown_id(bucket, version)


def _tagged(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[Bucket, Version]:
    bucket = existing_bucket(tx, params, caller)
    return bucket, existing_version(tx, bucket, params["Key"], params.get("VersionId"))
