"""Temporary credentials. Corral stores no sessions: the session token contains the session, authenticated by a MAC.

The token contains the principal and the expiry time of the session. The client signs requests with a secret key. Corral derives
this secret key from the token and from a key that only Corral has. So the token need not contain the secret key, and Corral need
not store it. Sessions survive a restart. The token is not encrypted: its holder can read the principal.

Corral's own key, which is used for all MACs, is in the data folder (`sessions.json`). The purpose of a token is part of its MAC,
so a token is valid for one purpose only. A session can end before its expiry time: when its task stops, when it is revoked, or when
the root key that created it is replaced (`SessionValidity`).
"""

from __future__ import annotations

from base64 import b32decode, b32encode, b64decode, b64encode, urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import Any
from zlib import compress, decompress

import orjson
from msgspec.structs import astuple

from corral.model.principal import Principal, role_session
from corral.model.session import Credentials, CredentialSession, SessionTerms

TOKEN_MAX = 4096  # characters of a session token; AWS has the same limit
TASK_LIFETIME_S = 6 * 3600  # as on ECS
TASK_ROTATION_S = 5 * 3600  # an hour less than the lifetime, because SDKs refresh credentials before they expire
SEAL_BYTES = 32
NONCE_BYTES = 6
COMPRESSED_MIN_BYTES = 1024
HOST_ROLE = "corral-host"  # the role of tasks without a task role, like the instance profile on EC2


def issue(
    key: bytes,
    nonce: bytes,
    principal: Principal,
    expires_at_s: int,
    task_id: str | None,
    *,
    confined: bool = False,
    epoch: str = "0",
    terms: SessionTerms | None = None,
) -> Credentials:
    """Create a session. The same arguments always give the same credentials.

    If `SessionValidity` (model/session.py) no longer has this `epoch`, the session is invalid, even before its expiry time.
    """
    assert len(nonce) == NONCE_BYTES
    access_key_id = "ASIA" + b32encode(nonce + _seal(key, "access key id", nonce)[:4]).decode()
    session = CredentialSession(access_key_id, principal, expires_at_s, task_id, confined, epoch, terms)
    payload = compressed(packed(astuple(session)))
    return Credentials(session, _secret_key(key, payload), sealed(key, "session", payload))


@lru_cache(maxsize=1024)  # a client sends the same token with every request
def read(key: bytes, access_key_id: str, token: str) -> Credentials | None:
    """The credentials for a token; None if the token is not valid for this access key. The caller checks the expiry time."""
    payload = opened(key, "session", token) if len(token) <= TOKEN_MAX else None
    if payload is None:
        return None
    session_key_id, principal, expires_at_s, task_id, confined, epoch, *terms = orjson.loads(decompressed(payload))
    given = terms_of(terms[0]) if terms else None  # the tokens of earlier versions have no terms
    session = CredentialSession(session_key_id, Principal(*principal), expires_at_s, task_id, confined, epoch, given)
    return Credentials(session, _secret_key(key, payload), token) if session.access_key_id == access_key_id else None


def of_task(
    key: bytes, account: str, role: str, task_id: str, owner: str, now_s: float, *, confined: bool = False, epoch: str = "0"
) -> Credentials:
    """The current credentials of a task. They change every five hours. Old credentials stay valid until they expire."""
    issued_at_s = int(now_s // TASK_ROTATION_S) * TASK_ROTATION_S
    nonce = _seal(key, "task", f"{task_id}/{issued_at_s}/{epoch}".encode())[:NONCE_BYTES]
    principal, expires_at_s = role_session(account, role, task_id, owner), issued_at_s + TASK_LIFETIME_S
    return issue(key, nonce, principal, expires_at_s, task_id, confined=confined, epoch=epoch)


def root_mark(key: bytes, access_key_id: str, secret_key: str) -> str:
    """A text that identifies a root key without revealing it.

    Sessions contain the mark of the root key that created them, so they end when the root key is replaced.
    """
    return _seal(key, "root mark", f"{access_key_id}/{secret_key}".encode())[:8].hex()


def is_our_key(key: bytes, access_key_id: str) -> bool:
    """Whether Corral issued this access key id. The session of the key may have expired."""
    prefix, encoded = access_key_id[:4], access_key_id[4:]
    if prefix != "ASIA" or len(encoded) != 16:
        return False
    try:
        body = b32decode(encoded)
    except ValueError:
        return False
    return compare_digest(body[NONCE_BYTES:], _seal(key, "access key id", body[:NONCE_BYTES])[:4])


# --- secrets of a task's containers -------------------------------------------------------------------------------


def password_of_task(key: bytes, task_id: str) -> str:
    """The secret that a task sends to get its credentials. The task id is public, so it cannot be this secret."""
    return urlsafe_b64encode(_seal(key, "password", task_id.encode())).decode()


def address_of_run(key: bytes, run_id: str) -> str:
    """The part of the task metadata URL that identifies the container. Other programs cannot guess it."""
    return f"{run_id}-{_seal(key, 'address', run_id.encode())[:16].hex()}"


def metrics_token(key: bytes, epoch: str) -> str:
    """The secret with which Prometheus reads `/metrics`. It changes when all sessions are revoked, or with the root key."""
    return urlsafe_b64encode(_seal(key, "metrics", epoch.encode())).decode().rstrip("=")


# --- tokens with a MAC --------------------------------------------------------------------------------------------


def sealed(key: bytes, purpose: str, payload: bytes) -> str:
    """Make a token from a payload and a MAC for this purpose. The payload is not encrypted."""
    return urlsafe_b64encode(_seal(key, purpose, payload) + payload).decode()


def packed(values: tuple[Any, ...]) -> bytes:
    """The payload of a token: a JSON list of these values, with principals as lists."""
    return orjson.dumps(values, default=astuple)


def compressed(payload: bytes) -> bytes:
    """Compress a long payload, for example one with session policies, so that its token is not too long."""
    return compress(payload) if len(payload) > COMPRESSED_MIN_BYTES else payload


def decompressed(payload: bytes) -> bytes:
    """Return the JSON of a payload with a valid MAC."""
    return payload if payload.startswith(b"[") else decompress(payload)


def terms_of(values: list[Any] | None) -> SessionTerms | None:
    if values is None:
        return None
    issued_at_s, policies, policy_arns, tags, transitive, *others = values
    pairs = tuple((name, value) for name, value in tags)
    return SessionTerms(issued_at_s, tuple(policies), tuple(policy_arns), pairs, tuple(transitive), *others)


def opened(key: bytes, purpose: str, token: str) -> bytes | None:
    """The payload of a token; None if the token has no valid MAC for this purpose."""
    try:
        data = b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        return None
    seal, payload = data[:SEAL_BYTES], data[SEAL_BYTES:]
    return payload if compare_digest(seal, _seal(key, purpose, payload)) else None


# --- names --------------------------------------------------------------------------------------------------------


def derived_role_id(account: str, role: str) -> str:
    """An id for a role that IAM does not have. The same name always gives the same id."""
    return "AROA" + b32encode(sha256(f"{account}/{role}".encode()).digest()).decode()[:17]


def _secret_key(key: bytes, payload: bytes) -> str:
    return b64encode(_seal(key, "secret key", payload)).decode()[:40]


def _seal(key: bytes, purpose: str, payload: bytes) -> bytes:
    """A MAC by keyed BLAKE2, which is three times as fast as HMAC. Speed matters: each start of a container needs two MACs."""
    return blake2b(payload, key=key, person=purpose.encode(), digest_size=SEAL_BYTES).digest()
