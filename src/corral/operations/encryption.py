"""Encryption of SecureStrings and secrets: AES-256-GCM. The key is in the data folder (`secrets.json`, readable only by its owner).

A stored value is a random nonce and the ciphertext, in base64. The ARN of the parameter or secret is authenticated data, like the
encryption context of KMS. So a value that was copied into the row of another one cannot be decrypted.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode

NONCE_BYTES = 12


class CannotDecrypt(Exception):
    """The value was encrypted with another key or for another ARN, or the row is damaged."""


def encrypt(key: bytes, text: str, arn: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import (
        AESGCM,  # imported only here: the import is slow, and most installations store no secrets
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
