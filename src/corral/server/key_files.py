"""The files of the data folder with secret keys: the root keys, and the keys of sessions and of SecureString parameters."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from corral.access.sessions import root_mark
from corral.core import ids
from corral.core.errors import Refused
from corral.model.session import SessionValidity
from corral.process.data_folder import CREDENTIALS

ENDS_SESSIONS = "ends all sessions"
LOSES_SECRETS = "loses the value of every SecureString parameter"


def root_keys(data: Path, access_key: str | None, secret_key: str | None) -> dict[str, str]:
    """Return the root keys: the given keys, else the stored keys, else new keys.

    The keys are stored in a file that only its owner can read.
    """
    path = data / CREDENTIALS
    stored: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    keys = {
        "access_key": access_key or stored.get("access_key") or ids.access_key(),
        "secret_key": secret_key or stored.get("secret_key") or ids.secret_key(),
    }
    if keys != stored:
        write_private(path, keys)
    return keys


def stored_key(path: Path, loss: str) -> bytes:
    """Return the key in a file, which is created at the first start. `loss` describes the effect of deleting the file."""
    if not path.exists():
        write_private(path, {"key": ids.new_key().hex()})
    try:
        key = bytes.fromhex(json.loads(path.read_text())["key"])
        if len(key) == ids.KEY_BYTES:
            return key
        raise ValueError(f"the key has {len(key)} bytes, not {ids.KEY_BYTES}")
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path} is damaged ({error}). Restore the file, or delete it, which {loss}.") from None


def session_validity(path: Path, key: bytes, root: dict[str, str]) -> SessionValidity:
    """Return the object that decides which sessions are valid, made from sessions.json (`path`) and the root keys."""
    stored = json.loads(path.read_text())
    try:
        return msgspec.convert(
            {
                "generation": stored.get("generation", 0),
                "root_mark": root_mark(key, root["access_key"], root["secret_key"]),
                "revoked_tasks": stored.get("revokedTasks", []),
            },
            SessionValidity,
        )
    except msgspec.ValidationError as error:
        raise Refused(f"{path} is damaged ({error}). Restore the file, or delete it, which {ENDS_SESSIONS}.") from None


def store_members(path: Path, members: dict[str, Any]) -> None:
    write_private(path, json.loads(path.read_text()) | members)


def write_private(path: Path, value: dict[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
