"""SecureStrings at rest: AES-256-GCM with a key of the data folder (`secrets.json`, readable by its owner alone).

A sealed value is a fresh nonce and what AES-GCM made of the text, in base64. Its parameter's ARN is authenticated with it, as KMS's
encryption context is: a value copied into another parameter's row does not open there.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode

NONCE_BYTES = 12


class Unreadable(Exception):
    """It was sealed with another key, or for another parameter, or the row is damaged."""


def seal(key: bytes, text: str, arn: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # late: most Corrals keep no secrets, and it takes a while

    nonce = os.urandom(NONCE_BYTES)
    return b64encode(nonce + AESGCM(key).encrypt(nonce, text.encode(), arn.encode())).decode()


def unseal(key: bytes, sealed: str, arn: str) -> str:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    box = b64decode(sealed)
    try:
        return AESGCM(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], arn.encode()).decode()
    except InvalidTag:
        raise Unreadable from None
