"""A host that has joined from another machine: it joins with a token, and renews its certificate before it expires.

Only a host that joins, or renews its certificate, asks the server for one (`server/door/joining.py`). It sends a signing
request, which is signed with its private key. This key never leaves the host. The certificate of the authority comes from the
server, and the pin in the token proves that it is the right one. So the token is sent only to the server that has created it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from corral.core.errors import Refused
from corral.model.agent_protocol import PROTOCOL
from corral.model.joined_host import JoinAnswer, JoinOffer, JoinRequest
from corral.node.gateway_ports import refuse_if_taken, store_server_is_here
from corral.node.host import machine_id, stored_host_id
from corral.node.server_access import (
    AUTHORITY,
    CERTIFICATE,
    DOOR_PORT,
    JOIN,
    KEY,
    RECORD,
    Joined,
    OtherProtocol,
    context,
    handshake,
    pin_of,
    read_record,
    split_address,
    write_private,
)
from corral.version import full_version

LINE_MAX_BYTES = 64 * 1024
ANSWER_S = 30.0
PIN_LENGTH = 43  # SHA-256 in base64, without padding
RETRY_S = 60.0  # the pause after a renewal has failed
RENEWALS_PER_LIFETIME = 10  # a host whose clock is ahead renews its certificate at most so often

log = logging.getLogger("corral.node")


class Token:
    """The parts of a token: its id and its secret, which the server needs, and the pin of the server's authority."""

    def __init__(self, text: str) -> None:
        parts = text.strip().split(".")
        if len(parts) != 3 or not all(parts) or len(parts[2]) != PIN_LENGTH:
            raise Refused("The token is not complete: copy the whole line that `corral token create` has printed.")
        self.secret = f"{parts[0]}.{parts[1]}"
        self.pin = parts[2]


def join(
    folder: Path, door: str, token: Token, name: str, now_s: Callable[[], float], machine: dict[str, str] | None = None,
    allocation: str = "",
) -> Joined:  # fmt: skip
    """Join a server, and store what the host needs to connect. Raise Refused: then the folder has nothing of this server.

    `machine` is the fingerprint of this machine. `allocation` is the lender's id of the allocation of a pilot.

    If the connection is lost before the answer, the private key stays, so that the next attempt is the same host.
    """
    door = door if ":" in door else f"{door}:{DOOR_PORT}"
    try:
        address = split_address(door)
    except ValueError:
        raise Refused(f"'{door}' is not an address: use SERVER:PORT, for example 10.0.0.5:{DOOR_PORT}.") from None
    record = read_record(folder)
    if record is not None and pin_of((folder / AUTHORITY).read_text()) != token.pin:
        raise Refused(f"{folder} has joined another server, at {record.door}. Choose another folder with --data.")
    offer = _offer(address, door)
    if pin_of(offer.authority) != token.pin:
        raise Refused(
            f"The server at {door} has not created this token: its certificate is not the one that the token names. Nothing was "
            "sent. Check the address, or create a token on this server with `corral token create`."
        )
    if offer.protocol < PROTOCOL:  # a newer server decides whether it serves this protocol
        raise Refused(
            f"The versions of Corral differ: this machine has {full_version()}, and the server has {offer.version}. "
            "Install the version of the server on this machine."
        )
    refuse_if_taken(token.pin, offer.port, offer.machine)
    is_new = not (folder / KEY).exists()
    if is_new:
        write_private(folder / KEY, _new_key())
    request = JoinRequest(
        signing_request=_signing_request(folder), token=token.secret, name=name, protocol=PROTOCOL, version=full_version(),
        time_s=now_s(), machine=machine or {}, allocation=allocation,
    )  # fmt: skip
    try:
        answer = _ask(address, context(JOIN, None, offer.authority), request, door)
        _require_same_host(folder, answer.host_id)
    except Refused:
        if is_new:
            (folder / KEY).unlink()
        raise
    write_private(folder / AUTHORITY, offer.authority.encode())
    (folder / "node").mkdir(mode=0o700, exist_ok=True)
    write_private(folder / "node" / "host.json", json.dumps({"host_id": answer.host_id}).encode() + b"\n")
    store_server_is_here(folder, offer.machine == machine_id())
    return _store(folder, door, answer)


def renew(folder: Path, record: Joined, machine: dict[str, str]) -> Joined:
    """Get a new certificate. The old one, which may have expired, proves which host it is. Raises OSError or Refused."""
    tls = context(JOIN, folder, (folder / AUTHORITY).read_text())
    answer = _ask(split_address(record.door), tls, JoinRequest(_signing_request(folder), machine=machine), record.door)
    return _store(folder, record.door, answer)


async def keep_renewed(folder: Path, record: Joined, machine: dict[str, str], now_s: Callable[[], float]) -> None:
    """Renew the certificate whenever a part of its lifetime is over."""
    while True:
        least_s = (record.expires_at_s - record.renew_at_s) / RENEWALS_PER_LIFETIME if record.renew_at_s else 0.0
        await asyncio.sleep(max(record.renew_at_s - now_s(), 0.0))
        try:
            record = await asyncio.to_thread(renew, folder, record, machine)
            log.info("the certificate of this host was renewed")
            await asyncio.sleep(least_s)
        except (OSError, Refused) as error:
            log.warning("the certificate of this host was not renewed: %s", error)
            await asyncio.sleep(min(RETRY_S, max(least_s, 1.0)))


def _store(folder: Path, door: str, answer: JoinAnswer) -> Joined:
    """Store a certificate and the record. The record comes last, because it says that this host has joined."""
    record = Joined(
        door, answer.host_id, answer.name, answer.port, answer.account, answer.cluster, answer.rack, answer.expires_at_s,
        answer.renew_at_s,
    )  # fmt: skip
    write_private(folder / CERTIFICATE, answer.certificate.encode())
    write_private(folder / RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    return record


def _require_same_host(folder: Path, host_id: str) -> None:
    path = folder / "node" / "host.json"
    with suppress(FileNotFoundError):
        if stored_host_id(path) != host_id:
            raise Refused(f"{folder} belongs to another host, whose tasks may still run. Choose another folder with --data.")


def _offer(address: tuple[str, int], door: str) -> JoinOffer:
    """Return the authority that a server claims to have. The connection is not checked: nothing is sent on it."""
    return _exchange(address, context(JOIN, None, ""), None, door)[0]


def _ask(address: tuple[str, int], tls: ssl.SSLContext, request: JoinRequest, door: str) -> JoinAnswer:
    _, answer = _exchange(address, tls, request, door)
    if answer.error:
        raise Refused(answer.error)
    return answer


def _exchange(
    address: tuple[str, int], tls: ssl.SSLContext, request: JoinRequest | None, door: str
) -> tuple[JoinOffer, JoinAnswer]:
    try:
        with handshake(address, tls, JOIN) as connection, connection.makefile("rb") as lines:
            connection.settimeout(ANSWER_S)
            offer = msgspec.json.decode(lines.readline(LINE_MAX_BYTES), type=JoinOffer)
            if request is None:
                return offer, JoinAnswer()
            connection.sendall(msgspec.json.encode(request) + b"\n")
            return offer, msgspec.json.decode(lines.readline(LINE_MAX_BYTES), type=JoinAnswer)
    except ssl.SSLCertVerificationError as error:
        raise Refused(f"The certificate of the server at {door} is not valid: {error.verify_message}.") from None
    except OtherProtocol as error:
        raise ConnectionError(f"{error}: install the same version of Corral on both machines") from None
    except ssl.SSLError as error:
        raise ConnectionError(f"{door} is not the door of a Corral server: {error.reason or error}") from None
    except msgspec.DecodeError:
        raise ConnectionError(
            f"{door} has closed the connection: it refuses this host, or is not the door of a Corral server"
        ) from None


def _new_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _signing_request(folder: Path) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    key = load_pem_private_key((folder / KEY).read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA256())
    return request.public_bytes(Encoding.PEM).decode()
