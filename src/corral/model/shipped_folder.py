"""The folders that `corral run --ship` sends. Their chunks and manifests are objects of a private bucket (`cli/runs/ship.py`)."""

from __future__ import annotations

from base64 import b64encode

BUCKET = "corral-shipped-folders"  # cli/runs/ship.py repeats this name
VARIABLE = "CORRAL_SHIPPED_FOLDER"  # of a container: the key of the manifest of its folder; cli/runs/run.py repeats this name
PATH = "/v4/shipped/"  # then the id of the task, / and the key of an object; server/task_endpoints.py serves it
PART_MAX_BYTES = 64 * 1024 * 1024  # of an object: a chunk has at most 8 MiB, and a manifest is compressed


def sha256_text(key: str) -> str | None:
    """Return the SHA-256 of an object, which is its key, in the form of the header x-amz-checksum-sha256. None: it is no key."""
    try:
        return b64encode(bytes.fromhex(key)).decode() if len(key) == 64 and key == key.lower() else None
    except ValueError:
        return None
