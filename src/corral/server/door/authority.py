"""The certificate authority of a data folder. It signs the certificates of the door and of the hosts that have joined.

The certificate of the door is for servers only, and the certificates of hosts are for clients only. Corral sets all names in them,
and ignores those of a signing request. So no host can pose as the server or as another host.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from corral.core.errors import Refused
from corral.node.server_access import SERVER_NAME, pin_of, write_private
from corral.server.door import AUTHORITY, SERVER

AUTHORITY_VALID, SERVER_VALID = timedelta(days=36_500), timedelta(days=3_650)
HTTPS_VALID = timedelta(days=397)  # some clients accept no longer time
COMMON_NAME_MAX = 64
BEFORE = timedelta(days=2)  # certificates are valid from this time before now, because clocks differ


class BadRequest(Exception):
    """A signing request cannot be used. The message says why."""


class SigningRequest(NamedTuple):
    public_key: EllipticCurvePublicKey
    key_digest: str


class HostCertificate(NamedTuple):
    pem: str
    serial: str


class Authority:
    def __init__(self, folder: Path, now_s: float) -> None:
        """Read the authority of a data folder, or create it. `folder` is the folder `door`."""
        path = folder / AUTHORITY
        if not path.exists():
            write_private(path, _new_authority(now_s))
        content = path.read_bytes()
        try:
            key = load_pem_private_key(content, None)
            self._certificate = x509.load_pem_x509_certificate(content)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise Refused(
                f"{path} is damaged ({error}). Restore it from a backup. If you delete it, all hosts must join again."
            ) from None
        assert isinstance(key, EllipticCurvePrivateKey)
        self._key = key
        self._folder = folder
        self.pem = self._certificate.public_bytes(Encoding.PEM).decode()
        self.pin = pin_of(self.pem)

    def issue_server(self, now_s: float) -> None:
        """Write a new key and a certificate for the door."""
        key = generate_private_key(SECP256R1())
        names = [x509.DNSName(SERVER_NAME)]
        certificate = self._sign(key.public_key(), SERVER_NAME, names, ExtendedKeyUsageOID.SERVER_AUTH, now_s, SERVER_VALID)
        write_private(self._folder / SERVER, _key_pem(key) + certificate.public_bytes(Encoding.PEM))

    def issue_https(self, path: Path, names: Sequence[str], now_s: float) -> float:
        """Write a new key and a certificate for HTTPS, for these host names and addresses. Return when it expires."""
        key, common_name = generate_private_key(SECP256R1()), names[0][:COMMON_NAME_MAX]
        shown = [_general_name(name) for name in names]
        certificate = self._sign(key.public_key(), common_name, shown, ExtendedKeyUsageOID.SERVER_AUTH, now_s, HTTPS_VALID)
        write_private(path, _key_pem(key) + certificate.public_bytes(Encoding.PEM))
        return certificate.not_valid_after_utc.timestamp()

    def issue_host(self, request: SigningRequest, host_id: str, now_s: float, valid_s: float) -> HostCertificate:
        certificate = self._sign(
            request.public_key, host_id, [x509.DNSName(f"{host_id}.hosts.corral.internal")], ExtendedKeyUsageOID.CLIENT_AUTH,
            now_s, timedelta(seconds=valid_s),
        )  # fmt: skip
        return HostCertificate(certificate.public_bytes(Encoding.PEM).decode(), f"{certificate.serial_number:x}")

    def _sign(
        self,
        key: EllipticCurvePublicKey,
        name: str,
        names: Sequence[x509.GeneralName],
        usage: x509.ObjectIdentifier,
        now_s: float,
        valid: timedelta,
    ) -> x509.Certificate:
        now = datetime.fromtimestamp(now_s, UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BEFORE)
            .not_valid_after(now + valid)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )


def read_request(pem: str) -> SigningRequest:
    """Check a signing request, whose signature proves that its sender has the private key. Raise BadRequest."""
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        key = request.public_key()
        valid = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, UnicodeError):
        raise BadRequest("the signing request is not a certificate signing request in PEM form") from None
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name != SECP256R1.name:
        raise BadRequest("the key of the signing request is not an elliptic curve key (P-256)")
    if not valid:
        raise BadRequest("the signature of the signing request is not valid")
    return SigningRequest(key, sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest())


def _new_authority(now_s: float) -> bytes:
    key, now = generate_private_key(SECP256R1()), datetime.fromtimestamp(now_s, UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Corral authority {x509.random_serial_number():x}"[:40])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + AUTHORITY_VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, SHA256())
    )  # fmt: skip
    return _key_pem(key) + certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
