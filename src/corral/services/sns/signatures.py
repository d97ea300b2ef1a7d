"""Signatures of messages, and the certificate with which a receiver checks them.

The key is created when the first message is signed, and stored in `secrets.json`. It signs the text that AWS documents, so
validators of SNS accept the messages if they allow the address of Corral in `SigningCertURL`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any

from corral.core.transactions import Tx
from corral.model.settings import Settings
from corral.store import Store

PAGE_PREFIX = "/SimpleNotificationService-"
SIGNED_MEMBERS = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
NAMES = KEY_NAME, CERTIFICATE_NAME = "snsKey", "snsCertificate"  # members of secrets.json
RSA_BITS = 2048
VALID_FROM, VALID_TO = datetime(2020, 1, 1, tzinfo=UTC), datetime(2070, 1, 1, tzinfo=UTC)


def signature_members(settings: Settings, message: Mapping[str, Any], version: str) -> dict[str, str]:
    """Return SignatureVersion and Signature of a message. Version 1 is SHA-1, version 2 is SHA-256."""
    text = "".join([f"{name}\n{message[name]}\n" for name in SIGNED_MEMBERS if name in message])
    signature = _signer(_secrets(settings)[KEY_NAME], version)(text.encode("utf-8", "replace"))
    return {"SignatureVersion": version, "Signature": b64encode(signature).decode()}


def create_key(tx: Tx[Store]) -> None:
    """Create the key in another thread, if it does not exist. A new key can take a second."""
    if not tx.settings.server.secrets.has(KEY_NAME):
        tx.result_of((KEY_NAME,), partial(certificate, tx.settings))


def certificate(settings: Settings) -> str:
    """Return the certificate as PEM."""
    return _secrets(settings)[CERTIFICATE_NAME]


@lru_cache(maxsize=8)
def certificate_path(pem: str) -> str:
    return f"{PAGE_PREFIX}{sha256(pem.encode()).hexdigest()[:32]}.pem"


def _secrets(settings: Settings) -> Mapping[str, str]:
    return settings.server.secrets.members(NAMES, _new_secrets)


def _new_secrets() -> dict[str, str]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = generate_private_key(65537, RSA_BITS)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.amazonaws.com")])
    draft = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), VALID_FROM, VALID_TO)
    return {
        KEY_NAME: key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        CERTIFICATE_NAME: draft.sign(key, SHA256()).public_bytes(Encoding.PEM).decode(),
    }


@lru_cache(maxsize=8)
def _signer(pem: str, version: str) -> Callable[[bytes], bytes]:
    """Return the function that signs with a key, which is loaded once."""
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15  # imported only here, because the import is slow
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.hashes import SHA1, SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(pem.encode(), None)
    assert isinstance(key, RSAPrivateKey)
    return partial(key.sign, padding=PKCS1v15(), algorithm=SHA256() if version == "2" else SHA1())
