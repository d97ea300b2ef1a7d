"""Temporary credentials that prove themselves: nothing is kept of a session but the one key that all are made with.

The token carries who the session is for and until when, with a seal that only the holder of the key can make. The secret that
requests are signed with is derived from the same words and is not in the token. So a session survives a restart, and a
million of them cost nothing. The words of the token are not hidden: whoever holds a token may know who they are.

The key is the data folder's (`sessions.json`). Everything made with it says what it is for, so that a seal for one thing is none
for another.
"""

from __future__ import annotations

from base64 import b32decode, b32encode, b64decode, b64encode, urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b, sha256
from hmac import compare_digest

import orjson

from corral.model.session import Credentials, Session

TOKEN_MAX = 4096  # characters, as AWS's
TASK_LIFETIME_S = 6 * 3600  # as ECS's
TASK_ROTATION_S = 5 * 3600  # so at least an hour is left of what a task is given; SDKs ask again 15 minutes before the end
SEAL_BYTES = 32
NONCE_BYTES = 6
HOST_ROLE = "corral-host"  # of a task without a role: what the instance profile is on EC2


def issue(key: bytes, nonce: bytes, principal: str, expires_at_s: int, task_id: str | None) -> Credentials:
    """A new session. The same words and the same nonce give the same keys."""
    assert len(nonce) == NONCE_BYTES
    access_key_id = "ASIA" + b32encode(nonce + _seal(key, "access key id", nonce)[:4]).decode()
    payload = orjson.dumps([access_key_id, principal, expires_at_s, task_id])
    token = sealed(key, "token", payload)
    return Credentials(Session(access_key_id, principal, expires_at_s, task_id), _secret_key(key, payload), token)


@lru_cache(maxsize=1024)  # a client sends the same one with every request
def read(key: bytes, access_key_id: str, token: str) -> Credentials | None:
    """The session of a token, or None when it is not ours or belongs to another access key. It may have expired."""
    payload = opened(key, "token", token) if len(token) <= TOKEN_MAX else None
    if payload is None:
        return None
    session = Session(*orjson.loads(payload))
    return Credentials(session, _secret_key(key, payload), token) if session.access_key_id == access_key_id else None


def of_task(key: bytes, account: str, role: str, task_id: str, now_s: float) -> Credentials:
    """What a task has now: the same for hours, then the next, which overlap."""
    issued_at_s = int(now_s // TASK_ROTATION_S) * TASK_ROTATION_S
    nonce = _seal(key, "task", f"{task_id}/{issued_at_s}".encode())[:NONCE_BYTES]
    return issue(key, nonce, role_session(account, role, task_id), issued_at_s + TASK_LIFETIME_S, task_id)


def is_our_key(key: bytes, access_key_id: str) -> bool:
    """Was this id made here? It says nothing of whether its session still lives."""
    prefix, encoded = access_key_id[:4], access_key_id[4:]
    if prefix != "ASIA" or len(encoded) != 16:
        return False
    try:
        body = b32decode(encoded)
    except ValueError:
        return False
    return compare_digest(body[NONCE_BYTES:], _seal(key, "access key id", body[:NONCE_BYTES])[:4])


# --- what is only for the inside of a task ------------------------------------------------------------------------


def password_of_task(key: bytes, task_id: str) -> str:
    """What a task shows to get its credentials. Its id is public, this is not."""
    return urlsafe_b64encode(_seal(key, "password", task_id.encode())).decode()


def address_of_run(key: bytes, run_id: str) -> str:
    """Under which a container finds what it may know of itself; nobody can guess it."""
    return f"{run_id}-{_seal(key, 'address', run_id.encode())[:16].hex()}"


# --- words with a seal --------------------------------------------------------------------------------------------


def sealed(key: bytes, purpose: str, words: bytes) -> str:
    """Words that only the holder of the key can have written, for this purpose alone. They are not hidden."""
    return urlsafe_b64encode(_seal(key, purpose, words) + words).decode()


def opened(key: bytes, purpose: str, token: str) -> bytes | None:
    """The words, or None when the seal is not ours."""
    try:
        box = b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        return None
    seal, words = box[:SEAL_BYTES], box[SEAL_BYTES:]
    return words if compare_digest(seal, _seal(key, purpose, words)) else None


# --- names --------------------------------------------------------------------------------------------------------


def role_session(account: str, role: str, session_name: str) -> str:
    return f"arn:aws:sts::{account}:assumed-role/{role}/{session_name}"


def derived_role_id(account: str, role: str) -> str:
    """The id of a role of which nothing else is known: always the same one."""
    return "AROA" + b32encode(sha256(f"{account}/{role}".encode()).digest()).decode()[:17]


def _secret_key(key: bytes, payload: bytes) -> str:
    return b64encode(_seal(key, "secret key", payload)).decode()[:40]


def _seal(key: bytes, purpose: str, words: bytes) -> bytes:
    """BLAKE2 with a key is a MAC by itself, and three times as quick as HMAC: every run that starts needs two."""
    return blake2b(words, key=key, person=purpose.encode(), digest_size=SEAL_BYTES).digest()
