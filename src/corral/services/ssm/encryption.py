"""Encryption of SecureStrings at rest: AES-256-GCM with a key of the data folder (`secrets.json`, readable by its owner only).

A stored value is a fresh nonce and the ciphertext, in base64. The parameter's ARN is authenticated data, like KMS's encryption
context: a value that is copied into the row of another parameter cannot be decrypted there.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode

NONCE_BYTES = 12


class CannotDecrypt(Exception):
    """The value was encrypted with another key or for another parameter, or the row is damaged."""


def encrypt(key: bytes, text: str, arn: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import (
        AESGCM,  # imported late: it is slow, and most installations store no secrets
    )

    nonce = os.urandom(NONCE_BYTES)
    return b64encode(nonce + AESGCM(key).encrypt(nonce, text.encode(), arn.encode())).decode()


def decrypt(key: bytes, stored: str, arn: str) -> str:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    data = b64decode(stored)
    try:
        return AESGCM(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], arn.encode()).decode()
    except InvalidTag:
        raise CannotDecrypt from None
